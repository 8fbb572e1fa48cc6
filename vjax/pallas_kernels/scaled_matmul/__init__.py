"""Products with weights in narrow codes and scales, decoded where they are multiplied."""

from vjax.pallas_kernels.scaled_matmul.api import (
    grouped_matmul,
    grouped_runs,
    grouped_swiglu,
    matmul,
    runs,
    swiglu,
)  # fmt: skip
from vjax.pallas_kernels.scaled_matmul.reference import Codes, decode

__all__ = ["Codes", "decode", "grouped_matmul", "grouped_runs", "grouped_swiglu", "matmul", "runs", "swiglu"]
