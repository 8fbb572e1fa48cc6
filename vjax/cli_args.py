"""Command-line flags made from the fields of a dataclass: `max_model_len` becomes `--max-model-len`."""

from __future__ import annotations

import argparse
import json
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?)(i?)[bB]?")
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def add_flags(parser: argparse.ArgumentParser, options: type, title: str, skip: Sequence[str] = ()) -> None:
    """A flag for every field of the dataclass `options`. Flags that are not given leave nothing in the namespace, so
    that the dataclass's own defaults hold."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(options)
    for item in fields(options):
        if item.name not in skip:
            _add_flag(group, item, hints[item.name])


def from_flags(options: type[T], args: argparse.Namespace, **given: Any) -> T:
    """The dataclass with what the command line gave."""
    found = {item.name: getattr(args, item.name) for item in fields(options) if hasattr(args, item.name)}  # type: ignore[arg-type]
    return options(**{**found, **given})


def normalise(argv: Sequence[str]) -> list[str]:
    """`--max_model_len=4k` may be written with underscores."""
    result = []
    for word in argv:
        if word.startswith("--"):
            flag, sign, value = word.partition("=")
            word = flag.replace("_", "-") + sign + value
        result.append(word)
    return result


def parse_size(text: str) -> int:
    """`4096`, `4k` (4000), `4K` (4096), `1.5g`, `2GiB`: lower case counts in thousands, upper case and `i` in 1024s."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 4k or 2GiB")
    number, unit, binary = match.groups()
    base = 1024 if binary or unit.isupper() else 1000
    value = float(number) * base ** POWERS[unit.lower()]
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value) if "." in number else int(number) * base ** POWERS[unit.lower()]


def parse_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed")
    return value


class _Words(argparse.Action):
    """Words, repeated flags, or one JSON list."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        words = list(values)
        if len(words) == 1 and words[0].startswith(("[", "{")):
            try:
                words = json.loads(words[0])
            except ValueError as error:
                raise argparse.ArgumentError(self, f"not JSON: {error}") from None
            if not isinstance(words, list) or any(not isinstance(word, str) for word in words):
                raise argparse.ArgumentError(self, "a list of strings is needed")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or []), *words])


def _add_flag(group: Any, item: Field[Any], hint: Any) -> None:
    names = ["--" + item.name.replace("_", "-")]
    if short := item.metadata.get("short"):
        names.append(short)
    text = item.metadata.get("help", "").replace("%", "%%")
    keywords: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS, "help": text}
    kind = _required_kind(hint)
    if kind is bool:
        shown = "on" if item.default else "off"
        group.add_argument(*names, **{**keywords, "help": f"{text} ({shown})"}, action=argparse.BooleanOptionalAction)
        return
    if get_origin(kind) is list:
        group.add_argument(*names, **keywords, nargs="+", action=_Words, metavar="WORD")
        return
    if item.default is not None and item.default != "":
        keywords["help"] = f"{text} ({str(item.default).replace('%', '%%')})"
    group.add_argument(*names, **keywords, **_value(item, kind))


def _value(item: Field[Any], kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is dict or kind is dict:
        return {"type": parse_json, "metavar": "JSON"}
    if item.metadata.get("size"):
        return {"type": parse_size, "metavar": "SIZE"}
    convert: Callable[[str], Any] = kind
    return {"type": convert, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}


def _required_kind(hint: Any) -> Any:
    """`int` for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return hint
