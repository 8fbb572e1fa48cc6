"""`vjax plan`: figures that anybody can check by hand, and every shape that ships."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.goldens import checkpoint, load_case
from vjax import cli, shapes
from vjax.errors import VjaxError
from vjax.plan import GIB, plan


def test_llama_8b() -> None:
    made = plan("llama-3.1-8b", memory=80 * GIB)
    assert made.parameters == 8_030_261_248  # as its card says
    assert made.cache_per_token == 2 * 32 * 8 * 128 * 2
    assert made.weights == pytest.approx(2 * made.parameters, rel=1e-4)  # norms stay in float32
    left = 72 * GIB - made.weights - made.temporaries_per_device
    assert made.cache_tokens == left // made.cache_per_token
    assert made.requests == made.cache_tokens // 131072


def test_devices_share() -> None:
    one, eight = plan("llama-3.1-70b", memory=80 * GIB), plan("llama-3.1-70b", memory=80 * GIB, devices=8)
    assert one.requests == 0
    assert eight.requests > 5
    assert eight.weights_per_device == pytest.approx(one.weights / 8, rel=0.001)
    assert eight.cache_per_token_per_device * 8 == one.cache_per_token
    # Twelve devices divide neither 64 query heads by their 8 groups nor the vocabulary: what does not divide is whole.
    assert plan("llama-3.1-70b", devices=12).weights_per_device > one.weights / 10


@pytest.mark.parametrize("name", shapes.names())
def test_every_shape_can_be_planned(name: str) -> None:
    made = plan(name, memory=1024 * GIB, devices=8)
    assert made.requests > 0
    assert made.architecture == shapes.config(name)["architectures"][0]


def test_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint("llama-gqa", tmp_path)
    assert cli.main(["plan", str(folder), "--memory", "1GiB", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["parameters"] == sum(tensor.size for tensor in load_case("llama-gqa").tensors().values())
    assert made["dtype"] == "float32"
    assert cli.main(["plan", str(folder / "config.json"), "--memory", "1GiB"]) == 0
    assert "128 tokens" in capsys.readouterr().out


def test_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "llama-3.1-8b", "--memory", "8G"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert cli.main(["plan", "llama-3.1-8b", "--memory", "24GiB"]) == 1
    assert "--max-model-len" in capsys.readouterr().out


def test_bad_words(tmp_path: Path) -> None:
    with pytest.raises(VjaxError, match="no such file"):
        plan("nothing-of-the-kind")
    with pytest.raises(VjaxError, match="--devices"):
        plan("llama-3.1-8b", devices=0)
