"""The flag tables of docs/serving.md, made from the dataclasses that the command line is made from.

python scripts/flag_table.py [--write]      prints the tables, or puts them into the document
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from vjax import serve
from vjax.config import EngineConfig
from vjax.serving.options import ServerOptions

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "serving.md"
TABLES = {"engine": EngineConfig, "server": ServerOptions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.relative_to(ROOT)}")
    if parser.parse_args().write:
        DOCUMENT.write_text(filled(DOCUMENT.read_text()))
    else:
        print("\n\n".join(table(name) for name in TABLES))
    return 0


def filled(document: str) -> str:
    """The document with each table between its markers, `<!-- flags: NAME -->` and `<!-- end -->`."""
    for name in TABLES:
        pattern = re.compile(f"(<!-- flags: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        document, count = pattern.subn(lambda found, name=name: f"{found[1]}{table(name)}\n{found[2]}", document)
        if count != 1:
            raise SystemExit(f"{DOCUMENT}: {count} places for the flags of {name!r}, not one")
    return document


def table(name: str) -> str:
    """A Markdown table: a line for every field."""
    actions = {action.dest: action for action in _parser()._actions if action.help != argparse.SUPPRESS}
    rows = ["| flag | value | default | meaning |", "|---|---|---|---|"]
    for item in fields(TABLES[name]):
        cells = (_flags(actions[item.name]), _value(actions[item.name]), _default(item), item.metadata["help"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser


def _flags(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return f"`--[no-]{action.option_strings[0].removeprefix('--')}`"
    return ", ".join(f"`{flag}`" for flag in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0:
        return ""
    return f"{action.metavar} ..." if action.nargs == "+" else str(action.metavar)


def _default(item: Field[Any]) -> str:
    if isinstance(item.default, bool):
        return "on" if item.default else "off"
    if item.metadata.get("size") and item.default:
        return f"`{item.default >> 20}M`"
    return "" if item.default is None or item.default == "" else f"`{item.default}`"


if __name__ == "__main__":
    sys.exit(main())
