"""Seeded weights, the same on every machine: a tensor's values depend on its name, its shape and the case's seed."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Shape = tuple[int, ...]
Tensors = dict[str, np.ndarray]

PLAIN_NORMS = ("linear_attn.norm.weight",)  # whose weights are w also where others mean 1 + w

SCALES = ("layer_scalar", "router.scale", "router.per_expert_scale", "hc_attn_scale", "hc_ffn_scale", "hc_head_scale")


def seeded_tensor(name: str, shape: Shape, seed: int, norm_centre: float = 1.0) -> np.ndarray:
    """Normal numbers `shape` float32, scaled by what `name` says the tensor is, so that logits spread well.

    RandomState's streams are frozen by numpy's compatibility policy; those of Generator may change.
    """
    draw = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode())).standard_normal(shape)
    if name.endswith("tid2eid"):  # a token's experts, all different; there is at least one more than a token has
        return (np.abs(10 * draw[:, :1]).astype(np.int64) + np.arange(shape[1])) % (shape[1] + 1)
    if len(shape) == 1 or name.endswith("norm.weight"):
        centre = norm_centre if name.endswith("weight") and not name.endswith(PLAIN_NORMS) else _centre(name)
        return (centre + 0.2 * draw).astype(np.float32)
    return (draw * (_gain(name) / math.sqrt(shape[-1]))).astype(np.float32)


def _centre(name: str) -> float:
    """Of vectors other than norms of a family's usual kind."""
    if name.endswith("A_log"):
        return -1.5  # a memory of some ten tokens
    return 1.0 if name.endswith(PLAIN_NORMS + SCALES) else 0.0


def _gain(name: str) -> float:
    """Against `1 / sqrt(fan in)`: attention sharp enough to see positions, logits wide enough to rank."""
    if "embed_tokens" in name or name.endswith("wte.weight"):
        return 0.7  # small, or a tied model repeats its last token
    if "lm_head" in name:
        return 2.0
    if "c_attn" in name:
        return 2.6  # `[in, 3 * out]`: its last axis is not the fan in
    return 1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0


def seeded_tensors(shapes: Mapping[str, Shape], seed: int, norm_centre: float = 1.0) -> Tensors:
    return {name: seeded_tensor(name, shape, seed, norm_centre) for name, shape in shapes.items()}


def write_checkpoint(directory: Path, config: dict[str, Any], tensors: Tensors, shards: int = 1) -> Path:
    """A Hugging Face directory: `config.json` and `model.safetensors`, or `shards` files with their index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return directory
