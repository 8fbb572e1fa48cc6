"""`vjax run-batch`: rows in order, bad lines as rows, and going on where a run stopped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.fakes import fake_llm
from vjax.batches import file
from vjax.batches.run import run_file
from vjax.errors import EngineDeadError, ModelError
from vjax.serving.options import ServerOptions

OPTIONS = ServerOptions(served_model_name=["fake"])
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(id: str, url: str = COMPLETIONS, **body: Any) -> str:
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": {"model": "fake", **body}})


def run(source: Path, output: Path, **options: Any) -> tuple[int, int]:
    return asyncio.run(run_file(fake_llm(), OPTIONS, source, output, progress=False, **options))


def rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in output.read_text().splitlines()]


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VJAX_API_KEY", "secret")  # of a server; a batch needs none from the caller
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        line("long", prompt="abc", max_tokens=60),
        line("chat", CHAT, messages=[{"role": "user", "content": "ab"}], max_tokens=2),
        "{not json",
        "",
        line("stream", prompt="a", stream=True),
        line("bad", prompt="a", temperature=9),
        line("other", prompt="a", model="nobody"),
        line("where", "/v1/nothing", prompt="a"),
        line("back", "/detokenize", tokens=[97]),
        json.dumps({"custom_id": "get", "method": "GET", "url": COMPLETIONS, "body": {}}),
        json.dumps({"custom_id": 7, "url": COMPLETIONS, "body": {}}),
        "[" * 50_000,
        line("last", prompt="xyz", max_tokens=3),
    ]
    source.write_text("\n".join(lines))
    assert run(source, output) == (12, 9)
    found = rows(output)
    assert [row["custom_id"] for row in found] == [
        "long", "chat", None, "stream", "bad", "other", "where", "back", "get", None, None, "last",
    ]  # fmt: skip
    assert found[0]["response"]["body"]["choices"][0]["text"].startswith("bcdbcd")
    assert found[1]["response"]["body"]["choices"][0]["message"]["content"] == "bc"
    assert found[-1]["response"]["body"]["choices"][0]["text"] == "yz{"
    assert {row["error"] for row in (found[0], found[1], found[-1])} == {None}
    assert "line 3: the line is not JSON" in found[2]["error"]["message"]
    assert "stream" in found[3]["error"]["message"]
    assert found[4]["response"]["status_code"] == 400
    assert found[4]["error"]["param"] == "temperature"
    assert found[5]["response"]["status_code"] == 404
    assert COMPLETIONS in found[6]["error"]["message"]
    assert len({row["id"] for row in found}) == len(found)

    # Killed in the middle of a row: the next run keeps what is whole and adds the rest.
    whole = output.read_bytes()
    keep = whole.split(b"\n")[:10]
    output.write_bytes(b"\n".join(keep) + b"\n" + b'{"id": "vjax-')
    assert run(source, output) == (12, 1)
    again = rows(output)
    assert [row["custom_id"] for row in again] == [row["custom_id"] for row in found]
    assert again[0]["id"] == found[0]["id"]  # kept, not asked again
    assert again[-1]["response"]["body"]["choices"][0]["text"] == "yz{"
    assert run(source, output) == (12, 0)

    source.write_text("\n".join(lines[1:]))
    with pytest.raises(ModelError, match=r"row 1 of .* does not answer line 1"):
        run(source, output)
    source.write_text(lines[-1])
    assert run(source, output, overwrite=True) == (1, 0)
    assert [row["custom_id"] for row in rows(output)] == ["last"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--input-file"):
        run(tmp_path / "nothing", tmp_path / "out")


def test_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MAX_LINE_BYTES", 200)
    path = tmp_path / "in"
    path.write_text("x" * 1000 + "\n" + line("a", prompt="b") + "\n\n   \n")
    with path.open("rb") as opened:
        first, second = file.read_lines(opened)
    assert "longer than 200 bytes" in str(first.problem)
    assert (second.custom_id, second.number) == ("a", 2)
    assert file.count_lines(path) == 2


def test_a_long_file_until_the_engine_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are read as rows are written, so that memory does not grow with the file; a death is nobody's answer."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(str(n), prompt="ab", max_tokens=2) for n in range(100)]
    source.write_text("\n".join([*lines, line("bad", prompt="!exit", max_tokens=4)]))
    ahead, read = [], file.read_lines

    def counted(opened: Any) -> Any:
        for number, one in enumerate(read(opened), 1):
            ahead.append(number - output.read_bytes().count(b"\n"))
            yield one

    monkeypatch.setattr("vjax.batches.run.read_lines", counted)
    with pytest.raises(EngineDeadError):
        run(source, output)
    found = [row["custom_id"] for row in rows(output)]
    assert found == [str(n) for n in range(len(found))]
    assert len(found) > 50
    assert max(ahead) <= 2 * 8 + 1  # twice what the engine runs at once
