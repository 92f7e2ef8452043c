"""Products of tiles in shared memory: the same numbers on every device, without a race."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl
from tests.codegen.kernels.test_gemm import strided
from tests.codegen.test_grid import barriers, without
from tests.ptx import ON_EACH_ARCHITECTURE, assembled

from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.kernels.gemm import Gemm
from intarsia.codegen.kernels.grid_gemm import (
    GridGemm,
    GridGemmSchedule,
    build,
    fits,
    grid_gemm,
    schedule,
)
from intarsia.codegen.unit import AVX2, GpuModel
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError
from intarsia.extents import symbol

GPU = GpuModel(AVX2, shared_bytes=48 << 10)
FEW = GpuModel(AVX2, lanes=8, most_items=8)
"""A GPU of few lanes, for devices whose work-items are threads of this CPU."""
LARGE = GridGemmSchedule(128, 128, 8, 8, 8)
MEDIUM = GridGemmSchedule(64, 64, 8, 8, 8)
SMALL = GridGemmSchedule(32, 32, 16, 4, 4)
TINY = GridGemmSchedule(16, 8, 4, 4, 4)
PLANS = {
    f"{name}, {stages} stages": replace(plan, stages=stages)
    for name, plan in {"large": LARGE, "medium": MEDIUM, "small": SMALL}.items()
    for stages in (1, 2)
}


def product(m, n, k, plan=None, machine=GPU, batch=(), **changes):
    def rows(*shape):
        return Layout("float32", tuple(np.cumprod([1, *shape[:0:-1]])[::-1].tolist()), 64)

    layouts = (rows(*batch, m, k), rows(*batch, k, n), rows(*batch, m, n))
    return replace(GridGemm(m, n, k, *layouts, batch, machine, schedule=plan), **changes)


def operands(spec, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((*spec.batch, *shape)).astype("float32")
        for shape in ((spec.m, spec.k), (spec.k, spec.n))
    ]


def interpreted(spec, arrays):
    function = build(spec)
    verify(function, spec.machine)
    ready = expand(function)
    verify(ready, spec.machine)
    memory = [array.reshape(-1) for array in arrays]
    interpret(ready, memory)
    return function


EVERY_PLAN = [
    name if name.startswith("small") else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in PLANS
]
SHAPES = [
    (70, 50, 37),
    pytest.param((33, 132, 20), marks=pytest.mark.exhaustive),
    pytest.param((128, 128, 128), marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_tiles_have_no_race_and_the_right_sums(plan, shape):
    spec = product(*shape, PLANS[plan])
    a, b = operands(spec)
    c = np.zeros((spec.m, spec.n), "float32")
    interpreted(spec, [a, b, c])
    exact = a.astype("float64") @ b
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_every_barrier_counts(plan):
    spec = product(40, 36, 33, PLANS[plan])
    function = expand(build(spec))
    assert barriers(function) == 2
    memory = [*(one.reshape(-1) for one in operands(spec)), np.zeros(40 * 36, "float32")]
    for number in range(2):
        wrong = replace(function, body=without(function.body, number, []))
        with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry"):
            interpret(wrong, memory)


RELU = Fused(
    Body(
        ("float32",) * 3,
        (Apply("Add", (0, 1)), Apply("Mul", (3, 2)), Apply("Relu", (4,))),
        (5,),
    ),
)


@pytest.mark.parametrize("run", [run_opencl, run_wgsl], ids=["opencl", "wgsl"])
@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        pytest.param((70, 52, 37), MEDIUM, marks=pytest.mark.exhaustive),
        pytest.param((40, 33, 24), SMALL),
    ],
    ids=["medium", "small"],
)
def test_devices_agree(run, shape, plan):
    """A bias and a factor follow, and a batch is in front."""
    m, n, k = shape
    epilogue = RELU.over([Layout("float32", (0, 0, 1)), Layout("float32", (0, 0, 0))])
    spec = product(m, n, k, plan, batch=(2,), epilogue=epilogue)
    a, b = operands(spec)
    bias = np.linspace(-1, 1, n, dtype="float32")
    c = np.zeros((2, m, n), "float32")
    got = run(build(spec), [a, b, c, bias, np.full(1, 0.5, "float32")], rtol=1e-5)[2]
    exact = np.maximum((a.astype("float64") @ b + bias) * 0.5, 0)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("stages", [1, 2])
def test_text_for_nvptx_has_the_same_numbers(stages):
    spec = product(20, 18, 10, replace(TINY, stages=stages), FEW)
    a, b = operands(spec)
    got = run_nvptx(build(spec), [a, b, np.zeros((20, 18), "float32")], rtol=1e-6)[2]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_product(data):
    """Operands lie in any order, of any extents, in any batch."""
    draw = data.draw
    m, n, k = (draw(st.integers(1, 24)) for _ in range(3))
    batch = draw(st.sampled_from([(), (3,), (2, 2)]))
    rank = len(batch) + 2
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tails = [
        rng.standard_normal((*[e if draw(st.booleans()) else 1 for e in batch], *shape))
        for shape in ((m, k), (k, n))
    ]
    memories, layouts = [], []
    for array in (*tails, np.zeros((*batch, m, n))):
        order = draw(st.permutations(range(rank)))
        memory, strides = strided(array.astype("float32"), order, draw(st.integers(0, 2)))
        is_written = len(memories) == 2
        own = tuple(
            0 if e == 1 and axis < len(batch) and not is_written else s
            for axis, (s, e) in enumerate(zip(strides, array.shape, strict=True))
        )
        memories.append(memory)
        layouts.append(Layout("float32", own, draw(st.sampled_from([0, 4, 64]))))
    plan = draw(st.sampled_from([TINY, replace(TINY, stages=1), GridGemmSchedule(8, 8, 8, 4, 8)]))
    machine = FEW if plan.rows > 8 else replace(FEW, lanes=2)
    spec = GridGemm(m, n, k, *layouts, batch, machine, NOTHING, plan)
    interpreted(spec, memories)
    exact = np.broadcast_to(np.matmul(*tails), (*batch, m, n))
    offsets = sum(
        np.indices(exact.shape)[axis] * stride for axis, stride in enumerate(layouts[2].strides)
    )
    found = memories[2].reshape(-1)[offsets]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def gemm(m, n, k, dtype="float32", batch=()):
    spec = product(1, 1, 1, batch=batch)
    a, b, c = (
        replace(one, dtype=dtype, strides=(*one.strides[:-2], step, 1))
        for one, step in ((spec.a, k), (spec.b, n), (spec.c, n))
    )
    return Gemm(m, n, k, a, b, c, batch, unit=AVX2)


def test_which_products_are_shared():
    def taken(spec, machine=GPU):
        return grid_gemm(spec, spec.b, machine)

    assert taken(gemm(64, 64, 64)) is not None
    for spec in (gemm(1, 64, 64), gemm(64, 8, 64), gemm(64, 64, 2), gemm(64, 64, 64, "float64")):
        assert taken(spec) is None
    assert taken(gemm(symbol("m"), 64, 64)) is None
    assert taken(gemm(64, 64, 64), replace(GPU, shared_bytes=1 << 10)) is None
    assert taken(gemm(64, 64, 64), replace(GPU, most_items=32)) is None


def test_schedules_follow_the_shape_and_the_machine():
    assert schedule(product(4096, 4096, 64)) == LARGE
    assert schedule(product(4096, 4096, 64, machine=replace(GPU, most_items=128))) == MEDIUM
    assert schedule(product(64, 64, 64)) == SMALL
    assert fits(LARGE, GPU)
    assert not fits(LARGE, replace(GPU, shared_bytes=16 << 10))
    assert not fits(LARGE, replace(GPU, registers=64))


@ON_EACH_ARCHITECTURE
def test_ptx_stays_in_registers(arch):
    """A block's registers are a multiprocessor's at most, and rows are read by fours."""
    cases = {}
    for plan in (LARGE, MEDIUM, SMALL):
        for shape in ((1024, 1024, 1024), (70, 50, 37)):
            cases[f"g{len(cases)}"] = plan, shape
    functions = {name: build(product(*shape, plan)) for name, (plan, shape) in cases.items()}
    for name, (counted, body) in assembled(functions, arch).items():
        plan, shape = cases[name]
        assert counted.registers * plan.work_items <= 64 << 10, counted
        assert counted.registers <= 168, counted
        assert counted.spilled_bytes <= 16, counted
        assert plan.shared_bytes - 16 <= counted.shared_bytes <= plan.shared_bytes
        assert "ld.shared.v4" in body
        assert ("ld.global.nc.v4" in body) == (shape[0] == 1024)
        assert body.count("bar.sync") == 2
