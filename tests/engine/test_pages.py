from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vjax.engine.pages import PagePool


def test_dummy_page_is_never_handed_out() -> None:
    pool = PagePool(5)
    pages = pool.allocate(4)
    assert pages is not None
    assert sorted(pages) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_used, pool.usage) == (0, 4, 1.0)


def test_too_few_pages_change_nothing() -> None:
    pool = PagePool(4)
    held = pool.allocate(2)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    pool.free(held or [])
    assert pool.num_free == 3


def test_shared_page_is_freed_by_its_last_holder() -> None:
    pool = PagePool(3)
    (page,) = pool.allocate(1) or []
    pool.share(page)
    pool.free([page])
    assert (pool.refs(page), pool.num_used) == (1, 1)
    pool.free([page])
    assert (pool.refs(page), pool.num_used) == (0, 0)


def test_freeing_twice_is_an_error() -> None:
    pool = PagePool(3)
    (page,) = pool.allocate(1) or []
    pool.free([page])
    with pytest.raises(RuntimeError, match=f"page {page} was freed twice"):
        pool.free([page])


def test_kept_pages_go_last_and_tails_first() -> None:
    evicted: list[int] = []
    pool = PagePool(7, evicted.append)
    older, newer = pool.allocate(3) or [], pool.allocate(2) or []
    for page in [*older, *newer]:
        pool.keep(page)
    pool.free(older)
    pool.free(newer)
    assert pool.num_cached == 5
    pool.allocate(1)
    assert evicted == []  # there was an empty page
    pool.allocate(4)
    assert evicted == [older[2], older[1], older[0], newer[1]]


def test_kept_page_revives_with_its_content() -> None:
    evicted: list[int] = []
    pool = PagePool(3, evicted.append)
    (page,) = pool.allocate(1) or []
    pool.keep(page)
    pool.free([page])
    pool.share(page)
    assert pool.allocate(2) is None
    assert pool.allocate(1) is not None
    assert evicted == []
    assert pool.refs(page) == 1


def test_forgotten_pages_are_empty() -> None:
    evicted: list[int] = []
    pool = PagePool(4, evicted.append)
    held = pool.allocate(2) or []
    for page in held:
        pool.keep(page)
    pool.free(held[1:])
    pool.forget(held)
    assert pool.num_cached == 0
    pool.free(held[:1])
    assert (pool.num_cached, pool.num_free) == (0, 3)
    pool.allocate(3)
    assert evicted == []


class Pool(RuleBasedStateMachine):
    """Against a model: a multiset of references, and the kept free pages in the order they were freed."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = PagePool(9, self.evicted.append)
        self.holders: list[list[int]] = []
        self.kept: set[int] = set()
        self.order: list[int] = []

    @property
    def refs(self) -> Counter[int]:
        return Counter(page for pages in self.holders for page in pages)

    @rule(count=st.integers(1, 6))
    def allocate(self, count: int) -> None:
        before, free = self.refs, 8 - len(self.refs)
        empty = free - len(self.order)
        pages = self.pool.allocate(count)
        assert (pages is None) == (count > free)
        if pages is None:
            return
        assert len(set(pages)) == count
        assert not set(pages) & (set(before) | {0})
        gone = self.order[: max(0, count - empty)]
        assert self.evicted == gone
        self.evicted.clear()
        self.kept -= set(gone)
        del self.order[: len(gone)]
        self.holders.append(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        pages = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        left = self.refs
        self.pool.free(pages)
        self.order += [page for page in reversed(pages) if page in self.kept and not left[page]]

    @precondition(lambda self: self.holders or self.order)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted({*self.refs, *self.order})))
        self.pool.share(page)
        self.holders.append([page])
        if page in self.order:
            self.order.remove(page)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.refs)))
        self.pool.keep(page)
        self.kept.add(page)

    @rule()
    def forget(self) -> None:
        self.pool.forget(self.kept)
        self.kept.clear()
        self.order.clear()

    @invariant()
    def counts(self) -> None:
        refs = self.refs
        assert [self.pool.refs(page) for page in range(9)] == [refs[page] for page in range(9)]
        assert (self.pool.num_used, self.pool.num_free) == (len(refs), 8 - len(refs))
        assert self.pool.num_cached == len(self.order)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
