"""Runs an `Encoder` over padded batches: texts of about one length together, a graph for every size of batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from tqdm import tqdm

from vjax.config import EngineConfig
from vjax.engine import limits, platform
from vjax.errors import ModelError
from vjax.loading.load import load_encoder
from vjax.models.encoder import Task
from vjax.parallel.mesh import make_mesh

SHORTEST = 16  # tokens a text is padded to at least


class EncodeRunner:
    """`max_model_len`: the longest text."""

    def __init__(self, config: EngineConfig) -> None:
        platform.prepare(config)
        self.model, self.params = load_encoder(config, make_mesh(config.tensor_parallel_size))
        most = self.model.config.max_position
        self.max_model_len = config.max_model_len or most
        if self.max_model_len > most:
            raise ModelError(f"max_model_len={self.max_model_len} is more than the model's own {most}.")
        self._tokens = limits.max_num_batched_tokens(config)
        self._encode = jax.jit(self.model.encode, static_argnames="task")

    def encode(self, texts: Sequence[Sequence[int]], task: Task, *, show: bool = False) -> list[np.ndarray]:
        """What the model makes of each text, in their order, float32; scores of classes as probabilities."""
        found: dict[int, np.ndarray] = {}
        with tqdm(total=len(texts), desc="Texts", disable=not show, dynamic_ncols=True) as bar:
            for batch, rows, length in _batches([len(text) for text in texts], self._tokens, self.max_model_len):
                tokens, lengths = np.zeros((rows, length), np.int32), np.ones(rows, np.int32)
                for row, index in enumerate(batch):
                    lengths[row] = len(texts[index])
                    tokens[row, : lengths[row]] = texts[index]
                values = self._encode(self.params, tokens, lengths, task=task)
                if task == "classify":
                    values = probabilities(values)
                host = np.asarray(values)
                for row, index in enumerate(batch):
                    found[index] = host[row, : lengths[row]] if task == "token_embed" else host[row]
                bar.update(len(batch))
        return [found[index] for index in range(len(texts))]


def probabilities(scores: jax.Array) -> jax.Array:
    """Of scores `[B, labels]`: a softmax, or the sigmoid of a single label."""
    return jax.nn.sigmoid(scores) if scores.shape[-1] == 1 else jax.nn.softmax(scores, axis=-1)


def _batches(lengths: Sequence[int], tokens: int, longest: int) -> Iterator[tuple[list[int], int, int]]:
    """Indices of texts, the longest first; with the rows and the length that the batch is padded to: powers of two (or
    `longest`), so that there are few graphs. A batch holds `tokens`, or one text."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        length = min(max(SHORTEST, 1 << (lengths[order[start]] - 1).bit_length()), max(longest, SHORTEST))
        most = 1 << (max(1, tokens // length).bit_length() - 1)
        batch = order[start : start + most]
        yield batch, 1 << (len(batch) - 1).bit_length(), length
        start += len(batch)
