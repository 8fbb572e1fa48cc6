"""Command-line flags from the fields of an options dataclass: one place for a name, a default and a help text."""

from __future__ import annotations

import argparse
import json
import re
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(text: str) -> int:
    """Numbers such as 4096, 25.6k (thousands), 4K (1024) or 2GiB: lower case is decimal, upper case or `i` binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 4k or 2GiB")
    number, unit, binary = match.groups()
    base = 1024 if binary or unit.isupper() else 1000
    return int(float(number) * base ** _POWERS[unit.lower()])


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def add_dataclass_arguments(group: argparse._ArgumentGroup, options: type) -> None:
    """A flag for every field: `max_model_len` becomes `--max-model-len`."""
    hints = get_type_hints(options)
    for item in fields(options):
        _add(group, item, hints[item.name])


def from_arguments(options: type[T], args: argparse.Namespace) -> T:
    """The dataclass from parsed arguments; what was not given keeps its default."""
    given = {item.name: getattr(args, _dest(item.name), None) for item in fields(options)}  # type: ignore[arg-type]
    return options(**{name: value for name, value in given.items() if value is not None})


def _add(group: argparse._ArgumentGroup, item: Field[Any], hint: Any) -> None:
    flag = "--" + item.name.replace("_", "-")
    text, short = item.metadata["help"], item.metadata.get("short")
    if item.default not in (None, MISSING, False, True, ""):
        text += f" (default: {item.default})"
    kind = _without_none(hint)
    names = [short, flag] if short else [flag]
    common: dict[str, Any] = {"dest": _dest(item.name), "default": None, "help": text.replace("%", "%%")}
    if kind is bool:
        group.add_argument(*names, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(kind) is Literal:
        group.add_argument(*names, choices=get_args(kind), **common)
    elif get_origin(kind) is list:
        group.add_argument(*names, nargs="+", metavar=item.name.upper(), **common)
    else:
        group.add_argument(*names, type=_parser(kind, item), metavar=_metavar(kind, item), **common)


def _parser(kind: Any, item: Field[Any]) -> Callable[[str], Any]:
    if get_origin(kind) is dict:
        return json_object
    return size if item.metadata.get("size") else kind


def _metavar(kind: Any, item: Field[Any]) -> str:
    if get_origin(kind) is dict:
        return "JSON"
    return "SIZE" if item.metadata.get("size") else {int: "N", float: "X"}.get(kind, "TEXT")


def _dest(name: str) -> str:
    # The model may also be given as the first argument, which has the plain name.
    return "model_option" if name == "model" else name


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(arg for arg in get_args(hint) if arg is not type(None))
    return hint
