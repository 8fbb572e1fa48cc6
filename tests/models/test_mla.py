"""Multi-head latent attention: what it keeps, and what must not be done with it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.engine.driver import Driver, greedy_graphs
from tests.goldens import checkpoint, load_case
from tests.goldens.weights import write_checkpoint
from vjax import shapes
from vjax.config import EngineConfig
from vjax.engine.state import StateShape, abstract_state, page_bytes
from vjax.engine.step import lower
from vjax.errors import ModelError
from vjax.models.model import Model
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import paged_attention
from vjax.parallel.mesh import make_mesh, replicated
from vjax.plan import plan

CASE = "minicpm3"
MINICPM3_4B = shapes.config("minicpm3-4b")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(CASE, tmp_path_factory.mktemp("mla"))


def test_the_cache_is_one_latent_a_token() -> None:
    model, bfloat16 = Model.from_hf(MINICPM3_4B), jnp.dtype(jnp.bfloat16)
    assert page_bytes(model.config, 16, bfloat16) == 16 * 62 * (256 + 32) * 2
    assert page_bytes(model.config, 16, bfloat16, devices=4) == page_bytes(model.config, 16, bfloat16)
    for devices in (1, 2):
        state = abstract_state(model.config, StateShape(10, 16, 4, 64), bfloat16, make_mesh(devices))
        pools = jax.tree.leaves(state.cache)
        assert [(pool.shape, pool.sharding.is_fully_replicated) for pool in pools] == [((620, 16, 288), True)]


def test_an_indexer_has_a_pool_of_its_own() -> None:
    config = Model.from_hf(load_case("glm-moe-dsa").config).config
    # Four layers keep latents of 10 + 6 channels; two of them choose, by keys of 10.
    assert page_bytes(config, 16, jnp.dtype(jnp.float32)) == 16 * (4 * (10 + 6) + 2 * 10) * 4


# Billions of parameters, as their cards say; the cache in channels a token, layers times (rank + rotated).
PUBLISHED = {
    "deepseek-v2": (235.7, 60 * 576),
    "deepseek-v2-lite": (15.7, 27 * 576),
    "deepseek-v3": (671.0, 61 * 576),
    "kimi-k2": (1026.4, 61 * 576),
    "glm-4.7-flash": (29.9, 47 * 576),
    "minicpm3-4b": (4.07, 62 * 288),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    made, (billions, channels) = plan(name, devices=8), PUBLISHED[name]
    assert made.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert made.cache_per_token == made.cache_per_token_per_device == 2 * channels


@pytest.mark.parametrize("form", ["kimi_k2", "prediction layers"])
def test_published_forms_of_deepseek_v3(form: str, tmp_path: Path) -> None:
    """Kimi-K2 is DeepSeek-V3 by another name; and published checkpoints hold layers that predict further tokens."""
    golden = load_case("deepseek-v3-one-group")
    config, tensors = dict(golden.config), golden.tensors()
    if form == "kimi_k2":
        config["model_type"] = "kimi_k2"
    else:
        tensors |= {f"model.layers.61.{name}.weight": np.zeros((3, 3), np.float32) for name in ("eh_proj", "mlp.gate")}
    model, params = vjax.load(write_checkpoint(tmp_path / "model", config, tensors), use_tqdm_on_load=False)
    logits = jax.jit(model.apply)(params, jnp.asarray(golden.tokens))
    np.testing.assert_allclose(logits, golden.logits, atol=1e-4)


@pytest.mark.parametrize("case", ["glm-moe-dsa", pytest.param("deepseek-v4", marks=pytest.mark.slow)])
def test_no_graph_copies_the_cache(case: str, tmp_path: Path) -> None:
    path = checkpoint(case, tmp_path)
    options = dict(max_num_seqs=4, max_num_batched_tokens=16, block_size=4, max_model_len=64, warmup="lazy")
    driver = Driver(EngineConfig(model=str(path), use_tqdm_on_load=False, **options))
    runner = driver.engine.runner
    pages = 1 << 20
    state = abstract_state(runner.model.config, StateShape(pages, 4, 4, 64), jnp.float32, runner.mesh)
    smallest = min(pool.size * 4 for pool in jax.tree.leaves(state.cache) if pool.shape[0] >= pages)
    for key in (runner.graphs.plan.key(False, 16), runner.graphs.plan.key(True, 1)):
        buffer = jax.ShapeDtypeStruct((key.size,), jnp.int32, sharding=replicated(runner.mesh))
        with greedy_graphs():
            lowered = lower(runner.model, key, runner.top, runner.params, state, buffer)
        assert lowered.compile().memory_analysis().temp_size_in_bytes < smallest / 8
    driver.close()


def test_a_kernel_that_needs_values_is_refused() -> None:
    q, keys, table = jnp.zeros((2, 1, 4, 32)), jnp.zeros((3, 4, 32)), jnp.zeros((2, 2), jnp.int32)
    dispatch.choose({"paged_attention": "native"})
    try:
        with pytest.raises(ModelError, match="keys alone"):
            paged_attention(
                q, keys, None, table, table[0], jnp.arange(3), table[0], decode=True, value_dim=16, scale=1.0
            )
    finally:
        dispatch.choose()


def test_attention_weights_can_be_captured(path: Path) -> None:
    model, params = vjax.load(path, use_tqdm_on_load=False)
    tokens = jnp.asarray(load_case(CASE).tokens[:, :9])
    _, captured = model.apply(params, tokens, capture=("attention",))
    weights = captured["attention"]
    assert weights.shape == (2, 3, 4, 9, 9)
    assert jnp.allclose(weights.sum(-1), 1, atol=1e-5)
    assert not weights[..., jnp.triu_indices(9, 1)[0], jnp.triu_indices(9, 1)[1]].any()


@pytest.mark.parametrize("field", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim"])
def test_bad_sizes_are_refused(field: str) -> None:
    with pytest.raises(ModelError, match=field):
        Model.from_hf({**MINICPM3_4B, field: -3})


UNKNOWN = [
    ("deepseek-v2", "topk_method", "noaux_tc"),
    ("deepseek-v2", "norm_topk_prob", True),
    ("deepseek-v3", "scoring_func", "softmax"),
    ("deepseek-v3", "moe_layer_freq", 2),
    ("deepseek-v3", "first_k_dense_replace", -1),
    ("deepseek-v3", "n_group", 3),
    ("glm4-moe-lite", "mlp_layer_types", ["dense"]),
    ("deepseek-v32", "index_head_dim", 4),
    ("deepseek-v32", "q_lora_rank", None),
    ("glm-moe-dsa", "indexer_types", ["shared", "full", "full", "full"]),
]


@pytest.mark.parametrize(("case", "field", "value"), UNKNOWN, ids=[f"{case} {field}" for case, field, _ in UNKNOWN])
def test_what_configs_may_not_say(case: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match="3 groups" if field == "n_group" else field):
        Model.from_hf({**load_case(case).config, field: value})
