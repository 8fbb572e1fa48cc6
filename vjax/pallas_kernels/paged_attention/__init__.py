"""Attention over a paged key/value cache."""

from vjax.pallas_kernels.paged_attention.api import append_and_attend, paged_attention
from vjax.pallas_kernels.paged_attention.preparation import Preparation

__all__ = ["Preparation", "append_and_attend", "paged_attention"]
