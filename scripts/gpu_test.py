"""Correctness on a GPU, which the test suite does not touch: every golden in float32 through the engine, with the
kernels that a GPU takes, and the log-probabilities of a bfloat16 engine against the float32 ones by teacher forcing.
Models that encode: their vectors and scores instead, in both types.

    make gpu-test                                         # all, several at a time; prints a table
    python3 scripts/gpu_test.py gemma3 qwen3-yarn         # these cases
    python3 scripts/gpu_test.py --kernels '{"latent_attention": "triton"}' deepseek-v3    # a kernel not yet proven
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.goldens import BY_NAME
from tests.goldens.cases import ENCODERS

# How far bfloat16 log-probabilities (nats) and values may be from float32 ones on these tiny models: the largest
# difference, and half of all. Rounding can turn a choice among experts or tokens, and with a dozen of them to choose
# from the result is then another one: only the second figure holds such models.
BAND, MEDIAN_BAND = 0.25, 0.08
CHOICES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "index_topk")
CASE_SECONDS = 300


@dataclass
class Result:
    """One case: whether float32 greedy tokens are the golden's, whole and in chunks; how far bfloat16 is off, at most
    and in the median."""

    name: str
    family: str
    exact: bool
    off: float
    median: float
    problem: str = ""

    @property
    def good(self) -> bool:
        return self.exact and (self.off < BAND or self.chooses) and self.median < MEDIAN_BAND and not self.problem

    @property
    def chooses(self) -> bool:
        return any(BY_NAME[self.name].config.get(key) for key in CHOICES)

    def row(self) -> str:
        state, note = "equal" if self.exact else "DIFFER", self.problem or ("ok" if self.good else "OUTSIDE THE BAND")
        return f"| {self.family} | {self.name} | {state} | {self.off:.3f} | {self.median:.3f} | {note} |"


def failed(name: str, problem: str) -> Result:
    return Result(name, BY_NAME[name].family, False, float("nan"), float("nan"), problem)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of goldens; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, each in a process of its own")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--kernels", type=json.loads, default={}, help="JSON: an implementation for each operation")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process, one JSON line
    args = parser.parse_args()
    unknown = set(args.cases) - set(BY_NAME)
    if unknown:
        parser.error(f"no golden is called {sorted(unknown)[0]}")
    if args.one:
        print(json.dumps(asdict(run(args.cases[0], args.kernels))))
        return 0
    print("| family | case | float32 | bfloat16 off at most | in the median | |\n|---|---|---|---|---|---|")
    results = []
    for result in in_processes(args.cases or list(BY_NAME), args.jobs, args.kernels):
        results.append(result)
        print(result.row(), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    bad = [result.name for result in results if not result.good]
    print(f"{len(results) - len(bad)} of {len(results)} good" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


def in_processes(names: list[str], jobs: int, kernels: dict[str, str]) -> Iterator[Result]:
    """A process each: GPU memory is given back only when one ends, and a crash must not take the others along."""
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / jobs:.2f}",
        "JAX_TRACEBACK_FILTERING": "off",
    }

    def one(name: str) -> Result:
        command = [sys.executable, __file__, "--one", name, "--kernels", json.dumps(kernels)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CASE_SECONDS)
            return Result(**json.loads(done.stdout.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            problem = f"took more than {CASE_SECONDS} s"
        except (IndexError, ValueError):
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
            errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            problem = (errors or lines)[-1][:300]
        return failed(name, problem)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, names)


def run(name: str, kernels: dict[str, str]) -> Result:
    import jax
    import numpy as np

    if jax.default_backend() == "cpu":
        return failed(name, "no GPU")
    jax.config.update("jax_default_matmul_precision", "highest")  # of float32; bfloat16 has but one
    with tempfile.TemporaryDirectory() as folder:
        if name in {case.name for case in ENCODERS}:
            exact, off = encodes(name, Path(folder))
        else:
            exact, off = generates(name, Path(folder), kernels), scores(name, Path(folder), kernels)
    return Result(name, BY_NAME[name].family, exact, float(np.max(off)), float(np.median(off)))


def driver(name: str, folder: Path, dtype: str, kernels: dict[str, str]):  # type: ignore[no-untyped-def]
    from tests.engine.driver import Driver
    from tests.goldens import checkpoint
    from vjax.config import EngineConfig

    config = EngineConfig(
        model=str(checkpoint(name, folder)), dtype=dtype, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64,
        warmup="lazy", use_tqdm_on_load=False, kv_cache_memory_bytes=1 << 26, kernels=kernels,
    )  # fmt: skip
    return Driver(config, few_graphs=True)


def generates(name: str, folder: Path, kernels: dict[str, str]) -> bool:
    """Float32 greedy tokens equal the golden's, whole and in chunks."""
    from tests.goldens import load_case

    golden, engine, good = load_case(name), driver(name, folder, "float32", kernels), True
    for chunk in (16, 3):
        engine.chunk(chunk)
        good &= engine.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
    engine.close()
    return good


def scores(name: str, folder: Path, kernels: dict[str, str]):  # type: ignore[no-untyped-def]
    """The golden's own tokens scored in bfloat16: how far each log-probability is off."""
    import numpy as np

    from tests.goldens import load_case
    from vjax.sampling_params import SamplingParams

    golden, engine = load_case(name), driver(name, folder, "bfloat16", kernels)
    tokens = [int(t) for t in golden.tokens[0]]
    want = golden.logits[0] - np.log(np.exp(golden.logits[0].astype(np.float64)).sum(-1, keepdims=True))
    request = engine.add(tokens, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    rows = [row for output in engine.run()[request] for row in output.prompt_logprobs or []]
    engine.close()
    assert len(rows) == len(tokens) - 1
    return np.array([abs(row.logprob - want[i, tokens[i + 1]]) for i, row in enumerate(rows)])


def encodes(name: str, folder: Path):  # type: ignore[no-untyped-def]
    """Whether float32 values equal the golden's, and how far bfloat16 ones are off."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import vjax
    from tests.goldens import load_encoder_case

    golden, off = load_encoder_case(name), []
    path = golden.checkpoint(folder / name)
    tokens = np.stack([np.pad(text, (0, 30 - len(text))) for text in golden.texts])
    lengths = [len(text) for text in golden.texts]
    for dtype in ("float32", "bfloat16"):
        model, params = vjax.load(path, dtype=dtype, use_tqdm_on_load=False)
        task = "classify" if model.labels else "token_embed"
        encode = jax.jit(model.encode, static_argnums=3)
        values = np.asarray(encode(params, jnp.asarray(tokens), jnp.asarray(lengths), task), np.float32)
        rows = [value if model.labels else value[:n] for value, n in zip(values, lengths, strict=True)]
        off.append(np.concatenate([np.abs(a - b).ravel() for a, b in zip(rows, golden.values, strict=True)]))
    return bool(np.max(off[0]) < 1e-3), off[1]


if __name__ == "__main__":
    sys.exit(main())
