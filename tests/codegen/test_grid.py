"""Kernels that say which work-items there are: rules, races, and the same numbers everywhere."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl

from intarsia.codegen import ir
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.c import emit_c
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.emit.opencl import emit_opencl
from intarsia.codegen.guard import guarded
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.printer import print_function
from intarsia.codegen.unit import AVX2, GpuModel
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError

WARPS, LANES = 2, 4
ITEMS = WARPS * LANES
GPU = GpuModel(AVX2, lanes=LANES, most_items=ITEMS, shared_bytes=ITEMS * 4)
RUNNERS = {"opencl": run_opencl, "wgsl": run_wgsl, "nvptx": run_nvptx}


def reversed_blocks(blocks=3, *, waits=True):
    """A kernel whose blocks write their part of `x` backwards, through shared memory."""
    b = Builder("reversed_blocks")
    x = b.argument("x", "float32", (blocks, ITEMS))
    y = b.argument("y", "float32", (blocks, ITEMS), is_written=True)
    shared = b.shared("t", "float32", (ITEMS,))
    own = b.registers("r", "float32", (2,))
    with b.grid(blocks) as block, b.block(WARPS) as warp, b.lane(LANES) as lane:
        item = warp * LANES + lane
        b.store(b.load(x, (block, item)), own, 1)
        b.store(b.load(own, 1), shared, item)
        if waits:
            b.barrier()
        b.store(b.load(shared, ITEMS - 1 - item), y, (block, item))
    return b.finish()


def numbers(blocks=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((blocks, ITEMS)).astype("float32"), np.zeros((blocks, ITEMS), "f4")]


@pytest.mark.parametrize("name", RUNNERS)
def test_a_block_waits_on_every_device(name):
    function = reversed_blocks()
    x, y = numbers()
    got = RUNNERS[name](function, [x, y], rtol=0)[1]
    np.testing.assert_array_equal(got, x[:, ::-1])


def test_the_grid_is_what_is_launched():
    kernel = emit_opencl(reversed_blocks(), DeviceLimits(work_group=64))
    assert (kernel.local_size, kernel.global_size(3)) == ((1, ITEMS), (3, ITEMS))
    assert kernel.source.count("barrier(") == 1
    assert f"reqd_work_group_size(1, {ITEMS}, 1)" in kernel.source
    assert "__local float t" in kernel.source


def test_it_is_printed():
    text = print_function(reversed_blocks())
    for line in ("grid i0 in 0..3:", "block i1 in 0..2:", "lane i2 in 0..4:", "barrier"):
        assert line in text
    assert "shared t: float32[8]" in text
    assert "register r: float32[2]" in text


def sums_of_warps(dtype="float32"):
    """A kernel each of whose work-items writes the sum of its warp's numbers."""
    b = Builder("sums_of_warps")
    x = b.argument("x", dtype, (3, ITEMS))
    y = b.argument("y", dtype, (3, ITEMS), is_written=True)
    with b.grid(3) as block, b.block(WARPS) as warp, b.lane(LANES) as lane:
        total = b.load(x, (block, warp * LANES + lane))
        for mask in (2, 1):
            total = b.add(total, b.warp_shuffle(total, mask))
        b.store(total, y, (block, warp * LANES + lane))
    return b.finish()


@pytest.mark.parametrize("dtype", ir.SHUFFLE_DTYPES)
@pytest.mark.parametrize("name", RUNNERS)
def test_lanes_hand_numbers_on(name, dtype):
    function = sums_of_warps(dtype)
    x = (numbers()[0] * 100).astype("int8").astype(dtype)
    got = RUNNERS[name](function, [x, np.zeros_like(x)], rtol=0)[1]
    sums = x.reshape(3, WARPS, LANES).sum(2, dtype=dtype)
    np.testing.assert_array_equal(got, np.repeat(sums, LANES, 1))


def test_a_shuffle_is_printed_and_takes_memory_where_there_is_no_instruction():
    function = sums_of_warps()
    verify(function, GPU)
    assert "= warp_shuffle(v5, 1)" in print_function(function)
    with pytest.raises(InternalError, match="shares 32 bytes, and a block has 31"):
        verify(function, replace(GPU, shared_bytes=ITEMS * 4 - 1))
    kernel = emit_opencl(function, DeviceLimits(work_group=64))
    assert f"__local float v0_0[{ITEMS}];" in kernel.source
    assert kernel.source.count("barrier(") == 4


