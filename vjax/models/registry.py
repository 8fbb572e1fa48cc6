"""Finds a family by architecture. Adding one here is a file and its name in `FILES`; a package outside calls
`register`, or names its family as an entry point of the group `vjax.models`."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from vjax.errors import ModelError
from vjax.models.family import Family

log = logging.getLogger(__name__)

FILES = (
    "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4",
    "mistral", "arcee", "seed_oss", "internlm2", "internlm3", "smollm3", "ernie4_5", "granite", "olmo2", "olmo3",
    "exaone4", "hunyuan", "glm4",
    "minicpm", "minicpm3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4",
    "phi3", "phi", "starcoder2", "stablelm", "cohere", "cohere2", "opt", "gpt2",
    "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe", "minimax_m2", "granite_moe", "laguna",
    "ernie4_5_moe", "olmoe",
    "lfm2", "qwen3_next", "qwen3_5", "qwen3_5_moe", "mamba2", "bamba", "falcon_h1",
    "nemotron_h", "kimi_linear",
    "bert", "roberta", "modernbert",
)  # fmt: skip
GROUP = "vjax.models"

_registered: list[Family] = []


def register(family: Family) -> None:
    """Make `family` known in this process. Its architectures take precedence over those that were known before.

    The server's engine runs in a process of its own: there a family is found through its entry point only.
    """
    if not isinstance(family, Family):
        raise ModelError(f"register takes a vjax.models.family.Family, got {type(family).__name__}.")
    _registered.insert(0, family)


def families() -> tuple[Family, ...]:
    """Registered ones, those of plugins, ours."""
    return (*_registered, *_plugins(), *_ours())


def supported_architectures() -> list[str]:
    return sorted({name for family in families() for name in family.architectures})


def family_for(hf: dict[str, Any]) -> Family:
    """The family of a Hugging Face config, by its `architectures` in order."""
    names = hf.get("architectures") or []
    if not isinstance(names, (list, tuple)):
        raise ModelError(f"config field 'architectures' must be a list, got {names!r}.")
    for name in names:
        for family in families():
            if name in family.architectures:
                return family
    asked = ", ".join(map(str, names)) or f"model_type {hf.get('model_type')!r} without architectures"
    raise ModelError(f"{asked} is not supported. Supported: {', '.join(supported_architectures())}.")


def family_for_gguf(architecture: str) -> Family:
    """The family of a GGUF file, by its `general.architecture`."""
    for family in families():
        if architecture in family.gguf:
            return family
    known = ", ".join(sorted({name for family in families() for name in family.gguf}))
    raise ModelError(f"GGUF architecture {architecture!r} is not supported. Supported: {known}.")


@cache
def _ours() -> tuple[Family, ...]:
    return tuple(import_module(f"vjax.models.{name}").FAMILY for name in FILES)


@cache
def _plugins() -> tuple[Family, ...]:
    """Families of installed packages. One that fails is reported and skipped: it must not keep others from running."""
    found = []
    for point in entry_points(group=GROUP):
        try:
            family = point.load()
            if not isinstance(family, Family):
                raise TypeError(f"{point.value} is a {type(family).__name__}, not a vjax.models.family.Family")
        except Exception as error:
            log.warning("model plugin %s is skipped: %s: %s", point.name, type(error).__name__, error)
        else:
            found.append(family)
    return tuple(found)
