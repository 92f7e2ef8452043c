# SPDX-License-Identifier: Apache-2.0
"""MatMul and Gemm as one kernel family, with what follows as epilogue; weights as float16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.halves import SINGLE, rounded
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import gemm
from intarsia.codegen.kernels.gemm import Gemm, Panels, PanelSource
from intarsia.codegen.kernels.grid_gemm import GridGemm, grid_gemm, is_shared
from intarsia.codegen.kernels.tile_product import TileProduct
from intarsia.codegen.kernels.warp_gemm import WarpGemm, warp_gemm
from intarsia.codegen.lower.activations import with_activation
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, Source, fuse, over
from intarsia.codegen.lower.tiles import reader_key, tiled_product
from intarsia.codegen.lower.views import View
from intarsia.codegen.unit import GpuModel
from intarsia.extents import Expression, Size, UndecidedError, is_free, most
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Value

BFLOAT16, FLOAT16 = "bfloat16", "float16"


def lower_matmul(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product of stacks of matrices; vectors are matrices of one row or column."""
    operation = group.anchor
    a_value, b_value = operation.inputs
    dtype, alpha = operation.output.dtype, operation.attribute("alpha", 1.0)
    is_packed = b_value.constant is not None
    steps = _scale_and_add(operation, 1.0 if is_packed else alpha, 0.0)
    fused, operands = fuse(assembler, group, dtype, steps)
    is_row, is_column = len(a_value.shape or ()) == 1, len(b_value.shape or ()) == 1
    target = assembler.target(group.result)
    views = [_as_matrix(view, is_row, is_column) for view in (target, *operands)]
    c = views[0]
    a_order, b_order = (_order(operation, position) for position in (0, 1))
    a = assembler.read(a_value.id, is_wide=not _has_mma(assembler)).permuted(a_order)
    if is_row:
        a = a.unsqueezed(0)
    *batch, m, n = c.shape
    k = a.shape[-1]
    # Strides of 0: what is broadcast is read again, not copied.
    a = _in_halves(assembler, a.expanded((*batch, m, k)), a_value, (m, n, k))
    spec = Gemm(
        m,
        n,
        k,
        a.layout,
        Panels(dtype),
        c.layout,
        tuple(batch),
        over(fused, views[1:]),
        assembler.unit,
    )
    note = ""
    product: Gemm | GridGemm | WarpGemm | TileProduct
    if is_packed:
        weights = operation.array(1).transpose(b_order)
        weights = weights if alpha == 1 else (weights * alpha).astype(dtype)
        weights = weights[:, None] if is_column else weights
        if isinstance(k, Expression):
            raise UndecidedError(f"whether {k} is {weights.shape[-2]} depends on the sizes")
        spec = replace(spec, b=Panels(dtype, weights.shape[:-2]))
        is_plain = alpha == 1 and b_order == tuple(range(len(b_order)))
        order = "" if is_plain else f"{'x'.join(map(str, b_order))}/{alpha}/"
        half = assembler.halves.get(b_value.id, "") if alpha == 1 else ""
        name = f"{b_value.name}/{order}"
        reader = operation.node.name
        product, a, b, note = pack_weights(assembler, spec, a, weights, name, half, reader)
    else:
        b = assembler.read(b_value.id).permuted(b_order)
        if is_column:
            b = b.unsqueezed(-1)
        key = dots_key(operation)
        b = _by_columns(assembler, b, group, key).expanded((*batch, k, n))
        b = _in_halves(assembler, b, b_value, (m, n, k))
        product = choose_product(assembler, replace(spec, b=b.layout), key)
        product, a, b = _of_halves(product, a, b)
    assembler.call(product, (a, b, c, *views[1:]), group.names, note)


def dots_key(operation: Operation, part: str = "") -> str:
    """Return what a product of two computed operands notes its order under: see `settle`.

    No two products have one key: names of nodes are unique, and quoted.

    Args:
        operation: Whose product it is.
        part: Which of its products, if there are several.
    """
    return f"dots of {operation.node.name!r}{part}"


