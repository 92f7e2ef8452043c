# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators as steps of a body, chains of them, and kernels of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from intarsia.codegen.body import Apply, Body, Fused
from intarsia.codegen.halves import HALVES, SINGLE
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.lookup import CodeLookup
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.conversions import FITS, convert_step
from intarsia.codegen.lower.fixed_point import FIXED_ADD, FIXED_MUL, fixed_binary
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.halves import model_dtype
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import (
    dequantize,
    dequantized,
    quantize,
    refuse_quantization,
)
from intarsia.codegen.lower.views import CHANNELS, View
from intarsia.codegen.scalar_ops import SCALAR_OPS, supported_dtypes
from intarsia.codegen.scalar_ops.narrow import NARROW, storage_of
from intarsia.codegen.scalar_ops.operator import FLOATS
from intarsia.codegen.unit import CpuModel
from intarsia.extents import is_free, typical
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Graph
from intarsia.graph.ops import names_of

Array = np.ndarray[Any, np.dtype[Any]]
Source: TypeAlias = "int | tuple[str, Array | View]"
"""An operand: the id of a value, or, with a name, an array that is made when compiling or memory
that some kernel writes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """An operator as elementwise steps.

    Attributes:
        sources: Its operands.
        steps: Arguments count the operands first, then the steps; the last one is the result.
    """

    sources: tuple[Source, ...]
    steps: tuple[Apply, ...]


def is_elementwise(operation: Operation) -> bool:
    """Tell whether an operator is a function of the elements at one place."""
    if operation.op_type in ("BatchNormalization", "Dropout"):
        return _is_plain(operation)
    if operation.op_type == "MatMul":
        return is_outer(operation)
    return operation.op_type in SCALAR_OPS or operation.op_type in _SPECIAL


def is_outer(operation: Operation) -> bool:
    """Tell whether a product has one term, so that each element is one product.

    Exporters write the angles of positions so: rates in a column, positions in a row.
    """
    a, b = (tensor.shape or () for tensor in operation.inputs[:2])
    is_one = len(a) > 1 < len(b) and a[-1] == 1 == b[-2]
    return is_one and operation.output.dtype in ("float32", "float64")


def _is_plain(operation: Operation) -> bool:
    """Tell whether a normalisation or dropout has nothing of training, and constant statistics."""
    if len(operation.node.outputs) > 1:
        return False
    if operation.op_type == "Dropout":
        return operation.value(2) is None
    is_training = operation.attribute("training_mode", 0) or not operation.attribute("spatial", 1)
    is_known = all(operation.is_constant(position) for position in range(1, 5))
    shape = operation.inputs[0].shape  # refused elsewhere if it is not known
    return is_known and not is_training and (shape is None or len(shape) > CHANNELS)


def recipe(operation: Operation, unit: CpuModel | None = None) -> Recipe:
    """Return the steps of an elementwise operator.

    Args:
        operation: It.
        unit: What its kernel is shaped for, which may prefer other steps to the same bits.
    """
    if operation.op_type == "QuantizeLinear" and unit is not None:
        return Recipe(*quantize(operation, has_reciprocals=unit.divides_slowly))
    special = _SPECIAL.get(operation.op_type)
    if special is not None:
        return special(operation)
    return _plain(operation)


def _plain(operation: Operation, op_type: str | None = None) -> Recipe:
    attributes = {
        name: value
        for name, value in operation.attributes.items()
        if isinstance(value, int | float | str) and name not in _MEANINGLESS
    }
    sources: list[Source] = []
    arguments = []
    for value_id in operation.node.inputs:
        arguments.append(-1 if value_id < 0 else len(sources))
        if value_id >= 0:
            sources.append(value_id)
    name = op_type or operation.op_type
    step = Apply(name, tuple(arguments), tuple(sorted(attributes.items())), operation.output.dtype)
    return Recipe(tuple(sources), (replace(step, dtype=storage_of(step.dtype)),))


_MEANINGLESS = frozenset(("to", "saturate", "round_mode", "axis", "broadcast"))


def _batch_normalization(operation: Operation) -> Recipe:
    """Return `x * scale + shift`, with the statistics folded in."""
    scale, bias, mean, variance = (operation.array(i).astype(np.float64) for i in range(1, 5))
    # In float64, so that folding adds no rounding but the last.
    factor = scale / np.sqrt(variance + operation.attribute("epsilon", 1e-5))
    rank = len(operation.shape())
    shape = (len(factor), *(1,) * (rank - 2))
    name, dtype = operation.node.name, operation.output.dtype
    arrays = (("scale", factor), ("shift", bias - mean * factor))
    constants = [(f"{name}/{role}", a.reshape(shape).astype(dtype)) for role, a in arrays]
    steps = (Apply("Mul", (0, 1), (), dtype), Apply("Add", (3, 2), (), dtype))
    return Recipe((operation.node.inputs[0], *constants), steps)


def _first_input(operation: Operation) -> Recipe:
    dtype = storage_of(operation.output.dtype)
    return Recipe((operation.node.inputs[0],), (Apply("Identity", (0,), (), dtype),))


def _cast(operation: Operation) -> Recipe:
    source, target = operation.inputs[0].dtype, model_dtype(operation.output)
    names = ("round_mode", "saturate") if target in NARROW else ()
    given = ((name, operation.attribute(name)) for name in names)
    attributes = tuple((name, value) for name, value in given if value is not None)
    steps = [convert_step(0, source, target, attributes)]
    if target in HALVES:  # rounded, whatever keeps it
        steps.append(convert_step(1, target, SINGLE))
    return Recipe((operation.node.inputs[0],), tuple(steps))


def _bit_cast(operation: Operation) -> Recipe:
    """Return the bits as another dtype; those of halves are made, and taken, once more."""
    source, target = model_dtype(operation.inputs[0]), model_dtype(operation.output)
    steps = [convert_step(0, SINGLE, source)] if source in HALVES else []
    steps.append(Apply("BitCast", (len(steps),), (), storage_of(target)))
    if target in HALVES:
        steps.append(convert_step(len(steps), target, SINGLE))
    return Recipe((operation.node.inputs[0],), tuple(steps))


_TANH = (("approximate", "tanh"),)
SEVERAL_STEPS: dict[tuple[str, int], tuple[Apply, ...]] = {
    ("com.microsoft.BiasAdd", 3): (Apply("Add", (0, 1)), Apply("Add", (3, 2))),
    ("com.microsoft.BiasGelu", 2): (Apply("Add", (0, 1)), Apply("Gelu", (2,))),
    ("com.microsoft.FastGelu", 1): (Apply("Gelu", (0,), _TANH),),
    ("com.microsoft.FastGelu", 2): (Apply("Add", (0, 1)), Apply("Gelu", (2,), _TANH)),
    ("com.microsoft.Gelu", 1): (Apply("Gelu", (0,)),),
    ("com.microsoft.QuickGelu", 1): (Apply("Swish", (0,)),),
}
"""What operators of ONNX Runtime's domain do, by their number of operands."""
_DEFAULTS = {"com.microsoft.QuickGelu": {"alpha": float(np.float32(1.702))}}
"""Attributes of theirs that their last step has."""


