"""Layers between Q and DQ nodes in float32: the codes of the definition within a step."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from intarsia.backends.device import ThreadOptions
from intarsia.backends.values import ABOUT, LAYERS, Candidate
from intarsia.compiler import read_setting
from intarsia.graph.arena import aligned_bytes
from intarsia.place.request import Request
from intarsia.testing.integers import draw_codes, draw_layer


def run_both(model, feeds):
    """Return what a model's layers say in integers and in float32, and what is said of both."""
    setting = read_setting(Request(model=model, target="llvm", num_threads=1))
    capability = setting.capabilities[0]
    backend, target = capability.backend, capability.target
    candidate = Candidate.plain(setting.graph.whole, target)
    found, about = [], []
    for way in ("integers", "float32"):
        artifact = backend.compile(replace(candidate, options={LAYERS: way}), capability.context)
        executable = backend.load(artifact, backend.open(target, ThreadOptions(1)))
        outputs = [np.empty(spec.shape, spec.dtype) for spec in artifact.outputs]
        inputs = [feeds[spec.name] for spec in artifact.inputs]
        executable.bind(inputs, outputs, aligned_bytes(executable.scratch_bytes))()
        found.append(outputs[0])
        about.append(artifact.metadata[ABOUT])
    return found, about


@pytest.mark.parametrize(
    ("name", "seed"), [("conv", 0), ("depthwise conv", 5), ("fully connected", 5)]
)
def test_codes_are_within_a_step_of_the_definition(name, seed):
    model = draw_layer(name, seed, "uint8")
    feeds = draw_codes(model, seed)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    found, (in_integers, in_floats) = run_both(model, feeds)
    assert len(np.unique(wanted)) > 9
    for one in found:
        assert np.abs(one.astype(int) - wanted).max() <= 1
    assert "in float32" not in in_integers
    assert "between Q and DQ in float32, measured to be faster than integers: c (1.00)" in in_floats
