from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from vjax.engine.messages import EngineRequest
from vjax.engine.page_groups import PageGroups
from vjax.engine.pages import PagePool
from vjax.engine.prefix_cache import PrefixCache
from vjax.engine.request import Request
from vjax.sampling_params import SamplingParams

SIZE = 4
PLAIN = PageGroups((None,), SIZE)


def request(tokens: list[int], salt: str | None = None, extra: tuple[str, ...] = ()) -> Request:
    message = EngineRequest("r", tokens, SamplingParams(), cache_salt=salt, extra_keys=extra)
    return Request.make(message, seed=0, max_model_len=1000, order=(0,))


def hashes(made: Request) -> list[bytes]:
    cache = PrefixCache(PagePool(2), PLAIN)
    cache.lookup(made, 0)
    cache._hash(made, len(made.prompt_token_ids) // SIZE)
    return made.page_hashes


def stored(pool: PagePool, cache: PrefixCache, tokens: list[int]) -> Request:
    """A request whose full pages are committed."""
    made = request(tokens)
    made.pages = pool.allocate(-(-len(tokens) // SIZE)) or []
    cache.commit(made, len(tokens) // SIZE)
    return made


def test_same_tokens_after_another_page_are_another_page() -> None:
    one, two = hashes(request([1, 2, 3, 4, 5, 6, 7, 8])), hashes(request([9, 2, 3, 4, 5, 6, 7, 8]))
    assert one[0] != two[0]
    assert one[1] != two[1]
    assert hashes(request([1, 2, 3, 4, 5, 6, 7, 8])) == one


def test_salt_and_extra_keys_separate_whole_sequences() -> None:
    tokens = list(range(8))
    kinds = [hashes(request(tokens, *keys)) for keys in [(None,), ("a",), ("b",), (None, ("a",)), (None, ("a", "b")),
             (None, ("ab",)), ("a", ("b",)), ("", ()), (None, ("a", ""))]]  # fmt: skip
    for page in (0, 1):
        assert len({kind[page] for kind in kinds}) == len(kinds)


def test_hashes_grow_with_the_output() -> None:
    made = request([1, 2, 3])
    cache = PrefixCache(PagePool(5), PLAIN)
    made.output_token_ids += [4, 5, 6, 7, 8]
    made.pages = [1, 2]
    cache.commit(made, 1)
    cache.commit(made, 2)
    assert made.page_hashes == hashes(request([1, 2, 3, 4, 5, 6, 7, 8]))


def test_lookup_stops_at_the_first_unknown_page() -> None:
    pool = PagePool(9)
    cache = PrefixCache(pool, PLAIN)
    known = stored(pool, cache, list(range(12)))
    assert cache.lookup(request([*range(12), 99]), 3) == known.pages[:3]
    assert cache.lookup(request([*range(12), 99]), 2) == known.pages[:2]
    assert cache.lookup(request([*range(4), 99, *range(5, 13)]), 3) == known.pages[:1]
    assert cache.lookup(request([7, *range(1, 12)]), 3) == []


def test_partial_pages_are_not_found() -> None:
    pool = PagePool(9)
    cache = PrefixCache(pool, PLAIN)
    known = stored(pool, cache, list(range(7)))
    assert len(cache) == 1
    assert cache.lookup(request(list(range(8))), 2) == known.pages[:1]


def test_a_hash_belongs_to_its_first_page() -> None:
    pool = PagePool(9)
    cache = PrefixCache(pool, PLAIN)
    first, second = stored(pool, cache, list(range(8))), stored(pool, cache, list(range(8)))
    assert first.pages != second.pages
    assert cache.lookup(request(list(range(8))), 2) == first.pages
    pool.free(second.pages)
    assert pool.num_cached == 0
    pool.free(first.pages)
    assert pool.num_cached == 2


def test_reused_page_is_not_found_any_more() -> None:
    pool = PagePool(4)
    cache = PrefixCache(pool, PLAIN)
    known = stored(pool, cache, list(range(12)))
    head, middle, _ = known.pages
    pool.free(known.pages)
    assert cache.lookup(request(list(range(12))), 3) == known.pages
    pool.allocate(1)  # takes the tail
    assert cache.lookup(request(list(range(12))), 3) == [head, middle]
    pool.allocate(2)
    assert cache.lookup(request(list(range(12))), 3) == []
    assert len(cache) == 0


def test_reset() -> None:
    pool = PagePool(4)
    cache = PrefixCache(pool, PLAIN)
    pool.free(stored(pool, cache, list(range(12))).pages)
    cache.reset()
    assert len(cache) == 0
    assert (pool.num_cached, pool.num_free) == (0, 3)
    assert cache.lookup(request(list(range(12))), 3) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=0, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_token_ids_of_a_range(tokens: list[int], cut: int, start: int) -> None:
    made = request(tokens[:cut])
    made.output_token_ids = tokens[cut:]
    assert made.all_token_ids == tokens
    for first, last in pairwise(sorted({start, cut, len(tokens)})):
        assert made.token_ids(first, last) == tokens[first:last]
