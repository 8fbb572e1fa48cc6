"""Grammar engines side by side: how much of JSON Schema they know, and what compiling and masks cost.

    python -m benches.grammars llguidance TOKENIZER SUITE       or: xgrammar

TOKENIZER: a folder with tokenizer.json. SUITE: a folder of JSON-Schema-Test-Suite's files, such as
`json/tests/draft2020-12` in jsonschema's source distribution. Every schema is compiled; where that works, each of its
instances is walked token by token, as a model would write it, with a mask before each token. A schema that is refused
costs a caller the answer; one that takes an invalid instance gives a wrong one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vjax.tokenizing.load import load_tokenizer
from vjax.tokenizing.tokenizer import Tokenizer

Walk = Callable[[list[int]], tuple[bool, list[float]]]  # token ids -> taken to the end, seconds of each mask


class Llguidance:
    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        from vjax.engine.grammar import Compiler
        from vjax.frontend.grammars import vocabulary_of

        self.tokenizer = Compiler(vocabulary_of(tokenizer, vocab_size, list(tokenizer.eos_token_ids))).tokenizer
        self.mask = np.zeros((1, -(-vocab_size // 32)), np.int32)

    def compile(self, schema: Any) -> Walk:
        import llguidance
        from llguidance.numpy import fill_next_token_bitmask

        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())

        def walk(ids: list[int]) -> tuple[bool, list[float]]:
            own, times = matcher.deep_copy(), []
            for token in ids:
                start = time.perf_counter()
                fill_next_token_bitmask(own, self.mask)
                times.append(time.perf_counter() - start)
                if not own.try_consume_tokens([token]):
                    return False, times
            return own.is_accepting(), times

        return walk


class Xgrammar:
    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        import xgrammar

        pieces = [tokenizer.token_text(id) for id in range(tokenizer.vocab_size)]
        info = xgrammar.TokenizerInfo(
            pieces, xgrammar.VocabType.BYTE_LEVEL, vocab_size=vocab_size, stop_token_ids=list(tokenizer.eos_token_ids)
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, vocab_size)

    def compile(self, schema: Any) -> Walk:
        import xgrammar

        compiled = self.compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

        def walk(ids: list[int]) -> tuple[bool, list[float]]:
            matcher, times = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True), []
            for token in ids:
                if matcher.is_terminated():
                    return False, times
                start = time.perf_counter()
                matcher.fill_next_token_bitmask(self.mask)
                times.append(time.perf_counter() - start)
                if not matcher.accept_token(token):
                    return False, times
            return matcher.is_terminated() or matcher.is_completed(), times

        return walk


def main(engine: str, tokenizer_folder: str, suite: str) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    start = time.perf_counter()
    tested: Any = {"llguidance": Llguidance, "xgrammar": Xgrammar}[engine](tokenizer, tokenizer.vocab_size)
    print(f"{engine}: vocabulary of {tokenizer.vocab_size} prepared in {time.perf_counter() - start:.2f} s")
    schemas = refused = 0
    counts = {(valid, taken): 0 for valid in (True, False) for taken in (True, False)}
    compiling: list[float] = []
    masks: list[float] = []
    for path in sorted(Path(suite).glob("*.json")):
        for case in json.loads(path.read_text()):
            schemas += 1
            start = time.perf_counter()
            try:
                walk = tested.compile(case["schema"])
            except Exception:
                refused += 1
                continue
            compiling.append(time.perf_counter() - start)
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                taken, times = walk(tokenizer.encode(text, add_special_tokens=False))
                masks += times
                counts[test["valid"], taken] += 1
    print(f"schemas {schemas}, refused {refused}")
    for valid, word in ((True, "valid"), (False, "invalid")):
        print(f"{word} instances: taken {counts[valid, True]}, not taken {counts[valid, False]}")
    for name, times in (("compile", compiling), ("mask", masks)):
        ms = np.array(times) * 1e3
        spread = f"median {np.median(ms):.3f}, 99th percentile {np.percentile(ms, 99):.2f}, most {ms.max():.1f}"
        print(f"{name}, ms: {spread}, sum {ms.sum():.0f} of {len(ms)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
