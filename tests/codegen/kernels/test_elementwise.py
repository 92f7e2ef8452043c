"""Elementwise kernels against numpy: domains, strides, broadcasts, transposes, blocked layouts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.codegen.body import Apply, Body, Layout, identity
from intarsia.codegen.ir import DTYPES, row_major
from intarsia.codegen.kernels.domain import Ragged
from intarsia.codegen.kernels.elementwise import Elementwise, build
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = [AVX512, AVX2, SSE, SCALAR]
ADD_RELU = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,))


def numbers(shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    return (rng.standard_normal(shape) * 50).astype(dtype)


def strides_of(array):
    return tuple(step // array.itemsize for step in array.strides)


def run_views(run_kernel, body, inputs, out_dtype, unit, out=None, **options):
    """Run a kernel on views of dense arrays; returns the output as a view of the domain."""
    domain = inputs[0].shape
    memory = np.zeros(domain, out_dtype) if out is None else out
    layouts, bases = [], []
    for view in inputs:
        base = view
        while base.base is not None:
            base = base.base
        layouts.append(Layout(view.dtype.name, strides_of(view)))
        bases.append(base)
    y = Layout(memory.dtype.name, strides_of(memory))
    base = memory if memory.base is None else memory.base
    spec = Elementwise(domain, tuple(layouts), (y,), body, unit)
    *_, got = run_kernel(build(spec), [*bases, base], **options)
    return np.lib.stride_tricks.as_strided(got.reshape(-1), memory.shape, memory.strides)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (64,), (131,), (3, 7), (2, 3, 4, 5), (0,), (3, 0)]
)
def test_dense(run_kernel, unit, shape):
    x, y = numbers(shape), numbers(shape, seed=1)
    got = run_views(run_kernel, ADD_RELU, [x, y], "float32", unit)
    np.testing.assert_array_equal(got, np.maximum(x + y, 0))


@pytest.mark.parametrize("unit", UNITS)
def test_many_turns_and_tails(run_kernel, unit):
    x, y = numbers((3, 40_007)), numbers((3, 1), seed=1)
    y = np.broadcast_to(y, x.shape)
    got = run_views(run_kernel, ADD_RELU, [x, y], "float32", unit, interpreted=False)
    np.testing.assert_array_equal(got, np.maximum(x + y, 0))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("perm", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 17, 33), (16, 1, 16), (4, 3, 50)])
def test_transposes(run_kernel, unit, perm, shape):
    x = numbers(shape)
    got = run_views(run_kernel, identity("float32"), [x.transpose(perm)], "float32", unit)
    np.testing.assert_array_equal(got, x.transpose(perm))


@pytest.mark.parametrize("unit", [AVX512, AVX2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_transposes_every_dtype(run_kernel, unit, dtype):
    x = numbers((37, 70), dtype)
    got = run_views(run_kernel, identity(dtype), [x.T], dtype, unit)
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("unit", UNITS)
def test_transposed_operand_of_a_chain(run_kernel, unit):
    x, y = numbers((19, 35)), numbers((35, 19), seed=1)
    got = run_views(run_kernel, ADD_RELU, [x.T, y], "float32", unit)
    np.testing.assert_array_equal(got, np.maximum(x.T + y, 0))


@pytest.mark.parametrize("unit", UNITS)
def test_strided_and_reversed(run_kernel, unit):
    x = numbers((9, 42))
    for view in (x[::2, ::3], x[::-1], x[:, ::-1], x[::-1, ::-2]):
        # the kernel is given the lowest address
        flat = (view.__array_interface__["data"][0] - x.ctypes.data) // 4
        flat += sum(min(0, s) // 4 * (n - 1) for s, n in zip(view.strides, view.shape, strict=True))
        layout = Layout("float32", strides_of(view))
        out = Layout("float32", row_major(view.shape))
        spec = Elementwise(view.shape, (layout,), (out,), identity("float32"), unit)
        memory = x.reshape(-1)[flat:]
        *_, got = run_kernel(build(spec), [memory, np.zeros(view.shape, "float32")])
        np.testing.assert_array_equal(got, view)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("channels", [3, 8, 16, 21, 37])
def test_blocked_layouts_and_back(run_kernel, unit, channels):
    block, height, width = 8, 5, 7
    blocks = -(-channels // block)
    x = numbers((2, channels, height, width))
    domain = (2, blocks, height, width, block)
    pixels = height * width
    plain = Layout("float32", (channels * pixels, block * pixels, width, 1, pixels))
    blocked = Layout("float32", row_major(domain))
    ragged = Ragged(1, 4, channels)
    there = Elementwise(domain, (plain,), (blocked,), identity("float32"), unit, ragged)
    _, got = run_kernel(build(there), [x, np.zeros(domain, "float32")])
    padded = np.zeros((2, blocks * block, height, width), "float32")
    padded[:, :channels] = x
    expected = padded.reshape(2, blocks, block, height, width).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(got, expected)
    back = Elementwise(domain, (blocked,), (plain,), identity("float32"), unit, ragged)
    _, again = run_kernel(build(back), [got, np.zeros_like(x)])
    np.testing.assert_array_equal(again, x)


def test_several_outputs(run_kernel):
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Mul", (0, 2))), (2, 3, 0))
    x, y = numbers((4, 33)), numbers((4, 33), seed=1)
    layout = Layout("float32", (33, 1))
    spec = Elementwise((4, 33), (layout, layout), (layout,) * 3, body)
    *_, total, product, same = run_kernel(
        build(spec), [x, y, *(np.zeros((4, 33), "float32") for _ in range(3))]
    )
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_allclose(product, x * (x + y), rtol=1e-6)
    np.testing.assert_array_equal(same, x)


@st.composite
def domains(draw):
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 17])) for _ in range(rank))
    inputs = [
        (
            tuple(draw(st.booleans()) for _ in range(rank)),
            tuple(draw(st.permutations(range(rank)))),
        )
        for _ in range(2)
    ]
    return shape, inputs, tuple(draw(st.permutations(range(rank)))), draw(st.sampled_from(UNITS))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(domains())
def test_any_broadcast_and_permutation(run_kernel, drawn):
    shape, inputs, out_perm, unit = drawn
    views = []
    for seed, (is_broadcast, perm) in enumerate(inputs):
        lying = [1 if flag else extent for flag, extent in zip(is_broadcast, shape, strict=True)]
        memory = numbers([lying[dim] for dim in perm], seed=seed)
        view = memory.transpose(np.argsort(perm))
        views.append(np.broadcast_to(view, shape))
    memory = np.zeros([shape[dim] for dim in out_perm], "float32")
    out = memory.transpose(np.argsort(out_perm))
    got = run_views(run_kernel, ADD_RELU, views, "float32", unit, out=out)
    np.testing.assert_array_equal(got, np.maximum(views[0] + views[1], 0))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["bool", "float16", "int8"])
def test_transposed_operand_is_converted(run_kernel, unit, dtype):
    x = numbers((21, 40), dtype)
    body = Body((dtype,), (Apply("Cast", (0,), (), "float32"),), (1,))
    got = run_views(run_kernel, body, [x.T], "float32", unit)
    np.testing.assert_array_equal(got, x.T.astype("float32"))
