"""Correctness on a GPU, which the test suite does not touch: every golden in float32 through the engine, with the
kernels that a GPU takes, and the log-probabilities of a bfloat16 engine against the float32 ones by teacher forcing.

    make gpu-test                                         # all, several at a time; prints a table
    python3 scripts/gpu_test.py gemma3 qwen3-yarn         # these cases
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.goldens import BY_NAME, case_names

BAND = 0.25  # nats: how far a bfloat16 log-probability may be from the float32 one on these tiny models
CASE_SECONDS = 300


@dataclass
class Result:
    """One case: whether float32 greedy tokens are the golden's, whole and in chunks; how far bfloat16 is off."""

    name: str
    family: str
    exact: bool
    off: float
    problem: str = ""

    @property
    def good(self) -> bool:
        return self.exact and self.off < BAND and not self.problem

    def row(self) -> str:
        state = "equal" if self.exact else "DIFFER"
        return f"| {self.family} | {self.name} | {state} | {self.off:.3f} | {self.problem or 'ok'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of goldens; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, each in a process of its own")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process, one JSON line
    args = parser.parse_args()
    unknown = set(args.cases) - set(BY_NAME)
    if unknown:
        parser.error(f"no golden is called {sorted(unknown)[0]}")
    if args.one:
        print(json.dumps(asdict(run(args.cases[0]))))
        return 0
    print("| family | case | float32 greedy tokens | bfloat16 off, nats | |\n|---|---|---|---|---|")
    results = []
    for result in in_processes(args.cases or case_names(), args.jobs):
        results.append(result)
        print(result.row(), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    failed = [result.name for result in results if not result.good]
    print(f"{len(results) - len(failed)} of {len(results)} good" + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def in_processes(names: list[str], jobs: int) -> Iterator[Result]:
    """A process each: GPU memory is given back only when one ends, and a crash must not take the others along."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / jobs:.2f}"}

    def one(name: str) -> Result:
        command = [sys.executable, __file__, "--one", name]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CASE_SECONDS)
            return Result(**json.loads(done.stdout.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            problem = f"took more than {CASE_SECONDS} s"
        except (IndexError, ValueError):
            problem = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        return Result(name, BY_NAME[name].family, False, float("nan"), problem)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, names)


def run(name: str) -> Result:
    import jax

    if jax.default_backend() == "cpu":
        return Result(name, BY_NAME[name].family, False, float("nan"), "no GPU")
    with tempfile.TemporaryDirectory() as folder:
        return Result(name, BY_NAME[name].family, exact(name, Path(folder)), off(name, Path(folder)))


def driver(name: str, folder: Path, dtype: str):  # type: ignore[no-untyped-def]
    from tests.engine.driver import Driver
    from tests.goldens import checkpoint
    from vjax.config import EngineConfig

    config = EngineConfig(
        model=str(checkpoint(name, folder)), dtype=dtype, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64,
        warmup="lazy", use_tqdm_on_load=False, kv_cache_memory_bytes=1 << 26,
    )  # fmt: skip
    return Driver(config, few_graphs=True)


def exact(name: str, folder: Path) -> bool:
    """Greedy tokens equal the golden's, whole and in chunks."""
    from tests.goldens import load_case

    golden, engine, good = load_case(name), driver(name, folder, "float32"), True
    for chunk in (16, 3):
        engine.chunk(chunk)
        good &= engine.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
    engine.close()
    return good


def off(name: str, folder: Path) -> float:
    """The golden's own tokens scored in bfloat16: the largest difference of a log-probability."""
    import numpy as np

    from tests.goldens import load_case
    from vjax.sampling_params import SamplingParams

    golden, engine = load_case(name), driver(name, folder, "bfloat16")
    tokens = [int(t) for t in golden.tokens[0]]
    want = golden.logits[0] - np.log(np.exp(golden.logits[0].astype(np.float64)).sum(-1, keepdims=True))
    request = engine.add(tokens, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    rows = [row for output in engine.run()[request] for row in output.prompt_logprobs or []]
    engine.close()
    assert len(rows) == len(tokens) - 1
    return float(max(abs(row.logprob - want[i, tokens[i + 1]]) for i, row in enumerate(rows)))


if __name__ == "__main__":
    sys.exit(main())
