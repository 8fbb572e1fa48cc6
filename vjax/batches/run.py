"""Runs a batch file through an engine in a process of its own, by the server's own routes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from fastapi import FastAPI
from tqdm import tqdm

from vjax.batches.file import Line, answer_row, count_lines, problem_row, read_lines, rows_done
from vjax.errors import EngineDeadError
from vjax.frontend.async_llm import AsyncLLM
from vjax.serving.app import build_app
from vjax.serving.in_process import post
from vjax.serving.options import ServerOptions

PREFIXES = ("/v1/", "/v2/")
SUFFIXES = ("/score", "/rerank", "/pooling", "/classify")
AHEAD = 2  # requests in flight for each that the engine runs at once


async def run_file(
    llm: AsyncLLM, options: ServerOptions, source: Path, output: Path, *, overwrite: bool = False, progress: bool = True
) -> tuple[int, int]:
    """Answer every line of `source` in `output`. Returns how many rows there are now, and how many of those written
    here are errors.

    Lines are read and rows written as the engine gets to them, so memory does not grow with the files. A run that was
    stopped goes on after its last row. Raises `ModelError` for files that cannot be used, and `EngineDeadError` without
    a row for what the engine had not answered.
    """
    total = count_lines(source)
    if overwrite:
        output.unlink(missing_ok=True)
    done = rows_done(output, source)
    app = build_app(llm, options, ready=False)
    if done == total:
        output.touch()
        return done, 0
    await llm.start()
    try:
        app.state.service.open()
        with source.open("rb") as lines, output.open("ab") as rows:
            bar = tqdm(total=total, initial=done, desc="Batch", unit="row", disable=not progress, dynamic_ncols=True)
            with bar:
                errors = await _Batch(app, llm, options).run(islice(read_lines(lines), done, None), rows, bar)
        return total, errors
    finally:
        await llm.shutdown()


class _Batch:
    """Requests in flight, oldest first: their rows are written in that order."""

    def __init__(self, app: FastAPI, llm: AsyncLLM, options: ServerOptions) -> None:
        self.app, self.llm = app, llm
        self.urls = urls(app)
        self.headers = [(b"authorization", b"Bearer " + key.encode()) for key in options.api_keys()[:1]]
        self.most = AHEAD * llm.limits.max_num_seqs
        self.errors = self.tokens = 0
        self.started = time.monotonic()

    async def run(self, lines: Iterator[Line], rows: IO[bytes], bar: Any) -> int:
        flying: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
        try:
            while True:
                while len(flying) < self.most and (line := next(lines, None)) is not None:
                    flying.append(asyncio.create_task(self._answer(line)))
                if not flying:
                    return self.errors
                row, failed = await flying[0]
                if self.llm.dead_error is not None:
                    raise self.llm.dead_error
                flying.popleft()
                rows.write(row)
                rows.flush()
                self.errors += failed
                bar.set_postfix_str(self._shown(), refresh=False)
                bar.update()
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _answer(self, line: Line) -> tuple[bytes, bool]:
        if line.problem is None and line.url not in self.urls:
            line.problem = f"url {line.url[:100]!r} is not one of {', '.join(sorted(self.urls))}."
        if line.problem is not None:
            return problem_row(line), True
        status, raw = await post(self.app, line.url, json.dumps(line.body).encode(), self.headers)
        if self.llm.dead_error is not None:
            raise EngineDeadError(str(self.llm.dead_error))
        try:
            body = json.loads(raw)
        except ValueError:
            body = raw.decode("utf-8", "replace")
        if isinstance(body, dict) and isinstance(body.get("usage"), dict):
            self.tokens += body["usage"].get("completion_tokens") or 0
        return answer_row(line, status, body), status != 200

    def _shown(self) -> str:
        rate = self.tokens / max(time.monotonic() - self.started, 1e-6)
        return f"out {rate:.1f} tok/s, {self.errors} errors"


def urls(app: FastAPI) -> set[str]:
    """What a line may ask: the routes that take a request and answer it whole."""
    paths = {path for path, methods in app.openapi()["paths"].items() if "post" in methods and "{" not in path}
    return {path for path in paths if path.startswith(PREFIXES) or path.endswith(SUFFIXES)}