def append_linear(
    assembler: Assembler, group: KernelGroup, x: View, weights: Value, bias: Value | None
) -> View:
    """Append `x @ weights + bias`, and return where it lies.

    Args:
        assembler: Of the program.
        group: What it is a part of; the only such product of its anchor.
        x: `[batch, rows, k]`.
        weights: `[k, n]`.
        bias: `[n]`; None for none.
    """
    k, n = weights.shape or (0, 0)
    c = assembler.scratch(x.dtype, (*x.shape[:-1], n))
    added = [] if bias is None else [assembler.read(bias.id).expanded(c.shape)]
    body = Body((x.dtype,) * 2, (Apply("Add", (0, 1), (), x.dtype),), (2,))
    spec = Gemm(
        c.shape[-2],
        n,
        k,
        x.layout,
        Panels(x.dtype),
        c.layout,
        c.shape[:-2],
        over(Fused(body), added) if added else NOTHING,
        assembler.unit,
    )
    note = ""
    product: Gemm | GridGemm | WarpGemm | TileProduct
    if weights.constant is None:
        b = assembler.read(weights.id)
        spec = replace(spec, b=b.expanded((*c.shape[:-2], k, n)).layout)
        product = choose_product(assembler, spec, dots_key(group.anchor))
    else:
        array, half = constant_array(weights), assembler.halves.get(weights.id, "")
        name, reader = f"{weights.name}/", group.anchor.node.name
        product, x, b, note = pack_weights(assembler, spec, x, array, name, half, reader)
    assembler.call(product, (x, b, c, *added), group.names, note)
    return c


def refuse_fused_matmul(operation: Operation) -> str | None:
    """Say why a product of operands that are transposed first is not taken."""
    ranks = len(operation.shape()), len(operation.shape(1))
    if min(ranks) < _MATRIX:
        return "an operand is a vector"
    return "its operands have several ranks" if _is_split(operation) and len({*ranks}) > 1 else None


_MATRIX = 2


def _is_split(operation: Operation) -> bool:
    return any(operation.attribute(f"transBatch{side}", 0) for side in "AB")


def _order(operation: Operation, position: int) -> tuple[int, ...]:
    """Return in which order a product reads the dimensions of an operand."""
    order, side = list(range(len(operation.shape(position)))), "AB"[position]
    # ONNX Runtime's FusedMatMul: the first dimension may lie in front of the batch.
    if operation.attribute(f"transBatch{side}", 0):
        first, *order = order
        order.insert(-1, first)
    if operation.attribute(f"trans{side}", 0):
        order[-2:] = order[:-3:-1]
    return tuple(order)


_DOTS, _TILES = "dots", "tiles"
"""Which sums of products are computed together: along the terms, or along the columns."""


def _on_gpu(assembler: Assembler, spec: Gemm, b: Layout) -> GridGemm | WarpGemm | None:
    """Return a product as it is to run on a GPU, by TF32 where it may.

    Args:
        assembler: Of the program.
        spec: The product.
        b: Where its right operand lies, over (*batch, k, n).

    Returns:
        None if the target is no GPU, the product has no tiles that are worth sharing, or its sums
        have to be those of the program for all sizes.
    """
    if not isinstance(assembler.machine, GpuModel) or assembler.settled:
        return None
    shared = grid_gemm(spec, b, assembler.machine)
    return shared and (warp_gemm(shared, SINGLE) or shared)


def _has_mma(assembler: Assembler) -> bool:
    return isinstance(assembler.machine, GpuModel) and assembler.machine.has_mma


Product = TypeVar("Product", bound=Gemm | GridGemm | WarpGemm | TileProduct)


def _in_halves(assembler: Assembler, view: View, value: Value, sizes: Sequence[Size]) -> View:
    """Return an operand that the model has as float16 in memory of that, if warps multiply it.

    Args:
        assembler: Of the program.
        view: The operand.
        value: What it is in the graph.
        sizes: Rows, columns and terms of the product.
    """
    is_half = assembler.halves.get(value.id) == FLOAT16
    if view.half or not is_half or not _has_mma(assembler) or not is_shared(*sizes):
        return view
    return _copied(assembler, view, FLOAT16)


def _of_halves(product: Product, a: View, b: View) -> tuple[Product | WarpGemm, View, View]:
    """Return a product of operands that memory keeps as float16 as one of a GPU's warps."""
    whole = product.product if isinstance(product, WarpGemm) else product
    if not isinstance(whole, GridGemm) or {a.half, b.half} != {FLOAT16}:
        return product, a, b
    shared = warp_gemm(whole, FLOAT16)
    if shared is None:
        return product, a, b
    return shared, replace(a, dtype=a.half, half=""), replace(b, dtype=b.half, half="")


