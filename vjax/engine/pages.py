"""Who holds which page of the cache. Knows nothing of what is in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class PagePool:
    """Pages `1 .. num_pages - 1`, counted by reference; page 0 is a dummy that padding reads and nobody owns.

    A page without references is free. A free page that `keep` was called for stays findable until it is needed: those
    are taken last, the least recently freed first, and `on_evict(page)` is told.
    """

    def __init__(self, num_pages: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.capacity = num_pages - 1
        self.on_evict = on_evict
        self._refs = [0] * num_pages
        self._kept = bytearray(num_pages)
        self._empty = list(range(num_pages - 1, 0, -1))  # a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # kept and free, in the order they were freed

    @property
    def num_free(self) -> int:
        """Pages that `allocate` could hand out."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free pages that are still findable."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.capacity - self.num_free

    @property
    def usage(self) -> float:
        """Share of pages that are held, 0..1."""
        return self.num_used / max(self.capacity, 1)

    def refs(self, page: int) -> int:
        return self._refs[page]

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, or None, and nothing changed, if there are too few."""
        empty, missing = self._empty, count - len(self._empty)
        if missing > len(self._cached):
            return None
        pages = [empty.pop() for _ in range(min(count, len(empty)))]
        for _ in range(missing):
            page, _none = self._cached.popitem(last=False)
            self._kept[page] = 0
            if self.on_evict is not None:
                self.on_evict(page)
            pages.append(page)
        for page in pages:
            self._refs[page] = 1
        return pages

    def share(self, page: int) -> None:
        """One more reference to a page that is held or kept."""
        if self._refs[page] == 0:
            del self._cached[page]
        self._refs[page] += 1

    def free(self, pages: list[int]) -> None:
        """Give back one reference of each. Last page first: a prefix is useless without its head, so tails go first."""
        refs = self._refs
        for page in reversed(pages):
            if refs[page] <= 0:
                raise RuntimeError(f"page {page} was freed twice")
            refs[page] -= 1
            if refs[page] == 0:
                if self._kept[page]:
                    self._cached[page] = None
                else:
                    self._empty.append(page)

    def keep(self, page: int) -> None:
        """When it is freed, leave this page findable as long as possible."""
        self._kept[page] = 1

    def forget(self, pages: Iterable[int]) -> None:
        """Undo `keep`."""
        for page in pages:
            self._kept[page] = 0
            if page in self._cached:
                del self._cached[page]
                self._empty.append(page)
