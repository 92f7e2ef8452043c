# SPDX-License-Identifier: Apache-2.0
"""A region of float32 operators as an ncnn network: a table by ONNX operator.

ncnn's tensors have one to three axes, and images no batch: of `[1, C, H, W]` it has `[C, H, W]`. A
tensor is read by one layer, so that one that several read is split first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from intarsia.backends.float_operators import (
    IMAGE,
    check_operation,
    is_dense,
    read_dense,
    read_filters,
    read_limits,
    read_softmax_axis,
)
from intarsia.backends.tflite.layers import NotTakenError
from intarsia.backends.tflite.operators import read_window
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.extract import constant_array

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.graph.graph import Value
    from intarsia.graph.region import Region

_MAGIC = "7767517"
"""The first line of every network."""
_MOST_AXES = 3
_ARRAY = -23300
"""Number of a parameter that is a list, less the number that it has."""
_FUSING = frozenset(("Convolution", "ConvolutionDepthWise", "InnerProduct"))
_ACTIVATION, _RELU = 9, 1
_EXTENTS = {1: (0,), 2: (1, 0), 3: (2, 1, 0)}
"""By the number of axes, the parameters that a shape has, from the outermost axis on."""


@dataclass(slots=True)
class NcnnLayer:
    """A line of a network.

    Attributes:
        kind: Of the layer, by ncnn's name.
        inputs: Names of tensors.
        outputs: Names of tensors.
        params: By ncnn's numbers.
    """

    kind: str
    inputs: list[str]
    outputs: list[str]
    params: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NcnnNetwork:
    """A network.

    Attributes:
        text: Its layers, as ncnn reads them.
        weights: In the order of the layers; a leading 0 says that they are float32.
        inputs: Names of tensors, in the region's order.
        outputs: Names of tensors, in the region's order.
    """

    text: str
    weights: tuple[Array, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def shape_there(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a tensor's shape as ncnn has it.

    Raises:
        NotTakenError: It has no such tensors.
    """
    if len(shape) == IMAGE and shape[0] == 1:
        return tuple(shape[1:])
    if not 1 <= len(shape) <= _MOST_AXES:
        raise NotTakenError(f"ncnn has no tensors of the shape {tuple(shape)}")
    return tuple(shape)


def lower_region(region: Region) -> NcnnNetwork:
    """Return a region as a network.

    Raises:
        NotTakenError: ncnn says a node otherwise, or not at all.
    """
    draft, values = _NcnnDraft(frozenset(region.outputs)), region.graph.values
    operations = [Operation(region.graph, region.graph.nodes[node]) for node in region.nodes]
    for operation in operations:
        _check(operation)
    inputs = tuple(draft.write("Input", [], values[number]) for number in region.inputs)
    for operation in operations:
        _TABLE[operation.op_type](draft, operation)
    outputs = [draft.names[number] for number in region.outputs]
    if len(set(outputs)) < len(outputs):
        raise NotTakenError("a result is nothing but another one")
    text = draft.text(outputs)
    return NcnnNetwork(text, tuple(draft.weights), inputs, tuple(outputs))


def _check(operation: Operation) -> None:
    """Refuse a node for what it reads and makes.

    Raises:
        NotTakenError: It is not in the table, or ncnn has no such tensors.
    """
    check_operation(operation, _TABLE, _INDEXED)
    for value in (*operation.inputs, operation.output):
        if value.constant is None:
            shape_there(value.shape or ())


