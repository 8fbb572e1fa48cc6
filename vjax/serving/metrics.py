"""Prometheus metrics under vLLM's names, so that its dashboards work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vjax.engine.messages import STEP_SIZES, EngineLimits, EngineStats
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import RequestOutput

LABELS = ["model_name", "engine"]
# fmt: off
FIRST_TOKEN = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
NEXT_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
# fmt: on
N = (1, 2, 5, 10, 20)
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level
SOURCES = ("local_compute", "local_cache_hit")
REASONS = ("stop", "length", "repetition", "abort", "error")

# Name, help, field of EngineStats.
GAUGES = (
    ("vllm:num_requests_running", "Requests in the running batch.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait to run.", "waiting"),
    ("vllm:kv_cache_usage_perc", "Share of the cache's pages in use, 0 to 1.", "cache_usage"),
)
COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests preempted.", "preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens processed, cached ones included.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
)
TIMES = {
    "vllm:time_to_first_token_seconds": ("From arrival to the first token.", FIRST_TOKEN),
    "vllm:inter_token_latency_seconds": ("Between two tokens of a request.", NEXT_TOKEN),
    "vllm:request_time_per_output_token_seconds": ("Mean of a request after its first token.", NEXT_TOKEN),
    "vllm:e2e_request_latency_seconds": ("From arrival to the last token.", LATENCY),
    "vllm:request_queue_time_seconds": ("From arrival until scheduled.", LATENCY),
    "vllm:request_inference_time_seconds": ("From scheduled to the last token.", LATENCY),
    "vllm:request_prefill_time_seconds": ("From scheduled to the first token.", LATENCY),
    "vllm:request_decode_time_seconds": ("From the first to the last token.", LATENCY),
}
SIZES = {
    "vllm:request_prompt_tokens": "Prompt tokens of a request.",
    "vllm:request_generation_tokens": "Tokens generated for a continuation.",
    "vllm:request_max_num_generation_tokens": "Tokens of a request's longest continuation.",
    "vllm:request_params_max_tokens": "max_tokens of a request.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens of a request that no cache had.",
}


class Metrics:
    """A registry of its own: two servers in one process do not mix."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self.registry.register(_Engine(stats, self._labels))
        self._times = {name: self._histogram(name, *about) for name, about in TIMES.items()}
        self._success = Counter(
            "vllm:request_success", "Finished continuations.", [*LABELS, "finished_reason"], registry=self.registry
        )
        for reason in REASONS:  # so that rates start at zero
            self._success.labels(*self._labels, reason)
        self._cached = Counter(
            "vllm:prompt_tokens_cached", "Prompt tokens that a cache had.", LABELS, registry=self.registry
        ).labels(*self._labels)
        self._sources = Counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens.", [*LABELS, "source"], registry=self.registry
        )
        for source in SOURCES:
            self._sources.labels(*self._labels, source)
        self._rejections = Counter(
            "vllm:admission_rejections", "Requests refused with a 503.", [*LABELS, "reason"], registry=self.registry
        )
        self._rejections.labels(*self._labels, "max_num_queued_reqs")
        self.http = Counter("http_requests", "HTTP requests.", ["method", "status", "handler"], registry=self.registry)
        self._n = self._histogram("vllm:request_params_n", "n of a request.", N)
        self._sizes: dict[str, Histogram] = {}

    def open(self, limits: EngineLimits) -> None:
        """Add what depends on the engine's limits."""
        buckets = _one_two_five(limits.max_model_len)
        self._sizes = {name: self._histogram(name, text, buckets) for name, text in SIZES.items()}
        info = {
            "block_size": limits.block_size,
            "num_gpu_blocks": limits.num_pages,
            "max_model_len": limits.max_model_len,
        }
        gauge = Gauge("vllm:cache_config_info", "The cache's shape.", ["engine", *info], registry=self.registry)
        gauge.labels("0", *map(str, info.values())).set(1)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def watch(self, prepared: PreparedRequest) -> RequestWatch:
        self._n.observe(prepared.params.n)
        self.size("vllm:request_params_max_tokens", prepared.params.max_tokens or 0)
        return RequestWatch(self, prepared)

    def time(self, name: str, seconds: float) -> None:
        self._times[name].observe(max(seconds, 0.0))

    def size(self, name: str, tokens: int) -> None:
        if name in self._sizes:
            self._sizes[name].observe(tokens)

    def finished(self, reason: str) -> None:
        self._success.labels(*self._labels, reason).inc()

    def prompt(self, tokens: int, cached: int) -> None:
        """A prompt that was read, of which a cache had some tokens."""
        self._cached.inc(cached)
        for source, count in zip(SOURCES, (tokens - cached, cached), strict=True):
            self._sources.labels(*self._labels, source).inc(count)
        self.size("vllm:request_prefill_kv_computed_tokens", tokens - cached)

    def rejected(self, reason: str) -> None:
        self._rejections.labels(*self._labels, reason).inc()

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        # A label makes a child; the child is what callers observe.
        histogram = Histogram(name, text, LABELS, buckets=tuple(buckets), registry=self.registry)
        return histogram.labels(*self._labels)


