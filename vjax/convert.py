"""`vjax convert`: writes a model as an orbax checkpoint in vjax's own layout: nothing is renamed or merged at start."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="folder, .gguf file, or a registered name")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--dtype", default="auto", help="dtype to store: auto, float32, bfloat16 or float16")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    convert(args.model, args.out, dtype=args.dtype, force=args.force)
    print(f"wrote {args.out}")
    return 0


def convert(model: str, out: Path, *, dtype: str = "auto", force: bool = False) -> None:
    """Load `model` and write it to the folder `out`."""
    from vjax.config import EngineConfig
    from vjax.loading.load import load_with_config
    from vjax.loading.orbax import save_checkpoint
    from vjax.loading.source import find_source
    from vjax.parallel.mesh import make_mesh

    config = EngineConfig(model=model, dtype=dtype)
    _, params, hf = load_with_config(config, make_mesh(1))
    save_checkpoint(out, params, hf, tokenizer=find_source(config.model).path, force=force)
