"""Reads the JSON files of a Hugging Face model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vjax.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `CheckpointError` if it is missing, broken or anything but an object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES} bytes; this cannot be right.")
        value = json.loads(path.read_bytes(), object_hook=_special_float)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing.") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, found {type(value).__name__}.")
    return value


def read_hf_config(directory: Path | str) -> dict[str, Any]:
    """A model directory's `config.json`. Raises `CheckpointError`."""
    return read_json_object(Path(directory) / "config.json")


def _special_float(item: dict[str, Any]) -> Any:
    """`{"__float__": "Infinity"}` is how Hugging Face writes what JSON has no number for."""
    if item.keys() == {"__float__"}:
        return float(str(item["__float__"]))
    return item
