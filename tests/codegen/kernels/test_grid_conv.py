"""Convolutions as products by tiles in shared memory: the same numbers on every device."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl
from tests.codegen.kernels.conv_cases import (
    RESIDUAL_RELU,
    Case,
    arrange,
    compare,
    layout_of,
    pad_zeros,
    random_arrays,
    reference,
    unblock,
)
from tests.codegen.kernels.test_grid_gemm import FEW, GPU, LARGE, MEDIUM, SMALL, TINY
from tests.codegen.kernels.test_grid_rows import interpreted
from tests.codegen.test_grid import barriers, without
from tests.ptx import ON_EACH_ARCHITECTURE, assembled

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.convolution import ConvKind, pack_bias
from intarsia.codegen.kernels.grid_conv import GridConv, build, grid_conv, pack
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import SSE
from intarsia.errors import InternalError
from intarsia.extents import symbol

CASES = {
    "padded": Case((8, 20), (7, 6), pads=(1, 1, 1, 1)),
    "strides": Case((4, 16), (9, 9), (3, 2), strides=(2, 1), dilations=(1, 2), residual=True),
    "one tap": Case((12, 18), (5, 5), (1, 1), bias=False, batch=2),
    "plain images": Case((3, 16), (8, 7), (3, 3), pads=(1, 0, 1, 2)),
    "one dimension": Case((8, 16), (21,), (5,), batch=2),
}


def arranged(case, machine=GPU, schedule=None):
    """A kernel's description, its arguments, and the result that is wanted."""
    shape = (case.channels[1], case.channels[0] // case.groups, *case.kernel)
    x, w, bias, residual = random_arrays(case, shape, case.out)
    want = reference(case, x, w, bias, residual)
    x_block = 4 if case.channels[0] % 4 == 0 else 1
    xs = arrange(ConvKind.DIRECT, pad_zeros(case, x), 4, x_block)
    y = np.zeros_like(arrange(ConvKind.DIRECT, np.zeros(want.shape, "f4"), 4))
    epilogue, extra = NOTHING, []
    if case.residual:
        other = arrange(ConvKind.DIRECT, residual, 4)
        epilogue, extra = Fused(RESIDUAL_RELU, (layout_of(other),)), [other]
    window = Window(case.out, case.kernel, case.strides, case.dilations)
    layouts = layout_of(xs), Layout("float32", row_major(y.shape), 64)
    extents = (case.batch, case.groups, *case.channels)
    options = {"epilogue": epilogue, "unit": SSE, "x_block": x_block}
    conv = Conv(*extents, window, *layouts, case.bias, **options)
    spec = GridConv(conv, machine, schedule)
    biases = [pack_bias(4, bias)] if case.bias else []
    return spec, [xs, pack(spec, w), *biases, y, *extra], want


def check(run, case, machine=GPU, schedule=None):
    spec, arrays, want = arranged(case, machine, schedule)
    got = run(build(spec), arrays, rtol=1e-4)[2 + case.bias]
    compare(unblock(got, case.channels[1]), want, case.channels[0] * np.prod(case.kernel))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "schedule", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.exhaustive)], ids=["small", "medium"]
)
def test_cases(name, schedule):
    check(interpreted(GPU), CASES[name], schedule=schedule)


@pytest.mark.parametrize("run", [run_opencl, run_wgsl], ids=["opencl", "wgsl"])
@pytest.mark.parametrize("name", ["strides", pytest.param("padded", marks=pytest.mark.exhaustive)])
def test_devices_agree(run, name):
    check(run, CASES[name], schedule=SMALL)


@pytest.mark.parametrize("name", ["strides", "plain images"])
def test_text_for_nvptx_has_the_same_numbers(name):
    check(run_nvptx, replace(CASES[name], size=(5, 5)), FEW, TINY)


def test_every_barrier_counts():
    spec, arrays, _ = arranged(CASES["padded"], schedule=SMALL)
    function = expand(build(spec))
    assert barriers(function) == 2
    for number in range(2):
        wrong = replace(function, body=without(function.body, number, []))
        with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry"):
            interpret(wrong, [array.reshape(-1).copy() for array in arrays])


def test_what_is_worth_it():
    conv = arranged(Case((64, 64), (14, 14)))[0].conv
    assert grid_conv(conv, GPU) == GridConv(conv, GPU)
    others = {
        "groups of few channels": replace(conv, groups=4),
        "images of a free number": replace(conv, batch=symbol("n")),
        "codes": replace(conv, weight_dtype="int8"),
        "few channels": replace(conv, out_channels=12),
        "channels that fill no block": replace(conv, in_channels=63),
    }
    for name, other in others.items():
        assert grid_conv(other, GPU) is None, name
    assert grid_conv(conv, replace(GPU, shared_bytes=1 << 10)) is None


@ON_EACH_ARCHITECTURE
def test_ptx_stays_in_registers(arch):
    functions, plans = {}, {}
    for case in (Case((64, 64), (28, 28), pads=(1,) * 4), Case((64, 128), (7, 7), (1, 1))):
        for plan in (LARGE, MEDIUM, SMALL):
            spec, *_ = arranged(case, schedule=plan)
            name = f"c{len(functions)}"
            plans[name] = plan
            functions[name] = build(spec)
    for name, (one, body) in assembled(functions, arch).items():
        plan = plans[name]
        assert one.registers * plan.work_items <= 64 << 10, one
        assert one.registers <= 200, one
        assert one.spilled_bytes <= 16, one
        assert plan.shared_bytes - 16 <= one.shared_bytes <= plan.shared_bytes
        assert "ld.global.nc.v4" in body
        assert body.count("bar.sync") == 2
