# SPDX-License-Identifier: Apache-2.0
"""Products of quantised matrices in integers: MatMulInteger, QLinearMatMul, and what means them.

What is multiplied are the codes without their zero points, and the sums are ONNX's to the bit. The
zero points of constant weights are gone when these are packed. Where a CPU multiplies bytes, the
left operand is read as it is, and its zero point, times the sums of the weights' columns, is taken
from the sums. So it is where a CPU multiplies bytes but adds their products in 16 bits, and nearly
all weights are small enough for that (`kernels/gemm/small_pairs.py`). Where not, a copy of it as
int16 is made without its zero point, and pairs of that are multiplied: so nothing is to be split in
the loop.

A right operand that is computed is packed by a kernel (`kernels/code_panels.py`). Its zero point,
times the sums of the left operand's rows, is then taken from the sums as well, or it goes when that
kernel makes int16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Body
from intarsia.codegen.kernels import gemm
from intarsia.codegen.kernels.code_panels import TOP, CodePanels
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.gemm import Gemm, Panels
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.computed_codes import (
    as_zero_point,
    of_columns,
    of_rows,
    pack_codes,
    right_codes,
)
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.fixed_point import Steps, bias_of, factors_of
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, Source, fuse, operand, over
from intarsia.codegen.lower.tiles import append_tiled_batch, tile_panels, tiled_product
from intarsia.codegen.lower.views import View
from intarsia.codegen.unit import CpuModel
from intarsia.extents import is_free

BYTES = frozenset(("int8", "uint8"))
"""Codes that are multiplied."""

DEQUANTIZED_PRODUCT = "DequantizedProduct"
"""The operator that a product of two dequantised operands means: inputs as those of both
DequantizeLinear, one after the other, and what a Gemm adds."""

_SUM = "int32"


@dataclass(frozen=True, slots=True)
class _Places:
    """At which inputs an operator has what is multiplied.

    Attributes:
        a: The left operand.
        a_zero: Its zero point.
        b: The right operand.
        b_zero: Its zero point; a constant if that is one.
    """

    a: int
    a_zero: int
    b: int
    b_zero: int


_INTEGER = _Places(0, 2, 1, 3)
_QUANTIZED = _Places(0, 2, 3, 5)


def refuse_matmul_integer(operation: Operation) -> str | None:
    """Say why a MatMulInteger is not taken."""
    return _refuse(operation, _INTEGER)


def refuse_qlinear_matmul(operation: Operation) -> str | None:
    """Say why a QLinearMatMul is not taken."""
    problem = _refuse(operation, _QUANTIZED)
    if problem:
        return problem
    for position, name in ((1, "a_scale"), (6, "y_scale"), (7, "y_zero_point")):
        if not _is_one(operation, position):
            return f"its {name} is not one number"
    dtypes = {operation.inputs[position].dtype for position in (1, 4, 6)}
    if dtypes != {"float32"}:
        return f"its scales are {', '.join(sorted(dtypes))}"
    return None if _is_one(operation, 4) else operation.why_computed({4: "b_scale is"})


def _refuse(operation: Operation, at: _Places) -> str | None:
    b = operation.value(at.b)
    assert b is not None
    if b.dtype not in BYTES:
        return f"its right operand is {b.dtype}"
    if not _is_one(operation, at.a_zero):
        return "its left operand has a zero point for each row"
    if operation.is_constant(at.b):
        return operation.why_computed({at.b_zero: "right zero point is"})
    if is_free(b.shape or ()):
        return "its right operand is not constant, and of free size"
    if not _is_one(operation, at.b_zero):
        return "its right operand is not constant, and has a zero point for each column"
    return None


def _is_one(operation: Operation, position: int) -> bool:
    """Tell whether an input is one number, if it is there."""
    value = operation.value(position)
    return value is None or value.shape in ((), (1,))


def lower_matmul_integer(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product of codes without their zero points, as int32."""
    _append(assembler, group, _INTEGER, Recipe((ANCHOR,), ()))


