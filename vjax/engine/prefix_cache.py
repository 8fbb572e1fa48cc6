"""Finds pages by what is in them: the hash of a page covers its tokens and everything before them."""

from __future__ import annotations

import struct
from hashlib import sha256

import msgspec

from vjax.engine.pages import PagePool
from vjax.engine.request import Request

ROOT = sha256(b"vjax prefix cache").digest()


class PrefixCache:
    """Maps the hashes of full pages to pages of `pool`, and forgets those that the pool hands out again."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool, self.page_size = pool, page_size
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._pack = struct.Struct(f"<{page_size}I").pack
        pool.on_evict = self._evict

    def __len__(self) -> int:
        return len(self._pages)

    def lookup(self, request: Request, most: int) -> list[int]:
        """The longest run of known pages that the request starts with, at most `most` pages. Takes no reference."""
        found: list[int] = []
        for index in range(most):
            self._hash(request, index + 1)
            page = self._pages.get(request.page_hashes[index])
            if page is None:
                break
            found.append(page)
        return found

    def commit(self, request: Request, count: int) -> None:
        """Make the request's first `count` pages findable: they are full, their tokens are known, and the step that
        fills them was or is about to be dispatched."""
        self._hash(request, count)
        for index in range(request.num_shared, count):
            digest, page = request.page_hashes[index], request.pages[index]
            if digest not in self._pages:  # else somebody computed the same page at the same time
                self._pages[digest] = page
                self._hashes[page] = digest
                self.pool.keep(page)
        request.num_shared = count

    def reset(self) -> None:
        """Forget every page."""
        self.pool.forget(self._hashes)
        self._pages.clear()
        self._hashes.clear()

    def page_of(self, digest: bytes) -> int | None:
        return self._pages.get(digest)

    def _evict(self, page: int) -> None:
        del self._pages[self._hashes.pop(page)]

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
