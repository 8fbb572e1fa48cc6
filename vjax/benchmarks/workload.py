"""What a benchmark asks: prompts and how many tokens to answer with, drawn from a seed."""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from vjax.errors import ModelError

NAMES = ("random", "sharegpt-like", "sharegpt")
FIRST_ID = 10  # below are special tokens in most vocabularies
# Log-normal lengths, short mostly and long now and then, as chats have them: the median in tokens, and sigma.
PROMPT_LENGTH, OUTPUT_LENGTH = (70.0, 1.5), (190.0, 1.0)
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school", "state", "family",
         "student", "group", "country")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: token ids or text, and the tokens to answer with."""

    prompt: list[int] | str
    prompt_tokens: int | None  # None: the server will tell
    output_tokens: int


def add_arguments(parser: argparse.ArgumentParser, *, file: bool) -> None:
    """`file`: whether prompts may come from a file, for which a tokenizer is needed."""
    group = parser.add_argument_group("workload")
    names = NAMES if file else NAMES[:2]
    group.add_argument("--dataset-name", choices=names, default="random",
                       help="random: lengths as below; sharegpt-like: lengths as people's conversations have them" +
                       ("; sharegpt: conversations of --dataset-path" if file else ""))  # fmt: skip
    if file:
        group.add_argument("--dataset-path", type=Path, default=None, help="JSON file in ShareGPT's form")
    group.add_argument("--num-prompts", type=int, default=100, metavar="N", help="requests (100)")
    group.add_argument("--input-len", "--random-input-len", type=int, default=512, metavar="N",
                       help="tokens of a random prompt (512)")  # fmt: skip
    group.add_argument("--output-len", "--random-output-len", type=int, default=128, metavar="N",
                       help="tokens to generate (128)")  # fmt: skip
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="X",
                       help="lengths vary by this share, up and down (0)")  # fmt: skip
    group.add_argument("--random-prefix-len", type=int, default=0, metavar="N",
                       help="tokens before them that all prompts share (0)")  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (0)")


def check(args: argparse.Namespace) -> None:
    """Raises `ModelError` naming the flag."""
    if args.num_prompts < 1 or args.input_len < 1 or args.output_len < 1:
        raise ModelError("--num-prompts, --input-len and --output-len must be positive.")
    if not 0 <= args.random_range_ratio < 1:
        raise ModelError(f"--random-range-ratio must be in [0, 1), got {args.random_range_ratio}.")
    if args.dataset_name == "sharegpt" and args.dataset_path is None:
        raise ModelError("--dataset-name sharegpt needs a file of conversations: --dataset-path FILE.")


def make(args: argparse.Namespace, vocab: int, longest: int | None, *, text: bool = False) -> list[Ask]:
    """`vocab`: ids that exist; `longest`: prompt and output together; `text`: words instead of ids, about one a token.

    Raises `ModelError` naming the flag.
    """
    check(args)
    draw = random.Random(args.seed)
    if args.dataset_name == "sharegpt":
        return _conversations(args, draw)
    prefix = _tokens(draw, args.random_prefix_len, vocab)
    asks = []
    for _ in range(args.num_prompts):
        inputs, outputs = _lengths(args, draw)
        if longest is not None:
            outputs = max(1, min(outputs, longest - len(prefix) - 2))
            inputs = max(1, min(inputs, longest - len(prefix) - outputs - 1))
        ids = prefix + _tokens(draw, inputs, vocab)
        prompt: list[int] | str = " ".join(WORDS[one % len(WORDS)] for one in ids) if text else ids
        asks.append(Ask(prompt, None if text else len(ids), outputs))
    return asks


def _lengths(args: argparse.Namespace, draw: random.Random) -> tuple[int, int]:
    if args.dataset_name == "sharegpt-like":
        prompt, output = (
            draw.lognormvariate(math.log(median), sigma) for median, sigma in (PROMPT_LENGTH, OUTPUT_LENGTH)
        )
        return min(max(int(prompt), 4), 1024), min(max(int(output), 4), 1024)
    share = args.random_range_ratio
    return tuple(  # type: ignore[return-value]
        max(1, draw.randint(math.floor(n * (1 - share)), math.ceil(n * (1 + share))))
        for n in (args.input_len, args.output_len)
    )


def _tokens(draw: random.Random, count: int, vocab: int) -> list[int]:
    first = min(FIRST_ID, vocab - 1)
    return [draw.randrange(first, vocab) for _ in range(count)]


def _conversations(args: argparse.Namespace, draw: random.Random) -> list[Ask]:
    """First questions of conversations; an answer's length is guessed from its characters."""
    try:
        found = json.loads(args.dataset_path.read_text(encoding="utf-8"))
        turns = [[str(turn["value"]) for turn in one.get("conversations", [])[:2]] for one in found]
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ModelError(f"--dataset-path: {args.dataset_path} is not a file in ShareGPT's form ({error}).") from None
    pairs = [pair for pair in turns if len(pair) == 2 and all(pair)]
    if not pairs:
        raise ModelError(f"--dataset-path: {args.dataset_path} holds no conversation.")
    draw.shuffle(pairs)
    return [
        Ask(question[:4096], None, min(max(len(answer) // 4, 4), 1024))
        for question, answer in (pairs[at % len(pairs)] for at in range(args.num_prompts))
    ]
