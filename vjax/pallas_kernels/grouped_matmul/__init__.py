"""Products of rows with the matrix of their group: the experts of a mixture."""

from vjax.pallas_kernels.grouped_matmul.api import Groups, group_rows, grouped_matmul, grouped_swiglu, spread

__all__ = ["Groups", "group_rows", "grouped_matmul", "grouped_swiglu", "spread"]
