# SPDX-License-Identifier: Apache-2.0
"""How each operator becomes calls of the library's functions, with what these document as limits.

What no document says, the function's own `validate` does (`helper.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.arm_acl.builder import TableBuilder, acl_axis, unsupported
from intarsia.backends.arm_acl.program import NCHW, NHWC, AclTensor, Activation
from intarsia.backends.scaled_integers import ScaledIntegers, dequantise
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.windows import WindowAttributes, read_window
from intarsia.graph.graph import Value

Act: TypeAlias = "tuple[Activation, float, float]"
"""An activation with its two numbers."""
NO_ACT: Act = (Activation.NONE, 0.0, 0.0)

Lower: TypeAlias = Callable[[Operation, TableBuilder, Act], None]
"""Adds the calls of an operation, whose result an activation follows; raises `NotTaken`."""

_LARGEST = float(np.finfo(np.float32).max)
_IMAGE, _MOST_PERMUTED = 4, 4
_SIGN_SHIFT = 128


def activation_of(operation: Operation) -> Act | None:
    """Return an operator as an activation of the library; None if it is none of them."""
    match operation.op_type:
        case "Relu":
            return Activation.RELU, 0.0, 0.0
        case "Clip":
            return _clip(operation)
        case "LeakyRelu":
            return Activation.LEAKY_RELU, operation.attribute("alpha", 0.01), 0.0
        case "Elu":
            return Activation.ELU, operation.attribute("alpha", 1.0), 0.0
        case "Tanh":
            return Activation.TANH, 1.0, 1.0
        case name:
            plain = _PLAIN_ACTIVATIONS.get(name)
            return None if plain is None else (plain, 0.0, 0.0)


_PLAIN_ACTIVATIONS = {
    "Sigmoid": Activation.LOGISTIC,
    "Softplus": Activation.SOFT_RELU,
    "Abs": Activation.ABS,
    "Sqrt": Activation.SQRT,
    "HardSwish": Activation.HARD_SWISH,
}


def _clip(operation: Operation) -> Act | None:
    if operation.why_computed({1: "least", 2: "largest"}):
        return None
    bounds = [operation.attribute("min"), operation.attribute("max")]
    for position in (1, 2):
        if operation.is_constant(position):
            bounds[position - 1] = float(operation.array(position).reshape(()))
    least = -_LARGEST if bounds[0] is None else float(bounds[0])
    most = _LARGEST if bounds[1] is None else float(bounds[1])
    if least == 0.0:
        return (Activation.BOUNDED_RELU, most, 0.0) if most < _LARGEST else _RELU
    return Activation.LU_BOUNDED_RELU, most, least


_RELU: Act = (Activation.RELU, 0.0, 0.0)
FUSED = (Activation.RELU, Activation.BOUNDED_RELU, Activation.LU_BOUNDED_RELU)
"""Activations that convolutions and dense layers take in."""


def lower_activation(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a function of each element."""
    function = activation_of(operation)
    if function is None:
        raise unsupported("its bounds are not constant")
    value = _first(operation)
    layout = builder.layout_of(value)
    source = builder.read(value, layout)
    result = builder.write(operation.output, layout)
    builder.call("activation", source, result, ints=function[:1], floats=function[1:])


_UNARY = {"Exp": "exponential", "Log": "logarithm", "Neg": "negate", "Sin": "sine"}


