"""Convolution by Winograd's transforms against the ONNX reference evaluator in float64."""

import ctypes
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.conftest import aligned_copy
from tests.codegen.kernels.conv_cases import (
    RESIDUAL_RELU,
    SENTINEL,
    Case,
    block,
    layout_of,
    pad_zeros,
    random_arrays,
    reference,
    unblock,
)

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import row_major, walk
from intarsia.codegen.kernels import convolution, winograd
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.kernels.winograd import SCRATCH_BYTES, Winograd, WinogradSchedule
from intarsia.codegen.kernels.winograd.schedules import (
    block_count,
    choose_schedule,
    choose_winograd,
    tile_grid,
)
from intarsia.codegen.unit import AVX2, AVX512, NEON, SCALAR, SSE
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import (
    NativeCpu,
    compile_assembly,
    compile_object,
    host_machine,
)

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}
PADS = (1, 1, 1, 1)
CASES = {
    "whole tiles": Case((16, 32), (8, 8), pads=PADS, residual=True),
    "cut tiles": Case((16, 16), (7, 9), pads=PADS, residual=True),
    "odd channels": Case((19, 21), (5, 6), pads=PADS),
    "few channels": Case((3, 5), (6, 5), bias=False),
    "one position": Case((8, 16), (1, 1), pads=PADS),
    "one row": Case((8, 40), (1, 11), pads=PADS, residual=True),
    "one column": Case((5, 16), (10, 1), pads=PADS),
    "asymmetric": Case((8, 16), (4, 6), pads=(2, 0, 1, 3)),
    "batch 3": Case((8, 24), (4, 5), batch=3, pads=PADS, bias=False, residual=True),
}


def window_of(*out):
    return Window(out, (3, 3), (1, 1), (1, 1))


def run_winograd(
    run_kernel, case, outputs, unit, *, threads=1, schedule=None, x=None, is_padded=None, **options
):
    """The result, NCHW, and that of the reference; a border around the output must stay."""
    lanes = unit.lanes()
    drawn, w, bias, residual = random_arrays(case, (*reversed(case.channels), 3, 3), case.out)
    x = drawn if x is None else x
    xs = block(pad_zeros(case, x), lanes)  # lanes without a channel are NaN, nothing lies beyond
    ends = [(0, 0), (0, 0), (1, 1), (2, 2)]
    whole = np.pad(np.zeros((case.batch, case.channels[1], *case.out), "float32"), ends)
    whole = np.full_like(block(whole, lanes), SENTINEL)
    strides = row_major(whole.shape)
    skipped = strides[2] + 2 * strides[3]
    epilogue, extra = NOTHING, []
    if case.residual:
        other = block(residual, lanes)
        epilogue, extra = Fused(RESIDUAL_RELU, (layout_of(other),)), [other]
    has_border = min(case.pads[2:], default=0) > 0
    spec = Winograd(
        case.batch,
        1,
        *case.channels,
        window_of(*case.out),
        layout_of(xs),
        Layout("float32", strides),
        case.bias,
        epilogue,
        unit,
        outputs=outputs,
        threads=threads,
        is_padded=has_border if is_padded is None else is_padded,
        schedule=schedule,
    )
    biases = [convolution.pack_bias(lanes, bias)] if case.bias else []
    memory = whole.reshape(-1)[skipped:]
    arrays = [xs, winograd.pack(spec, w), *biases, memory, *extra]
    whole.reshape(-1)[skipped:] = run_kernel(winograd.build(spec), arrays, rtol=1e-5, **options)[
        2 + len(biases)
    ]
    inner = (slice(None), slice(None), slice(1, -1), slice(2, -2))
    touched = np.zeros(whole.shape, bool)
    touched[inner] = True
    assert (whole[~touched] == SENTINEL).all()
    return unblock(whole[inner], case.channels[1]), reference(case, x, w, bias, residual)


def relative_error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.sample(3)
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(run_kernel, case, unit, outputs):
    is_small = unit == "avx512" or case in ("few channels", "one position")
    got, want = run_winograd(run_kernel, CASES[case], outputs, UNITS[unit], interpreted=is_small)
    assert relative_error(got, want) < 1.5e-6


@pytest.mark.parametrize(("outputs", "bound"), [(2, 4e-7), (4, 1.5e-6)])
@pytest.mark.parametrize(("channels", "size"), [(64, 28), (256, 14), (512, 7)])
@pytest.mark.parametrize("is_positive", [False, True])
def test_error_stays_small(run_kernel, channels, size, outputs, bound, is_positive):
    case = Case((channels, 32), (size, size), pads=PADS)
    x = random_arrays(case, (32, channels, 3, 3), case.out, seed=3)[0]
    x = np.maximum(x, 0) if is_positive else x
    got, want = run_winograd(run_kernel, case, outputs, AVX512, x=x, interpreted=False)
    assert relative_error(got, want) < bound


