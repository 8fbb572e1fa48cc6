"""What a model's files and the operator say about pooling: dense modules, lengths, labels, sizes, yes and no."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import vjax
from tests.goldens import checkpoint, load_case, load_encoder_case
from vjax import LLM, EngineConfig
from vjax.errors import ModelError, RequestError
from vjax.frontend.labels import with_label_ids
from vjax.models.pooler_config import PoolerConfig, class_activation, label_names, matryoshka
from vjax.models.sentence import Sentence
from vjax.pooling_params import PoolingParams

OPTIONS: dict[str, Any] = dict(skip_tokenizer_init=True, use_tqdm_on_load=False, warmup="lazy")


def vectors(llm: LLM, texts: list[Any], **params: Any) -> list[np.ndarray]:
    outputs = llm.embed([one.tolist() for one in texts], pooling_params=PoolingParams(**params), use_tqdm=False)
    return [np.array(one.outputs.embedding) for one in outputs]


def test_sentence_transformers_folder(tmp_path: Path) -> None:
    """Mean pooling, a dense layer, no length of 1, a limit of its own; then what the options change of that."""
    golden = load_encoder_case("bert")
    path, rng = golden.checkpoint(tmp_path), np.random.default_rng(3)
    width = golden.values[0].shape[-1]
    w, b = rng.normal(size=(5, width)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    files: dict[str, Any] = {
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "pool"},
            {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
        "pool/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
        "2_Dense/config.json": {
            "in_features": width, "out_features": 5, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    }  # fmt: skip
    for name, value in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(value))
    save_file({"linear.weight": w, "linear.bias": b}, path / "2_Dense" / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [2, 3]}))

    llm = LLM(str(path), **OPTIONS)
    short = [at for at, text in enumerate(golden.texts) if len(text) <= 20]
    want = [np.tanh(golden.values[at].mean(0) @ w.T + b) for at in short]
    texts = [golden.texts[at] for at in short]
    np.testing.assert_allclose(vectors(llm, texts), want, atol=1e-4)
    cut = [value[:3] / np.linalg.norm(value[:3]) for value in want]
    np.testing.assert_allclose(vectors(llm, texts, dimensions=3, use_activation=True), cut, atol=1e-4)
    with pytest.raises(RequestError, match="one of 2, 3"):
        vectors(llm, texts, dimensions=4)
    with pytest.raises(RequestError, match="takes 20"):
        llm.embed([5] * 21)
    assert len(llm.embed([5] * 21, pooling_params=PoolingParams(truncate_prompt_tokens=-1))[0].prompt_token_ids) == 20

    pooler = {"pooling_type": "CLS", "use_activation": True, "dimensions": 2, "enable_chunked_processing": True}
    llm = LLM(str(path), pooler_config=pooler, **OPTIONS)
    first = [np.tanh(golden.values[at][0] @ w.T + b)[:2] for at in short]
    np.testing.assert_allclose(vectors(llm, texts), [v / np.linalg.norm(v) for v in first], atol=1e-4)
    whole, head, tail = vectors(llm, [np.arange(5, 35), np.arange(5, 25), np.arange(25, 35)])
    mean = 2 * head + tail
    np.testing.assert_allclose(whole, mean / np.linalg.norm(mean), atol=1e-5)


def test_a_decoder_becomes_an_encoder(tmp_path: Path) -> None:
    """Its head, a matrix of its own here, is left out."""
    path, prompt = checkpoint("qwen3-untied", tmp_path), load_case("qwen3-untied").prompts[0].tolist()
    llm = LLM(str(path), runner="pooling", **OPTIONS)
    vector = np.array(llm.embed(prompt, use_tqdm=False)[0].outputs.embedding)
    states = llm.encode(prompt, PoolingParams(use_activation=False), pooling_task="token_embed", use_tqdm=False)
    last = states[0].outputs.data[-1]
    assert states[0].outputs.data.shape == (len(prompt), len(vector))
    np.testing.assert_allclose(vector, last / np.linalg.norm(last), atol=1e-5)
    with pytest.raises(RequestError, match="encodes"):
        llm.generate(prompt)


@pytest.mark.parametrize(
    ("name", "difference"), [("qwen3-untied", True), pytest.param("qwen3-tied", False, marks=pytest.mark.once)]
)
def test_yes_and_no_of_a_decoder(name: str, difference: bool, tmp_path: Path) -> None:
    """A reranker's score is the probability of yes against no, as the decoder itself would say it next."""
    path, (no, yes) = checkpoint(name, tmp_path), (7, 11)
    model, params = vjax.load(path, use_tqdm_on_load=False)
    prompt = load_case(name).prompts[0]
    logits = np.asarray(model.apply(params, prompt[None]))[0, -1]
    overrides = {"classifier_from_token": [no, yes], "is_original_qwen3_reranker": difference}
    llm = LLM(str(path), convert="classify", hf_overrides=overrides, **OPTIONS)
    [output] = llm.classify(prompt.tolist(), use_tqdm=False)
    probability = 1 / (1 + np.exp(logits[no] - logits[yes]))
    want = [probability] if difference else [1 - probability, probability]
    np.testing.assert_allclose(output.outputs.probs, want, atol=1e-5)
    assert output.outputs.num_classes == len(want)