class _NcnnDraft:
    """A network that is being written; values of the graph are tensors of it."""

    def __init__(self, results: frozenset[int]) -> None:
        self.results = results
        self.layers: list[NcnnLayer] = []
        self.weights: list[Array] = []
        self.names: dict[int, str] = {}
        self._count = 0

    def add(self, kind: str, inputs: Sequence[str], params: Mapping[int, Any]) -> str:
        """Add a layer; return the name of what it makes."""
        self._count += 1
        name = f"t{self._count}"
        self.layers.append(NcnnLayer(kind, list(inputs), [name], dict(params)))
        return name

    def write(
        self, kind: str, inputs: Sequence[str], made: Value, params: Mapping[int, Any] | None = None
    ) -> str:
        """Add a layer that makes a value."""
        self.names[made.id] = self.add(kind, inputs, params or {})
        return self.names[made.id]

    def shaped(self, name: str, made: Value) -> None:
        """Give a tensor the shape that a value has."""
        self.write("Reshape", [name], made, _extents(shape_there(made.shape or ())))

    def weight(self, array: Array, *, is_tagged: bool = False) -> None:
        """Add weights of the last layer, after a mark of their type if wanted."""
        flat = np.ascontiguousarray(array, np.float32).reshape(-1)
        self.weights.append(np.concatenate([np.zeros(1, np.float32), flat]) if is_tagged else flat)

    def read(self, value: Value, rank: int = 0) -> str:
        """Return the tensor of a value; of a constant, with at least so many axes."""
        if value.constant is None:
            return self.names[value.id]
        array = constant_array(value)
        shape = shape_there((1,) * (rank - array.ndim) + array.shape)
        name = self.add("MemoryData", [], _extents(shape))
        self.weight(array)
        return name

    def text(self, outputs: list[str]) -> str:
        """Return the layers as ncnn reads them, with tensors split for those who read them.

        Args:
            outputs: Tensors that the caller reads; they get their new names.
        """
        uses = Counter(name for layer in self.layers for name in layer.inputs) + Counter(outputs)
        readers = [layer.inputs for layer in self.layers] + [outputs]
        layers: list[NcnnLayer] = []
        for layer in self.layers:
            layers.append(layer)
            (name,) = layer.outputs
            if uses[name] > 1:
                parts = [f"{name}_{part}" for part in range(uses[name])]
                layers.append(NcnnLayer("Split", [name], parts))
                left = iter(parts)
                for names in readers:
                    names[:] = [next(left) if one == name else one for one in names]
        blobs = sum(len(layer.outputs) for layer in layers)
        lines = [_MAGIC, f"{len(layers)} {blobs}"]
        for number, layer in enumerate(layers):
            counts = f"{len(layer.inputs)} {len(layer.outputs)}"
            params = (f"{key}={_written(value)}" for key, value in layer.params.items())
            blob_names = (*layer.inputs, *layer.outputs)
            lines.append(" ".join((layer.kind, f"l{number}", counts, *blob_names, *params)))
        return "\n".join((*lines, ""))


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, (len(value), *value)))
    return f"{np.float32(value):.9e}" if isinstance(value, float) else str(int(value))


def _extents(shape: Sequence[int]) -> dict[int, int]:
    return dict(zip(_EXTENTS[len(shape)], shape, strict=True))


def _axis(operation: Operation, axis: int, rank: int) -> int:
    """Return an axis as ncnn counts it.

    Raises:
        NotTakenError: It is the batch of an image.
    """
    place = axis % rank - (rank == IMAGE)
    if place < 0:
        raise NotTakenError("it is along the batch")
    return place


_Lower: TypeAlias = Callable[[_NcnnDraft, Operation], None]


def _pointwise(
    kind: str, draft: _NcnnDraft, op: Operation, **attributes: tuple[int, float]
) -> None:
    """Write a layer of one operand, with attributes by number and default."""
    params = {number: float(op.attribute(name, x)) for name, (number, x) in attributes.items()}
    draft.write(kind, [draft.read(op.inputs[0])], op.output, params)


def _unary(number: int, draft: _NcnnDraft, op: Operation) -> None:
    draft.write("UnaryOp", [draft.read(op.inputs[0])], op.output, {0: number})


def _relu(draft: _NcnnDraft, op: Operation) -> None:
    """Write a ReLU, as a part of the layer that makes its operand where it alone reads that."""
    (source,) = op.inputs
    name = draft.read(source)
    last = draft.layers[-1]
    is_alone = source.consumers == (op.node.id,) and source.id not in draft.results
    if last.outputs == [name] and last.kind in _FUSING and is_alone:
        last.params[_ACTIVATION] = _RELU
        draft.names[op.output.id] = name
    else:
        _pointwise("ReLU", draft, op)


