"""Writes the goldens with transformers as the oracle: `python -m tests.goldens.generate [case ...]`.

Needs the `oracle` extra. The oracle reads the same checkpoint that the tests write, so its tensor names, shapes and
config are those of a published model. Seeds are tried from 0 until greedy decoding is far from every tie.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from tests.goldens import BY_NAME, DATA
from tests.goldens.cases import CASES, ENCODERS, Case
from tests.goldens.weights import Shape, seeded_tensors, write_checkpoint

PROMPT_LENGTHS = (1, 7, 19)
NEW_TOKENS = 16
TEXT_LENGTHS = (1, 11, 26)  # of encoders
FIRST_ORDINARY = 3  # below are unknown, bos and eos
MIN_GAP = 0.01  # float32 noise is near 1e-5
MIN_DISTINCT = 5  # tokens in a continuation
MIN_MOVE = 0.05  # a switch that moves no logit by this much tests nothing
MAX_NOISE = 2e-5
MAX_SEEDS = 400


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    DATA.mkdir(exist_ok=True)
    for case in [BY_NAME[name] for name in names] or CASES + ENCODERS:
        arrays = generate_encoder(case) if case in ENCODERS else generate(case)
        path = DATA / f"{case.name}.npz"
        np.savez_compressed(path, **arrays)
        meta = json.loads(str(arrays["meta"]))
        moved = [round(move, 2) for move in meta["moved"]]
        gap = f", gap {meta['gap']:.3f}" if "gap" in meta else ""
        print(f"{case.name}: seed {meta['seed']}{gap}, moved {moved}, {path.stat().st_size} bytes")


def generate(case: Case) -> dict[str, np.ndarray]:
    shapes = {case.published(name): shape for name, shape in tensor_shapes(case.seen).items()}
    for seed in range(MAX_SEEDS):
        with tempfile.TemporaryDirectory() as directory:
            path = write_seeded(case, shapes, seed, Path(directory))
            model = load(path)
            prompts, greedy, gap = greedy_paths(model, case, seed)
            if not sound(greedy, gap, case.config["eos_token_id"]):
                continue
            tokens = random_tokens(case, seed, "logits", case.tokens)
            logits = run(model, tokens)
            if noise(path, tokens, logits) > MAX_NOISE:
                continue
            moved = [moves(path, case.seen, switch, tokens, logits) for switch in case.switches]
        if any(move < MIN_MOVE for move in moved):
            raise SystemExit(f"{case.name}: a switch moves the logits by less than {MIN_MOVE}: {moved}")
        meta = {
            "config": case.config,
            "seed": seed,
            "shapes": shapes,
            "prompt_lengths": PROMPT_LENGTHS,
            "gap": gap,
            "moved": moved,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        return {
            "meta": np.array(json.dumps(meta)),
            "tokens": tokens,
            "logits": logits,
            "prompts": np.concatenate(prompts),
            "greedy": greedy,
        }
    raise SystemExit(f"{case.name}: no seed below {MAX_SEEDS} keeps greedy steps off ties and float32 by float64")


def generate_encoder(case: Case) -> dict[str, np.ndarray]:
    """Hidden states or class scores of three texts, each run on its own."""
    shapes, seed = tensor_shapes(case.config), 0
    texts = [random_tokens(case, seed, f"text {n}", (n,)) for n in TEXT_LENGTHS]
    with tempfile.TemporaryDirectory() as directory:
        path = write_seeded(case, shapes, seed, Path(directory))
        values = encode(load(path), texts)
        moved = []
        for switch in case.switches:
            (path / "config.json").write_text(json.dumps({**copy.deepcopy(case.config), **switch}))
            moved.append(float(np.abs(encode(load(path, strict=False), texts) - values).max()))
    if any(move < MIN_MOVE for move in moved):
        raise SystemExit(f"{case.name}: a switch moves the values by less than {MIN_MOVE}: {moved}")
    meta = {
        "config": case.config,
        "seed": seed,
        "shapes": shapes,
        "lengths": TEXT_LENGTHS,
        "moved": moved,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return {"meta": np.array(json.dumps(meta)), "texts": np.concatenate(texts), "values": values}


@torch.no_grad()
def encode(model: Any, texts: list[np.ndarray]) -> np.ndarray:
    """Hidden states `[sum of lengths, d]`, or class scores `[texts, labels]`."""
    outputs = [model(torch.from_numpy(text[None]).long()) for text in texts]
    return np.concatenate([(o.logits if "logits" in o else o.last_hidden_state[0]).numpy() for o in outputs])


def sound(greedy: np.ndarray, gap: float, eos: int) -> bool:
    distinct = min(len(set(row)) for row in greedy.tolist())
    return gap > MIN_GAP and distinct >= MIN_DISTINCT and eos not in greedy


def tensor_shapes(config: dict[str, Any]) -> dict[str, Shape]:
    """The names and shapes that transformers saves for a model of this config."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        (path / "config.json").write_text(json.dumps(config))
        model_class(config)(transformers.AutoConfig.from_pretrained(path)).save_pretrained(path)
        with safe_open(path / "model.safetensors", "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def model_class(config: dict[str, Any]) -> Any:
    return getattr(transformers, config["architectures"][0])


def write_seeded(case: Case, shapes: dict[str, Shape], seed: int, directory: Path) -> Path:
    tensors = seeded_tensors(shapes, seed, 0.0 if case.zero_centred_norms else 1.0)
    return write_checkpoint(directory, case.seen, tensors)


def load(path: Path, strict: bool = True) -> Any:
    """The model in float32 with eager attention; `strict`: every tensor of model and file found its counterpart."""
    config = json.loads((path / "config.json").read_text())
    model, report = model_class(config).from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    problems = {kind: names for kind, names in report.items() if names}
    if strict and problems:
        raise SystemExit(f"transformers did not load the checkpoint as written: {problems}")
    return model.eval()


@torch.no_grad()
def run(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits `[B, T, V]` float32, without a cache."""
    return model(torch.from_numpy(tokens).long(), use_cache=False).logits.numpy()


def noise(path: Path, tokens: np.ndarray, logits: np.ndarray) -> float:
    """How far float32 takes the logits from those of float64: where it is much, so is what any order of sums does."""
    return float(np.abs(run(load(path).double(), tokens) - logits).max())


def greedy_paths(model: Any, case: Case, seed: int) -> tuple[list[np.ndarray], np.ndarray, float]:
    """The prompts, their continuations and the least top-2 gap met on the way."""
    prompts = [random_tokens(case, seed, f"prompt {n}", (n,)) for n in PROMPT_LENGTHS]
    gap = np.inf
    continuations = []
    for prompt in prompts:
        tokens = prompt
        for _ in range(NEW_TOKENS):
            row = run(model, tokens[None])[0, -1]
            second, first = np.sort(row)[-2:]
            gap = min(gap, float(first - second))
            tokens = np.append(tokens, np.int32(row.argmax()))
        continuations.append(tokens[len(prompt) :])
    return prompts, np.stack(continuations), gap


def random_tokens(case: Case, seed: int, use: str, shape: Shape) -> np.ndarray:
    random = np.random.RandomState(zlib.crc32(f"{seed}/{case.name}/{use}".encode()))
    return random.randint(FIRST_ORDINARY, case.config["vocab_size"], shape).astype(np.int32)


def moves(path: Path, config: dict[str, Any], switch: dict[str, Any], tokens: np.ndarray, logits: np.ndarray) -> float:
    """The largest change of a logit when the config is changed by `switch` and the weights are kept."""
    (path / "config.json").write_text(json.dumps({**copy.deepcopy(config), **switch}))
    return float(np.abs(run(load(path, strict=False), tokens) - logits).max())


if __name__ == "__main__":
    main(sys.argv[1:])
