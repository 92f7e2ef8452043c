"""Depthwise and grouped convolutions by strips: the same numbers on every device."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl
from tests.codegen.kernels.conv_cases import (
    RESIDUAL_RELU,
    Case,
    arrange,
    compare,
    describe,
    layout_of,
    pad_zeros,
    random_arrays,
    reference,
    unblock,
)
from tests.codegen.kernels.test_depthwise import CASES as DEPTHWISE
from tests.codegen.kernels.test_grid_conv import check as check_product
from tests.codegen.kernels.test_grid_gemm import FEW, GPU, SMALL
from tests.codegen.kernels.test_grid_rows import interpreted
from tests.ptx import ON_EACH_ARCHITECTURE, assembled

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.convolution import ConvKind, pack_bias
from intarsia.codegen.kernels.grid_conv import grid_conv
from intarsia.codegen.kernels.grid_strips import (
    GridStrips,
    StripSchedule,
    build,
    grid_strips,
    pack,
    schedule,
    schedule_of_rows,
)
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import SSE
from intarsia.extents import symbol

GROUPED = {
    "groups of 4": Case((16, 16), (6, 9), pads=(1, 1, 1, 1), groups=4, residual=True),
    "groups of 8": Case((16, 32), (7, 5), (3, 2), strides=(2, 1), groups=2, batch=2),
    "one tap": Case((24, 12), (4, 5), (1, 1), groups=3, bias=False),
    "groups in 3-D": Case((8, 8), (3, 4, 5), (2, 3, 2), strides=(1, 2, 1), groups=2),
    "few outputs": Case((8, 3), (7, 6), (5, 5), pads=(2, 2, 2, 2)),
    "plain images": Case((3, 8), (7, 6), dilations=(2, 1)),
}
CASES = {**DEPTHWISE, **GROUPED}
PLANS = [StripSchedule(rows, 1, unrolled) for rows in (1, 2) for unrolled in (0, 1, 2)]
QUICK = ("odd channels", "groups of 8")
MORE = ("stride over kernel", "1-D", "groups in 3-D", "plain images")


def arranged(case, machine, plan=None):
    """A kernel's description, its arguments, and the result that is wanted."""
    is_deep = case.groups == case.channels[0] == case.channels[1]
    kind = ConvKind.DEPTHWISE if is_deep else ConvKind.DIRECT
    x_block = 4 if is_deep or case.channels[0] % 4 == 0 else 1
    shape = (case.channels[1], case.channels[0] // case.groups, *case.kernel)
    x, w, bias, residual = random_arrays(case, shape, case.out)
    want = reference(case, x, w, bias, residual)
    xs = arrange(kind, pad_zeros(case, x), 4, x_block)
    y = np.zeros_like(arrange(kind, np.zeros(want.shape, "f4"), 4))
    epilogue, extra = NOTHING, []
    if case.residual:
        other = arrange(kind, residual, 4)
        epilogue, extra = Fused(RESIDUAL_RELU, (layout_of(other),)), [other]
    window = Window(case.out, case.kernel, case.strides, case.dilations)
    layouts = layout_of(xs), Layout("float32", row_major(y.shape), 64)
    conv, _ = describe(kind, case, window, *layouts, unit=SSE, x_block=x_block, epilogue=epilogue)
    spec = GridStrips(conv, machine, plan)
    biases = [pack_bias(4, bias)] if case.bias else []
    return spec, [xs, pack(spec, w), *biases, y, *extra], want


def check(run, case, machine=GPU, plan=None):
    spec, arrays, want = arranged(case, machine, plan)
    got = run(build(spec), arrays, rtol=1e-4)[2 + case.bias]
    terms = case.channels[0] // case.groups * np.prod(case.kernel)
    compare(unblock(got, case.channels[1]), want, terms)


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    check(interpreted(GPU), CASES[name])


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", QUICK)
def test_schedules(name, plan):
    check(interpreted(FEW), CASES[name], FEW, plan)


@pytest.mark.parametrize("run", [run_opencl, run_wgsl, run_nvptx], ids=["opencl", "wgsl", "nvptx"])
@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE),
    ],
)
def test_devices_agree(run, name):
    height = arranged(CASES[name], FEW)[0].conv.normalised().window.out[-2]
    check(run, CASES[name], FEW, StripSchedule(min(2, height), 1, 1))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_shapes(data):
    small = st.integers(1, 4)
    rank = data.draw(st.integers(1, 3))
    kernel, strides, dilations = (tuple(data.draw(small) for _ in range(rank)) for _ in range(3))
    size = tuple(
        (k - 1) * d + data.draw(st.integers(1, 9)) for k, d in zip(kernel, dilations, strict=True)
    )
    groups, width = data.draw(st.sampled_from([(1, 4), (2, 4), (3, 8), (19, 1), (8, 1)]))
    case = Case(
        (groups * width, groups * width),
        *(size, kernel, strides, dilations),
        pads=tuple(data.draw(st.integers(0, 2)) for _ in range(2 * rank)),
        groups=groups,
        batch=data.draw(st.integers(1, 2)),
        bias=data.draw(st.booleans()),
        residual=data.draw(st.booleans()),
    )
    height = arranged(case, FEW)[0].conv.normalised().window.out[-2]
    rows = data.draw(st.integers(1, min(3, height)))
    check(interpreted(FEW), case, FEW, StripSchedule(rows, 1, data.draw(st.integers(0, 2))))


