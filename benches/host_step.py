"""Host time of an engine step without a device: plan, fill the buffer, take in the tokens. Prints microseconds.

python -m benches.host_step --rows 64
"""

from __future__ import annotations

import argparse
import statistics
import time

from vjax.engine.batch import SlotTable, fill
from vjax.engine.layout import Layout
from vjax.engine.messages import EngineRequest
from vjax.engine.scheduler import Scheduler
from vjax.sampling_params import SamplingParams


def measure(rows: int = 64, steps: int = 400, prompt: int = 100) -> list[float]:
    """Seconds of each decode step at `rows` running requests."""
    scheduler = Scheduler(
        num_pages=rows * 64, page_size=16, num_slots=rows, max_num_batched_tokens=max(4096, rows), max_model_len=1024
    )
    table, layout = SlotTable(rows, 1024), Layout(rows, rows, True, 16 * rows)
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=steps + 10, ignore_eos=True)
    for i in range(rows):
        ids = [(i * 7919 + j) % 30000 for j in range(prompt)]
        scheduler.add(EngineRequest(request_id=f"r{i}", prompt_token_ids=ids, params=params))
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        plan = scheduler.plan()
        assert plan is not None
        for request in plan.admitted:
            table.admit(request)
        if plan.decode_only:
            fill(plan, layout, table)
        scheduler.update(plan, [5] * len(plan.rows))
        if plan.decode_only and len(plan.rows) == rows:
            times.append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    args = parser.parse_args()
    times = sorted(seconds * 1e6 for seconds in measure(args.rows))
    print(
        f"RESULT host step at {args.rows} rows: median {statistics.median(times):.0f} us, "
        f"90th percentile {times[int(len(times) * 0.9)]:.0f} us, worst {times[-1]:.0f} us over {len(times)} steps"
    )


if __name__ == "__main__":
    main()
