"""Products of narrow integers with packed weights, to the bit; of bfloat16 near float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.codegen.test_dots import HERE, numbers

from intarsia.codegen.body import Apply, Body, Fused, Layout, identity
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.ir import Dot, row_major, walk
from intarsia.codegen.kernels import gemm
from intarsia.codegen.kernels.gemm import Gemm, Panels
from intarsia.codegen.unit import CpuModel
from intarsia.extents import evaluate, symbol

UNITS = {
    "avx2": CpuModel(256, 16, dots=("sse2", "avx2")),
    "avx512bw": CpuModel(512, 32, dots=("sse2", "avx2", "avx512bw")),
    "vnni": CpuModel(512, 32, dots=("avx512vnni",)),
    "neon": CpuModel(128, 32, dots=("dotprod",)),
    "blocks": CpuModel(128, 32, dots=("dotprod", "i8mm", "bf16")),
    "scalar": CpuModel(0, 16),
}
ARM = ("neon", "blocks")
PAIRS = [("uint8", "int8"), ("int8", "int8"), ("int16", "int8"), ("int16", "int16")]
SHAPES = [(1, 5, 7), (7, 33, 19), (13, 64, 40), (3, 1, 1), (2, 17, 130)]


def product(m, k, n, dtypes=("uint8", "int8"), unit="avx2", batch=(), **changes):
    a, w = dtypes
    total = "float32" if a == "uint16" else "int32"
    strides = row_major((*batch, m, k)), row_major((*batch, m, n))
    return Gemm(
        m,
        n,
        k,
        Layout(a, strides[0]),
        Panels(w),
        Layout(total, strides[1]),
        batch,
        **{"epilogue": Fused(identity(total)), "unit": UNITS[unit], **changes},
    )


def operands(m, k, n, dtypes, small=False):
    x, w = (
        numbers(dtype, (max(3, rows), columns), seed)[:rows]
        for seed, (dtype, rows, columns) in enumerate(((dtypes[0], m, k), (dtypes[1], k, n)))
    )
    return (np.clip(x, -255, 255), np.clip(w, -255, 255)) if small else (x, w)


@pytest.mark.parametrize(
    ("dtypes", "unit"),
    [
        *((pair, name) for pair in PAIRS for name in UNITS if name != "avx512bw"),
        *((("uint8", "uint8"), name) for name in ARM),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_exact(run_kernel, shape, dtypes, unit):
    m, k, n = shape
    spec = product(m, k, n, dtypes, unit)
    x, w = operands(m, k, n, dtypes, small=True)
    packed = gemm.pack(spec, w)
    emit = partial(emit_llvm, unit=CpuModel(dots=HERE))
    *_, y = run_kernel(
        gemm.build(spec), [x, packed, np.zeros((m, n), "int32")], emit=emit, interpreted=m == 7
    )
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("unit", ["avx2", "avx512bw"])
@pytest.mark.parametrize(("batch", "n"), [((), 100), ((2,), 21)])
def test_groups_that_are_split(run_kernel, batch, n, unit):
    """Large neighbours of one sign, here and there, meet activations that are all the largest."""
    m, k = 7, 516  # more groups than a digit counts
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (*batch, m, k), np.uint8, endpoint=True)
    x[..., :2, :] = 255
    w = rng.integers(-70, 70, (*batch, k, n), np.int8)
    assert gemm.pays(np.clip(w, -64, 64), 8)
    assert not gemm.pays(np.full_like(w, 127), 8)
    w[..., 3:9, 2:5], w[..., -1:, :] = 127, -128
    spec = product(m, k, n, batch=batch, unit=unit)
    spec = replace(spec, b=Panels("int8", batch, 0))
    spec = replace(spec, b=replace(spec.b, split=gemm.count_split(spec, w)))
    assert spec.b.split > 3
    arrays = [x, gemm.pack(spec, w), np.zeros((*batch, m, n), "int32")]
    function = gemm.build(spec)
    *_, y = run_kernel(
        function, arrays, emit=partial(emit_llvm, unit=CpuModel(dots=HERE)), interpreted=n < 40
    )
    np.testing.assert_array_equal(y.reshape(*batch, m, n), x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize(
    ("rows", "unit"), [*((m, "avx2") for m in (1, 2, 6, 9, 23)), (1, "blocks"), (23, "blocks")]
)
def test_free_rows(run_kernel, rows, unit):
    k, n = 37, 41
    spec = product(symbol("m"), k, n, unit=unit)
    x, w = operands(rows, k, n, ("uint8", "int8"))
    emit = partial(emit_llvm, unit=CpuModel(dots=HERE))
    arrays = [x, gemm.pack(spec, w), np.zeros((rows, n), "int32")]
    function = gemm.build(spec)
    sizes = [evaluate(extent, {"m": rows}) for extent in function.free]
    *_, y = run_kernel(function, arrays, sizes=sizes, emit=emit, interpreted=False)
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


def test_a_batch_and_an_epilogue(run_kernel):
    """A correction of each column, and another dtype; the batch becomes rows."""
    m, k, n = 5, 30, 20
    steps = (Apply("Sub", (0, 1), (), "int32"), Apply("Cast", (2,), (), "float32"))
    fused = Fused(Body(("int32", "int32"), steps, (3,)), (Layout("int32", (0, 0, 1)),))
    c = Layout("float32", (m * n, n, 1))
    spec = replace(product(m, k, n, batch=(3,)), epilogue=fused, c=c)
    x, w = operands(3 * m, k, n, ("uint8", "int8"))
    column = np.arange(n, dtype=np.int32)
    emit = partial(emit_llvm, unit=CpuModel(dots=HERE))
    arrays = [x, gemm.pack(spec, w), np.zeros((3 * m, n), "float32"), column]
    y = run_kernel(gemm.build(spec), arrays, emit=emit)[2]
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32) - column)


@pytest.mark.parametrize("dtypes", [*PAIRS, ("uint16", "uint16")], ids=str)
def test_which_products_are_blocks(dtypes):
    """Of bytes and of bfloat16, in tiles of as many rows as registers hold beside columns."""
    spec = product(64, 64, 64, dtypes, "blocks")
    is_blocked = "int16" not in dtypes
    assert spec.is_blocked == is_blocked
    dots = [item for item in walk(gemm.build(spec).body) if isinstance(item, Dot)]
    assert dots
    assert {dot.is_blocked for dot in dots} == {is_blocked}
    plan = gemm.schedule(spec)
    used = plan.rows * plan.vectors + (2 if is_blocked else 1) * plan.vectors + 1
    assert 24 <= used <= 32
    assert not product(64, 64, 64, dtypes, "neon").is_blocked
    assert not product(64, 64, 64, dtypes, "vnni").is_blocked


@pytest.mark.parametrize("unit", ["avx2", "blocks"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16(run_kernel, shape, unit):
    m, k, n = shape
    spec = product(m, k, n, ("uint16", "uint16"), unit)
    x, w = operands(m, k, n, ("uint16", "uint16"))
    emit = partial(emit_llvm, unit=CpuModel(dots=HERE))
    *_, y = run_kernel(
        gemm.build(spec), [x, gemm.pack(spec, w), np.zeros((m, n), "float32")], emit=emit, rtol=1e-5
    )
    exact_x, exact_w = ((i.astype(np.uint32) << 16).view(np.float32).astype(float) for i in (x, w))
    bound = np.abs(exact_x) @ np.abs(exact_w) * k * 2.0**-23
    assert (np.abs(y - exact_x @ exact_w) <= bound).all()
