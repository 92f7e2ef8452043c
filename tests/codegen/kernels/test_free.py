# SPDX-License-Identifier: Apache-2.0
"""Kernels of which extents are known only when they run, against numpy and their known sizes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import attention
from intarsia.codegen.kernels.attention.spec import Attention, AttentionSchedule, Mask
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.families import family_of
from intarsia.codegen.kernels.gather import Gather
from intarsia.codegen.kernels.gemm import Gemm, Panels, pack
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.kernels.rows import Rows
from intarsia.codegen.kernels.sizes import Sizes
from intarsia.codegen.unit import AVX512, SSE, CpuModel
from intarsia.codegen.verifier import verify
from intarsia.extents import Expression, UndecidedError, evaluate, evaluate_all, symbol

B, S, T = symbol("b"), symbol("s"), symbol("t")
SIZES = [(1, 1, 1), (3, 17, 70), (1, 70, 17), (2, 64, 64), (1, 3, 130), (2, 13, 5)]
UNITS = [AVX512, SSE]


def dense(shape, dtype="float32"):
    return Layout(dtype, row_major(shape))


def fixed(spec, sizes):
    """Return a spec, or a part of one, of which the sizes are known."""
    if isinstance(spec, Expression):
        return evaluate(spec, sizes)
    if isinstance(spec, tuple):
        return tuple(fixed(item, sizes) for item in spec)
    if dataclasses.is_dataclass(spec) and not isinstance(spec, CpuModel | Body):
        fields = [field.name for field in dataclasses.fields(spec) if field.init]
        return dataclasses.replace(
            spec, **{name: fixed(getattr(spec, name), sizes) for name in fields}
        )
    return spec


def run_both(spec, arrays, sizes, known=None):
    """Run a kernel on flat arrays, and check that one of known sizes gives the same bits.

    `known` are the arrays for that one, where they differ.
    """
    again = [array.copy() for array in (known or arrays)]
    run(spec, arrays, sizes)
    run(fixed(spec, sizes), again, sizes)
    for number, (free, static) in enumerate(zip(arrays, again, strict=True)):
        if known is None or arrays[number] is known[number]:
            np.testing.assert_array_equal(free, static)


def run(spec, arrays, sizes):
    """Run a kernel, and check that its parallel loop has the turns it says."""
    function = family_of(spec).build(spec)
    verify(function)
    turns = evaluate(function.turns, sizes) if function.turns is not None else None
    interpret(
        expand(function),
        arrays,
        [evaluate(extent, sizes) for extent in function.free],
        None if turns is None else range(turns),
    )


def named(b, s, t):
    return {"b": b, "s": s, "t": t}


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("sizes", SIZES)
def test_elementwise(sizes):
    """Broadcast, transposed, and vectors along a free dimension."""
    sizes, rng = named(*sizes), np.random.default_rng(0)
    add = Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,))
    cases = [
        ((B, S, 12, 8), row_major((B, S, 12, 8)), (0, 0, 8, 1)),
        ((B, 1, 1, S), (S, 0, 0, 1), (0, 0, 0, 0)),
        ((B, 4, S, 8), (S * 32, 8, 32, 1), (0, 0, 0, 1)),
        ((B, 8, S), (S * 8, 1, 8), (8 * S, S, 1)),
    ]
    for shape, left, right in cases:
        spec = Elementwise(
            shape, (Layout("float32", left), Layout("float32", right)), (dense(shape),), add
        )
        extents = evaluate_all(shape, sizes)
        views, memory = [], []
        for strides in (left, right):
            steps = evaluate_all(strides, sizes)
            span = 1 + sum((e - 1) * step for e, step in zip(extents, steps, strict=True))
            memory.append(normal(rng, span))
            views.append(
                np.lib.stride_tricks.as_strided(memory[-1], extents, [4 * step for step in steps])
            )
        result = np.zeros(extents, np.float32)
        run(spec, [*memory, result.reshape(-1)], sizes)
        np.testing.assert_array_equal(result, views[0] + views[1])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_free_rows(sizes, unit: CpuModel):
    sizes, rng = named(*sizes), np.random.default_rng(0)
    b, s = sizes["b"], sizes["s"]
    a, weights = normal(rng, b, s, 24), normal(rng, 24, 40)
    bias = normal(rng, 40)
    fused = Fused(
        Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,)), (Layout("float32", (0, 0, 1)),)
    )
    spec = Gemm(
        S,
        40,
        24,
        dense((B, S, 24)),
        Panels("float32"),
        dense((B, S, 40)),
        (B,),
        fused,
        unit,
    )
    result = np.zeros((b, s, 40), np.float32)
    arrays = [a.reshape(-1), None, result.reshape(-1), bias]
    free, known = ([*arrays], [*arrays])
    for item, target in ((spec, free), (fixed(spec, sizes), known)):
        target[1] = pack(item, weights).view("float32").reshape(-1)
    run_both(spec, free, sizes, known)
    np.testing.assert_allclose(result, a @ weights + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_free_columns_and_terms(sizes, unit: CpuModel):
    sizes, rng = named(*sizes), np.random.default_rng(0)
    b, s, t = sizes.values()
    q, k, v = normal(rng, b, s, 24), normal(rng, b, t, 24), normal(rng, b, t, 40)
    turned = Layout("float32", (T * 24, 1, 24))
    scores = np.zeros((b, s, t), np.float32)
    spec = Gemm(S, T, 24, dense((B, S, 24)), turned, dense((B, S, T)), (B,), unit=unit)
    run(spec, [q.reshape(-1), k.reshape(-1), scores.reshape(-1)], sizes)
    np.testing.assert_allclose(scores, q @ k.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)
    result = np.zeros((b, s, 40), np.float32)
    spec = Gemm(S, 40, T, dense((B, S, T)), dense((B, T, 40)), dense((B, S, 40)), (B,), unit=unit)
    run(spec, [scores.reshape(-1), v.reshape(-1), result.reshape(-1)], sizes)
    np.testing.assert_allclose(result, scores @ v, rtol=1e-4, atol=1e-4)


def test_a_product_that_no_schedule_takes_says_so():
    spec = Gemm(S, T, 24, dense((S, 24)), dense((24, T)), dense((S, T)))
    with pytest.raises(UndecidedError, match="24 terms and t columns"):
        family_of(spec).build(spec)


@pytest.mark.parametrize(
    ("kind", "shape", "axis"),
    [("Softmax", (B, 4, S), 2), ("Normalize", (B, S, 48), 2), ("Softmax", (B, S, 8), 1)],
)
@pytest.mark.parametrize("sizes", SIZES)
def test_rows(kind, shape, axis, sizes):
    sizes, rng = named(*sizes), np.random.default_rng(0)
    spec = Rows(shape, (axis,), kind, dense(shape), dense(shape))
    x = normal(rng, *evaluate_all(shape, sizes))
    y = np.zeros_like(x)
    run_both(spec, [x.reshape(-1), y.reshape(-1)], sizes)
    if kind == "Softmax":
        risen = np.exp(x - x.max(axis, keepdims=True))
        expected = risen / risen.sum(axis, keepdims=True)
    else:
        expected = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("length", [1, 7, 16, 40, 63, 64, 83, 130])
def test_rows_of_several_dimensions(length, unit, kind):
    """What is left of a row along its last dimension goes on where it would in a known one."""
    rng = np.random.default_rng(0)
    padded = Layout("float32", (12 * S, 4 * S, 1))
    x = normal(rng, 2, 3, 4, length)
    spec = Rows((2, 3, S), (1, 2), kind, padded, dense((2, 3, S)), unit=unit)
    y = np.zeros((2, 3, length), np.float32)
    run_both(spec, [x.reshape(-1), y.reshape(-1)], {"s": length})
    x = x[:, :, 0]
    risen = np.exp(x - x.max((1, 2), keepdims=True))
    expected = risen / risen.sum((1, 2), keepdims=True)
    if kind == "LogSoftmax":
        expected = np.log(expected)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "L2", "Max", "LogSumExp", "Prod"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("length", [1, 7, 16, 40, 63, 64, 83, 130])
@pytest.mark.parametrize("axes", [(2,), (1, 2), (0, 1)])
def test_reductions(length, unit, kind, axes):
    """Along vectors and across, over one dimension and several that do not lie densely."""
    rng = np.random.default_rng(0)
    x = normal(rng, 2, 3, 4, length) / 4
    kept = tuple(extent for dim, extent in enumerate((2, 3, S)) if dim not in axes)
    padded = Layout("float32", (12 * S, 4 * S, 1))
    spec = Reduction((2, 3, S), axes, kind, padded, dense(kept), unit=unit)
    y = np.zeros(evaluate_all(kept, {"s": length}), np.float32)
    # One dimension is left of two of which one is 1, and vectors go along that one then.
    is_same = length > 1 or axes != (1, 2)
    (run_both if is_same else run)(spec, [x.reshape(-1), y.reshape(-1)], {"s": length})
    x = x[:, :, 0]
    expected = {
        "Sum": lambda: x.sum(axes),
        "Mean": lambda: x.mean(axes),
        "L2": lambda: np.sqrt((x * x).sum(axes)),
        "Max": lambda: x.max(axes),
        "LogSumExp": lambda: np.log(np.exp(x).sum(axes)),
        "Prod": lambda: x.prod(axes),
    }[kind]()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_gather(sizes):
    sizes, rng = named(*sizes), np.random.default_rng(0)
    b, s, t = sizes.values()
    data, indices = normal(rng, b, t, 8), rng.integers(-t, t, s)
    spec = Gather(B, T, S, 8, dense((B, T, 8)), dense((S,), "int64"), dense((B, S, 8)))
    y = np.zeros((b, s, 8), np.float32)
    run(spec, [data.reshape(-1), indices, y.reshape(-1)], sizes)
    np.testing.assert_array_equal(y, data[:, indices])


def test_extents_as_numbers():
    y = np.zeros(3, np.int64)
    run(Sizes((B, 2 * S + 1, 7), dense((3,), "int64")), [y], {"b": 3, "s": 5})
    assert y.tolist() == [3, 11, 7]


TILES = AttentionSchedule(2, 4, 32, is_far=True, tiles=2, is_gathered=True)


def attend(spec, arrays, sizes):
    """Run all kernels of attention, as a program does; only one of two ways has turns."""
    turns = []
    for way in attention.ways(spec):
        turns.append(evaluate(attention.build(way).extent, sizes))
        if not attention.is_cut(way):
            run(way, arrays, sizes)
            continue
        parts = np.full(evaluate_all(attention.parts_shape(way), sizes), np.nan, np.float32)
        run(way, [*arrays, parts.reshape(-1)], sizes)
        run(attention.AttentionOfParts(way), [parts.reshape(-1), arrays[3]], sizes)
    assert sum(map(bool, turns)) == 1


@pytest.mark.parametrize("mask", ["none", "keys", "scores", "causal"])
@pytest.mark.parametrize(
    ("queries", "plan"), [(S, None), (2, None), (S, TILES)], ids=["free", "few", "tiles"]
)
@pytest.mark.parametrize("sizes", [(2, 17, 20), (1, 3, 130), (1, 40, 96)])
def test_attention(mask, sizes, queries, plan):
    """Keys beyond the last one count for nothing, no query is left out, few are taken as few."""
    check_attention(mask, sizes, queries, plan)


PARTS = AttentionSchedule(1, 1, 16, is_by_keys=True, few=4, part=32)


@pytest.mark.parametrize("mask", ["none", "keys", "scores", "causal"])
@pytest.mark.parametrize("sizes", [(2, 1, 31), (1, 3, 32), (2, 4, 33), (1, 2, 128)])
def test_attention_of_parts_of_the_keys(mask, sizes):
    check_attention(mask, sizes, S, PARTS)


def check_attention(mask, sizes, queries, plan):
    """Compare with numpy, and all bits with those of known sizes."""
    sizes, rng = named(*sizes), np.random.default_rng(0)
    b, s, t = sizes["b"], evaluate(queries, sizes), sizes["t"]
    heads, size = 2, 9
    q, k, v = (normal(rng, b, n, heads, size) for n in (s, t, t))
    scores = np.einsum("bshd,bthd->bhst", q, k) * np.float32(0.2)
    masks, more = (), []
    if mask == "keys":
        masks, more = (Mask(Layout("float32", (T, 0, 0, 1))),), [normal(rng, b, 1, 1, t)]
    elif mask == "scores":
        masks, more = (Mask(Layout("float32", (queries * T, 0, T, 1))),), [normal(rng, b, 1, s, t)]
    elif mask == "causal":
        hidden = np.arange(t)[None] > np.arange(s)[:, None]
        scores = np.where(hidden, -np.inf, scores)
    scores = scores + more[0] if more else scores
    risen = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhst,bthd->bshd", risen / risen.sum(-1, keepdims=True), v)
    layouts = [
        Layout("float32", (n * heads * size, size, heads * size, 1))
        for n in (queries, T, T, queries)
    ]
    last = 0 if mask == "causal" else None
    spec = Attention(queries, T, size, size, *layouts, (B, heads), 0.2, masks=masks, last=last)
    spec = dataclasses.replace(spec, schedule=plan)
    y = np.zeros((b, s, heads, size), np.float32)
    flat = [array.reshape(-1) for array in (q, k, v, y, *more)]
    again = [array.copy() for array in flat]
    attend(spec, flat, sizes)
    attend(fixed(spec, sizes), again, sizes)
    np.testing.assert_array_equal(flat[3], again[3])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
