from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from vjax.errors import CheckpointError, ModelError
from vjax.loading.dtypes import resolve_dtype
from vjax.loading.hf_config import read_hf_config


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("float32", jnp.float32),
        ("float", jnp.float32),
        ("half", jnp.float16),
        ("float16", jnp.float16),
        ("bfloat16", jnp.bfloat16),
        ("torch.bfloat16", jnp.bfloat16),
        (jnp.bfloat16, jnp.bfloat16),
        (jnp.dtype("float16"), jnp.float16),
        (float, None),
        ("int8", None),
        ("", None),
        (3, None),
        (jnp.int32, None),
    ],
)
def test_names_and_objects(asked: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ModelError, match=r"is not supported\. Known: auto, float32, .*half"):
            resolve_dtype(asked)
    else:
        assert resolve_dtype(asked, {"dtype": "float32"}) == expected


def test_auto_on_cpu_is_float32() -> None:
    assert resolve_dtype("auto", {"dtype": "bfloat16"}) == jnp.float32
    assert resolve_dtype(None) == jnp.float32


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "float16"}, jnp.float16),
        ({"torch_dtype": "bfloat16"}, jnp.bfloat16),
        ({"text_config": {"torch_dtype": "float16"}}, jnp.float16),
        ({"torch_dtype": "float32"}, jnp.bfloat16),
        ({"dtype": "float8_e4m3fn"}, jnp.bfloat16),
        ({}, jnp.bfloat16),
    ],
)
def test_auto_elsewhere_is_the_configs(config: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert resolve_dtype("auto", config) == expected


def test_config_with_infinities(tmp_path: Path) -> None:
    text = (
        '{"a": {"__float__": "Infinity"}, "b": [{"__float__": "-Infinity"}], "c": {"__float__": "NaN"}, "d": {"e": 1}}'
    )
    (tmp_path / "config.json").write_text(text)
    config = read_hf_config(tmp_path)
    assert config["a"] == math.inf
    assert config["b"] == [-math.inf]
    assert math.isnan(config["c"])
    assert config["d"] == {"e": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b"[]", "must hold a JSON object, found list"),
        (b'{"a": {"__float__": [1]}}', "not valid JSON"),
        (json.dumps("x").encode(), "must hold a JSON object, found str"),
    ],
)
def test_broken_configs(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {problem}"):
        read_hf_config(tmp_path)