def choose_product(assembler: Assembler, spec: Gemm, key: str) -> Gemm | GridGemm | WarpGemm:
    """Return a product of two computed operands as it is to run.

    Args:
        assembler: Of the program.
        spec: The product.
        key: Says which it is.
    """
    assert isinstance(spec.b, Layout)
    shared = _on_gpu(assembler, spec, spec.b)
    if shared is not None:
        return shared

    def own() -> str:
        return _DOTS if gemm.schedule(spec).source is PanelSource.DOTS else _TILES

    settled = assembler.settle(key, own)
    if settled is None:
        return assembler.choose(spec)
    return replace(spec, is_dots=settled == _DOTS)


def _by_columns(assembler: Assembler, b: View, group: KernelGroup, key: str) -> View:
    """Return a right operand column by column if its columns are free: products take it so."""
    is_dots = assembler.settled.get(key) == _DOTS
    if not (is_dots or is_free(b.shape[-1:])) or b.strides[-2] == 1:
        return b
    dims = tuple(range(len(b.shape)))
    order = (*dims[:-2], dims[-1], dims[-2])
    turned = b.permuted(order)
    copy = assembler.scratch(b.dtype, turned.shape)
    assembler.copy(turned, copy, group.names, "column by column")
    return copy.permuted(order)


def pack_weights(
    assembler: Assembler,
    spec: Gemm,
    a: View,
    weights: Array,
    name: str,
    half: str,
    reader: str,
) -> tuple[Gemm | GridGemm | WarpGemm | TileProduct, View, View, str]:
    """Return a product with constant weights as it is to run, both operands, and a note.

    Args:
        assembler: Of the program.
        spec: The product, its right operand in panels.
        a: The left operand.
        weights: The right operand, `[..., k, n]`.
        name: Of the weights as they are, which that of their order is added to.
        half: What they are in the model, if that is halves.
        reader: The name of the node that multiplies by them: others may do so otherwise.
    """
    note, key = "", reader_key(name, reader)
    if half in ("", FLOAT16) and isinstance(assembler.machine, GpuModel):
        rows = View(0, spec.a.dtype, weights.shape, row_major(weights.shape), half=half)
        rows = rows.expanded((*spec.batch, spec.k, spec.n))
        shared = _on_gpu(assembler, spec, rows.layout)
        if shared is not None:
            kept = assembler.panels(f"{name}rows", lambda: np.ascontiguousarray(weights), half)
            return *_of_halves(shared, a, replace(rows, storage=kept.storage)), ""
    if not half:
        half, note = _half_weights(assembler, spec, weights, key)
        if half == BFLOAT16 and assembler.unit.has_bf16_tiles:
            tiled = tiled_product(assembler, spec, a, weights, name, reader)
            if tiled is not None:
                return *tiled, "bfloat16 tiles"
    if half == BFLOAT16 and assembler.unit.has_bf16_dots and not is_free((spec.k,)):
        a = _as_bfloat16(assembler, a)
        panels = replace(spec.b, dtype=a.dtype)
        spec = assembler.choose(replace(spec, a=a.layout, b=panels))
        weights, half, note = rounded(weights, half).view(a.dtype), "", "bfloat16"
    elif half and _is_bound_by_memory(spec, weights):
        plan = gemm.schedule(spec)
        spec = replace(spec, schedule=replace(plan, prefetch=plan.prefetch or _AHEAD))
    else:
        spec = assembler.choose(spec)
    spec = _in_settled_panels(assembler, spec, weights, key)
    packed = f"{name}{gemm.packing(spec)}"
    return spec, a, assembler.panels(packed, partial(gemm.pack, spec, weights), half), note


def _as_bfloat16(assembler: Assembler, view: View) -> View:
    """Return a copy of a left operand as the bits of bfloat16, which pairs are multiplied of."""
    return replace(_copied(assembler, view, BFLOAT16), dtype="uint16", half="")


