# SPDX-License-Identifier: Apache-2.0
"""Kernels of float32 whose arguments hold halves: in the interpreter and as machine code."""

import numpy as np
import pytest
from tests.codegen.halves_models import EPSILON

from intarsia.arrays import np_dtype
from intarsia.codegen.builder import Builder
from intarsia.codegen.halves import reads_back, rounded, with_halves
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.verifier import verify

TURNS, LANES = 4, 8
COUNT = 5
"""Lanes that the last loads and stores touch."""


def kernel():
    """`y = x`, `z = x * x`, `w = x * 1`; the last turn touches parts of vectors again."""
    b = Builder("halves")
    x = b.argument("x", "float32", (TURNS, LANES), align=2)
    y, z, w = (
        b.argument(name, "float32", (TURNS, LANES), align=2, is_written=True) for name in "yzw"
    )
    with b.parallel(TURNS) as turn:
        for number in range(2):
            count = (LANES, COUNT)[number]
            where = (turn * (1 - number) + (TURNS - 1) * number, 0)
            value = b.load(x, where, LANES, count=count)
            b.store(value, y, where, count=count)
            b.store(b.mul(value, value), z, where, count=count)
            b.store(b.mul(value, 1.0), w, where, count=count)
    return b.finish()


@pytest.mark.parametrize("has_half", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_read_is_widened_and_what_is_written_rounded(run_kernel, dtype, has_half):
    function = with_halves(kernel(), (dtype, dtype, dtype, ""), has_half=has_half)
    verify(function)
    x = np.random.default_rng(0).standard_normal((TURNS, LANES)).astype(np.float32)
    x[0] = (np.nan, np.inf, -np.inf, -0.0, 1e-6, 2.0**-25, 300.0, 1 + EPSILON[dtype])
    halves = x.astype(np_dtype(dtype))
    bits = halves.view(np.uint16)
    element = function.buffers[0].dtype
    memory = [bits.view(element).reshape(-1).copy()]
    memory += [np.zeros(x.size, element), np.zeros(x.size, element), np.zeros(x.size, np.float32)]
    with np.errstate(all="ignore"):
        interpret(function, memory)
        square = (halves.astype(np.float32) ** 2).astype(np_dtype(dtype))
    np.testing.assert_array_equal(memory[1].view(np.uint16), bits.reshape(-1))
    got = memory[2].view(np_dtype(dtype)).astype(np.float32)
    np.testing.assert_array_equal(got, square.astype(np.float32).reshape(-1))
    np.testing.assert_array_equal(memory[3], halves.astype(np.float32).reshape(-1))
    fresh = [memory[0], *(np.zeros_like(array) for array in memory[1:])]
    run_kernel(function, fresh, rtol=0)


def test_bits_that_are_copied_stay():
    """Signalling NaNs among them, which every conversion would change."""
    function = with_halves(kernel(), ("bfloat16",) * 4, has_half=False)
    bits = np.arange(TURNS * LANES, dtype=np.uint16) * 97 + 0x7F80
    memory = [bits, *(np.zeros_like(bits) for _ in range(3))]
    with np.errstate(all="ignore"):
        interpret(function, memory)
    np.testing.assert_array_equal(memory[1], bits)


def test_arguments_that_are_read_again_are_told():
    b = Builder("sums")
    x = b.argument("x", "float32", (4,))
    y = b.argument("y", "float32", (4,), is_written=True)
    with b.parallel(4) as turn:
        b.store(b.add(b.load(x, turn), b.load(y, turn)), y, turn)
    assert reads_back(b.finish()) == {1}
    assert reads_back(kernel()) == frozenset()


def test_every_float32_is_rounded_to_nearest():
    """Ties to even, overflow to infinity, by the same rule as numpy's and ml_dtypes'."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    for low in (0x0000, 0x7FFF, 0x8000, 0x8001):
        x = ((patterns << 16) | low).view(np.float32)
        function = with_halves(copy(x.size), ("", "bfloat16"), has_half=False)
        y = np.zeros(x.size, np.uint16)
        with np.errstate(all="ignore"):
            interpret(function, [x, y])
            want = rounded(x, "bfloat16")
        is_nan = np.isnan(x)
        np.testing.assert_array_equal(y[~is_nan], want.view(np.uint16)[~is_nan])
        assert np.isnan(y.view(np_dtype("bfloat16"))[is_nan].astype(np.float32)).all()


def copy(size):
    b = Builder("copy")
    x = b.argument("x", "float32", (size,))
    y = b.argument("y", "float32", (size,), is_written=True)
    with b.parallel(1):
        b.store(b.load(x, 0, size), y, 0)
    return b.finish()
