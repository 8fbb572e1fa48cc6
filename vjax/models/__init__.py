"""Families of models, and the registry that finds them."""

from vjax.models.registry import register

__all__ = ["register"]
