# SPDX-License-Identifier: Apache-2.0
"""Random int8 layers: TFLite's requantisation in our kernels beside LiteRT and ONNX Runtime.

    python benchmarks/tflite_layers.py --layers 1000 --target c

For each operator, as many random layers are written twice: as a TFLite model, which LiteRT's
reference kernels run (`OpResolverType.BUILTIN_REF`), and as ONNX with Q and DQ nodes. What our
kernels make of the ONNX one with `-requantise=tflite` must have LiteRT's bits; beside ONNX's own
definition of Q and DQ (ONNX Runtime without fusion) the differences are counted.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

CODES = np.iinfo(np.int8)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a TFLite model.

    Attributes:
        shape: As TFLite has it: images are NHWC.
        scales: One, or one for each place of an axis.
        zero: The code of 0.
        axis: That scales go along.
        data: Of a constant, int8 or int32.
    """

    shape: tuple[int, ...]
    scales: Array
    zero: int = 0
    axis: int = 0
    data: Array | None = None


@dataclass(frozen=True)
class Layer:
    """One layer in both forms.

    Attributes:
        name: Of its operator.
        tflite: The flat buffer.
        model: Of ONNX, codes in and out, images NCHW.
        feeds: Inputs of the ONNX model, in its order.
    """

    name: str
    tflite: bytes
    model: onnx.ModelProto
    feeds: Mapping[str, Array]

    def reference(self) -> Array:
        """Return the result of LiteRT's reference kernels, as ONNX has it."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        interpreter = Interpreter(
            model_content=self.tflite,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        interpreter.allocate_tensors()
        for detail, feed in zip(interpreter.get_input_details(), self.feeds.values(), strict=True):
            interpreter.set_tensor(detail["index"], _channels_last(feed))
        interpreter.invoke()
        result: Array = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        return np.moveaxis(result, -1, 1) if result.ndim == _IMAGE else result


_IMAGE = 4


def _channels_last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if array.ndim == _IMAGE else array


# TFLite models


def write_tflite(
    operator: str, version: int, tensors: list[Tensor], options: tuple[str, Mapping[str, int]]
) -> bytes:
    """Return a TFLite model of one operator, whose result is the last tensor.

    Args:
        operator: Name in TFLite's table of operators.
        version: Of the operator.
        tensors: Those with data are constants, the others inputs.
        options: The table of options, and what is set in it.
    """
    import flatbuffers
    import tflite

    b = flatbuffers.Builder(1024)

    def numbers(values: Any, dtype: type) -> int:
        place: int = b.CreateNumpyVector(np.asarray(values, dtype))
        return place

    def offsets(items: list[int]) -> int:
        b.StartVector(4, len(items), 4)
        for item in reversed(items):
            b.PrependUOffsetTRelative(item)
        place: int = b.EndVector()
        return place

    def table(name: str, **fields: int | bool) -> int:
        getattr(tflite, f"{name}Start")(b)
        for field, value in fields.items():
            getattr(tflite, f"{name}Add{field}")(b, value)
        place: int = getattr(tflite, f"{name}End")(b)
        return place

    data: list[Array | None] = [None]
    places = []
    for number, tensor in enumerate(tensors):
        name = b.CreateString(f"t{number}")
        shape = numbers(tensor.shape, np.int32)
        scales = numbers(tensor.scales, np.float32)
        zeros = numbers([tensor.zero] * len(tensor.scales), np.int64)
        quantisation = table(
            "QuantizationParameters", Scale=scales, ZeroPoint=zeros, QuantizedDimension=tensor.axis
        )
        is_sums = tensor.data is not None and tensor.data.dtype == np.int32
        buffer = 0
        if tensor.data is not None:
            buffer = len(data)
            data.append(tensor.data)
        dtype = tflite.TensorType.INT32 if is_sums else tflite.TensorType.INT8
        fields = {"Shape": shape, "Type": dtype, "Buffer": buffer, "Name": name}
        places.append(table("Tensor", **fields, Quantization=quantisation))
    code = getattr(tflite.BuiltinOperator, operator)
    codes = table("OperatorCode", DeprecatedBuiltinCode=code, BuiltinCode=code, Version=version)
    name, given = options
    chosen = table(name, **given)
    last = len(tensors) - 1
    ends = numbers(range(last), np.int32), numbers([last], np.int32)
    kind = getattr(tflite.BuiltinOptions, name)
    node = table(
        "Operator",
        OpcodeIndex=0,
        Inputs=ends[0],
        Outputs=ends[1],
        BuiltinOptionsType=kind,
        BuiltinOptions=chosen,
    )
    fed = numbers([i for i in range(last) if tensors[i].data is None], np.int32)
    made = numbers([last], np.int32)
    nodes, held = offsets([node]), offsets(places)
    graph = table("SubGraph", Tensors=held, Inputs=fed, Outputs=made, Operators=nodes)
    buffers = []
    for array in data:
        content = None if array is None else numbers(array.reshape(-1).view(np.uint8), np.uint8)
        buffers.append(table("Buffer", **({} if content is None else {"Data": content})))
    vectors = offsets([codes]), offsets([graph]), offsets(buffers)
    model = table(
        "Model", Version=3, OperatorCodes=vectors[0], Subgraphs=vectors[1], Buffers=vectors[2]
    )
    b.Finish(model, b"TFL3")
    return bytes(b.Output())


# ONNX models


@dataclass(frozen=True)
class Codes:
    """What codes stand for: their scales and the code of 0."""

    scales: Array
    zero: int

    @property
    def one(self) -> float:
        """The one scale."""
        return float(self.scales[0])


class _Onnx:
    """An ONNX model of one operator between Q and DQ nodes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def _constant(self, name: str, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def read(
        self, name: str, codes: Codes, shape: tuple[int, ...], data: Array | None = None
    ) -> str:
        """Dequantise an input, or a constant."""
        dtype = np.int8 if data is None else data.dtype
        if data is None:
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT8, shape))
        else:
            self._constant(name, data)
        scales = codes.scales if len(codes.scales) > 1 else codes.scales.reshape(())
        zero = np.full(scales.shape, codes.zero, dtype)
        inputs = [name, self._constant(f"{name}_s", scales), self._constant(f"{name}_z", zero)]
        self.nodes.append(
            helper.make_node("DequantizeLinear", inputs, [f"{name}_f"], f"dq_{name}", axis=0)
        )
        return f"{name}_f"

    def finish(
        self,
        op_type: str,
        inputs: list[str],
        codes: Codes,
        shape: tuple[int, ...],
        **attributes: Any,
    ) -> onnx.ModelProto:
        """Return the model."""
        result = "f"
        limits = attributes.pop("limits", None)
        self.nodes.append(helper.make_node(op_type, inputs, [result], "op", **attributes))
        if limits is not None:
            ends = [self._constant(n, np.float32(v)) for n, v in zip("lh", limits, strict=True)]
            self.nodes.append(helper.make_node("Clip", [result, *ends], ["clipped"], "clip"))
            result = "clipped"
        scale = self._constant("y_s", codes.scales.reshape(()))
        zero = self._constant("y_z", np.array(codes.zero, np.int8))
        self.nodes.append(helper.make_node("QuantizeLinear", [result, scale, zero], ["y"], "q"))
        output = helper.make_tensor_value_info("y", TensorProto.INT8, shape)
        graph = helper.make_graph(self.nodes, "layer", self.inputs, [output], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# Random layers

_Rng = np.random.Generator


def _scale(rng: _Rng, low: float = -8, high: float = 0) -> Array:
    return np.array([2.0 ** rng.uniform(low, high)], np.float32)


def _codes(rng: _Rng, low: float = -8, high: float = 0) -> Codes:
    return Codes(_scale(rng, low, high), int(rng.integers(CODES.min, CODES.max + 1)))


def _feed(rng: _Rng, shape: tuple[int, ...]) -> Array:
    return rng.integers(CODES.min, CODES.max + 1, shape).astype(np.int8)


def _result_codes(rng: _Rng, scale: float, size: float) -> Codes:
    """Return codes of a result that reach about as far as sums of so many products do."""
    step = scale * size / 100 * 2.0 ** rng.uniform(-2, 1)
    return Codes(np.array([step], np.float32), int(rng.integers(-60, 60)))


_RELUS = {0: None, 1: (0.0, np.inf), 3: (0.0, 6.0)}
"""TFLite's numbers of activations, and their limits."""


def _activation(rng: _Rng) -> tuple[int, tuple[float, float] | None]:
    number = int(rng.choice(list(_RELUS)))
    return number, _RELUS[number]


def convolution(rng: _Rng, *, is_depthwise: bool = False) -> Layer:
    """Return a convolution, with a scale for each channel."""
    channels, taps = int(rng.integers(1, 9)), tuple(map(int, rng.integers(1, 4, 2)))
    strides, dilations = tuple(map(int, rng.integers(1, 3, 2))), (1, 1)
    if not is_depthwise and strides == (1, 1):
        dilations = tuple(map(int, rng.integers(1, 3, 2)))
    size = tuple(map(int, rng.integers(6, 11, 2)))
    outputs = channels * int(rng.integers(1, 3)) if is_depthwise else int(rng.integers(1, 20))
    is_same = bool(rng.integers(2))
    reach = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    result, pads = [], []
    for extent, length, stride in zip(size, reach, strides, strict=True):
        count = -(-extent // stride) if is_same else (extent - length) // stride + 1
        missing = max((count - 1) * stride + length - extent, 0) if is_same else 0
        result.append(count)
        pads.append((missing // 2, missing - missing // 2))
    x = _codes(rng)
    scales = 2.0 ** rng.uniform(-10, -6, outputs).astype(np.float32)
    inner = 1 if is_depthwise else channels
    weights = rng.integers(-127, 128, (outputs, inner, *taps)).astype(np.int8)
    bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
    y = _result_codes(rng, x.one * float(scales.mean()), 5000 * (inner * taps[0] * taps[1]) ** 0.5)
    activation, limits = _activation(rng)
    last = np.moveaxis(weights, 1, -1)  # OHWI
    last = np.moveaxis(last, 0, -1).reshape(1, *taps, outputs) if is_depthwise else last
    sums = x.scales * scales
    options = {
        "Padding": 0 if is_same else 1,
        "StrideH": strides[0],
        "StrideW": strides[1],
        "FusedActivationFunction": activation,
        "DilationHFactor": dilations[0],
        "DilationWFactor": dilations[1],
    }
    if is_depthwise:
        options["DepthMultiplier"] = outputs // channels
    tensors = [
        Tensor((1, *size, channels), x.scales, x.zero),
        Tensor(last.shape, scales, 0, 3 if is_depthwise else 0, np.ascontiguousarray(last)),
        Tensor((outputs,), sums, 0, 0, bias),
        Tensor((1, *result, outputs), y.scales, y.zero),
    ]
    kind = "DepthwiseConv2D" if is_depthwise else "Conv2D"
    operator = "DEPTHWISE_CONV_2D" if is_depthwise else "CONV_2D"
    data = write_tflite(operator, 3, tensors, (f"{kind}Options", options))
    draft = _Onnx()
    shape = (1, channels, *size)
    inputs = [
        draft.read("x", x, shape),
        draft.read("w", Codes(scales, 0), weights.shape, weights),
        draft.read("b", Codes(sums, 0), bias.shape, bias),
    ]
    model = draft.finish(
        "Conv",
        inputs,
        y,
        (1, outputs, *result),
        limits=limits,
        kernel_shape=taps,
        strides=strides,
        dilations=dilations,
        pads=[pads[0][0], pads[1][0], pads[0][1], pads[1][1]],
        group=channels if is_depthwise else 1,
    )
    return Layer("depthwise" if is_depthwise else "conv", data, model, {"x": _feed(rng, shape)})


def depthwise(rng: _Rng) -> Layer:
    """Return a convolution of each channel by itself, perhaps to two channels."""
    return convolution(rng, is_depthwise=True)


def fully_connected(rng: _Rng) -> Layer:
    """Return a product with constant weights."""
    inputs, outputs = (int(n) for n in rng.integers(1, 100, 2))
    rows = int(rng.integers(1, 5))
    x, scale = _codes(rng), _scale(rng, -10, -6)
    weights = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
    y = _result_codes(rng, x.one * float(scale[0]), 5000 * inputs**0.5)
    activation, limits = _activation(rng)
    sums = x.scales * scale
    tensors = [
        Tensor((rows, inputs), x.scales, x.zero),
        Tensor(weights.shape, scale, 0, 0, weights),
        Tensor((outputs,), sums, 0, 0, bias),
        Tensor((rows, outputs), y.scales, y.zero),
    ]
    options = {"FusedActivationFunction": activation}
    data = write_tflite("FULLY_CONNECTED", 4, tensors, ("FullyConnectedOptions", options))
    draft = _Onnx()
    names = [
        draft.read("x", x, (rows, inputs)),
        draft.read("w", Codes(scale, 0), weights.shape, weights),
        draft.read("b", Codes(sums, 0), bias.shape, bias),
    ]
    model = draft.finish("Gemm", names, y, (rows, outputs), limits=limits, transB=1)
    return Layer("fully connected", data, model, {"x": _feed(rng, (rows, inputs))})


def pooling(rng: _Rng, *, is_average: bool = True) -> Layer:
    """Return a pooling; its codes stay what they are."""
    channels = int(rng.integers(1, 20))
    size, taps = tuple(map(int, rng.integers(5, 12, 2))), tuple(map(int, rng.integers(1, 5, 2)))
    strides = tuple(map(int, rng.integers(1, 4, 2)))
    is_same = bool(rng.integers(2))
    result, pads = [], []
    for extent, length, stride in zip(size, taps, strides, strict=True):
        count = -(-extent // stride) if is_same else (extent - length) // stride + 1
        missing = max((count - 1) * stride + length - extent, 0) if is_same else 0
        result.append(count)
        pads.append((missing // 2, missing - missing // 2))
    x = _codes(rng)
    tensors = [
        Tensor((1, *size, channels), x.scales, x.zero),
        Tensor((1, *result, channels), x.scales, x.zero),
    ]
    options = {
        "Padding": 0 if is_same else 1,
        "StrideH": strides[0],
        "StrideW": strides[1],
        "FilterHeight": taps[0],
        "FilterWidth": taps[1],
    }
    operator = "AVERAGE_POOL_2D" if is_average else "MAX_POOL_2D"
    data = write_tflite(operator, 2, tensors, ("Pool2DOptions", options))
    draft = _Onnx()
    shape = (1, channels, *size)
    model = draft.finish(
        "AveragePool" if is_average else "MaxPool",
        [draft.read("x", x, shape)],
        x,
        (1, channels, *result),
        kernel_shape=taps,
        strides=strides,
        pads=[pads[0][0], pads[1][0], pads[0][1], pads[1][1]],
    )
    name = "average pool" if is_average else "max pool"
    return Layer(name, data, model, {"x": _feed(rng, shape)})


def max_pooling(rng: _Rng) -> Layer:
    """Return a pooling that takes the largest."""
    return pooling(rng, is_average=False)


def addition(rng: _Rng, *, is_product: bool = False) -> Layer:
    """Return a sum of two tensors."""
    shape = tuple(map(int, rng.integers(1, 9, 4)))
    a, b = _codes(rng), _codes(rng)
    size = a.one * b.one * 2000 if is_product else max(a.one, b.one) * 100
    y = _result_codes(rng, size, 1)
    activation, limits = _activation(rng)
    last = (shape[0], *shape[2:], shape[1])
    tensors = [Tensor(last, item.scales, item.zero) for item in (a, b, y)]
    name = "Mul" if is_product else "Add"
    options = (f"{name}Options", {"FusedActivationFunction": activation})
    data = write_tflite(name.upper(), 2, tensors, options)
    draft = _Onnx()
    names = [draft.read("a", a, shape), draft.read("b", b, shape)]
    model = draft.finish(name, names, y, shape, limits=limits)
    feeds = {"a": _feed(rng, shape), "b": _feed(rng, shape)}
    return Layer(name.lower(), data, model, feeds)


def product(rng: _Rng) -> Layer:
    """Return a product of two tensors."""
    return addition(rng, is_product=True)


def softmax(rng: _Rng) -> Layer:
    """Return a softmax along rows."""
    shape = (int(rng.integers(1, 6)), int(2 ** rng.uniform(1, 8.5)))
    x = _codes(rng, -10, 0)
    y = Codes(np.array([1 / 256], np.float32), -128)
    tensors = [Tensor(shape, item.scales, item.zero) for item in (x, y)]
    data = write_tflite("SOFTMAX", 2, tensors, ("SoftmaxOptions", {"Beta": 1}))
    draft = _Onnx()
    model = draft.finish("Softmax", [draft.read("x", x, shape)], y, shape, axis=-1)
    return Layer("softmax", data, model, {"x": _feed(rng, shape)})


OPERATORS: Mapping[str, Callable[[_Rng], Layer]] = {
    "conv": convolution,
    "depthwise": depthwise,
    "fully connected": fully_connected,
    "average pool": pooling,
    "max pool": max_pooling,
    "add": addition,
    "mul": product,
    "softmax": softmax,
}
"""What makes a random layer of each operator."""


# Comparing


def join(items: Sequence[Layer]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return one model of several layers side by side, and its inputs."""
    nodes, constants, inputs, outputs, feeds = [], [], [], [], {}
    for number, layer in enumerate(items):
        graph = onnx.compose.add_prefix_graph(layer.model.graph, f"l{number}_")
        nodes += graph.node
        constants += graph.initializer
        inputs += graph.input
        outputs += graph.output
        feeds.update({f"l{number}_{name}": feed for name, feed in layer.feeds.items()})
    graph = helper.make_graph(nodes, "layers", inputs, outputs, constants)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8), feeds


def run_llvm(items: Sequence[Layer]) -> list[Array]:
    """Return what the kernels of `llvm` make of layers, on this machine."""
    import intarsia

    model, feeds = join(items)
    target = "llvm -requantise=tflite"
    program = intarsia.compile(model, target=target, strict=True, cache=False)
    results = program.run(feeds)
    return [np.asarray(results[f"l{number}_y"]) for number in range(len(items))]


def run_c(items: Sequence[Layer]) -> list[Array]:
    """Return what the kernels of `c` make of layers, compiled by this machine's compiler."""
    from intarsia.export import export_c

    model, feeds = join(items)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model, folder / "layers.onnx")
        export_c(folder / "layers.onnx", folder, target="c -requantise=tflite")
        library = folder / "layers.so"
        command = ["cc", "-std=c99", "-O0", "-fPIC", "-shared", "layers.c", "-lm", "-o", library]
        subprocess.run(command, cwd=folder, check=True)
        code = ctypes.CDLL(str(library))
        weights = folder / "layers.bin"
        if weights.exists() and code.layers_init(str(weights).encode()):
            raise RuntimeError("its weights were not read")
        results = [np.zeros(_shape(output), np.int8) for output in model.graph.output]
        arrays = [*(np.ascontiguousarray(feed) for feed in feeds.values()), *results]
        if code.layers_run(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays)):
            raise RuntimeError("it failed")
    return results


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def run_library(items: Sequence[Layer], folder: str) -> list[Array]:
    """Return what CMSIS-NN, or what stands in for it, makes of layers, built for this machine."""
    import intarsia

    model, feeds = join(items)
    target = f"cmsis-nn -cmsis_nn_path={folder}, llvm"
    program = intarsia.compile(model, target=target, strict=True, cache=False)
    results = program.run(feeds)
    return [np.asarray(results[f"l{number}_y"]) for number in range(len(items))]


RUNS: Mapping[str, Callable[[Sequence[Layer]], list[Array]]] = {"c": run_c, "llvm": run_llvm}
"""What computes layers, by kind."""


def run_onnxruntime(layer: Layer) -> Array:
    """Return what Q and DQ mean by ONNX's definition: ONNX Runtime without fusion."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(layer.model.SerializeToString(), options)
    result: Array = session.run(None, dict(layer.feeds))[0]
    return result


def layers(name: str, count: int, seed: int = 0) -> Iterator[Layer]:
    """Return random layers of an operator; the same for the same seed."""
    for number in range(count):
        key = list(OPERATORS).index(name)
        yield OPERATORS[name](np.random.default_rng((seed, key, number)))


@dataclass(frozen=True)
class Differences:
    """How results of random layers differ.

    Attributes:
        numbers: That were compared.
        litert: That are not LiteRT's.
        onnx: That are not what ONNX defines.
        farthest: How many steps those are from it at most.
    """

    numbers: int = 0
    litert: int = 0
    onnx: int = 0
    farthest: int = 0


def compare(
    name: str, count: int, run: Callable[[Sequence[Layer]], list[Array]], seed: int = 0
) -> Differences:
    """Return how results of random layers of an operator differ, computed in batches."""
    found = Differences()
    items = list(layers(name, count, seed))
    for first in range(0, count, _BATCH):
        batch = items[first : first + _BATCH]
        for layer, result in zip(batch, run(batch), strict=True):
            ours = result.astype(np.int32)
            apart = np.abs(ours - run_onnxruntime(layer))
            found = Differences(
                found.numbers + ours.size,
                found.litert + int((ours != layer.reference()).sum()),
                found.onnx + int((apart > 0).sum()),
                max(found.farthest, int(apart.max())),
            )
    return found


_BATCH = 50


def main() -> int:
    """Print a line for each operator; return 1 if a number is not LiteRT's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=1000, help="random layers of each operator")
    parser.add_argument("--only", choices=list(OPERATORS), action="append")
    parser.add_argument("--target", choices=list(RUNS), default="c")
    parser.add_argument("--library", help="folder of CMSIS-NN: run that instead of our kernels")
    given = parser.parse_args()
    run = RUNS[given.target]
    if given.library:
        run = partial(run_library, folder=given.library)
    print(
        f"{'operator':16} {'layers':>7} {'numbers':>9} {'not LiteRT':>11} {'not ONNX':>9} {'by':>3}"
    )
    is_wrong = False
    for name in given.only or OPERATORS:
        found = compare(name, given.layers, run)
        is_wrong |= found.litert > 0
        ends = f"{found.numbers:9} {found.litert:11} {found.onnx:9} {found.farthest:3}"
        print(f"{name:16} {given.layers:7} {ends}", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
