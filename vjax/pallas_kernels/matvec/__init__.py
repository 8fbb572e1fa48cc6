"""Products of one row, as a decode step of one request makes: as fast as the weight can be read."""

from vjax.pallas_kernels.matvec.api import matmul, runs, swiglu

__all__ = ["matmul", "runs", "swiglu"]
