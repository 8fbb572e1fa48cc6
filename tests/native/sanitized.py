"""Run by `test_library.py` with the sanitizers' runtimes preloaded: every kernel over awkward shapes, at buffers' ends.

Usage: python -m tests.native.sanitized FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tests.pallas_kernels.test_native_decode import problem
from tests.quant.test_ggml_blocks import make
from vjax.native import library
from vjax.pallas_kernels.paged_attention import cpu
from vjax.quant.ggml_blocks import KINDS, GGMLBlocks

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g")


def main(folder: Path) -> None:
    library.FLAGS = (*library.FLAGS, *SANITIZERS)
    library.cache_dir = lambda *parts: folder
    assert library.available()
    for kind in KINDS:
        for out, blocks in (((1,), 1), ((2, 3, 5), 1), ((1000,), 2)):
            weight, dense = make(kind, out, blocks)
            for tokens in (1, 2, 3, 9, 40):
                x = np.ones((tokens, weight.width), np.float32)
                found = jax.jit(GGMLBlocks.matmul)(weight, jnp.asarray(x))
                np.testing.assert_allclose(found, np.tensordot(x, dense, (1, -1)), atol=1e-3, rtol=1e-3)
    for kv_len in ([1], [17, 1, 300]):
        for dim in (16, 80):
            args = problem(kv_len, 2, 3, dim, page_size=16)
            assert np.isfinite(cpu.decode_attention(*args, scale=1.0, window=7)).all()
    print("clean")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