def _several_steps(operation: Operation) -> Recipe:
    """Return the steps of an operator that stands for several."""
    sources = tuple(value.id for value in operation.inputs)
    dtype = operation.output.dtype
    *steps, last = SEVERAL_STEPS[operation.op_type, len(sources)]
    names = _DEFAULTS.get(operation.op_type, {})
    attributes = tuple((name, operation.attribute(name, names[name])) for name in sorted(names))
    steps = [*steps, replace(last, attributes=last.attributes + attributes)]
    return Recipe(sources, tuple(replace(step, dtype=dtype) for step in steps))


def _power(operation: Operation) -> Recipe:
    """Return a square or a cube as products, which are as exact; other powers as they are."""
    base, result = operation.inputs[0], operation.output
    steps = (Apply("Mul", (0, 0), (), result.dtype), Apply("Mul", (1, 0), (), result.dtype))
    is_wide = result.dtype in ("float32", "float64") and base.shape == result.shape
    if is_wide and operation.is_constant(1):
        exponents = set(operation.array(1).reshape(-1).tolist())
        if exponents in ({2}, {3}):
            return Recipe((base.id,), steps[: int(exponents.pop()) - 1])
    return _plain(operation)


_SPECIAL: dict[str, Callable[[Operation], Recipe]] = {
    **{name: _several_steps for name, _ in SEVERAL_STEPS},
    "BatchNormalization": _batch_normalization,
    "BitCast": _bit_cast,
    **dict.fromkeys(names_of(lambda operator: operator.casts), _cast),
    "Dropout": _first_input,
    "DequantizeLinear": lambda operation: Recipe(*dequantize(operation)),
    FIXED_ADD: lambda operation: Recipe(*fixed_binary(operation)),
    FIXED_MUL: lambda operation: Recipe(*fixed_binary(operation)),
    "Identity": _first_input,
    "MatMul": lambda operation: _plain(operation, "Mul"),
    "QuantizeLinear": lambda operation: Recipe(*quantize(operation)),
    "Pow": _power,
}


