"""The tile macro, as a small matrix product."""

import numpy as np
import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Type
from intarsia.codegen.tile import mma_step


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_tile_multiplies_matrices(run_kernel, lanes):
    rows, vectors, depth = 3, 2, 5
    b = Builder("product")
    x = b.argument("x", "float32", (rows, depth))
    w = b.argument("w", "float32", (depth, vectors * lanes))
    y = b.argument("y", "float32", (rows, vectors * lanes), is_written=True)
    zero = b.constant(0, Type("float32", lanes))

    def step(k, *acc):
        return mma_step(
            b,
            acc,
            rows,
            vectors,
            lambda r: b.load(x, (r, k)),
            lambda v: b.load(w, (k, v * lanes), lanes),
        )

    acc = b.loop(0, depth, [zero] * (rows * vectors), step)
    for r in range(rows):
        for v in range(vectors):
            b.store(acc[r * vectors + v], y, (r, v * lanes))
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, depth)).astype("float32")
    c = rng.standard_normal((depth, vectors * lanes)).astype("float32")
    _, _, got = run_kernel(b.finish(), [a, c, np.zeros((rows, vectors * lanes), "float32")])
    np.testing.assert_allclose(got, a @ c, rtol=1e-5, atol=1e-6)
