"""What is done to queries and keys before they meet."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Preparation(NamedTuple):
    """An RMS norm of each head, then rope. Tables `[S, dims / 2]` float32 turn the first `dims` channels, `[D]` weights
    (plus `offset`) scale norms; None: not done."""

    cos: jax.Array | None = None
    sin: jax.Array | None = None
    interleaved: bool = False
    q_norm: jax.Array | None = None
    k_norm: jax.Array | None = None
    eps: float = 0.0
    offset: float = 0.0
