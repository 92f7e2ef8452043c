# SPDX-License-Identifier: Apache-2.0
"""Regions with tensors in blocks of channels at their border: models, running and lowering them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.arrays import from_blocks
from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.llvm import LlvmBackend
from intarsia.backends.native import read_borders
from intarsia.backends.values import BuildContext, Candidate
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX512
from intarsia.cost.machine import find_cpu
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.graph.state import blocked_state, can_block
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.testing.blocks import to_blocks

SAME = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
TARGETS = {"llvm -mcpu=skylake-avx512": 16, "llvm -mcpu=haswell": 8}
AVX512_TARGET, AVX2_TARGET = TARGETS
HAS_AVX512 = find_cpu().extensions.get("AVX-512", False)
WIDEST_TARGET = AVX512_TARGET if HAS_AVX512 else AVX2_TARGET
"""The one with the widest vectors that this CPU runs."""
W = {"w": (32, 32, 1, 1), "v": (32, 32, 3, 3)}
"""Weights that keep the shape of the usual input."""


def case(outputs, body, extra=None, **inputs):
    """Return a model; its input is `x` of 32 channels unless others are given."""
    return small_model(outputs, body, inputs or {"x": (1, 32, 5, 6)}, W | (extra or {}), opset=18)


CASES = {
    "a residual block": case(
        "y, z",
        f"a = Conv{SAME}(x, v) b = Relu(a) c = Conv{SAME}(b, v) d = Add(c, x) y = Relu(d)"
        f" e = Conv{SAME}(y, v) z = Sigmoid(e)",
        x=(2, 32, 5, 6),
    ),
    "an input with borders of several widths": case(
        "y, z, u",
        f"y = Conv{SAME}(x, v) z = Conv(x, w) u = Conv<pads = [2, 0, 1, 3]>(x, v)",
    ),
    "an output that is read in both layouts": case(
        "y, z, u", f"y = Conv(x, w) z = Conv{SAME}(y, v) u = Softmax(y)"
    ),
    "a blocked operand beside a plain one": case(
        "y, z",
        "t = Transpose<perm = [0, 1, 3, 2]>(s) y = Mul(t, x) a = Sub(x, t) z = Conv(a, w)",
        x=(1, 32, 5, 6),
        s=(1, 32, 6, 5),
    ),
    "parts joined in place": case(
        "y",
        "a = Conv(x, w) b = Conv<pads = [1, 1, 1, 1]>(a, v) y = Concat<axis = 1>(b, x, a)",
    ),
    "parts joined inside a block": case(
        "y, z",
        f"a = Conv(x, p) b = Conv(x, q) y = Concat<axis = 1>(a, b, x) z = Conv{SAME}(y, r)",
        {"p": (5, 32, 1, 1), "q": (27, 32, 1, 1), "r": (16, 64, 3, 3)},
    ),
    "joined along another dimension": case(
        "y", f"a = Conv(x, w) b = Concat<axis = 2>(x, a) y = Conv{SAME}(b, v)"
    ),
    "parts of an input": case(
        "y, z",
        "a, b, c = Split<axis = 1, num_outputs = 3>(x) y = Relu(b) d = Conv(a, p)"
        " z = Concat<axis = 1>(c, d)",
        {"p": (32, 16, 1, 1)},
        x=(1, 48, 5, 6),
    ),
    "parts that cut blocks": case(
        "y, z",
        "a, b = Split<axis = 1>(x, sizes) y = Conv(a, p) z = Neg(b)",
        {"p": (16, 20, 1, 1), "sizes": np.array([20, 28], np.int64)},
        x=(1, 48, 5, 6),
    ),
    "only names": case(
        "y, z",
        "y = Reshape(x, s) a = Transpose<perm = [0, 3, 2, 1]>(x) z = Transpose(a)",
        {"s": np.array([1, 64, 5, 3], np.int64)},
        x=(1, 32, 5, 6),
    ),
    "a product between convolutions": case(
        "y",
        "a = Conv(x, w) b = Reshape(a, s) c = MatMul(b, m) d = Reshape(c, t) y = Conv(d, w)",
        {"s": np.array([32, 30], np.int64), "t": np.array([1, 32, 5, 6], np.int64), "m": (30, 30)},
    ),
    "an input as it is": case("y, z", "y = Identity(x) a = Identity(x) z = Add(a, a)"),
    "poolings": case(
        "y, z, u",
        "a = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(x) y = Relu(a)"
        " z = GlobalAveragePool(x) u = AveragePool<kernel_shape = [2, 2], pads = [0, 1, 1, 0]>(x)",
    ),
    "a gate": case(
        "y, z",
        "a = GlobalAveragePool(x) b = Conv(a, w) z = Sigmoid(b) y = Mul(x, z)",
    ),
    "one number for each channel": case("y", "y = Mul(x, g)", x=(2, 32, 5, 6), g=(2, 32, 1, 1)),
    "depthwise": case(
        "y",
        "a = Conv<group = 32, pads = [1, 1, 1, 1]>(x, d) b = Clip(a) y = Conv(b, w)",
        {"d": (32, 1, 3, 3)},
    ),
    "in groups": case(
        "y",
        "a = Conv<group = 2>(x, p) b = LRN<size = 3>(a) c = InstanceNormalization(b, g, g)"
        " y = Conv<group = 4>(c, q)",
        {"p": (32, 16, 1, 1), "q": (32, 8, 1, 1), "g": (32,)},
    ),
    "larger images": case(
        "y",
        "a = ConvTranspose<strides = [2, 2], pads = [1, 0, 0, 1]>(x, v) b = Add(a, x2)"
        ' c = Resize<mode = "nearest">(b, , , sizes)'
        " y = Pad(c, pads)",
        {
            "sizes": np.array([1, 32, 20, 26], np.int64),
            "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1], np.int64),
        },
        x=(1, 32, 5, 6),
        x2=(1, 32, 10, 12),
    ),
    "few channels first": case(
        "y", "a = Conv<strides = [2, 2]>(x, p) y = Relu(a)", {"p": (16, 3, 3, 3)}, x=(1, 3, 9, 9)
    ),
    "reductions": case(
        "y, z",
        "y = ReduceMean<keepdims = 1>(x, axes) a = ReduceMax<keepdims = 1>(x, one) z = Mul(a, x)",
        {"axes": np.array([2, 3], np.int64), "one": np.array([1], np.int64)},
    ),
}


def whole(model, target=AVX512_TARGET):
    """Return a model as a candidate for native code, and a context."""
    graph = snapshot(load(model))
    config = CompilationConfig.resolve(target)
    (placed,) = config.targets
    context = BuildContext(placed, placed.target, config, 1)
    return Candidate.plain(Region.of(graph, range(len(graph.nodes))), placed), context


def names_of(candidate):
    values = candidate.region.graph.values
    return [values[i].name for i in (*candidate.region.inputs, *candidate.region.outputs)]


def blocked(candidate, names, block):
    """Return a candidate with these border tensors in blocks."""
    states = [
        blocked_state(state, block) if name in names else state
        for name, state in zip(
            names_of(candidate), (*candidate.inputs, *candidate.outputs), strict=True
        )
    ]
    count = len(candidate.inputs)
    return replace(candidate, inputs=tuple(states[:count]), outputs=tuple(states[count:]))


def blockable(candidate, block):
    """Return the names of border tensors that can lie in blocks."""
    region = candidate.region
    values = [region.graph.values[i] for i in (*region.inputs, *region.outputs)]
    return [value.name for value in values if can_block(value.dtype, value.shape, block)]


def filled(spec, value):
    """Return a buffer that is aligned to an element and no more, as a caller's may be."""
    buffer = aligned_bytes(spec.nbytes + 8)[8:].view(spec.dtype).reshape(spec.shape)
    buffer[...] = value
    return buffer


