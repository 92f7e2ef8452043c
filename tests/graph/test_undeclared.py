# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime in ONNX's own domain."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.codegen.lower.conftest import evaluate

import intarsia
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX512
from intarsia.errors import ModelError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.passes.prepare import prepare


def model_of(text, opset=20, dtype="float"):
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]>'
        f" g ({dtype}[2,3,40] x) => ({dtype}[2,3,40] y) {{ {text} }}"
    )
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    scale = np.random.default_rng(0).standard_normal(40).astype(kind)
    model.graph.initializer.append(numpy_helper.from_array(scale, "s"))
    return model


TEXT = "n = Neg(x) [norm] y = SimplifiedLayerNormalization<epsilon = 0.001>(n, s)"


@pytest.mark.parametrize(("opset", "dtype"), [(17, "float"), (20, "float"), (20, "float16")])
def test_agrees_with_onnxruntime(backends, opset, dtype):
    model = model_of(TEXT, opset, dtype)
    kind = np.float32 if dtype == "float" else np.float16
    x = np.random.default_rng(1).standard_normal((2, 3, 40)).astype(kind)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    wanted = evaluate(model, {"x": x})["y"]
    rtol = 1e-5 if dtype == "float" else 2e-3
    np.testing.assert_allclose(exe.run({"x": x})["y"], wanted, rtol=rtol, atol=rtol)


def test_it_is_one_native_kernel():
    graph = prepare(load(model_of(TEXT.replace("n = Neg(x) ", "").replace("(n,", "(x,")))).graph
    program = lower_region(Region.of(graph, range(len(graph.nodes))), AVX512)
    assert len(program.calls) == 1


def test_what_comes_in_its_place_has_its_name(backends):
    exe = intarsia.compile(model_of(TEXT), "llvm", num_threads=1, backends=backends)
    names = [node.name for region in exe.placement.regions for node in region.nodes]
    assert sum(name.startswith("norm/") for name in names) == len(names) - 1


@pytest.mark.parametrize(
    "text",
    [
        "y = SimplifiedLayerNormalization<axis = 1>(x, s)",
        "y, v = SimplifiedLayerNormalization(x, s)",
    ],
)
def test_other_forms_are_refused(text):
    with pytest.raises(ModelError, match="SimplifiedLayerNormalization of ONNX Runtime"):
        load(model_of(text))
