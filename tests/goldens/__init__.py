"""What transformers computes for tiny seeded models, and those models' checkpoints, without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens.cases import CASES, Case
from tests.goldens.weights import Shape, Tensors, seeded_tensors, write_checkpoint

DATA = Path(__file__).parent / "data"
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Golden:
    """A case with its stored outputs, float32 and eager attention; all token arrays are int32."""

    case: Case
    seed: int
    shapes: dict[str, Shape]  # of every checkpoint tensor, by Hugging Face name
    tokens: np.ndarray  # [B, T]
    logits: np.ndarray  # [B, T, V] float32, of `tokens`
    prompts: tuple[np.ndarray, ...]  # three, of different lengths, the first of one token
    greedy: np.ndarray  # [len(prompts), N]: the greedy continuation of each prompt, which never meets the eos
    gap: float  # the least distance between the two highest logits on any greedy path
    moved: tuple[float, ...]  # how far each of the case's switches moves the logits
    versions: dict[str, str]

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def config(self) -> dict[str, Any]:
        return self.case.config

    def tensors(self) -> Tensors:
        """The weights by Hugging Face name, float32."""
        return seeded_tensors(self.shapes, self.seed, 0.0 if self.case.zero_centred_norms else 1.0)


def case_names(*families: str) -> list[str]:
    """The names of all cases, or of those whose `model_type` is among `families`."""
    return [case.name for case in CASES if not families or case.family in families]


def load_case(name: str) -> Golden:
    with np.load(DATA / f"{name}.npz") as data:
        meta = json.loads(str(data["meta"]))
        if meta["config"] != BY_NAME[name].config:
            raise ValueError(f"golden {name!r} is older than its case: run `python -m tests.goldens.generate {name}`.")
        ends = np.cumsum(meta["prompt_lengths"])[:-1]
        return Golden(
            case=BY_NAME[name],
            seed=meta["seed"],
            shapes={tensor: tuple(shape) for tensor, shape in meta["shapes"].items()},
            tokens=data["tokens"],
            logits=data["logits"],
            prompts=tuple(np.split(data["prompts"], ends)),
            greedy=data["greedy"],
            gap=meta["gap"],
            moved=tuple(meta["moved"]),
            versions=meta["versions"],
        )


def checkpoint(name: str, directory: Path, shards: int = 1) -> Path:
    """Write the case's Hugging Face checkpoint below `directory` and return its path; an existing one is reused."""
    path = directory / (name if shards == 1 else f"{name}-{shards}-shards")
    if not path.exists():
        golden = load_case(name)
        write_checkpoint(path, golden.config, golden.tensors(), shards)
    return path
