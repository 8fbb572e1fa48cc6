"""Errors whose message is written for the person who caused them: one line, naming the file or field."""

from __future__ import annotations


class VjaxError(Exception):
    """Base of every error that vjax raises on purpose."""


class ModelError(VjaxError, ValueError):
    """The model's architecture or configuration is not supported or contradicts itself."""


class CheckpointError(VjaxError, ValueError):
    """A checkpoint file is missing, broken, incomplete or does not fit its configuration."""


class RequestError(VjaxError, ValueError):
    """A request that cannot be served. `param` names the offending field, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(VjaxError, RuntimeError):
    """Not enough device or host memory for what was asked."""


class EngineDeadError(VjaxError, RuntimeError):
    """The engine stopped; no further request can be served."""
