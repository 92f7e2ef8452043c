# SPDX-License-Identifier: Apache-2.0
"""Tensors in blocks of channels at a region's border: which ones, and the same numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import feeds_of

from intarsia.backends.api import HostDevice, RunOptions, aligned_bytes
from intarsia.backends.candidate import BuildContext, Candidate
from intarsia.backends.llvm import BACKEND
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.graph.state import blocked_state, can_block
from intarsia.target import CompilationConfig
from intarsia.testing.borders import from_blocks, to_blocks

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))
SAME = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"


def whole(model, target="llvm"):
    """Return a model as a candidate for native code, and a context."""
    graph = snapshot(load(model))
    config = CompilationConfig.resolve(target)
    (placed,) = config.targets
    context = BuildContext(placed, placed.target, config, 1)
    return Candidate.plain(Region.of(graph, range(len(graph.nodes))), placed), context


def blocked(candidate, names, block):
    """Return a candidate with these border tensors in blocks."""
    region = candidate.region
    sides = [
        tuple(
            blocked_state(state, block if region.graph.values[i].name in names else 0)
            for i, state in zip(values, states, strict=True)
        )
        for values, states in (
            (region.inputs, candidate.inputs),
            (region.outputs, candidate.outputs),
        )
    ]
    return replace(candidate, inputs=sides[0], outputs=sides[1])


def blockable(candidate, block):
    """Return the names of border tensors that can lie in blocks."""
    region = candidate.region
    values = [region.graph.values[i] for i in (*region.inputs, *region.outputs)]
    return [value.name for value in values if can_block(value.dtype, value.shape, block)]


def listed(candidate, context):
    """Return the names of border tensors that are blocked in the border that is listed."""
    region = candidate.region
    names = set()
    for inputs, outputs in BACKEND.states(candidate, context):
        pairs = zip((*region.inputs, *region.outputs), (*inputs, *outputs), strict=True)
        names |= {region.graph.values[i].name for i, s in pairs if s.layout != "plain"}
    return names


def run(candidate, context, feeds):
    """Compile, load and run a candidate twice; return its outputs by name, not in blocks."""
    artifact = BACKEND.compile(candidate, context)
    loaded = BACKEND.load(artifact, HostDevice(RunOptions(1)))
    region = candidate.region
    inputs = []
    for spec, state in zip(artifact.inputs, candidate.inputs, strict=True):
        array = feeds[spec.name]
        if state.layout != "plain":
            array = to_blocks(array, spec.shape[-1])
        inputs.append(filled(spec, array))
    outputs = [filled(spec, np.nan) for spec in artifact.outputs]
    scratch = aligned_bytes(loaded.scratch_bytes)
    scratch[...] = 0xFF
    step = loaded.bind(inputs, outputs, scratch)
    step()
    for array in outputs:
        array[...] = 77
    step()
    for spec, array, state in zip(artifact.inputs, inputs, candidate.inputs, strict=True):
        given = feeds[spec.name]
        wanted = given if state.layout == "plain" else to_blocks(given, spec.shape[-1])
        np.testing.assert_array_equal(array, wanted)
    graph = region.graph
    assert [spec.name for spec in artifact.outputs] == [
        graph.values[i].name for i in region.outputs
    ]
    return {
        spec.name: array if state.layout == "plain" else from_blocks(array)
        for spec, array, state in zip(artifact.outputs, outputs, candidate.outputs, strict=True)
    }


def filled(spec, value):
    buffer = aligned_bytes(spec.nbytes).view(spec.dtype).reshape(spec.shape)
    buffer[...] = value
    return buffer


def check(model, target, pick):
    """Compare a model with onnxruntime, its border tensors blocked as `pick` says."""
    candidate, context = whole(model, target)
    block = 8 if "haswell" in target else 16
    names = pick(blockable(candidate, block))
    feeds = feeds_of(model)
    wanted = evaluate(model, feeds)
    results = run(blocked(candidate, names, block), context, feeds)
    for name, want in wanted.items():
        scale = float(np.abs(want).max(initial=1)) if want.dtype.kind == "f" else 0
        np.testing.assert_allclose(
            results[name], want, rtol=1e-4, atol=1e-4 * scale, err_msg=f"{name}, blocked: {names}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@settings(SETTINGS, max_examples=80)
@given(model=models(channels=(16, 32, 8), max_nodes=8), data=st.data())
def test_numbers_with_any_mix(target, model, data):
    def pick(names):
        return [name for name in names if data.draw(st.booleans())]

    check(model, target, pick)