def _copied(assembler: Assembler, view: View, half: str) -> View:
    """Return a copy of an operand that memory keeps as halves, what is broadcast once."""
    once = tuple(
        1 if stride == 0 else extent
        for extent, stride in zip(view.shape, view.strides, strict=True)
    )
    copy = assembler.scratch(view.dtype, once, half=half)
    assembler.copy(replace(view, shape=once), copy, (), f"as {half}")
    return copy.expanded(view.shape)


def _in_settled_panels(assembler: Assembler, spec: Gemm, weights: Array, key: str) -> Gemm:
    """Return a product with large weights in panels as narrow as the program for all sizes has.

    So programs for a prompt and for a token have one copy of them. A product of one row would have
    wider panels, which matters where a cache holds them: what comes from memory comes no faster.
    """
    plan = gemm.schedule(spec)
    settled = assembler.settle(f"panels of {key}", lambda: str(plan.vectors))
    if settled is None or weights.nbytes < LEAST_BYTES or int(settled) >= plan.vectors:
        return spec
    return replace(spec, schedule=replace(plan, vectors=int(settled)))


def _as_matrix(view: View, is_row: bool, is_column: bool) -> View:
    """Return a result, or what goes with it, with the dimensions that vectors leave out."""
    view = view.unsqueezed(-1) if is_column else view
    return view.unsqueezed(-2) if is_row else view


def lower_gemm(assembler: Assembler, group: KernelGroup) -> None:
    """Append `alpha * a @ b + beta * c`; factors of constants are folded into them."""
    operation = group.anchor
    dtype = operation.output.dtype
    m, n = operation.output_shape
    alpha, beta = operation.attribute("alpha", 1.0), operation.attribute("beta", 1.0)
    b_value = operation.inputs[1]
    is_packed = b_value.constant is not None
    steps = _scale_and_add(operation, 1.0 if is_packed else alpha, beta)
    fused, operands = fuse(assembler, group, dtype, with_activation(operation, steps))
    a = assembler.read(operation.inputs[0].id, is_wide=not _has_mma(assembler))
    if operation.attribute("transA", 0):
        a = a.permuted((1, 0))
    a = _in_halves(assembler, a, operation.inputs[0], (m, n, a.shape[1]))
    c = assembler.target(group.result)
    spec = Gemm(
        m, n, a.shape[1], a.layout, Panels(dtype), c.layout, epilogue=fused, unit=assembler.unit
    )
    note = ""
    product: Gemm | GridGemm | WarpGemm | TileProduct
    if is_packed:
        weights = operation.array(1)
        weights = weights.T if operation.attribute("transB", 0) else weights
        scaled = weights if alpha == 1 else (weights * alpha).astype(dtype)
        turned = "t" if operation.attribute("transB", 0) else ""
        half, name = assembler.halves.get(b_value.id, ""), f"{b_value.name}/{turned}{alpha}"
        half = half if alpha == 1 else ""
        reader = operation.node.name
        product, a, b, note = pack_weights(assembler, spec, a, scaled, name, half, reader)
    else:
        b = assembler.read(b_value.id)
        if operation.attribute("transB", 0):
            b = b.permuted((1, 0))
        b = _in_halves(assembler, b, b_value, (m, n, a.shape[1]))
        spec = replace(spec, b=b.layout)
        product = choose_product(assembler, spec, dots_key(operation))
        product, a, b = _of_halves(product, a, b)
    assembler.call(product, (a, b, c, *operands), group.names, note)


def _scale_and_add(operation: Operation, alpha: float, beta: float) -> Recipe:
    """Return the steps from the bare product to the result of a `Gemm`."""
    dtype, name = operation.output.dtype, operation.node.name
    addend = operation.value(2) if beta else None
    is_constant = addend is not None and addend.constant is not None
    sources: list[Source] = [ANCHOR]
    # ONNX's factors are applied to the constant operand when compiling, else in the epilogue: a
    # kernel knows none.
    factors: list[tuple[str, float]] = []
    if addend is not None:
        scaled = (operation.array(2) * np.asarray(beta)).astype(dtype) if is_constant else None
        sources.append(addend.id if scaled is None else (f"{name}/c", scaled))
    if alpha != 1:
        factors.append(("alpha", alpha))
    if addend is not None and beta != 1 and not is_constant:
        factors.append(("beta", beta))
    sources += [(f"{name}/{role}", np.full((1, 1), factor, dtype)) for role, factor in factors]
    product, term = 0, 1  # numbers of the two summands
    steps: list[Apply] = []
    for place, (role, _) in enumerate(factors, start=len(sources) - len(factors)):
        steps.append(Apply("Mul", (0 if role == "alpha" else 1, place), (), dtype))
        number = len(sources) + len(steps) - 1
        product, term = (number, term) if role == "alpha" else (product, number)
    if addend is not None:
        steps.append(Apply("Add", (product, term), (), dtype))
    return Recipe(tuple(sources), tuple(steps))