def run(candidate, context, feeds):
    """Compile, load and run a candidate twice; return its outputs by name, not in blocks."""
    artifact = LlvmBackend(Settings.from_environment()).compile(candidate, context)
    loaded = LlvmBackend(Settings.from_environment()).load(artifact, HostDevice(ThreadOptions(1)))
    given = [
        feeds[spec.name] if state.layout == "plain" else to_blocks(feeds[spec.name], spec.shape[-1])
        for spec, state in zip(artifact.inputs, candidate.inputs, strict=True)
    ]
    inputs = [filled(spec, np.inf) for spec in artifact.inputs]
    outputs = [filled(spec, 0) for spec in artifact.outputs]
    scratch = aligned_bytes(loaded.scratch_bytes)
    scratch[...] = 0xFF
    step = loaded.bind(inputs, outputs, scratch)
    with np.errstate(all="ignore"):
        step()
    for array, value in zip((*inputs, *outputs), (*given, *[np.nan] * len(outputs)), strict=True):
        array[...] = value
    step()
    for array, value in zip(inputs, given, strict=True):
        np.testing.assert_array_equal(array, value)
    assert [spec.name for spec in (*artifact.inputs, *artifact.outputs)] == names_of(candidate)
    return {
        spec.name: array if state.layout == "plain" else from_blocks(array)
        for spec, array, state in zip(artifact.outputs, outputs, candidate.outputs, strict=True)
    }


def check(model, target, names):
    """Compare a model with onnxruntime, with these border tensors in blocks."""
    if target == AVX512_TARGET and not HAS_AVX512:
        pytest.skip("this CPU has no AVX-512")
    candidate, context = whole(model, target)
    feeds = feeds_of(model)
    wanted = evaluate(model, feeds)
    results = run(blocked(candidate, names, TARGETS[target]), context, feeds)
    assert results.keys() == wanted.keys()
    for name, want in wanted.items():
        scale = float(np.abs(want).max(initial=1)) if want.dtype.kind == "f" else 0
        np.testing.assert_allclose(
            results[name], want, rtol=1e-4, atol=1e-4 * scale, err_msg=f"{name}, blocked: {names}"
        )


def program_of(model, names, unit=AVX512):
    candidate, _ = whole(model)
    borders = read_borders(blocked(candidate, names, unit.lanes()), "llvm", (0, unit.lanes()))
    return lower_region(candidate.region, unit, borders=borders)


def conversions(program):
    """Return the notes of calls that bring a value of the graph into another layout."""
    notes = [call.note for call in program.calls if not call.nodes]
    return [n for n in notes if n.startswith("plain to blocked") or " to plain " in n]
