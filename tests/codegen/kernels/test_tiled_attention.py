"""Attention by tiles of bfloat16: what it computes, and what rounding costs, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.kernels.test_attention import ADDED, KEPT, exact, layout, numbers, sketch

from intarsia.arrays import np_dtype
from intarsia.codegen.body import Layout
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.kernels.attention import EmptyRow, Mask, MaskKind, build, schedule
from intarsia.codegen.unit import AVX512
from intarsia.codegen.verifier import verify
from intarsia.cost.machine import find_cpu
from intarsia.native.tiles import why_no_tiles
from intarsia.settings import Settings

TILES = replace(AVX512, tiles=("amx-bf16", "amx-int8"))
CASES = {
    "one tile": ((2,), 20, 40, 32, 32, {}),
    "a head that fills no tile": ((1,), 17, 33, 7, 5, {}),
    "a window of an image": ((3,), 49, 49, 32, 32, {}),
    "several blocks": ((2,), 70, 300, 64, 40, {}),
    "a mask for all queries": ((2, 2), 40, 70, 16, 16, {"masks": (ADDED,), "mask": (2, 1, 1, 70)}),
    "a mask for each query": ((2, 2), 40, 70, 16, 16, {"masks": (KEPT,), "mask": (1, 2, 40, 70)}),
    "causal": ((2,), 150, 150, 32, 32, {"last": 0}),
    "a band": ((2,), 90, 130, 32, 32, {"first": -9, "last": 2, "empty": EmptyRow.ZERO}),
    "lengths": ((3, 2), 40, 200, 32, 32, {"lengths": [[200], [70], [41]], "last": 0}),
    "a cap": ((2,), 33, 65, 32, 32, {"cap": 1.5}),
    "no keys for some": ((2,), 20, 40, 32, 32, {"lengths": [40, 0], "empty": EmptyRow.ZERO}),
}


def rounded(array):
    return array.astype("f4").astype(np_dtype("bfloat16")).astype("f8")


def problem(name):
    """A description, its arrays and what they mean."""
    batch, queries, keys, size, value_size, options = CASES[name]
    options = dict(options)
    shape, lengths = options.pop("mask", None), options.pop("lengths", None)
    spec = sketch(batch, queries, keys, size, value_size, unit=TILES, is_tiled=True, **options)
    q, k, v = numbers(spec)
    masks = [np.random.default_rng(1).standard_normal(shape).astype("f4")] if shape else []
    if shape and spec.masks[0].kind is MaskKind.KEPT:
        masks = [masks[0] > 0]
    return placed(spec, q, k, v, masks, lengths)


def placed(spec, q, k, v, masks=(), lengths=None):
    arrays = [q, k, v, np.zeros((*spec.batch, spec.queries, spec.value_size), "f4"), *masks]
    shapes = [(*spec.batch, *array.shape[-2:]) for array in arrays[:4]]
    scores = (*spec.batch, spec.queries, spec.keys)
    kinds = [replace(m, layout=layout(a, scores)) for m, a in zip(spec.masks, masks, strict=True)]
    layouts = dict(zip("qkvy", map(layout, arrays[:4], shapes), strict=True))
    spec = replace(spec, masks=tuple(kinds), **layouts)
    if lengths is not None:
        arrays.append(np.array(lengths, "i8"))
        spec = replace(spec, lengths=layout(arrays[-1], spec.batch))
    return spec, arrays


def difference(found, want):
    return np.linalg.norm(found - want) / np.linalg.norm(want)


def wanted(spec, arrays):
    """The result by definition, and that of operands of bfloat16; both in float64."""
    q, k, v, _, *others = arrays
    masks, lengths = others[: len(spec.masks)], (others[len(spec.masks) :] or [None])[0]
    narrow = [rounded(array) for array in (q, k, v)]
    return exact(spec, q, k, v, masks, lengths), exact(spec, *narrow, masks, lengths)


@pytest.mark.parametrize("name", CASES)
def test_what_the_interpreter_computes(name):
    spec, arrays = problem(name)
    function = build(spec)
    verify(function)
    interpret(function, [array.reshape(-1) for array in arrays])
    full, narrow = wanted(spec, arrays)
    assert np.isfinite(arrays[3]).all()
    # Queries are rounded with their factor, and exponentials as well.
    assert difference(arrays[3], narrow) < 7e-3
    assert difference(arrays[3], full) < 1e-2


@pytest.mark.parametrize("name", CASES)
def test_what_this_cpu_computes(run_kernel, name):
    if why_no_tiles(Settings.from_environment().cache_folder()):
        pytest.skip("no tiles here")
    if not find_cpu().extensions.get("AVX-512 BF16"):
        pytest.skip("nothing here rounds to bfloat16")
    spec, arrays = problem(name)
    found = run_kernel(build(spec), arrays, rtol=3e-3, emit=lambda kernel: emit_llvm(kernel, TILES))
    assert difference(found[3], wanted(spec, arrays)[0]) < 1e-2


def test_numbers_that_bfloat16_holds_are_multiplied_exactly():
    """Of queries that see one key, the result is its value, whatever the others are."""
    rng = np.random.default_rng(3)
    spec = sketch((2,), 37, 100, 32, unit=TILES, is_tiled=True, masks=(KEPT,))
    q, k, v = (rng.integers(-8, 9, (2, n, 32)).astype("f4") for n in (37, 100, 100))
    seen = rng.integers(0, 100, (2, 37))
    mask = np.arange(100) == seen[..., None]
    spec, arrays = placed(spec, q, k, v, [mask])
    interpret(build(spec), [array.reshape(-1) for array in arrays])
    np.testing.assert_array_equal(arrays[3], v[np.arange(2)[:, None], seen])


def test_what_is_no_number_stays_with_its_query():
    spec = sketch((1,), 20, 80, 32, unit=TILES, is_tiled=True)
    q, k, v = numbers(spec)
    q[0, 3, 5], v[0, 79, 7] = np.nan, np.inf
    spec, arrays = placed(spec, q, k, v)
    interpret(build(spec), [array.reshape(-1) for array in arrays])
    found = arrays[3][0]
    assert np.isnan(found[3]).all()
    others = np.delete(found, 3, axis=0)
    assert np.isposinf(others[:, 7]).all()  # keys beyond the last one have no values
    assert np.isfinite(np.delete(others, 7, axis=1)).all()


def test_rows_of_the_lowest_numbers_leave_a_mean():
    lowest = float(np.finfo("f4").min)
    kept = Mask(Layout("bool", ()), MaskKind.KEPT, lowest)
    spec = sketch((1,), 20, 80, 32, unit=TILES, is_tiled=True, masks=(kept,))
    q, k, v = numbers(spec)
    spec, arrays = placed(spec, q, k, v, [np.zeros((20, 80), bool)])
    interpret(build(spec), [array.reshape(-1) for array in arrays])
    np.testing.assert_allclose(arrays[3][0], np.tile(rounded(v).mean(1), (20, 1)), atol=1e-5)


def test_turns_have_all_queries_of_short_texts():
    spec = sketch((12,), 128, 128, 64, unit=TILES, is_tiled=True)
    assert build(spec).extent == 12
    assert schedule(replace(spec, queries=8)).is_by_keys
