"""`Model`: a family with a configuration; pure functions of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import ModelError
from vjax.layers.context import Context
from vjax.layers.norms import norm
from vjax.layers.paging import Cache, PagedStep
from vjax.models.config import ModelConfig
from vjax.models.family import Family
from vjax.models.page_groups import grouped
from vjax.models.registry import family_for
from vjax.models.spec import Tree
from vjax.quant import matmul, rows

CAPTURES = ("residual", "attention")


@dataclass(frozen=True)
class Model:
    """A decoder without its weights; hashable, so that it can be a static argument of `jax.jit`."""

    family: Family
    config: ModelConfig

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> Model:
        family = family_for(hf)
        config = family.config(hf)
        if any(not getattr(spec, "causal", True) for spec in config.attention):
            raise ModelError(f"{config.architecture} encodes: it has no next token. Load it for `encode`.")
        return cls(family, grouped(config))

    def spec(self) -> Tree:
        """The abstract tree: a `Param` for every leaf of `params`."""
        return self.family.params(self.config)

    def apply(
        self, params: Tree, tokens: jax.Array, *, positions: jax.Array | None = None, capture: Sequence[str] = ()
    ) -> Any:
        """Logits `[B, T, V]` float32 of whole sequences `tokens[B, T]`, without a cache; pure and differentiable.

        `positions[T]` default to 0, 1, ... With `capture`, returns `(logits, captured)`, where `captured` maps
        `"residual"` to the residual stream `[B, L + 1, T, d]` (the embedding, then after each layer) and `"attention"`
        to the attention weights `[B, L, H, T, T]`.
        """
        unknown = set(capture) - set(CAPTURES)
        if unknown:
            raise ModelError(f"capture holds {sorted(unknown)[0]!r}; known: {', '.join(CAPTURES)}.")
        if tokens.ndim != 2:
            raise ModelError(f"tokens must be [B, T], got an array of shape {tuple(tokens.shape)}.")
        where = jnp.arange(tokens.shape[1]) if positions is None else positions

        def one(row: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            ctx = self._context(row, where, capture=tuple(capture))
            hidden, _ = self._layers(params, self.embed(params, row, where), ctx, None)
            return self.unembed(params, hidden), {name: jnp.stack(values) for name, values in ctx.taps.items()}

        logits, captured = jax.vmap(one)(tokens)
        return (logits, captured) if capture else logits

    def forward(
        self, params: Tree, tokens: jax.Array, positions: jax.Array, step: PagedStep, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """The paged, ragged form: `tokens[T]` at `positions[T]`, laid out by `step` -> hidden `[T, d]`, the cache."""
        ctx = self._context(tokens, positions, step)
        hidden, new = self._layers(params, self.embed(params, tokens, positions), ctx, cache)
        assert new is not None
        return hidden, new

    def embed(self, params: Tree, tokens: jax.Array, positions: jax.Array, types: jax.Array | None = None) -> jax.Array:
        """Embedding rows `[T, d]` of `tokens[T]` in the compute dtype, with learned positions and token types (0 unless
        given) where there are any."""
        x, config = rows(params["embed"], tokens), self.config
        if config.embed_scale != 1.0:
            # The scale is rounded to the compute dtype first, as the reference does.
            x = x * jnp.asarray(config.embed_scale, x.dtype)
        if config.embed_width:
            x = matmul(x, params["project_in"])
        if config.position_offset is not None:
            x = x + rows(params["positions"], positions + config.position_offset)
        if "token_types" in params:
            x = x + rows(params["token_types"], jnp.zeros_like(tokens) if types is None else types)
        return norm(x, params["embed_norm"], config.norm_eps) if "embed_norm" in params else x

    def unembed(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """Logits `[..., V]` float32 of `hidden[..., d]` as the last layer leaves it."""
        config, x = self.config, self.final_norm(params, hidden)
        if config.embed_width:
            x = matmul(x, params["project_out"])
        logits = matmul(x, params["head"] if "head" in params else params["embed"]).astype(jnp.float32)
        if config.head_bias:
            logits = logits + params["head_bias"].astype(jnp.float32)
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        cap = config.final_softcap
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def final_norm(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """Hidden states `[..., d]` as the last layer leaves them, normed where the model does so."""
        norms = params.get("norm")
        return hidden if norms is None else norm(hidden, norms, self.config.norm_eps, self.config.norm_offset)

    def _context(
        self, tokens: jax.Array, positions: jax.Array, step: PagedStep | None = None, capture: tuple[str, ...] = ()
    ) -> Context:
        ropes = tuple(rope.tables(positions) for rope in self.config.ropes)
        return Context(positions, ropes, step, capture, tokens=tokens)

    def _layers(
        self, params: Tree, x: jax.Array, ctx: Context, cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:  # fmt: skip
        ctx.tap("residual", x)
        update: jax.Array | None = None
        for i, w in enumerate(params["layers"]):
            x, update, cache = self.family.block(w, x, update, ctx, cache, self.config, i)
            ctx.tap("residual", x if update is None else x + update)
        return (x if update is None else x + update), cache
