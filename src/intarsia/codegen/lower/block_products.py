# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights of 4 or 8 bits in blocks: ONNX Runtime's MatMulNBits, and its kin.

Weights stay packed, in one copy for prompts and for tokens, and become numbers in registers. Either
they are multiplied as float32, which rounds as a product of dequantised weights does; or the left
operand is quantised by blocks of the same size, and codes are multiplied. The model says which
(`accuracy_level`), unless the target does (`-accuracy`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply
from intarsia.codegen.halves import SINGLE
from intarsia.codegen.ir import TILE_ROWS, row_major
from intarsia.codegen.kernels.block_gemm import (
    BlockGemm,
    BlockWeights,
    QuantizeBlocks,
    has_tiles,
    pack_codes,
    pack_numbers,
)
from intarsia.codegen.kernels.gemm import Gemm, Panels
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import MOST_ERROR
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, fuse, over
from intarsia.codegen.lower.views import View
from intarsia.codegen.unit import Accuracy
from intarsia.graph.graph import Value

MATMUL_NBITS = "com.microsoft.MatMulNBits"
_B, _SCALES, _ZEROS, _G_IDX, _BIAS = 1, 2, 3, 4, 5
"""Positions of its inputs."""
_BITS = (4, 8)
LEAST_SIZE = 16
"""Codes of a block, at least."""
BLOCK_PRODUCT = "BlockProduct"
"""The operator that a product with dequantised weights means: the left operand, the inputs of the
DequantizeLinear, and what a Gemm adds."""
CODES = frozenset(("int4", "uint4", "int8", "uint8"))
"""What is dequantised."""
_ADDEND = 4
_COLUMN_SIZE = 128
"""Codes of a block where a column has one scale: few scales are read, and few activations share
one."""
_APART_BYTES = 64
"""Between rows of codes: else rows of 4096 share sets of the first cache."""
_INT8_LEVEL = 4
"""The `accuracy_level` that allows activations to be int8."""


@dataclass(frozen=True, slots=True)
class _ModelWeights:
    """Weights as a model has them.

    Attributes:
        name: Of their codes in the model.
        bits: Of a code.
        size: Codes of a block.
        codes: `uint8[n, blocks * size]`.
        scales: `float32[n, blocks]`.
        zeros: `[n, blocks]`, uint8 or float32; None for the middle of the range.
    """

    name: str
    bits: int
    size: int
    codes: Array
    scales: Array
    zeros: Array | None


def refuse_matmul_nbits(operation: Operation) -> str | None:
    """Say why a MatMulNBits is not taken."""
    bits, size = operation.attribute("bits", 4), operation.attribute("block_size", 0)
    if bits not in _BITS:
        return f"its weights have {bits} bits"
    if operation.value(_G_IDX) is not None:
        return "its rows are in groups of another order (g_idx)"
    if operation.attribute("weight_prepacked", 0):
        return "its weights are packed for another device"
    if size < LEAST_SIZE or size & (size - 1):
        return f"its blocks have {size} weights"
    names = {_B: "weights are", _SCALES: "scales are", _ZEROS: "zero points are"}
    problem = operation.why_computed(names)
    if problem:
        return problem
    n, k = operation.attribute("N"), operation.attribute("K")
    blocks = -(-k // size)
    packed = -(-blocks * bits // 8)
    wanted = {_B: {n * blocks * size * bits // 8}, _SCALES: {n * blocks}}
    zeros = operation.value(_ZEROS)
    if zeros is not None:
        wanted[_ZEROS] = {n * packed} if zeros.dtype == "uint8" else {n * blocks}
    for position, sizes in wanted.items():
        count = int(np.prod(operation.shape(position)))
        if count not in sizes:
            return f"its {names[position].split(' ', 1)[0]} have {count} entries"
    return None


def lower_matmul_nbits(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product with weights in blocks, and a bias if there is one."""
    operation = group.anchor
    bits, size = operation.attribute("bits", 4), operation.attribute("block_size")
    n, k = operation.attribute("N"), operation.attribute("K")
    blocks = -(-k // size)
    value, zeros = operation.value(_B), None
    assert value is not None
    given = operation.value(_ZEROS)
    if given is not None:
        zeros = operation.array(_ZEROS)
        if given.dtype == "uint8":
            zeros = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks]
        zeros = zeros.reshape(n, blocks)
    weights = _ModelWeights(
        value.name,
        bits,
        size,
        _unpacked(operation.array(_B).reshape(n, -1), bits),
        operation.array(_SCALES).reshape(n, blocks).astype(SINGLE),
        zeros,
    )
    is_narrow = operation.attribute("accuracy_level", 0) == _INT8_LEVEL
    _append(assembler, group, weights, operation.value(_BIAS), is_narrow=is_narrow)


def lower_block_product(assembler: Assembler, group: KernelGroup) -> None:
    """Append a product with dequantised weights, in blocks along k or by columns."""
    operation = group.anchor
    value = operation.value(_B)
    assert value is not None
    bits = 4 if value.dtype.endswith("4") else 8
    is_turned = operation.attribute("transB", 0)
    # Codes without a sign have the same zero points, moved as much as they are.
    offset = 0 if value.dtype.startswith("u") else 1 << (bits - 1)

    def by_columns(array: Array) -> Array:
        return array if is_turned else array.T

    codes = by_columns(operation.array(_B)).astype(np.int16) + offset
    n, k = codes.shape
    given = operation.attribute("block_size", 0)
    size = given or min(_COLUMN_SIZE, max(LEAST_SIZE, 1 << (k - 1).bit_length()))
    blocks = -(-k // size)

    def spread(array: Array) -> Array:
        if given:
            return by_columns(array)
        return np.broadcast_to(array.reshape(-1, 1), (n, blocks))

    zeros = np.zeros((n, blocks), np.int16)
    if operation.value(_ZEROS) is not None:
        zeros = spread(operation.array(_ZEROS)).astype(np.int16)
    weights = _ModelWeights(
        f"{value.name}/{'turned ' if is_turned else ''}{offset}",
        bits,
        size,
        np.pad(codes.astype(np.uint8), ((0, 0), (0, blocks * size - k))),
        np.ascontiguousarray(spread(operation.array(_SCALES))),
        (zeros + offset).astype(np.uint8),
    )
    _append(assembler, group, weights, operation.value(_ADDEND), is_narrow=False)


def _unpacked(packed: Array, bits: int) -> Array:
    """Return codes of bytes, the lower half of a byte first."""
    if bits == 8:  # noqa: PLR2004 - a byte
        return packed
    halves = np.stack((packed & 15, packed >> 4), axis=-1)
    return halves.reshape(*packed.shape[:-1], -1)


def _append(
    assembler: Assembler,
    group: KernelGroup,
    weights: _ModelWeights,
    bias: Value | None,
    *,
    is_narrow: bool,
) -> None:
    """Append a product; `is_narrow` tells whether the model allows activations to be int8."""
    operation, unit = group.anchor, assembler.unit
    is_exact = assembler.accuracy is Accuracy.EXACT or (
        assembler.accuracy is Accuracy.MODEL and not is_narrow
    )
    sources = (ANCHOR,) if bias is None else (ANCHOR, bias.id)
    steps = () if bias is None else (Apply("Add", (0, 1), (), SINGLE),)
    fused, operands = fuse(assembler, group, SINGLE, Recipe(sources, steps))
    target = assembler.target(group.result)
    a = assembler.read(operation.inputs[0].id)
    is_row = len(a.shape) == 1
    views = [view.unsqueezed(0) if is_row else view for view in (a, target, *operands)]
    a, c = views[:2]
    *batch, m, n = c.shape
    zeros = _zeros(weights)
    form = BlockWeights(weights.bits, weights.size, "" if zeros is None else zeros.dtype.name)
    left: tuple[View, ...] = (a,)
    if not is_exact:  # once for all products of one operand, as queries, keys and values are
        key = (operation.inputs[0].id, form.size, bool(form.zeros), form.middle)
        left = assembler.derived(key, partial(_quantise, assembler, operation, a, form))
    first = left[0]
    product = Gemm(
        m,
        n,
        first.shape[-1],
        first.layout,
        Panels(first.dtype),
        c.layout,
        tuple(batch),
        over(fused, views[2:]),
        unit,
    )
    spec = BlockGemm(product, form)
    lanes, name = unit.lanes(), weights.name
    codes = assembler.packed(
        f"{name}/{form.bits} bits by {lanes}", partial(pack_codes, weights.codes, form, lanes)
    )
    if is_exact:
        codes = replace(
            codes, dtype="uint32", shape=codes.shape[:-1], strides=row_major(codes.shape[:-1])
        )
    half = _half_of(weights.scales, is_exact=is_exact, has_half=unit.has_half)
    numbers = [("scales", weights.scales, half)]
    numbers += [] if zeros is None else [("zeros", zeros, "")]
    packed = [
        assembler.packed(f"{name}/{role} by {lanes}", partial(pack_numbers, array, lanes), kept)
        for role, array, kept in numbers
    ]
    note = f"{form.bits} bits in blocks of {form.size}, activations {first.dtype}"
    assembler.call(spec, (*left, codes, *packed, c, *views[2:]), group.names, note)


def _quantise(
    assembler: Assembler, operation: Operation, a: View, form: BlockWeights
) -> tuple[View, View, View]:
    """Append a call that quantises the left operand; return its codes, scales and sums."""
    *rows, k = a.shape
    blocks = -(-k // form.size)
    pitch = blocks * form.size + _APART_BYTES
    # Products of tiles read whole ones: what is behind the last row changes no other.
    more = TILE_ROWS if has_tiles(prod(rows), form.size, assembler.unit) else 0
    whole = assembler.scratch("int8", (*rows, pitch), spare=more * pitch)
    codes = whole.part(len(rows), 0, blocks * form.size)
    scales = assembler.scratch("float32", (*rows, blocks), spare=more * blocks)
    # Zero points are taken from sums of codes; one of all blocks before there are floats.
    dtype = "float32" if form.zeros else "int32"
    sums = assembler.scratch(dtype, (*rows, blocks), spare=more * blocks)
    factor = -1 if form.zeros else -form.middle
    spec = QuantizeBlocks(
        tuple(rows), k, form.size, a.layout, codes.layout, factor, sums.dtype, assembler.unit
    )
    views = (codes, scales, sums)
    assembler.call(spec, (a, *views), (operation.node.name,), f"int8 in blocks of {form.size}")
    return views


def _half_of(scales: Array, *, is_exact: bool, has_half: bool) -> str:
    """Return as which halves scales are kept, if the CPU converts these and the scales allow it.

    Beside activations of 8 bits, the rounding of a scale to 11 is small.
    """
    with np.errstate(over="ignore"):
        lost = np.abs(scales.astype(np.float16).astype(np.float32) - scales)
    is_held = bool((lost <= (0 if is_exact else MOST_ERROR) * np.abs(scales)).all())
    return "float16" if has_half and is_held else ""


def _zeros(weights: _ModelWeights) -> Array | None:
    """Return zero points, or None if all are the middle of the range."""
    zeros = weights.zeros
    if zeros is None or bool((zeros == 1 << (weights.bits - 1)).all()):
        return None
    return zeros if zeros.dtype == np.uint8 else zeros.astype(SINGLE)
