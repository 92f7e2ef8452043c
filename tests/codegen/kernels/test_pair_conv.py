"""Convolutions by pairs of bytes: exact, whatever saturates in the instruction."""

from functools import partial

import numpy as np
import pytest
from tests.codegen.test_dots import HERE

from intarsia.codegen.body import Fused, Layout, identity
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import pair_conv, paired_codes
from intarsia.codegen.kernels.gemm.small_pairs import is_large
from intarsia.codegen.kernels.pair_conv import PairConv, PairSchedule
from intarsia.codegen.kernels.paired_codes import GROUP, SPREAD, PairedCodes
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import VectorUnit

UNITS = {
    "avx2": VectorUnit(256, 16, dots=("sse2", "avx2")),
    "avx512bw": VectorUnit(512, 32, dots=("sse2", "avx2", "avx512bw")),
}
WINDOWS = {
    "pointwise": Window((4, 7), (1, 1), (1, 1), (1, 1)),
    "3x2": Window((3, 5), (3, 2), (2, 1), (1, 2)),
    "1-D": Window((9,), (3,), (2,), (1,)),
}


def weights_of(kind, *shape):
    rng = np.random.default_rng(len(shape))
    if kind == "any":
        return rng.integers(-128, 128, shape).astype(np.int8)
    weights = np.clip(rng.normal(0, 36, shape), -127, 127).astype(np.int8)
    weights[0] = 127  # a column in which no pair is safe
    return weights


def reference(window, x, w):
    """Sums of products, tap by tap."""
    y = np.zeros((x.shape[0], w.shape[0], *window.out), np.int64)
    for tap in np.ndindex(*window.kernel):
        spans = zip(tap, window.dilations, window.strides, window.out, strict=True)
        cut = [slice(t * d, t * d + (out - 1) * step + 1, step) for t, d, step, out in spans]
        part = x[(slice(None), slice(None), *cut)].astype(np.int64)
        y += np.einsum("nc...,oc->no...", part, w[(slice(None), slice(None), *tap)].astype(int))
    return y


def blocked(array, lanes):
    missing = -array.shape[1] % lanes
    array = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
    split = array.reshape(array.shape[0], -1, lanes, *array.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


@pytest.mark.parametrize(
    ("unit", "name", "kind", "first"),
    [
        ("avx2", "pointwise", "any", True),
        ("avx2", "3x2", "normal", False),
        ("avx2", "1-D", "normal", True),
        pytest.param("avx512bw", "3x2", "any", True, marks=pytest.mark.exhaustive),
    ],
)
def test_sums_are_exact(run_kernel, unit, name, kind, first):
    unit, window = UNITS[unit], WINDOWS[name]
    lanes, rng = unit.lanes(), np.random.default_rng(1)
    weights = weights_of(kind, 11, 20, *window.kernel)
    codes = rng.integers(0, 256, (2, 20, *window.reach)).astype(np.uint8)
    codes[0, ..., 0] = 255
    x = blocked(codes, lanes)
    wide = (*x.shape[:-1], SPREAD * lanes)
    layouts = (Layout("uint8", row_major(shape)) for shape in (x.shape, wide))
    spread = PairedCodes(x.shape, *layouts)
    run = partial(run_kernel, emit=partial(emit_llvm, unit=VectorUnit(dots=HERE)))
    _, paired = run(paired_codes.build(spread), [x, np.zeros(wide, np.uint8)])
    turns, mean = pair_conv.count_turns(weights, lanes)
    assert mean > 1
    y = np.zeros((2, -(-11 // lanes), *window.out, lanes), np.int32)
    spec = PairConv(
        *(2, 1, 20, 11, window, spread.y, Layout("int32", row_major(y.shape))),
        epilogue=Fused(identity("int32")),
        unit=unit,
        weight_dtype="int8",
        turns=turns,
        schedule=PairSchedule(5, 2, first),
    )
    packed, places = pair_conv.pack(spec, weights), pair_conv.place_steps(spec, weights)
    _, _, y, _ = run(pair_conv.build(spec), [paired, packed, y, places])
    sums = np.moveaxis(y, -1, 2).reshape(2, -1, *window.out)
    np.testing.assert_array_equal(sums[:, :11], reference(window, codes, weights))
    panels = packed.reshape(-1, lanes, GROUP).swapaxes(1, 2)
    assert not is_large(panels).any(), "a step could saturate"
