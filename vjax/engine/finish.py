"""What a request wants of a model's numbers: fewer channels, length 1, probabilities. On the host, so that no graph
depends on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vjax.engine.messages import PoolRequest
from vjax.models.pooler_config import Activation


@dataclass(frozen=True)
class Finish:
    """The model's own ways, which a request may change."""

    normalize: bool = True
    activation: Activation = "softmax"
    dimensions: int | None = None
    mean: float = 0.0
    sigma: float = 1.0
    activates: bool = True  # classes

    def __call__(self, values: np.ndarray, request: PoolRequest) -> np.ndarray:
        if request.task == "classify":
            return self.classes(values, request.use_activation)
        size = request.dimensions or self.dimensions
        values = values[..., :size] if size else values
        wanted = self.normalize if request.use_activation is None else request.use_activation
        return unit(values) if wanted else values

    def classes(self, scores: np.ndarray, use_activation: bool | None) -> np.ndarray:
        if self.mean or self.sigma != 1.0:
            scores = (scores - np.float32(self.mean)) / np.float32(self.sigma)
        if not (self.activates if use_activation is None else use_activation) or self.activation == "identity":
            return scores
        if self.activation == "sigmoid":
            return np.exp(-np.logaddexp(np.float32(0), -scores))
        shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return shifted / shifted.sum(axis=-1, keepdims=True)


def unit(values: np.ndarray) -> np.ndarray:
    """Vectors `[..., d]` scaled to length 1."""
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
