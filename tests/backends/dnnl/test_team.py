# SPDX-License-Identifier: Apache-2.0
"""OneDNN and native code in one plan: one set of threads, the same numbers."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.native.pool import Team, ThreadPool

TEXT = """
<ir_version: 9, opset_import: ["": 20]>
g (float[1, 16, 64, 64] x) => (float[1, 16, 64, 64] y)
{
  [a] a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
  [b] b = Relu(a)
  [c] c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(b, w)
  [d] y = Sigmoid(c)
}
"""


@pytest.fixture
def model():
    parsed = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
    parsed.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return parsed


def pools(exe):
    """Return what runs the native regions of a program."""
    return [item._pool for item in exe._executables if hasattr(item, "_pool")]


@pytest.mark.usefixtures("library")
def test_regions_share_the_threads_of_openmp(model, tmp_path):
    pins = {"a": "dnnl", "b": "llvm", "c": "llvm", "d": "dnnl"}
    exe = intarsia.compile(model, "dnnl, llvm", pins=pins, num_threads=2)
    exe.save(tmp_path / "mixed.intarsia")
    again = intarsia.load(tmp_path / "mixed.intarsia", num_threads=2)
    assert [type(pool) for pool in pools(exe) + pools(again)] == [Team, Team]
    x = np.random.default_rng(2).standard_normal((1, 16, 64, 64)).astype(np.float32)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    alone = intarsia.compile(model, "dnnl, llvm", pins=pins, num_threads=1)
    assert pools(alone) == [None]
    for program in (exe, again, alone):
        np.testing.assert_allclose(program.run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)


def test_native_code_alone_has_its_own_pool(model):
    exe = intarsia.compile(model, "llvm", num_threads=2)
    assert [type(pool) for pool in pools(exe)] == [ThreadPool]
