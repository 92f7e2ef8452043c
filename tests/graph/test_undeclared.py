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
    for seed, name in enumerate("sb"):
        vector = np.random.default_rng(seed).standard_normal(40).astype(kind)
        model.graph.initializer.append(numpy_helper.from_array(vector, name))
    return model


TEXT = "n = Neg(x) [norm] y = SimplifiedLayerNormalization<epsilon = 0.001>(n, s)"


OLD = TEXT.replace("Simplified", "")
BIASED = OLD.replace("s)", "s, b)")


@pytest.mark.parametrize(
    ("text", "opset", "dtype"),
    [
        *((TEXT, opset, "float") for opset in (11, 17, 20)),
        (TEXT, 20, "float16"),
        *((OLD, opset, "float") for opset in (11, 16)),
        *((BIASED, opset, "float") for opset in (8, 11, 14, 17)),
        (BIASED, 16, "float16"),
    ],
)
def test_agrees_with_onnxruntime(backends, text, opset, dtype):
    model = model_of(text, opset, dtype)
    kind = np.float32 if dtype == "float" else np.float16
    x = np.random.default_rng(1).standard_normal((2, 3, 40)).astype(kind)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    wanted = evaluate(model, {"x": x})["y"]
    rtol = 1e-5 if dtype == "float" else 2e-3
    np.testing.assert_allclose(exe.run({"x": x})["y"], wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("text", "opset"), [(TEXT, 20), (OLD, 11), (BIASED, 14), (BIASED, 17)])
def test_it_is_one_native_kernel(text, opset):
    text = text.replace("n = Neg(x) ", "").replace("(n,", "(x,")
    graph = prepare(load(model_of(text, opset))).graph
    program = lower_region(Region.of(graph, range(len(graph.nodes))), AVX512)
    assert len(program.calls) == 1


def test_what_comes_in_its_place_has_its_name(backends):
    exe = intarsia.compile(model_of(TEXT), "llvm", num_threads=1, backends=backends)
    names = [node.name for region in exe.placement.regions for node in region.nodes]
    assert sum(name.startswith("norm/") for name in names) == len(names) - 1


@pytest.mark.parametrize(
    ("text", "opset", "dtype"),
    [
        ("y = SimplifiedLayerNormalization<axis = 1>(x, s)", 20, "float"),
        ("y, v = SimplifiedLayerNormalization(x, s)", 20, "float"),
        ("y = LayerNormalization<axis = 1>(x, s)", 16, "float"),
        ("y, m, v = LayerNormalization(x, s)", 16, "float"),
        ("y = LayerNormalization(x, s)", 14, "float16"),
    ],
)
def test_other_forms_are_refused(text, opset, dtype):
    with pytest.raises(ModelError, match="LayerNormalization of ONNX Runtime"):
        load(model_of(text, opset, dtype))