def lower_unary(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a function of each element that is one of its own in the library."""
    value = _first(operation)
    layout = builder.layout_of(value)
    source = builder.read(value, layout)
    builder.call(_UNARY[operation.op_type], source, builder.write(operation.output, layout))


_BINARY = {
    "Add": "add",
    "Sum": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Max": "maximum",
    "Min": "minimum",
}


def lower_binary(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a function of two tensors, either of which may repeat along dimensions."""
    values = operation.inputs
    if len(values) != 2:  # noqa: PLR2004
        raise unsupported(f"it has {len(values)} operands, not 2")
    if operation.attribute("axis") is not None:
        raise unsupported("the axis of an old operator set")
    rank = len(operation.output_shape)
    layout = builder.layout_of(*values)
    if not all(len(value.shape or ()) == rank or value.constant is not None for value in values):
        layout = NCHW
    numbers = [_operand(value, builder, layout, rank) for value in values]
    result = builder.write(operation.output, layout)
    builder.call(_BINARY[operation.op_type], *numbers, result)


def _operand(value: Value, builder: TableBuilder, layout: str, rank: int) -> int:
    """Return an operand that is lined up with the result; a constant gets missing dimensions."""
    if layout == NCHW or len(value.shape or ()) == rank:
        return builder.read(value, layout)
    from intarsia.graph.extract import constant_array

    array = constant_array(value)
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    spec = builder.spec(value, NCHW, builder.integers_of(value))
    return builder.constant(
        f"{value.name}/NHWC", np.moveaxis(array, 1, -1), replace(spec, layout=NHWC)
    )


def lower_conv(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a convolution over two dimensions: of all channels, or of each by itself."""
    seen = _operands(operation)
    data, weights = seen[0], seen[1]
    bias = seen[2] if len(seen) > 2 else None  # noqa: PLR2004
    assert data is not None
    assert weights is not None
    filters, channels, *kernel = _weight_shape(weights, builder)
    if len(kernel) != 2:  # noqa: PLR2004
        raise unsupported(f"a convolution over {len(kernel)} dimensions")
    window = read_window(operation, kernel)
    group = operation.attribute("group", 1)
    ints = _window_ints(window)
    is_depthwise = group > 1 and channels == 1 and group == (data.shape or ())[1]
    if group > 1 and not is_depthwise:
        raise unsupported(f"{group} groups of {channels} channels: only 1 group, or 1 channel")
    order = (1, 2, 3, 0) if is_depthwise else (0, 2, 3, 1)
    source = builder.read(data, NHWC)
    if is_depthwise:
        source = _unshared(builder, source, data)
    packed = _weights(operation, builder, source, weights, order, filter_axis=0)
    if is_depthwise:
        spec = builder.tensors[packed]
        builder.tensors[packed] = replace(spec, shape=spec.shape[:3])
    biases = _bias(operation, builder, source, packed, bias, filters)
    result = builder.write(operation.output, NHWC)
    if is_depthwise:
        ints += (act[0], filters // group)
        builder.call("depthwise", source, packed, biases, result, ints=ints, floats=act[1:])
        return
    ints += (act[0], builder.fast)
    builder.call("convolution", source, packed, biases, result, ints=ints, floats=act[1:])


def _unshared(builder: TableBuilder, source: int, value: Value) -> int:
    """Return what a depthwise convolution reads: of int8 that a convolution writes, a copy.

    Release 20.08 computes wrong numbers without it.
    """
    is_int8 = builder.tensors[source].dtype == "QASYMM8_SIGNED"
    writers = (call.function for call in builder.calls if call.tensors[-1] == source)
    if not is_int8 or next(writers, "") != "convolution":
        return source
    held = builder.integers_of(value)
    shape = (held.value if held else value).shape or ()
    copy = builder.inner(source, shape, NHWC)
    builder.call("reshape", source, copy)
    return copy


def lower_dense(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a product with a constant matrix, or one of two matrices."""
    seen = _operands(operation)
    data, weights = seen[0], seen[1]
    bias = seen[2] if len(seen) > 2 else None  # noqa: PLR2004
    assert data is not None
    assert weights is not None
    if operation.attribute("transA", 0):
        raise unsupported("a transposed first operand")
    held = builder.integers_of(weights)
    if len(weights.shape or ()) != 2 or not data.shape:  # noqa: PLR2004
        raise unsupported("only the first operand may have more than two dimensions")
    is_constant = (held.value if held else weights).constant is not None
    if not is_constant:
        _lower_matmul(operation, builder, data, weights, bias, act)
        return
    transposed = bool(operation.attribute("transB", 0))
    alpha, beta = operation.attribute("alpha", 1.0), operation.attribute("beta", 1.0)
    inner, outer = (weights.shape or ())[::-1] if transposed else (weights.shape or ())
    rows = prod(data.shape[:-1])
    source = _as_rows(builder, data, (rows, inner))
    if alpha != 1.0 and held is not None:
        raise unsupported("alpha of integers")
    packed = _weights(
        operation, builder, source, weights, (0, 1), filter_axis=0 if transposed else 1, by=alpha
    )
    biases = _bias(operation, builder, source, packed, bias, outer, beta)
    result = builder.write(operation.output)
    target = result
    if len(operation.output_shape) != 2:  # noqa: PLR2004
        target = builder.inner(result, (rows, outer))
    builder.call(
        "fully_connected",
        source,
        packed,
        biases,
        target,
        ints=(act[0], transposed),
        floats=act[1:],
    )
    if target != result:
        builder.call("reshape", target, result)


def _lower_matmul(
    operation: Operation,
    builder: TableBuilder,
    data: Value,
    weights: Value,
    bias: Value | None,
    act: Act,
) -> None:
    is_plain = not operation.attribute("transB", 0) and act[0] is Activation.NONE
    if bias is not None or not is_plain or builder.has_integers:
        raise unsupported("a computed second operand with a bias, transposed or of integers")
    if len(data.shape or ()) != 2:  # noqa: PLR2004
        raise unsupported("a computed second operand beside one of more than two dimensions")
    tensors = (builder.read(data), builder.read(weights), -1, builder.write(operation.output))
    alpha = operation.attribute("alpha", 1.0)
    builder.call("gemm", *tensors, ints=(0,), floats=(alpha, 0.0))


def _operands(operation: Operation) -> tuple[Value | None, ...]:
    """Return data, weights and bias; of ONNX's operators of integers without their parameters."""
    positions: Sequence[int] = range(len(operation.node.inputs))
    if operation.op_type.startswith("QLinear"):
        positions = (0, 3, 8) if operation.op_type == "QLinearConv" else (0, 3)
    return tuple(operation.value(position) for position in positions)


def _weight_shape(weights: Value, builder: TableBuilder) -> tuple[int, ...]:
    held = builder.integers_of(weights)
    if (held.value if held else weights).constant is None:
        raise unsupported("its weights are not constant")
    return tuple(weights.shape or ())


def _window_ints(window: WindowAttributes) -> tuple[int, ...]:
    """Return strides, pads and dilations, those of the width first."""
    (top, bottom), (left, right) = window.pads
    if min(top, bottom, left, right) < 0:
        raise unsupported("a pad is negative")
    pads = (left, right, top, bottom)
    return (*window.strides[::-1], *pads, *window.dilations[::-1])


def _weights(
    operation: Operation,
    builder: TableBuilder,
    source: int,
    weights: Value,
    order: tuple[int, ...],
    *,
    filter_axis: int,
    by: float = 1.0,
) -> int:
    """Return the tensor of constant weights with their dimensions in another order."""
    from intarsia.graph.extract import constant_array

    held = builder.integers_of(weights)
    if held is None:
        if order == tuple(range(len(order))) and by == 1.0:
            return builder.read(weights)
        array = constant_array(weights) * np.float32(by)
        spec = builder.spec(weights, NCHW, None)
        layout = NHWC if len(order) == _IMAGE else NCHW
        name = f"{weights.name}/{'packed' if by == 1.0 else operation.node.name}"
        return builder.constant(name, array.transpose(order), replace(spec, layout=layout))
    array, spec = _integer_weights(builder.tensors[source].dtype, held, filter_axis)
    layout = NHWC if len(order) == _IMAGE else NCHW
    return builder.constant(
        f"{held.value.name}/packed", array.transpose(order), replace(spec, layout=layout)
    )


def _integer_weights(
    source: str, held: ScaledIntegers, filter_axis: int
) -> tuple[Array, AclTensor]:
    """Return weights as the library wants them beside a source of some type."""
    from intarsia.graph.extract import constant_array

    array = constant_array(held.value)
    zero, scales = held.zero, tuple(map(float, held.scale))
    if len(scales) > 1 or (held.axis is not None):
        if held.axis != filter_axis:
            raise unsupported("scales of weights along another axis than that of the filters")
        if held.value.dtype != "int8" or held.zero_points.any():
            raise unsupported("scales for each filter of uint8, or with zero points")
        return array, AclTensor("QSYMM8_PER_CHANNEL", (), scales=scales)
    if held.value.dtype not in ("int8", "uint8"):
        raise unsupported(f"weights of {held.value.dtype}")
    is_signed = source == "QASYMM8_SIGNED"
    if is_signed != (held.value.dtype == "int8"):  # the library wants both alike
        shift = -_SIGN_SHIFT if is_signed else _SIGN_SHIFT
        array = (array.astype(np.int16) + shift).astype(np.int8 if is_signed else np.uint8)
        zero += shift
    return array, AclTensor(source, (), scales=scales, zero=zero)


def _bias(
    operation: Operation,
    builder: TableBuilder,
    source: int,
    packed: int,
    bias: Value | None,
    filters: int,
    by: float = 1.0,
) -> int:
    """Return the tensor of a constant bias; -1 if there is none."""
    from intarsia.graph.extract import constant_array

    if bias is None or by == 0.0:
        return -1
    held = builder.integers_of(bias)
    value = held.value if held else bias
    if value.constant is None:
        raise unsupported("its bias is not constant")
    array = constant_array(value)
    spec = builder.tensors[source]
    if not spec.scales:
        if array.size not in (1, filters) or (array.ndim and array.shape[-1] != array.size):
            raise unsupported("a bias that is not a row")
        if array.shape == (filters,) and by == 1.0:
            return builder.read(bias)
        floats = np.broadcast_to(array.reshape(-1) * np.float32(by), (filters,))
        return builder.constant(f"{bias.name}/{operation.node.name}", floats, AclTensor("F32", ()))
    units = spec.scales[0] * np.asarray(builder.tensors[packed].scales, np.float64)
    if operation.op_type == "QLinearConv":
        sums = array.astype(np.int64)
    else:
        floats = array if held is None else dequantise(held, array)
        if floats.size not in (1, filters):
            raise unsupported("a bias that is not a row")
        sums = np.rint(floats.reshape(-1).astype(np.float64) * by / units)
    sums = np.clip(np.broadcast_to(sums, (filters,)), *_INT32).astype(np.int32)
    return builder.constant(f"{operation.node.name}/bias", sums, AclTensor("S32", ()))


_INT32 = (np.iinfo(np.int32).min, np.iinfo(np.int32).max)


def _as_rows(builder: TableBuilder, value: Value, shape: tuple[int, int]) -> int:
    """Return a value as a matrix."""
    source = builder.read(value)
    if value.shape == shape:
        return source
    rows = builder.inner(source, shape)
    builder.call("reshape", source, rows)
    return rows


def lower_pool(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a pooling over two dimensions."""
    if len(operation.outputs) > 1:
        raise unsupported("indices as an output of pooling")
    value = _first(operation)
    if len(value.shape or ()) != _IMAGE:
        raise unsupported(f"pooling of {len(value.shape or ())} dimensions")
    is_average = operation.op_type.endswith("AveragePool")
    is_whole = operation.op_type.startswith("Global")
    kernel = operation.shape()[2:] if is_whole else tuple(operation.attribute("kernel_shape"))
    window = read_window(operation, kernel)
    if any(step != 1 for step in window.dilations):
        raise unsupported("a pooling with dilations")
    ints = _window_ints(window)[:6]
    counts_pads = bool(operation.attribute("count_include_pad", 0))
    is_ceil = bool(operation.attribute("ceil_mode", 0))
    sizes = zip(
        operation.shape()[2:],
        kernel,
        window.strides,
        window.pads,
        operation.output_shape[2:],
        strict=True,
    )
    reaches = any(
        (out - 1) * stride + taps > size + sum(pads) for size, taps, stride, pads, out in sizes
    )
    if reaches and is_average:
        raise unsupported("windows that reach beyond the pads")
    if any(max(pads) >= taps for pads, taps in zip(window.pads, kernel, strict=True)):
        raise unsupported("a pad as large as the window")
    source = builder.read(value, NHWC)
    result = builder.write_moved(operation.output, source, NHWC)
    builder.call(
        "pooling",
        source,
        result,
        ints=(is_average, *kernel[::-1], *ints, not counts_pads, is_ceil),
    )


def lower_softmax(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a softmax over rows, or its logarithm."""
    shape = operation.shape()
    rank, is_old = len(shape), operation.opset < 13  # noqa: PLR2004
    axis = operation.attribute("axis", 1 if is_old else -1) % max(rank, 1)
    if not rank or (not is_old and axis != rank - 1):
        raise unsupported("an axis that is not the last one")
    rows = prod(shape[:axis])
    matrix = (rows, prod(shape) // rows)
    source = _as_rows(builder, _first(operation), matrix)
    result = builder.write(operation.output)
    target = result if shape == matrix else builder.inner(result, matrix)
    builder.call(
        "softmax", source, target, ints=(0, operation.op_type == "LogSoftmax"), floats=(1.0,)
    )
    if target != result:
        builder.call("reshape", target, result)


def lower_view(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a copy of the same numbers in another shape."""
    source = builder.read(_first(operation))
    builder.call("reshape", source, builder.write_moved(operation.output, source))


def lower_transpose(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a permutation of dimensions."""
    rank = len(operation.shape())
    order = tuple(operation.attribute("perm") or reversed(range(rank)))
    if not 1 < rank <= _MOST_PERMUTED:
        raise unsupported(f"a permutation of {rank} dimensions: the library has 2 to 4")
    source = builder.read(_first(operation))
    # The library names for each dimension of the result, innermost first, the one it comes from.
    ints = [rank - 1 - order[rank - 1 - dim] for dim in range(rank)]
    builder.call("permute", source, builder.write_moved(operation.output, source), ints=ints)


def lower_concat(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a concatenation."""
    rank = len(operation.output_shape)
    if rank > _IMAGE:
        raise unsupported(f"a concatenation of {rank} dimensions: the library has 4")
    layout = builder.layout_of(*operation.inputs)
    sources = [builder.read(value, layout) for value in operation.inputs]
    result = builder.write_moved(operation.output, sources[0], layout)
    axis = acl_axis(operation.attribute("axis") % rank, rank, layout)
    builder.call("concatenate", *sources, result, ints=(axis,))


def lower_batch_normalization(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a normalisation with constant numbers for each channel."""
    if len(operation.outputs) > 1 or operation.attribute("training_mode", 0):
        raise unsupported("training")
    if len(operation.shape()) != _IMAGE:
        raise unsupported(f"normalising {len(operation.shape())} dimensions")
    if not all(operation.is_constant(position) for position in (1, 2, 3, 4)):
        raise unsupported("its numbers for the channels are not constant")
    value = _first(operation)
    layout = builder.layout_of(value)
    source = builder.read(value, layout)
    gamma, beta, mean, variance = (builder.read(value) for value in operation.inputs[1:5])
    result = builder.write(operation.output, layout)
    epsilon = operation.attribute("epsilon", 1e-5)
    builder.call(
        "batch_normalization", source, result, mean, variance, beta, gamma, floats=(epsilon,)
    )


def lower_lrn(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a normalisation over neighbouring channels."""
    size = operation.attribute("size")
    if size % 2 == 0:
        raise unsupported("an even size: there would be more neighbours on one side")
    if len(operation.shape()) != _IMAGE:
        raise unsupported(f"normalising {len(operation.shape())} dimensions")
    value = _first(operation)
    layout = builder.layout_of(value)
    source = builder.read(value, layout)
    floats = [
        operation.attribute(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    ]
    builder.call(
        "lrn", source, builder.write(operation.output, layout), ints=(size,), floats=floats
    )


def lower_mean(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a mean over dimensions."""
    problem = operation.why_computed({1: "axes are"})
    if problem:
        raise unsupported(problem)
    rank = len(operation.shape())
    axes = operation.axes()
    if not axes:
        if operation.attribute("noop_with_empty_axes", 0):
            raise unsupported("no axes that mean no reduction")
        axes = tuple(range(rank))
    if not 0 < rank <= _IMAGE:
        raise unsupported(f"a mean over some of {rank} dimensions: the library has 1 to 4")
    source = builder.read(_first(operation))
    result = builder.write(operation.output)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(operation.shape()))
    target = result if operation.output_shape == kept else builder.inner(result, kept)
    ints = sorted(acl_axis(axis, rank, NCHW) for axis in axes)
    builder.call("mean", source, target, ints=(1, *ints))
    if target != result:
        builder.call("reshape", target, result)


def lower_prelu(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a rectifier with a slope for each element or channel."""
    source = builder.read(_first(operation))
    slope = builder.read(operation.inputs[1])
    builder.call("prelu", source, slope, builder.write(operation.output))


def lower_pad(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a border of one number."""
    if operation.attribute("mode", "constant") != "constant":
        raise unsupported(f"a border of mode {operation.attribute('mode')}")
    problem = operation.why_computed({1: "pads are", 2: "value is", 3: "axes are"})
    if problem:
        raise unsupported(problem)
    rank = len(operation.shape())
    numbers = operation.attribute("pads") or operation.numbers(1) or ()
    axes = operation.numbers(3)
    axes = tuple(range(rank)) if axes is None else tuple(axis % rank for axis in axes)
    value = operation.attribute("value", 0.0)
    if operation.value(2) is not None:
        value = float(operation.array(2).reshape(()))
    if not rank or min(numbers) < 0:
        raise unsupported("a negative pad")
    pads = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        pads[rank - 1 - axis] = (numbers[position], numbers[position + len(axes)])
    source = builder.read(_first(operation))
    ints = [number for pair in pads for number in pair]
    builder.call("pad", source, builder.write(operation.output), ints=ints, floats=(value,))


def lower_slice(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add a part of a tensor without steps."""
    names = {1: "starts are", 2: "ends are", 3: "axes are", 4: "steps are"}
    problem = operation.why_computed(names)
    if problem:
        raise unsupported(problem)
    shape = operation.shape()
    starts = operation.attribute("starts") or operation.numbers(1) or ()
    axes = operation.axes(position=3) or tuple(range(len(starts)))
    if any(step != 1 for step in operation.numbers(4) or ()):
        raise unsupported("steps other than 1")
    begins = [0] * len(shape)
    for start, axis in zip(starts, axes, strict=True):
        at = start + shape[axis] if start < 0 else start
        begins[axis] = min(max(at, 0), shape[axis])
    _add_slice(builder, _first(operation), operation.output, begins)


def lower_split(operation: Operation, builder: TableBuilder, act: Act) -> None:
    """Add the parts of a tensor along an axis."""
    shape = operation.shape()
    axis = operation.attribute("axis", 0) % max(len(shape), 1)
    at = 0
    for value in operation.outputs:
        begins = [0] * len(shape)
        begins[axis] = at
        _add_slice(builder, _first(operation), value, begins)
        at += (value.shape or ())[axis]


def _add_slice(builder: TableBuilder, value: Value, result: Value, begins: Sequence[int]) -> None:
    shape = result.shape or ()
    if not 0 < len(shape) <= _IMAGE:
        raise unsupported(f"a part of {len(shape)} dimensions: the library has 1 to 4")
    if 0 in shape:
        raise unsupported("a part without elements")
    source = builder.read(value)
    ints: list[int] = []
    for begin, size in zip(reversed(begins), reversed(shape), strict=True):
        ints += [begin, begin + size]
    builder.call("slice", source, builder.write_moved(result, source), ints=ints)


def _first(operation: Operation) -> Value:
    value = operation.value(0)
    if value is None:
        raise unsupported("its first operand is absent")
    return value
