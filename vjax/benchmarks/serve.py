"""`vjax bench serve`: load on a running server over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vjax.benchmarks import workload
from vjax.cli_args import parse_json
from vjax.errors import ModelError, VjaxError

if TYPE_CHECKING:
    import httpx

    from vjax.benchmarks.client import Timing

ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
METRICS = ("ttft", "tpot", "itl", "e2el")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", metavar="URL", help="(http://127.0.0.1:8000)")
    parser.add_argument("--backend", choices=ENDPOINTS, default="openai", help="completions or chat (openai)")
    parser.add_argument("--endpoint", default=None, metavar="PATH", help="the backend's own by default")
    parser.add_argument("--model", default=None, metavar="NAME", help="the server's first by default")
    parser.add_argument("--api-key", default=None, metavar="KEY", help="or $VJAX_API_KEY")
    workload.add_arguments(parser, file=True)
    parser.add_argument("--vocab-size", type=int, default=1000, metavar="N", help="random ids are below it (1000)")
    parser.add_argument("--request-rate", type=float, default=float("inf"), metavar="X",
                        help="requests a second on average; all at once by default")  # fmt: skip
    parser.add_argument("--burstiness", type=float, default=1.0, metavar="X",
                        help="1: Poisson; less: in bursts; more: evenly (1)")  # fmt: skip
    parser.add_argument("--max-concurrency", type=int, default=None, metavar="N", help="most requests at once")
    parser.add_argument("--num-warmups", type=int, default=1, metavar="N", help="requests before, not counted (1)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="X", help="seconds a request may take (600)")
    parser.add_argument("--no-ignore-eos", dest="ignore_eos", action="store_false",
                        help="answers may end before their length")  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="(0)")
    parser.add_argument("--extra-body", type=parse_json, default={}, metavar="JSON", help="more fields of each request")
    parser.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="NAMES",
                        help="which to print (ttft,tpot,itl,e2el)")  # fmt: skip
    parser.add_argument("--metric-percentiles", default="50,90,99", metavar="P", help="(50,90,99)")
    parser.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS",
                        help="also count requests within all of these, as ttft:500 tpot:50")  # fmt: skip
    parser.add_argument("--json", "--result-filename", dest="json", type=Path, default=None, metavar="FILE",
                        help="also write the report, with what was asked")  # fmt: skip
    parser.add_argument("--save-detailed", action="store_true", help="each request's times in that file too")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """1 when no request succeeded."""
    try:
        from vjax.benchmarks import summary
    except ImportError:
        raise VjaxError('`vjax bench serve` needs httpx: pip install "vjax[client]"') from None
    percentiles, goals = summary.parse_percentiles(args.metric_percentiles), summary.parse_goodput(args.goodput)
    shown = args.percentile_metrics.split(",")
    if unknown := [name for name in shown if name not in METRICS]:
        raise ModelError(f"--percentile-metrics: {unknown[0]!r} is not one of {', '.join(METRICS)}.")
    workload.check(args)
    if args.vocab_size < 1:
        raise ModelError(f"--vocab-size must be positive, got {args.vocab_size}.")
    if not args.request_rate > 0 or not args.burstiness > 0:
        raise ModelError("--request-rate and --burstiness must be positive.")
    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise ModelError("--max-concurrency must be positive.")
    if not args.timeout > 0:
        raise ModelError(f"--timeout must be positive, got {args.timeout}.")
    if args.json and not args.json.parent.is_dir():
        raise ModelError(f"--json: {args.json.parent} is not a folder.")
    timings, seconds, model = asyncio.run(_load(args))
    found = summary.report(timings, seconds, percentiles, goals)
    print("\n".join(summary.lines(found, shown)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(_saved(args, model, found, timings), indent=1))
    return 0 if found["completed"] else 1


async def _load(args: argparse.Namespace) -> tuple[list[Timing], float, str]:
    import httpx
    from tqdm import tqdm

    from vjax.benchmarks.client import CHAT, body_of, stream

    try:
        httpx.URL(args.base_url)
    except httpx.InvalidURL as error:
        raise ModelError(f"--base-url: {args.base_url} is no URL ({error}).") from None
    endpoint = args.endpoint or ENDPOINTS[args.backend]
    key = args.api_key or os.environ.get("VJAX_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=args.base_url, headers=headers, timeout=args.timeout, limits=limits, trust_env=False
    ) as http:
        model, longest = await _model(http, args.model)
        chat = endpoint.endswith(CHAT)
        asks = workload.make(args, args.vocab_size, longest, text=chat)
        extra = {"temperature": args.temperature, "ignore_eos": args.ignore_eos, **args.extra_body}
        bodies = [body_of(ask, model, chat, extra) for ask in asks]
        for at in range(args.num_warmups):
            warm = await stream(http, endpoint, bodies[at % len(bodies)], asks[at % len(asks)])
            if warm.error is not None:
                raise VjaxError(f"{args.base_url}{endpoint}: the first request failed: {warm.error}")
        door = asyncio.Semaphore(args.max_concurrency or len(asks))
        with tqdm(total=len(asks), unit="req", disable=args.no_progress, file=sys.stderr, dynamic_ncols=True) as bar:

            async def one(at: int) -> Timing:
                async with door:
                    timing = await stream(http, endpoint, bodies[at], asks[at])
                bar.update()
                return timing

            started = time.perf_counter()
            tasks = []
            for at, moment in enumerate(arrivals(len(asks), args.request_rate, args.burstiness, args.seed)):
                delay = started + moment - time.perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                tasks.append(asyncio.create_task(one(at)))
            timings = list(await asyncio.gather(*tasks))
            return timings, time.perf_counter() - started, model


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are sent: gaps of a gamma distribution with mean 1 / rate."""
    if rate == float("inf"):
        return [0.0] * count
    draw = random.Random(seed + 1)
    moments, now = [], 0.0
    for _ in range(count):
        moments.append(now)
        now += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return moments


async def _model(http: httpx.AsyncClient, name: str | None) -> tuple[str, int | None]:
    """The model's name and its context, where the server says."""
    import httpx

    try:
        response = await http.get("/v1/models")
        response.raise_for_status()
        cards: dict[str, int | None] = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VjaxError(f"--base-url: {http.base_url} does not answer /v1/models ({error}).") from None
    name = next(iter(cards), "") if name is None else name
    if name not in cards:
        raise ModelError(f"--model: {name!r} is not served; there are {', '.join(cards)}.")
    return name, cards[name]


def _saved(args: argparse.Namespace, model: str, found: dict[str, Any], timings: list[Timing]) -> dict[str, Any]:
    asked = {name: getattr(args, name) for name in (
        "base_url", "backend", "dataset_name", "num_prompts", "input_len", "output_len", "random_range_ratio",
        "random_prefix_len", "seed", "burstiness", "max_concurrency", "temperature", "ignore_eos", "extra_body",
    )}  # fmt: skip
    rate = "inf" if args.request_rate == float("inf") else args.request_rate
    saved = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "model": model, "request_rate": rate, **asked, **found}
    if args.save_detailed:
        saved["requests"] = [
            {
                "start": t.started - timings[0].started, "ttft": t.first, "e2el": t.total, "itl": t.gaps,
                "input_tokens": t.prompt_tokens, "output_tokens": t.output_tokens, "error": t.error,
            }
            for t in timings
        ]  # fmt: skip
    return saved
