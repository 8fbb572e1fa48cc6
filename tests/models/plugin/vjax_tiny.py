"""A package outside vjax with a family of its own: Llama under another name."""

from __future__ import annotations

from dataclasses import replace

from vjax.models import llama

FAMILY = replace(llama.FAMILY, name="Tiny", architectures=("TinyForCausalLM",), gguf=())
NOTHING = "not a family"
