"""`PoolingParams`: what a request wants of a model that encodes. vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

from vjax.errors import RequestError

PoolingTask = Literal["embed", "classify", "token_embed"]
OLD_TASKS = {"encode": "token_embed", "score": "embed or classify", "reward": "classify"}


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`task`: the model's first one by default. `dimensions`: only so many of an embedding's first channels, where the
    model was trained for that. `use_activation`: embeddings of length 1, probabilities instead of scores; None: as the
    model's files say. `truncate_prompt_tokens` keeps that many tokens, -1 as many as the model takes, of the start of a
    text or of its end (`truncation_side="left"`).

    Raises `RequestError` naming the field.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in get_args(PoolingTask):
            instead = OLD_TASKS.get(str(self.task)) or ", ".join(get_args(PoolingTask))
            raise RequestError(f"task {self.task!r} is not known; use {instead}.", "task")
        for name, least in (("dimensions", 1), ("truncate_prompt_tokens", -1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least or value == 0):
                raise RequestError(f"{name} must be a positive integer{' or -1' * (least < 0)}, got {value!r}.", name)
        if self.use_activation is not None and type(self.use_activation) is not bool:
            raise RequestError(f"use_activation must be true or false, got {self.use_activation!r}.", "use_activation")
        if self.truncation_side not in (None, "left", "right"):
            raise RequestError(f"truncation_side must be left or right, got {self.truncation_side!r}.",
                               "truncation_side")  # fmt: skip

    def clone(self, **changes: Any) -> PoolingParams:
        """A copy with other values. Raises `RequestError`."""
        return msgspec.structs.replace(self, **changes)


def not_cut(dimensions: int, width: int, cut: bool, sizes: Iterable[int]) -> str | None:
    """Why embeddings cannot have so many channels; None where they can."""
    sizes = list(sizes)
    if not cut:
        return "this model's embeddings cannot be cut to fewer dimensions (its config.json names no Matryoshka)."
    if dimensions > width:
        return f"dimensions must be at most {width}, got {dimensions}."
    if sizes and dimensions not in sizes:
        return f"dimensions must be one of {', '.join(map(str, sizes))}, got {dimensions}."
    return None
