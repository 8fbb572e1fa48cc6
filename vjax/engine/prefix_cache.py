"""Finds pages by what is in them: the hash of a page covers its tokens and everything before them.

A page also belongs to a group of layers (`page_groups`): the same tokens fill one page in each.
"""

from __future__ import annotations

import struct
from hashlib import sha256

import msgspec

from vjax.engine.page_groups import PageGroups
from vjax.engine.pages import PagePool
from vjax.engine.request import Request
from vjax.engine.snapshots import Snapshots

ROOT = sha256(b"vjax prefix cache").digest()


class PrefixCache:
    """Maps the hashes of full pages to pages of `pool`, and forgets those that the pool hands out again."""

    def __init__(self, pool: PagePool, groups: PageGroups, snapshots: int = 0) -> None:
        """`snapshots`: places for those of recurrent layers' states, 0 if there are no such layers."""
        self.pool, self.groups, self.page_size = pool, groups, groups.page_size
        self._full = [group for group, window in enumerate(groups.windows) if window is None]
        self._windows = [(group, window) for group, window in enumerate(groups.windows) if window is not None]
        self._pages: dict[tuple[bytes, int], int] = {}  # by hash and group
        self._hashes: dict[int, tuple[bytes, int]] = {}
        self.snapshots = Snapshots(snapshots) if snapshots else None
        self._pack = struct.Struct(f"<{self.page_size}I").pack
        pool.on_evict = self._evict

    def __len__(self) -> int:
        return len(self._pages)

    def lookup(self, request: Request, most: int) -> list[int]:
        """Known pages for as much of the request's beginning as possible, at most `most` pages in each group, in the
        order of `Request.pages`. Takes no reference."""
        count, known, hashes = 0, self._pages, request.page_hashes
        if not self._full:
            self._hash(request, most)
            count = most
        while count < most:
            self._hash(request, count + 1)
            if any((hashes[count], group) not in known for group in self._full):
                break
            count += 1
        # A window's layers ask only for what the next token sees, so a long beginning may be known and a short one not.
        while (missing := self._missing(hashes, count)) is not None:
            count = missing
        first = [0 if window is None else self._behind(window, count) for window in self.groups.windows]
        return [
            known[hashes[index], group] if index >= first[group] else 0
            for index in range(count)
            for group in range(len(first))
        ]

    def snapshot(self, request: Request, most: int) -> int:
        """The longest beginning, in pages and at most `most`, after which there is a snapshot; 0: none."""
        assert self.snapshots is not None
        return next((n for n in range(most, 0, -1) if self.snapshots.find(request.page_hashes[n - 1]) is not None), 0)

    def _missing(self, hashes: list[bytes], count: int) -> int | None:
        """The last of the first `count` pages that a window's layers see from there, and do not have."""
        for group, window in self._windows:
            for index in range(count - 1, self._behind(window, count) - 1, -1):
                if (hashes[index], group) not in self._pages:
                    return index
        return None

    def _behind(self, window: int, count: int) -> int:
        return self.groups.behind(window, count * self.page_size)

    def commit(self, request: Request, count: int) -> None:
        """Make the request's first `count` pages of each group findable: they are full, their tokens are known, and the
        step that fills them was or is about to be dispatched."""
        self._hash(request, count)
        size = len(self.groups)
        for at in range(request.num_shared * size, count * size):
            index, group = divmod(at, size)
            key, page = (request.page_hashes[index], group), request.pages[at]
            # Somebody may have computed the same page at the same time; a page behind the window may be gone.
            if page and key not in self._pages:
                self._pages[key] = page
                self._hashes[page] = key
                self.pool.keep(page)
        request.num_shared = count

    def reset(self) -> None:
        """Forget every page."""
        self.pool.forget(self._hashes)
        if self.snapshots is not None:
            self.snapshots.clear()
        self._pages.clear()
        self._hashes.clear()

    def _evict(self, page: int) -> None:
        key = self._hashes.pop(page)
        del self._pages[key]
        if self.snapshots is not None:
            self.snapshots.drop(key[0])

    def _hash(self, request: Request, count: int) -> None:
        """Extend the request's hashes to `count` pages."""
        hashes, size = request.page_hashes, self.page_size
        if len(hashes) >= count:
            return
        parent = hashes[-1] if hashes else ROOT
        extra = msgspec.msgpack.encode(request.extra_keys)
        tokens = request.token_ids(len(hashes) * size, count * size)
        for at in range(0, len(tokens), size):
            # Fixed sizes before, self-delimiting after: no two inputs run together. The salt reaches every page of a
            # sequence through the chain.
            data = parent + self._pack(*tokens[at : at + size]) + extra
            if not hashes:
                data += msgspec.msgpack.encode(request.cache_salt)
            parent = sha256(data).digest()
            hashes.append(parent)
