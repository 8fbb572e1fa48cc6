"""How many pages a request holds, where layers see different stretches of it.

Layers that see as far share a page table; they are a group. A page holds `page_size` tokens for the layers of one
group, so a request has one page a group for each stretch of tokens, G in all. A group whose layers see a window of
tokens gives back the pages behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class PageGroups:
    """`windows`: how many newest tokens the layers of each group see, None: all of them."""

    windows: tuple[int | None, ...]
    page_size: int

    def __len__(self) -> int:
        return len(self.windows)

    def behind(self, window: int, position: int) -> int:
        """How many leading pages neither a query at `position` nor any later one sees."""
        return max(position - window + 1, 0) // self.page_size

    def held(self, tokens: int, chunk: int) -> int:
        """The most pages that a request holds until it has `tokens`, computed in pieces of at most `chunk`."""
        everything, total = -(-tokens // self.page_size), 0
        for window in self.windows:
            # What a piece's first query sees before it and the piece itself, however they lie across pages.
            seen = everything if window is None else -(-(window + chunk - 2) // self.page_size) + 1
            total += min(everything, seen)
        return total

    def room(self, pages: int, chunk: int, most: int) -> int:
        """The longest request that so many pages hold, if it is no longer than `most`."""
        return bisect_right(range(1, most + 1), pages, key=lambda tokens: self.held(tokens, chunk))
