"""The one int32 buffer that carries a step's plan to the device: where each field lies in it.

The host writes through numpy views (`views`), the graph reads through static slices (`unpack`); both from this table,
so the two sides cannot disagree. Float fields travel bit-cast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vjax.sampling_params import MAX_LOGPROB_IDS

FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
INTS = ("top_k", "seed_low", "seed_high", "prompt_len", "restricted")
ROW_PARAMS = (*FLOATS, *INTS)  # per row, constant over a request's life

ALIGNED = 32  # words: XLA hands out a field as a view of the buffer, and Triton kernels expect pointers to 16 bytes

# Kinds of logit edits.
BIAS, BAN, ALLOW = 0, 1, 2
EDIT_FIELDS = (
    "row",
    "token",
    "kind",
    "value",
    "after",
)  # `after`: only if the row's input token is this one; -1: always


def _place(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where each field begins."""
    table, offset = {}, 0
    for name, shape in shapes.items():
        table[name] = (offset, shape)
        offset += -(-math.prod(shape) // ALIGNED) * ALIGNED
    return table


class _Buffer:
    """Reads and writes a buffer by the table of its fields."""

    @cached_property
    def fields(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Name -> (offset, shape)."""
        raise NotImplementedError

    @cached_property
    def size(self) -> int:
        """Length of the buffer in int32 words."""
        offset, shape = list(self.fields.values())[-1]
        return offset + math.prod(shape)

    def views(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """Writable views of a host buffer, by field."""
        return {
            name: buffer[offset : offset + math.prod(shape)].reshape(shape)
            for name, (offset, shape) in self.fields.items()
        }

    def unpack(self, buffer: Any) -> dict[str, Any]:
        """The same fields of a traced buffer."""
        return {
            name: buffer[offset : offset + math.prod(shape)].reshape(shape)
            for name, (offset, shape) in self.fields.items()
        }


@dataclass(frozen=True)
class Layout(_Buffer):
    """The static shape of a step, and so the key of its graph: `tokens` T in `rows` S, and room for logit edits.

    In a decode layout T == S and the ids are on the device already. `prompt_logprobs` adds the token that follows
    each prompt token, `chosen_logprobs` the tokens whose logprobs a row asks for by name.
    """

    tokens: int
    rows: int
    decode: bool
    edits: int
    prompt_logprobs: bool = False
    groups: int = 1  # pages that a row may get at a time
    chosen_logprobs: bool = False

    def __str__(self) -> str:
        kind = f"{'decode' if self.decode else 'prefill'} {self.tokens}"
        kind += " with chosen logprobs" if self.chosen_logprobs else ""
        return f"{kind} with prompt logprobs" if self.prompt_logprobs else kind

    @property
    def page_updates(self) -> int:
        return self.rows * self.groups + (0 if self.decode else self.tokens)

    @cached_property
    def fields(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        shapes: dict[str, tuple[int, ...]] = {
            "scored": (1,),  # 1: some row wants logprobs
            "slot": (self.rows,),
            "kv_len": (self.rows,),  # 0: unused row
            "store": (self.rows,),  # position where the sampled token is stored, or -1
            "params": (len(ROW_PARAMS), self.rows),
            "pages": (3, self.page_updates),  # slot, index, page
            "edits": (len(EDIT_FIELDS), self.edits),
        }
        if not self.decode:
            shapes |= {
                "ids": (self.tokens,),  # -1: take the token that the device has at this position
                "position": (self.tokens,),  # -1: padding
                "row": (self.tokens,),
                "query_start": (self.rows + 1,),
            }
        if self.prompt_logprobs:
            shapes["next"] = (self.tokens,)
        if self.chosen_logprobs:
            shapes["chosen"] = (self.rows, MAX_LOGPROB_IDS)
        return _place(shapes)


@dataclass(frozen=True)
class GrammarLayout(_Buffer):
    """The static shape of sampling again, under their grammars, `places` G of the `rows` S of a step."""

    rows: int
    places: int
    edits: int
    vocab: int
    chosen_logprobs: bool = False

    def __str__(self) -> str:
        return f"grammars {self.places} of {self.rows}"

    @cached_property
    def fields(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        places = (self.places,)
        shapes: dict[str, tuple[int, ...]] = {
            "scored": (1,),
            "row": places,
            "slot": places,
            "kv_len": places,  # 0: unused
            "params": (len(ROW_PARAMS), self.places),
            "edits": (len(EDIT_FIELDS), self.edits),
            "mask": (self.places, -(-self.vocab // 32)),  # a bit a token, the lowest first; 1: allowed
        }
        if self.chosen_logprobs:
            shapes["chosen"] = (self.places, MAX_LOGPROB_IDS)
        return _place(shapes)
