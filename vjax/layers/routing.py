"""Which experts a token goes to, and with what weight. T tokens, E experts, k of them for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from vjax.errors import ModelError
from vjax.pallas_kernels.routing import choose

NEVER = -1e30


@dataclass(frozen=True)
class Routing:
    """How one model's routers choose.

    `score`: of an expert, from its logit. `groups`: experts lie in that many groups of equal size, and only those of
    the best `top_groups` are eligible; a group is as good as its best expert, or its two best (`group_score`).
    `renormalise`: the weights of the chosen sum to 1. `scaling` multiplies them afterwards. `softcap`: of the logits.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    renormalise: bool = False
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "two best"] = "two best"
    softcap: float | None = None

    def check(self, experts: int) -> None:
        """Raises `ModelError` unless these numbers fit together."""
        if not 0 < self.top_k <= experts:
            raise ModelError(f"{self.top_k} experts per token out of {experts} cannot be.")
        if self.groups < 1 or experts % self.groups or not 0 < self.top_groups <= self.groups:
            raise ModelError(
                f"{experts} experts do not fall into {self.groups} groups of which {self.top_groups} count."
            )
        if self.top_k > experts // self.groups * self.top_groups:
            raise ModelError(f"{self.top_k} experts per token do not lie in {self.top_groups} of {self.groups} groups.")


def route(
    logits: jax.Array, routing: Routing, bias: jax.Array | None = None, ids: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Experts `[T, k]` int32 and their weights `[T, k]` float32 for router outputs `logits[T, E]`.

    `bias[E]` sways the choice but not the weights (DeepSeek-V3's balancing without an auxiliary loss). `ids[T, k]`: the
    choice, where it is made already.
    """
    logits = logits.astype(jnp.float32)
    if ids is None and routing.groups == 1:
        found = choose(
            logits, bias, top_k=routing.top_k, score=routing.score, renormalise=routing.renormalise,
            scaling=routing.scaling, softcap=routing.softcap,
        )  # fmt: skip
        if found is not None:
            return found
    if routing.softcap is not None:
        logits = jnp.tanh(logits / routing.softcap) * routing.softcap
    scores = _scores(logits, routing.score)
    if ids is None:
        choice = scores if bias is None else scores + bias.astype(jnp.float32)
        ids = _best(_eligible(choice, routing) if routing.groups > 1 else choice, routing.top_k)
    weights = jnp.take_along_axis(scores, ids, axis=1)
    if routing.renormalise:
        weights = weights / (jnp.sum(weights, axis=1, keepdims=True) + 1e-20)
    return ids, weights * routing.scaling


def _scores(logits: jax.Array, kind: str) -> jax.Array:
    if kind == "softmax":
        return jax.nn.softmax(logits, axis=-1)
    return jax.nn.sigmoid(logits) if kind == "sigmoid" else jnp.sqrt(jax.nn.softplus(logits))


def _eligible(choice: jax.Array, routing: Routing) -> jax.Array:
    """`choice[T, E]` with the experts of all but the best groups out of reach."""
    by_group = choice.reshape(choice.shape[0], routing.groups, -1)
    best = jnp.max(by_group, axis=-1)
    if routing.group_score == "two best":
        best = jnp.sum(lax.top_k(by_group, min(2, by_group.shape[-1]))[0], axis=-1)
    chosen = _best(best, routing.top_groups)  # [T, top_groups]
    kept = jnp.any(chosen[:, :, None] == jnp.arange(routing.groups), axis=1)  # [T, groups]
    return jnp.where(kept[:, :, None], by_group, NEVER).reshape(choice.shape)


def _best(choice: jax.Array, count: int) -> jax.Array:
    """The `count` largest of each row, as indices, best first: pass by pass, as XLA would sort all of them."""
    found = []
    for _ in range(count):
        best = jnp.argmax(choice, axis=-1)
        found.append(best)
        choice = jnp.where(jnp.arange(choice.shape[-1]) == best[:, None], 2 * NEVER, choice)
    return jnp.stack(found, axis=-1).astype(jnp.int32)
