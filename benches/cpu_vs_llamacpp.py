"""One GGUF model on CPU, vjax beside llama.cpp (`pip install xllamacpp`), turn by turn in one process.

    python -m benches.cpu_vs_llamacpp MODEL.gguf [--threads 2] [--rounds 5]

Batch 1, greedy, prompts of random ids: decode after 128 tokens, prefill of 512. llama.cpp's figures are its own
timings, vjax's are wall time of `LLM.generate`, decode without the time of the first token. Prints one JSON object with
the medians and the ratios vjax / llama.cpp of each round's neighbours (their median).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

DECODE_PROMPT, NEW, PREFILL_PROMPT = 128, 128, 512


class LlamaCpp:
    def __init__(self, path: str, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_ctx, params.n_parallel, params.cache_ram_mib, params.n_gpu_layers = 2048, 1, 0, 0
        params.verbosity = -1
        self.server = xllamacpp.Server(params)

    def complete(self, prompt: list[int], new: int, **options: Any) -> dict[str, Any]:
        request = dict(prompt=prompt, n_predict=new, temperature=0.0, ignore_eos=True, stream=False, **options)
        found: list[Any] = []
        result = self.server.handle_completions(request, found.append)
        result = found[-1] if found else result
        return json.loads(result) if isinstance(result, str | bytes) else result

    def timings(self, prompt: list[int], new: int) -> dict[str, float]:
        return self.complete(prompt, new, cache_prompt=False)["timings"]

    def likeliest(self, prompt: list[int], count: int) -> dict[int, float]:
        """Log-probabilities of the likeliest next tokens, read token by token if the prompt before was a prefix."""
        answer = self.complete(prompt, 1, cache_prompt=True, n_probs=count)
        [position] = answer["choices"][0]["logprobs"]["content"]
        return {choice["id"]: choice["logprob"] for choice in position["top_logprobs"]}

    def decode(self, prompt: list[int]) -> float:
        return self.timings(prompt, NEW)["predicted_per_second"]

    def prefill(self, prompt: list[int]) -> float:
        return self.timings(prompt, 1)["prompt_per_second"]


class Vjax:
    def __init__(self, path: str) -> None:
        from vjax import LLM

        options = dict(max_num_seqs=1, max_model_len=1024, enable_prefix_caching=False, warmup="all")
        self.llm = LLM(path, **options, skip_tokenizer_init=True, use_tqdm_on_load=False)

    def seconds(self, prompt: list[int], new: int) -> float:
        from vjax import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        [output] = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == new
        return time.perf_counter() - started

    def decode(self, prompt: list[int]) -> float:
        first = self.seconds(prompt, 1)
        return (NEW - 1) / (self.seconds(prompt, NEW) - first)

    def prefill(self, prompt: list[int]) -> float:
        return len(prompt) / self.seconds(prompt, 1)


def measure(path: str, threads: int, rounds: int) -> dict[str, Any]:
    ours, theirs = Vjax(path), LlamaCpp(path, threads)
    rng = random.Random(0)
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds + 1):
        for name, length in (("decode", DECODE_PROMPT), ("prefill", PREFILL_PROMPT)):
            prompt = [rng.randrange(100, 20000) for _ in range(length)]
            for engine, side in (("vjax", ours), ("llama.cpp", theirs)):
                value = getattr(side, name)(prompt)
                if turn:  # the first round warms up
                    figures.setdefault(name, {}).setdefault(engine, []).append(value)
    result: dict[str, Any] = {
        "model": Path(path).name,
        "threads": threads,
        "rounds": rounds,
        "load": os.getloadavg()[0],
    }
    for name, by_engine in figures.items():
        result[name] = {f"{engine} tok/s": round(statistics.median(v), 1) for engine, v in by_engine.items()}
        ratios = [a / b for a, b in zip(by_engine["vjax"], by_engine["llama.cpp"], strict=True)]
        result[name]["ratio"] = round(statistics.median(ratios), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=".gguf file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of llama.cpp; vjax takes all cores")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(measure(args.model, args.threads, args.rounds), indent=1))


if __name__ == "__main__":
    main()
