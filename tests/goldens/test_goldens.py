"""The goldens themselves: small, current, reproducible, and far enough from ties to compare tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

from tests.goldens import CASES, DATA, Case, case_names, checkpoint, load_case
from tests.goldens.cases import ENCODERS
from tests.goldens.gguf import QUANTISATIONS, dequantised, gguf_case_names, gguf_checkpoint
from tests.goldens.gguf_hybrids import text_of
from tests.goldens.gguf_metadata import spelled_out
from tests.goldens.gguf_tensors import interleave_halves
from tests.goldens.weights import seeded_tensor


def test_seeded_values_never_change() -> None:
    tensor = seeded_tensor("model.layers.0.self_attn.q_proj.weight", (3, 4), seed=7)
    assert tensor.dtype == np.float32
    np.testing.assert_allclose(tensor[0], [1.2432429, -0.7463335, -0.2469255, -0.4204978], rtol=1e-5)


def test_a_tensor_depends_on_its_name_and_seed() -> None:
    base = seeded_tensor("a.weight", (8, 8), seed=0)
    assert not np.allclose(base, seeded_tensor("b.weight", (8, 8), seed=0))
    assert not np.allclose(base, seeded_tensor("a.weight", (8, 8), seed=1))


def test_data_and_cases_match() -> None:
    names = case_names() + [case.name for case in ENCODERS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in DATA.glob("*.npz")} == set(names)


@pytest.mark.parametrize("name", case_names())
def test_golden_is_sound(name: str) -> None:
    golden = load_case(name)
    vocab, eos = golden.config["vocab_size"], golden.config["eos_token_id"]
    assert (DATA / f"{name}.npz").stat().st_size < 30_000
    assert golden.logits.shape == (*golden.tokens.shape, vocab)
    assert golden.logits.dtype == np.float32
    assert np.isfinite(golden.logits).all()
    assert golden.logits.std() > 0.3
    assert len(golden.prompts[0]) == 1
    assert golden.greedy.shape[0] == len(golden.prompts)
    assert golden.greedy.shape[1] >= 16
    everything = np.concatenate([golden.tokens.ravel(), *golden.prompts, golden.greedy.ravel()])
    assert ((everything >= 0) & (everything < vocab)).all()
    assert eos not in everything
    assert golden.gap > 1e-2
    assert all(len(set(row)) >= 5 for row in golden.greedy.tolist())


@pytest.mark.parametrize("case", CASES, ids=case_names())
def test_every_switch_moves_the_logits(case: Case) -> None:
    golden = load_case(case.name)
    assert len(golden.moved) == len(case.switches)
    assert all(move > 0.05 for move in golden.moved)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", ["llama-bias", "gemma3"])
def test_checkpoint_holds_the_seeded_weights(name: str, shards: int, tmp_path: Path) -> None:
    golden = load_case(name)
    path = checkpoint(name, tmp_path, shards)
    assert json.loads((path / "config.json").read_text()) == golden.config
    files = sorted(path.glob("*.safetensors"))
    assert len(files) == shards
    found = {tensor: array for file in files for tensor, array in load_file(file).items()}
    assert {tensor: array.shape for tensor, array in found.items()} == golden.shapes
    for tensor, array in golden.tensors().items():
        np.testing.assert_array_equal(found[tensor], array)


def test_norms_follow_the_family() -> None:
    assert abs(load_case("llama-gqa").tensors()["model.norm.weight"].mean() - 1) < 0.2
    assert abs(load_case("gemma3").tensors()["model.norm.weight"].mean()) < 0.2


@pytest.mark.parametrize("name", gguf_case_names())
def test_gguf_states_the_model(name: str, tmp_path: Path) -> None:
    golden = text_of(load_case(name))
    reader = GGUFReader(gguf_checkpoint(name, tmp_path))
    arch = reader.fields["general.architecture"].contents()
    assert reader.fields[f"{arch}.embedding_length"].contents() == spelled_out(golden.config)["hidden_size"]
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == golden.config["vocab_size"]
    tensors = {tensor.name: tensor.data for tensor in reader.tensors if not tensor.name.startswith("rope_f")}
    # Some are stacked or split on the way, but every number is there.
    assert sum(array.size for array in tensors.values()) == sum(array.size for array in golden.tensors().values())
    assert ("output.weight" in tensors) == ("lm_head.weight" in golden.shapes)
    table = re.compile(r"embed_tokens\.|tok_embed|\.embeddings\.|wte")
    (embedding,) = (array for name, array in golden.tensors().items() if table.search(name))
    scale = golden.config["embedding_multiplier"] if golden.case.family == "falcon_h1" else 1
    if golden.case.family == "minicpm3":  # in llama.cpp's constant
        scale = golden.config["scale_emb"] / 12
    np.testing.assert_array_equal(tensors["token_embd.weight"], embedding * np.float32(scale))


@pytest.mark.parametrize("quantise", QUANTISATIONS)
def test_gguf_quantises(quantise: str, tmp_path: Path) -> None:
    golden = load_case("llama-gqa")
    tensors = {t.name: t for t in GGUFReader(gguf_checkpoint(golden.name, tmp_path, quantise)).tensors}
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == quantise
    exact, rounded = golden.tensors(), dequantised(golden, quantise)
    for name, array in exact.items():
        error = np.abs(rounded[name] - array).max() / np.abs(array).max()
        assert error < (0.15 if quantise.startswith("Q") else 0.01), name
        assert array.ndim == 1 or quantise == "F32" or error > 0, name


def test_gguf_splits(tmp_path: Path) -> None:
    first = gguf_checkpoint("qwen2-tied", tmp_path, splits=3)
    files = sorted(tmp_path.glob("*.gguf"))
    assert first.name == "qwen2-tied-F32-00001-of-00003.gguf"
    assert files[0] == first
    readers = [GGUFReader(file) for file in files]
    assert [reader.fields["split.no"].contents() for reader in readers] == [0, 1, 2]
    assert {reader.fields["split.count"].contents() for reader in readers} == {3}
    total = len(load_case("qwen2-tied").shapes)
    assert sum(len(reader.tensors) for reader in readers) == total
    assert readers[0].fields["split.tensors.count"].contents() == total


def test_interleaved_rows_are_pairs() -> None:
    rows = np.arange(12)[:, None]  # two heads of six rows
    assert interleave_halves(rows, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