class RequestWatch:
    """Follows one request and reports it when it ends, however it ends."""

    def __init__(self, metrics: Metrics, prepared: PreparedRequest) -> None:
        self._metrics, self._prepared = metrics, prepared
        self._delta = prepared.params.output_kind == "delta"
        self._counts = [0] * prepared.params.n
        self._last: list[float | None] = [None] * prepared.params.n
        self._open = set(range(prepared.params.n))
        self._output: RequestOutput | None = None

    def update(self, output: RequestOutput) -> None:
        now = time.monotonic()
        if self._output is None and output.metrics.first_token_time is not None:
            first = output.metrics.first_token_time
            self._metrics.time("vllm:time_to_first_token_seconds", first - self._prepared.arrival_time)
        self._output = output
        for one in output.outputs:
            new = len(one.token_ids) if self._delta else len(one.token_ids) - self._counts[one.index]
            self._counts[one.index] += new
            self._gaps(one.index, new, now)
            if one.finish_reason is not None:
                self._open.discard(one.index)
                self._metrics.finished(one.finish_reason)

    def _gaps(self, index: int, new: int, now: float) -> None:
        """Tokens that came together share the time since the last ones."""
        last = self._last[index]
        if last is not None:
            for _ in range(new):
                self._metrics.time("vllm:inter_token_latency_seconds", (now - last) / new)
        if new:
            self._last[index] = now

    def close(self) -> None:
        """Also for a request that was left: its open continuations count as aborted."""
        for _ in self._open:
            self._metrics.finished("abort")
        metrics, output = self._metrics, self._output
        metrics.size("vllm:request_prompt_tokens", len(self._prepared.prompt_token_ids))
        for count in self._counts:
            metrics.size("vllm:request_generation_tokens", count)
        if output is None or self._open:
            return
        tokens = len(self._prepared.prompt_token_ids)
        metrics.prompt(tokens, min(output.num_cached_tokens, tokens))
        metrics.size("vllm:request_max_num_generation_tokens", max(self._counts))
        times = output.metrics
        arrival, end = self._prepared.arrival_time, times.finished_time or time.monotonic()
        metrics.time("vllm:e2e_request_latency_seconds", end - arrival)
        if times.scheduled_time is None or times.first_token_time is None:
            return
        decode = end - times.first_token_time
        metrics.time("vllm:request_queue_time_seconds", times.scheduled_time - arrival)
        metrics.time("vllm:request_prefill_time_seconds", times.first_token_time - times.scheduled_time)
        metrics.time("vllm:request_decode_time_seconds", decode)
        metrics.time("vllm:request_inference_time_seconds", end - times.scheduled_time)
        gaps = max(self._counts) - 1
        if gaps > 0:
            metrics.time("vllm:request_time_per_output_token_seconds", decode / gaps)
            if not self._delta:  # its tokens came in one piece: each gets the mean
                for _ in range(gaps):
                    metrics.time("vllm:inter_token_latency_seconds", decode / gaps)


class _Engine(Collector):
    """Reads the engine's own numbers at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats], labels: tuple[str, str]) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, field in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(self._labels, getattr(stats, field))
            yield gauge
        for name, text, field in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, getattr(stats, field))
            yield counter
        sleep = GaugeMetricFamily(
            "vllm:engine_sleep_state", "1 for the state that holds.", labels=[*LABELS, "sleep_state"]
        )
        for level, state in enumerate(SLEEP_STATES):
            sleep.add_metric([*self._labels, state], float(stats.sleep_level == level))
        yield sleep
        yield self._steps(stats)

    def _steps(self, stats: EngineStats) -> HistogramMetricFamily:
        seen, buckets = 0, []
        for place, count in enumerate(stats.step_sizes or [0] * (len(STEP_SIZES) + 1)):
            seen += count
            buckets.append((str(float(STEP_SIZES[place])) if place < len(STEP_SIZES) else "+Inf", seen))
        steps = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens of a step.", labels=LABELS)
        steps.add_metric(self._labels, buckets, stats.step_tokens)
        return steps


def _one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    values: list[float] = []
    unit = 1
    while True:
        for step in (1, 2, 5):
            if step * unit > most:
                return values or [1]
            values.append(step * unit)
        unit *= 10
