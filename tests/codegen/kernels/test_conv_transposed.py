"""Transposed convolution, phase by phase, against ONNX Runtime."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernels.conv_cases import (
    RESIDUAL_RELU,
    SENTINEL,
    Case,
    arrange,
    compare,
    describe,
    random_arrays,
    reference,
    unblock,
)

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import convolution
from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.lower.convolution import transposed_parts
from intarsia.codegen.lower.views import dense_view
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

CASES = {
    "stride 1": Case((8, 16), (4, 5), (3, 3), pads=(1, 1, 1, 1), residual=True),
    "stride 2": Case((10, 20), (4, 5), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), residual=True),
    "even kernel": Case((8, 8), (3, 4), (4, 4), strides=(2, 2), pads=(1, 1, 1, 1)),
    "output padding": Case(
        (8, 8), (3, 4), (3, 3), strides=(3, 2), output_padding=(2, 1), pads=(1, 0, 0, 1)
    ),
    "stride over kernel": Case((8, 8), (3, 2), (2, 1), strides=(4, 3), residual=True),
    "dilated": Case((4, 8), (4, 3), (3, 2), strides=(2, 3), dilations=(2, 2)),
    "dilation without taps": Case((4, 8), (3, 3), (2, 2), strides=(2, 2), dilations=(4, 2)),
    "batch 3": Case((3, 5), (2, 2), (2, 2), strides=(2, 2), batch=3, bias=False),
    "grouped": Case((16, 16), (3, 3), (3, 3), strides=(2, 2), groups=2, pads=(1, 1, 1, 1)),
    "odd groups": Case((6, 9), (3, 4), (3, 3), strides=(2, 1), groups=3),
    "cut more than a tap": Case((4, 4), (5, 6), (3, 3), strides=(2, 2), pads=(3, 3, 3, 4)),
    "depthwise": Case((8, 8), (4, 4), (4, 4), strides=(2, 2), groups=8, pads=(1, 1, 1, 1)),
    "1-D": Case((4, 8), (7,), (5,), strides=(3,), pads=(1, 2)),
    "3-D": Case((3, 8), (2, 3, 2), (2, 3, 1), strides=(2, 2, 2), pads=(0, 1, 0, 0, 0, 0)),
    "one pixel": Case((4, 8), (1, 1), (3, 3), strides=(2, 2), residual=True),
}


def check_transposed(run_kernel, case, unit, kind, *, is_packed=True, **options):
    """Run every phase into one output buffer and compare."""
    lanes, rank, out = unit.lanes(), len(case.size), case.transposed_out
    per_group = case.channels[1] // case.groups
    x, w, bias, residual = random_arrays(case, (case.channels[0], per_group, *case.kernel), out)
    want = reference(case, x, w, bias, residual, "ConvTranspose")
    parts = transposed_parts(
        *(case.size, out, case.kernel, case.strides, case.dilations, case.pads[:rank])
    )
    zeros = [(0, 0), (0, 0), *zip(parts.before, parts.after, strict=True)]
    xs = arrange(kind, np.pad(x, zeros), lanes)
    shape = (case.batch, case.channels[1], *out)
    y = np.full_like(arrange(kind, np.zeros(shape, "float32"), lanes), SENTINEL)
    other = arrange(kind, residual, lanes) if case.residual else None
    biases = []
    if case.bias:
        biases = [bias if kind is ConvKind.PLAIN else convolution.pack_bias(lanes, bias)]

    def step(array, offset, strides):
        """The layout of an array from an entry on, some entries apart, and its memory."""
        steps = row_major(array.shape)
        spatial = steps[2 : 2 + rank]
        first = sum(begin * size for begin, size in zip(offset, spatial, strict=True))
        scaled = tuple(size * s for size, s in zip(spatial, strides, strict=True))
        layout = Layout("float32", (*steps[:2], *scaled, *steps[2 + rank :]))
        return layout, array.reshape(-1)[first:]

    for phase in parts.phases:
        x_layout, x_memory = step(xs, phase.x_offset, (1,) * rank)
        y_layout, y_memory = step(y, phase.y_offset, case.strides)
        epilogue, extra = NOTHING, []
        if other is not None:
            layout, memory = step(other, phase.y_offset, case.strides)
            epilogue, extra = Fused(RESIDUAL_RELU, (layout,)), [memory]
        spec, family = describe(
            kind, case, phase.window, x_layout, y_layout, unit=unit, epilogue=epilogue
        )
        if is_packed:
            weights = family.pack(spec, phase.weights(w, case.groups))
        else:
            view = phase.weights(dense_view(0, "float32", w.shape), case.groups)
            weights = w.reshape(-1)[view.offset :]
            spec = dataclasses.replace(spec, weights=view.strides, is_turned=True)
        arrays = [x_memory, weights, *biases, y_memory, *extra]
        y_memory[:] = run_kernel(family.build(spec), arrays, **options)[2 + len(biases)]
    got = y if kind is ConvKind.PLAIN else unblock(y, case.channels[1])
    compare(got, want, math.prod(w.shape[2:]) * w.shape[0] // case.groups)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE], ids=["avx512", "avx2", "sse"])
@pytest.mark.parametrize("case", CASES)
def test_transposed_agrees_with_onnxruntime(run_kernel, case, unit):
    case = CASES[case]
    kind = convolution.choose(case.groups, *case.channels, unit)
    check_transposed(run_kernel, case, unit, kind, interpreted=unit is AVX2)


@pytest.mark.parametrize("case", ["stride 2", "dilated", "grouped", "1-D", "3-D", "depthwise"])
def test_plain_computes_phases_too(run_kernel, case):
    check_transposed(run_kernel, CASES[case], AVX512, ConvKind.PLAIN)


@pytest.mark.parametrize("unit", [AVX512, SSE, SCALAR], ids=["avx512", "sse", "scalar"])
@pytest.mark.parametrize("case", CASES)
def test_phases_read_weights_as_they_are(run_kernel, case, unit):
    options = {"is_packed": False, "interpreted": unit is SSE}
    check_transposed(run_kernel, CASES[case], unit, ConvKind.PLAIN, **options)


def test_phases_cover_every_output_once():
    parts = transposed_parts((3, 4), (13, 9), (2, 3), (5, 2), (1, 3), (0, 1))
    written = np.zeros((13, 9), int)
    for phase in parts.phases:
        rows, columns = (
            range(begin, begin + count * step, step)
            for begin, count, step in zip(phase.y_offset, phase.window.out, (5, 2), strict=True)
        )
        written[np.ix_(rows, columns)] += 1
    assert (written == 1).all()
    assert any(phase.window.taps == 0 for phase in parts.phases)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_transposed_agrees_on_random_shapes(run_kernel, data):
    small = st.integers(1, 3)
    rank = data.draw(st.integers(1, 2))
    groups = data.draw(small)
    channels = tuple(groups * data.draw(st.integers(1, 9)) for _ in range(2))
    size, kernel, strides, dilations = (
        tuple(data.draw(small) for _ in range(rank)) for _ in range(4)
    )
    padding = tuple(data.draw(st.integers(0, stride - 1)) for stride in strides)
    case = Case(
        *(channels, size, kernel, strides, dilations, None, groups),
        batch=data.draw(st.integers(1, 2)),
        bias=data.draw(st.booleans()),
        output_padding=padding,
    )
    room = [extent - 1 for extent in case.transposed_out]
    before = [data.draw(st.integers(0, min(2, most))) for most in room]
    after = [
        data.draw(st.integers(0, min(2, most - cut)))
        for most, cut in zip(room, before, strict=True)
    ]
    case.pads = (*before, *after)
    kind = convolution.choose(groups, *channels, AVX2)
    check_transposed(run_kernel, case, AVX2, kind, interpreted=False)
