# SPDX-License-Identifier: Apache-2.0
"""Whole convolutional networks on an OpenCL device agree with ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.opencl import first_device

import intarsia
from intarsia import zoo
from intarsia.backends.device_payload import decode

SMALL = ("squeezenet", "shufflenet")
"""`benchmarks/opencl_networks.py` has all of them: PoCL takes long to compile the large ones."""

LARGE_BYTES = 1 << 20
"""A call with memory of that size has to be shared by work-items."""

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("name", SMALL)
def test_a_network_agrees_with_onnxruntime(name, tmp_path, backends):
    first_device()
    model = zoo.build(name)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    exe = intarsia.compile(model, "opencl, llvm", num_threads=1, backends=backends)
    assert [region.backend for region in exe.placement.regions] == ["opencl"]
    assert exe.plan.devices == ("cpu:0", "opencl:0")
    _check_sizes(exe)
    names = [output.name for output in session.get_outputs()]
    for seed in range(2):
        rng = np.random.default_rng(seed)
        feeds = {
            value.name: rng.standard_normal(value.shape).astype(np.float32)
            for value in session.get_inputs()
        }
        found = exe.run(feeds)
        for output, peer in zip(names, session.run(names, feeds), strict=True):
            scale = float(np.abs(peer).max())
            np.testing.assert_allclose(found[output], peer, rtol=1e-3, atol=1e-4 * scale)


def _check_sizes(exe):
    """Check that what is large is not the work of one item."""
    (artifact,) = exe.artifacts
    payload = decode(artifact)
    for call, sizes in zip(payload.calls, payload.global_sizes, strict=True):
        memory = max(payload.storages[storage][2] for storage, _ in call.arguments)
        assert memory < LARGE_BYTES or np.prod(sizes) > 1, call.nodes
