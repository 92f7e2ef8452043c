"""The tile macro, as a small matrix product."""

import numpy as np
import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Type
from intarsia.codegen.tile import (
    WIDTHS,
    crowding,
    is_long_step,
    mma_step,
    tile_rows,
    unrolled_steps,
)
from intarsia.codegen.unit import AVX2, AVX512, NEON


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


def test_a_turn_takes_whole_blocks_of_few_channels():
    assert [unrolled_steps(unit) for unit in (AVX512, AVX2, NEON)] == [4, 8, 4]


@pytest.mark.parametrize("vectors", WIDTHS)
@pytest.mark.parametrize("unit", [AVX512, NEON], ids=["avx512", "neon"])
def test_tiles_of_many_registers_have_long_steps(unit, vectors):
    assert is_long_step(tile_rows(vectors, unit), vectors)
    assert not is_long_step(tile_rows(vectors, AVX2), vectors)


def test_a_tile_that_leaves_no_register_free_costs_more():
    assert crowding(3, AVX2) > crowding(2, AVX2) == 1  # 4 rows of 3 vectors, 6 of 2
    assert {crowding(vectors, AVX512) for vectors in WIDTHS if vectors > 1} == {1}
