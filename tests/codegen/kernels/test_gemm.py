# SPDX-License-Identifier: Apache-2.0
"""Matrix products against numpy in double precision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.gemm import Gemm, Panels, PanelSource, build, flops, pack, schedule
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE
from intarsia.extents import symbol

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}
_TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


def numbers(rng, shape, dtype="float32"):
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(-9, 9, shape).astype(dtype)


def strided(array, order, pad=0):
    """Memory with an array's axes in another order, the last one longer, and the axes' strides."""
    shape = [array.shape[axis] for axis in order]
    shape[-1] += pad
    memory = np.zeros(shape, array.dtype)
    memory[..., : shape[-1] - pad] = array.transpose(order)
    strides = [0] * array.ndim
    for axis, stride in zip(order, row_major(tuple(shape)), strict=True):
        strides[axis] = stride
    return memory, tuple(strides)


def check(run_kernel, spec, arrays, expected, *, interpreted=True):
    """Run a kernel on its arguments, of which number 2 is what it writes."""
    k = max(spec.k, 1)
    rtol = _TOLERANCE.get(spec.a.dtype, 0) * k**0.5
    got = run_kernel(build(spec), arrays, rtol=max(rtol, 1e-6), interpreted=interpreted)[2]
    got = np.lib.stride_tricks.as_strided(
        got, expected.shape, [stride * got.itemsize for stride in spec.c.strides]
    )
    scale = float(np.max(np.abs(expected), initial=1.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=rtol * scale)


def product(run_kernel, m, n, k, unit=AVX512, *, panels=True, dtype="float32", **options):
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a, b = numbers(rng, (m, k), dtype), numbers(rng, (k, n), dtype)
    right = Panels(dtype) if panels else Layout(dtype, (n, 1))
    spec = Gemm(m, n, k, Layout(dtype, (k, 1)), right, Layout(dtype, (n, 1)), unit=unit)
    interpreted = options.pop("interpreted", m * n * k < 30_000)
    if options:
        spec = replace(spec, schedule=replace(schedule(spec), **options))
    packed = pack(spec, b) if panels else b
    exact = a.astype("float64") @ b.astype("float64") if dtype.startswith("float") else a @ b
    check(run_kernel, spec, [a, packed, np.zeros((m, n), dtype)], exact, interpreted=interpreted)


HARD = (1, 2, 3, 5, 7, 17, 31, 49, 100)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("panels", [True, False])
@pytest.mark.parametrize("m", [1, 2, 7, 17, 49])
def test_hard_shapes(run_kernel, unit, panels, m):
    for n, k in zip(HARD, HARD[::-1], strict=True):
        product(run_kernel, m, n, k, UNITS[unit], panels=panels, interpreted=m * n * k < 2000)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("panels", [True, False])
def test_dtypes(run_kernel, dtype, unit, panels):
    product(run_kernel, 5, 19, 7, UNITS[unit], panels=panels, dtype=dtype)
    product(run_kernel, 33, 50, 40, UNITS[unit], panels=panels, dtype=dtype)


def test_integers_wrap(run_kernel):
    a = np.array([[2**31 - 1, 2]], "int32")
    b = np.array([[2], [1]], "int32")
    spec = Gemm(1, 1, 2, Layout("int32", (2, 1)), Layout("int32", (1, 1)), Layout("int32", (1, 1)))
    got = run_kernel(build(spec), [a, b, np.zeros((1, 1), "int32")])[2]
    assert got.item() == 0


@pytest.mark.parametrize("panels", [True, False])
def test_no_terms_leave_the_epilogue_of_zero(run_kernel, panels):
    right = Panels() if panels else Layout("float32", (5, 1))
    add = Fused(Body(("float32",) * 2, (Apply("Add", (0, 1)),), (2,)), (Layout("float32", (0, 1)),))
    spec = Gemm(3, 5, 0, Layout("float32", (1, 1)), right, Layout("float32", (5, 1)), epilogue=add)
    bias = np.arange(5, dtype="float32")
    empty = np.zeros(0, "float32")
    packed = pack(spec, np.zeros((0, 5), "float32")) if panels else empty
    got = run_kernel(build(spec), [empty, packed, np.ones((3, 5), "float32"), bias])[2]
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (3, 5)))


@pytest.mark.parametrize(
    ("batch", "m", "n"), [((), 0, 5), ((), 5, 0), ((0,), 5, 5), ((2, 0), 3, 3)]
)
@pytest.mark.parametrize("panels", [True, False])
def test_empty_results_take_no_turn(batch, m, n, panels):
    zeros = (0,) * len(batch)
    right = Panels() if panels else Layout("float32", (*zeros, n, 1))
    c = Layout("float32", (*zeros, n, 1))
    spec = Gemm(m, n, 4, Layout("float32", (*zeros, 4, 1)), right, c, batch)
    assert build(spec).extent == 0
    assert flops(spec) == 0
    if panels:
        assert pack(spec, np.zeros((4, n), "float32")).size == 4 * -(-n // 16) * 16


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("order_a", [(0, 1), (1, 0)])
@pytest.mark.parametrize("order_b", [(0, 1), (1, 0)])
@pytest.mark.parametrize("order_c", [(0, 1), (1, 0)])
def test_transposed_operands(run_kernel, unit, order_a, order_b, order_c):
    rng = np.random.default_rng(7)
    for m, n, k in ((3, 5, 37), (13, 21, 18)):
        a, b = numbers(rng, (m, k)), numbers(rng, (k, n))
        left, a_strides = strided(a, order_a, pad=3)
        right, b_strides = strided(b, order_b, pad=2)
        out, c_strides = strided(np.zeros((m, n), "float32"), order_c, pad=1)
        spec = Gemm(
            m, n, k,
            Layout("float32", a_strides), Layout("float32", b_strides),
            Layout("float32", c_strides), unit=UNITS[unit],
        )  # fmt: skip
        check(run_kernel, spec, [left, right, out], a.astype("float64") @ b)


def test_long_transposed_operand_is_copied_in_parts(run_kernel):
    rng = np.random.default_rng(8)
    m, n, k = 20, 70, 1501
    a, b = numbers(rng, (m, k)), numbers(rng, (k, n))
    spec = Gemm(
        m, n, k, Layout("float32", (k, 1)), Layout("float32", (1, k)), Layout("float32", (n, 1))
    )
    assert schedule(spec).source is PanelSource.COPY
    assert 0 < schedule(spec).depth < k
    out = np.zeros((m, n), "float32")
    check(run_kernel, spec, [a, b.T.copy(), out], a.astype("float64") @ b, interpreted=False)


@pytest.mark.parametrize("batch_a", [(2, 3), (1, 3), (2, 1), (1, 1)])
@pytest.mark.parametrize("batch_b", [(2, 3), (1, 3), (2, 1), (1, 1)])
@pytest.mark.parametrize("panels", [True, False])
def test_batches_broadcast(run_kernel, batch_a, batch_b, panels):
    rng = np.random.default_rng(9)
    m, n, k = 4, 19, 6
    a, b = numbers(rng, (*batch_a, m, k)), numbers(rng, (*batch_b, k, n))

    def layout(array):
        pairs = zip(row_major(array.shape), array.shape, strict=True)
        return Layout("float32", tuple(stride if extent > 1 else 0 for stride, extent in pairs))

    right = Panels("float32", batch_b) if panels else layout(b)
    out = np.zeros((2, 3, m, n), "float32")
    spec = Gemm(m, n, k, layout(a), right, layout(out), (2, 3), unit=AVX2)
    packed = pack(spec, b) if panels else b
    check(run_kernel, spec, [a, packed, out], np.matmul(a.astype("float64"), b))


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("m", [1, 3])
def test_few_rows_times_transposed_operand(run_kernel, unit, dtype, m):
    rng = np.random.default_rng(13)
    batch = 2
    for n, k in ((1, 1), (9, 16), (20, 37), (17, 3)):
        a, b = numbers(rng, (batch, m, k), dtype), numbers(rng, (batch, k, n), dtype)
        add = Fused(
            Body((dtype,) * 2, (Apply("Add", (0, 1), dtype=dtype),), (2,)),
            (Layout(dtype, (0, 0, 1)),),
        )
        spec = Gemm(
            m, n, k, Layout(dtype, (m * k, k, 1)), Layout(dtype, (n * k, 1, k)),
            Layout(dtype, (m * n, n, 1)), (batch,), add, UNITS[unit],
        )  # fmt: skip
        if n > 1 and k > 1:
            assert (schedule(spec).source is PanelSource.DOTS) == (unit != "scalar")
        bias = numbers(rng, (n,), dtype)
        arrays = [a, b.swapaxes(1, 2), np.zeros((batch, m, n), dtype), bias]
        check(run_kernel, spec, arrays, a.astype("float64") @ b + bias)


def test_dot_products_ignore_lanes_beyond_the_end(run_kernel):
    a, b = np.full((1, 1), np.inf, "float32"), np.ones((2, 17), "float32")
    spec = Gemm(
        1, 2, 17, Layout("float32", (0, 0)), Layout("float32", (1, 17)), Layout("float32", (2, 1))
    )
    assert schedule(spec).source is PanelSource.DOTS
    got = run_kernel(build(spec), [a, b, np.zeros((1, 2), "float32")])[2]
    np.testing.assert_array_equal(got, [[np.inf, np.inf]])


def test_batch_of_shared_weights_becomes_rows(run_kernel):
    rng = np.random.default_rng(10)
    a, b = numbers(rng, (2, 5, 1, 6)), numbers(rng, (6, 9))
    out = np.zeros((2, 5, 1, 9), "float32")
    spec = Gemm(
        1, 9, 6,
        Layout("float32", (30, 6, 0, 1)), Panels(), Layout("float32", (45, 9, 0, 1)), (2, 5),
    )  # fmt: skip
    function = build(spec)
    assert function.extent == 1, "ten rows are one tile"
    check(run_kernel, spec, [a, pack(spec, b), out], a.astype("float64") @ b)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("panels", [True, False])
def test_epilogue_sees_every_operand(run_kernel, unit, panels):
    rng = np.random.default_rng(11)
    batch, m, n, k = 2, 7, 21, 5
    a, b = numbers(rng, (batch, m, k)), numbers(rng, (k, n))
    bias, column = numbers(rng, (n,)), numbers(rng, (m,))
    residual = numbers(rng, (batch, m, n))
    steps = (
        Apply("Add", (0, 1)),
        Apply("Mul", (4, 2)),
        Apply("Add", (5, 3)),
        Apply("Relu", (6,)),
    )
    fused = Fused(
        Body(("float32",) * 4, steps, (7,)),
        (
            Layout("float32", (0, 0, 1)),
            Layout("float32", (0, 1, 0)),
            Layout("float32", (m * n, n, 1)),
        ),
    )
    spec = Gemm(
        m, n, k,
        Layout("float32", (m * k, k, 1)),
        Panels() if panels else Layout("float32", (0, n, 1)),
        Layout("float32", (m * n, n, 1)),
        (batch,), fused, UNITS[unit],
    )  # fmt: skip
    out = np.zeros((batch, m, n), "float32")
    exact = (a.astype("float64") @ b + bias) * column[:, None] + residual
    arrays = [a, pack(spec, b) if panels else b, out, bias, column, residual]
    check(run_kernel, spec, arrays, np.maximum(exact, 0))


def test_epilogue_comes_after_the_last_part(run_kernel):
    rng = np.random.default_rng(12)
    m, n, k = 11, 20, 50
    a, b, bias = numbers(rng, (m, k)), numbers(rng, (k, n)), numbers(rng, (n,))
    steps = (Apply("Add", (0, 1)), Apply("Relu", (2,)))
    fused = Fused(Body(("float32",) * 2, steps, (3,)), (Layout("float32", (0, 1)),))
    spec = Gemm(
        m, n, k, Layout("float32", (k, 1)), Panels(), Layout("float32", (n, 1)), epilogue=fused
    )
    spec = replace(spec, schedule=replace(schedule(spec), depth=16))
    out = np.full((m, n), np.nan, "float32")
    exact = np.maximum(a.astype("float64") @ b + bias, 0)
    check(run_kernel, spec, [a, pack(spec, b), out, bias], exact)


@pytest.mark.parametrize("order_b", [(0, 1), (1, 0)])
def test_result_of_another_dtype_is_not_summed_in_parts(run_kernel, order_b):
    rng = np.random.default_rng(14)
    m, n, k = 9, 20, 2100
    a, b = numbers(rng, (m, k), "int32"), numbers(rng, (k, n), "int32")
    right, b_strides = strided(b, order_b)
    fused = Fused(Body(("int32",), (Apply("Cast", (0,), dtype="float64"),), (1,)))
    spec = Gemm(
        m, n, k, Layout("int32", (k, 1)), Layout("int32", b_strides), Layout("float64", (n, 1)),
        epilogue=fused,
    )  # fmt: skip
    assert schedule(spec).depth == 0
    out = np.zeros((m, n), "float64")
    check(run_kernel, spec, [a, right, out], (a @ b).astype("float64"), interpreted=False)


def test_nan_and_infinity_pass(run_kernel):
    a = np.array([[np.nan, 1], [np.inf, 1], [1, 0]], "float32")
    b = np.array([[1, 0], [2, np.inf]], "float32")
    spec = Gemm(
        3, 2, 2, Layout("float32", (2, 1)), Layout("float32", (2, 1)), Layout("float32", (2, 1))
    )
    got = run_kernel(build(spec), [a, b, np.zeros((3, 2), "float32")])[2]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 16},
        {"unroll": 4},
        {"prefetch": 8},
        {"streamed": 3},
        {"streamed": 16, "unroll": 4, "row_blocks": 1, "is_rows_first": True},
        {"depth": 16, "turn_panels": 2, "streamed": 4},
        {"depth": 16, "turn_panels": 9, "row_blocks": 2, "is_rows_first": True},
        {"row_blocks": 1},
        {"row_blocks": 2, "is_rows_first": True},
        {"rows": 3, "vectors": 1},
        {"rows": 2, "vectors": 8, "unroll": 3},
    ],
)
@pytest.mark.parametrize("panels", [True, False])
def test_schedules_agree(run_kernel, options, panels):
    product(run_kernel, 23, 75, 41, panels=panels, **options, interpreted=True)


@pytest.mark.parametrize("source", [PanelSource.COPY, PanelSource.PLACE])
@pytest.mark.parametrize("depth", [0, 16])
def test_sources_agree(run_kernel, source, depth):
    product(run_kernel, 23, 75, 41, panels=False, source=source, depth=depth, interpreted=True)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(128, 768, 768), (49, 512, 4608), (1, 1000, 2048), (1000, 3, 64), (2000, 40, 200)],
)
@pytest.mark.parametrize("panels", [True, False])
def test_large_products(run_kernel, m, n, k, panels):
    product(run_kernel, m, n, k, panels=panels, interpreted=False)


@pytest.mark.parametrize("unit", UNITS)
def test_large_left_operand_goes_in_chunks_that_stay_cached(unit):
    layout = Layout("float32", (200, 1))
    c = Layout("float32", (40, 1))
    plan = schedule(Gemm(2000, 40, 200, layout, Panels(), c, unit=UNITS[unit]))
    assert plan.is_rows_first
    assert plan.rows * plan.row_blocks * 200 * 4 <= UNITS[unit].l2_bytes // 2


@pytest.mark.parametrize("n", [75, 64, 17])
@pytest.mark.parametrize("panels", [True, False])
def test_panels_of_a_turn_meet_a_part_of_the_terms_together(run_kernel, panels, n):
    rng = np.random.default_rng(13)
    m, k = 13, 50
    a, b, bias = numbers(rng, (m, k)), numbers(rng, (k, n)), numbers(rng, (n,))
    fused = Fused(
        Body(("float32",) * 2, (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,)),
        (Layout("float32", (0, 1)),),
    )
    right = Panels() if panels else Layout("float32", (n, 1))
    spec = Gemm(
        m, n, k, Layout("float32", (k, 1)), right, Layout("float32", (n, 1)), (), fused, AVX2
    )
    exact = np.maximum(a.astype("float64") @ b + bias, 0)
    for depth in (16, 25):  # with a rest, and without
        plan = replace(schedule(spec), depth=depth, turn_panels=2, row_blocks=2, is_rows_first=True)
        cut = replace(spec, schedule=plan)
        out = np.full((m, n), np.nan, "float32")
        check(run_kernel, cut, [a, pack(cut, b) if panels else b, out, bias], exact)


@pytest.mark.parametrize("unit", [AVX2, AVX512])
def test_sums_have_one_order_whatever_the_tiles(run_kernel, unit):
    rng = np.random.default_rng(15)
    k, n = 2100, 40
    b = numbers(rng, (k, n))
    results = []
    for m in (3, 40):  # in one part, and in several
        a = numbers(np.random.default_rng(16), (40, k))[:m]
        spec = Gemm(
            m, n, k, Layout("float32", (k, 1)), Panels(), Layout("float32", (n, 1)), unit=unit
        )
        assert bool(schedule(spec).depth) == (m == 40)
        out = np.zeros((m, n), "float32")
        results.append(run_kernel(build(spec), [a, pack(spec, b), out], interpreted=False)[2])
    np.testing.assert_array_equal(results[0], results[1][:3])


@pytest.mark.parametrize(("m", "n", "k"), [(64, 3072, 768), (197, 768, 300), (1500, 512, 512)])
def test_tiles_of_a_panel_ask_for_all_of_the_next(m, n, k):
    spec = Gemm(m, n, k, Layout("float32", (k, 1)), Panels(), Layout("float32", (n, 1)), unit=AVX2)
    plan = schedule(spec)
    tiles = -(-m // plan.rows)
    tiles = min(tiles, plan.row_blocks) if plan.is_rows_first else tiles
    width = plan.vectors * AVX2.lanes()
    assert tiles * plan.streamed >= width > (tiles - 1) * (plan.streamed - 1)
    assert plan.prefetch == 0
    one_panel = replace(spec, n=width, c=Layout("float32", (width, 1)))
    assert schedule(one_panel).streamed == 0
    free = replace(spec, m=symbol("m"))
    assert schedule(free).streamed * 2 >= schedule(free).vectors * AVX2.lanes()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "shape", [(1, 1000, 2048), (128, 768, 768), (3136, 64, 64), (49, 512, 4608)]
)
def test_tiles_fit_the_registers(unit, shape):
    m, n, k = shape
    for dtype in ("float32", "float64"):
        spec = Gemm(
            m, n, k, Layout(dtype, (k, 1)), Panels(dtype), Layout(dtype, (n, 1)), unit=UNITS[unit]
        )
        plan = schedule(spec)
        assert plan.rows * plan.vectors + plan.vectors + 1 <= UNITS[unit].registers


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_product(run_kernel, data):
    draw = data.draw
    m, n = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    k = draw(st.integers(0, 40))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    unit = UNITS[draw(st.sampled_from(sorted(UNITS)))]
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    rank = len(batch) + 2
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tails = [
        numbers(rng, (*[e if draw(st.booleans()) else 1 for e in batch], *shape), dtype)
        for shape in ((m, k), (k, n))
    ]
    memories, layouts = [], []
    for array in (*tails, np.zeros((*batch, m, n), dtype)):
        memory, strides = strided(
            array, draw(st.permutations(range(rank))), draw(st.integers(0, 2))
        )
        is_written = len(memories) == 2
        own = tuple(
            0 if e == 1 and axis < len(batch) and not is_written else s
            for axis, (s, e) in enumerate(zip(strides, array.shape, strict=True))
        )
        memories.append(memory)
        layouts.append(Layout(dtype, own))
    exact = np.matmul(*(array.astype("float64") for array in tails))
    exact = np.broadcast_to(exact, (*batch, m, n))
    spec = Gemm(m, n, k, *layouts, batch, NOTHING, unit)
    if draw(st.booleans()):
        right = Panels(dtype, tails[1].shape[:-2])
        spec = replace(spec, b=right)
        memories[1] = pack(spec, tails[1])
    interpreted = m * n * k < 1000
    check(run_kernel, spec, memories, exact, interpreted=interpreted)
