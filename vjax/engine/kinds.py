"""Which engine a model needs."""

from __future__ import annotations

from vjax.config import EngineConfig
from vjax.engine.child import Core


def make_engine(config: EngineConfig) -> Core:
    """One that generates, or one that encodes."""
    from vjax.loading.load import pools  # brings JAX

    if pools(config):
        from vjax.engine.pooling import PoolingEngine

        return PoolingEngine(config)
    from vjax.engine.engine import Engine

    return Engine(config)