@pytest.mark.parametrize(
    "run", [interpreted(GPU), run_opencl, run_wgsl], ids=["interpreter", "opencl", "wgsl"]
)
def test_groups_of_many_channels_are_a_batch_of_products(run):
    check_product(run, Case((8, 64), (5, 5), groups=2, pads=(1, 1, 1, 1)), schedule=SMALL)


def test_what_is_worth_it():
    deep = arranged(CASES["3x3"], GPU)[0].conv
    grouped = arranged(CASES["groups of 8"], GPU)[0].conv
    wide = replace(grouped, in_channels=64, out_channels=64)
    assert grid_strips(deep, GPU) == GridStrips(deep, GPU)
    assert grid_strips(grouped, GPU) == GridStrips(grouped, GPU)
    assert grid_conv(grouped, GPU) is None
    assert grid_conv(wide, GPU) is not None
    others = {
        "images of a free number": replace(deep, batch=symbol("n")),
        "codes": replace(deep, weight_dtype="int8"),
        "blocks of another size": replace(deep, unit=replace(SSE, bits=256)),
        "no images": replace(deep, batch=0),
        "channels that fill no block": replace(grouped, groups=1, in_channels=63),
    }
    for name, other in others.items():
        assert grid_strips(other, GPU) is None, name
    assert grid_strips(deep, replace(GPU, most_items=16)) is None


def test_strips_are_longer_where_there_is_enough_to_do():
    def rows(channels, size):
        return schedule(arranged(Case((channels,) * 2, size, groups=channels), GPU)[0]).rows

    assert [rows(8, (9, 9)), rows(64, (114, 114))] == [1, 4]


@ON_EACH_ARCHITECTURE
def test_ptx_stays_in_registers(arch):
    shapes = {
        "deep3": Case((64, 64), (58, 58), groups=64),
        "deep3s2": Case((64, 64), (59, 59), strides=(2, 2), groups=64),
        "deep7": Case((64, 64), (62, 62), (7, 7), groups=64),
        "group4": Case((64, 64), (58, 58), groups=16),
        "group8": Case((64, 64), (16, 16), groups=8),
    }
    functions = {}
    for name, case in shapes.items():
        for rows in (1, 4):
            spec = arranged(case, GPU)[0]
            plan = schedule_of_rows(spec, rows)
            functions[f"{name}_{rows}"] = build(replace(spec, schedule=plan))
    for name, (one, body) in assembled(functions, arch).items():
        assert one.registers <= 128, one
        assert one.spilled_bytes == one.shared_bytes == 0, one
        assert "ld.global.nc.v4" in body, name
        assert "bar.sync" not in body, name
