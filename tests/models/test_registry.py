"""Families from outside: `register`, and packages with an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.goldens import checkpoint
from vjax.errors import ModelError
from vjax.models import llama, register, registry

ROOT = Path(__file__).parents[2]
PLUGIN = Path(__file__).parent / "plugin"


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", [])
    theirs = replace(llama.FAMILY, name="Theirs", architectures=("TheirsForCausalLM", "LlamaForCausalLM"))
    register(theirs)
    assert registry.family_for({"architectures": ["TheirsForCausalLM"]}) is theirs
    assert registry.family_for({"architectures": ["LlamaForCausalLM"]}) is theirs
    assert "TheirsForCausalLM" in registry.supported_architectures()
    with pytest.raises(ModelError, match="got str"):
        register("llama")  # type: ignore[arg-type]


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"NoneForCausalLM is not supported. Supported: .*LlamaForCausalLM"):
        registry.family_for({"architectures": ["NoneForCausalLM"]})
    with pytest.raises(ModelError, match="model_type 'none' without architectures"):
        registry.family_for({"model_type": "none"})
    with pytest.raises(ModelError, match="GGUF architecture 'none' is not supported"):
        registry.family_for_gguf("none")


def test_a_plugin_package_serves_its_architecture_and_broken_ones_are_reported(tmp_path: Path) -> None:
    path = checkpoint("llama-gqa", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["TinyForCausalLM"]}))
    code = f"import vjax; print(vjax.load({str(path)!r}, use_tqdm_on_load=False)[0].family.name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(ROOT)])}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "Tiny", result.stderr
    assert "model plugin missing is skipped: ModuleNotFoundError" in result.stderr
    assert "model plugin wrong is skipped: TypeError" in result.stderr
