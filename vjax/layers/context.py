"""What one forward pass knows besides weights and activations."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax

from vjax.layers.paging import PagedStep
from vjax.layers.rope import RopeTables


@dataclass
class Context:
    """Built anew for every trace; layers read it and, when a caller asked for intermediates, add to `taps`.

    `step` is None for a plain pass over one whole sequence, which keeps no cache; `length` is then how many tokens
    of it count, the rest being padding (None: all).
    `ropes` holds the tables of each of the model's ropes at `positions[T]`.
    """

    positions: jax.Array
    ropes: tuple[RopeTables, ...]
    step: PagedStep | None = None
    capture: tuple[str, ...] = ()
    length: jax.Array | None = None
    tokens: jax.Array | None = None  # [T], of a decoder
    taps: dict[str, list[jax.Array]] = field(default_factory=dict)
    shared: dict[str, jax.Array] = field(default_factory=dict)  # what a layer leaves for later ones

    def tap(self, name: str, value: jax.Array) -> None:
        if name in self.capture:
            self.taps.setdefault(name, []).append(value)