# Weights as float16
#
# A product of few rows reads each weight once or a few times, from memory; half the bytes take half
# the time. Kernels convert them back when they load them, and compute in float32 as before, so that
# the only error is the rounding of the weights (IEEE 754 binary16).

MOST_ROWS = 8
"""Rows of a product that is still bound by memory."""

LEAST_BYTES = 1 << 20
"""From this size on, no cache near a core keeps float32 weights from run to run."""

LARGEST = float(np.finfo(np.float16).max)

MOST_ERROR = 2.0**-11
"""Largest error of a number that float16 holds with all its bits, relative to the number."""

# With 4,096 columns 4 MiB at a time, where VGG's first dense layer has 392.
_CHUNK_ROWS = 256


def half_error(weights: Array) -> float | None:
    """Return how much rounding to float16 changes weights, or None if they must stay float32.

    Args:
        weights: `float32[..., k, n]`.

    Returns:
        The root of the mean square of the changes over that of the weights, the largest of all
        columns. None if a weight is beyond the range of float16 or no number, or if a column's
        weights are so small that float16 holds fewer of their bits.
    """
    lost = np.zeros((*weights.shape[:-2], weights.shape[-1]))
    whole = np.zeros_like(lost)
    for start in range(0, weights.shape[-2], _CHUNK_ROWS):  # all at once would take much memory
        part = weights[..., start : start + _CHUNK_ROWS, :]
        if not bool(np.all(np.abs(part) <= LARGEST)):  # also false for NaN
            return None
        change = part.astype(np.float16).astype(np.float32) - part
        lost += np.einsum("...kn,...kn->...n", change, change)
        whole += np.einsum("...kn,...kn->...n", part, part)
    errors = np.sqrt(np.divide(lost, whole, out=np.zeros_like(lost), where=whole > 0))
    worst = float(np.max(errors, initial=0.0))
    return worst if worst <= MOST_ERROR else None


_AHEAD = 16
"""Steps along k that weights are asked for ahead: with half the bytes a step, a core asks for too
few lines by itself. On dense layers of AlexNet it makes 1.3 times 1.95."""


def _is_bound_by_memory(spec: Gemm, weights: Array) -> bool:
    """Tell whether a product has few rows, at all of its sizes, and much to read."""
    rows = most(gemm.merged(spec).m, MOST_ROWS + 1)
    return rows <= MOST_ROWS and weights.nbytes >= LEAST_BYTES


def _half_weights(assembler: Assembler, spec: Gemm, weights: Array, key: str) -> tuple[str, str]:
    """Return as which halves the target asks to keep weights of float32, if any, and a note.

    Args:
        assembler: Knows what the target asks for.
        spec: The product, its right operand in panels.
        weights: That operand, `[..., k, n]`.
        key: Says which weights and which node.
    """
    if weights.dtype != SINGLE:
        return "", ""
    if assembler.is_bf16:
        return bfloat16_weights(weights)
    if not assembler.half_weights:
        return "", ""
    own = "float16" if _is_bound_by_memory(spec, weights) else SINGLE
    if (assembler.settle(f"dtype of {key}", lambda: own) or own) != "float16":
        return "", ""
    error = half_error(weights)
    if error is None:
        return "", "weights stay float32: float16 does not hold them"
    return "float16", f"float16 weights, relative error {error:.1e}"


def bfloat16_weights(weights: Array) -> tuple[str, str]:
    """Return how weights are kept for `-precision=bf16`, and a note."""
    # What is beyond the largest of bfloat16, or no number, would become infinite.
    if not bool(np.all(np.abs(weights) <= LARGEST_BFLOAT16)):
        return "", "weights stay float32: bfloat16 does not hold them"
    return BFLOAT16, "bfloat16 weights"


LARGEST_BFLOAT16 = float.fromhex("0x1.fep127")