def _binary(number: int, swapped: int, draft: _NcnnDraft, op: Operation) -> None:
    if len(op.inputs) != 2:  # noqa: PLR2004
        raise NotTakenError(f"it has {len(op.inputs)} operands")
    made = shape_there(op.output_shape)
    rank, divisor = len(op.output_shape), op.inputs[1].constant
    if op.op_type == "Div" and (divisor is None or not np.all(op.array(1))):
        raise NotTakenError("its divisor is computed, or 0: ncnn makes NaN of x / 0")
    for operand, other, code in ((1, 0, number), (0, 1, swapped)):
        value, full = op.inputs[operand], op.inputs[other].shape
        is_one = value.constant is not None and math.prod(value.shape or ()) == 1
        if is_one and full == op.output_shape:
            scalar = float(constant_array(value).reshape(()))
            if not math.isfinite(scalar):
                raise NotTakenError("it has an infinite operand")
            x = draft.read(op.inputs[other])
            draft.write("BinaryOp", [x], op.output, {0: code, 1: 1, 2: scalar})
            return
    for value in op.inputs:
        if value.constant is None and len(shape_there(value.shape or ())) != len(made):
            raise NotTakenError("its operands have different numbers of axes")
    draft.write("BinaryOp", [draft.read(one, rank) for one in op.inputs], op.output, {0: number})


def _clip(draft: _NcnnDraft, op: Operation) -> None:
    limits = read_limits(op)
    most = float(np.finfo(np.float32).max)
    low, high = (min(max(limit, -most), most) for limit in limits)
    if not low <= high:
        raise NotTakenError("its limits cross")
    draft.write("Clip", [draft.read(op.inputs[0])], op.output, {0: low, 1: high})


def _softmax(draft: _NcnnDraft, op: Operation) -> None:
    rank, axis = len(op.output_shape), read_softmax_axis(op)
    params = {0: _axis(op, axis, rank), 1: 1}
    draft.write("Softmax", [draft.read(op.inputs[0])], op.output, params)


def _conv(draft: _NcnnDraft, op: Operation) -> None:
    weights, bias = read_filters(op)
    window = read_window(op, weights.shape[2:], op.shape(), op.output_shape)
    (top, bottom), (left, right) = window.pads
    group = int(op.attribute("group", 1))
    params = {
        0: len(weights), 1: window.kernel[1], 11: window.kernel[0],
        2: window.dilations[1], 12: window.dilations[0],
        3: window.strides[1], 13: window.strides[0],
        4: left, 14: top, 15: right, 16: bottom,
        5: 1, 6: weights.size,
    }  # fmt: skip
    kind = "Convolution" if group == 1 else "ConvolutionDepthWise"
    params |= {} if group == 1 else {7: group}
    draft.write(kind, [draft.read(op.inputs[0])], op.output, params)
    draft.weight(weights, is_tagged=True)
    draft.weight(bias)


def _pool(is_average: bool, draft: _NcnnDraft, op: Operation) -> None:
    shape = op.shape()
    if len(shape) != IMAGE:
        raise NotTakenError("it is no pool of images")
    window = read_window(op, op.attribute("kernel_shape"), shape, op.output_shape)
    if window.dilations != (1, 1) or (is_average and op.attribute("ceil_mode", 0)):
        raise NotTakenError("its window has gaps, or its last ones are cut off")
    (top, bottom), (left, right) = window.pads
    params = {
        0: int(is_average), 1: window.kernel[1], 11: window.kernel[0],
        2: window.strides[1], 12: window.strides[0],
        3: left, 13: top, 14: right, 15: bottom,
        5: 1, 6: int(op.attribute("count_include_pad", 0)),
    }  # fmt: skip
    draft.write("Pooling", [draft.read(op.inputs[0])], op.output, params)


def _global_pool(is_average: bool, draft: _NcnnDraft, op: Operation) -> None:
    if len(op.shape()) != IMAGE:
        raise NotTakenError("it is no pool of images")
    params = {0: int(is_average), 4: 1}
    draft.shaped(draft.add("Pooling", [draft.read(op.inputs[0])], params), op.output)


def _reduce(number: int, draft: _NcnnDraft, op: Operation) -> None:
    rank, axes = len(op.shape()), op.axes()
    if not axes:
        raise NotTakenError("it has no axes")
    places = tuple(_axis(op, axis, rank) for axis in axes)
    params = {0: number, 1: 0, _ARRAY - 3: places, 4: 1, 5: 1}
    draft.shaped(draft.add("Reduction", [draft.read(op.inputs[0])], params), op.output)


