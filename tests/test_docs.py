"""The documents are true: what they show runs, what they name exists, and what exists is in them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from tests.frontend.fakes import FakeEngine
from tests.goldens import load_case
from tests.goldens.cases import CASES, ENCODERS
from tests.goldens.gguf import write_gguf
from tests.goldens.gguf_families import architecture_name
from tests.goldens.gguf_tensors import converted
from tests.serving.fakes import fake_llm, running
from vjax import cli
from vjax.config import EngineConfig
from vjax.models.registry import families
from vjax.serving.app import build_app
from vjax.serving.metrics import Metrics
from vjax.serving.protocol import ChatRequest, CompletionRequest

ROOT = Path(__file__).parents[1]
README, SERVING, ADDING = ROOT / "README.md", ROOT / "docs" / "serving.md", ROOT / "docs" / "adding-a-model.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("vjax", "tests", "docs", "scripts", "benches", "notebooks")

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def shell_lines(path: Path) -> list[list[str]]:
    text = "\n".join(blocks(path, "bash")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, target


@each_document
def test_files_exist(path: Path) -> None:
    for name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", path.read_text()):
        assert (ROOT / name).exists(), name


@each_document
def test_flags_exist(path: Path) -> None:
    known = {"--" + name.replace("_", "-") for name in EngineConfig.__dataclass_fields__}
    for file in (file for folder in ("vjax", "scripts", "benches") for file in (ROOT / folder).rglob("*.py")):
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', file.read_text()))
    for command in cli.COMMANDS:
        parser, _ = cli._parser(command)
        known |= set(re.findall(r"--[a-z][a-z-]+", _help_of(parser, command)))
    used = set(re.findall(r"(?<![\w\[-])--[a-z][a-z-]+(?![\w\]])", path.read_text()))
    assert used <= known, used - known


def _help_of(parser: Any, command: str) -> str:
    text: str = parser._subparsers._group_actions[0].choices[command].format_help()
    return text


@each_document
def test_commands_parse(path: Path) -> None:
    for words in shell_lines(path):
        if words[:3] == ["python", "-m", "vjax.serve"]:
            words = ["vjax", "serve", *words[3:]]
        if words[0] == "vjax" and "[flags]" not in words:
            words = cli.joined(words[1:])
            parser, _ = cli._parser(words[0])
            parser.parse_args(words)


@each_document
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    used = [words[1:] for words in shell_lines(path) if words[0] == "make"]
    used += [words.split() for words in re.findall(r"`make ([a-z .-]+)`", path.read_text())]
    for word in (word for words in used for word in words):
        assert word in targets or word.removeprefix(".venv/.") in extras, word


def test_extras_exist() -> None:
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert set(re.findall(r"\[(\w+)\]\"", README.read_text())) <= extras


def test_flag_tables_are_current() -> None:
    script = _script("flag_table")
    assert script.filled(SERVING.read_text()) == SERVING.read_text(), "run `python scripts/flag_table.py --write`"
    assert "| `--max-model-len` | SIZE |" in script.table("engine")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_serving_describes_every_endpoint_field_metric_and_variable() -> None:
    text = SERVING.read_text()
    paths = set(build_app(fake_llm(), ready=False).openapi()["paths"])
    assert len(paths) > 8
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    metrics = Metrics("m", FakeEngine(EngineConfig()).stats)
    metrics.open(FakeEngine(EngineConfig()).limits)
    names = set(re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) > 20
    source = "".join(file.read_text() for file in (ROOT / "vjax").rglob("*.py"))
    variables = set(re.findall(r'environ\S*"(VJAX_\w+)"', source))
    assert len(variables) >= 3
    for name in (*(path.replace(":path", "") for path in paths), *fields, *names, *variables):
        assert f"`{name}`" in text, name
    described = set(re.findall(r"`(vllm:\w+|http_\w+)`", text))
    assert described == names


def family_rows() -> list[str]:
    """The rows of the README's table of families."""
    text = README.read_text()
    table = text[text.index("| family |") :].split("\n\n")[0]
    return table.splitlines()[2:]


def test_readme_lists_every_family() -> None:
    rows = family_rows()
    for family in families():
        (row,) = [row for row in rows if f"`{family.architectures[0]}`" in row]
        assert all(f"`{name}`" in row for name in (*family.architectures, *family.gguf)), row
    assert len(rows) == len(families())


@pytest.mark.parametrize("row", family_rows(), ids=lambda row: row.split("|")[1].strip())
def test_every_row_is_proven(row: str) -> None:
    """A golden for the row's family, and one as GGUF for every architecture that the row names."""
    _, _, architectures, formats, proven, _ = row.split("|")
    cases = [case for case in CASES + ENCODERS if f"`{case.config['architectures'][0]}`" in architectures]
    assert cases
    assert proven.strip()
    gguf = {architecture_name(case) for case in CASES + ENCODERS if case.gguf}
    assert set(re.findall("`(.+?)`", formats)) <= gguf


@pytest.fixture
def small_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`smollm2-demo` is a tiny model with a context of 2048, so that what users paste runs here as it stands."""
    golden = load_case("llama-gqa")
    case = replace(golden.case, config={**golden.config, "max_position_embeddings": 2048})
    path = tmp_path / "demo.gguf"
    write_gguf(path, replace(golden, case=case), converted(golden), "F32", 1)
    monkeypatch.setattr("vjax.loading.source.fetch", lambda name, progress: path)


def test_readme_offline(small_demo: None, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [code for code in blocks(README, "python") if "vjax.LLM" in code]
    names: dict[str, Any] = {}
    try:
        exec(code, names)
    finally:
        if "llm" in names:
            names["llm"].shutdown()
    assert "The capital of France is -> " in capsys.readouterr().out


def test_readme_model_as_a_function(small_demo: None) -> None:
    (code,) = [code for code in blocks(README, "python") if "vjax.load" in code]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["captured"]["attention"].shape[-2:] == (5, 5)
    assert jax.tree.structure(names["gradient"]) == jax.tree.structure(names["params"])


def test_readme_server(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [code for code in blocks(README, "python") if "OpenAI" in code]
    (curl,) = [words for words in shell_lines(README) if words[0] == "curl"]
    with running("--served-model-name", "smollm2-demo") as server:
        exec(code.replace("http://127.0.0.1:8000", server.url), {})
        assert capsys.readouterr().out.startswith("Xibu")  # "What", each letter one further
        assert curl[1].startswith("http://127.0.0.1:8000/")
        assert curl[2:4] == ["-H", "Content-Type: application/json"]
        answer = server.post(curl[1].removeprefix("http://127.0.0.1:8000"), **json.loads(curl[5]))
        assert answer.json()["choices"][0]["text"] == "Uif!dbqj"


def test_the_example_family_is_the_trees() -> None:
    """What docs/adding-a-model.md shows of Gemma 2 stands in the tree, letter for letter."""
    files = [*(ROOT / "vjax" / "models").glob("*.py"), *(ROOT / "vjax" / "loading").glob("*.py")]
    files += [*(ROOT / "tests" / "goldens").rglob("*.py")]
    texts = [file.read_text() for file in files]
    shown = [
        textwrap.dedent(code) for code in re.findall(r"^ *```python\n(.*?)^ *```", ADDING.read_text(), re.S | re.M)
    ]
    assert len(shown) >= 4
    for code in shown:
        forms = [textwrap.indent(code, " " * spaces) for spaces in (0, 4)]
        assert any(form in text for form in forms for text in texts), code
