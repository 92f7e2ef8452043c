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
from intarsia.codegen.kernels.pair_conv import PairConv, PairSchedule, strip_of
from intarsia.codegen.kernels.paired_codes import GROUP, SPREAD, PairedCodes
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.unit import CpuModel

UNITS = {
    "avx2": CpuModel(256, 16, dots=("sse2", "avx2")),
    "avx512bw": CpuModel(512, 32, dots=("sse2", "avx2", "avx512bw")),
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
        ("avx2", "3x2", "normal", False),
        ("avx2", "1-D", "normal", True),
        pytest.param("avx2", "pointwise", "any", True, marks=pytest.mark.exhaustive),
        pytest.param("avx512bw", "3x2", "any", True, marks=pytest.mark.exhaustive),
    ],
)
def test_sums_are_exact(run_kernel, unit, name, kind, first):
    unit, window = UNITS[unit], WINDOWS[name]
    codes = codes_for(window)
    x = blocked(codes, unit.lanes())
    wide = (*x.shape[:-1], SPREAD * unit.lanes())
    layout = Layout("uint8", row_major(wide))
    spread = PairedCodes(x.shape, Layout("uint8", row_major(x.shape)), layout)
    made = partial(PairConv, unit=unit, schedule=PairSchedule(5, 2, first))
    check(run_kernel, made, kind, codes, spread, layout, window)


@pytest.mark.parametrize("rows", ["dense", "apart"])
def test_strips_are_exact(run_kernel, rows):
    """Rows of the input are dense, or have a gap; 28 positions are strips of 10, 10 and 8."""
    unit, codes = UNITS["avx2"], codes_for(WINDOWS["pointwise"])
    lanes, strip = unit.lanes(), strip_of(28, unit)
    assert strip == 10
    x = blocked(codes, lanes)
    gap = np.pad(x, ((0, 0),) * 3 + ((0, 2), (0, 0))) if rows == "apart" else x
    shape = (2, 3, 3, strip, SPREAD * lanes)
    image, part, block, position, entry = row_major(shape)
    source = Layout("uint8", row_major(gap.shape))
    spread = PairedCodes(x.shape, source, Layout("uint8", row_major(shape)), strip)
    layout = Layout("uint8", (image, block, part, position, entry))
    window = Window((1, 28), (1, 1), (1, 1), (1, 1))
    made = partial(PairConv, unit=unit, strip=strip)
    check(run_kernel, made, "normal", codes, spread, layout, window, gap)


def codes_for(window):
    codes = np.random.default_rng(1).integers(0, 256, (2, 20, *window.reach)).astype(np.uint8)
    codes[0, ..., 0] = 255
    return codes


def check(run_kernel, make, kind, codes, spread, layout, window, x=None):
    """Compare with sums of products, of 20 channels for 11."""
    lanes = make.keywords["unit"].lanes()
    weights = weights_of(kind, 11, 20, *window.kernel)
    x = blocked(codes, lanes) if x is None else x
    run = partial(run_kernel, emit=partial(emit_llvm, unit=CpuModel(dots=HERE)))
    size = spread.y.strides[0] * 2
    _, paired = run(paired_codes.build(spread), [x, np.zeros(size, np.uint8)])
    steps = pair_conv.find_steps(weights, lanes)
    assert steps.couples.any()
    assert steps.singles.any()
    y = np.zeros((2, -(-11 // lanes), *window.out, lanes), np.int32)
    spec = make(
        *(2, 1, 20, 11, window, layout, Layout("int32", row_major(y.shape))),
        epilogue=Fused(identity("int32")),
        weight_dtype="int8",
        steps=steps.capacity,
    )
    packed, places = pair_conv.pack(spec, weights), pair_conv.place_steps(spec, steps)
    _, _, y, _ = run(pair_conv.build(spec), [paired, packed, y, places])
    sums = np.moveaxis(y, -1, 2).reshape(2, len(y[0]) * lanes, -1)
    exact = reference(WINDOWS["pointwise"] if spread.strip else window, codes, weights)
    np.testing.assert_array_equal(sums[:, :11].reshape(exact.shape), exact)
    panels = packed.reshape(-1, lanes, GROUP).swapaxes(1, 2)
    assert not is_large(panels).any(), "a step could saturate"
    for vector, couples in zip(steps.weights, steps.couples, strict=True):
        both = vector[: 2 * couples].reshape(couples, 2, lanes, 2, 2).astype(int)
        largest = [np.maximum(sign * both, 0).sum((1, -1)).max() for sign in (1, -1)]
        assert max(largest) <= 128, "the sum of a couple could exceed 16 bits"
