"""An engine in its own process gives memory back and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.errors import VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.sampling_params import SamplingParams

CASE = "llama-gqa"
PAGES = 200_000


def test_sleep_and_wake(tmp_path: Path) -> None:
    golden = load_case(CASE)
    prompt, wanted = golden.prompts[0].tolist(), golden.greedy[0].tolist()
    greedy = SamplingParams(temperature=0, max_tokens=len(wanted), ignore_eos=True, detokenize=False)
    config = EngineConfig(
        model=str(checkpoint(CASE, tmp_path)), skip_tokenizer_init=True, max_num_seqs=2, max_num_batched_tokens=16,
        block_size=4, warmup="lazy", num_gpu_blocks_override=PAGES, use_tqdm_on_load=False,
    )  # fmt: skip
    hf = golden.config
    width = hf["num_key_value_heads"] * hf["hidden_size"] // hf["num_attention_heads"]
    cache = PAGES * 4 * 2 * 4 * hf["num_hidden_layers"] * width  # bytes: keys and values, float32

    async def ask(llm: AsyncLLM, id: str) -> list[int]:
        outputs = [output async for output in llm.generate({"prompt_token_ids": prompt}, greedy, id)]
        return outputs[-1].outputs[0].token_ids

    async def run() -> None:
        llm = AsyncLLM(config)
        await llm.start()
        try:
            child = psutil.Process(llm.process.pid)
            assert await ask(llm, "before") == wanted
            for level in (1, 2):
                awake = child.memory_info().rss
                open_request = asyncio.create_task(ask(llm, f"open {level}"))
                await asyncio.sleep(0)  # it is sent before the order to sleep, and runs or waits when that comes
                await llm.sleep(level)
                assert llm.stats().sleep_level == level
                assert child.memory_info().rss < awake - 0.8 * cache
                with pytest.raises(VjaxError, match="sleeps already"):
                    await llm.sleep(level)
                assert not open_request.done()
                with pytest.raises(VjaxError, match="tags must be of"):
                    await llm.wake_up(["dreams"])
                assert not await llm.wake_up(["weights"])
                assert await llm.wake_up(["kv_cache"])
                assert llm.stats().sleep_level == 0
                assert await open_request == wanted
                assert await ask(llm, f"after {level}") == wanted
            assert await llm.wake_up()
            with pytest.raises(VjaxError, match="level must be 1 or 2"):
                await llm.sleep(3)
            trace = tmp_path / "trace"
            await llm.start_profile(str(trace))
            await ask(llm, "traced")
            await llm.stop_profile()
            assert list(trace.rglob("*.xplane.pb"))
        finally:
            await llm.shutdown()

    asyncio.run(run())