def _product(draft: _NcnnDraft, op: Operation) -> None:
    if not is_dense(op):
        if len({len(shape_there(shape)) for shape in (op.shape(0), op.shape(1))}) > 1:
            raise NotTakenError("its operands have different numbers of axes")
        draft.write("MatMul", [draft.read(op.inputs[0]), draft.read(op.inputs[1])], op.output)
        return
    weights, added = read_dense(op)
    rows = math.prod(op.shape(0)[:-1])
    x = draft.add("Reshape", [draft.read(op.inputs[0])], _extents((rows, weights.shape[1])))
    params = {0: len(weights), 1: 1, 2: weights.size}
    x = draft.add("InnerProduct", [x], params)
    draft.weight(weights, is_tagged=True)
    draft.weight(added)
    draft.shaped(x, op.output)  # of one row it makes a vector


def _norm(draft: _NcnnDraft, op: Operation) -> None:
    size, eps = op.shape()[-1], float(op.attribute("epsilon", 1e-5))
    if int(op.attribute("axis", -1)) % len(op.shape()) != len(op.shape()) - 1 or size == 1:
        raise NotTakenError("it is along several axes, or of one entry")
    if not all(value.constant is not None for value in op.inputs[1:]):
        raise NotTakenError("its scale or its bias is computed")
    draft.write("LayerNorm", [draft.read(op.inputs[0])], op.output, {0: size, 1: eps, 2: 1})
    draft.weight(op.array(1))
    draft.weight(op.array(2) if op.value(2) is not None else np.zeros(size, np.float32))


def _reshape(draft: _NcnnDraft, op: Operation) -> None:
    draft.shaped(draft.read(op.inputs[0]), op.output)


def _transpose(draft: _NcnnDraft, op: Operation) -> None:
    rank = len(op.shape())
    order = tuple(op.attribute("perm", tuple(reversed(range(rank)))))
    if rank == IMAGE and order[0] != 0:
        raise NotTakenError("it moves the batch")
    places = [axis - (rank == IMAGE) for axis in order if axis or rank != IMAGE]
    # Orders are numbered as they come, the first axis first.
    number = list(permutations(range(len(places)))).index(tuple(places))
    draft.write("Permute", [draft.read(op.inputs[0])], op.output, {0: number})


def _concat(draft: _NcnnDraft, op: Operation) -> None:
    rank = len(op.output_shape)
    axis = _axis(op, int(op.attribute("axis", 0)), rank)
    names = [draft.read(value, rank) for value in op.inputs]
    draft.write("Concat", names, op.output, {0: axis})


_UNARY = {
    "Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Exp": 7, "Sin": 9, "Cos": 10,
    "Tan": 11, "Asin": 12, "Acos": 13, "Atan": 14, "Tanh": 16, "Round": 18,
}  # fmt: skip
_BINARY = {"Add": (0, 0), "Sub": (1, 7), "Mul": (2, 2), "Div": (3, 3), "Max": (4, 4), "Min": (5, 5)}
_REDUCED = {"ReduceSum": 0, "ReduceMean": 3, "ReduceMax": 4, "ReduceMin": 5}
_TABLE: Mapping[str, _Lower] = {
    **{name: partial(_unary, number) for name, number in _UNARY.items()},
    **{name: partial(_binary, *numbers) for name, numbers in _BINARY.items()},
    **{name: partial(_reduce, number) for name, number in _REDUCED.items()},
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "AveragePool": partial(_pool, True),
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Elu": partial(_pointwise, "ELU", alpha=(0, 1.0)),
    "Gemm": _product,
    "GlobalAveragePool": partial(_global_pool, True),
    "GlobalMaxPool": partial(_global_pool, False),
    "HardSigmoid": partial(_pointwise, "HardSigmoid", alpha=(0, 0.2), beta=(1, 0.5)),
    "HardSwish": partial(_pointwise, "HardSwish", alpha=(0, 1 / 6), beta=(1, 0.5)),
    "LayerNormalization": _norm,
    "LeakyRelu": partial(_pointwise, "ReLU", alpha=(0, 0.01)),
    "MatMul": _product,
    "MaxPool": partial(_pool, False),
    "Mish": partial(_pointwise, "Mish"),
    "Relu": _relu,
    "Sigmoid": partial(_pointwise, "Sigmoid"),
    "Softmax": _softmax,
    "Transpose": _transpose,
}
"""By operator of ONNX, what writes it."""
_INDEXED = frozenset((*_REDUCED, "Reshape", "Squeeze", "Unsqueeze"))
"""Those whose further inputs are integers."""
