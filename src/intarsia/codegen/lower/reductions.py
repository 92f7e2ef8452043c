# SPDX-License-Identifier: Apache-2.0
"""Reduce*, ArgMax and ArgMin."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.views import CHANNELS, without
from intarsia.codegen.unit import VectorUnit

_WIDE = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))
_NARROW = frozenset(("int8", "uint8"))
_FLOATS = frozenset(("float32", "float64"))
REDUCTIONS = {
    "ReduceSum": _WIDE,
    "ReduceMean": _FLOATS,
    "ReduceMax": _WIDE | _NARROW,
    "ReduceMin": _WIDE | _NARROW,
    "ReduceProd": _WIDE,
    "ReduceL1": _FLOATS,
    "ReduceL2": _FLOATS,
    "ReduceLogSum": _FLOATS,
    "ReduceLogSumExp": _FLOATS,
    "ReduceSumSquare": _WIDE,
    "ArgMax": _WIDE,
    "ArgMin": _WIDE,
}
"""Each operator with the dtypes that it takes."""


def reduced_axes(operation: Operation) -> tuple[int, ...]:
    """Return the dimensions that go, ascending."""
    rank = len(operation.shape())
    if operation.op_type.startswith("Arg"):
        return (operation.attribute("axis", 0) % rank,)
    axes = operation.axes()
    if axes:
        return tuple(sorted(set(axes)))
    return () if operation.attribute("noop_with_empty_axes", 0) else tuple(range(rank))


def refuse_reduction(operation: Operation) -> str | None:
    """Say why a reduction is not taken."""
    data = operation.inputs[0]
    if data.dtype not in REDUCTIONS[operation.op_type]:
        return f"{operation.op_type} of {data.dtype} has no native code"
    if operation.value(1) is not None and not operation.is_constant(1):
        return "its axes are not constant"
    if operation.op_type.startswith("Arg"):
        return "its input is empty" if 0 in operation.shape() else None
    return None


def wish_reduction(operation: Operation, unit: VectorUnit) -> Wish:
    """Keep blocks of channels where only spatial dimensions go, and are kept as ones."""
    del unit
    is_kept = operation.attribute("keepdims", 1)
    if is_kept and min(reduced_axes(operation), default=0) > CHANNELS:
        return Wish("follow", (operation.node.inputs[0],))
    return Wish()


def lower_reduction(assembler: Assembler, group: Group) -> None:
    """Append one reduction."""
    operation = group.anchor
    axes = reduced_axes(operation)
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block)
    dtype = "int64" if operation.op_type.startswith("Arg") else operation.inputs[0].dtype
    fused, operands = fuse(assembler, group, dtype)
    y = assembler.target(group.result)
    gone = axes if operation.attribute("keepdims", 1) else ()
    if not axes:  # each entry is one by itself
        axes = (len(x.shape),)
        x = replace(x, shape=(*x.shape, 1), strides=(*x.strides, 0))
    spec = Reduction(
        x.domain,
        axes,
        operation.op_type.removeprefix("Reduce"),
        x.layout,
        without(y, gone),
        epilogue=replace(fused, operands=tuple(without(view, gone) for view in operands)),
        select_last=bool(operation.attribute("select_last_index", 0)),
        unit=assembler.unit,
    )
    assembler.call(spec, (x, y, *operands), group.names)
