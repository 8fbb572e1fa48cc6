"""Prometheus metrics under vLLM's names, so that its dashboards work."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from vjax.engine.messages import EngineStats
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import RequestMetrics, RequestOutput

# fmt: off
FIRST = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
BETWEEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
# fmt: on
LABELS = ("model_name", "engine")


def one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `limit`."""
    buckets: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > limit:
                return buckets
            buckets.append(step * scale)
        scale *= 10


class Metrics:
    """All metrics of one server. Times are seconds, sizes are tokens."""

    def __init__(self, model_name: str, max_model_len: int, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self.labels = (model_name, "0")
        self.registry.register(_EngineCollector(stats, self.labels))
        sizes = one_two_five(max_model_len)
        self.first = self._histogram("time_to_first_token_seconds", "Arrival to first token", FIRST)
        self.between = self._histogram("inter_token_latency_seconds", "Between tokens of a request", BETWEEN)
        self.per_token = self._histogram("request_time_per_output_token_seconds", "Mean of that by request", BETWEEN)
        self.whole = self._histogram("e2e_request_latency_seconds", "Arrival to end", WHOLE)
        self.queue = self._histogram("request_queue_time_seconds", "Arrival to first step", WHOLE)
        self.inference = self._histogram("request_inference_time_seconds", "First step to end", WHOLE)
        self.prefill = self._histogram("request_prefill_time_seconds", "First step to first token", WHOLE)
        self.decode = self._histogram("request_decode_time_seconds", "First token to end", WHOLE)
        self.prompt = self._histogram("request_prompt_tokens", "Prompt tokens by request", sizes)
        self.generated = self._histogram("request_generation_tokens", "Generated tokens by request", sizes)
        self.asked = self._histogram("request_params_max_tokens", "max_tokens by request", sizes)
        self.n = self._histogram("request_params_n", "n by request", (1, 2, 5, 10, 20))
        reasons = (*LABELS, "finished_reason")
        self.success = Counter("vllm:request_success", "Requests that ended", reasons, registry=self.registry)
        self.http = Counter(
            "http_requests", "HTTP requests", ("method", "status", "handler"), registry=self.registry
        )  # fmt: skip

    def expose(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    async def watch(
        self, prepared: PreparedRequest, outputs: AsyncIterator[RequestOutput]
    ) -> AsyncIterator[RequestOutput]:
        """Passes a request's outputs through and records them."""
        self.n.observe(prepared.params.n)
        self.asked.observe(prepared.params.max_tokens or 0)
        previous: float | None = None
        counts: dict[int, int] = {}
        finished = False
        delta = prepared.params.output_kind == "delta"
        try:
            async for output in outputs:
                now = time.monotonic()
                new = 0
                for choice in output.outputs:
                    before = counts.get(choice.index, 0)
                    counts[choice.index] = len(choice.token_ids) + (before if delta else 0)
                    new += counts[choice.index] - before
                if new and delta:
                    if previous is not None:
                        self.between.observe((now - previous) / max(new / prepared.params.n, 1))
                    previous = now
                finished = output.finished
                if finished:
                    self._finish(prepared, output, sum(counts.values()))
                yield output
        finally:
            if not finished:
                self.success.labels(*self.labels, "abort").inc()

    def _finish(self, prepared: PreparedRequest, output: RequestOutput, generated: int) -> None:
        for choice in output.outputs:
            self.success.labels(*self.labels, choice.finish_reason or "stop").inc()
        self.prompt.observe(len(prepared.prompt_token_ids))
        self.generated.observe(generated)
        self._times(output.metrics, prepared.arrival_time, generated)

    def _times(self, times: RequestMetrics, arrival: float, generated: int) -> None:
        end = times.finished_time or time.monotonic()
        self.whole.observe(end - arrival)
        if times.scheduled_time is not None:
            self.queue.observe(max(times.scheduled_time - arrival, 0))
            self.inference.observe(end - times.scheduled_time)
        if times.first_token_time is not None:
            self.first.observe(times.first_token_time - arrival)
            self.decode.observe(end - times.first_token_time)
            if generated > 1:
                self.per_token.observe((end - times.first_token_time) / (generated - 1))
            if times.scheduled_time is not None:
                self.prefill.observe(max(times.first_token_time - times.scheduled_time, 0))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] | list[int]) -> Histogram:
        metric = Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=self.registry)
        return metric.labels(*self.labels)


class _EngineCollector(Collector):
    """The engine's own gauges and counters, read when scraped."""

    GAUGES: ClassVar = {
        "num_requests_running": ("Requests in the running batch", "running"),
        "num_requests_waiting": ("Requests that wait", "waiting"),
        "kv_cache_usage_perc": ("Share of cache pages in use, 0 to 1", "cache_usage"),
    }
    COUNTERS: ClassVar = {
        "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", "prefix_queries"),
        "prefix_cache_hits": ("Prompt tokens found there", "prefix_hits"),
        "num_preemptions": ("Requests that had to give up their pages", "preemptions"),
        "prompt_tokens": ("Prompt tokens", "prompt_tokens"),
        "generation_tokens": ("Generated tokens", "generation_tokens"),
    }

    def __init__(self, stats: Callable[[], EngineStats], labels: tuple[str, str]) -> None:
        self.stats, self.labels = stats, labels

    def collect(self) -> Iterator[Metric]:
        stats = self.stats()
        for name, (text, field) in self.GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
            gauge.add_metric(self.labels, getattr(stats, field))
            yield gauge
        for name, (text, field) in self.COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            counter.add_metric(self.labels, getattr(stats, field))
            yield counter