def lower_qlinear_matmul(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product of codes, and bring its sums to the codes of the result.

    In float64, in which ONNX's reference evaluator does it: a float32 does not hold every sum.
    """
    operation = group.anchor
    dtype, name, wide = operation.output.dtype, operation.node.name, "float64"
    sources: list[Source] = [ANCHOR]
    steps: list[Apply] = []

    def append(*parts: Apply) -> int:
        steps.extend(parts)
        return len(steps) - 1

    scales = [operation.value(position) for position in (1, 6)]
    b_scale = operation.array(4) if operation.is_constant(4) else None
    is_known = all(scale is not None and scale.constant is not None for scale in scales)
    if is_known and b_scale is not None:
        a_scale, y_scale = (operation.array(position).reshape(()) for position in (1, 6))
        factor = (a_scale * b_scale / y_scale).astype(np.float32).astype(wide)
        sources.append((f"{name}/factor", _along_columns(factor)))
    else:
        sources += [scale.id for scale in scales if scale is not None]
        known = None if b_scale is None else (f"{name}/b_scale", _along_columns(b_scale))
        sources.append(known or operation.node.inputs[4])
    zero = operation.value(7)
    if zero is not None:
        sources.append(zero.id)
    count = len(sources)
    place = 1
    if count - (zero is not None) > 2:  # noqa: PLR2004 - the sum and a factor
        append(Apply("Mul", (1, 3), (), "float32"))
        append(Apply("Div", (count, 2), (), "float32"))
        place = count + append(convert_step(count + 1, "float32", wide))
    total = count + append(convert_step(0, _SUM, wide))
    total = count + append(Apply("Mul", (total, place), (), wide))
    if zero is not None:
        offset = count + append(convert_step(count - 1, dtype, wide))
        total = count + append(Apply("Add", (total, offset), (), wide))
    limits = np.iinfo(dtype)
    total = count + append(Apply("Round", (total,), (), wide))
    bounds = (("max", float(limits.max)), ("min", float(limits.min)))
    total = count + append(Apply("Clip", (total,), bounds, wide))
    append(convert_step(total, wide, dtype))
    _append(assembler, group, _QUANTIZED, Recipe(tuple(sources), tuple(steps)))


def lower_dequantized_product(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product of codes, and make numbers of its sums by the scales of both operands."""
    operation = group.anchor
    name, dtype = operation.node.name, operation.output.dtype
    scale = operation.value(1)
    assert scale is not None
    sources: list[Source] = [ANCHOR]
    factor = operation.array(4)
    steps = [convert_step(0, _SUM, dtype)]
    added = operation.value(_ADDEND)
    if scale.constant is not None:
        factor = operation.array(1).reshape(()) * factor
    sources.append((f"{name}/scales", _along_columns(factor.astype(dtype))))
    sources += [] if scale.constant is not None else [scale.id]
    sources += [] if added is None else [added.id]
    count = len(sources)
    steps.append(Apply("Mul", (count, 1), (), dtype))
    if scale.constant is None:
        steps.append(Apply("Mul", (count + 1, 2), (), dtype))
    if added is not None:
        steps.append(Apply("Add", (count + len(steps) - 1, count - 1), (), dtype))
    _append(assembler, group, _QUANTIZED, Recipe(tuple(sources), tuple(steps)))


def lower_fixed_product(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product of codes whose sums become codes as TFLite's fully connected layer does it.

    LiteRT's reference multiplies them by a float64, and rounds once.
    """
    operation = group.anchor
    steps = Steps(operation.node.name, (ANCHOR,), 2, 1)
    total, bias = steps.source(0), bias_of(operation)
    if bias is not None:
        total = steps.apply("Add", total, steps.constant("bias", bias))
    total = steps.rounded_once(total, np.array(factors_of(operation)))
    steps.as_codes(total, operation, _Y_SCALE)
    _append(assembler, group, _QUANTIZED, Recipe(*steps.finish()))


_Y_SCALE = 9
"""The position of the scale of a product in fixed point."""
_ADDEND = 6
"""The position of what a Gemm adds."""


def _along_columns(array: Array) -> Array:
    """Return numbers of columns with two dimensions, so that they are never those of rows."""
    return np.atleast_2d(array)


def _append(assembler: Assembler, group: KernelGroup, at: _Places, first: Recipe) -> None:
    """Append a product whose sums are what a recipe begins with."""
    operation, name = group.anchor, group.anchor.node.name
    if not operation.is_constant(at.b):
        _append_computed(assembler, group, at, first)
        return
    a_value = operation.inputs[at.a]
    weights, kept = _centred(operation, at, a_value.dtype, assembler.unit)
    is_row, is_column = len(a_value.shape or ()) == 1, weights.ndim == 1
    weights = weights[:, None] if is_column else weights
    form = _form(assembler.unit, weights, kept)
    is_moved = _is_moved(operation, at.a_zero)
    turn = TOP if form is _LeftForm.SMALL_PAIRS and a_value.dtype == "int8" else 0
    if form is not _LeftForm.WORDS and (is_moved or turn):
        sums = weights.astype(np.int32).sum(-2, dtype=np.int32)
        sums = sums[..., 0] if is_column else sums if is_row else sums[..., None, :]
        first = _less(first, operation, at.a_zero, sums, turn)
    fused, operands = fuse(assembler, group, _SUM, first)
    target = assembler.target(group.result)
    views = [_as_matrix(view, is_row, is_column) for view in (target, *operands)]
    c = views[0]
    a = _left(assembler, operation, at, form, is_moved=is_moved)
    a = a.unsqueezed(0) if is_row else a
    *batch, m, n = c.shape
    a = a.expanded((*batch, m, a.shape[-1]))
    k = weights.shape[-2]
    spec = Gemm(
        m,
        n,
        k,
        a.layout if k > 1 else _dense_along_k(a).layout,
        Panels(kept, weights.shape[:-2], 0 if form is _LeftForm.SMALL_PAIRS else None),
        c.layout,
        tuple(batch),
        over(fused, views[1:]),
        assembler.unit,
    )
    b_value = operation.value(at.b)
    assert b_value is not None
    if form is _LeftForm.BYTES and assembler.unit.has_byte_tiles:
        centred = f"{b_value.name}/less {name}/"
        tiled = tiled_product(assembler, spec, a, weights, centred, name)
        if tiled is not None:
            product, rows, packed = tiled
            note = f"{a.dtype} times {kept}, tiles"
            assembler.call(product, (rows, packed, c, *views[1:]), group.names, note)
            return
    spec = assembler.choose(spec)
    if form is _LeftForm.SMALL_PAIRS:
        split = gemm.count_split(spec, weights)
        spec = replace(spec, b=Panels(kept, weights.shape[:-2], split))
    key = f"{b_value.name}/less {name}/{gemm.packing(spec)}"
    b = assembler.packed(key, partial(gemm.pack, spec, weights))
    note = f"{a.dtype} times {kept}"
    assembler.call(spec, (a, b, c, *views[1:]), group.names, note)


class _LeftForm(Enum):
    """As what the left operand is read."""

    BYTES = "bytes"  # as it is
    SMALL_PAIRS = "small pairs"  # as unsigned bytes, whose products add up to int16 by twos
    WORDS = "words"  # as int16


def _form(unit: CpuModel, weights: Array, kept: str) -> _LeftForm:
    if kept not in BYTES:
        return _LeftForm.WORDS
    if unit.has_byte_dots:
        return _LeftForm.BYTES
    is_fast = unit.has_byte_pairs and gemm.pays(weights, unit.lanes(_SUM))
    return _LeftForm.SMALL_PAIRS if is_fast else _LeftForm.WORDS


def _dense_along_k(view: View) -> View:
    """Return an operand of one column as one whose columns lie side by side."""
    return replace(view, strides=(*view.strides[:-1], 1))


def _as_matrix(view: View, is_row: bool, is_column: bool) -> View:
    view = view.unsqueezed(-1) if is_column else view
    return view.unsqueezed(-2) if is_row else view


def _is_zero(operation: Operation, position: int) -> bool:
    return operation.is_constant(position) and not operation.array(position).any()


def _centred(operation: Operation, at: _Places, left: str, unit: CpuModel) -> tuple[Array, str]:
    """Return the weights without their zero points, and the least dtype that holds them.

    Args:
        operation: The product.
        at: Its operands.
        left: The dtype of its left one.
        unit: What it is shaped for.
    """
    weights = operation.array(at.b).astype(np.int16)
    weights = weights.T if operation.attribute("transB", 0) else weights
    if operation.value(at.b_zero) is not None:
        weights = weights - operation.array(at.b_zero).astype(np.int16)
    limits = np.iinfo(np.int8)
    is_byte = bool(((weights >= limits.min) & (weights <= limits.max)).all())
    if is_byte:
        return weights.astype(np.int8), "int8"
    if left == "uint8" and unit.multiplies_unsigned and bool((weights >= 0).all()):
        return weights.astype(np.uint8), "uint8"
    return weights, "int16"


def _less(first: Recipe, operation: Operation, position: int, sums: Array, turn: int) -> Recipe:
    """Return a recipe that begins with sums from which what a zero point adds is taken.

    Args:
        first: What follows.
        operation: The product.
        position: Of the zero point among its inputs.
        sums: Of the weights of each column.
        turn: What is added to the zero point.
    """
    zero, name, count = operation.value(position), operation.node.name, len(first.sources)
    if zero is None or zero.constant is not None:
        moved_by = turn + (0 if zero is None else int(operation.array(position).item()))
        steps = [Apply("Sub", (0, count), (), _SUM)]
        return _behind(first, [(f"{name}/columns", sums * moved_by)], steps)
    sources: list[Source] = [zero.id, (f"{name}/columns", sums)]
    if turn:
        sources.append((f"{name}/turn", np.full((1,) * sums.ndim, turn, np.int32)))
    place = count + len(sources)
    steps = [convert_step(count, zero.dtype, _SUM)]
    if turn:
        steps.append(Apply("Add", (place, place - 1), (), _SUM))
        place += 1
    steps.append(Apply("Mul", (place, count + 1), (), _SUM))
    steps.append(Apply("Sub", (0, place + 1), (), _SUM))
    return _behind(first, sources, steps)


def _behind(first: Recipe, more: Sequence[Source], steps: Sequence[Apply]) -> Recipe:
    """Return a recipe of what is done with the result of steps, which takes the anchor's place.

    Args:
        first: What is done then.
        more: Sources behind those of `first`.
        steps: They number these sources, the anchor as 0, and each other.
    """
    before, sources = len(first.sources), (*first.sources, *more)
    moved = len(sources) + len(steps)

    def number(argument: int) -> int:
        if argument == 0:
            return moved - 1
        return argument if argument < before else argument - before + moved

    last = (replace(step, arguments=tuple(map(number, step.arguments))) for step in first.steps)
    return Recipe(sources, (*steps, *last))


def _append_computed(assembler: Assembler, group: KernelGroup, at: _Places, first: Recipe) -> None:
    """Append a product with a computed right operand; see `_append`."""
    operation, unit = group.anchor, assembler.unit
    a_value, b_value = operation.inputs[at.a], operation.value(at.b)
    assert b_value is not None
    is_row, is_column = len(a_value.shape or ()) == 1, len(b_value.shape or ()) == 1
    form = _LeftForm.BYTES if unit.has_byte_dots else _LeftForm.WORDS
    target = assembler.target(group.result)
    c = _as_matrix(target, is_row, is_column)
    a = _left(assembler, operation, at, form, is_moved=_is_moved(operation, at.a_zero))
    a = a.unsqueezed(0) if is_row else a
    rows = a
    *batch, m, n = c.shape
    k = a.shape[-1]
    a = a.expanded((*batch, m, k))
    b = assembler.read(b_value.id)
    b = b.unsqueezed(-1) if is_column else b
    b = right_codes(assembler, b.permuted((1, 0)) if operation.attribute("transB", 0) else b)
    kept, own = "int8" if form is _LeftForm.BYTES else "int16", b.shape[:-2]
    layout = a.layout if k > 1 else _dense_along_k(a).layout
    spec = Gemm(m, n, k, layout, Panels(kept, own), c.layout, tuple(batch), unit=unit)
    plan = gemm.schedule(spec)
    tiled = tile_panels(spec, b) if form is _LeftForm.BYTES else None
    panels = tiled or CodePanels(own, k, n, b.layout, kept, plan.vectors, unit=unit)
    if form is _LeftForm.BYTES:
        sums = assembler.scratch(_SUM, (*own, panels.vectors * panels.lanes))
        packed = pack_codes(assembler, panels, (b,), (sums,))
        left = as_zero_point(assembler, operation, at.a_zero)
        right = as_zero_point(assembler, operation, at.b_zero, is_turned=b.dtype == "uint8")
        terms = [of_rows(assembler, rows, right)]
        terms.append(of_columns(assembler, sums.part(len(own), 0, n), k, left, right))
        for term in terms:
            if term is not None:
                first = _less_memory(first, operation, _as_result(term, is_row, is_column))
    else:
        zero = []
        if _is_moved(operation, at.b_zero):
            panels = replace(panels, has_zero=True)
            zero.append(assembler.read(operation.node.inputs[at.b_zero]))
        packed = pack_codes(assembler, panels, (b, *zero), ())
    fused, operands = fuse(assembler, group, _SUM, first)
    others = [_as_matrix(view, is_row, is_column) for view in operands]
    spec = replace(spec, epilogue=over(fused, others), schedule=plan)
    if tiled is not None:
        append_tiled_batch(assembler, spec, panels, (a, packed), (c, *others), group.names)
        return
    note = f"{a.dtype} times {kept}"
    assembler.call(spec, (a, packed, c, *others), group.names, note)


def _is_moved(operation: Operation, position: int) -> bool:
    """Tell whether codes have a zero point that may be another number than 0."""
    return operation.value(position) is not None and not _is_zero(operation, position)


def _as_result(term: View, is_row: bool, is_column: bool) -> View:
    """Return numbers of rows or columns without the dimensions that a result leaves out."""
    rank = len(term.shape)
    left_out = {rank - 2} if is_row else set()
    left_out |= {rank - 1} if is_column else set()
    kept = [dim for dim in range(rank) if dim not in left_out]
    return term.permuted(kept)


def _less_memory(first: Recipe, operation: Operation, term: View) -> Recipe:
    """Return a recipe that begins with sums from which what lies in memory is taken."""
    name = f"{operation.node.name}/zero points {len(first.sources)}"
    return _behind(first, [(name, term)], [Apply("Sub", (0, len(first.sources)), (), _SUM)])


def _left(
    assembler: Assembler, operation: Operation, at: _Places, form: _LeftForm, *, is_moved: bool
) -> View:
    """Return the left operand as the kernel reads it."""
    value, zero = operation.inputs[at.a], operation.value(at.a_zero)
    view = assembler.read(value.id)
    if form is not _LeftForm.WORDS and (form is _LeftForm.BYTES or value.dtype == "uint8"):
        if view.strides[-1] == 1 or view.shape[-1] == 1:
            return view
        return assembler.read_dense(value.id)
    wide = "int16"
    views = [view]
    steps = [convert_step(0, value.dtype, wide)]
    if form is _LeftForm.SMALL_PAIRS:
        top = assembler.constant("the top bit", np.full(1, TOP, wide))
        views.append(top.reshaped(()).expanded(view.shape))
        steps = [replace(steps[0], arguments=(0,)), Apply("Add", (2, 1), (), wide)]
        steps.append(convert_step(3, wide, "uint8"))
    elif is_moved:
        assert zero is not None
        views.append(operand(assembler, zero.id, view.shape, 0))
        steps = [replace(steps[0], arguments=(0,)), convert_step(1, zero.dtype, wide)]
        steps.append(Apply("Sub", (2, 3), (), wide))
    copy = assembler.scratch("uint8" if form is _LeftForm.SMALL_PAIRS else wide, view.shape)
    body = Body(tuple(item.dtype for item in views), tuple(steps), (len(views) + len(steps) - 1,))
    layouts = tuple(item.layout for item in views)
    spec = Elementwise(copy.domain, layouts, (copy.layout,), body, assembler.unit)
    moved: Sequence[View] = (*views, copy)
    assembler.call(spec, moved, (operation.node.name,), f"as {copy.dtype}")
    return copy