@dataclass(frozen=True, slots=True)
class Chain:
    """Elementwise operators as one body.

    Attributes:
        body: Input 0 is the anchor's result, if there is an anchor; the rest are the operands.
        sources: The operands, each once.
    """

    body: Body
    sources: tuple[Source, ...]


ANCHOR = -1
"""Stands for the value that a group's anchor makes."""


def make_chain(
    graph: Graph, items: Sequence[tuple[int, Recipe]], anchor: str | None = None
) -> Chain:
    """Join recipes into one body.

    Args:
        graph: Where the values are from.
        items: The value that each recipe makes, and the recipe; it reads operands, values that
            earlier ones make, or `ANCHOR`.
        anchor: The dtype of what an anchor makes, which is input 0; None without an anchor.
    """
    dtypes = [] if anchor is None else [anchor]
    names: dict[int | str, int] = {} if anchor is None else {ANCHOR: 0}
    results = {value for value, _ in items}
    sources: list[Source] = []
    for _, item in items:
        for source in item.sources:
            key = source if isinstance(source, int) else source[0]
            if key in names or key in results:
                continue
            names[key] = len(dtypes)
            sources.append(source)
            if isinstance(source, int):
                dtypes.append(storage_of(graph.values[source].dtype))
            else:
                dtypes.append(np.dtype(source[1].dtype).name)
    steps: list[Apply] = []
    for value, item in items:
        keys = [source if isinstance(source, int) else source[0] for source in item.sources]
        numbers = [names[key] for key in keys]
        base = len(dtypes) + len(steps)
        for step in item.steps:
            arguments = tuple(
                i if i < 0 else numbers[i] if i < len(keys) else base + i - len(keys)
                for i in step.arguments
            )
            steps.append(replace(step, arguments=arguments))
        names[value] = len(dtypes) + len(steps) - 1 if item.steps else numbers[0]
    result = names[items[-1][0]] if items else 0
    body = Body(tuple(dtypes), tuple(steps), (result,))
    made: list[Source | None] = [] if anchor is None else [None]
    return Chain(_without_round_trips(body, [*made, *sources]), tuple(sources))


