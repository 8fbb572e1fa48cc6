"""The gated delta rule (Gated DeltaNet: Yang, Kautz & Hatamizadeh, 2024): linear attention whose state is a memory from
keys to values. Each token lets it fade, then corrects by a share `beta` what the memory says for the token's key:

    M = exp(g) M;  M = M + k (beta (v - M^T k))^T;  out = M^T q

H key heads, R value heads for each, I channels of a key, J of a value; all in float32. `g` is one number for each
value head, or one for each channel of its keys (Kimi Delta Attention: Kimi Team, 2025).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.mlp import activation
from vjax.layers.paging import PagedStep
from vjax.layers.recurrent import CHUNK, decays, einsum, recur
from vjax.pallas_kernels.add_rms_norm import rms_norm

CHANNEL_CHUNK = 16  # decays by channel take a table of `[C, C]` for each
L2_EPS = 1e-6  # of the norms of queries and keys, as in the authors' code

Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]  # q, k, v, g, beta


def gated_delta_rule(
    inputs: Inputs, state: jax.Array, step: PagedStep | None, chunk: int = CHUNK
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys `[T, H, I]`, values `[T, H, R, J]`, log decays g <= 0 `[T, H, R]` or `[T, H, R, I]`, betas
    `[T, H, R]`, and the memory `[S, H, R, I, J]` -> outputs `[T, H, R, J]` and the memory after each row."""
    if inputs[3].ndim == 4:
        chunk = min(chunk, CHANNEL_CHUNK)
    return recur(inputs, state, step, _one, _many, chunk)


def l2_norm(x: jax.Array) -> jax.Array:
    """`x[..., I]` with length 1."""
    return x * lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + L2_EPS)


def gated_norm(x: jax.Array, weight: jax.Array, gate: jax.Array, eps: float, act: str = "silu") -> jax.Array:
    """The RMS norm of `x[..., J]`, times `act(gate)`."""
    return rms_norm(x, weight, eps, 0.0) * activation(act)(gate.astype(jnp.float32))


def _one(inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, k, v, g, beta = inputs
    state = state * jnp.exp(g if g.ndim == 4 else g[..., None])[..., None]
    delta = beta[..., None] * (v - einsum("shi,shrij->shrj", k, state))
    state = state + k[:, :, None, :, None] * delta[..., None, :]
    return einsum("shi,shrij->shrj", q, state), state


def _many(inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """C tokens at once (Gated DeltaNet, section 3.3). Token t's correction depends on those before it in the chunk:

        delta[t] + beta[t] sum_{u < t} decay(u, t) (k[t] . k[u]) delta[u] = beta[t] (v[t] - decay(0, t) M^T k[t])

    which is a triangular system.
    """
    q, k, v, g, beta = inputs
    total, between, left = decays(g)  # [C, H, R, *], [H, R, *, C, C], [H, R, *, C]

    def products(x: jax.Array) -> jax.Array:
        """`decay(u, t) (x[t] . k[u])`, `[H, R, C, C]`."""
        if g.ndim == 3:
            return between * einsum("thi,uhi->htu", x, k)[:, None]
        return einsum("hritu,hitu->hrtu", between, einsum("thi,uhi->hitu", x, k))

    if g.ndim == 3:
        total, left = total[..., None], left[:, :, None]
    faded = jnp.exp(total)  # [C, H, R, I or 1]
    system = jnp.moveaxis(beta, 0, -1)[..., None] * products(k)
    wanted = beta[..., None] * (v - einsum("thri,hrij->thrj", k[:, :, None] * faded, state))
    delta = lax.linalg.triangular_solve(
        system, jnp.moveaxis(wanted, 0, 2), left_side=True, lower=True, unit_diagonal=True
    )  # fmt: skip
    out = einsum("thri,hrij->thrj", q[:, :, None] * faded, state) + einsum("hrtu,hruj->thrj", products(q), delta)
    kept = jnp.moveaxis(k, 0, -1)[:, None] * left  # [H, R, I, C]
    state = faded[-1][..., None] * state + einsum("hriu,hruj->hrij", kept, delta)
    return out, state
