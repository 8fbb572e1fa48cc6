"""When the kernel takes a choice, and the choice."""

from __future__ import annotations

import jax

from vjax.pallas_kernels import dispatch

MAX_EXPERTS = 1024  # one warp holds a token's scores


def choose(
    logits: jax.Array, bias: jax.Array | None, *, top_k: int, score: str, renormalise: bool, scaling: float,
    softcap: float | None,
) -> tuple[jax.Array, jax.Array] | None:  # fmt: skip
    """The `top_k` best experts `[T, k]` int32 of each token and their weights `[T, k]` float32 for `logits[T, E]`
    float32; `bias[E]` sways the choice only. None where no kernel runs: outside of steps, or not on a GPU."""
    experts = logits.shape[1]
    obstacle = f"there are {experts} experts, more than {MAX_EXPERTS}" if experts > MAX_EXPERTS else None
    if not dispatch.in_step() or dispatch.pick("routing", obstacle) != "triton":
        return None
    # Imported here: Triton is not on every machine, and slow to import.
    from vjax.pallas_kernels.routing import triton_kernel

    return triton_kernel.choose(logits, bias, top_k, score, renormalise, scaling, softcap)