def _without_round_trips(body: Body, sources: Sequence[Source | None]) -> Body:
    """Return a body in which codes that are made and read stay the integers that they were.

    Args:
        body: What is done.
        sources: Of its inputs; None for what an anchor makes.
    """
    count, steps = len(sources), list(body.steps)
    same = list(range(count + len(steps)))

    def step_at(number: int) -> Apply | None:
        return steps[number - count] if number >= count else None

    def is_same(one: int, other: int) -> bool:
        items = [sources[i] if 0 <= i < count else None for i in (one, other)]
        known = [source[1] for source in items if isinstance(source, tuple)]
        singles = [item.item() for item in known if not isinstance(item, View) and item.size == 1]
        return one == other or (len(singles) == len(items) and singles[0] == singles[1])

    for number in range(len(steps)):
        arguments = tuple(i if i < 0 else same[i] for i in steps[number].arguments)
        steps[number] = step = replace(steps[number], arguments=arguments)
        before = step_at(arguments[0]) if arguments else None
        if before is None or step.dtype != _WIDE:
            continue
        if step.op_type == "Cast" and not step.attributes and before.attributes == FITS:
            same[count + number] = before.arguments[0]
        is_undone = (step.op_type, before.op_type, before.dtype) == ("Sub", "Add", _WIDE)
        if is_undone and is_same(arguments[1], before.arguments[1]):
            same[count + number] = before.arguments[0]
    return replace(
        body, steps=tuple(steps), outputs=tuple(same[i] for i in body.outputs)
    ).without_unread()


_WIDE = "int32"
"""What codes are in between."""


def operand(assembler: Assembler, source: Source, shape: Sequence[int], block: int) -> View:
    """Return an operand over the domain of a tensor, broadcast as ONNX does."""
    if isinstance(source, int):
        value = assembler.graph.values[source]
        if value.constant is not None:
            return _constant(assembler, value.name, constant_array(value), shape, block)
        own_shape = value.shape or ()
        is_full = len(own_shape) == len(shape) and len(shape) > CHANNELS
        has_channels = is_full and own_shape[CHANNELS] == shape[CHANNELS] != 1
        if block and (has_channels or (is_full and shape[CHANNELS] == 1)):
            return _broadcast(assembler.read(source, block), shape)
        view = assembler.read(source)
    elif isinstance(source[1], View):
        assert not block, f"{source[0]} lies in no blocks"
        return source[1].expanded(shape)
    else:
        return _constant(assembler, source[0], source[1], shape, block)
    if block and len(own_shape) >= len(shape) - CHANNELS and shape[CHANNELS] % block:
        full = view.reshaped_to_rank(len(shape))
        if full.shape[CHANNELS] == shape[CHANNELS]:
            return _broadcast(assembler.blocked(full, block), shape)
    view = view.expanded(shape)
    return _as_blocked(view, block) if block else view


def _constant(
    assembler: Assembler, name: str, array: Array, shape: Sequence[int], block: int
) -> View:
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if not block or array.shape[CHANNELS] == 1:
        key = f"{name}/{'x'.join(map(str, array.shape))}"
        view = assembler.constant(name if not block else key, array)
        view = replace(view, shape=array.shape, strides=row_major(array.shape)).expanded(shape)
        return _as_blocked(view, block) if block else view

    def pack() -> Array:
        return block_channels(array, block)

    packed = assembler.packed(f"{name}/by{block}", pack)
    inner = replace(packed, shape=array.shape, block=block)
    return _broadcast(inner, shape)


