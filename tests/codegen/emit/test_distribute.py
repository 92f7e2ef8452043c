"""Loops inside a turn are shared by work-items only where no two iterations can meet."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.emit.runners import run_opencl_groups

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.distribute import distribute
from intarsia.codegen.emit.live import prune
from intarsia.codegen.emit.opencl import emit_opencl
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import INT64, Load, Loop, Store, Type, walk

GPU = DeviceLimits(work_group=8, busy_items=1 << 10)


def kernel(write, extent=4, size=256):
    """A kernel of `extent` turns, in which `write` gets builder, input, output and turn."""
    b = Builder("shared")
    x = b.argument("x", "float32", (size,))
    y = b.argument("y", "float32", (size,), is_written=True)
    with b.parallel(extent) as turn:
        write(b, x, y, turn)
    return prune(expand(b.finish()))


def vectors(step, lanes):
    def write(b, x, y, turn):
        with b.serial(0, 8 * step, step) as i:
            b.store(b.load(x, turn * 64 + i, lanes), y, turn * 64 + i)

    return write


@pytest.mark.parametrize(("step", "lanes", "items"), [(4, 4, 8), (8, 4, 8), (2, 4, 1), (3, 4, 1)])
def test_vectors_must_not_overlap(step, lanes, items):
    assert distribute(kernel(vectors(step, lanes))).items == items


def test_rows_and_columns_may_lie_in_any_order():
    def write(b, x, y, turn):
        with b.serial(0, 8) as i, b.serial(0, 6) as j:
            b.store(b.load(x, i * 8 + j), y, turn * 64 + j * 8 + i)

    plan = distribute(kernel(write))
    assert (plan.items, plan.waits) == (8, False)


def test_a_loop_that_writes_what_it_reads_elsewhere_is_not_shared():
    def write(b, x, y, turn):
        with b.serial(1, 9) as i:
            b.store(b.load(y, turn * 64 + i - 1), y, turn * 64 + i)

    assert distribute(kernel(write)).items == 1


def test_a_place_that_is_not_affine_is_not_shared():
    def write(b, x, y, turn):
        with b.serial(0, 8) as i:
            place = b.cast(b.load(x, i), "int64")
            b.store(b.load(x, i), y, place)

    assert distribute(kernel(write)).items == 1


def test_what_an_earlier_loop_wrote_is_waited_for():
    def write(b, x, y, turn):
        with b.serial(0, 16) as i:
            b.store(b.load(x, turn * 16 + i), y, turn * 16 + i)
        with b.serial(0, 16) as i:
            b.store(b.mul(b.load(y, turn * 16 + i), 2), y, turn * 16 + i)

    plan = distribute(kernel(write))
    assert plan.waits
    made = emit_opencl(kernel(write), GPU)
    assert made.source.count("barrier(") == 1
    assert (made.local_size, made.is_group) == ((1, 8), True)
    assert made.global_size(4) == (4, 8)
    on_cpu = emit_opencl(kernel(write), DeviceLimits(work_group=1))
    assert (on_cpu.items, "barrier(" in on_cpu.source) == (1, False)


def reduction(step, extent=4, dtype="float32"):
    """A kernel whose turns are a loop from 5 on that carries two values."""
    b = Builder("reduction")
    x = b.argument("x", dtype, (extent, 64))
    y = b.argument("y", dtype, (extent, 2), is_written=True)
    with b.parallel(extent) as turn:
        first = [b.constant(5, Type(dtype)), b.constant(2, Type(dtype))]
        out = b.loop(0, 64, first, lambda i, s, t: step(b, b.load(x, (turn, i)), s, t))
        for column, value in enumerate(out):
            b.store(value, y, (turn, column))
    return b.finish()


STEPS = {
    "sum, product": lambda b, x, s, t: [b.add(s, x), b.mul(x, t)],
    "fused, max": lambda b, x, s, t: [b.fma(x, x, s), b.maximum(x, t)],
    "min, max": lambda b, x, s, t: [b.minimum(x, s), b.maximum(x, t)],
}


@pytest.mark.parametrize("name", STEPS)
def test_terms_of_a_sum_are_shared(name):
    function = reduction(STEPS[name])
    plan = distribute(prune(expand(function)))
    assert (plan.items, plan.waits, len(plan.reduced)) == (64, True, 1)
    for limits in (DeviceLimits(work_group=1), DeviceLimits(work_group=8, local_bytes=16)):
        assert emit_opencl(prune(expand(function)), limits).items == 1
    numbers = np.random.default_rng(0).uniform(0.9, 1.1, (4, 64)).astype("float32")
    run_opencl_groups(function, [numbers, np.zeros((4, 2), "float32")], rtol=1e-5)


CHAINS = {
    "a NaN would stay": lambda b, x, s, t: [b.add(s, x), b.maximum(t, x)],
    "one needs the other": lambda b, x, s, t: [b.add(s, x), b.mul(x, b.add(s, t))],
    "a difference": lambda b, x, s, t: [b.add(s, x), b.sub(x, t)],
    "they change places": lambda b, x, s, t: [b.add(t, x), b.add(s, x)],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_items(name):
    assert distribute(prune(expand(reduction(CHAINS[name])))).items == 1


def test_sizes_of_a_call():
    made = emit_opencl(kernel(vectors(4, 4)), DeviceLimits(work_group=1, busy_items=16))
    assert made.global_size(4) == (4, 4)
    assert made.global_size(100) == (100, 1)
    assert made.global_size(1) == (1, 8)
    whole = emit_opencl(kernel(vectors(2, 4)), DeviceLimits(work_group=64))
    assert (whole.local_size, whole.global_size(65)) == ((64, 1), (128, 1))


def test_a_local_buffer_is_shared_by_the_group():
    b = Builder("staged")
    x = b.argument("x", "float32", (4, 32))
    y = b.argument("y", "float32", (4, 32), is_written=True)
    t = b.local("t", "float32", (32,))
    with b.parallel(4) as turn:
        with b.serial(0, 32) as i:
            b.store(b.load(x, (turn, i)), t, i)
        with b.serial(0, 32) as i:
            b.store(b.load(t, 31 - i), y, (turn, i))
    function = b.finish()
    assert "__local float t" in emit_opencl(prune(expand(function)), GPU).source
    small = DeviceLimits(work_group=8, local_bytes=64)
    assert "__local" not in emit_opencl(prune(expand(function)), small).source
    numbers = np.arange(128, dtype="float32").reshape(4, 32)
    got = run_opencl_groups(function, [numbers, np.zeros((4, 32), "float32")], rtol=0)[1]
    np.testing.assert_array_equal(got, numbers[:, ::-1])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_shared_iterations_never_meet(data):
    """Of random affine subscripts: what is claimed independent is so when it is counted."""
    draw = data.draw
    scales = [draw(st.integers(-6, 6)) for _ in range(3)]
    others = scales if draw(st.booleans()) else [draw(st.integers(-6, 6)) for _ in range(3)]
    shift, lanes = draw(st.integers(-8, 8)), draw(st.sampled_from([1, 2, 4]))
    extents = [draw(st.integers(2, 5)) for _ in range(2)]
    step = draw(st.integers(1, 3))
    b = Builder("random")
    y = b.argument("y", "float32", (1024,), is_written=True)
    with b.parallel(2) as turn:
        upper = b.smaller(turn + 2, extents[1])
        with b.serial(0, extents[0] * step, step) as i, b.serial(0, upper) as j:
            at = turn * scales[0] + i * scales[1] + j * scales[2] + 500
            b.store(b.constant(1.0, Type("float32", lanes)), y, at)
            other = turn * others[0] + i * others[1] + j * others[2] + (500 + shift)
            b.store(b.constant(2.0, Type("float32")), y, other)
    function = expand(b.finish())
    plan = distribute(function)
    loops = [item for item in walk(function.body) if isinstance(item, Loop)]
    for loop in loops:
        if id(loop) in plan.shared:
            assert not _meets(scales, others, shift, lanes, extents, step, loop is loops[1])


def _meets(scales, others, shift, lanes, extents, step, is_outer):
    """Count: do two iterations of the outer (else the inner) loop touch one entry?"""
    for turn in range(2):
        inner = range(min(turn + 2, extents[1]))
        for outer in range(0, extents[0] * step, step):
            touched: dict[int, set[int]] = {}
            outers = range(0, extents[0] * step, step) if is_outer else (outer,)
            for i in outers:
                for j in inner:
                    first = turn * scales[0] + i * scales[1] + j * scales[2]
                    last = turn * others[0] + i * others[1] + j * others[2] + shift
                    for entry in (*range(first, first + lanes), last):
                        touched.setdefault(entry, set()).add(i if is_outer else j)
            if any(len(who) > 1 for who in touched.values()):
                return True
    return False


def test_pruning_drops_what_no_store_needs():
    b = Builder("idle")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    with b.parallel(2) as turn:
        b.prefetch(x, turn)
        b.mul(b.load(x, turn), 2)
        out = b.loop(
            *(0, 3, [b.constant(0, INT64), b.constant(0.0, Type("float32"))]),
            lambda i, n, total: [b.add(n, 1), b.add(total, b.load(x, i))],
        )
        b.store(out[1], y, turn)
    pruned = prune(b.finish())
    operations = list(walk(pruned.body))
    (loop,) = [item for item in operations if isinstance(item, Loop) and item.carried]
    assert len(loop.carried) == len(loop.results) == 1
    assert sum(isinstance(item, Load) for item in operations) == 1
    assert sum(isinstance(item, Store) for item in operations) == 1
