"""Mamba-2's layer (Dao & Gu, 2024): a linear state-space recurrence whose decay is one number a head.

    S = exp(dt a) S + dt x B^T;  y = S C + D x

H heads of P channels in G groups, which share B and C of N channels; R = H / G. The recurrence is in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from vjax.layers.context import Context
from vjax.layers.mlp import activation
from vjax.layers.paging import Cache, PagedStep
from vjax.layers.recurrent import CHUNK, Arrays, decays, einsum, read_state, recur, write_state
from vjax.layers.short_conv import short_conv
from vjax.pallas_kernels.add_rms_norm import rms_norm
from vjax.quant import matmul

Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # dt x, dt a, B, C


@dataclass(frozen=True)
class SSMSpec:
    """Sizes of a layer, and what its weights do not say."""

    heads: int
    head_dim: int
    groups: int
    state: int  # N
    conv_size: int
    act: str = "silu"
    gate: Literal["before norm", "after norm", "alone"] = "before norm"
    norm_eps: float = 1e-5  # of the norm over each group
    time_step: tuple[float, float] = (0.0, math.inf)  # dt is clipped to this
    multipliers: tuple[float, float, float, float, float] | None = None  # of the projected gate, x, B, C and dt

    @property
    def arrays(self) -> Arrays:
        """What a sequence carries through one layer: inputs of the convolutions, and S."""
        before, heads, head_dim = self.conv_size - 1, self.heads, self.head_dim
        return (
            ("x_window", (before, heads, head_dim), (None, "heads", None)),
            ("bc_window", (before, 2, self.groups, self.state), (None, None, None, None)),
            ("ssm", (heads, head_dim, self.state), ("heads", None, None)),
        )


def mamba2(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, place: int, spec: SSMSpec
) -> tuple[jax.Array, Cache | None]:
    """The layer on `x[T, d]`.

    `w`: `zx[2, H, P, d]` (gate and x), `bc[2, G, N, d]`, `dt_in[H, d]`, `x_conv[H, P, n]`, `bc_conv[2, G, N, n]`,
    `dt_bias[H]`, `a_log[H]`, `skip[H]`, `out[d, H * P]`; optional `norm[H * P]` and, for each product and convolution,
    a bias: its name with `_bias`.
    """
    tokens, heads, head_dim = x.shape[0], spec.heads, spec.head_dim
    zx, bc, dt = (_project(w, name, x) for name in ("zx", "bc", "dt_in"))
    z, x_in = zx[:, 0], zx[:, 1]
    if spec.multipliers is not None:
        m = spec.multipliers
        z, x_in, dt = z * m[0], x_in * m[1], dt * m[4]
        bc = bc * jnp.array([m[2], m[3]], bc.dtype)[:, None, None]
    state, act = read_state(ctx, cache, place, spec.arrays), activation(spec.act)
    x_in, x_window = short_conv(x_in, w["x_conv"], w.get("x_conv_bias"), state["x_window"], ctx.step)
    bc, bc_window = short_conv(bc, w["bc_conv"], w.get("bc_conv_bias"), state["bc_window"], ctx.step)
    x_in, bc = act(x_in), act(bc)
    dt = jnp.clip(jax.nn.softplus(dt.astype(jnp.float32) + w["dt_bias"]), *spec.time_step)  # [T, H]

    inputs = (x_in * dt[..., None], -jnp.exp(w["a_log"].astype(jnp.float32)) * dt, bc[:, 0], bc[:, 1])
    y, ssm = state_space(inputs, state["ssm"], ctx.step)
    y = _gate(y + w["skip"][:, None] * x_in, z, w, spec).reshape(tokens, heads * head_dim).astype(x.dtype)
    cache = write_state(ctx, cache, place, {"x_window": x_window, "bc_window": bc_window, "ssm": ssm})
    return _project(w, "out", y), cache


def state_space(
    inputs: Inputs, state: jax.Array, step: PagedStep | None, chunk: int = CHUNK
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """`dt x [T, H, P]`, log decays `dt a [T, H]`, B and C `[T, G, N]`, and S `[S, H, P, N]` of each row -> `S C`
    `[T, H, P]` and S after each row."""
    dtx, log_decay, b, c = inputs
    heads, groups = dtx.shape[1], b.shape[1]
    split = (groups, heads // groups)
    grouped = (dtx.reshape(-1, *split, dtx.shape[2]), log_decay.reshape(-1, *split), b, c)
    y, new = recur(grouped, state.reshape(-1, *split, *state.shape[2:]), step, _one, _many, chunk)
    return y.reshape(dtx.shape), new.reshape(state.shape)


def _one(inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtx, log_decay, b, c = inputs
    state = jnp.exp(log_decay)[..., None, None] * state + dtx[..., None] * b[:, :, None, None, :]
    return einsum("sgrpn,sgn->sgrp", state, c), state


def _many(inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """C tokens at once: attention with decays among them, and what the state adds (their section 6)."""
    dtx, log_decay, b, c = inputs
    total, between, left = decays(log_decay)
    scores = einsum("tgn,ugn->gtu", c, b)[:, None] * between
    before = jnp.exp(total)[..., None] * einsum("tgn,grpn->tgrp", c, state)
    y = before + einsum("grtu,ugrp->tgrp", scores, dtx)
    state = jnp.exp(total[-1])[..., None, None] * state + einsum("ugrp,gru,ugn->grpn", dtx, left, b)
    return y, state


def _project(w: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
    y = matmul(x, w[name])
    return y + w[f"{name}_bias"].astype(x.dtype) if f"{name}_bias" in w else y


def _gate(y: jax.Array, z: jax.Array, w: dict[str, Any], spec: SSMSpec) -> jax.Array:
    """`y[T, H, P]` float32, normed in each group and multiplied by `silu(z)`, in either order -> `[T, G, R * P]`."""
    groups = (y.shape[0], spec.groups, -1)
    y, z = y.reshape(groups), jax.nn.silu(z.astype(jnp.float32)).reshape(groups)
    if spec.gate == "alone":
        return y * z
    weight = w["norm"].reshape(spec.groups, -1)
    if spec.gate == "after norm":
        return rms_norm(y, weight, spec.norm_eps, 0.0) * z
    return rms_norm(y * z, weight, spec.norm_eps, 0.0)
