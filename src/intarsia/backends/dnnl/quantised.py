# SPDX-License-Identifier: Apache-2.0
"""Integers with scales and zero points: ONNX's quantised operators, and Q/DQ around others.

A float tensor stands for integers: `(integer - zero point) * scale` (ONNX, DequantizeLinear). The
scale of a product's operands is one scale of its weights; a result becomes integers by a linear
function behind it, and the conversion to integers rounds half to even and saturates. So a result
is at most one quantum from ONNX's, where that rounds a tie the other way.
"""

from __future__ import annotations

import msgspec
import numpy as np

from intarsia.backends.dnnl import products, windows
from intarsia.backends.dnnl.lowering import (
    Ids,
    Problem,
    Selected,
    first_input,
    node_call,
    unsupported,
)
from intarsia.backends.dnnl.numbering import Substituted
from intarsia.backends.dnnl.pointwise import lower_binary
from intarsia.backends.dnnl.program import Post, PrimitiveCall, Scaling
from intarsia.backends.dnnl.words import Arg, Eltwise
from intarsia.backends.scaled_integers import (
    BYTES,
    ScaledIntegers,
    dequantise,
    integers_of,
    read_linear,
    read_parameters,
)
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.region import Region

_LOWEST, _HIGHEST = -128, 127


def lower_quantize(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a conversion to integers."""
    quantised = read_linear(operation)
    if not isinstance(quantised, ScaledIntegers):
        return quantised
    if not quantised.is_alike:
        return unsupported("zero points that differ along an axis")
    return _reorder(operation, quantised, ids, Arg.DST)


def lower_dequantize(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a conversion to floats; of a constant, one that is made when compiling."""
    quantised = read_linear(operation)
    if not isinstance(quantised, ScaledIntegers):
        return quantised
    if quantised.is_alike and quantised.value.dtype != "int32":
        return _reorder(operation, quantised, ids, Arg.SRC)
    if not operation.is_constant(0):
        return unsupported("zero points that differ along an axis, or int32")
    array = dequantise(quantised, operation.array(0))
    tensor = ids.constant(f"{operation.node.name}/floats", array)
    return node_call("view", operation, ids, inputs=(tensor,))


def _reorder(
    operation: Operation, quantised: ScaledIntegers, ids: Ids, argument: Arg
) -> PrimitiveCall:
    mask = 0 if quantised.axis is None else 1 << quantised.axis
    name = operation.node.name
    scalings = [Scaling(argument, ids(operation.inputs[1].id), mask)]
    if quantised.zero:
        zero = ids.constant(f"{name}/zero point", quantised.zero_points[:1].copy())
        scalings.append(Scaling(argument, zero, 0, is_zero_point=True))
    call = node_call("reorder", operation, ids, inputs=first_input(operation, ids))
    return msgspec.structs.replace(call, scalings=tuple(scalings))


def quantising_post(operation: Operation) -> Post | None:
    """Return a QuantizeLinear as what is done to a result before it becomes integers, or None."""
    quantised = read_linear(operation)
    if not isinstance(quantised, ScaledIntegers) or quantised.axis is not None:
        return None
    return Post(Eltwise.LINEAR, float(1.0 / np.float64(quantised.scale[0])), float(quantised.zero))


def rounding_posts(quantised: ScaledIntegers, unit: float) -> tuple[Post, ...]:
    """Return quantising and dequantising as what is done to a result on the way.

    Args:
        quantised: The integers that the result is for a moment.
        unit: What the result is divided by.
    """
    scale, limits = np.float64(quantised.scale[0]), np.iinfo(quantised.value.dtype)
    back = float(scale / unit)
    return (
        Post(Eltwise.LINEAR, float(1.0 / scale), float(quantised.zero)),
        Post(Eltwise.ROUND),
        Post(Eltwise.CLIP, float(limits.min), float(limits.max)),
        Post(Eltwise.LINEAR, back, -back * quantised.zero),
    )


def lower_integer_conv(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return QLinearConv or ConvInteger."""
    if operation.op_type == "ConvInteger":
        return lower_integer_product(operation, ids)
    return _lower_qlinear(operation, ids, bias_at=8)


def lower_integer_matmul(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return QLinearMatMul or MatMulInteger."""
    if operation.op_type == "MatMulInteger":
        return lower_integer_product(operation, ids)
    return _lower_qlinear(operation, ids)


def _lower_qlinear(operation: Operation, ids: Ids, bias_at: int = -1) -> PrimitiveCall | Problem:
    """Return a product, integers in and out; its bias has the scale of the products."""
    left, right = (operation.value(position) for position in (0, 3))
    assert left is not None
    assert right is not None
    rank = len(right.shape or ())
    axis = 0 if bias_at >= 0 else rank - 1
    source = read_parameters(operation, left, 1, 2, None)
    weights = read_parameters(operation, right, 4, 5, axis)
    result = read_parameters(operation, operation.output, 6, 7, None)
    for part in (source, weights, result):
        if not isinstance(part, ScaledIntegers):
            return part
    assert isinstance(source, ScaledIntegers)
    assert isinstance(weights, ScaledIntegers)
    assert isinstance(result, ScaledIntegers)
    positions = (0, 3, bias_at) if bias_at >= 0 else (0, 3)
    seen = Selected(operation.graph, operation.node, positions=positions)
    instead = {}
    bias = seen.value(2)
    if bias is not None:
        if not seen.is_constant(2):
            return unsupported("a bias that is not constant")
        scales = source.scale.astype(np.float64) * weights.scale
        # In doubles: a bias of 32 bits has more digits than float32, and is rounded once here.
        array = (Operation.array(operation, bias_at) * scales).astype(np.float32)
        instead[bias.id] = ids.constant(f"{operation.node.name}/bias", array)
    call = lower_integers(seen, source, weights, ids, instead)
    if not isinstance(call, PrimitiveCall):
        return call
    post = Post(Eltwise.LINEAR, float(1.0 / np.float64(result.scale[0])), float(result.zero))
    return msgspec.structs.replace(call, posts=(*call.posts, post))


def lower_integer_product(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return ConvInteger or MatMulInteger: exact sums of products as int32."""
    left, right = operation.inputs[:2]
    seen = Selected(operation.graph, operation.node, positions=(0, 1))
    if operation.value(3) is not None and not operation.is_constant(3):
        return unsupported("zero points of weights that are not constant")
    one = np.ones(1, np.float32)
    zero = np.zeros(1, np.int32)
    if operation.value(3) is not None:
        zero = operation.array(3).reshape(-1).astype(np.int32)
    axis = None
    if zero.size > 1:
        axis = 0 if operation.op_type == "ConvInteger" else len(operation.shape(1)) - 1
    weights = ScaledIntegers(right, np.broadcast_to(one, zero.shape), zero, axis)
    source = ScaledIntegers(left, one, np.zeros(1, np.int32), None)
    call = lower_integers(seen, source, weights, ids, {})
    shift = operation.value(2)
    if not isinstance(call, PrimitiveCall) or shift is None:
        return call
    if shift.shape not in ((), (1,)):
        return unsupported("a zero point per row")
    scaling = Scaling(Arg.SRC, ids(shift.id), 0, is_zero_point=True)
    return msgspec.structs.replace(call, scalings=(*call.scalings, scaling))


def lower_integers(
    operation: Operation,
    source: ScaledIntegers,
    weights: ScaledIntegers,
    ids: Ids,
    instead: dict[int, int],
) -> PrimitiveCall | Problem:
    """Return a convolution or matrix product of integers.

    Args:
        operation: Its first two operands are the integers, or the floats that they stand for.
        source: The integers of the first.
        weights: Those of the second.
        ids: Tensors of values.
        instead: Tensors that stand for further operands.
    """
    is_conv = "Conv" in operation.op_type
    is_transposed = bool(operation.attribute("transB", 0))
    axis = 0 if is_conv or is_transposed else len(operation.shape(1)) - 1
    if source.value.dtype not in BYTES or weights.value.dtype not in BYTES:
        return ReasonCode.UNSUPPORTED_DTYPE, "an operand is neither int8 nor uint8"
    if source.axis is not None or weights.axis not in (None, axis):
        return unsupported("scales along that axis")
    if operation.attribute("transA", 0) or operation.attribute("alpha", 1.0) != 1:
        return unsupported("integers with transA or alpha")
    name = operation.node.name
    prepared = _prepare_weights(weights, name, ids, is_conv=is_conv)
    if not isinstance(prepared, int):
        return prepared
    left, right = operation.inputs[:2]
    if left.id == right.id:
        return unsupported("a product of integers with themselves")
    substituted = Substituted(ids, {**instead, left.id: ids(source.value.id), right.id: prepared})
    lower = windows.lower_conv if is_conv else products.lower_matmul
    if operation.op_type == "Gemm":
        lower = products.lower_gemm
    call = lower(operation, substituted)
    if not isinstance(call, PrimitiveCall):
        return call
    scalings = _scalings(operation, call, source, weights, ids)
    return msgspec.structs.replace(call, scalings=scalings)


def _scalings(
    operation: Operation,
    call: PrimitiveCall,
    source: ScaledIntegers,
    weights: ScaledIntegers,
    ids: Ids,
) -> tuple[Scaling, ...]:
    """Return the scale of a product's result as that of its weights, and the zero points."""
    name = operation.node.name
    scale = (source.scale.astype(np.float64) * weights.scale).astype(np.float32)
    mask = 0
    if weights.axis is not None and call.kind == "matmul":
        mask = 1 << (len(call.lists.get("shape") or operation.output_shape) - 1)
    elif weights.axis is not None:
        # Weights with groups have one dimension more, so a filter is named by the first two.
        mask = 3 if operation.attribute("group", 1) > 1 else 1
    scalings = [Scaling(Arg.WEIGHTS, ids.constant(f"{name}/scale", scale), mask)]
    # Scales of 1 would send exact sums through float32.
    if operation.output.dtype == "int32":  # exact sums
        scalings.clear()
    if source.zero:
        zero = ids.constant(f"{name}/zero point", source.zero_points.copy())
        scalings.append(Scaling(Arg.SRC, zero, 0, is_zero_point=True))
    if weights.value.constant is None and weights.zero:
        zero = ids.constant(f"{name}/zero point of weights", weights.zero_points.copy())
        scalings.append(Scaling(Arg.WEIGHTS, zero, 0, is_zero_point=True))
    return tuple(scalings)


def _prepare_weights(
    weights: ScaledIntegers, name: str, ids: Ids, *, is_conv: bool
) -> int | Problem:
    """Return the tensor of weights as int8 without a zero point, where they are constant."""
    if weights.value.constant is None:
        if is_conv or weights.axis is not None or weights.value.dtype != "int8":
            return unsupported("uint8 weights, or scales along an axis, that are not constant")
        return ids(weights.value.id)
    if weights.value.dtype == "int8" and not weights.zero_points.any():
        return ids(weights.value.id)
    from intarsia.graph.extract import constant_array

    array = constant_array(weights.value).astype(np.int32)
    array -= weights.zero_points.reshape(weights.along(array.ndim))
    # A convolution of oneDNN has no zero point of weights; uint8 around 128 always fits.
    if array.min() < _LOWEST or array.max() > _HIGHEST:
        return unsupported("weights that are not int8 once their zero points are subtracted")
    return ids.constant(f"{name}/weights", array.astype(np.int8))


def integer_product(operation: Operation, region: Region, ids: Ids) -> PrimitiveCall | None:
    """Return Conv, MatMul or Gemm of dequantised operands as one of integers, or None."""
    source, weights = (integers_of(operation.value(position), region) for position in (0, 1))
    if source is None or weights is None:
        return None
    instead = {}
    bias = operation.value(2)
    integers = integers_of(bias, region)
    if bias is not None and integers is not None and integers.value.constant is not None:
        from intarsia.graph.extract import constant_array

        array = dequantise(integers, constant_array(integers.value))
        instead[bias.id] = ids.constant(f"{operation.node.name}/bias", array)
    call = lower_integers(operation, source, weights, ids, instead)
    return call if isinstance(call, PrimitiveCall) else None


def integer_sum(operation: Operation, region: Region, ids: Ids) -> PrimitiveCall | None:
    """Return a sum or difference of two dequantised tensors of one shape, or None."""
    sign = {"Add": 1, "Sum": 1, "Sub": -1}.get(operation.op_type)
    if sign is None or len(operation.inputs) != 2:  # noqa: PLR2004 - of two operands
        return None
    values = operation.inputs
    parts = [integers_of(value, region) for value in values]
    left, right = parts
    if left is None or right is None or values[0].id == values[1].id:
        return None
    if values[0].shape != values[1].shape or not operation.output_shape:
        return None
    if any(part.axis is not None or part.value.dtype not in BYTES for part in (left, right)):
        return None
    instead = {values[0].id: ids(left.value.id), values[1].id: ids(right.value.id)}
    call = lower_binary(operation, Substituted(ids, instead))
    if not isinstance(call, PrimitiveCall) or call.kind != "binary":
        return None
    name = operation.node.name
    scalings = tuple(
        Scaling(argument, ids.constant(f"{name}/scale {position}", part.scale.copy()))
        for position, (argument, part) in enumerate(
            zip((Arg.SRC, Arg.SRC_1), (left, right), strict=True)
        )
    )
    # Both zero points at once, after the sum: one linear function in place of two.
    shift = -float(left.zero * left.scale[0] + sign * right.zero * right.scale[0])
    posts = (Post(Eltwise.LINEAR, 1.0, shift),) if shift else ()
    return msgspec.structs.replace(call, scalings=scalings, posts=posts)
