"""Input and output of a batch: JSON Lines, one row of output for each line of input, in its order."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vjax.errors import ModelError

MAX_LINE_BYTES = 32 << 20  # the server's own limit for a body
MAX_ID_CHARS = 512


@dataclass(slots=True)
class Line:
    """One request. `problem` says why it cannot be sent."""

    number: int  # from 1, as editors count
    custom_id: str | None = None
    url: str = ""
    body: dict[str, Any] | None = None
    problem: str | None = None


def read_lines(file: IO[bytes]) -> Iterator[Line]:
    """The requests of an open file, one at a time. Empty lines are none."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            yield Line(number, problem=f"the line is longer than {MAX_LINE_BYTES} bytes.")
        elif raw.strip():
            yield parse_line(raw, number)


def parse_line(raw: bytes, number: int) -> Line:
    """A line, with its problem where it has one."""
    line = Line(number)
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        line.problem = f"the line is not JSON: {str(error)[:200]}."
        return line
    if not isinstance(found, dict):
        line.problem = "the line is not a JSON object."
        return line
    given = found.get("custom_id")
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID_CHARS:
        line.problem = f"custom_id must be text of 1 to {MAX_ID_CHARS} characters."
        return line
    line.custom_id = given
    url, body = found.get("url"), found.get("body")
    if found.get("method", "POST") != "POST":
        line.problem = "method must be POST."
    elif not isinstance(url, str):
        line.problem = "url must be text such as /v1/chat/completions."
    elif not isinstance(body, dict):
        line.problem = "body must be a JSON object."
    elif body.get("stream"):
        line.problem = "body.stream must be false: rows are whole answers."
    else:
        line.url, line.body = url, body
    return line


def answer_row(line: Line, status: int, body: Any) -> bytes:
    """The row of a request that was answered, with whatever status."""
    error = None
    if status != 200:
        error = body.get("error", body) if isinstance(body, dict) else body
    response = {"status_code": status, "request_id": f"vjax-batch-{uuid.uuid4().hex}", "body": body}
    return _row(line, response, error)


def problem_row(line: Line) -> bytes:
    """The row of a line that was not sent."""
    message = f"line {line.number}: {line.problem}"
    return _row(line, None, {"message": message, "type": "BadRequestError", "param": None, "code": 400})


def _row(line: Line, response: Any, error: Any) -> bytes:
    row = {"id": f"vjax-{uuid.uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": error}
    return json.dumps(row).encode() + b"\n"


def count_lines(path: Path) -> int:
    """Requests in a file. Raises `ModelError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for _ in _filled(file))
    except OSError as error:
        raise ModelError(f"--input-file: {path} cannot be read ({error.strerror}).") from None


def _filled(file: IO[bytes]) -> Iterator[None]:
    filled, fresh = False, True
    while part := file.readline(1 << 20):  # in pieces: a line may be larger than memory
        filled = bool(part.strip()) or (filled and not fresh)
        fresh = part.endswith(b"\n")
        if fresh:
            if filled:
                yield
            filled = False
    if filled:
        yield


def rows_done(output: Path, source: Path) -> int:
    """How many rows an earlier run left in `output`; half a row at its end, from a run that was killed, is cut off.

    Raises `ModelError` when they are not answers to the first lines of `source`.
    """
    if not output.exists():
        return 0
    done = end = 0
    with output.open("rb") as rows, source.open("rb") as file:
        lines = read_lines(file)
        while (raw := rows.readline()).endswith(b"\n"):
            line = next(lines, None)
            if line is None or _custom_id(raw) != (line.custom_id,):
                raise ModelError(
                    f"--output-file: row {done + 1} of {output} does not answer line "
                    f"{line.number if line else done + 1} of {source}. Choose another file, or add --overwrite."
                )
            done, end = done + 1, rows.tell()
    os.truncate(output, end)
    return done


def _custom_id(raw: bytes) -> tuple[Any]:
    try:
        return (json.loads(raw)["custom_id"],)
    except (ValueError, RecursionError, KeyError, TypeError):
        return (object(),)
