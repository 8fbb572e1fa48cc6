"""`--config FILE`: flags from a YAML file. What stands on the command line wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from vjax.errors import ModelError

FLAG = "--config"
MAX_BYTES = 1 << 20


def expand(argv: Sequence[str]) -> list[str]:
    """`argv` with the flags of a file in place of `--config FILE`, before all others. Raises `ModelError` naming the
    file, and the key where one is at fault."""
    words, path = [], None
    rest = iter(argv)
    for word in rest:
        if word == FLAG or word.startswith(FLAG + "="):
            path = word.partition("=")[2] or next(rest, "")
        else:
            words.append(word)
    if path is None:
        return list(argv)
    given = {word.partition("=")[0].removeprefix("--no-").removeprefix("--") for word in words if word[:2] == "--"}
    values = {key: value for key, value in read(path).items() if key not in given}
    found = [flags(key, value, path) for key, value in values.items() if not isinstance(value, bool)]
    # A switch ends the line: before a model's name, `uds: true` would take that as its value.
    switches = [flags(key, value, path) for key, value in values.items() if isinstance(value, bool)]
    return [*words[:1], *chain(*found), *words[1:], *chain(*switches)]


def read(path: str) -> dict[str, Any]:
    """The file's keys, written as flags are: `max-model-len` for `max_model_len` too."""
    import yaml

    try:
        raw = Path(path).read_bytes()
        if len(raw) > MAX_BYTES:
            raise ModelError(f"{FLAG}: {path} is larger than {MAX_BYTES} bytes.")
        found = yaml.safe_load(raw)
    except OSError as error:
        raise ModelError(f"{FLAG}: {path or 'a file name is missing'} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ModelError(f"{FLAG}: {path} is not YAML: {str(error)[:300]}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ModelError(f"{FLAG}: {path} must hold `flag: value` lines.")
    named = {key.replace("_", "-").removeprefix("--"): value for key, value in found.items()}
    if "config" in named or "" in named:
        raise ModelError(f"{FLAG}: {path} names another file, or a flag without a name.")
    return named


def flags(key: str, value: Any, path: str) -> list[str]:
    """One key as words of a command line."""
    if value is None:
        return []
    if value is True:
        return [f"--{key}"]
    if value is False:
        return [f"--no-{key}"]
    if isinstance(value, (dict, list)):
        return [f"--{key}={_json(key, value, path)}"]
    return [f"--{key}={value}"]


def _json(key: str, value: Any, path: str) -> str:
    """Aliases make of a small file what is large without end, or only large."""
    parts, size = [], 0
    try:
        for part in json.JSONEncoder().iterencode(value):
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise ModelError(f"{FLAG}: {path}: {key} is larger than {MAX_BYTES} bytes.")
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{FLAG}: {path}: {key}: {error}.") from None
    return "".join(parts)
