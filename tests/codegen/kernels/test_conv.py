"""Direct convolution against the ONNX reference evaluator in float64."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernels.conv_cases import SENTINEL, Case, check_conv, describe, layout_of

from intarsia.codegen.body import Layout
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import Loop, walk
from intarsia.codegen.kernels import conv
from intarsia.codegen.kernels.conv import Conv, ConvSchedule
from intarsia.codegen.kernels.conv.schedules import choose_schedule
from intarsia.codegen.kernels.convolution import ConvKind, choose
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.tile import tile_rows
from intarsia.codegen.unit import AVX2, AVX512, NEON, SCALAR, SSE
from intarsia.native.machine import NativeCpu, compile_assembly

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}
CASES = {
    "3x3": Case((16, 32), (6, 6), (3, 3), pads=(1, 1, 1, 1), residual=True),
    "odd channels": Case((19, 21), (5, 7), (3, 3), pads=(1, 1, 1, 1)),
    "few channels": Case((3, 5), (6, 5), (2, 2)),
    "one pixel": Case((20, 33), (1, 1), (1, 1), residual=True),
    "one pixel, padded": Case((4, 16), (1, 1), (3, 3), pads=(1, 1, 1, 1)),
    "1x1": Case((24, 40), (5, 9), (1, 1), residual=True),
    "1x1 strided": Case((16, 16), (7, 6), (1, 1), strides=(2, 2)),
    "stride over kernel": Case((8, 16), (11, 9), (2, 2), strides=(4, 3)),
    "asymmetric": Case((8, 16), (5, 6), (3, 2), pads=(2, 0, 1, 3), residual=True),
    "dilated": Case((8, 16), (9, 8), (3, 2), dilations=(2, 3), pads=(1, 0, 0, 2)),
    "batch 3": Case((8, 16), (4, 5), (3, 3), batch=3, pads=(1, 1, 1, 1), bias=False),
    "grouped": Case((32, 64), (4, 4), (3, 3), groups=2, pads=(1, 1, 1, 1), residual=True),
    "1-D": Case((12, 20), (17,), (4,), strides=(2,), pads=(1, 2)),
    "3-D": Case((5, 18), (3, 4, 5), (2, 3, 2), strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 0)),
    "3-D points": Case((16, 16), (2, 3, 5), (1, 1, 1), batch=2, residual=True),
    "tall": Case((4, 16), (23, 3), (1, 3)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_direct_agrees_with_the_reference(run_kernel, case, unit):
    if CASES[case].groups > 1 or unit == "avx512":
        check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.DIRECT)
    else:
        check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.DIRECT, interpreted=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", ["3x3", "few channels", "asymmetric", "1-D", "grouped"])
def test_direct_reads_plain_input(run_kernel, case, unit):
    check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.DIRECT, x_block=1)


@pytest.mark.parametrize("case", ["3x3", "1x1", "dilated", "3-D", "odd channels"])
def test_direct_writes_into_a_padded_buffer(run_kernel, case):
    check_conv(run_kernel, CASES[case], AVX2, ConvKind.DIRECT, border=2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "schedule",
    [
        ConvSchedule(5, 3, bands=3),
        ConvSchedule(4, 2, unroll=8, prefetch=16),
        ConvSchedule(7, 2, chunk=1, bands=2),
        ConvSchedule(3, 1, chunk=2, unroll=1),
    ],
)
def test_direct_follows_its_schedule(run_kernel, schedule, first):
    schedule = ConvSchedule(**{**_fields(schedule), "is_channels_first": first})
    case = Case((28, 40), (5, 6), (3, 3), batch=2, pads=(1, 1, 1, 1), residual=True)
    check_conv(run_kernel, case, AVX2, ConvKind.DIRECT, schedule=schedule)


def _fields(schedule):
    return {name: getattr(schedule, name) for name in type(schedule).__dataclass_fields__}


def test_not_a_number_reaches_only_the_pixels_that_see_it(run_kernel):
    layout = Layout("float32", (32, 32, 8, 1), 64)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    layout = Layout("float32", (72, 72, 24, 8, 1), 64)
    spec = Conv(1, 1, 8, 8, window, layout, layout, x_block=8, unit=AVX2)
    x = np.ones((1, 1, 3, 3, 8), "float32")
    x[0, 0, 1, 1, 2] = np.nan
    x[0, 0, 0, 0, 0] = np.inf
    weights = conv.pack(spec, np.eye(8, dtype="float32").reshape(8, 8, 1, 1) + 1)
    y = run_kernel(conv.build(spec), [x, weights, np.zeros_like(x)])[2]
    assert np.isnan(y[0, 0, 1, 1]).all()
    assert np.isposinf(y[0, 0, 0, 0]).all()
    assert np.isfinite(np.delete(y.reshape(9, 8), (0, 4), axis=0)).all()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_direct_agrees_on_random_shapes(run_kernel, data):
    unit = UNITS[data.draw(st.sampled_from(sorted(UNITS)))]
    case = draw_case(data, unit.lanes())
    x_block = data.draw(st.sampled_from([0, 1]))
    check_conv(run_kernel, case, unit, ConvKind.DIRECT, x_block=x_block, interpreted=False)


def draw_case(data, lanes):
    """A small convolution whose groups are whole blocks."""
    small = st.integers(1, 3)
    rank = data.draw(small)
    groups = data.draw(st.sampled_from([1, 1, 2]))
    if groups > 1:
        channels = tuple(groups * lanes * data.draw(st.integers(1, 2)) for _ in range(2))
    else:
        channels = (data.draw(st.integers(1, 35)), data.draw(st.integers(1, 50)))
    dims = [tuple(data.draw(small) for _ in range(rank)) for _ in range(3)]
    pads = tuple(data.draw(st.integers(0, 2)) for _ in range(2 * rank))
    kernel, _, dilations = dims
    least = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = tuple(
        max(1, need - pads[i] - pads[rank + i]) + data.draw(st.integers(0, 6))
        for i, need in enumerate(least)
    )
    return Case(
        *(channels, size, *dims, pads, groups),
        batch=data.draw(st.integers(1, 2)),
        bias=data.draw(st.booleans()),
        residual=data.draw(st.booleans()),
    )


@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE, NEON, SCALAR])
def test_tiles_fit_the_registers(unit):
    for vectors in range(1, 9):
        rows = tile_rows(vectors, unit)
        assert rows == 1 or rows * vectors + vectors + 1 <= unit.registers


@pytest.mark.parametrize(
    ("inputs", "outputs", "extent", "batch", "is_channels_first"),
    [
        (64, 64, 56, 8, False),  # the weights stay cached
        (2048, 512, 7, 1, True),  # the input does
        (1024, 2048, 14, 8, False),  # neither, and 64 tiles would read 6 MiB of inputs each
        (512, 2048, 7, 8, True),  # neither in all, but eight images fit
    ],
)
def test_the_order_of_turns_reads_little_again(inputs, outputs, extent, batch, is_channels_first):
    window = Window((extent, extent), (1, 1), (1, 1), (1, 1))
    schedule = choose_schedule(window, inputs, outputs // 16, batch, 1, AVX512)
    assert schedule.is_channels_first is is_channels_first


@pytest.mark.parametrize("taps", [1, 3])
def test_tiles_of_codes_use_weights_more_than_once(taps):
    window = Window((7, 7), (taps, taps), (2, 2), (1, 1))
    border = 13 + taps - 1
    x = Layout("int16", (0, border * border * 8, border * 8, 8, 1), 64)
    y = Layout("int32", (0, 49 * 8, 7 * 8, 8, 1), 64)
    spec = Conv(1, 1, 512, 512, window, x, y, unit=AVX2, weight_dtype="int16", x_block=8)
    schedule = conv.schedule(spec)
    assert schedule.pixels > 1
    assert schedule.vectors > 1


def test_schedules_give_enough_turns():
    for channels, size, taps in ((64, 56, 3), (256, 14, 3), (512, 7, 3), (1024, 14, 1)):
        border = size + taps - 1
        x = Layout("float32", (0, border * border * 16, border * 16, 16, 1), 64)
        y = Layout("float32", (0, size * size * 16, size * 16, 16, 1), 64)
        window = Window((size, size), (taps, taps), (1, 1), (1, 1))
        spec = Conv(1, 1, channels, channels, window, x, y, x_block=16)
        loop = conv.build(spec).parallel
        assert isinstance(loop, Loop)
        assert loop.trip_count >= 16
        assert sum(1 for _ in walk(loop.body)) < 4000


@pytest.mark.parametrize("name", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize(
    ("channels", "size", "taps", "stride"),
    [(128, 28, 3, 1), (256, 14, 3, 1), (192, 35, 3, 2), (384, 8, 3, 1), (512, 7, 1, 1)],
)
def test_innermost_loops_keep_off_the_stack(channels, size, taps, stride, name):
    unit = AVX512 if name == "skylake-avx512" else AVX2
    lanes, border = unit.lanes(), size + taps - 1
    out = (border - taps) // stride + 1
    x = Layout("float32", (0, border * border * lanes, border * lanes, lanes, 1), 64)
    y = Layout("float32", (0, out * out * lanes, out * lanes, lanes, 1), 64)
    window = Window((out, out), (taps, taps), (stride, stride), (1, 1))
    spec = Conv(1, 1, channels, channels, window, x, y, x_block=lanes, unit=unit)
    text = emit_llvm(expand(conv.build(spec)))
    loops = innermost_loops(compile_assembly(text, NativeCpu("x86_64-unknown-linux-gnu", name)))
    products = [loop for loop in loops if "vfmadd" in loop]
    assert products
    assert not any("%rsp" in loop for loop in products)


def innermost_loops(assembly):
    """The code between a label and a jump back to it, with no label or jump in between."""
    loop = r"^(\.LBB\w+):((?:(?!^\.LBB).)*?)^\tj\w+\t\1$"
    return [match[2] for match in re.finditer(loop, assembly, re.M | re.S)]


def test_choice_of_a_kernel():
    assert choose(1, 64, 64, AVX512) is ConvKind.DIRECT
    assert choose(1, 3, 64, AVX512) is ConvKind.DIRECT
    assert choose(1, 64, 3, AVX512) is ConvKind.PLAIN
    assert choose(96, 96, 96, AVX512) is ConvKind.DEPTHWISE
    assert choose(3, 3, 3, AVX512) is ConvKind.PLAIN
    assert choose(2, 64, 64, AVX512) is ConvKind.DIRECT
    assert choose(32, 128, 128, AVX512) is ConvKind.PLAIN
    assert choose(32, 32, 64, AVX512) is ConvKind.PLAIN
    assert choose(2, 16, 16, AVX2) is ConvKind.DIRECT


@pytest.mark.parametrize("kind", list(ConvKind))
@pytest.mark.parametrize("empty", ["batch", "inputs", "outputs", "rows", "columns"])
def test_empty_tensors(run_kernel, kind, empty):
    inputs, outputs = 0 if empty == "inputs" else 8, 0 if empty == "outputs" else 8
    if kind is ConvKind.DEPTHWISE:
        inputs = outputs = min(inputs, outputs)
    case = Case((inputs, outputs), groups=8 if kind is ConvKind.DEPTHWISE else 1)
    case.batch = 0 if empty == "batch" else 1
    out = (0 if empty == "rows" else 2, 0 if empty == "columns" else 3)
    tail = () if kind is ConvKind.PLAIN else (8,)
    x = np.zeros((case.batch, 8, 4, 5, *tail), "float32")
    y = np.full((case.batch, 8, 2, 3, *tail), SENTINEL)
    window = Window(out, (3, 3), (1, 1), (1, 1))
    spec, family = describe(kind, case, window, layout_of(x), layout_of(y), unit=AVX2)
    per_group = 1 if kind is ConvKind.DEPTHWISE else inputs
    weights = family.pack(spec, np.ones((outputs, per_group, 3, 3), "float32"))
    bias = np.ones(outputs, "float32")
    got = run_kernel(family.build(spec), [x, weights, bias, y])[3]
    only_bias = empty == "inputs" and kind is not ConvKind.DEPTHWISE  # sums of nothing
    assert (got[got != SENTINEL] == 1).all()
    assert (got != SENTINEL).sum() == (8 * 6 if only_bias else 0)
