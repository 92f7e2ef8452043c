"""The maths library: errors in units in the last place, and the values at the borders."""

import math

import numpy as np
import pytest

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder

WIDE = np.longdouble
erf = np.vectorize(math.erf, otypes=[np.float64])


def kernel(function, dtype, size, lanes, arguments=1):
    b = Builder("apply")
    inputs = [b.argument(f"x{n}", dtype, (size,)) for n in range(arguments)]
    y = b.argument("y", dtype, (size,), is_written=True)
    with b.serial(0, size, lanes) as i:
        b.store(function(b, *(b.load(x, i, lanes) for x in inputs)), y, i)
    return b.finish()


def apply(run_kernel, function, *inputs, lanes=16, interpreted=False):
    size = inputs[0].size
    function = kernel(function, inputs[0].dtype.name, size, lanes, len(inputs))
    *_, got = run_kernel(function, [*inputs, np.zeros_like(inputs[0])], interpreted=interpreted)
    return got


def ulps(got, exact, dtype):
    """How many places of the exact value's last digit the results are away, at most."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(dtype).tiny)).astype(WIDE)
        errors = np.abs(got.astype(WIDE) - exact) / unit
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        errors = np.where(same, 0, errors)
    assert np.isfinite(errors).all(), (got[~np.isfinite(errors)], exact[~np.isfinite(errors)])
    return float(errors.max())


def spread(low, high, dtype, count=1 << 14):
    """Numbers evenly and, of both signs where the range has them, by powers of ten."""
    rng = np.random.default_rng(7)
    even = rng.uniform(low, high, count // 2)
    tiny = np.log10(np.finfo(dtype).tiny)
    small = 10.0 ** rng.uniform(tiny, np.log10(max(abs(low), abs(high))), count // 2)
    small = np.where(rng.random(count // 2) < 0.5, small, -small)
    small = np.where((small < low) | (small > high), np.abs(small), small)
    return np.clip(np.concatenate((even, small)), low, high).astype(dtype)


# name, reference, range for float32, range for float64, bounds in ulp for both
UNARY = [
    ("exp", np.exp, (-87, 88.7), (-708, 709.7), 2, 2),
    ("exp_nonpositive", np.exp, (-87, 0), (-707, 0), 2, 2),
    ("expm1", np.expm1, (-30, 88.7), (-50, 709.7), 3, 3),
    ("log", np.log, (1e-37, 3e38), (1e-307, 1e308), 2, 2),
    ("log1p", np.log1p, (-0.9999, 3e38), (-0.9999, 1e308), 3, 3),
    ("tanh", np.tanh, (-12, 12), (-25, 25), 4, 4),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), (-87, 40), (-700, 60), 4, 4),
    ("softplus", lambda x: np.logaddexp(x, 0), (-87, 90), (-700, 800), 4, 4),
    ("sin", np.sin, (-1e4, 1e4), (-1e4, 1e4), 2, 2),
    ("cos", np.cos, (-1e4, 1e4), (-1e4, 1e4), 2, 2),
    ("tan", np.tan, (-1e4, 1e4), (-1e4, 1e4), 4, 4),
    ("asin", np.arcsin, (-1, 1), (-1, 1), 4, 4),
    ("acos", np.arccos, (-1, 1), (-1, 1), 4, 4),
    ("atan", np.arctan, (-1e6, 1e6), (-1e6, 1e6), 3, 3),
    ("sinh", np.sinh, (-89, 89), (-710, 710), 4, 4),
    ("cosh", np.cosh, (-89, 89), (-710, 710), 4, 4),
    ("asinh", np.arcsinh, (-1e38, 1e38), (-5e307, 5e307), 4, 4),
    ("acosh", np.arccosh, (1, 3e38), (1, 1e308), 4, 4),
    ("atanh", np.arctanh, (-0.9999, 0.9999), (-0.9999, 0.9999), 4, 4),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", UNARY, ids=lambda case: case[0])
def test_errors(run_kernel, case, dtype):
    name, reference, range32, range64, bound32, bound64 = case
    low, high = range32 if dtype == "float32" else range64
    x = spread(low, high, dtype)
    got = apply(run_kernel, getattr(maths, name), x)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(WIDE))
    found = ulps(got, exact, dtype)
    assert found <= (bound32 if dtype == "float32" else bound64), f"{name} {dtype}: {found} ulp"


@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_powers_of_two(run_kernel, lanes):
    x = spread(-126.4, 0, "float32")
    got = apply(run_kernel, maths.exp2_nonpositive, x, lanes=lanes)
    assert ulps(got, np.exp2(x.astype(WIDE)), "float32") <= 2
    whole = np.arange(-126, 1).astype("f4")
    borders = np.array([-0.0, -126.6, -127, -128, -1e30, -np.inf, np.nan], "f4")
    x = np.resize(np.concatenate((whole, borders)), 144)
    got = apply(run_kernel, maths.exp2_nonpositive, x, lanes=lanes, interpreted=True)
    exact = np.where(x < -126.5, 0, np.exp2(x))  # nothing below the normal numbers
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 4e-7), ("float64", 4e-16)])
def test_erf(run_kernel, dtype, bound):
    x = spread(-7, 7, dtype)
    got = apply(run_kernel, maths.erf, x)
    assert np.abs(got - erf(x.astype("float64"))).max() <= bound
    assert ulps(got, erf(x.astype("float64")).astype(WIDE), dtype) <= 8


BORDERS = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 5e-324, -5e-324, 1e-39, -1e-39]
BORDERS += [
    np.inf,
    -np.inf,
    np.nan,
    2.0,
    -2.0,
    88.8,
    89.5,
    -104,
    -200,
    710.2,
    -746,
    1000.0,
    -1000.0,
]
BORDERS += [3e38, -3e38, 0.5, -0.5, 1.0000001, 4.0, -4.0, 1e-20]
NUMPY = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": erf,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NUMPY)
def test_borders(run_kernel, name, dtype, lanes):
    with np.errstate(all="ignore"):
        x = np.resize(np.array(BORDERS), 4 * (len(BORDERS) // 4 + 1)).astype(dtype)
        exact = NUMPY[name](x.astype(WIDE)).astype(dtype)
    got = apply(run_kernel, getattr(maths, name), x, lanes=lanes, interpreted=True)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got, exact, rtol=1e-6 if dtype == "float32" else 1e-14, atol=1e-37
        )
    if name in {"tanh", "asin", "atan", "sinh", "asinh", "atanh", "expm1", "erf"}:
        np.testing.assert_array_equal(np.signbit(got[:2]), [False, True])
        small = np.abs(x) < 1e-30
        if name != "erf":
            np.testing.assert_array_equal(got[small], x[small])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sine_and_cosine_of_what_has_none(run_kernel, dtype):
    x = np.array([np.inf, -np.inf, np.nan, 0.0], dtype)
    for function, at_zero in ((maths.sin, 0.0), (maths.cos, 1.0), (maths.tan, 0.0)):
        got = apply(run_kernel, function, x, lanes=4, interpreted=True)
        np.testing.assert_array_equal(got, [np.nan] * 3 + [at_zero])


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1), ("float64", 32)])
def test_power(run_kernel, dtype, bound):
    rng = np.random.default_rng(3)
    x = (10.0 ** rng.uniform(-4, 4, 8192)).astype(dtype)
    y = rng.uniform(-9, 9, 8192).astype(dtype)
    got = apply(run_kernel, maths.pow, x, y)
    assert ulps(got, np.power(x.astype(WIDE), y.astype(WIDE)), dtype) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_at_borders(run_kernel, dtype):
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, np.inf, -np.inf, np.nan]
    values += [1e30, -1e30, 7.0]
    x, y = (
        grid.reshape(-1) for grid in np.meshgrid(np.array(values, dtype), np.array(values, dtype))
    )
    got = apply(run_kernel, maths.pow, x, y, interpreted=True)
    with np.errstate(all="ignore"):
        exact = np.power(x, y)
    np.testing.assert_allclose(got, exact, rtol=1e-6 if dtype == "float32" else 1e-14)
    zero = exact == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(exact[zero]))
