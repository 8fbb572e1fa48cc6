"""Correctness on a GPU, which the test suite does not touch: one golden of every family in float32 through the engine,
with the kernels that a GPU takes, and the logits of a bfloat16 engine against the float32 ones by teacher forcing.

    make gpu-test
    python3 scripts/gpu_test.py gemma3 qwen3-yarn        # these cases
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.engine.driver import Driver
from tests.goldens import case_names, checkpoint, load_case
from vjax.config import EngineConfig
from vjax.pallas_kernels import dispatch
from vjax.sampling_params import SamplingParams

BAND = 0.25  # nats: how far a bfloat16 logprob may be from the float32 one on these tiny models


def main() -> int:
    if jax.default_backend() == "cpu":
        print("no GPU: nothing to test here", file=sys.stderr)
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or {load_case(name).case.family: name for name in case_names()}.values():
            failed += not exact(name, Path(folder))
            failed += not near(name, Path(folder))
    print("kernels:", dispatch.chosen())
    return 1 if failed else 0


def options(name: str, folder: Path, dtype: str) -> EngineConfig:
    return EngineConfig(
        model=str(checkpoint(name, folder)), dtype=dtype, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64,
        warmup="lazy", use_tqdm_on_load=False, kv_cache_memory_bytes=1 << 26,
    )  # fmt: skip


def exact(name: str, folder: Path) -> bool:
    """Greedy tokens equal the golden's, whole and in chunks."""
    golden = load_case(name)
    driver = Driver(options(name, folder, "float32"), few_graphs=True)
    good = True
    for chunk in (16, 3):
        driver.chunk(chunk)
        good &= driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
    driver.close()
    print(f"{name}: float32 greedy tokens {'equal' if good else 'DIFFER'}")
    return good


def near(name: str, folder: Path) -> bool:
    """The golden's own tokens scored in bfloat16."""
    golden = load_case(name)
    tokens = [int(t) for t in golden.tokens[0]]
    want = golden.logits[0] - np.log(np.exp(golden.logits[0].astype(np.float64)).sum(-1, keepdims=True))
    driver = Driver(options(name, folder, "bfloat16"), few_graphs=True)
    request = driver.add(tokens, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    rows = [row for output in driver.run()[request] for row in output.prompt_logprobs or []]
    driver.close()
    off = max(abs(row.logprob - want[i, tokens[i + 1]]) for i, row in enumerate(rows))
    print(f"{name}: bfloat16 logprobs within {off:.3f}")
    return len(rows) == len(tokens) - 1 and off < BAND


if __name__ == "__main__":
    sys.exit(main())
