"""Models that encode, against transformers: padded batches, pooled vectors, class probabilities, through `LLM`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import PoolingType
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import vjax
from tests.goldens import EncoderGolden, load_encoder_case
from tests.goldens.cases import ENCODERS
from tests.goldens.gguf_encoders import encoder_gguf
from vjax import LLM, EngineConfig
from vjax.engine.engine import Engine
from vjax.errors import ModelError, RequestError
from vjax.layers import attention
from vjax.models.encoder import Encoder
from vjax.models.model import Model

OPTIONS: dict[str, Any] = dict(skip_tokenizer_init=True, use_tqdm_on_load=False, warmup="lazy")


@pytest.fixture(scope="module", params=[case.name for case in ENCODERS])
def golden(request: pytest.FixtureRequest) -> EncoderGolden:
    return load_encoder_case(request.param)


def test_padded_batches_equal_transformers(golden: EncoderGolden, tmp_path: Path) -> None:
    model, params = vjax.load(golden.checkpoint(tmp_path), use_tqdm_on_load=False)
    assert isinstance(model, Encoder)
    lengths = [len(text) for text in golden.texts]
    tokens = np.stack([np.pad(text, (0, 30 - len(text)), constant_values=7) for text in golden.texts])
    task = "classify" if model.labels else "token_embed"
    values = model.encode(params, jnp.asarray(tokens), jnp.asarray(lengths), task)
    for value, length, want in zip(values, lengths, golden.values, strict=True):
        np.testing.assert_allclose(value if model.labels else value[:length], want, atol=1e-4)


@pytest.mark.parametrize("name", [case.name for case in ENCODERS if case.gguf])
def test_gguf_gives_the_same_values(name: str, tmp_path: Path) -> None:
    golden = load_encoder_case(name)
    model, params = vjax.load(encoder_gguf(golden, tmp_path / "m.gguf"), use_tqdm_on_load=False)
    assert isinstance(model, Encoder)
    task = "classify" if model.labels else "token_embed"
    text, want = golden.texts[-1], golden.values[-1]
    values = model.encode(params, jnp.asarray(text)[None], jnp.asarray([len(text)]), task)
    np.testing.assert_allclose(values[0], want, atol=1e-4)


def test_text_through_a_gguf_file(tmp_path: Path) -> None:
    golden = load_encoder_case("bert")
    llm = LLM(str(encoder_gguf(golden, tmp_path / "m.gguf", PoolingType.MEAN)), use_tqdm_on_load=False)
    (output,) = llm.encode("Hi", use_tqdm=False)
    assert output.prompt_token_ids == [2, 5 + 7, 31 + 8, 3]  # [CLS] h ##i [SEP]
    text, value = golden.texts[-1].tolist(), golden.values[-1].mean(0)
    (output,) = llm.encode(text, use_tqdm=False)
    np.testing.assert_allclose(output.outputs.data, value / np.linalg.norm(value), atol=1e-4)
    llm.shutdown()


def test_llm_encodes(golden: EncoderGolden, tmp_path: Path) -> None:
    llm = LLM(str(golden.checkpoint(tmp_path)), max_num_batched_tokens=64, **OPTIONS)
    outputs = llm.encode([text.tolist() for text in golden.texts], use_tqdm=False)
    for output, text, want in zip(outputs, golden.texts, golden.values, strict=True):
        assert output.prompt_token_ids == text.tolist()
        np.testing.assert_allclose(output.outputs.data, expected(golden, want), atol=1e-4)
    llm.shutdown()


def expected(golden: EncoderGolden, value: np.ndarray) -> np.ndarray:
    if value.ndim == 1:
        if len(value) == 1:
            return 1 / (1 + np.exp(-value))
        return np.exp(value) / np.exp(value).sum()
    vector = value[-1] if golden.case.family == "qwen3" else value[0]
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("name", ["modernbert", "qwen3-embedder"])
def test_long_texts_attend_in_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = load_encoder_case(name)
    model, params = vjax.load(golden.checkpoint(tmp_path), use_tqdm_on_load=False)
    assert isinstance(model, Encoder)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 7)
    values = model.encode(params, jnp.asarray(golden.texts[-1])[None], jnp.asarray([26]), "token_embed")
    np.testing.assert_allclose(values[0], golden.values[-1], atol=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_text_over_several_devices(size: int, tmp_path: Path) -> None:
    golden = load_encoder_case("bert")
    path = golden.checkpoint(tmp_path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.save(str(path / "tokenizer.json"))
    found = [
        LLM(str(path), use_tqdm_on_load=False, warmup="lazy", tensor_parallel_size=n).encode("Hello world!")
        for n in (1, size)
    ]
    assert found[0][0].prompt_token_ids == [2, 4, 5, 1, 3]
    np.testing.assert_allclose(found[1][0].outputs.data, found[0][0].outputs.data, atol=1e-5)


@pytest.mark.parametrize(("mode", "normalize"), [("mean_tokens", False), ("lasttoken", True), ("cls_token", False)])
def test_sentence_transformers_files_say_how_to_pool(mode: str, normalize: bool, tmp_path: Path) -> None:
    golden = load_encoder_case("bert")
    path = golden.checkpoint(tmp_path)
    modules = ["models.Transformer", "models.Pooling", *["models.Normalize"] * normalize]
    (path / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.{name}"} for name in modules]))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    llm = LLM(str(path), **OPTIONS)
    pools = {"mean_tokens": lambda x: x.mean(0), "lasttoken": lambda x: x[-1], "cls_token": lambda x: x[0]}
    for text, value in zip(golden.texts, golden.values, strict=True):
        want = pools[mode](value)
        want = want / np.linalg.norm(want) if normalize else want
        np.testing.assert_allclose(llm.encode(text.tolist(), use_tqdm=False)[0].outputs.data, want, atol=1e-4)


def test_what_encodes_does_not_generate(tmp_path: Path) -> None:
    path = str(load_encoder_case("bert").checkpoint(tmp_path))
    with pytest.raises(ModelError, match=r"LLM\.encode"):
        Engine(EngineConfig(model=path, use_tqdm_on_load=False))
    with pytest.raises(ModelError, match="encodes"):
        Model.from_hf(load_encoder_case("roberta").case.config)
    llm = LLM(path, **OPTIONS)
    with pytest.raises(RequestError, match="encode"):
        llm.generate([5])
    with pytest.raises(RequestError, match="classify"):
        llm.classify([5])
    with pytest.raises(RequestError, match="tokens"):
        llm.encode([5] * 129)
