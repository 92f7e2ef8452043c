"""Plain convolution against the ONNX reference evaluator in float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernels.conv_cases import Case, check_conv

from intarsia.codegen.kernels.conv_plain import PlainConvSchedule
from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}
CASES = {
    "3x3": Case((3, 5), (6, 21), (3, 3), pads=(1, 1, 1, 1), residual=True),
    "one pixel": Case((7, 9), (1, 1), (1, 1), residual=True),
    "1x1": Case((5, 11), (5, 9), (1, 1), batch=3, residual=True),
    "groups of two": Case((8, 12), (5, 7), (3, 3), groups=4, pads=(1, 1, 1, 1)),
    "shuffled": Case((12, 24), (6, 6), (1, 1), groups=3, residual=True),
    "multiplier": Case((4, 12), (7, 6), (3, 3), groups=4, pads=(0, 2, 1, 0)),
    "stride 2": Case((4, 6), (9, 40), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "stride 3": Case((2, 3), (5, 110), (2, 2), strides=(4, 3), residual=True),
    "stride 5": Case((2, 3), (5, 90), (2, 2), strides=(1, 5)),
    "stride over kernel": Case((2, 4), (11, 9), (1, 2), strides=(4, 3)),
    "dilated": Case((2, 4), (9, 30), (3, 2), dilations=(2, 5), pads=(1, 0, 0, 2)),
    "wide": Case((2, 3), (3, 150), (1, 3), bias=False),
    "1-D": Case((3, 5), (50,), (4,), strides=(2,), pads=(1, 2), groups=1),
    "3-D": Case((3, 4), (3, 4, 5), (2, 3, 2), strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 0)),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_plain_agrees_with_the_reference(run_kernel, case, unit):
    interpreted = unit in ("avx512", "sse")
    check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.PLAIN, interpreted=interpreted)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_weights_are_read_as_they_are(run_kernel, case, unit):
    options = {"is_packed": False, "interpreted": unit in ("avx2", "scalar")}
    check_conv(run_kernel, CASES[case], UNITS[unit], ConvKind.PLAIN, **options)


@pytest.mark.parametrize(
    "schedule", [PlainConvSchedule(1, 1), PlainConvSchedule(5, 2), PlainConvSchedule(2, 4)]
)
@pytest.mark.parametrize("case", ["stride 2", "wide", "shuffled"])
def test_plain_follows_its_schedule(run_kernel, case, schedule):
    check_conv(run_kernel, CASES[case], AVX2, ConvKind.PLAIN, schedule=schedule)


def test_plain_writes_into_a_padded_buffer(run_kernel):
    check_conv(run_kernel, CASES["wide"], AVX512, ConvKind.PLAIN, border=3)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_plain_agrees_on_random_shapes(run_kernel, data):
    unit = UNITS[data.draw(st.sampled_from(sorted(UNITS)))]
    small = st.integers(1, 3)
    rank = data.draw(small)
    groups = data.draw(small)
    channels = tuple(groups * data.draw(st.integers(1, 7)) for _ in range(2))
    kernel, strides, dilations = (tuple(data.draw(small) for _ in range(rank)) for _ in range(3))
    size = tuple(
        (k - 1) * d + data.draw(st.integers(1, 9)) for k, d in zip(kernel, dilations, strict=True)
    )
    pads = tuple(data.draw(st.integers(0, 2)) for _ in range(2 * rank))
    case = Case(
        *(channels, size, kernel, strides, dilations, pads, groups),
        batch=data.draw(st.integers(1, 2)),
        bias=data.draw(st.booleans()),
        residual=data.draw(st.booleans()),
    )
    options = {"is_packed": data.draw(st.booleans()), "interpreted": np.prod(size) < 20}
    check_conv(run_kernel, case, unit, ConvKind.PLAIN, **options)
