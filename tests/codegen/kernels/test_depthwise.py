"""Depthwise convolution against the ONNX reference evaluator in float64."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernels.conv_cases import Case, check_conv

from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.kernels.depthwise import DepthwiseSchedule, choose_schedule
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}


def deep(channels, *rest, **options):
    return Case((channels, channels), *rest, groups=channels, **options)


CASES = {
    "3x3": deep(32, (6, 9), (3, 3), pads=(1, 1, 1, 1), residual=True),
    "odd channels": deep(19, (7, 5), (3, 3), pads=(1, 1, 1, 1), residual=True),
    "stride 2": deep(16, (9, 8), (3, 3), strides=(2, 2), pads=(1, 1, 0, 0)),
    "stride over kernel": deep(16, (9, 11), (2, 2), strides=(3, 4)),
    "5x5": deep(16, (8, 7), (5, 5), pads=(2, 2, 2, 2), residual=True),
    "7x7": deep(16, (9, 8), (7, 7), pads=(3, 3, 3, 3)),
    "dilated": deep(16, (9, 9), (3, 3), dilations=(2, 3), pads=(0, 1, 2, 3)),
    "1x1": deep(20, (4, 5), (1, 1), batch=3, residual=True),
    "one pixel": deep(20, (1, 1), (3, 3), pads=(1, 1, 1, 1)),
    "no bias": deep(16, (5, 5), (3, 3), bias=False),
    "wide kernel": deep(16, (3, 40), (1, 31), pads=(0, 15, 0, 15)),
    "1-D": deep(16, (17,), (4,), strides=(2,), pads=(1, 2)),
    "3-D": deep(16, (3, 4, 5), (2, 3, 2), strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 0)),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_depthwise_agrees_with_the_reference(run_kernel, case, unit):
    interpreted = unit in ("avx512", "avx2")
    check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.DEPTHWISE, interpreted=interpreted)


@pytest.mark.parametrize("unrolled", [0, 1, 2])
@pytest.mark.parametrize("case", ["3x3", "stride 2", "dilated", "1-D"])
def test_depthwise_follows_its_schedule(run_kernel, case, unrolled):
    schedule = DepthwiseSchedule(6, unrolled, bands=2)
    check_conv(run_kernel, CASES[case], AVX2, ConvKind.DEPTHWISE, schedule=schedule)


def test_depthwise_writes_into_a_padded_buffer(run_kernel):
    check_conv(run_kernel, CASES["odd channels"], AVX512, ConvKind.DEPTHWISE, border=1)


@pytest.mark.parametrize("unit", UNITS)
def test_tiles_fit_the_registers(unit):
    for taps in range(1, 12):
        window = Window((20, 20), (taps, taps), (1, 1), (1, 1))
        schedule = choose_schedule(window, 4, UNITS[unit])
        held = taps**schedule.unrolled
        assert schedule.pixels >= 4
        assert schedule.pixels + held + 1 <= UNITS[unit].registers


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_depthwise_agrees_on_random_shapes(run_kernel, data):
    unit = UNITS[data.draw(st.sampled_from(sorted(UNITS)))]
    small = st.integers(1, 4)
    rank = data.draw(st.integers(1, 3))
    kernel, strides, dilations = (tuple(data.draw(small) for _ in range(rank)) for _ in range(3))
    size = tuple(
        (k - 1) * d + data.draw(st.integers(1, 9)) for k, d in zip(kernel, dilations, strict=True)
    )
    case = deep(
        data.draw(st.integers(1, 35)),
        *(size, kernel, strides, dilations),
        pads=tuple(data.draw(st.integers(0, 2)) for _ in range(2 * rank)),
        batch=data.draw(st.integers(1, 2)),
        bias=data.draw(st.booleans()),
        residual=data.draw(st.booleans()),
    )
    check_conv(run_kernel, case, unit, ConvKind.DEPTHWISE, interpreted=False)
