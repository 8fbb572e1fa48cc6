"""The residual addition and the norm that follows it, as one operation."""

from vjax.pallas_kernels.add_rms_norm.api import add_rms_norm
from vjax.pallas_kernels.add_rms_norm.reference import rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
