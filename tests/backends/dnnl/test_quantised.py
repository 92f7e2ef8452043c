# SPDX-License-Identifier: Apache-2.0
"""Integers with scales and zero points against ONNX Runtime: at most one quantum apart."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia

TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}
ZERO = {"int8": -3, "uint8": 131}


class Graph:
    """A model under construction; its constants are drawn from one seed."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.inputs = [], [], []

    def constant(self, array):
        """Add a constant, and return its name."""
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type, *inputs, **attributes):
        """Add a node, and return the name of its result."""
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def feed(self, shape, dtype="float32"):
        """Add an input, and return its name."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def numbers(self, scale, zero, dtype):
        """Add a scale and a zero point."""
        return self.constant(np.float32(scale)), self.constant(np.dtype(dtype).type(zero))

    def quantize(self, value, scale, dtype="uint8", zero=None):
        """Quantise a value."""
        zero = ZERO[dtype] if zero is None else zero
        return self.add("QuantizeLinear", value, *self.numbers(scale, zero, dtype))

    def dequantize(self, value, scale, dtype="uint8", zero=None):
        """Dequantise a value."""
        zero = ZERO[dtype] if zero is None else zero
        return self.add("DequantizeLinear", value, *self.numbers(scale, zero, dtype))

    def pass_through(self, value, scale, dtype="uint8", zero=None):
        """Quantise and dequantise a value."""
        return self.dequantize(self.quantize(value, scale, dtype, zero), scale, dtype, zero)

    def weights(self, shape, *, axis=None, dtype="int8", zero=0):
        """Add dequantised weights; scales go along the axis."""
        low, high = (-127, 128) if dtype == "int8" else (0, 256)
        integers = self.constant(self.rng.integers(low, high, shape).astype(dtype))
        count = () if axis is None else (shape[axis],)
        scale = self.constant(self.rng.uniform(0.002, 0.01, count).astype(np.float32))
        zeros = self.constant(np.full(count, zero, dtype))
        attributes = {} if axis is None else {"axis": axis}
        return self.add("DequantizeLinear", integers, scale, zeros, **attributes)

    def model(self, output, dtype="float32"):
        """Return the model with one result, whose shape is inferred."""
        outputs = [helper.make_tensor_value_info(output, TYPES[dtype], None)]
        graph = helper.make_graph(self.nodes, "case", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


@pytest.fixture(scope="session")
def plain_peer(library):
    """A function that runs a model as it is written: nothing is fused.

    It is ONNX Runtime, but for factors of int8 where it lacks VNNI: its sums saturate.
    """
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    def run(model, feeds):
        types = {node.op_type for node in model.graph.node}
        if (
            types & {"QLinearConv", "QLinearMatMul", "MatMulInteger"}
            and not library.has_integer_products
        ):
            names = [output.name for output in model.graph.output]
            return dict(zip(names, ReferenceEvaluator(model).run(names, feeds), strict=True))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


@pytest.fixture
def check(library, plain_peer):
    """A function that compares a model on `dnnl` with ONNX Runtime, and returns what ran."""
    del library

    def run(model, *, quanta=1, rtol=1e-5, atol=1e-5, coverage=1.0):
        exe = intarsia.compile(model, "dnnl, onnxruntime", num_threads=1)
        taken = exe.placement.coverage()
        assert taken["dnnl"] >= coverage * sum(taken.values()), str(exe.explain())
        rng = np.random.default_rng(1)
        feeds = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            shape = [dim.dim_value for dim in tensor.shape.dim]
            if dtype.kind == "f":
                feeds[value.name] = rng.standard_normal(shape).astype(dtype)
            else:
                limits = np.iinfo(dtype)
                feeds[value.name] = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        expected = plain_peer(model, feeds)
        for _ in range(2):  # a buffer that is not written would show
            for name, array in exe.run(feeds).items():
                wanted = expected[name]
                assert array.dtype == wanted.dtype
                if array.dtype in (np.int8, np.uint8):
                    apart = np.abs(array.astype(int) - wanted)
                    assert apart.max() <= quanta
                    assert (apart > 0).mean() <= 0.01  # only where a tie is rounded
                    assert len(np.unique(wanted)) > 4  # not all saturated
                elif array.dtype == np.int32:
                    np.testing.assert_array_equal(array, wanted)
                else:
                    np.testing.assert_allclose(array, wanted, rtol=rtol, atol=atol)
        return exe

    return run


def integer_steps(exe):
    """Return the steps that multiply integers; without VNNI there are none, as sums saturate."""
    programs = [made for made in exe._executables if hasattr(made, "assembly")]
    steps = [step for program in programs for step in program.assembly.steps]
    kinds = ("S8", "U8")
    return [
        step
        for step in steps
        if len(step.arguments) > 2
        and all(argument.form.layout.dtype.name in kinds for argument in step.arguments[:2])
    ]


CONVOLUTIONS = {
    "odd channels": ((1, 5, 9, 7), (7, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    "three channels": ((1, 3, 33, 31), (16, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "one channel": ((2, 1, 8, 8), (3, 1, 5, 5), {}),
    "blocks": ((2, 64, 7, 7), (32, 64, 1, 1), {}),
    "strides": ((1, 16, 11, 13), (48, 16, 3, 3), {"strides": [2, 3], "pads": [0, 1, 2, 0]}),
    "dilated": ((1, 16, 12, 12), (32, 16, 3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    "groups": ((1, 12, 7, 7), (18, 4, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 24, 14, 14), (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1]}),
    "odd depthwise": ((1, 7, 9, 9), (7, 1, 3, 3), {"group": 7, "strides": [2, 2]}),
    "1d": ((2, 6, 17), (5, 6, 4), {"strides": [2], "pads": [1, 2]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [None, 0], ids=["one scale", "scales"])
def test_convolution_between_quantize_nodes(check, library, name, dtype, axis):
    shape, filters, attributes = CONVOLUTIONS[name]
    graph = Graph()
    source = graph.pass_through(graph.feed(shape), 0.03, dtype)
    bias = graph.constant(graph.rng.standard_normal(filters[0]).astype(np.float32))
    weights = graph.weights(filters, axis=axis)
    result = graph.add("Conv", source, weights, bias, **attributes)
    exe = check(graph.model(graph.quantize(result, 0.1, dtype), dtype))
    assert len(integer_steps(exe)) == library.has_integer_products
    assert exe.placement.coverage()["dnnl"] == 5


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_integers_run_in_code_for_integers(check, library, kind):
    if not library.has_integer_products:
        pytest.skip("this CPU has no VNNI")
    graph = Graph()
    shapes = {"Conv": ((1, 64, 7, 7), (32, 64, 1, 1), 0), "MatMul": ((8, 64), (64, 32), 1)}
    shape, weights, axis = shapes[kind]
    source = graph.pass_through(graph.feed(shape), 0.03)
    result = graph.add(kind, source, graph.weights(weights, axis=axis))
    (step,) = integer_steps(check(graph.model(graph.quantize(result, 0.1), "uint8")))
    implementation = step.descriptor.implementation  # as oneDNN's log names it
    assert "vnni" in implementation or "amx" in implementation


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_zero_points_of_weights(check, library, dtype):
    graph = Graph()
    zero = {"int8": 0, "uint8": 128}[dtype]
    source = graph.dequantize(graph.feed((1, 8, 6, 6), "uint8"), 0.02)
    weights = graph.weights((16, 8, 3, 3), axis=0, dtype=dtype, zero=zero)
    exe = check(graph.model(graph.add("Conv", source, weights)), rtol=1e-4, atol=1e-4)
    assert len(integer_steps(exe)) == library.has_integer_products


def test_weights_that_are_no_int8_are_floats(check):
    graph = Graph()
    source = graph.dequantize(graph.feed((1, 8, 6, 6), "uint8"), 0.02)
    weights = graph.weights((16, 8, 3, 3), axis=0, dtype="uint8", zero=7)
    exe = check(graph.model(graph.add("Conv", source, weights)), rtol=1e-4, atol=1e-4)
    assert integer_steps(exe) == []


def test_bias_of_integers_and_activation(check, library):
    graph = Graph()
    source = graph.pass_through(graph.feed((1, 16, 9, 9)), 0.03)
    weights = graph.weights((32, 16, 3, 3), axis=0)
    integers = graph.constant(graph.rng.integers(-900, 900, 32).astype(np.int32))
    scales = graph.constant(np.full(32, 0.0002, np.float32))
    bias = graph.add("DequantizeLinear", integers, scales, axis=0)
    result = graph.add("Conv", source, weights, bias, pads=[1, 1, 1, 1])
    result = graph.quantize(graph.add("Relu", result), 0.05, "uint8", 0)
    exe = check(graph.model(result, "uint8"))
    assert len(integer_steps(exe)) == library.has_integer_products


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_residual_block(check, library, dtype):
    graph = Graph()
    first = graph.pass_through(graph.feed((1, 32, 8, 8)), 0.0313, dtype)
    one = graph.add("Conv", first, graph.weights((32, 32, 3, 3), axis=0), pads=[1, 1, 1, 1])
    one = graph.pass_through(graph.add("Relu", one), 0.0519, dtype)
    two = graph.add("Conv", one, graph.weights((32, 32, 1, 1), axis=0))
    two = graph.pass_through(two, 0.0897, dtype)
    total = graph.add("Relu", graph.add("Add", two, first))
    total = graph.pass_through(total, 0.1071, dtype)
    pooled = graph.add("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2])
    pooled = graph.pass_through(pooled, 0.1071, dtype)
    last = graph.add("Conv", pooled, graph.weights((8, 32, 1, 1), axis=0))
    exe = check(graph.model(graph.quantize(last, 0.3, dtype), dtype), quanta=2)
    assert len(integer_steps(exe)) >= 3 * library.has_integer_products
    names = [step.nodes for made in exe._executables for step in made.assembly.steps]
    assert not any(nodes and "DequantizeLinear" in nodes[0] for nodes in names)
    sums = [nodes for nodes in names if any("Add" in name for name in nodes)]
    assert len(sums) == 1
    assert "Conv" in sums[0][0]  # the sum is a part of the convolution


PRODUCTS = {
    "rows": ((5, 24), (24, 17)),
    "one row": ((1, 64), (64, 32)),
    "sequence": ((2, 7, 32), (32, 48)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [None, 1], ids=["one scale", "scales"])
def test_product_between_quantize_nodes(check, library, name, dtype, axis):
    left, right = PRODUCTS[name]
    graph = Graph()
    source = graph.pass_through(graph.feed(left), 0.03, dtype)
    result = graph.add("MatMul", source, graph.weights(right, axis=axis))
    bias = graph.constant(graph.rng.standard_normal(right[1]).astype(np.float32))
    result = graph.add("Relu", graph.add("Add", result, bias))
    exe = check(graph.model(graph.quantize(result, 0.1, dtype), dtype))
    assert len(integer_steps(exe)) == library.has_integer_products


@pytest.mark.parametrize("zero", [0, 5])
def test_product_of_two_activations(check, zero):
    graph = Graph()
    left = graph.pass_through(graph.feed((2, 4, 6, 16)), 0.03)
    right = graph.pass_through(graph.feed((2, 4, 16, 9)), 0.02, "int8", zero)
    result = graph.quantize(graph.add("MatMul", left, right), 0.05)
    check(graph.model(result, "uint8"))


@pytest.mark.parametrize("transposed", [0, 1])
def test_inner_product_between_quantize_nodes(check, library, transposed):
    graph = Graph()
    source = graph.pass_through(graph.feed((3, 40)), 0.03, "int8")
    shape = (10, 40) if transposed else (40, 10)
    weights = graph.weights(shape, axis=0 if transposed else 1)
    bias = graph.constant(graph.rng.standard_normal(10).astype(np.float32))
    result = graph.add("Gemm", source, weights, bias, transB=transposed)
    exe = check(graph.model(graph.quantize(result, 0.2, "int8"), "int8"))
    assert len(integer_steps(exe)) == library.has_integer_products


def test_a_transposed_convolution_between_quantize_nodes_is_of_floats(check):
    graph = Graph()
    source = graph.pass_through(graph.feed((1, 4, 5, 5)), 0.03, "int8")
    weights = graph.weights((4, 4, 3, 3))  # as many filters as channels, as for a Conv
    result = graph.add("ConvTranspose", source, weights, pads=[1, 1, 1, 1])
    exe = check(graph.model(graph.quantize(result, 0.2, "int8"), "int8"))
    assert integer_steps(exe) == []


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [5, 32])
def test_qlinear_conv(check, dtype, channels):
    graph = Graph()
    source = graph.feed((1, channels, 8, 8), dtype)
    weights = graph.constant(graph.rng.integers(-128, 128, (24, channels, 3, 3)).astype(np.int8))
    scales = graph.constant(graph.rng.uniform(0.001, 0.01, 24).astype(np.float32))
    zeros = graph.constant(np.zeros(24, np.int8))
    bias = graph.constant(graph.rng.integers(-3000, 3000, 24).astype(np.int32))
    result = graph.add(
        "QLinearConv",
        *(source, *graph.numbers(0.02, ZERO[dtype], dtype), weights, scales, zeros),
        *(*graph.numbers(0.2, ZERO[dtype], dtype), bias),
        pads=[1, 1, 1, 1],
    )
    check(graph.model(result, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_matmul(check, dtype):
    graph = Graph()
    weights = graph.constant(graph.rng.integers(-128, 128, (33, 20)).astype(np.int8))
    result = graph.add(
        "QLinearMatMul",
        *(graph.feed((4, 6, 33), dtype), *graph.numbers(0.02, ZERO[dtype], dtype)),
        *(weights, *graph.numbers(0.004, 0, "int8")),
        *graph.numbers(0.1, ZERO[dtype], dtype),
    )
    check(graph.model(result, dtype))


@pytest.mark.parametrize("has_zero", [False, True])
def test_sums_of_products_are_exact(check, library, has_zero):
    graph, dtype = Graph(), "uint8"  # ONNX Runtime has no other ConvInteger
    weights = graph.constant(graph.rng.integers(0, 256, (8, 16, 3, 3)).astype(np.uint8))
    zeros = (graph.constant(np.array(ZERO[dtype], dtype)), graph.constant(np.uint8(128)))
    weights_only = graph.constant(graph.rng.integers(-128, 128, (8, 16, 3, 3)).astype(np.int8))
    source = graph.feed((1, 16, 9, 9), dtype)
    inputs = (source, weights, *zeros) if has_zero else (source, weights_only)
    # Without VNNI oneDNN has no exact sums, and is not asked for others.
    model = graph.model(graph.add("ConvInteger", *inputs), "int32")
    check(model, coverage=float(library.has_integer_products))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_rows_are_exact(check, library, dtype):
    graph = Graph()
    weights = graph.constant(graph.rng.integers(-128, 128, (700, 12)).astype(np.int8))
    source, zero = graph.feed((5, 700), dtype), graph.feed((), dtype)
    result = graph.add("MatMulInteger", source, weights, zero)
    check(graph.model(result, "int32"), coverage=float(library.has_integer_products))


def test_dynamic_quantization_is_one_product(check, library):
    graph = Graph()
    weights = graph.constant(graph.rng.integers(-128, 128, (64, 12)).astype(np.int8))
    source, zero, scale = graph.feed((5, 64), "uint8"), graph.feed((), "uint8"), graph.feed(())
    result = graph.add("MatMulInteger", source, weights, zero)
    result = graph.add("Cast", result, to=TensorProto.FLOAT)
    model = graph.model(graph.add("Mul", result, scale))
    exe = check(model, atol=1e-2, coverage=float(library.has_integer_products))
    assert [len(step.nodes) for step in integer_steps(exe)] == [3] * library.has_integer_products


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 5, 4, 3), (1, 16, 6, 6)])
def test_quantize_and_dequantize_alone(check, dtype, shape):
    graph = Graph()
    check(graph.model(graph.quantize(graph.feed(shape), 0.02, dtype), dtype))
    graph = Graph()
    check(graph.model(graph.dequantize(graph.feed(shape, dtype), 0.02, dtype)))


def test_scales_along_an_axis_alone(check):
    graph = Graph()
    scales = graph.constant(np.linspace(0.01, 0.1, 5).astype(np.float32))
    zeros = graph.constant(np.full(5, 3, np.uint8))
    result = graph.add("QuantizeLinear", graph.feed((2, 5, 4, 4)), scales, zeros, axis=1)
    check(graph.model(graph.add("DequantizeLinear", result, scales, zeros, axis=1)), atol=0.11)


def test_what_only_moves_integers_does_not_make_floats(check):
    graph = Graph()
    x = graph.dequantize(graph.feed((1, 8, 4, 4), "uint8"), 0.02)
    y = graph.add("Concat", x, x, axis=1)
    y = graph.pass_through(y, 0.02)
    y = graph.pass_through(graph.add("Transpose", y, perm=[0, 2, 3, 1]), 0.02)
    y = graph.quantize(graph.add("Flatten", y), 0.02)
    exe = check(graph.model(y, "uint8"), quanta=0)
    for made in exe._executables:
        for step in made.assembly.steps:
            assert {argument.form.layout.dtype.name for argument in step.arguments} == {"U8"}


def test_scales_that_are_fed_are_refused(library):
    del library
    graph = Graph()
    result = graph.add("QuantizeLinear", graph.feed((3, 4)), graph.feed(()))
    exe = intarsia.compile(graph.model(result, "uint8"), "dnnl, reference", num_threads=1)
    (refusal,) = exe.placement.refusals
    assert "not constant" in refusal.reason


def test_without_fast_integers_products_are_of_floats(check, library, monkeypatch):
    monkeypatch.setattr(type(library), "has_integer_products", property(lambda _: False))
    graph = Graph()
    source = graph.pass_through(graph.feed((1, 16, 9, 9)), 0.03)
    result = graph.add("Conv", source, graph.weights((32, 16, 3, 3), axis=0))
    exe = check(graph.model(graph.quantize(result, 0.1), "uint8"))
    assert integer_steps(exe) == []


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Sub", "Div", "Max", "Min"])
@pytest.mark.parametrize("is_first", [False, True], ids=["last", "first"])
def test_a_number_between_integers_leaves_nothing_behind(check, op_type, is_first):
    graph, scale = Graph(), 0.0937
    floats = graph.dequantize(graph.feed((2, 3, 4, 4), "uint8"), 0.05, zero=3)
    number = graph.constant(np.array(0.75, np.float32))
    if op_type == "Div" and is_first:  # by what is never zero
        floats, scale = graph.add("Add", floats, graph.constant(np.array(9, np.float32))), 5.3e-4
    pair = (number, floats) if is_first else (floats, number)
    check(graph.model(graph.quantize(graph.add(op_type, *pair), scale, zero=1), "uint8"))


def test_of_a_region_that_fails_as_a_whole_only_the_primitive_at_fault_goes(library, monkeypatch):
    from intarsia.backends.dnnl import assembly
    from intarsia.backends.dnnl.library import StatusError
    from intarsia.backends.dnnl.words import LibraryStatus

    make, asked = assembly.make_primitive, []

    def fail_second(library, call, *rest):  # not where it is alone, before and after
        if call.kind == "softmax":
            asked.append(call.nodes)
        if call.kind == "softmax" and len(asked) == 2:
            raise StatusError(
                "dnnl_softmax_forward_primitive_desc_create", LibraryStatus.UNIMPLEMENTED
            )
        return make(library, call, *rest)

    monkeypatch.setattr(assembly, "make_primitive", fail_second)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y)'
        '{ a = Relu(x) ["odd"] b = Softmax(a) y = Tanh(b) }'
    )
    exe = intarsia.compile(model, "dnnl, onnxruntime", cache=False)
    (refusal,) = exe.placement.refusals
    assert refusal.node == "odd"
    assert "softmax of odd" in refusal.reason
