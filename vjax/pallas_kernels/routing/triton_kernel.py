"""The choice of experts: a warp for each token. In XLA it is two kernels for each of the k passes. Importing this file
imports Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.triton_call import call

NEVER = tl.constexpr(-3e38)


def choose(
    logits: jax.Array, bias: jax.Array | None, top_k: int, score: str, renormalise: bool, scaling: float,
    softcap: float | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """As `api.choose`."""
    tokens, experts = logits.shape
    ids, weights = call(
        _choose, (tokens,), (logits, logits if bias is None else bias.astype(jnp.float32)),
        [((tokens, top_k), jnp.int32), ((tokens, top_k), jnp.float32)], 1, 1, EXPERTS=experts,
        BLOCK=triton.next_power_of_2(experts), TOP_K=top_k, BLOCK_K=triton.next_power_of_2(top_k), SCORE=score,
        BIAS=bias is not None, RENORMALISE=renormalise, SCALING=scaling, SOFTCAP=softcap or 0.0,
    )  # fmt: skip
    return ids, weights


@triton.jit
def _choose(
    logits, bias, ids, weights, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, TOP_K: tl.constexpr, BLOCK_K: tl.constexpr,
    SCORE: tl.constexpr, BIAS: tl.constexpr, RENORMALISE: tl.constexpr, SCALING: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Grid (T,)."""
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    here = e < EXPERTS
    x = tl.load(logits + token * EXPERTS + e, mask=here, other=-1e30).to(tl.float32)
    if SOFTCAP != 0.0:  # tanh without libdevice; the exponential may overflow, which gives 1
        x = (1.0 - 2.0 / (tl.exp(x * (2.0 / SOFTCAP)) + 1.0)) * SOFTCAP
    if SCORE == "softmax":
        score = tl.exp(x - tl.max(tl.where(here, x, NEVER), 0))
        score = tl.where(here, score, 0.0)
        score = score / tl.sum(score, 0)
    elif SCORE == "sigmoid":
        score = 1.0 / (1.0 + tl.exp(-x))
    else:  # the square root of the softplus
        score = tl.sqrt_rn(tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))
    choice = score
    if BIAS:
        choice += tl.load(bias + e, mask=here, other=0.0)
    choice = tl.where(here, choice, NEVER)
    k = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    weight = tl.zeros([BLOCK_K], tl.float32)
    for i in tl.static_range(TOP_K):
        best = tl.argmax(choice, 0)  # of equals the first
        chosen = tl.where(k == i, best, chosen)
        weight = tl.where(k == i, tl.sum(tl.where(e == best, score, 0.0), 0), weight)
        choice = tl.where(e == best, NEVER, choice)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, 0) + 1e-20)
    tl.store(ids + token * TOP_K + k, chosen, mask=k < TOP_K)
    tl.store(weights + token * TOP_K + k, weight * SCALING, mask=k < TOP_K)
