"""What the benchmarks without a server share: the engine's flags, and running a workload on `LLM`."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vjax.benchmarks.workload import Ask
from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.errors import ModelError

if TYPE_CHECKING:
    from vjax.llm import LLM


def add_engine_arguments(parser: argparse.ArgumentParser, *skip: str) -> None:
    parser.add_argument("model_tag", metavar="MODEL", nargs="?", help="a model, or a shape with random weights")
    parser.add_argument("--json", "--output-json", dest="json", type=Path, default=None, metavar="FILE",
                        help="also write the report, with machine, versions and commit")  # fmt: skip
    add_flags(parser, EngineConfig, "engine", skip=skip)


def engine_options(args: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """The options of `LLM`; `defaults` hold for flags that were not given."""
    from vjax.bench import shape_options

    given = {name: value for name, value in defaults.items() if not hasattr(args, name)}
    name = args.model_tag or getattr(args, "model", None)
    if name is not None:
        given |= {"model": name, **shape_options(name)}
    config = from_flags(EngineConfig, args, **given)
    return {item.name: getattr(config, item.name) for item in fields(EngineConfig)}


def make_llm(options: dict[str, Any]) -> LLM:
    from vjax.llm import LLM

    llm = LLM(**options)
    if llm._encoder is not None:
        raise ModelError(f"{options['model']} encodes; this benchmark needs a model that generates.")
    return llm


def generate(llm: LLM, asks: list[Ask], *, show: bool = False) -> float:
    """Seconds until all are answered, each with exactly the tokens it asks for."""
    from vjax.sampling_params import SamplingParams

    params = [
        SamplingParams(
            temperature=0, max_tokens=ask.output_tokens, min_tokens=ask.output_tokens, ignore_eos=True, detokenize=False
        )
        for ask in asks
    ]
    started = time.perf_counter()
    llm.generate([{"prompt_token_ids": ask.prompt} for ask in asks], params, use_tqdm=show)  # type: ignore[list-item]
    return time.perf_counter() - started


def positive(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ModelError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}.")


def write_report(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.json:
        from vjax.bench import environment

        args.json.write_text(json.dumps({**found, **environment()}, indent=1))