def test_a_missing_barrier_is_a_race():
    function = reversed_blocks(waits=False)
    with pytest.raises(InternalError, match=r"a race: work-items 0 and 7 touch entry 7 of t"):
        interpret(function, [one.reshape(-1) for one in numbers()])


def test_blocks_must_not_touch_what_another_one_writes():
    b = Builder("overlapping")
    x = b.argument("x", "float32", (9,), is_written=True)
    with b.grid(2) as block, b.block(5) as item:
        b.store(b.load(x, block * 4 + item), x, block * 4 + item)
    function = b.finish()
    verify(function)
    with pytest.raises(InternalError, match="a race: blocks 0 and 1 touch entry 4 of x"):
        interpret(function, [np.ones(9, "float32")])


def test_two_must_not_write_the_same_number():
    b = Builder("same")
    x = b.argument("x", "float32", (4,), is_written=True)
    with b.grid(1), b.block(4) as item:
        b.store(b.constant(1, ir.Type("float32")), x, item * 0)
    with pytest.raises(InternalError, match="a race: work-items 0 and 3 touch entry 0 of x"):
        interpret(b.finish(), [np.ones(4, "float32")])


def test_what_was_read_by_several_is_not_written():
    b = Builder("late")
    x = b.argument("x", "float32", (4,), is_written=True)
    with b.grid(1), b.block(4) as item:
        value = b.load(x, 0)
        with b.where(b.compare("eq", b.index(item), 3)):
            b.store(value, x, 0)
    with pytest.raises(InternalError, match=r"a race: work-items \d and 3 touch entry 0 of x"):
        interpret(b.finish(), [np.ones(4, "float32")])


def loops(b, x, y):
    """Write `x` summed over as many entries as a work-item's number is, which differ."""
    with b.grid(2) as block, b.block(ITEMS) as item:
        zero = b.constant(0, ir.Type("float32", 2))

        def add(k, total):
            return [b.add(total, b.load(x, block * ITEMS + k, 2))]

        (total,) = b.loop(0, item, [zero], add, step=2)
        b.store(total, y, (block, item, 0))


@pytest.mark.parametrize("name", RUNNERS)
def test_loops_may_differ_in_their_turns(name):
    b = Builder("loops")
    x = b.argument("x", "float32", (2 * ITEMS + 1,))
    y = b.argument("y", "float32", (2, ITEMS, 2), is_written=True)
    loops(b, x, y)
    x = np.arange(2 * ITEMS + 1, dtype="float32")
    got = RUNNERS[name](b.finish(), [x, np.zeros((2, ITEMS, 2), "float32")], rtol=0)[1]
    for block in range(2):
        for item in range(ITEMS):
            part = x[block * ITEMS : block * ITEMS + item + item % 2]
            np.testing.assert_array_equal(got[block, item], part.reshape(-1, 2).sum(0))


def made(write, blocks=2, *, lanes=True):
    """A kernel of which `write` appends what a work-item does."""
    b = Builder("made")
    x = b.argument("x", "float32", (64,))
    y = b.argument("y", "float32", (64,), is_written=True)
    t = b.shared("t", "float32", (ITEMS,))
    r = b.registers("r", "float32", (ITEMS,))
    with b.grid(blocks) as block, b.block(WARPS if lanes else ITEMS) as warp:
        if lanes:
            with b.lane(LANES) as lane:
                write(b, x, y, t, r, block, warp, lane)
        else:
            write(b, x, y, t, r, block, warp, warp)
    return b.finish()


def waits_in(b, count):
    with b.serial(0, count):
        b.barrier()


def shuffles_in(b, count):
    count = count if isinstance(count, ir.Index) else b.cast(count, "int64")
    with b.serial(0, count):
        b.warp_shuffle(b.constant(1, ir.Type("float32")), 1)


