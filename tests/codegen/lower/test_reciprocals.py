# SPDX-License-Identifier: Apache-2.0
"""Products in the place of quotients by known scales: the same bits, or none."""

from fractions import Fraction

import numpy as np
import pytest
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

from intarsia.codegen.interpreter import interpret
from intarsia.codegen.lower.reciprocals import Reciprocals, reciprocals
from intarsia.codegen.unit import AVX2, AVX512

FAILS = (float.fromhex("0x1.91ef9ep-3"), 12844349.0)
"""A divisor with a dividend for which products give another float."""


def single(*numbers):
    return np.array(numbers, np.float32)


def by_products(x, parts):
    """What a CPU computes, with the sum exact before it is rounded (at least to 64 bits)."""
    head, rest = (item.astype(np.longdouble) for item in (parts.head, parts.rest))
    product = (x * parts.rest).astype(np.longdouble)
    assert rest.shape == head.shape
    return (x.astype(np.longdouble) * head + product).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_quotients_have_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    divisors = np.exp(rng.uniform(-20, 20, 40)).astype(np.float32)
    divisors[:8] = (1, 2, 0.5, 3, 1 / 3, 0.1, 1.9999999, 1.0000001)
    known = 0
    for divisor in divisors:
        parts = reciprocals(single(divisor))
        if parts is None:
            continue
        known += 1
        x = (rng.standard_normal(20000) * divisor * 300).astype(np.float32)
        # Quotients next to the middle of two codes, where a bit decides.
        x[:2000] = (rng.integers(-300, 300, 2000) + 0.5) * divisor
        np.testing.assert_array_equal(by_products(x, parts), x / divisor)
    assert known >= 38


def test_a_divisor_that_fails_has_no_reciprocal():
    divisor, dividend = map(np.float32, FAILS)
    assert reciprocals(single(1, divisor)) is None
    head = np.float32(1 / np.float64(divisor))
    rest = np.float32(float(1 / Fraction(float(divisor)) - Fraction(float(head))))
    wrong = by_products(dividend, Reciprocals(single(head), single(rest)))
    assert wrong != dividend / divisor  # so what is refused is wrong


@pytest.mark.parametrize("divisor", [0.0, -1.0, 1e-30, 1e30, np.inf, np.nan])
def test_divisors_that_are_out_of_range(divisor):
    assert reciprocals(single(divisor)) is None


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("scale", [0.0213, FAILS[0]])
def test_codes_are_those_of_a_division(lower_model, dtype, scale):
    limits, scale = np.iinfo(dtype), np.float32(scale)
    zero = np.array((limits.max + limits.min) // 2 + 3, dtype)
    x = ((np.arange(limits.min, limits.max, 7) - int(zero) + 0.5) * scale).astype(np.float32)
    specials = single(np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 0, -0.0)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), specials])
    model = small_model("y", "y = QuantizeLinear(x, s, z)", {"x": x}, {"s": scale, "z": zero}, 21)
    codes = {}
    for unit in (AVX512, AVX2):
        program, region = lower_model(model, unit)
        steps = [
            text for kernel in program.kernels for text in str(kernel).split() if "Fma" in text
        ]
        assert bool(steps) == (unit is AVX512 and scale != np.float32(FAILS[0]))

        def interpreted(call, arrays, program=program):
            interpret(program.kernels[call.kernel], arrays)

        codes[unit] = run_program(program, region, {"x": x}, interpreted)["y"]
    np.testing.assert_array_equal(codes[AVX512], codes[AVX2])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.rint(x / scale) + np.float32(int(zero))
    wanted = np.clip(np.where(np.isnan(wanted), limits.min, wanted), limits.min, limits.max)
    np.testing.assert_array_equal(codes[AVX512], wanted.astype(dtype))
