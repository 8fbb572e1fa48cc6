"""Copies of what recurrent layers carry, each after the last token of a full page: a prefix can only be taken up where
there is one."""

from __future__ import annotations

from collections import OrderedDict


class Snapshots:
    """Places `0 .. count - 1` by the hash of the page. The one used longest ago is given up for a new one."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._new: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def find(self, digest: bytes) -> int | None:
        return self._places.get(digest)

    def touch(self, digest: bytes) -> int:
        """The place of a snapshot that is about to be read."""
        self._places.move_to_end(digest)
        return self._places[digest]

    def take(self, digest: bytes) -> int | None:
        """A place for a new snapshot, to be found once `publish` was called; None if there is one already, or no
        place."""
        if digest in self._places or digest in self._new:
            return None
        if not self._free and self._places:
            self._free.append(self._places.popitem(last=False)[1])
        if not self._free:
            return None
        self._new[digest] = self._free.pop()
        return self._new[digest]

    def publish(self) -> None:
        """Those taken for the last step can be found: a step reads snapshots before it runs, and makes them after."""
        if self._new:
            self._places |= self._new
            self._new.clear()

    def drop(self, digest: bytes) -> None:
        """The page is gone, so nobody will ask."""
        for places in (self._places, self._new):
            if digest in places:
                self._free.append(places.pop(digest))

    def clear(self) -> None:
        for digest in [*self._places, *self._new]:
            self.drop(digest)