WRONG = {
    "a barrier lies in a loop whose turns differ": [
        lambda b, x, y, t, r, block, warp, lane: waits_in(b, lane),
        lambda b, x, y, t, r, block, warp, lane: waits_in(b, warp),
        lambda b, x, y, t, r, block, warp, lane: waits_in(b, b.cast(b.load(y, 0), "int64")),
        lambda b, x, y, t, r, block, warp, lane: waits_in(b, b.cast(b.load(x, lane), "int64")),
    ],
    "a warp's shuffle lies in a loop whose turns differ": [
        lambda b, x, y, t, r, block, warp, lane: shuffles_in(b, lane),
        lambda b, x, y, t, r, block, warp, lane: shuffles_in(b, warp),
        lambda b, x, y, t, r, block, warp, lane: shuffles_in(
            b, b.warp_shuffle(b.cast(b.load(x, 0), "int32"), 1)
        ),
    ],
    "a warp's shuffle has mask 4 for 4 lanes": [
        lambda b, x, y, t, r, block, warp, lane: b.warp_shuffle(b.load(x, 0), LANES),
    ],
    "no instruction hands float32x2 to another lane": [
        lambda b, x, y, t, r, block, warp, lane: b.warp_shuffle(b.load(x, 0, 2), 1),
    ],
    "no instruction hands int64 to another lane": [
        lambda b, x, y, t, r, block, warp, lane: b.warp_shuffle(b.index(lane), 1),
    ],
    "its subscript is no constant": [lambda b, x, y, t, r, block, warp, lane: b.load(r, lane)],
    "a grid loop lies inside another loop": [
        lambda b, x, y, t, r, block, warp, lane: nest(b, ir.LoopKind.GRID),
    ],
    "a block loop lies inside the work-items": [
        lambda b, x, y, t, r, block, warp, lane: nest(b, ir.LoopKind.BLOCK),
    ],
    "a lane loop lies inside the work-items": [
        lambda b, x, y, t, r, block, warp, lane: nest(b, ir.LoopKind.LANE),
    ],
}


def nest(b, kind):
    with b._open(kind, 0, 2, 1):
        pass


@pytest.mark.parametrize("problem", WRONG)
def test_rules(problem):
    for write in WRONG[problem]:
        with pytest.raises(InternalError, match=problem):
            verify(made(write))


def test_what_stands_outside_of_work_items():
    b = Builder("outside")
    y = b.argument("y", "float32", (4,), is_written=True)
    t = b.shared("t", "float32", (4,))
    number = b.constant(1, ir.Type("float32"))
    with b.grid(1):
        b.store(number, y, 0)
        with b.block(4):
            pass
    with pytest.raises(InternalError, match="a Store lies outside of the block loop"):
        verify(b.finish())
    b = Builder("outside")
    t = b.shared("t", "float32", (4,))
    with b.grid(1):
        b.load(t, 0)
        with b.block(4):
            pass
    with pytest.raises(InternalError, match="t is read outside of the block loop"):
        verify(b.finish())
    b = Builder("outside")
    with b.grid(1), b.block(4):
        b.barrier()
        with b.lane(2):
            pass
    with pytest.raises(InternalError, match="a Barrier lies outside of the lane loop"):
        verify(b.finish())
    b = Builder("outside")
    with b.grid(1):
        pass
    with pytest.raises(InternalError, match="a grid loop has 0 block loops"):
        verify(b.finish())


def test_what_work_items_write_is_not_read_outside_of_them():
    b = Builder("outside")
    y = b.argument("y", "float32", (4,), is_written=True)
    with b.grid(1):
        number = b.load(y, 0)
        with b.block(4) as item:
            b.store(number, y, item)
    with pytest.raises(InternalError, match="y is read outside of the block loop"):
        verify(b.finish())


def test_a_block_loop_is_not_run_again():
    b = Builder("again")
    with b.grid(1):
        with b.block(4):
            pass
        with b.serial(0, 2), b.block(4):
            pass
    with pytest.raises(InternalError, match="a block loop lies in a serial loop"):
        verify(b.finish())


def test_registers_hold_nothing_before_they_are_written():
    b = Builder("registers")
    y = b.argument("y", "float32", (2, ITEMS), is_written=True)
    r = b.registers("r", "float32", (1,))
    with b.grid(2) as block, b.block(ITEMS) as item:
        b.store(b.load(r, 0), y, (block, item))
        b.store(b.constant(1, ir.Type("float32")), r, 0)
    got = np.zeros((2, ITEMS), np.float32)
    interpret(b.finish(), [got.reshape(-1)])
    assert np.isnan(got).all()


