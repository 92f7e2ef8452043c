# SPDX-License-Identifier: Apache-2.0
"""Numbers of a probe against those of the reference run."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.measure.divergence import compare_value, tolerance_of
from intarsia.verifying.references import precision_of


def values(dtype=np.float32, scale=1.0):
    return (np.random.default_rng(0).standard_normal(1000) * scale).astype(dtype)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_is_tolerated_follows_the_size_of_the_values(dtype, scale):
    if dtype == np.float16 and not 1e-6 <= scale <= 1:
        scale = 1.0
    expected = values(dtype, scale)
    tolerance = tolerance_of(expected.dtype.name)
    random = np.random.default_rng(1)
    noise = random.standard_normal(1000) * np.abs(expected.astype(np.float64)).mean()
    near = (expected.astype(np.float64) + 0.1 * tolerance * noise).astype(dtype)
    far = (expected.astype(np.float64) + 20 * tolerance * noise).astype(dtype)
    assert compare_value("y", expected, expected).error == 0
    assert not compare_value("y", expected, near).problem
    assert 0 <= compare_value("y", expected, near).error <= 1
    assert "is off by" in compare_value("y", expected, far).problem
    zeros = np.zeros_like(expected)
    assert compare_value("y", expected, zeros).problem


def test_a_target_that_computes_in_a_narrower_type_may_be_further_off():
    expected = values()
    rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert compare_value("y", expected, rounded).problem
    assert not compare_value("y", expected, rounded, "bf16").problem


def test_nan_and_infinity_belong_where_the_reference_has_them():
    expected = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert not compare_value("y", expected, expected.copy()).problem
    for position, value, words in ((0, np.nan, "NaN in 1 places"), (2, 1, "off"), (1, 1, "off")):
        changed = expected.copy()
        changed[position] = value
        assert words in compare_value("y", expected, changed).problem
    flipped = -expected
    assert compare_value("y", expected, flipped).problem


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (np.zeros((2, 2), np.float32), r"float32[2, 2], not float32[4]"),
        (np.zeros(4), "float64[4], not float32[4]"),
    ],
)
def test_another_shape_or_dtype_is_named(actual, words):
    assert words in compare_value("y", np.zeros(4, np.float32), actual).problem


def test_integers_are_exact_but_for_rounding_of_quantised_ones():
    expected = np.arange(10)
    assert compare_value("y", expected, expected + 1).problem
    assert compare_value("y", expected > 5, expected > 4).problem
    small = np.arange(10, dtype=np.uint8)
    assert not compare_value("y", small, small + np.uint8(1)).problem
    assert compare_value("y", small, small + np.uint8(2)).problem
    text = np.array(["a", "b"], object)
    assert not compare_value("y", text, text.copy()).problem
    assert "1 of 2" in compare_value("y", text, np.array(["a", "c"], object)).problem


@given(st.lists(st.floats(width=32), max_size=20))
def test_every_value_agrees_with_itself(numbers):
    array = np.array(numbers, np.float32)
    finding = compare_value("y", array, array.copy())
    assert (finding.problem, finding.error) == ("", 0.0)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("cuda -arch=sm_80", 1e-3),
        ("cuda -arch=sm_80 -precision=tf32", 1e-2),
        ("cublas", 1e-3),
        ("cublas -math_mode=pedantic", 1e-3),
        ("cublas -math_mode=tf32", 1e-2),
        ("cudnn -math_type=fma", 1e-3),
        ("cudnn -math_type=tensor_op", 1e-2),
        ("cudnn -math_type=tensor_op_allow_conversion", 1e-2),
    ],
)
def test_what_a_library_may_multiply_in_decides_what_is_tolerated(target, wanted):
    precision = precision_of(target)
    assert tolerance_of("float32", precision, ["MatMul"]) == wanted
    x = np.ones(100, np.float32)
    compared = compare_value("y", x, x * np.float32(1.005), precision, ["MatMul"])
    assert bool(compared.problem) == (wanted < 5e-3)
