"""`--config FILE`: flags from a YAML file. What stands on the command line wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    found = [flag for key, value in read(path).items() if key not in given for flag in flags(key, value, path)]
    return [*words[:1], *found, *words[1:]]


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
    return {key.replace("_", "-").removeprefix("--"): value for key, value in found.items()}


def flags(key: str, value: Any, path: str) -> list[str]:
    """One key as words of a command line."""
    if value is None:
        return []
    if value is True:
        return [f"--{key}"]
    if value is False:
        return [f"--no-{key}"]
    if isinstance(value, (dict, list)):
        try:
            return [f"--{key}={json.dumps(value)}"]
        except TypeError as error:
            raise ModelError(f"{FLAG}: {path}: {key}: {error}.") from None
    return [f"--{key}={value}"]
