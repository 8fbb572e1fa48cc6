"""`vjax plan`: what a model needs, from its config alone: weights, cache a token, how many requests fit. Nothing is
loaded and no device is asked."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vjax import shapes
from vjax.cli_args import parse_size
from vjax.engine.limits import temporary_bytes
from vjax.engine.page_groups import PageGroups
from vjax.engine.state import page_bytes, state_bytes
from vjax.errors import ModelError
from vjax.loading.checkpoint import param_dtype
from vjax.loading.dtypes import resolve_dtype
from vjax.loading.gguf import open_gguf
from vjax.loading.gguf_config import hf_config_from_gguf
from vjax.loading.hf_config import read_hf_config
from vjax.loading.source import find_source
from vjax.models.encoder import Encoder, is_encoder
from vjax.models.model import Model
from vjax.models.spec import iter_params
from vjax.parallel.mesh import shard_shape

GIB = 1 << 30
PAGE = 16


@dataclass(frozen=True)
class Plan:
    """Bytes, unless a name says otherwise; `per_device` where devices share."""

    model: str
    architecture: str
    parameters: int
    dtype: str
    devices: int
    memory_per_device: int
    weights: int
    weights_per_device: int
    cache_per_token: int
    cache_per_token_per_device: int
    cache_per_request_per_device: int  # of `context` tokens: layers with a window keep no more than that
    temporaries_per_device: int
    state_per_device: int  # of recurrent layers, for all rows
    cache_tokens: int  # that fit
    context: int
    requests: int  # of that many tokens at once; 0: not one fits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help=f"folder, config.json, .gguf file, or a public shape: {', '.join(shapes.names())}"
    )
    parser.add_argument("--devices", type=int, default=1, help="that share the model (tensor parallel)")
    parser.add_argument(
        "--memory", type=parse_size, default=80 * GIB, help="of one device, such as 141G; 80GiB by default"
    )
    parser.add_argument("--dtype", default="auto", help="of weights and cache; auto: the checkpoint's own")
    parser.add_argument(
        "--max-model-len", type=int, default=None, help="tokens of a request; the model's own by default"
    )
    parser.add_argument("--max-num-seqs", type=int, default=256, help="rows of a step, for its temporaries")
    parser.add_argument("--max-num-batched-tokens", type=int, default=4096, help="tokens of a step, likewise")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of the memory to use")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    made = plan(
        args.model, devices=args.devices, memory=args.memory, dtype=args.dtype, max_model_len=args.max_model_len,
        rows=args.max_num_seqs, tokens=args.max_num_batched_tokens, utilization=args.gpu_memory_utilization,
    )  # fmt: skip
    print(json.dumps(asdict(made), indent=1) if args.json else text(made))
    return 0 if made.requests else 1


def plan(
    model: str, *, devices: int = 1, memory: int = 80 * GIB, dtype: str = "auto", max_model_len: int | None = None,
    rows: int = 256, tokens: int = 4096, utilization: float = 0.9,
) -> Plan:  # fmt: skip
    """The plan for a model on `devices` devices of `memory` bytes. Raises as loading does for what it cannot read."""
    if devices < 1:
        raise ModelError(f"--devices must be positive, got {devices}.")
    hf = _config(model)
    published = hf.get("dtype") or hf.get("torch_dtype") or "bfloat16"
    encodes, kind = is_encoder(hf), resolve_dtype(published if dtype == "auto" else dtype)
    built = Encoder.from_hf(hf) if encodes else Model.from_hf(hf)
    config = built.config
    params = [param for _, param in iter_params(built.spec())]
    sizes = [param_dtype(param, kind).itemsize for param in params]
    weights = sum(param.size * size for param, size in zip(params, sizes, strict=True))
    shards = [math.prod(shard_shape(param.shape, param.axes, devices)) for param in params]
    held = [shard * size for shard, size in zip(shards, sizes, strict=True)]
    context = max_model_len or config.max_position
    groups = PageGroups(config.windows, PAGE)
    page, unsplit = (0 if encodes else page_bytes(config, PAGE, kind, n) for n in (devices, 1))
    whole, each = (size * len(groups) // PAGE for size in (unsplit, page))
    request = groups.held(context, tokens) * page
    spare = temporary_bytes(config, rows, tokens, kind, max(held))
    state = state_bytes(config, rows, devices)
    free = max(int(memory * utilization) - sum(held) - spare - state, 0)
    if not page:
        room = (max(tokens, context) if encodes else rows * context) * (free > 0)
    elif config.windows == (None,):
        room = free // each
    else:
        room = free // request * context or groups.room(free // page, tokens, context)
    return Plan(
        model=model, architecture=config.architecture, parameters=sum(param.size for param in params),
        dtype=np.dtype(kind).name, devices=devices, memory_per_device=memory, weights=weights,
        weights_per_device=sum(held), cache_per_token=whole, cache_per_token_per_device=each,
        cache_per_request_per_device=request,
        temporaries_per_device=spare, state_per_device=state, cache_tokens=room, context=context,
        requests=room // context,
    )  # fmt: skip


def text(made: Plan) -> str:
    lines = [
        f"{made.model}: {made.architecture}, {made.parameters / 1e9:.2f} billion parameters, {made.dtype}",
        f"weights      {_gib(made.weights)}" + _share(made.devices, made.weights_per_device),
        f"cache        {made.cache_per_token / 1024:.1f} KiB a token"
        + ("" if made.devices == 1 else f", {made.cache_per_token_per_device / 1024:.1f} KiB on each device"),
        *_windowed(made),
        *([f"state        {_gib(made.state_per_device)} on each device"] if made.state_per_device else []),
        f"temporaries  {_gib(made.temporaries_per_device)} on each device, at most",
    ]
    where = f"{made.devices} x {_gib(made.memory_per_device)}"
    if made.requests and not made.cache_per_token:
        lines.append(f"{where}: {made.requests} requests of {made.context} tokens")
    elif made.requests:
        lines.append(
            f"{where}: cache for {made.cache_tokens} tokens, {made.requests} requests of {made.context} tokens"
        )
    elif made.cache_tokens:
        lines.append(f"{where}: no request of {made.context} tokens fits; --max-model-len {made.cache_tokens} does")
    else:
        lines.append(f"{where}: does not fit; more devices, more memory or a smaller dtype")
    return "\n".join(lines)


def _windowed(made: Plan) -> list[str]:
    if made.cache_per_request_per_device >= made.context * made.cache_per_token_per_device:
        return []
    size = _gib(made.cache_per_request_per_device)
    return [f"             {size} a request of {made.context} tokens on each device: some layers have a window"]


def _config(model: str) -> dict[str, Any]:
    if model in shapes.names() and not Path(model).exists():
        return shapes.config(model)
    path = Path(model).expanduser()
    if path.is_file() and path.name == "config.json":
        return read_hf_config(path.parent)
    source = find_source(model, weights=False)
    if source.kind == "gguf":
        return hf_config_from_gguf(open_gguf(source.path))
    return read_hf_config(source.path)


def _share(devices: int, nbytes: int) -> str:
    return "" if devices == 1 else f", {_gib(nbytes)} on each of {devices} devices"


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB"