SCHEDULES = {
    "one tile": WinogradSchedule(1, 1, 1, 1, 1, 1),
    "uneven blocks": WinogradSchedule(2, 2, 3, 4, 2),
    "all in one": WinogradSchedule(9, 9, 9, 14, 2, 16, 3),
    "shares": WinogradSchedule(1, 3, 2, 5, 1, 2, 0, 3),
    "uneven shares": WinogradSchedule(1, 9, 9, 3, 1, 4, 8, 2),
    "wide": WinogradSchedule(1, 1, 9, 2, 3),
    "chunks of two": WinogradSchedule(1, 2, 4, 6, 2, chunk=2),
    "one chunk": WinogradSchedule(1, 2, 4, 6, 2, chunk=9),
    "streamed": WinogradSchedule(2, 2, 3, 2, 3, 4, 8, is_streamed=True),
    "streamed in one pass": WinogradSchedule(9, 9, 9, 14, 2, 2, is_streamed=True),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_schedule_is_right(run_kernel, name, outputs):
    case = Case((44, 23), (11, 14), batch=3, pads=PADS, residual=True)
    how = {"schedule": SCHEDULES[name], "interpreted": False}
    got, want = run_winograd(run_kernel, case, outputs, AVX2, **how)
    assert relative_error(got, want) < 1.5e-6


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("out", [(8, 8), (13, 8), (14, 15), (3, 1), (7, 6)])
def test_cut_tiles_take_zeros_from_the_padding(run_kernel, out, outputs):
    case = Case((20, 40), out, pads=PADS, residual=True)
    by_border, want = run_winograd(run_kernel, case, outputs, AVX512, is_padded=True)
    apart, _ = run_winograd(run_kernel, case, outputs, AVX512, is_padded=False)
    np.testing.assert_array_equal(by_border, apart)
    assert relative_error(by_border, want) < 1.5e-6


@pytest.mark.sample(2)
@pytest.mark.parametrize(("is_streamed", "batch"), [(False, 3), (True, 1)])
@pytest.mark.parametrize(("outputs", "out"), [(2, (6, 8)), (2, (13, 7)), (4, (19, 15))])
def test_blocks_of_more_and_of_fewer_rows_share_code(run_kernel, outputs, out, batch, is_streamed):
    case = Case((20, 40), out, batch=batch, pads=PADS, residual=True)
    rows, columns = tile_grid(window_of(*out), outputs)
    uneven, single = (
        WinogradSchedule(1, limit, columns, columns, 2, prefetch=3, is_streamed=is_streamed)
        for limit in (2, rows)
    )
    assert rows % 2
    assert columns == 4
    got, want = run_winograd(run_kernel, case, outputs, AVX2, schedule=uneven)
    assert relative_error(got, want) < 1.5e-6
    lengths = [
        sum(1 for _ in walk(expand(winograd.build(replace(spec, schedule=schedule))).body))
        for spec in [spec_of(outputs, 40, 32, AVX2, batch)]
        for spec in [replace(spec, window=window_of(*out))]
        for schedule in (uneven, single)
    ]
    assert lengths[0] < 1.1 * lengths[1]


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    case=st.builds(
        Case,
        channels=st.tuples(st.integers(1, 20), st.integers(1, 20)),
        size=st.tuples(st.integers(3, 17), st.integers(3, 17)),
        pads=st.tuples(*[st.integers(0, 2)] * 4),
        batch=st.integers(1, 3),
        bias=st.booleans(),
        residual=st.booleans(),
    ),
    outputs=st.sampled_from([2, 4]),
    unit=st.sampled_from([AVX512, AVX2, SSE]),
)
def test_any_shape_is_right(run_kernel, case, outputs, unit):
    got, want = run_winograd(run_kernel, case, outputs, unit, interpreted=False)
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-5)


def test_choice():
    def choice(channels, size, unit=AVX512, batch=1):
        return choose_winograd(window_of(size, size), batch, 1, channels, channels, unit)

    assert [choice(64, 56), choice(128, 28), choice(256, 14), choice(512, 7)] == [4, 4, 4, 2]
    assert choice(512, 7, batch=8) == 4  # enough tiles to pay for the weights
    assert choice(64, 56, AVX2) == choice(64, 56, SSE) == choice(64, 56, SCALAR) == 4
    assert choice(512, 1) is None  # all but one output of a tile would be wasted
    assert choice(256, 3) is None  # weights come from memory
    assert choice(8, 56) is None  # blocks half empty
    assert choice(64, 0) is None


def test_choice_wants_plain_3x3():
    def choice(kernel=(3, 3), stride=1, dilation=1, groups=1):
        window = Window((28, 28)[: len(kernel)], kernel, (stride,) * 2, (dilation,) * 2)
        return choose_winograd(window, 1, groups, 64, 64, AVX512)

    assert choice()
    assert choice((5, 5)) is None
    assert choice((3, 1)) is None
    assert choice((3,)) is None
    assert choice(stride=2) is None
    assert choice(dilation=2) is None
    assert choice(groups=2) is None


