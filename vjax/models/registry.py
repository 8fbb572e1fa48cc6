"""Finds a family by architecture. Adding a family is a file and its name in `FILES`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from vjax.errors import ModelError
from vjax.models.family import Family

FILES = ("llama", "qwen2", "qwen3", "gemma3")


@cache
def families() -> tuple[Family, ...]:
    return tuple(import_module(f"vjax.models.{name}").FAMILY for name in FILES)


def supported_architectures() -> list[str]:
    return sorted(name for family in families() for name in family.architectures)


def family_for(hf: dict[str, Any]) -> Family:
    """The family of a Hugging Face config, by its `architectures` in order."""
    names = hf.get("architectures") or []
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
    known = ", ".join(sorted(name for family in families() for name in family.gguf))
    raise ModelError(f"GGUF architecture {architecture!r} is not supported. Supported: {known}.")
