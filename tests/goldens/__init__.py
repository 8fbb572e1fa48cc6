"""What transformers computes for tiny seeded models, and those models' checkpoints, without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens.cases import CASES, ENCODERS, Case
from tests.goldens.weights import Shape, Tensors, seeded_tensors, write_checkpoint

DATA = Path(__file__).parent / "data"
BY_NAME = {case.name: case for case in CASES + ENCODERS}


@dataclass(frozen=True)
class Golden:
    """A case with its stored outputs, float32 and eager attention; all token arrays are int32."""

    case: Case
    seed: int
    shapes: dict[str, Shape]  # of every checkpoint tensor (the oracle's, where they differ), by Hugging Face name
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
        tensors = seeded_tensors(self.shapes, self.seed, 0.0 if self.case.zero_centred_norms else 1.0)
        return self.case.packed(tensors, self.config) if self.case.packed else tensors


@dataclass(frozen=True)
class EncoderGolden:
    """A case of a model that encodes, each text on its own: hidden states after the last norm, or class scores."""

    case: Case
    seed: int
    shapes: dict[str, Shape]
    texts: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]  # for each text `[T, d]`, or `[labels]` of a classifier
    moved: tuple[float, ...]

    def checkpoint(self, directory: Path) -> Path:
        return write_checkpoint(directory, self.case.config, seeded_tensors(self.shapes, self.seed))


def load_encoder_case(name: str) -> EncoderGolden:
    with np.load(DATA / f"{name}.npz") as data:
        meta = json.loads(str(data["meta"]))
        if meta["config"] != BY_NAME[name].config:
            raise ValueError(f"golden {name!r} is older than its case: run `python -m tests.goldens.generate {name}`.")
        texts = tuple(np.split(data["texts"], np.cumsum(meta["lengths"])[:-1]))
        rows = [len(value) for value in texts] if data["values"].shape[0] > len(texts) else [1] * len(texts)
        values = np.split(data["values"], np.cumsum(rows)[:-1])
        return EncoderGolden(
            case=BY_NAME[name],
            seed=meta["seed"],
            shapes={tensor: tuple(shape) for tensor, shape in meta["shapes"].items()},
            texts=texts,
            values=tuple(value[0] if rows[0] == 1 and len(set(rows)) == 1 else value for value in values),
            moved=tuple(meta["moved"]),
        )


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
