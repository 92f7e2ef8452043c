"""Pooling against onnxruntime, and against windows taken one by one in numpy."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxruntime import InferenceSession

from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import pool
from intarsia.codegen.kernels.pool.combination import PoolKind, refuse_exponent
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = (AVX512, AVX2, SSE, SCALAR)
OPERATORS = {PoolKind.MAX: "MaxPool", PoolKind.AVERAGE: "AveragePool", PoolKind.LP: "LpPool"}


@dataclasses.dataclass
class Case:
    """A pooling as ONNX has it."""

    kind: PoolKind = PoolKind.MAX
    shape: tuple[int, ...] = (1, 3, 8, 8)
    kernel: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] | None = None
    dilations: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    ceil_mode: int = 0
    count_include_pad: int = 0
    storage_order: int = 0
    p: int = 2
    dtype: str = "float32"

    def __post_init__(self):
        rank = len(self.kernel)
        self.strides = self.strides or (1,) * rank
        self.dilations = self.dilations or (1,) * rank
        self.pads = self.pads or (0,) * (2 * rank)

    @property
    def out(self):
        rank = len(self.kernel)
        found = []
        for dim in range(rank):
            extent, stride, before = self.shape[2 + dim], self.strides[dim], self.pads[dim]
            reach = (self.kernel[dim] - 1) * self.dilations[dim] + 1
            space = extent + before + self.pads[rank + dim] - reach
            count = space // stride + 1
            if self.ceil_mode:
                count = -(-space // stride) + 1
                if (count - 1) * stride >= extent + before:
                    count -= 1
            found.append(max(0, count))
        return tuple(found)

    def array(self, seed=0):
        rng = np.random.default_rng(seed)
        if np.dtype(self.dtype).kind == "f":
            return rng.standard_normal(self.shape).astype(self.dtype)
        return rng.integers(0, 100, self.shape).astype(self.dtype)

    def expected(self, x, *, with_indices=False):
        """What onnxruntime makes of it."""
        attributes = {"kernel_shape": self.kernel, "strides": self.strides, "pads": self.pads}
        attributes |= {"dilations": self.dilations, "ceil_mode": self.ceil_mode}
        if self.kind is PoolKind.AVERAGE:
            attributes["count_include_pad"] = self.count_include_pad
        if self.kind is PoolKind.LP:
            attributes["p"] = self.p
        if with_indices:
            attributes["storage_order"] = self.storage_order
        names = ["y", "i"] if with_indices else ["y"]
        node = helper.make_node(OPERATORS[self.kind], ["x"], names, **attributes)
        type_ = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        outs = [helper.make_tensor_value_info("y", type_, None)]
        if with_indices:
            outs.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
        info = helper.make_tensor_value_info("x", type_, self.shape)
        model = helper.make_model(
            helper.make_graph([node], "g", [info], outs),
            opset_imports=[helper.make_opsetid("", 22)],
            ir_version=10,
        )
        return InferenceSession(model.SerializeToString()).run(None, {"x": x})

    def by_hand(self, x):
        """The definition, window by window, in float64."""
        y = np.zeros((*self.shape[:2], *self.out), np.float64)
        rank = len(self.kernel)
        for at in itertools.product(*map(range, self.out)):
            items, counted = [], 0
            for tap in itertools.product(*map(range, self.kernel)):
                entry = [
                    at[d] * self.strides[d] - self.pads[d] + tap[d] * self.dilations[d]
                    for d in range(rank)
                ]
                extents = self.shape[2:]
                if all(0 <= e < n for e, n in zip(entry, extents, strict=True)):
                    items.append(x[(slice(None), slice(None), *entry)].astype(np.float64))
                counted += all(
                    -self.pads[d] <= entry[d] < extents[d] + self.pads[rank + d]
                    for d in range(rank)
                )
            place = (slice(None), slice(None), *at)
            if self.kind is PoolKind.MAX:
                y[place] = np.max(items, 0) if items else -math.inf
            elif self.kind is PoolKind.LP:
                y[place] = np.sum(np.abs(items) ** self.p, 0) ** (1 / self.p) if items else 0
            else:
                divisor = counted if self.count_include_pad else len(items)
                y[place] = np.sum(items, 0) / divisor if items else 0
        return y

    def spec(self, unit, block, *, indices=False, epilogue=NOTHING, schedule=None):
        rank = len(self.kernel)
        batch, channels, *extents = self.shape
        blocks = -(-channels // block)
        domain = (batch, blocks, *self.out, block)
        layout = Layout(self.dtype, row_major(domain))
        return pool.Pool(
            batch,
            channels,
            tuple(extents),
            Layout(self.dtype, row_major((batch, blocks, *extents, block))),
            layout,
            self.kind,
            Window(self.out, self.kernel, self.strides, self.dilations),
            tuple(zip(self.pads[:rank], self.pads[rank:], strict=True)),
            Layout("int64", layout.strides) if indices else None,
            block=block,
            is_column_major=bool(self.storage_order),
            counts_padding=bool(self.count_include_pad),
            p=self.p,
            epilogue=dataclasses.replace(epilogue, operands=(layout,) * len(epilogue.operands)),
            unit=unit,
            schedule=schedule,
        )


def pack(array, block):
    """NCHW as blocks of channels; the lanes beyond hold NaN, which nobody may see."""
    fill = np.nan if array.dtype.kind == "f" else 77
    missing = -array.shape[1] % block
    widths = [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2)
    full = np.pad(array, widths, constant_values=fill)
    split = full.reshape(array.shape[0], full.shape[1] // block, block, *array.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def unpack(array, shape, channels):
    moved = np.moveaxis(array, -1, 2)
    return moved.reshape(shape[0], moved.shape[1] * moved.shape[2], *shape[2:])[:, :channels]


def check(run_kernel, case, unit, block, *, x=None, expected=None, **options):
    x = case.array() if x is None else x
    spec = case.spec(unit, block, **options)
    domain = (case.shape[0], spec.blocks, *case.out, block)
    y = np.full(domain, 55, case.dtype)
    got = run_kernel(pool.build(spec), [pack(x, block), y])
    shape = (*case.shape[:2], *case.out)
    expected = case.expected(x)[0] if expected is None else expected
    actual = unpack(got[1].reshape(domain), shape, case.shape[1])
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-6)


def blocks_of(unit):
    return (1, unit.lanes()) if unit.lanes() > 1 else (1,)


LAYOUTS = [(unit, block) for unit in UNITS for block in blocks_of(unit)]
CASES = [
    Case(),
    Case(strides=(2, 2), pads=(1, 1, 1, 1), shape=(1, 18, 9, 11)),
    Case(strides=(2, 2), pads=(0, 0, 1, 1), shape=(3, 5, 7, 23)),
    Case(strides=(3, 3), kernel=(2, 2), ceil_mode=1, shape=(2, 3, 9, 10)),
    Case(kernel=(1, 1), shape=(1, 3, 1, 1)),
    Case(kernel=(3, 3), pads=(1, 1, 1, 1), shape=(1, 17, 1, 1)),
    Case(kernel=(2, 3), dilations=(2, 3), pads=(1, 2, 0, 2), shape=(1, 4, 9, 20)),
    Case(kernel=(5, 5), pads=(2, 2, 2, 2), shape=(1, 3, 4, 40)),
    Case(kernel=(2, 2), strides=(2, 2), shape=(1, 3, 4, 70)),
    Case(kernel=(1, 3), strides=(1, 5), shape=(1, 3, 3, 99)),
    Case(kernel=(3,), strides=(2,), pads=(1, 1), shape=(2, 3, 37)),
    Case(kernel=(2, 3, 3), strides=(1, 2, 2), pads=(1, 0, 1, 0, 1, 1), shape=(1, 3, 3, 6, 7)),
    Case(kernel=(3, 3, 3), pads=(1,) * 6, shape=(1, 3, 1, 4, 5)),  # constant taps at a border
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("kind", list(PoolKind))
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_onnxruntime(run_kernel, case, kind, unit, block):
    case = dataclasses.replace(case, kind=kind)
    check(run_kernel, case, unit, block)


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_average_counts_the_padding(run_kernel, ceil_mode, unit, block):
    case = Case(
        *(PoolKind.AVERAGE, (1, 3, 6, 20), (3, 3), (2, 2), None, (1, 1, 1, 1)),
        ceil_mode=ceil_mode,
        count_include_pad=1,
    )
    check(run_kernel, case, unit, block)


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 6, 9), (1, 2, 3, 4, 5), (2, 3, 11)])
def test_indices(run_kernel, shape, storage_order, unit, block):
    rank = len(shape) - 2
    case = Case(
        shape=shape,
        kernel=(3,) * rank,
        pads=(1,) * 2 * rank,
        strides=(2,) * rank,
        storage_order=storage_order,
    )
    x = case.array().round()  # with equal entries: the first one counts
    x.flat[3] = -np.inf
    largest, indices = case.expected(x, with_indices=True)
    spec = case.spec(unit, block, indices=True)
    domain = (shape[0], spec.blocks, *case.out, block)
    arrays = [pack(x, block), np.zeros(domain, "float32"), np.zeros(domain, "int64")]
    got = run_kernel(pool.build(spec), arrays)
    for actual, expected in zip(got[1:], (largest, indices), strict=True):
        shape_out = (*shape[:2], *case.out)
        plain = unpack(actual.reshape(domain), shape_out, shape[1])
        np.testing.assert_array_equal(plain, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float64"])
@pytest.mark.parametrize("unit", UNITS)
def test_largest_of_other_dtypes(run_kernel, dtype, unit):
    case = Case(shape=(1, 2, 5, 70), pads=(1, 1, 1, 1), strides=(2, 2), dtype=dtype)
    check(run_kernel, case, unit, 1, expected=case.by_hand(case.array()))


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
def test_a_window_wholly_in_the_padding(run_kernel, unit, block):
    for kind in PoolKind:
        case = Case(kind, (1, 2, 2, 3), (2, 2), (1, 1), (2, 2), (3, 3, 3, 3))
        check(run_kernel, case, unit, block, expected=case.by_hand(case.array()))


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
def test_infinities_and_nothing_but_nan(run_kernel, unit, block):
    case = Case(shape=(1, 3, 6, 40), kernel=(2, 2), strides=(2, 2))
    x = case.array()
    x[0, 0, :2, :2] = np.nan
    x[0, 0, :2, 2:4] = -np.inf
    x[0, 1, 0, 5] = np.inf
    check(run_kernel, case, unit, block, x=x)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (1, 0, 8, 8), (1, 3, 2, 8)])
def test_nothing_to_do(run_kernel, shape):
    case = Case(shape=shape)
    expected = np.zeros((*shape[:2], *case.out), "float32")
    check(run_kernel, case, AVX512, 1, expected=expected)


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
def test_epilogue(run_kernel, unit, block):
    case = Case(shape=(1, 5, 7, 21), pads=(1, 1, 1, 1), strides=(2, 2))
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,))
    spec = case.spec(unit, block, epilogue=Fused(body, (Layout("float32", ()),)))
    domain = (1, spec.blocks, *case.out, block)
    x = case.array()
    more = np.random.default_rng(1).standard_normal((1, 5, *case.out)).astype("float32")
    arrays = [pack(x, block), np.zeros(domain, "float32"), pack(more, block)]
    got = run_kernel(pool.build(spec), arrays)
    expected = np.maximum(case.expected(x)[0] + more, 0)
    actual = unpack(got[1].reshape(domain), expected.shape, 5)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_exponents(run_kernel, p):
    assert refuse_exponent(p) is None
    check(run_kernel, Case(PoolKind.LP, p=p), AVX2, 8)


def test_refused_exponents():
    assert "p = 0" in refuse_exponent(0)


def test_memory_with_gaps(run_kernel):
    """A part of a larger tensor, its channels last: what is between stays."""
    case = Case(shape=(1, 3, 6, 9), strides=(2, 2), pads=(1, 1, 1, 1))
    out = case.out
    spec = dataclasses.replace(
        case.spec(AVX2, 1),
        x=Layout("float32", (999, 1, 9 * 4, 4, 1)),
        y=Layout("float32", (999, 2, out[1] * 6, 6, 1)),
    )
    x = np.zeros((6, 9, 4), "float32")
    x[..., :3] = np.moveaxis(case.array()[0], 0, -1)
    y = np.full((*out, 6), 55, "float32")
    got = run_kernel(pool.build(spec), [x, y])[1]
    np.testing.assert_array_equal(
        np.moveaxis(got[..., ::2], -1, 0), case.expected(case.array())[0][0]
    )
    assert (got[..., 1::2] == 55).all()


@st.composite
def random_cases(draw):
    rank = draw(st.integers(1, 2))

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    return Case(
        draw(st.sampled_from(list(PoolKind))),
        (draw(st.integers(1, 2)), draw(st.integers(1, 5)), *numbers(1, 21)),
        numbers(1, 4),
        numbers(1, 5),
        numbers(1, 3),
        numbers(0, 3) + numbers(0, 3),
        ceil_mode=draw(st.integers(0, 1)),
        count_include_pad=draw(st.integers(0, 1)),
    )


@settings(deadline=None, max_examples=60)
@given(random_cases(), st.sampled_from(LAYOUTS), st.integers(1, 4), st.integers(1, 9))
def test_random_attributes(run_kernel, case, layout, positions, unrolled):
    schedule = pool.PoolSchedule(positions, unrolled, bands=2)
    expected = case.by_hand(case.array())
    check(run_kernel, case, *layout, expected=expected, schedule=schedule)
