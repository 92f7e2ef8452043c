# SPDX-License-Identifier: Apache-2.0
"""The kind `cublas` without a GPU: its table, what it asks of the library, and why it is not here.

That its products are those of ONNX is shown on a stand-in, in `worker.py`.
"""

import ctypes

import onnx
import pytest
from tests.backends.cuda.test_cuda import has_driver

from intarsia.backends.cuda.cublas.backend import BACKEND, program_of
from intarsia.backends.cuda.cublas.library import (
    Algorithm,
    CublasError,
    Description,
    library,
)
from intarsia.backends.cuda.cublas.products import LtProduct
from intarsia.backends.cuda.cublas.table import TABLE
from intarsia.backends.cuda.library_program import LibraryPlace
from intarsia.backends.patterns import pattern_rules
from intarsia.errors import BackendError
from intarsia.graph.load import load
from intarsia.graph.pattern import match_region
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import make_contexts
from intarsia.target import CompilationConfig

HEADER = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>'
MODELS = {
    "a dense layer": (
        "(float[4,8] x, float[8,6] w, float[6] b) => (float[4,6] y) "
        "{ a = MatMul(x, w) c = Add(a, b) y = Relu(c) }",
        [{"m": 4, "n": 6, "k": 8, "batch": 1, "activation": "Relu", "is_right_turned": False}],
    ),
    "items of a batch are rows": (
        "(float[3,4,8] x, float[8,6] w) => (float[3,4,6] y) { y = MatMul(x, w) }",
        [{"m": 12, "batch": 1, "bias": -1}],
    ),
    "attention": (
        "(float[2,3,4,8] q, float[2,3,8,5] k) => (float[2,3,4,5] y) { y = MatMul(q, k) }",
        [{"m": 4, "n": 5, "batch": 6, "is_left_repeated": False, "is_right_repeated": False}],
    ),
    "one left operand for all": (
        "(float[4,8] x, float[3,8,5] w) => (float[3,4,5] y) { y = MatMul(x, w) }",
        [{"batch": 3, "is_left_repeated": True, "is_right_repeated": False}],
    ),
    "a turned left operand and one right operand": (
        "(float[3,8,4] x, float[8,6] w) => (float[3,4,6] y) "
        "{ y = com.microsoft.FusedMatMul<transA=1, alpha=0.5>(x, w) }",
        [{"m": 4, "batch": 3, "is_right_repeated": True, "is_left_turned": True, "alpha": 0.5}],
    ),
    "gemm": (
        "(float16[8,4] x, float16[6,8] w, float16[1,6] b) => (float16[4,6] y) "
        '{ a = Gemm<transA=1, transB=1, alpha=2.0>(x, w, b) y = Gelu<approximate="tanh">(a) }',
        [{"k": 8, "alpha": 2.0, "is_left_turned": True, "activation": "Gelu", "dtype": "float16"}],
    ),
    "two": (
        "(double[4,8] x, double[8,6] u, double[6,5] v) => (double[4,5] y) "
        "{ a = MatMul(x, u) y = MatMul(a, v) }",
        [{"n": 6}, {"n": 5, "k": 6}],
    ),
}
REFUSED = {
    "an operand is a vector": "(float[8] x, float[8,6] w) => (float[6] y) { y = MatMul(x, w) }",
    "products have no int32": (
        "(int32[2,8] x, int32[8,6] w) => (int32[2,6] y) { y = MatMul(x, w) }"
    ),
    "a size is not known": "(float[N,8] x, float[8,6] w) => (float[N,6] y) { y = MatMul(x, w) }",
    "an operand is empty": "(float[0,8] x, float[8,6] w) => (float[0,6] y) { y = MatMul(x, w) }",
    "its batches are repeated in more than one dimension": (
        "(float[2,1,4,8] x, float[1,3,8,6] w) => (float[2,3,4,6] y) { y = MatMul(x, w) }"
    ),
    "what it adds is not one row": (
        "(float[4,8] x, float[8,6] w, float[4,6] b) => (float[4,6] y) { y = Gemm(x, w, b) }"
    ),
    "what it adds is multiplied by a factor": (
        "(float[4,8] x, float[8,6] w, float[6] b) => (float[4,6] y) { y = Gemm<beta=0.5>(x, w, b) }"
    ),
    "no row is added to float64": (
        "(double[4,8] x, double[8,6] w, double[6] b) => (double[4,6] y) { y = Gemm(x, w, b) }"
    ),
    "its batch lies inside of its matrices": (
        "(float[4,3,8] x, float[3,8,6] w) => (float[3,4,6] y) "
        "{ y = com.microsoft.FusedMatMul<transBatchA=1>(x, w) }"
    ),
    "no pattern matches it": "(float[4] x) => (float[4] y) { y = Relu(x) }",
}
LEFT = {
    "Gelu": "(float[4,8] x, float[8,6] w) => (float[4,6] y) { a = MatMul(x, w) y = Gelu(a) }",
    "Add": "(float[4,8] x, float[8,6] w, float[4,1] b) => (float[4,6] y) "
    "{ a = MatMul(x, w) y = Add(a, b) }",
    "Sum": "(float[8,8] x, float[8,8] w) => (float[8,8] y) { a = MatMul(x, w) y = Sum(a, a) }",
}
"""What does not follow a product, by its operator."""


