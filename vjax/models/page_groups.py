"""Which layers of a model share a page table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, TypeVar

from vjax.errors import ModelError
from vjax.models.config import ModelConfig

MOST = 8  # groups: each costs the host a page wherever a request grows

C = TypeVar("C", bound=ModelConfig)
Layers = Counter[int | None]  # how many layers have a window


def grouped(config: C) -> C:
    """`config` with its layers in groups of one window, so that windowed layers can give back pages.

    All groups take pages from one pool, so each has room for as many layers, and some may not need it all: see `_size`.
    """
    (spec, *others), windows = config.cache_specs.values(), {}
    for layer in config.attention:
        window = layer.window
        if window is not None and (type(window) is not int or window < 1):
            raise ModelError(f"a layer's window must be a positive integer ('sliding_window'), got {window!r}.")
        if window is not None and window >= config.max_position:
            window = None
        windows[layer.pool, layer.pool_layer] = window  # layers may share a place
    layers = Counter(windows.values())
    if others:  # their pages go with the first pool's, and what reads them may see everything
        return config
    size = None if len(windows) != spec.num_layers else _size(layers)  # layers that do not attend have no place
    if size is None or len(layers) == 1:
        return config.with_changes(windows=(None if None in layers else max(filter(None, layers)),))
    groups: list[int | None] = []
    first = {}
    for window in layers:
        first[window] = len(groups)
        groups += [window] * -(-layers[window] // size)
    seen: Layers = Counter()
    where: dict[Any, dict[str, Any]] = {}
    for place, window in windows.items():
        group, index = divmod(seen[window], size)
        where[place] = {"group": first[window] + group, "pool_layer": index}
        seen[window] += 1
    attention = tuple(replace(spec, **where[spec.pool, spec.pool_layer]) for spec in config.attention)
    return config.with_changes(attention=attention, windows=tuple(groups), group_layers=size)


def _size(layers: Layers) -> int | None:
    """How many layers a group has room for, None: one group for all of them. Whatever wastes least in the worst case, a
    short sequence, where every place counts, or a long one, where windows hardly do."""
    total = layers.total()
    weight = {window: float(window is None) if None in layers else float(window or 0) for window in layers}
    needed = sum(weight[window] * n for window, n in layers.items())
    best, least = None, total * max(weight.values()) / needed
    for size in range(max(layers.values()), 0, -1):
        rooms = {window: -(-n // size) * size for window, n in layers.items()}
        long = sum(weight[window] * room for window, room in rooms.items()) / needed
        if sum(rooms.values()) // size <= MOST and (waste := max(sum(rooms.values()) / total, long)) < least:
            best, least = size, waste
    return best
