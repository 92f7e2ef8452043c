# SPDX-License-Identifier: Apache-2.0
"""Operators along axes: softmax, layer normalisation, reductions, Concat; and views."""

from __future__ import annotations

from intarsia.backends.dnnl.lowering import Ids, Problem, first_input, node_call, unsupported
from intarsia.backends.dnnl.program import PrimitiveCall
from intarsia.backends.dnnl.windows import whole_pooling
from intarsia.backends.dnnl.words import Pooling, ReductionAlgorithm, SoftmaxAlgorithm
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.pattern import Match

_REDUCTIONS = {
    "ReduceMax": ReductionAlgorithm.MAX,
    "ReduceMean": ReductionAlgorithm.MEAN,
    "ReduceMin": ReductionAlgorithm.MIN,
    "ReduceProd": ReductionAlgorithm.MUL,
    "ReduceSum": ReductionAlgorithm.SUM,
}
REDUCTIONS = tuple(_REDUCTIONS)
_OPSET_OF_SOFTMAX_ON_ONE_AXIS = 13
_INTEGERS = ("int8", "uint8", "int32")
_OPSET_OF_SLICE_WITH_INPUTS = 10
_IMAGE_RANKS = (3, 4, 5)


def lower_softmax(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a softmax along one axis; its logarithm is off by up to 3.5e-6, as `Log` is."""
    shape = operation.shape()
    is_new = operation.opset >= _OPSET_OF_SOFTMAX_ON_ONE_AXIS
    axis = operation.attribute("axis", -1 if is_new else 1) % len(shape)
    # ONNX before 13 flattens the axes from `axis` on into one; with all the others of length 1 that
    # is the same as one axis.
    if not is_new and any(extent != 1 for extent in shape[axis + 1 :]):
        return unsupported("softmax over several axes, as operator sets before 13 define it")
    return node_call("softmax", operation, ids, SoftmaxAlgorithm.ACCURATE, lists={"axis": (axis,)})


def lower_layer_normalization(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a normalisation of the last axis; further inputs: scale, shift."""
    rank = len(operation.shape())
    if operation.attribute("axis", -1) % rank != rank - 1 or rank not in (2, 3, 4, 5):
        return unsupported("layer normalisation over other than the last of 2 to 5 axes")
    if len(operation.outputs) > 1:
        return unsupported("mean and deviation as outputs")
    if any(value.shape != operation.shape()[-1:] for value in operation.inputs[1:]):
        return unsupported("a scale or shift that is broadcast")
    numbers = {"epsilon": operation.attribute("epsilon", 1e-5)}
    return node_call("layer_normalization", operation, ids, numbers=numbers)


def lower_reduction(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a reduction; the mean of an image is a pooling, which is faster."""
    if operation.value(1) is not None and not operation.is_constant(1):
        return unsupported("axes that are not constant")
    shape = operation.shape()
    axes = operation.axes()
    if not axes:
        if operation.attribute("noop_with_empty_axes", 0):
            return unsupported("a reduction over no axes")
        axes = tuple(range(len(shape)))
    is_image = len(shape) in _IMAGE_RANKS and set(axes) == set(range(2, len(shape)))
    if is_image and operation.op_type == "ReduceMean":
        return whole_pooling(operation, ids, Pooling.AVERAGE)
    result_shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    # oneDNN 3.2 calls a reduction of nothing `invalid_arguments`.
    if result_shape == shape:
        return unsupported("a reduction of axes of length 1")
    algorithm, source = _REDUCTIONS[operation.op_type], first_input(operation, ids)
    return node_call(
        "reduction", operation, ids, algorithm, inputs=source, lists={"shape": result_shape}
    )


def lower_concat(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a concatenation."""
    if len(operation.inputs) == 1:
        return unsupported("a concatenation of one tensor")
    axis = operation.attribute("axis", 1) % len(operation.shape())
    return node_call("concat", operation, ids, lists={"axis": (axis,)})


def lower_view(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return the same memory under another shape."""
    return node_call("view", operation, ids, inputs=first_input(operation, ids))


def refuse_part(operation: Operation, _ids: Ids) -> PrimitiveCall | Problem:
    """Refuse what is only taken as a part of several operators (`chains.py`)."""
    whole = "a GELU" if operation.op_type == "Erf" else "a guarded softmax"
    return unsupported(f"{operation.op_type} other than in {whole}")


def lower_slice(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return the first part of a Split or Slice: a part of a tensor, read where it lies."""
    parts = slices_of(operation, ids)
    return parts[0] if isinstance(parts, list) else parts


def slices_of(operation: Operation, ids: Ids) -> list[PrimitiveCall] | Problem:
    """Return each part of a Split, or that of a Slice, as a call."""
    if operation.op_type == "Slice":
        begin = _slice_begin(operation)
        if begin is None:
            return unsupported("a slice with steps, or with bounds that are not constant")
        return [_part(operation, ids, begin, 0)]
    rank = len(operation.shape())
    axis = operation.attribute("axis", 0) % rank
    if any(output < 0 for output in operation.node.outputs):
        return unsupported("a split with an unused part")
    parts, start = [], 0
    for number, value in enumerate(operation.outputs):
        begin = tuple(start if dim == axis else 0 for dim in range(rank))
        parts.append(_part(operation, ids, begin, number))
        assert value.shape is not None
        start += value.shape[axis]
    return parts


def _part(operation: Operation, ids: Ids, begin: tuple[int, ...], number: int) -> PrimitiveCall:
    return PrimitiveCall(
        "slice",
        first_input(operation, ids),
        ids(operation.node.outputs[number]),
        lists={"begin": begin},
        nodes=(operation.node.name,),
    )


def _slice_begin(operation: Operation) -> tuple[int, ...] | None:
    """Return where a slice begins, or None if it is not known or has steps."""
    shape = operation.shape()
    if operation.opset < _OPSET_OF_SLICE_WITH_INPUTS:
        starts, axes = operation.attribute("starts"), operation.attribute("axes")
        steps = None
    else:
        present = [i for i in range(1, 5) if operation.value(i) is not None]
        if not all(operation.is_constant(position) for position in present):
            return None
        starts, axes, steps = (operation.numbers(position) for position in (1, 3, 4))
    axes = tuple(range(len(starts))) if axes is None else axes
    if steps is not None and any(step != 1 for step in steps):
        return None
    begin = [0] * len(shape)
    for start, axis in zip(starts, axes, strict=True):
        extent = shape[axis]
        begin[axis] = min(max(start + extent if start < 0 else start, 0), extent)
    return tuple(begin)


def lower_cast(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a change of the element type to floats; oneDNN rounds and saturates, Cast cuts off."""
    source, result = operation.inputs[0].dtype, operation.output.dtype
    if result in _INTEGERS and source != result:
        return unsupported(f"a cast from {source} to {result}")
    return node_call("reorder", operation, ids)


def lower_transpose(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a copy with the axes in another order."""
    order = operation.attribute("perm") or tuple(reversed(range(len(operation.shape()))))
    return node_call("transpose", operation, ids, lists={"order": order})


def shuffle_groups(match: Match) -> int | None:
    """Return the group size of a channel shuffle, or None if three operators are not one.

    The shuffle is Reshape to groups, Transpose of groups and channels, Reshape back.
    """
    back, transpose, head = (Operation(match.graph, node) for node in match.nodes)
    shape, grouped = head.shape(), head.output_shape
    if len(shape) not in _IMAGE_RANKS or back.output_shape != shape:
        return None
    groups = grouped[1]
    rest = tuple(range(3, len(grouped)))
    is_split = grouped == (shape[0], groups, shape[1] // max(groups, 1), *shape[2:])
    if not is_split or transpose.attribute("perm") != (0, 2, 1, *rest):
        return None
    return shape[1] // groups