def block_channels(array: Array, block: int) -> Array:
    """Return `[N, C, ...]` as `[N, C/L, ..., L]`, filled up with zeros."""
    missing = -array.shape[CHANNELS] % block
    filled = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
    split = filled.reshape(array.shape[0], -1, block, *array.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def _broadcast(view: View, shape: Sequence[int]) -> View:
    """Return a blocked tensor over the domain of another shape."""
    outer = [0 if extent == 1 else stride for extent, stride in _outer(view)]
    strides = (outer[0], view.strides[1], *outer[1:], view.strides[-1])
    return replace(view, shape=tuple(shape), strides=strides)


def _outer(view: View) -> list[tuple[int, int]]:
    extents = (view.shape[0], *view.shape[2:])
    strides = (view.strides[0], *view.strides[2:-1])
    return list(zip(extents, strides, strict=True))


def _as_blocked(view: View, block: int) -> View:
    """Return a plain tensor over a blocked domain; its channels must be whole blocks, or one."""
    step = view.strides[CHANNELS]
    assert step == 0 or view.shape[CHANNELS] % block == 0, "a block would be cut"
    strides = (view.strides[0], step * block, *view.strides[2:], step)
    return replace(view, strides=strides, block=block)


def fuse(
    assembler: Assembler, group: KernelGroup, dtype: str = "float32", first: Recipe | None = None
) -> tuple[Fused, list[View]]:
    """Return the epilogue of a group's anchor over its result's domain, and its operands.

    Args:
        assembler: Of the program.
        group: What is fused.
        dtype: Of what the anchor's kernel makes.
        first: What else belongs to the anchor; its first source is `ANCHOR`.
    """
    result = group.anchor.node.outputs[0]
    items = [(result, first or Recipe((ANCHOR,), ()))]
    items += [(member.node.outputs[0], recipe(member, assembler.unit)) for member in group.chain]
    chain = make_chain(assembler.graph, items, dtype)
    block = assembler.plan.blocks.get(group.result, 0)
    shape = group.anchor.output_shape
    views = [operand(assembler, source, shape, block) for source in chain.sources]
    return over(Fused(chain.body), views), views


def over(fused: Fused, operands: Sequence[View]) -> Fused:
    """Return an epilogue whose operands lie otherwise."""
    return fused.over(view.layout for view in operands)


def refuse_pointwise(operation: Operation) -> str | None:
    """Say why an elementwise operator is not taken."""
    if operation.op_type in ("DequantizeLinear", "QuantizeLinear"):
        return refuse_quantization(operation)
    problem = _refuse_dtypes(operation)
    if problem:
        return problem
    if operation.opset < _NUMPY_BROADCAST and _is_old(operation):
        return f"{operation.op_type} before operator set {_NUMPY_BROADCAST}"
    if operation.op_type == "BitCast" and operation.output.dtype == "bool":
        return "not every byte is a bool"
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
    """Say why the dtypes of the operands are not taken."""
    is_several = (operation.op_type, len(operation.inputs)) in SEVERAL_STEPS
    taken = FLOATS if is_several else supported_dtypes(operation.op_type)
    first = 1 if operation.op_type == "Where" else 0  # after its condition
    if not taken and operation.inputs[0].dtype in NARROW:
        return f"{operation.op_type} of {operation.inputs[0].dtype} has no native code"
    for value in operation.inputs[first:] if taken else ():
        if value.dtype not in taken:
            return f"{operation.op_type} of {value.dtype} has no native code"
    return None


def lower_pointwise(assembler: Assembler, group: KernelGroup) -> None:
    """Append one kernel for a chain of elementwise operators; of codes, a table and its reading."""
    if _is_known(assembler, group):
        return
    shape = group.anchor.output_shape
    target = assembler.target(group.result)
    items = [(member.node.outputs[0], recipe(member, assembler.unit)) for member in group.members]
    chain = make_chain(assembler.graph, items)
    views = [operand(assembler, source, shape, target.block) for source in chain.sources]
    codes = _codes_of(chain.body, views, target)
    if codes is None:
        body, views = _in_parts(assembler, group, chain.body, views, target)
        _append_elementwise(assembler, group, body, views, target)
        return
    x = views[codes]
    limits = np.iinfo(x.dtype)
    every = np.arange(limits.min, limits.max + 1).astype(x.dtype)
    views[codes] = assembler.constant(f"all codes of {x.dtype}", every)
    table = assembler.scratch(target.dtype, every.shape)
    numbers = [
        view if number == codes else replace(view, shape=every.shape, strides=(0,), block=0)
        for number, view in enumerate(views)
    ]
    _append_elementwise(assembler, group, chain.body, numbers, table, "table")
    spec = CodeLookup(target.domain, x.layout, target.layout)
    assembler.call(spec, (x, table, target), group.names, "by table")


_PARTS = {"Max": "Max", "Mean": "Sum", "Min": "Min", "Sum": "Sum"}
"""Operators of any number of operands, and what makes one of the first of them."""


def _in_parts(
    assembler: Assembler, group: KernelGroup, body: Body, views: list[View], target: View
) -> tuple[Body, list[View]]:
    """Append kernels for the first operands of an operator that has more than a kernel is given.

    Operands are taken in their order, so that the result is the same to the bit.

    Returns:
        What is left to do, and its operands: what was made of the first, and the last.
    """
    most = assembler.most_buffers
    step = body.steps[0] if len(body.steps) == 1 else None
    if most is None or len(views) < most or step is None or step.op_type not in _PARTS:
        return body, views
    room = max(most - 1, 2)
    left = [views[number] for number in step.arguments]
    while len(left) > room:
        part = assembler.scratch(step.dtype, group.anchor.output_shape, target.block)
        first = _of_many(replace(step, op_type=_PARTS[step.op_type]), room)
        _append_elementwise(assembler, group, first, left[:room], part, f"of {room}")
        left = [part, *left[room:]]
    if step.op_type == "Mean":
        step = replace(step, attributes=(("count", len(step.arguments)),))
    return _of_many(step, len(left)), left


def _of_many(step: Apply, count: int) -> Body:
    """Return one step over so many operands of its dtype."""
    return Body((step.dtype,) * count, (replace(step, arguments=tuple(range(count))),), (count,))


def _is_known(assembler: Assembler, group: KernelGroup) -> bool:
    """Tell whether a group does nothing but dequantise a few constants, and put these there."""
    value, plan = group.anchor.output, assembler.plan
    is_placed = value.id in assembler.region.outputs or value.id in plan.parents
    is_plain = value.id not in plan.blocks and value.id not in plan.pads
    shape = value.shape or ()
    if group.chain or is_placed or not is_plain or is_free(shape):
        return False
    numbers = dequantized(group.anchor) if prod(shape) <= _FEW_NUMBERS else None
    if numbers is None:
        return False
    view = assembler.packed(f"{value.name}/dequantised", lambda: numbers)
    assembler.alias(value.id, replace(view, shape=shape))
    return True


_FEW_NUMBERS = 1 << 16
"""Constants that may take four times as many bytes in a package."""
_LEAST_ENTRIES, _LEAST_STEPS = 4096, 20
"""From which on a table is shorter work: what it has to be read for, and steps that it replaces."""


def is_worth_a_table(operations: Sequence[Operation]) -> bool:
    """Tell whether elementwise operators of codes of 8 bits are more work than to read a table."""
    shape = operations[-1].output_shape
    is_long = is_free(shape) or prod(shape) >= _LEAST_ENTRIES
    return is_long and any(operation.op_type in _HEAVY for operation in operations)


def _codes_of(body: Body, views: Sequence[View], target: View) -> int | None:
    """Return the operand of which a result is a function by itself, if a table pays: one of codes.

    All others are single numbers.
    """
    extents = target.domain
    varying = [
        number
        for number, view in enumerate(views)
        if any(size != 1 and step != 0 for size, step in zip(extents, view.strides, strict=True))
    ]
    is_long = is_free(extents) or prod(extents) >= _LEAST_ENTRIES
    if len(varying) != 1 or not is_long or _weight(body) < _LEAST_STEPS:
        return None
    x = views[varying[0]]
    are_bytes = {x.dtype, target.dtype} <= {"int8", "uint8"}
    return varying[0] if are_bytes and min(map(typical, x.strides)) >= 0 else None


def _weight(body: Body) -> int:
    """Return about how many instructions the steps of a body are, for a vector."""
    return sum(_HEAVY.get(step.op_type, 1) for step in body.steps)


_HEAVY = dict.fromkeys(("Erf", "Exp", "Gelu", "Sigmoid", "Swish", "Tanh", "Mish", "Softplus"), 20)


def _append_elementwise(
    assembler: Assembler,
    group: KernelGroup,
    body: Body,
    views: Sequence[View],
    target: View,
    note: str = "",
) -> None:
    spec = Elementwise(
        target.domain,
        tuple(view.layout for view in views),
        (target.layout,),
        body,
        assembler.unit,
    )
    assembler.call(spec, (*views, target), group.names, note)