def test_scores_of_a_classifier(tmp_path: Path) -> None:
    """Raw on request, shifted as the options say, by the activation that its config names."""
    golden = load_encoder_case("xlm-roberta-classifier")
    path, text = str(golden.checkpoint(tmp_path)), golden.texts[0].tolist()
    pooler = {"logit_mean": 0.5, "logit_sigma": 2.0}
    raw = float(golden.values[0][0])

    def said(llm: LLM, **params: Any) -> float:
        return llm.classify(text, pooling_params=PoolingParams(**params), use_tqdm=False)[0].outputs.probs[0]

    llm = LLM(path, pooler_config=pooler, **OPTIONS)
    assert said(llm, use_activation=False) == pytest.approx((raw - 0.5) / 2, abs=1e-4)
    assert said(llm) == pytest.approx(1 / (1 + np.exp(-(raw - 0.5) / 2)), abs=1e-4)
    llm = LLM(path, hf_overrides={"problem_type": "regression"}, **OPTIONS)
    assert said(llm) == pytest.approx(raw, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"normalize": True}, "use_activation"),
        ({"pooling": "CLS"}, "pooling"),
        ({"pooling_type": "MAX"}, "MAX"),
        ({"pooling_type": ["CLS"]}, "CLS"),
        ({"tok_pooling_type": "STEP"}, "STEP"),
        ({"task": "generate"}, "task"),
        ({"task": ["embed"]}, "task"),
        ({"dimensions": 0}, "dimensions"),
        ({"logit_sigma": 0}, "logit_sigma"),
        ({"logit_mean": "x"}, "logit_mean"),
        ({"use_activation": 1}, "use_activation"),
    ],
)
def test_pooler_configs_that_cannot_be(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        PoolerConfig.read(given)


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([{"type": "x.WordWeights"}], "WordWeights"),
        ([3], "object"),
        ([{"type": "x.Pooling", "path": "../../etc"}], "leaves"),
        ([{"type": "x.Dense", "path": "2_Dense"}], "in_features"),
    ],
)
def test_modules_that_cannot_be(modules: list[Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Sentence.read(modules, lambda name: {})


def test_what_config_json_says() -> None:
    assert class_activation({}, 1) == "sigmoid"
    assert class_activation({}, 3) == "softmax"
    assert class_activation({"problem_type": "multi_label_classification"}, 3) == "sigmoid"
    named = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    assert class_activation(named, 1) == "identity"
    assert class_activation({**named, "problem_type": "single_label_classification"}, 1) == "sigmoid"
    with pytest.raises(ModelError, match="Mish"):
        class_activation({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Mish"}, 1)
    assert label_names({"id2label": {"0": "no", 1: "yes"}}, 3) == ["no", "yes", "LABEL_2"]
    assert matryoshka({}) == (False, ())
    assert matryoshka({"is_matryoshka": True}) == (True, ())
    with pytest.raises(ModelError, match="runner"):
        EngineConfig(runner="generate", convert="embed")


def write_tokenizer(path: Path) -> Tokenizer:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh"]
    tokenizer = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer


def test_a_cross_encoder_reads_pairs(tmp_path: Path) -> None:
    path = load_encoder_case("xlm-roberta-classifier").checkpoint(tmp_path)
    tokenizer = write_tokenizer(path)
    llm = LLM(str(path), **{**OPTIONS, "skip_tokenizer_init": False})
    outputs = llm.score("a b", ["c", "d e f"], use_tqdm=False)
    pairs = [tokenizer.encode("a b", text).ids for text in ("c", "d e f")]
    assert [one.prompt_token_ids for one in outputs] == pairs
    [want] = [[one.outputs.probs[0] for one in llm.classify(pairs, use_tqdm=False)]]
    assert [one.outputs.score for one in outputs] == pytest.approx(want)
    template = "{% for m in messages %}{{ m.content }} {{ m.role[0] }} {% endfor %}"
    [output] = llm.score("a", "b", chat_template=template, use_tqdm=False)
    assert output.prompt_token_ids == tokenizer.encode("a q b d", add_special_tokens=False).ids
    with pytest.raises(RequestError, match="data_1"):
        llm.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(RequestError, match="data_2"):
        llm.score("a", [["b"]])  # type: ignore[list-item]


def test_answers_may_be_named_by_their_text(tmp_path: Path) -> None:
    path = checkpoint("qwen3-untied", tmp_path)
    write_tokenizer(path)
    config = EngineConfig(model=str(path), convert="classify", hf_overrides={"classifier_from_token": ["c", "b"]})
    assert with_label_ids(config).hf_overrides == {"classifier_from_token": [6, 5]}
    with pytest.raises(ModelError, match="'maybe'"):
        with_label_ids(replace(config, hf_overrides={"classifier_from_token": ["c", "maybe"]}))