@pytest.fixture
def graph_of():
    def parse(text):
        return snapshot(load(onnx.parser.parse_model(f"{HEADER} g {text}"), stays_free=True))

    return parse


def context(text="cublas"):
    contexts = make_contexts(CompilationConfig.resolve(f"{text}, cuda -arch=sm_80, llvm"), 1)
    return next(one for target, one in contexts.items() if target.target.kind.name == "cublas")


def program(graph, text="cublas"):
    return program_of(Region.of(graph, range(len(graph.nodes))), context(text))


@pytest.mark.parametrize("name", MODELS)
def test_products_of_the_table(name, graph_of):
    text, wanted = MODELS[name]
    made, constants = program(graph_of(text))
    assert not constants
    assert len(made.products) == len(wanted)
    for product, fields in zip(made.products, wanted, strict=True):
        assert {key: getattr(product, key) for key in fields} == fields
    places = [made.tensors[one.result].place for one in made.products]
    assert places == [LibraryPlace.SCRATCH] * (len(places) - 1) + [LibraryPlace.OUTPUT]
    assert made.scratch_bytes == (192 if len(places) > 1 else 0)


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason, graph_of):
    graph = graph_of(REFUSED[reason])
    refused = [rule.refuse(graph, context()) for rule in pattern_rules(TABLE)]
    (node,) = graph.nodes
    assert any(reason in one[node.id].reason for one in refused), refused
    with pytest.raises(BackendError, match="is no product of cuBLASLt's"):
        program(graph)


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_follow_a_product(name, graph_of):
    graph = graph_of(LEFT[name])
    (match,) = match_region(Region.of(graph, range(len(graph.nodes))), TABLE)
    assert match.members == (0,)
    assert graph.nodes[1].op_type == name


def test_attributes_of_the_target_are_carried_out(graph_of):
    graph = graph_of(MODELS["a dense layer"][0])
    text = "cublas -math_mode=tf32 -disallow_reduced_precision_reduction=1 -workspace_size=4096"
    made, _ = program(graph, text)
    assert (made.math_mode, made.is_reduced_in_sums, made.workspace_bytes) == ("tf32", True, 4096)
    plain, _ = program(graph)
    assert (plain.math_mode, plain.is_reduced_in_sums) == ("default", False)
    assert plain.workspace_bytes == 32 << 20


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_or_the_library_the_reason_is_said():
    found = BACKEND.detect()
    assert found.targets == ()
    try:
        library()
    except BackendError:
        assert "cuBLASLt cannot be loaded: it is not installed" in found.reason
        assert found.hint == "pip install 'intarsia[cublas]'"
    else:
        assert "driver is not installed" in found.reason
    with pytest.raises(BackendError):
        BACKEND.rules(context())


@pytest.fixture
def lt():
    try:
        return library()
    except BackendError as error:
        pytest.skip(f"{error.message}: {error.hint}")


PRODUCT = LtProduct("y", "float32", 12, 20, 28, 3, 0, 1, 2, 3, is_right_turned=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("mode", ["default", "pedantic", "tf32"])
def test_the_library_takes_descriptions(lt, dtype, mode):
    """They are the host's: no GPU is needed."""
    product = LtProduct("y", dtype, 12, 20, 28, 3, 0, 1, 2, 3, is_right_turned=True)
    described = Description(lt, product, mode)
    described.set_bias(1 << 20)
    described.preference(1 << 20, is_reduced_in_sums=True)

    def said(kind, what, attribute, form):
        value, written = form(), ctypes.c_size_t()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        ask = f"cublasLt{kind}GetAttribute"
        lt.call(ask, what, attribute, ctypes.byref(value), size, ctypes.byref(written))
        return value.value

    turned = [said("MatmulDesc", described.operation, one, ctypes.c_int32) for one in (3, 4)]
    assert turned == [1, 0]
    assert said("MatmulDesc", described.operation, 7, ctypes.c_int32) == 4
    assert said("MatmulDesc", described.operation, 8, ctypes.c_uint64) == 1 << 20
    shapes = [
        [said("MatrixLayout", layout, one, ctypes.c_uint64) for one in (2, 3)]
        for layout in (described.left, described.right, described.result)
    ]
    assert shapes == [[28, 20], [28, 12], [20, 12]]
    assert said("MatrixLayout", described.left, 5, ctypes.c_int32) == 3
    assert said("MatrixLayout", described.left, 6, ctypes.c_int64) == 28 * 20


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_the_library_has_no_handle(lt):
    assert int(lt.version().split(".")[0]) >= 12
    with pytest.raises(CublasError, match="cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"):
        lt.make("cublasLtCreate")


def test_a_result_of_the_heuristic_is_as_large_as_the_library_has_it():
    assert ctypes.sizeof(Algorithm) == 96  # cublasLtMatmulHeuristicResult_t of cublasLt.h