def spec_of(outputs, channels, size, unit, batch=1):
    lanes, extent = unit.lanes(), size + 2
    dense = [
        Layout("float32", row_major((batch, -(-channels // lanes), n, n, lanes)), 64)
        for n in (extent, size)
    ]
    extents = (batch, 1, channels, channels, window_of(size, size))
    return Winograd(*extents, *dense, outputs=outputs, unit=unit)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize(
    ("channels", "size"), [(64, 224), (64, 56), (256, 14), (512, 28), (96, 14)]
)
@pytest.mark.parametrize("unit", [AVX512, AVX2, NEON])
def test_kernels_are_small_and_have_turns(channels, size, outputs, unit):
    function = winograd.build(spec_of(outputs, channels, size, unit, batch=2))
    assert sum(4 * np.prod(buffer.shape) for buffer in function.locals) <= SCRATCH_BYTES
    assert sum(1 for _ in walk(function.body)) < 10000
    assert function.extent >= 4


@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE])
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize(("channels", "size"), [(512, 7), (512, 14), (256, 14), (128, 28)])
def test_nearly_all_threads_have_a_turn(channels, size, outputs, unit):
    blocks = channels // unit.lanes()
    shape = (window_of(size, size), outputs, 1, channels, blocks, unit)

    def plan(threads):
        return choose_schedule(*shape, threads)

    def turns(threads):
        found = plan(threads)
        grid = (1, *tile_grid(shape[0], outputs))
        assert found.shares <= -(-blocks // found.vectors)
        return found.shares * block_count(grid, (found.images, found.rows, found.columns))

    assert plan(1) == choose_schedule(*shape)  # and so is the choice of F(2), F(4) or neither
    assert turns(2) >= 2
    assert turns(8) >= 8
    assert turns(16) >= 14  # at times 14 turns of equal size, where twice as many need two rounds
    same = [(p.vectors, p.tiles, p.chunk) for p in map(plan, (1, 2, 8, 16))]
    assert len(set(same)) == 1  # weights are packed alike, and sums in the same order


def test_shares_go_evenly_over_threads():
    plans = {
        threads: choose_schedule(window_of(7, 7), 4, 1, 512, 32, AVX512, threads)
        for threads in (1, 2, 3, 4, 8, 16, 1024)
    }
    assert {threads: plan.shares for threads, plan in plans.items()} == {
        1: 2,
        **{threads: threads for threads in (2, 3, 4, 8, 16)},
        1024: 16,  # no more than there are panels
    }


def test_threads_change_no_bit(run_kernel):
    case = Case((64, 96), (9, 9), pads=PADS, residual=True)
    results = [
        run_winograd(run_kernel, case, 4, AVX2, interpreted=False, threads=threads)[0]
        for threads in (1, 16)
    ]
    np.testing.assert_array_equal(*results)


def test_threads_of_small_stacks_run_it():
    spec = spec_of(4, 512, 28, AVX512)
    function = winograd.build(spec)
    assert sum(4 * np.prod(buffer.shape) for buffer in function.locals) > 512 << 10
    packed = winograd.pack(spec, np.ones((512, 512, 3, 3), np.float32))
    arrays = [
        aligned_copy(array)
        for array in (np.ones(30 * 30 * 512, "f"), packed, np.zeros(28 * 28 * 512, "f"))
    ]
    text = emit_llvm(expand(function))
    library = LoadedCode({function.name: compile_object(text, host_machine())})
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    entry = call(library.addresses[function.name])
    table = np.array([array.ctypes.data for array in arrays], np.uint64)
    before = threading.stack_size(128 << 10)
    try:
        thread = threading.Thread(target=entry, args=(table.ctypes.data, 0, function.extent))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    np.testing.assert_allclose(arrays[2], 9 * 512, rtol=1e-5)


@pytest.mark.parametrize("name", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize("outputs", [2, 4])
def test_innermost_products_keep_off_the_stack(outputs, name):
    unit = AVX512 if name == "skylake-avx512" else AVX2
    text = emit_llvm(expand(winograd.build(spec_of(outputs, 256, 14, unit))))
    assembly = compile_assembly(text, NativeCpu("x86_64-unknown-linux-gnu", name))
    loop = r"^(\.LBB\w+):((?:(?!^\.LBB).)*?)^\tj\w+\t\1$"
    loops = [match[2] for match in re.finditer(loop, assembly, re.M | re.S)]
    products = [text for text in loops if "vfmadd" in text and not re.search("v(add|sub)ps", text)]
    assert products
    for text in products:
        assert not re.search(r"\tvmov\w+\t%[yz]mm\d+, ", text)  # nothing is stored
