"""What crosses the socket between a front end and the engine's process: msgpack frames with a length before them."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats, PoolRequest, Vocabulary

LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, tag=True, array_like=True):
    """The first message: what to build."""

    config: EngineConfig
    engine: str
    log_level: int


class Add(msgspec.Struct, tag=True, array_like=True):
    requests: list[EngineRequest]


class Pool(msgspec.Struct, tag=True, array_like=True):
    requests: list[PoolRequest]


class Abort(msgspec.Struct, tag=True, array_like=True):
    request_ids: list[str]


class Call(msgspec.Struct, tag=True, array_like=True):
    """Run one of the engine's methods (`child.CALLABLE`); `Reply` bears the same number."""

    number: int
    method: str
    arguments: list[Any] = []


class Stop(msgspec.Struct, tag=True, array_like=True):
    pass


class Ready(msgspec.Struct, tag=True, array_like=True):
    limits: EngineLimits


class Turn(msgspec.Struct, tag=True, array_like=True):
    """What one turn of the loop gave."""

    outputs: list[EngineOutput]
    stats: EngineStats


class Reply(msgspec.Struct, tag=True, array_like=True):
    number: int
    value: Any = None
    error: str | None = None


class Log(msgspec.Struct, tag=True, array_like=True):
    """A log record of the child, for the parent's handlers."""

    name: str
    level: int
    text: str


class Fatal(msgspec.Struct, tag=True, array_like=True):
    """The engine could not start or go on; nothing follows."""

    kind: str
    text: str


ToEngine = Start | Vocabulary | Add | Pool | Abort | Call | Stop
ToFrontend = Ready | Turn | Reply | Log | Fatal
