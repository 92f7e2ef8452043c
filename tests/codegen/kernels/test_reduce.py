"""Reductions against numpy, over any dimensions and dtypes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.reduce import Reduction, build
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = [AVX512, AVX2, SSE, SCALAR]


def count(x, axes):
    return np.float64(np.prod([x.shape[axis] for axis in axes]))


def start(x, infinity):
    return infinity if x.dtype.kind == "f" else None


NUMPY = {
    "Sum": lambda x, axes: x.sum(axes),
    "Mean": lambda x, axes: x.sum(axes) / count(x, axes),
    "Max": lambda x, axes: np.max(x, axes, initial=start(x, -np.inf)),
    "Min": lambda x, axes: np.min(x, axes, initial=start(x, np.inf)),
    "Prod": lambda x, axes: x.prod(axes),
    "L1": lambda x, axes: np.abs(x).sum(axes),
    "L2": lambda x, axes: np.sqrt((x * x).sum(axes)),
    "SumSquare": lambda x, axes: (x * x).sum(axes),
    "LogSum": lambda x, axes: np.log(x.sum(axes)),
    "LogSumExp": lambda x, axes: np.logaddexp.reduce(x, axes[0]),
    "ArgMax": lambda x, axes: np.argmax(x, axes[0]),
    "ArgMin": lambda x, axes: np.argmin(x, axes[0]),
}


def reference(kind, x, axes):
    with np.errstate(all="ignore"):
        return NUMPY[kind](x.astype("float64") if x.dtype == "float32" else x, axes)


def reduce(run_kernel, kind, x, axes, unit=AVX512, **options):
    axes = tuple(sorted(axis % x.ndim for axis in axes))
    kept = tuple(extent for axis, extent in enumerate(x.shape) if axis not in axes)
    out = "int64" if kind.startswith("Arg") else x.dtype.name
    layout = Layout(x.dtype.name, tuple(step // x.itemsize for step in x.strides))
    spec = Reduction(
        x.shape, axes, kind, layout, Layout(out, row_major(kept)), unit=unit, **options
    )
    base = x
    while base.base is not None:
        base = base.base
    _, got = run_kernel(build(spec), [base, np.zeros(kept, out)], rtol=1e-5)
    return got


def check(run_kernel, kind, x, axes, unit=AVX512):
    got = reduce(run_kernel, kind, x, axes, unit)
    expected = reference(kind, x, tuple(sorted(axis % x.ndim for axis in axes)))
    if got.dtype.kind == "f":
        scale = np.abs(x[np.isfinite(x)]).sum() if x.size else 1.0
        tolerance = 1e-5 if got.dtype == "float32" else 1e-13
        atol = tolerance * 1e-2 * scale if kind in {"Sum", "Mean"} else tolerance / 10
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=atol)
    else:
        np.testing.assert_array_equal(got, expected.astype(got.dtype))


FLOAT_KINDS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]
AXES = [(-1,), (0,), (1,), (0, 2), (0, 1, 2), (1, 2)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_kinds(run_kernel, kind, unit):
    rng = np.random.default_rng(0)
    for shape in ((3, 5, 67), (2, 19, 4), (5, 1, 1)):
        x = rng.standard_normal(shape).astype("float32")
        x = np.abs(x) + 0.1 if kind == "LogSum" else x
        some = AXES if kind != "LogSumExp" else [(-1,), (0,), (1,)]
        for axes in some if unit is AVX512 else some[::2]:
            check(run_kernel, kind, x, axes, unit)


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min", "Prod", "L1", "SumSquare"])
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_dtypes(run_kernel, kind, dtype):
    x = (np.random.default_rng(0).standard_normal((3, 7, 21)) * 3).astype(dtype)
    for axes in AXES:
        check(run_kernel, kind, x, axes)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_extrema_of_small_dtypes(run_kernel, kind, dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 7, 71))
    for axes in AXES:
        check(run_kernel, kind, x.astype(dtype), axes)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_arguments(run_kernel, kind, dtype, unit):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (3, 38, 35)).astype(dtype)  # many equal ones
    special = np.array(x)
    if np.dtype(dtype).kind == "f":
        special[0, 3, 5:9] = np.nan
        special[1] = -np.inf
        special[2, :, 3] = np.inf
    for values in (x, special):
        for axis in range(3):
            check(run_kernel, kind, values, (axis,), unit)
            got = reduce(run_kernel, kind, values, (axis,), unit, select_last=True)
            flipped = reference(kind, np.flip(values, axis), (axis,))
            np.testing.assert_array_equal(got, values.shape[axis] - 1 - flipped)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["Max", "Min", "Sum", "LogSumExp"])
def test_nan_and_infinity(run_kernel, kind, unit):
    x = np.random.default_rng(0).standard_normal((6, 41)).astype("float32")
    x[0, 40] = np.nan
    x[1, 0] = np.nan
    x[2, 7] = np.inf
    x[3] = -np.inf
    x[4, 3] = -np.inf
    for axes in ((0,), (1,)):
        check(run_kernel, kind, x, axes, unit)


@pytest.mark.parametrize("kind", ["Sum", "Prod", "Max", "Min", "LogSum", "L2", "SumSquare", "Mean"])
def test_empty(run_kernel, kind):
    check(run_kernel, kind, np.zeros((3, 0), "float32"), (1,))
    check(run_kernel, kind, np.zeros((0, 5), "float32"), (0,))
    assert reduce(run_kernel, kind, np.zeros((0, 5), "float32"), (1,)).shape == (0,)


def test_epilogue(run_kernel):
    x = np.random.default_rng(0).standard_normal((5, 40)).astype("float32")
    bias = np.arange(5, dtype="float32")
    epilogue = Fused(
        Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,)), (Layout("float32", (1,)),)
    )
    layout = Layout("float32", (40, 1))
    spec = Reduction((5, 40), (1,), "Sum", layout, Layout("float32", (1,)), epilogue)
    _, got, _ = run_kernel(build(spec), [x, np.zeros(5, "float32"), bias])
    np.testing.assert_allclose(got, x.sum(1) + bias, rtol=1e-5)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 18, 33]), min_size=1, max_size=4),
    perm=st.randoms(use_true_random=False),
    unit=st.sampled_from(UNITS),
    kind=st.sampled_from(["Sum", "Max", "L2"]),
)
def test_any_axes_of_a_permuted_tensor(run_kernel, shape, perm, unit, kind):
    order = list(range(len(shape)))
    perm.shuffle(order)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32").transpose(order)
    axes = [axis for axis in range(x.ndim) if perm.random() < 0.5] or [0]
    check(run_kernel, kind, x, axes, unit)
