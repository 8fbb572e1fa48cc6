"""Products with weights in narrow codes and scales, decoded where they are multiplied."""

from vjax.pallas_kernels.scaled_matmul.api import matmul, runs, swiglu
from vjax.pallas_kernels.scaled_matmul.reference import Codes, decode

__all__ = ["Codes", "decode", "matmul", "runs", "swiglu"]
