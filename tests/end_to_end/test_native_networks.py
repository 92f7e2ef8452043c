# SPDX-License-Identifier: Apache-2.0
"""Whole convolutional networks on `llvm` alone, nearly as exact as ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia import zoo
from intarsia.backends import float64

MOST_TIMES = 4
"""How much larger than ONNX Runtime's own error ours may be; both against float64, by the root of
their mean square. The largest of an output is a matter of luck, and may be twice as much."""
SMALL = (
    *("resnet50", "squeezenet", "shufflenet", "mobilenet_v2", "detector"),
    *(f"random:{seed}" for seed in range(5)),
)
LARGE = ("alexnet", "zfnet512", "vgg19", "inception_v1", "inception_v2", "densenet121")
"""Networks that take long in float64; `benchmarks/native_accuracy.py` has their errors."""


def prepare(name, path, backends):
    """Return inputs, what ONNX Runtime makes of them, and what we do."""
    model = zoo.build(name)
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    assert [region.backend for region in exe.placement.regions] == ["llvm"]
    outputs = exe.run(feeds)
    names = [output.name for output in session.get_outputs()]
    return feeds, session.run(names, feeds), [outputs[name] for name in names]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", SMALL)
def test_errors_are_about_those_of_onnxruntime(name, tmp_path, backends):
    path = tmp_path / "model.onnx"
    feeds, theirs, ours = prepare(name, path, backends)
    for exact, peer, found in zip(
        float64.evaluate(onnx.load(path), feeds), theirs, ours, strict=True
    ):
        assert found.dtype == np.float32
        for measure, most in ((_rms, MOST_TIMES), (np.max, 2 * MOST_TIMES)):
            error, of_peer = (measure(np.abs(array - exact)) for array in (found, peer))
            assert error <= most * of_peer


def _rms(errors):
    return np.sqrt(np.mean(np.square(errors)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_agree_with_onnxruntime(name, tmp_path, backends):
    _, theirs, ours = prepare(name, tmp_path / "model.onnx", backends)
    for peer, found in zip(theirs, ours, strict=True):
        scale = float(np.abs(peer).max())
        np.testing.assert_allclose(found, peer, rtol=1e-3, atol=1e-4 * scale)
