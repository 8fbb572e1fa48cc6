"""Which experts a token goes to, as one kernel. The specification is `vjax.layers.routing.route`."""

from vjax.pallas_kernels.routing.api import choose

__all__ = ["choose"]
