# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators that no other kernel takes into its epilogue."""

from __future__ import annotations

from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import make_chain, operand, recipe
from intarsia.codegen.scalar_ops import supported_dtypes


def refuse_pointwise(operation: Operation) -> str | None:
    """Say why an elementwise operator is not taken."""
    problem = _refuse_dtypes(operation)
    if problem:
        return problem
    if operation.opset < _NUMPY_BROADCAST and _is_old(operation):
        return f"{operation.op_type} before operator set {_NUMPY_BROADCAST}"
    if operation.op_type == "BatchNormalization":
        return _refuse_batch_normalization(operation)
    if operation.op_type == "Dropout":
        if len(operation.outputs) > 1:
            return "its mask is asked for"
        if operation.value(2) is not None:
            return "it may be in training mode"
    return None


def _refuse_batch_normalization(operation: Operation) -> str | None:
    if len(operation.outputs) > 1 or operation.attribute("training_mode"):
        return "it is in training mode"
    if not operation.attribute("spatial", 1):
        return "its statistics are for each entry"
    if not all(operation.is_constant(position) for position in range(1, 5)):
        return "its statistics are not constant"
    if len(operation.shape()) < 2:  # noqa: PLR2004 - batch and channels
        return "it has no channels"
    return None


_NUMPY_BROADCAST = 7
"""The operator set since which shapes are broadcast as numpy does, and models only infer."""


def _is_old(operation: Operation) -> bool:
    """Tell whether an operator of an old operator set does something else than it does now."""
    if operation.op_type in ("BatchNormalization", "Dropout"):
        return not operation.attribute("is_test", 0)
    shapes = {value.shape for value in operation.inputs}
    return len(operation.inputs) > 1 and len(shapes) > 1


def _refuse_dtypes(operation: Operation) -> str | None:
    """Say why the dtypes of the operands are not taken; float16 is computed in float32."""
    taken = supported_dtypes(operation.op_type)
    first = 1 if operation.op_type == "Where" else 0  # after its condition
    for value in operation.inputs[first:] if taken else ():
        if not {value.dtype, _WIDER.get(value.dtype, value.dtype)} & taken:
            return f"{operation.op_type} of {value.dtype} has no native code"
    return None


_WIDER = {"float16": "float32"}


def lower_pointwise(assembler: Assembler, group: Group) -> None:
    """Append one kernel for a chain of elementwise operators."""
    shape = group.anchor.output_shape
    target = assembler.target(group.result)
    items = [(member.node.outputs[0], recipe(member)) for member in group.members]
    chain = make_chain(assembler.graph, items)
    views = [operand(assembler, source, shape, target.block) for source in chain.sources]
    spec = Elementwise(
        target.domain,
        tuple(view.layout for view in views),
        (target.layout,),
        chain.body,
        assembler.unit,
    )
    assembler.call(spec, (*views, target), group.names)
