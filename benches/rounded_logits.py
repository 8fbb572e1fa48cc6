"""What rounding activations to 8 bits does to a GGUF model's next-token distributions, beside llama.cpp's own rounding.

    python -m benches.rounded_logits MODEL.gguf TEXT... [--tokens 24]

Each text's first tokens are read token by token (teacher forcing). Against the same weights with float32 activations:
the mean Kullback-Leibler divergence in nats (over the float32 pass's TOP likeliest tokens and one bin for all others)
and how often the likeliest token is the same. llama.cpp (`pip install xllamacpp`) reads the same ids.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import vjax
from benches.cpu_vs_llamacpp import LlamaCpp
from vjax.pallas_kernels import dispatch
from vjax.quant.ggml_blocks import FEW_ROWS
from vjax.tokenizing import load_tokenizer

TOP = 200


def vjax_logprobs(path: str, texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """`[positions, V]` with float32 activations and with rounded ones."""
    model, params = vjax.load(path, packed=True, use_tqdm_on_load=False)
    plain = jax.jit(lambda p, ids: jax.nn.log_softmax(model.apply(p, ids)))

    def in_a_step(p: Any, ids: jax.Array) -> jax.Array:
        with dispatch.tracing_a_step():
            return jax.nn.log_softmax(model.apply(p, ids))

    found = [
        np.concatenate([np.asarray(run(params, jnp.asarray([ids]))[0]) for ids in texts])
        for run in (plain, jax.jit(in_a_step))
    ]
    return found[0], found[1]


def llamacpp_logprobs(path: str, texts: list[list[int]]) -> list[dict[int, float]]:
    """Of each position the likeliest tokens' log-probabilities."""
    server = LlamaCpp(path, 2)
    return [server.likeliest(ids[: n + 1], 2 * TOP) for ids in texts for n in range(len(ids))]


def divergence(reference: np.ndarray, other: dict[int, float]) -> float:
    """Over the tokens of `other` among the reference's `TOP`, and all others as one."""
    top = [int(t) for t in np.argsort(-reference)[:TOP] if int(t) in other]
    p, q = np.exp(reference[top].astype(np.float64)), np.exp(np.array([other[t] for t in top]))
    p, q = np.append(p, max(1 - p.sum(), 1e-12)), np.append(q, max(1 - q.sum(), 1e-12))
    return float(np.sum(p * np.log(p / q)))


def measure(path: str, files: list[str], tokens: int) -> dict[str, Any]:
    tokenizer = load_tokenizer(path)
    texts = [tokenizer.encode(Path(file).read_text())[:tokens] for file in files]
    plain, rounded = vjax_logprobs(path, texts)
    theirs = llamacpp_logprobs(path, texts)
    ours = [{int(t): float(row[t]) for t in np.argsort(-row)[: 2 * TOP]} for row in rounded]
    result: dict[str, Any] = {"model": Path(path).name, "positions": len(plain)}
    for name, side in (("vjax", ours), ("llama.cpp", theirs)):
        same = [
            max(found, key=found.__getitem__) == int(np.argmax(row)) for row, found in zip(plain, side, strict=True)
        ]
        kl = [divergence(row, found) for row, found in zip(plain, side, strict=True)]
        result[name] = {"mean KL": float(f"{np.mean(kl):.3g}"), "same likeliest token": round(float(np.mean(same)), 3)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=".gguf file")
    parser.add_argument("text", nargs="+", help="text files")
    parser.add_argument("--tokens", type=int, default=24, choices=range(1, FEW_ROWS + 1), metavar=f"1..{FEW_ROWS}")
    args = parser.parse_args()
    print(json.dumps(measure(args.model, args.text, args.tokens), indent=1))


if __name__ == "__main__":
    main()
