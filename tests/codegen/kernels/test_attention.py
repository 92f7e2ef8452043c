# SPDX-License-Identifier: Apache-2.0
"""Attention against numpy in double precision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.codegen.body import Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.attention import (
    Attention,
    AttentionOfParts,
    AttentionSchedule,
    EmptyRow,
    Mask,
    MaskKind,
    build,
    flops,
    is_cut,
    parts_shape,
    schedule,
)
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}


def layout(array, shape):
    """How an array lies over a shape that it broadcasts to."""
    strides = [
        0 if extent == 1 else stride
        for extent, stride in zip(array.shape, row_major(array.shape), strict=True)
    ]
    return Layout(array.dtype.name, tuple([0] * (len(shape) - array.ndim) + strides))


def exact(spec, q, k, v, masks=(), lengths=None):
    """The result, step by step."""
    with np.errstate(all="ignore"):
        scores = (q * spec.scale).astype("f8") @ np.swapaxes(k, -1, -2).astype("f8")
        if spec.cap:
            scores = spec.cap * np.tanh(scores / spec.cap)
        for mask, array in zip(spec.masks, masks, strict=True):
            added = mask.kind is MaskKind.ADDED
            seen = array == (mask.kind is MaskKind.KEPT) if not added else None
            scores = scores + array if added else np.where(seen, scores, mask.fill)
        row, key = np.arange(spec.queries)[:, None], np.arange(spec.keys)
        if lengths is not None:
            lengths = np.broadcast_to(lengths, spec.batch)[..., None, None]
            scores = np.where(key < lengths, scores, -np.inf)
            row = row + lengths - spec.queries
        if spec.last is not None:
            scores = np.where(key <= row + spec.last, scores, -np.inf)
        if spec.first is not None:
            scores = np.where(key >= row + spec.first, scores, -np.inf)
        risen = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = risen / risen.sum(-1, keepdims=True)
        if spec.empty is EmptyRow.CLEAN:
            weights = np.where(np.isnan(weights), 0, weights)
        if spec.empty is EmptyRow.ZERO:
            weights = np.where((scores == -np.inf).all(-1, keepdims=True), 0, weights)
        return weights @ v


def run_ways(run_kernel, spec, arrays, *, interpreted=False):
    """Run the kernel, and what joins its parts if there are any; return the result."""
    if not is_cut(spec):
        return run_kernel(build(spec), arrays, rtol=1e-5, interpreted=interpreted)[3]
    parts = np.full(parts_shape(spec), np.nan, "f4")
    options = {"rtol": 1e-5, "interpreted": interpreted}
    *_, parts = run_kernel(build(spec), [*arrays, parts], **options)
    return run_kernel(build(AttentionOfParts(spec)), [parts, arrays[3]], **options)[1]


def check(run_kernel, spec, q, k, v, masks=(), lengths=None, *, interpreted=True):
    """Run a kernel on dense arrays, and compare."""
    arrays = [q, k, v, np.zeros((*spec.batch, spec.queries, spec.value_size), "f4"), *masks]
    shapes = [(*spec.batch, *array.shape[-2:]) for array in arrays[:4]]
    q_at, k_at, v_at, y_at = map(layout, arrays[:4], shapes)
    scores = (*spec.batch, spec.queries, spec.keys)
    placed = [replace(m, layout=layout(a, scores)) for m, a in zip(spec.masks, masks, strict=True)]
    spec = replace(spec, q=q_at, k=k_at, v=v_at, y=y_at, masks=tuple(placed))
    if lengths is not None:
        spec = replace(spec, lengths=layout(lengths, spec.batch))
        arrays.append(lengths)
    got = run_ways(run_kernel, spec, arrays, interpreted=interpreted)
    want = exact(spec, q, k, v, masks, lengths)
    scale = float(np.abs(np.nan_to_num(want)).max(initial=1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale)


def sketch(batch, queries, keys, key_size, value_size=None, masks=(), **options):
    """A description whose layouts `check` fills in."""
    value_size = key_size if value_size is None else value_size
    nothing = Layout("float32", (0,) * (len(batch) + 2))
    options["masks"] = tuple(replace(mask, layout=nothing) for mask in masks)
    return Attention(
        queries, keys, key_size, value_size, *[nothing] * 4, batch, key_size**-0.5, **options
    )


def numbers(spec, seed=0, heads=None):
    """Queries, keys and values; keys and values of other extents in front if told."""
    rng = np.random.default_rng(seed)
    inner = spec.batch if heads is None else heads
    shapes = [(*spec.batch, spec.queries, spec.key_size)]
    shapes += [(*inner, spec.keys, size) for size in (spec.key_size, spec.value_size)]
    return [rng.standard_normal(shape).astype("f4") * 2 for shape in shapes]


ADDED = Mask(Layout("float32", ()))
KEPT = Mask(Layout("bool", ()), MaskKind.KEPT)


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [(1, 1, 1), (1, 9, 16), (3, 5, 7), (16, 16, 16), (17, 33, 20), (49, 49, 32), (70, 150, 64)],
)
def test_hard_shapes(run_kernel, unit, queries, keys, size):
    spec = sketch((2,), queries, keys, size, unit=UNITS[unit])
    is_small = queries * keys * size < 3000
    check(run_kernel, spec, *numbers(spec), interpreted=is_small)


@pytest.mark.parametrize("size", [32, 80, 96, 128, 256])
def test_sizes_of_heads(run_kernel, size):
    spec = sketch((3,), 20, 90, size, 40)
    check(run_kernel, spec, *numbers(spec), interpreted=False)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", [ADDED, KEPT], ids=["added", "kept"])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 40), (2, 1, 1, 40), (2, 1, 21, 40), (1, 1, 21, 40), (2, 3, 21, 40), (2, 1, 21, 1)],
)
@pytest.mark.parametrize("is_by_keys", [False, True])
def test_masks_of_all_shapes(run_kernel, unit, kind, shape, is_by_keys):
    spec = sketch((2, 3), 21, 40, 8, unit=UNITS[unit], masks=(kind,))
    spec = replace(spec, schedule=AttentionSchedule(2, 6, 17, is_by_keys=is_by_keys))
    mask = np.random.default_rng(1).standard_normal(shape).astype("f4")
    mask = mask if kind is ADDED else mask > 0
    check(run_kernel, spec, *numbers(spec), (mask,), interpreted=False)


@pytest.mark.parametrize("empty", EmptyRow)
@pytest.mark.parametrize("size", [4, 70])
def test_rows_without_keys(run_kernel, empty, size):
    spec = sketch((2,), 19, size, 5, masks=(ADDED,), empty=empty)
    rng = np.random.default_rng(2)
    mask = np.where(rng.random((2, 19, size)) < 0.5, -np.inf, 0).astype("f4")
    mask[0, 3] = mask[1, 18] = -np.inf
    check(run_kernel, spec, *numbers(spec), (mask,))


@pytest.mark.parametrize("empty", EmptyRow)
def test_scores_that_are_no_numbers(run_kernel, empty):
    spec = sketch((1,), 5, 80, 4, empty=empty)
    q, k, v = numbers(spec)
    q[0, 1, 2], q[0, 3, 0] = np.nan, np.inf
    check(run_kernel, spec, q, k, v)


@pytest.mark.parametrize("queries", [5, 20])
@pytest.mark.parametrize("cap", [0, 1.5])
def test_masks_of_the_lowest_numbers_leave_a_mean(run_kernel, queries, cap):
    lowest = float(np.finfo("f4").min)
    spec = sketch((1,), queries, 80, 4, masks=(ADDED,), cap=cap)
    mask = np.full((1, queries, 80), lowest, "f4")
    mask[0, 0, 7] = 0
    check(run_kernel, spec, *numbers(spec), (mask,))
    for kind in (MaskKind.KEPT, MaskKind.DROPPED):
        kinds = (Mask(Layout("bool", ()), kind, lowest),)
        spec = sketch((1,), queries, 80, 4, masks=kinds, cap=cap)
        kept = mask == (0 if kind is MaskKind.KEPT else lowest)
        check(run_kernel, spec, *numbers(spec), (kept,))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "limits",
    [{"last": 0}, {"last": 30}, {"last": -3}, {"first": -5}, {"first": -9, "last": 2}],
    ids=str,
)
def test_queries_that_see_a_part(run_kernel, unit, limits):
    for queries, keys in ((37, 37), (5, 35), (90, 130)):
        spec = sketch((2,), queries, keys, 8, unit=UNITS[unit], empty=EmptyRow.ZERO, **limits)
        check(run_kernel, spec, *numbers(spec), interpreted=False)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("limits", [{}, {"last": 0}, {"last": 0, "first": -3}], ids=str)
def test_lengths_of_keys(run_kernel, dtype, limits):
    spec = sketch((4, 2), 3, 75, 8, empty=EmptyRow.ZERO, **limits)
    lengths = np.array([[75], [1], [40], [0]], dtype)
    check(run_kernel, spec, *numbers(spec), lengths=lengths, interpreted=False)


def test_a_cap_is_before_the_mask(run_kernel):
    spec = sketch((2,), 9, 20, 8, cap=1.5, masks=(ADDED,))
    mask = np.random.default_rng(4).standard_normal((9, 20)).astype("f4") * 5
    check(run_kernel, spec, *numbers(spec), (mask,))


@pytest.mark.parametrize("queries", [1, 3, 9])
def test_heads_that_share_keys(run_kernel, queries):
    spec = sketch((2, 3, 4), queries, 20, 8, last=11, masks=(KEPT,))
    mask = np.random.default_rng(1).random((2, 1, 4, queries, 20)) > 0.3
    check(run_kernel, spec, *numbers(spec, heads=(2, 3, 1)), (mask,))


@pytest.mark.parametrize(
    "options",
    [{}, {"last": 0}, {"first": -20, "last": 3}, {"masks": (ADDED,)}, {"lengths": 0, "last": 0}],
    ids=str,
)
def test_tiles_that_share_blocks_of_keys_have_the_same_bits(run_kernel, options):
    """Blocks that no query of a tile sees are left out, which changes nothing either."""
    options = dict(options)
    lengths = np.array([[150], [70]]) if "lengths" in options else None
    options.pop("lengths", None)
    spec = sketch((2, 2), 75, 150, 20, unit=AVX2, empty=EmptyRow.ZERO, **options)
    # Heads lie side by side, so that the rows of each lie apart.
    arrays = [*numbers(spec), np.zeros((2, 2, 75, 20), "f4")]
    places = [
        Layout("float32", (array[0].size, 20, 40, 1)) for array in arrays
    ]  # (items, rows, heads, entries) in memory
    arrays += [np.random.default_rng(1).standard_normal((1, 2, 75, 150)).astype("f4")] * len(
        spec.masks
    )
    masks = tuple(replace(m, layout=layout(arrays[4], (2, 2, 75, 150))) for m in spec.masks)
    spec = replace(spec, q=places[0], k=places[1], v=places[2], y=places[3], masks=masks)
    if lengths is not None:
        spec = replace(spec, lengths=layout(lengths, spec.batch))
        arrays.append(lengths)
    first, *others = (
        run_kernel(build(replace(spec, schedule=plan)), arrays, interpreted=False)[3]
        for plan in (
            AttentionSchedule(3, 4, 32),
            AttentionSchedule(3, 4, 32, is_far=True, tiles=2, is_gathered=True),
            AttentionSchedule(1, 4, 32, tiles=4, unroll=7),
            AttentionSchedule(2, 3, 32, is_gathered=True, unroll=1),
        )
    )
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("unit", ["avx512", "avx2", "sse"])
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        (1, 513, {}),
        (1, 1024, {"masks": (ADDED,)}),
        (2, 1300, {"last": 1290, "cap": 2.0}),
        (2, 1700, {"first": 600, "last": 1200, "masks": (KEPT,)}),
        (1, 1100, {"lengths": [[1100], [700], [512], [0]], "last": 0, "first": -99}),
    ],
    ids=str,
)
def test_many_keys_of_few_queries_are_cut(run_kernel, unit, queries, keys, options):
    """A part may have nothing that is seen, and an item no key at all."""
    options = dict(options)
    lengths = np.array(options.pop("lengths")) if "lengths" in options else None
    batch = (2, 3) if lengths is None else (4, 3)
    spec = sketch(batch, queries, keys, 20, unit=UNITS[unit], empty=EmptyRow.ZERO, **options)
    assert is_cut(spec)
    rng = np.random.default_rng(1)
    masks = [rng.standard_normal((1, 3, queries, keys)).astype("f4") for _ in spec.masks]
    if spec.masks and spec.masks[0].kind is MaskKind.KEPT:
        masks = [mask > 0 for mask in masks]
    heads = (batch[0], 1)
    check(run_kernel, spec, *numbers(spec, heads=heads), masks, lengths=lengths, interpreted=False)


def test_parts_are_turns_of_what_would_have_one():
    spec = sketch((2, 3), 1, 4 * schedule(sketch((), 1, 9999, 8)).part, 8)
    assert build(spec).extent == 2 * 4  # the three heads share their keys
    assert build(replace(spec, queries=20)).extent == 2 * 3
    assert not is_cut(replace(spec, keys=300))


@pytest.mark.parametrize("empty", EmptyRow)
def test_parts_of_what_is_no_number(run_kernel, empty):
    """Scores that are infinite or no numbers, in one part of several, and in all."""
    spec = sketch((1,), 3, 80, 4, unit=AVX2, masks=(ADDED,), empty=empty)
    spec = replace(spec, schedule=AttentionSchedule(1, 1, 8, is_by_keys=True, part=16))
    mask = np.zeros((3, 80), "f4")
    mask[0, 20], mask[1, 30], mask[1, 79] = np.nan, np.inf, -np.inf
    check(run_kernel, spec, *numbers(spec), (mask,))
    mask[0, :64], mask[2] = -np.inf, -np.inf
    check(run_kernel, spec, *numbers(spec), (mask,))


def test_one_part_has_the_bits_of_all_keys(run_kernel):
    """What is joined of one part and of nothing is that part; so is a window in one part."""
    arrays = numbers(sketch((2,), 2, 90, 12))
    arrays.append(np.zeros((2, 2, 12), "f4"))
    results = []
    for part in (0, 64):
        spec = sketch((2,), 2, 90, 12, unit=AVX2, last=50)
        places = [layout(array, array.shape) for array in arrays]
        plan = AttentionSchedule(1, 1, 16, is_by_keys=True, part=part)
        spec = replace(spec, q=places[0], k=places[1], v=places[2], y=places[3], schedule=plan)
        results.append(run_ways(run_kernel, spec, arrays))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("unit", ["avx512", "avx2"])
def test_scores_stay_in_the_second_cache(unit):
    """What a turn keeps does not grow with the number of keys."""
    unit, sizes = UNITS[unit], []
    for keys in (2048, 8192, 65536):
        spec = sketch((1, 12), keys, keys, 64, unit=unit)
        apart = Layout("float32", (0, 64, 768, 1))
        kept = build(replace(spec, q=apart, k=apart, v=apart, y=apart)).locals
        sizes.append(sum(int(np.prod(buffer.shape)) * buffer.item_bytes for buffer in kept))
    assert max(sizes) <= unit.l2_bytes // 4
    assert sizes[1] == sizes[2]


def test_nothing_to_do():
    assert build(sketch((0, 3), 5, 5, 4)).extent == 0
    assert build(sketch((2,), 0, 5, 4)).extent == 0
    assert build(sketch((2,), 5, 5, 4, 0)).extent == 0


def test_operations_are_those_of_both_products():
    assert flops(sketch((2, 3), 5, 7, 4, 9)) == 2 * 6 * 5 * 7 * (4 + 9)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_kernels(run_kernel, data):
    extent = st.integers(1, 40)
    batch = tuple(data.draw(st.lists(st.integers(1, 2), max_size=2)))
    queries, keys, key_size, value_size = (data.draw(extent) for _ in range(4))
    limit = st.none() | st.integers(-5, 5)
    kinds = data.draw(st.lists(st.sampled_from([ADDED, KEPT]), max_size=2))
    spec = sketch(
        batch,
        queries,
        keys,
        key_size,
        value_size,
        kinds,
        unit=UNITS[data.draw(st.sampled_from(list(UNITS)))],
        last=data.draw(limit),
        first=data.draw(limit),
        cap=data.draw(st.sampled_from([0, 3.0])),
        empty=data.draw(st.sampled_from(EmptyRow)),
    )
    if data.draw(st.booleans()):
        parts = [data.draw(st.integers(1, 5)) for _ in range(3)]
        by_keys, far, gathered = (data.draw(st.booleans()) for _ in range(3))
        tiles = data.draw(st.integers(1, 3))
        unroll = data.draw(st.integers(1, 5))
        part = parts[2] * data.draw(st.integers(0, 4)) if by_keys else 0
        plan = AttentionSchedule(*parts, by_keys, far, tiles, gathered, unroll, part=part)
        spec = replace(spec, schedule=plan)
    masks = []
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    for kind in kinds:
        shape = [data.draw(st.sampled_from([1, n])) for n in (*batch, queries, keys)]
        mask = rng.standard_normal(shape).astype("f4")
        masks.append(mask if kind is ADDED else mask > 0)
    check(run_kernel, spec, *numbers(spec), masks, interpreted=False)
