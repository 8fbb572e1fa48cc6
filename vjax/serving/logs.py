"""Logging of the server: to stderr, `VJAX_LOG` names the level."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from vjax.engine.messages import EngineStats
from vjax.serving.service import Service

log = logging.getLogger("vjax.stats")

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INTERVAL = 10.0  # seconds between two lines of statistics


def set_up_logging() -> None:
    """Raises nothing: an unknown level counts as info."""
    level = logging.getLevelName(os.environ.get("VJAX_LOG", "info").upper())
    logger = logging.getLogger("vjax")
    logger.setLevel(level if isinstance(level, int) else logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False


async def log_stats(service: Service, interval: float = INTERVAL) -> None:
    """A line every `interval` seconds in which something ran."""
    before = service.llm.stats()
    while True:
        await asyncio.sleep(interval)
        now = service.llm.stats()
        if now.steps != before.steps or now.running or now.waiting:
            log.info("%s", stats_line(before, now, interval))
        before = now


def stats_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    queries = now.prefix_queries - before.prefix_queries
    hits = (now.prefix_hits - before.prefix_hits) / queries if queries else 0.0
    return (
        f"{(now.prompt_tokens - before.prompt_tokens) / seconds:.1f} prompt tokens/s, "
        f"{(now.generation_tokens - before.generation_tokens) / seconds:.1f} generated tokens/s, "
        f"{now.running} running, {now.waiting} waiting, cache {now.cache_usage:.1%} used, "
        f"prefix hits {hits:.1%}"
    )
