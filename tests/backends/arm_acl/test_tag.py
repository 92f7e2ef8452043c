# SPDX-License-Identifier: Apache-2.0
"""The tag `acl` where a runner leads to the machine: one network on the library and `llvm`."""

import numpy as np
import onnx
import pytest
from tests.backends.arm_acl.conftest import ROOT, RUNNER

import intarsia
from intarsia.target import CompilationConfig

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[1, 3, 9, 9] x) => (float[1, 10] y)
<float[8, 3, 3, 3] w, float[10, 128] v> {
    h = Conv<pads = [1, 1, 1, 1]>(x, w)
    r = Relu(h)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    e = Erf(p)
    f = Flatten(e)
    g = Gemm<transB = 1>(f, v)
    y = Softmax(g)
}"""

BOARD = f"llvm -mtriple=aarch64-linux-gnu -runner={RUNNER}"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("acl_target")
@pytest.mark.parametrize(
    ("target", "overrides", "carried"),
    [
        (f"acl, {BOARD}", None, [1, 2, 1]),
        ("acl", {"arm_acl": {"runner": RUNNER}}, None),
        ({"kind": "composite", "host": "onnxruntime", "devices": ["arm_acl", BOARD]}, None, None),
    ],
    ids=["llvm there", "llvm here", "a host here"],
)
def test_the_tag_runs_a_network(target, overrides, carried, monkeypatch):
    """Also as a composite, whose host takes what is pinned to it.

    What is carried is the input, the output, and what a program of `llvm` says of faults and of
    sizes: tensors between regions of the board are passed there.
    """
    if "mtriple" in str(target):
        pytest.importorskip("ziglang")
    monkeypatch.setenv("INTARSIA_ACL_ROOT", str(ROOT))
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 3, 3, 3)), ("v", (10, 128))):
        weights = (rng.standard_normal(shape) / 4).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    config = CompilationConfig.resolve(target, overrides=overrides)
    is_hosted = isinstance(target, dict)
    exe = intarsia.compile(model, config, pins={"y": "onnxruntime"} if is_hosted else None)
    places = {
        node.op_type: str(region.target)
        for region in exe.placement.regions
        for node in region.nodes
    }
    assert places["Conv"].startswith("arm_acl")
    assert places["Erf"].startswith("llvm")
    assert places["Softmax"].startswith("onnxruntime" if is_hosted else "arm_acl")
    x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    expected = intarsia.compile(model, "onnxruntime").run({"x": x})["y"]
    np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-6)
    if carried is not None:
        assert [one.carried_tensors for one in exe.executables] == carried


def test_the_library_takes_the_runner_of_what_it_refines_and_the_host_is_here():
    config = CompilationConfig.resolve(f"acl, {BOARD}")
    library, board = config.targets
    assert config.refined(library) == board.target
    assert "runner" not in config.host.attrs
    assert "mtriple" not in config.host.attrs