def test_memory_goes_with_its_loops():
    b = Builder("parallel")
    b.shared("t", "float32", (4,))
    with b.parallel(2):
        pass
    with pytest.raises(InternalError, match="t has scope shared"):
        verify(b.finish())
    b = Builder("grid")
    b.local("t", "float32", (4,))
    with b.grid(1), b.block(4):
        pass
    with pytest.raises(InternalError, match="t has scope local"):
        verify(b.finish())


def test_the_machine_has_to_fit():
    function = reversed_blocks()
    verify(function, GPU)
    wrong = {
        "has 4 lanes, and the machine 32": replace(GPU, lanes=32),
        "8 work-items, and the machine runs 4": replace(GPU, most_items=4),
        "shares 32 bytes, and a block has 16": replace(GPU, shared_bytes=16),
        "is for a CPU": AVX2,
    }
    for problem, machine in wrong.items():
        with pytest.raises(InternalError, match=problem):
            verify(function, machine)
    for emit in (emit_llvm, lambda function: emit_c([function])):
        with pytest.raises(AssertionError, match="for a GPU"):
            emit(function)
    with pytest.raises(AssertionError, match="a barrier may not come"):
        guarded(function, 1)


def test_a_barrier_that_some_do_not_come_to():
    function = made(lambda b, x, y, t, r, block, warp, lane: waits_in(b, lane))
    with pytest.raises(InternalError, match="a barrier that work-item 0 does not come to"):
        interpret(function, [np.zeros(64, "float32") for _ in range(2)])


def test_a_shuffle_that_some_do_not_come_to():
    function = made(lambda b, x, y, t, r, block, warp, lane: shuffles_in(b, lane))
    with pytest.raises(InternalError, match="a shuffle that work-item 0 does not come to"):
        interpret(function, [np.zeros(64, "float32") for _ in range(2)])


def test_a_work_item_must_not_leave_a_buffer():
    function = made(
        lambda b, x, y, t, r, block, warp, lane: b.load(x, b.index(lane * 16 + warp * 16))
    )
    with pytest.raises(InternalError, match="leaves x: work-item 7 at entry 64 to 64 of 64"):
        interpret(function, [np.zeros(64, "float32") for _ in range(2)])


def without(body, number, seen):
    """Return a body without its barrier of a number."""
    out = []
    for item in body:
        if isinstance(item, ir.Barrier):
            seen.append(item)
            if len(seen) - 1 == number:
                continue
        is_loop = isinstance(item, ir.Loop)
        out.append(replace(item, body=without(item.body, number, seen)) if is_loop else item)
    return tuple(out)


def barriers(function):
    return sum(isinstance(item, ir.Barrier) for item in ir.walk(function.body))


def passing(shifts):
    """A kernel that hands numbers on through shared memory, by another shift each time."""
    b = Builder("passing")
    x = b.argument("x", "float32", (2, ITEMS))
    y = b.argument("y", "float32", (2, ITEMS), is_written=True)
    shared = b.shared("t", "float32", (2 * ITEMS,))
    with b.grid(2) as block, b.block(ITEMS) as item:
        value = b.load(x, (block, item))
        b.store(value, shared, item)
        b.store(value, shared, item + ITEMS)
        for shift in shifts:
            b.barrier()
            value = b.add(b.load(shared, item + shift), 1)
            b.barrier()
            b.store(value, shared, item)
            b.store(value, shared, item + ITEMS)
        b.store(value, y, (block, item))
    return b.finish()


@settings(max_examples=20, deadline=None)
@given(shifts=st.lists(st.integers(1, ITEMS - 1), min_size=1, max_size=3), data=st.data())
def test_every_barrier_counts(shifts, data):
    function = passing(shifts)
    verify(function)
    x, y = numbers(2)
    memory = [x.reshape(-1), y.reshape(-1)]
    interpret(function, memory)
    np.testing.assert_allclose(y, np.roll(x, -sum(shifts), 1) + len(shifts), rtol=1e-6)
    number = data.draw(st.integers(0, barriers(function) - 1))
    wrong = replace(function, body=without(function.body, number, []))
    with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry \d+ of t"):
        interpret(wrong, memory)
