"""Multi-head latent attention: what it keeps, and what must not be done with it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import vjax
from tests.engine.driver import Driver
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.state import StateShape, abstract_state, page_bytes
from vjax.engine.step import lower
from vjax.errors import ModelError
from vjax.models.model import Model
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import paged_attention
from vjax.parallel.mesh import make_mesh, replicated

CASE = "minicpm3"
MINICPM3_4B = {
    "architectures": ["MiniCPM3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
    "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 73448, "kv_lora_rank": 256, "q_lora_rank": 768,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
}  # fmt: skip


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


def test_no_graph_copies_the_cache(path: Path) -> None:
    options = dict(max_num_seqs=4, max_num_batched_tokens=16, block_size=4, max_model_len=64, warmup="lazy")
    driver = Driver(EngineConfig(model=str(path), use_tqdm_on_load=False, **options))
    runner = driver.engine.runner
    for key in (runner.graphs.plan.key(False, 16), runner.graphs.plan.key(True, 1)):
        temporaries = []
        for pages in (64, 4096):
            state = abstract_state(runner.model.config, StateShape(pages, 4, 4, 64), jnp.float32, runner.mesh)
            buffer = jax.ShapeDtypeStruct((key.size,), jnp.int32, sharding=replicated(runner.mesh))
            memory = lower(runner.model, key, runner.top, runner.params, state, buffer).compile().memory_analysis()
            temporaries.append(memory.temp_size_in_bytes)
        assert temporaries[1] <= temporaries[0] * 1.05
    driver.close()


@pytest.mark.parametrize("name", ["native", "triton"])
def test_kernels_that_need_values_are_refused(name: str) -> None:
    q, keys, table = jnp.zeros((2, 1, 4, 32)), jnp.zeros((3, 4, 32)), jnp.zeros((2, 2), jnp.int32)
    dispatch.choose({"paged_attention": name})
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
