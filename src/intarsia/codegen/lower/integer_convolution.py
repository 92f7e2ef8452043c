# SPDX-License-Identifier: Apache-2.0
"""Convolutions of codes in integers: QLinearConv, ConvInteger, and what Q and DQ nodes mean.

What is multiplied are codes without their zero points, so that padding is zero, and the sums are
ONNX's to the bit. The zero points of constant weights are gone when these are packed. Where a CPU
multiplies bytes, and padding of codes is zero or there is none, the input is read as it is, and its
zero point, times the sums of the weights, is taken from the sums. Else a copy of it as int16 is
made without its zero point, one for all that read it; or, where a CPU multiplies bytes by twos and
most weights are safe with that, one of the bytes in several orders (`kernels.pair_conv`).

Of int16, 3x3 taps are computed by Winograd's F(2), whose weights times four are integers: exactly,
and in four ninths of the products. Filters of one channel have nothing to be summed by
groups. They are computed in float32, which holds their sums exactly and in which a CPU multiplies
and adds in one instruction; in int32 where it might not hold them. So are plain convolutions whose
groups are not of whole groups of bytes, or where a CPU does not multiply these.

Where memory counts first (`CpuModel.is_small`), all are plain convolutions of channels as they
lie: weights stay bytes, and the input is bytes or int16. Both are widened as they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Attributes, Fused, Layout, identity
from intarsia.codegen.fixed_point import factor_of
from intarsia.codegen.ir import DOT_GROUPS, row_major
from intarsia.codegen.kernels.conv import Conv, blocked_channels
from intarsia.codegen.kernels.conv_plain import MOST_LOADS, PlainConv
from intarsia.codegen.kernels.convolution import ConvKind, choose
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.families import weight_family
from intarsia.codegen.kernels.pair_conv import (
    PairConv,
    PairSteps,
    find_steps,
    place_steps,
    strip_of,
)
from intarsia.codegen.kernels.paired_codes import SPREAD, PairedCodes
from intarsia.codegen.kernels.window import Window, normalise
from intarsia.codegen.kernels.winograd import Winograd
from intarsia.codegen.kernels.winograd.schedules import fits_winograd
from intarsia.codegen.kernels.winograd.transform import EXACT_FACTOR
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.conversions import FITS, convert_step
from intarsia.codegen.lower.fixed_point import Steps, bias_of, factors_of
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.integer_products import BYTES
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, Source, fuse
from intarsia.codegen.lower.tiles import TiledResult, append_tiled_codes, fits_tiles_of_codes
from intarsia.codegen.lower.views import CHANNELS, Pads, View
from intarsia.codegen.lower.windows import read_window
from intarsia.codegen.unit import CpuModel, WinogradMode
from intarsia.extents import Size, least, typical
from intarsia.graph.graph import Value

DEQUANTIZED_CONV = "DequantizedConv"
"""The operator that a convolution of dequantised operands means: inputs as those of the three
DequantizeLinear, one after the other; a bias without a scale is of floats."""
REQUANTIZED_CONV = "RequantizedConv"
"""The same with what quantises its result: behind the others, inputs 1 and 2 of QuantizeLinear.
Its attributes `low` and `high` are what an activation in between leaves."""

_SUM, _WIDE = "int32", "int16"
_SPATIAL = 2
_EXACT = 1 << 24
"""Up to here float32 holds every integer."""


@dataclass(frozen=True, slots=True)
class _ConvolutionPlaces:
    """At which inputs an operator has what is multiplied.

    Attributes:
        zero: The zero point of the input, which is input 0.
        weights: The weights, constant.
        weights_zero: Their zero points, constant.
    """

    zero: int
    weights: int
    weights_zero: int


_INTEGER = _ConvolutionPlaces(2, 1, 3)
_QUANTIZED = _ConvolutionPlaces(2, 3, 5)
_X_SCALE, _W_SCALE, _B, _B_SCALE, _B_ZERO, _Y_SCALE, _Y_ZERO = 1, 4, 6, 7, 8, 9, 10
"""Positions of inputs of the two operators that nodes mean."""
_Q_SCALE, _Q_ZERO, _Q_B = 6, 7, 8
"""Positions of inputs of QLinearConv."""


def _places(operation: Operation) -> _ConvolutionPlaces:
    return _INTEGER if operation.op_type == "ConvInteger" else _QUANTIZED


# What is taken


def refuse_conv_integer(operation: Operation) -> str | None:
    """Say why a ConvInteger is not taken."""
    at = _places(operation)
    weights = operation.value(at.weights)
    assert weights is not None
    rank = len(operation.shape())
    if rank <= _SPATIAL:
        return "it has no spatial dimension"
    if weights.dtype not in BYTES:
        return f"its weights are {weights.dtype}"
    if len(operation.shape(at.weights)) != rank:
        return "its weights do not have the dimensions of its input"
    inputs, outputs = operation.shape()[CHANNELS], operation.output_shape[CHANNELS]
    groups = operation.attribute("group", 1)
    shape = operation.shape(at.weights)[:_SPATIAL]
    if inputs % groups or outputs % groups or shape != (outputs, inputs // groups):
        return "its weights do not have the channels of its input and output"
    if not _is_one(operation, at.zero):
        return "its input has several zero points"
    return operation.why_computed({at.weights: "weights are", at.weights_zero: "zero point is"})


def refuse_qlinear_conv(operation: Operation) -> str | None:
    """Say why a QLinearConv is not taken."""
    problem = refuse_conv_integer(operation)
    if problem:
        return problem
    for position, name in ((1, "x_scale"), (_Q_SCALE, "y_scale"), (_Q_ZERO, "y_zero_point")):
        if not _is_one(operation, position):
            return f"its {name} is not one number"
    known = {1: "x_scale is", 4: "w_scale is", _Q_SCALE: "y_scale is", _Q_ZERO: "y_zero_point is"}
    return operation.why_computed({**known, _Q_B: "bias is"})


def _is_one(operation: Operation, position: int) -> bool:
    """Tell whether an input is one number, if it is there."""
    value = operation.value(position)
    return value is None or value.shape in ((), (1,))


# In which layouts


def wish_integer_conv(operation: Operation, unit: CpuModel) -> Wish:
    """Return what a convolution of codes wants of layouts."""
    problem = _Reading.of(operation, unit)
    if problem.kind is ConvKind.PLAIN:
        return Wish()
    is_copied = _is_made_of_blocks(operation, problem, unit)
    if problem.is_tiled or problem.has_border or is_copied:  # its copy has the border
        return Wish("blocked")
    borders = ((operation.node.inputs[0], problem.pads),) if problem.dtype in BYTES else ()
    return Wish("blocked", borders=borders)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a convolution reads its codes.

    Attributes:
        kind: Its kernel.
        pads: Its padding.
        weights: Without their zero points, in the least dtype that holds them.
        dtype: Of the input as the kernel reads it: its own, or a wide one without zero points.
        is_small: Whether a plain kernel widens both as it reads them.
        is_tiled: Whether it is a product of tiles.
        x_block: Channels of a block that a plain kernel reads; 1 for channels as they lie.
        has_border: Whether its padding is a zero point that is not 0: its copy has that.
    """

    kind: ConvKind
    pads: Pads
    weights: Array
    dtype: str
    is_small: bool = False
    is_tiled: bool = False
    x_block: int = 1
    has_border: bool = False

    @classmethod
    def of(cls, operation: Operation, unit: CpuModel) -> _Reading:
        at = _places(operation)
        weights = _centred(operation, at)
        groups = operation.attribute("group", 1)
        inputs, outputs = operation.shape()[CHANNELS], operation.output_shape[CHANNELS]
        kind = choose(groups, inputs, outputs, unit)
        if unit.is_small or unit.lanes() < max(DOT_GROUPS.values()):  # a block holds no group
            kind = ConvKind.PLAIN
        window = read_window(operation, weights.shape[_SPATIAL:])
        pads = window.pads
        is_small = unit.is_small
        is_dot = unit.has_byte_dots and weights.dtype == np.int8
        if kind is ConvKind.PLAIN:
            is_dot = is_dot and window.strides[-1] <= MOST_LOADS and not is_small
            is_dot = is_dot and least(operation.output_shape[-1]) > 1  # else there are no rows
            is_dot = is_dot and inputs // groups % DOT_GROUPS["int8"] == 0
            has_bytes = is_small or is_dot or _is_exact(weights)
        else:
            has_bytes = kind is ConvKind.DEPTHWISE or is_dot
        is_known = operation.value(at.zero) is None or operation.is_constant(at.zero)
        may_tile = kind is ConvKind.DIRECT and is_known and weights.dtype == np.int8
        if may_tile and weights.size and fits_tiles_of_codes(operation, window, unit):
            return cls(kind, pads, weights, operation.inputs[0].dtype, is_tiled=True)
        is_zero = is_known and not _zero(operation, at)
        has_border = any(map(any, pads)) and not is_zero
        # A copy as bytes, with a border that is no zeros, is half of one as int16.
        is_copied = unit.has_byte_dots if kind is not ConvKind.PLAIN else not is_small
        is_read = has_bytes and is_known and (not has_border or is_copied)
        wide = _SUM if kind is ConvKind.PLAIN and not is_small else _WIDE
        dtype = operation.inputs[0].dtype if is_read else wide
        is_blocked = is_read and is_dot and kind is ConvKind.PLAIN
        x_block = DOT_GROUPS["int8"] if is_blocked else 1
        has_border = is_read and has_border
        return cls(kind, pads, weights, dtype, is_small, x_block=x_block, has_border=has_border)

    @property
    def weight_dtype(self) -> str:
        """What the kernel multiplies with."""
        if self.kind is ConvKind.DIRECT:
            return self.weights.dtype.name if self.dtype in BYTES else _WIDE
        if self.kind is ConvKind.PLAIN and (self.is_small or self.x_block > 1):
            return self.weights.dtype.name
        return "float32" if _is_exact(self.weights) else _SUM


_LARGEST = 255
"""The largest code, and the largest difference of two."""


def _is_exact(weights: Array) -> bool:
    """Tell whether float32 holds every sum of codes times the weights of an output channel."""
    sums = np.abs(weights.astype(np.int64)).reshape(len(weights), -1).sum(-1)
    return int(sums.max(initial=0)) * _LARGEST < _EXACT


def _zero(operation: Operation, at: _ConvolutionPlaces) -> int:
    """Return the known zero point of the input."""
    if operation.value(at.zero) is None:
        return 0
    return int(operation.array(at.zero).reshape(()))


def _centred(operation: Operation, at: _ConvolutionPlaces) -> Array:
    """Return the weights without their zero points, in the least dtype that holds them."""
    weights = operation.array(at.weights).astype(np.int16)
    if operation.value(at.weights_zero) is not None:
        zero = operation.array(at.weights_zero).astype(np.int16)
        weights = weights - zero.reshape(-1, *(1,) * (weights.ndim - 1))
    limits = np.iinfo(np.int8)
    is_byte = bool(((weights >= limits.min) & (weights <= limits.max)).all())
    return weights.astype(np.int8) if is_byte else weights


# Operators


def lower_conv_integer(assembler: Assembler, group: KernelGroup) -> None:
    """Append a convolution of codes without their zero points, as int32."""
    _append(assembler, group, None, _Steps().recipe)


def lower_qlinear_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append a convolution of codes, and bring its sums to the codes of the result.

    In float64, in which ONNX's reference evaluator does it: a float32 does not hold every sum.
    """
    operation, wide = group.anchor, "float64"
    x_scale, w_scale, y_scale = (
        operation.array(position).reshape(-1) for position in (_X_SCALE, _W_SCALE, _Q_SCALE)
    )
    factor = (x_scale * w_scale / y_scale).astype(np.float32).astype(wide)
    zero = 0 if operation.value(_Q_ZERO) is None else int(operation.array(_Q_ZERO).reshape(()))
    bias = operation.array(_Q_B) if operation.value(_Q_B) is not None else None
    limits = np.iinfo(operation.output.dtype)
    steps = _Steps()
    steps.convert(_SUM, wide)
    steps.apply("Mul", "factor", factor)
    if zero:
        steps.apply("Add", "offset", np.array([zero], wide))
    steps.round(float(limits.min), float(limits.max), operation.output.dtype)
    _append(assembler, group, bias, steps.recipe)


def lower_dequantized_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append a convolution of codes, and make numbers of its sums by the scales of operands."""
    operation = group.anchor
    steps = _Steps()
    steps.convert(_SUM, "float32")
    steps.apply("Mul", "scales", _scales(operation).astype(np.float32))
    bias = _bias(operation)
    if bias is not None:
        steps.apply("Add", "bias", bias.astype(np.float32))
    _append(assembler, group, None, steps.recipe)


def lower_requantized_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append a convolution of codes, and bring its sums to the codes of the result.

    In float32: one product and one sum, with the scale of the result in both, and an activation in
    the limits of the codes.
    """
    operation = group.anchor
    dtype = operation.output.dtype
    scale = float(operation.array(_Y_SCALE).reshape(()))
    zero = 0 if operation.value(_Y_ZERO) is None else int(operation.array(_Y_ZERO).reshape(()))
    limits = np.iinfo(dtype)
    low = max(limits.min - zero, operation.attribute("low") / scale)
    high = min(limits.max - zero, operation.attribute("high") / scale)
    steps = _Steps()
    steps.convert(_SUM, "float32")
    steps.apply("Mul", "scales", (_scales(operation) / scale).astype(np.float32))
    bias = _bias(operation)
    if bias is not None:
        steps.apply("Add", "bias", (bias / scale).astype(np.float32))
    steps.clip(low, max(low, high))
    steps.then("Round")
    steps.convert("float32", _SUM)  # which CPUs do when they round
    if zero:
        steps.apply("Add", "offset", np.array([zero], _SUM))
    steps.convert(_SUM, dtype, FITS)
    _append(assembler, group, None, steps.recipe)


def _scales(operation: Operation) -> Array:
    """Return what a sum of each channel, or of all, is multiplied by, in float64."""
    x_scale, w_scale = (operation.array(i).astype(np.float64) for i in (_X_SCALE, _W_SCALE))
    scales: Array = x_scale.reshape(()) * w_scale.reshape(-1)
    return scales


def _bias(operation: Operation) -> Array | None:
    """Return what is added to each channel, in float64."""
    if operation.value(_B) is None:
        return None
    bias = operation.array(_B).astype(np.float64)
    if operation.value(_B_ZERO) is not None:
        bias = bias - operation.array(_B_ZERO)
    if operation.value(_B_SCALE) is not None:
        bias = bias * operation.array(_B_SCALE)
    return bias


def lower_fixed_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append a convolution of codes whose sums become codes as TFLite defines it."""
    operation = group.anchor

    def recipe(name: str, rank: int, before: Array | None) -> Recipe:
        steps = Steps(name, (ANCHOR,), rank, CHANNELS)
        total = steps.source(0)
        if before is not None:
            total = steps.apply("Add", total, steps.constant("sums", before))
        total = steps.scaled(total, "factor", *map(factor_of, factors_of(operation)))
        steps.as_codes(total, operation, _Y_SCALE)
        return Recipe(*steps.finish())

    _append(assembler, group, bias_of(operation), recipe)


class _Steps:
    """Steps from the sums on, each of what the one before makes."""

    def __init__(self) -> None:
        self._operands: list[tuple[str, Array]] = []
        self._steps: list[tuple[Apply, int | None]] = []
        self._dtype = _SUM

    def then(self, op_type: str, **attributes: float) -> None:
        """Append a step of one operand."""
        self._steps.append(
            (Apply(op_type, (), tuple(sorted(attributes.items())), self._dtype), None)
        )

    def apply(self, op_type: str, role: str, array: Array) -> None:
        """Append a step with numbers of each channel, or one for all."""
        self._steps.append((Apply(op_type, (), (), self._dtype), len(self._operands)))
        self._operands.append((role, array))

    def convert(self, source: str, target: str, attributes: Attributes = ()) -> None:
        """Append a conversion."""
        self._steps.append((convert_step(0, source, target, attributes), None))
        self._dtype = target

    def clip(self, low: float, high: float) -> None:
        """Append limits."""
        self.then("Clip", min=float(low), max=float(high))

    def round(self, low: float, high: float, dtype: str) -> None:
        """Append what makes codes."""
        source = self._dtype
        self.then("Round")
        self.clip(low, high)
        self.convert(source, dtype)

    def recipe(self, name: str, rank: int, before: Array | None) -> Recipe:
        """Return the recipe of a node, with something that is added to the sums before."""
        operands, steps = list(self._operands), list(self._steps)
        if before is not None:
            steps.insert(0, (Apply("Add", (), (), _SUM), len(operands)))
            operands.append(("sums", before))
        sources: list[Source] = [ANCHOR]
        for role, array in operands:
            sources.append((f"{name}/{role}", array.reshape(-1, *(1,) * (rank - _SPATIAL))))
        count = len(sources)
        out = []
        for number, (step, place) in enumerate(steps):
            last = count + number - 1 if number else 0
            arguments = (last,) if place is None else (last, 1 + place)
            out.append(replace(step, arguments=arguments))
        return Recipe(tuple(sources), tuple(out))


def _append(
    assembler: Assembler,
    group: KernelGroup,
    bias: Array | None,
    recipe: Callable[[str, int, Array | None], Recipe],
) -> None:
    """Append the call of the kernel that a convolution of codes is for.

    Args:
        assembler: Of the program.
        group: What the convolution anchors.
        bias: What is added to the sums of each channel; None for nothing.
        recipe: Returns what is done with the sums, from the node's name, the dimensions of its
            result, and what is added to the sums before, int32.
    """
    operation = group.anchor
    at = _places(operation)
    reading = _Reading.of(operation, assembler.unit)
    weights, name = reading.weights, operation.node.name
    window = read_window(operation, weights.shape[_SPATIAL:]).at(operation.output_shape[_SPATIAL:])
    has_winograd = _has_winograd(assembler, operation, reading, window)
    steps = (
        None if has_winograd or reading.is_tiled else _steps_of_pairs(assembler, operation, reading)
    )
    if steps is not None:
        reading = replace(reading, dtype=_PAIRED)
    rank = len(operation.output_shape)
    first = recipe(name, rank, _before(operation, at, reading, bias))
    fused, operands = fuse(assembler, group, _SUM, first)
    y = assembler.target(group.result)
    value = operation.value(at.weights)
    assert value is not None
    if reading.is_tiled:
        placed = TiledResult(window, y, fused, operands)
        append_tiled_codes(
            *(assembler, group, placed, reading.pads, _zero(operation, at), weights),
            f"{value.name}/less {name}",
        )
        return
    make: Callable[..., _ConvSpec]
    if steps is not None:
        lies = _Lying(window, y.layout, fused).in_a_row(reading)
        strip = strip_of(lies.window.out[-1], assembler.unit) if lies.is_row else 0
        x, x_layout = _read_paired(assembler, operation, reading, window, strip)
        make = partial(PairConv, steps=steps.capacity, strip=strip)
    else:
        x = _read(assembler, operation, reading)
        x_layout, lies = x.layout, _Lying(window, y.layout, fused)
        if has_winograd:
            is_padded = all(after > 0 for _, after in reading.pads)
            threads = assembler.threads
            make = partial(Winograd, outputs=_TILE, threads=threads, is_padded=is_padded)
        else:
            makers: dict[ConvKind, Callable[..., _ConvSpec]] = {
                ConvKind.DIRECT: partial(Conv, x_block=x.block),
                ConvKind.DEPTHWISE: Depthwise,
                ConvKind.PLAIN: partial(PlainConv, x_block=reading.x_block),
            }
            make = makers[reading.kind]
    spec = make(
        x.shape[0],
        operation.attribute("group", 1),
        operation.shape()[CHANNELS],
        y.shape[CHANNELS],
        lies.window,
        x_layout,
        lies.y,
        epilogue=lies.epilogue,
        unit=assembler.unit,
        weight_dtype=reading.weight_dtype,
    )
    spec = assembler.choose(spec)
    family = weight_family(spec)
    key = f"{value.name}/less {name}/{family.packing(spec)}"
    pack = partial(family.pack, spec, weights) if steps is None else steps.packed
    packed = assembler.packed(key, pack)
    note = f"{x.dtype} times {reading.weight_dtype}"
    note += f", Winograd {spec.algorithm}" if isinstance(spec, Winograd) else ""
    if steps is not None and isinstance(spec, PairConv):
        strides = "x".join(map(str, spec.normalised().x.strides))
        make_places = partial(place_steps, spec, steps)
        operands = [*operands, assembler.packed(f"{key}/places {strides}", make_places)]
        note += " by twos"
    assembler.call(spec, (x, packed, y, *operands), group.names, note)


def _before(
    operation: Operation, at: _ConvolutionPlaces, reading: _Reading, bias: Array | None
) -> Array | None:
    """Return what is added to the sums of each channel, int32; None for nothing."""
    before: Array | None = None if bias is None else bias.astype(np.int32)
    if reading.dtype in BYTES and _zero(operation, at):
        weights = reading.weights
        sums = weights.astype(np.int32).reshape(len(weights), -1).sum(-1, dtype=np.int32)
        before = (0 if before is None else before) - sums * np.int32(_zero(operation, at))
    return before


_ConvSpec: TypeAlias = Winograd | Conv | PairConv | Depthwise | PlainConv
_TILE = 2
"""The outputs of a tile of Winograd's transforms that are exact."""


def _has_winograd(
    assembler: Assembler, operation: Operation, reading: _Reading, window: Window
) -> bool:
    """Tell whether a convolution is computed by Winograd's transforms, as exact as directly."""
    if reading.kind is not ConvKind.DIRECT or reading.dtype != _WIDE:
        return False
    if assembler.winograd is WinogradMode.OFF:
        return False
    images, inputs = least(operation.shape()[0]), operation.shape()[CHANNELS]
    outputs, groups = operation.output_shape[CHANNELS], operation.attribute("group", 1)
    if not fits_winograd(window, images, groups, inputs, outputs, assembler.unit):
        return False
    sums = np.abs(reading.weights.astype(np.int64)).reshape(outputs, -1).sum(-1)
    return bool(EXACT_FACTOR * _LARGEST * sums.max() < 1 << 31)


def _steps_of_pairs(
    assembler: Assembler, operation: Operation, reading: _Reading
) -> PairSteps | None:
    """Return the steps of a convolution by pairs of bytes, or None where that does not pay."""
    unit, at = assembler.unit, _places(operation)
    if not unit.has_byte_pairs or unit.has_byte_dots or reading.kind is not ConvKind.DIRECT:
        return None
    is_taken = operation.inputs[0].dtype == _PAIRED and reading.weights.dtype == np.int8
    is_whole = assembler.plan.blocks.get(operation.node.inputs[0]) == assembler.lanes
    is_known = operation.value(at.zero) is None or operation.is_constant(at.zero)
    if not (is_taken and is_whole and is_known) or operation.attribute("group", 1) > 1:
        return None
    if _zero(operation, at) and any(map(any, reading.pads)):  # what is padded is zeros
        return None
    if 0 in reading.weights.shape or 0 in operation.output_shape:
        return None
    steps = find_steps(reading.weights, assembler.lanes)
    return steps if steps.cost < _MOST_COST else None


_PAIRED = "uint8"
_MOST_COST = 1.3
"""What a group costs as pairs of int16; see `pair_conv.STEP_COSTS`."""


@dataclass(frozen=True, slots=True)
class _Lying:
    """What a convolution writes.

    Attributes:
        window: Its positions.
        y: Where they lie.
        epilogue: What is done with them.
        is_row: Whether they are one row, each of which reads one entry, all of them in order.
    """

    window: Window
    y: Layout
    epilogue: Fused
    is_row: bool = False

    def in_a_row(self, reading: _Reading) -> _Lying:
        """Return the same over what `_read_paired` writes, as one row if layouts allow that."""
        window = _thinned(reading, self.window)
        dense = Layout(_PAIRED, row_major((1, 1, *window.out, 1)))
        row, _, y, epilogue = normalise(window, dense, self.y, self.epilogue)
        is_point = {*row.kernel, *row.strides} == {1} and not any(map(any, reading.pads))
        if is_point and row.out[:-1] == (1,):
            return _Lying(row, y, epilogue, is_row=True)
        return replace(self, window=window)


def _thinned(reading: _Reading, window: Window) -> Window:
    """Return a window over the entries that are read where a single tap reads with strides."""
    dims = zip(window.strides, window.kernel, reading.pads, strict=True)
    strides = (1 if taps == 1 and not any(pad) else stride for stride, taps, pad in dims)
    return replace(window, strides=tuple(strides))


def _read_paired(
    assembler: Assembler, operation: Operation, reading: _Reading, window: Window, strip: int
) -> tuple[View, Layout]:
    """Return the codes of the input, with their padding, in all pairs, and how they lie.

    One copy is for all readers. Of entries between those that a single tap reads there is none.

    Args:
        assembler: Of the program.
        operation: The convolution.
        reading: How it reads.
        window: As the operator has it.
        strip: Positions of a strip; 0 for none.
    """
    value, lanes = operation.inputs[0], assembler.lanes
    kept = _thinned(reading, window).strides
    steps = tuple(old // new for old, new in zip(window.strides, kept, strict=True))

    def make(border: Pads | None) -> View:
        source = assembler.read(value.id, lanes)
        for dim, (step, extent) in enumerate(zip(steps, window.out, strict=True), _SPATIAL):
            source = source.part(dim, 0, extent, step) if step > 1 else source
        images, blocks, *rows = source.domain[:-1]
        if strip:
            strips = -(-math.prod(rows) // strip)
            shape = (images, strips, blocks, strip, SPREAD * lanes)
            view = assembler.scratch(source.dtype, shape)
        else:
            shape = (images, SPREAD * lanes * blocks, *rows)
            view = assembler.scratch(source.dtype, shape, SPREAD * lanes, border)
        spec = PairedCodes(source.domain, source.layout, view.layout, strip)
        assembler.call(spec, (source, view), (), f"{value.name} in pairs")
        return view

    block = 0 if strip else SPREAD * lanes
    pads = () if strip else _kept_apart(operation.shape()[_SPATIAL:], reading.pads, block)
    x = assembler.read_as((value.id, "pairs", steps, strip), block, pads, make)
    layout = x.layout
    if strip:
        image, number, *inner, position, entry = layout.strides
        layout = replace(layout, strides=(image, *inner, number, position, entry))
    return x, layout


def _kept_apart(extents: Sequence[Size], pads: Pads, block: int) -> Pads:
    """Return a border that is wider by a column if blocks of channels would lie pages apart.

    All blocks of a position would share a few lines of the first cache then: 512 channels at
    16 x 16, of which 7 x 7 are computed, took 1.13 of the time (Zen 3).
    """
    sizes = [sum(pad, extent) for extent, pad in zip(extents, pads, strict=True)]
    nbytes = math.prod(map(typical, sizes)) * block
    *others, (before, after) = pads
    return pads if nbytes % _PAGE_BYTES else (*others, (before, after + 1))


_PAGE_BYTES = 4096


def _read(assembler: Assembler, operation: Operation, reading: _Reading) -> View:
    """Return the codes of the input, with their padding, as the kernel reads them."""
    value, at = operation.inputs[0], _places(operation)
    block = _block(assembler, operation, reading)
    if block > assembler.lanes and assembler.plan.blocks.get(value.id) == assembler.lanes:
        return _in_wide_blocks(assembler, value, block, reading.pads, _zero(operation, at))
    if reading.has_border:
        return assembler.read_inside(value.id, block, reading.pads, _zero(operation, at))
    if reading.dtype in BYTES:
        view = assembler.read(value.id, block, reading.pads)
        return _in_rows(assembler, value, view) if reading.x_block > 1 else view
    zero = operation.value(at.zero)
    is_moved = zero is not None and not (zero.constant is not None and not _zero(operation, at))
    zero_id = zero.id if zero is not None and is_moved else None
    return assembler.read_less(value.id, zero_id, reading.dtype, block, reading.pads)


def _in_rows(assembler: Assembler, value: Value, view: View) -> View:
    """Return codes in blocks of few channels, whose positions in a row have no gaps."""
    if view.strides[-2:] == (view.block, 1):
        return view
    dense = assembler.scratch(view.dtype, view.shape, view.block)
    assembler.copy(view, dense, (), f"{value.name} in rows")
    return dense


def _in_wide_blocks(assembler: Assembler, value: Value, block: int, pads: Pads, zero: int) -> View:
    """Return codes in blocks of channels twice as wide as those in which they lie.

    Args:
        assembler: Of the program.
        value: The codes.
        block: Channels of a block.
        pads: The border.
        zero: What the border is.
    """

    def make(border: Pads | None) -> View:
        source = assembler.read(value.id, assembler.lanes)
        wide = assembler.scratch(value.dtype, source.shape, block, border, outside=zero)
        images, blocks, *spatial, lanes = source.domain
        by_image, by_block, *steps, _ = source.strides
        body, note = identity(value.dtype), f"{value.name} in blocks of {block}"
        for half in range(2):
            # Where the last half is missing, its weights are zeros: it may be anything.
            domain = (images, (blocks + 1 - half) // 2, *spatial, lanes)
            item = source.at((0, half, *[0] * (len(spatial) + 1)))
            part = wide.at((0, 0, *[0] * len(spatial), half * lanes))
            layouts = (
                replace(item.layout, strides=(by_image, 2 * by_block, *steps, 1)),
                part.layout,
            )
            if 0 not in domain:
                spec = Elementwise(domain, layouts[:1], layouts[1:], body, assembler.unit)
                assembler.call(spec, (item, part), (), note)
        return wide

    return assembler.read_as((value.id, "blocks", zero), block, pads, make)


def _is_made_of_blocks(operation: Operation, reading: _Reading, unit: CpuModel) -> bool:
    """Tell whether products of a convolution are made of blocks of two by two sums.

    Where channels of the input lie in narrower blocks, a copy of it has wider ones: each byte is
    moved once, and multiplied as often as there are output channels.
    """
    channels, outputs = operation.shape()[CHANNELS], operation.output_shape[CHANNELS]
    if reading.kind is not ConvKind.DIRECT or operation.attribute("group", 1) > 1:
        return False
    block = blocked_channels(reading.dtype, reading.weight_dtype, unit)
    return 0 < block < 2 * channels and outputs >= _LEAST_OUTPUTS


_LEAST_OUTPUTS = 16
"""Output channels for which a copy of the input costs little beside products."""


def _block(assembler: Assembler, operation: Operation, reading: _Reading) -> int:
    """Return the blocks that a convolution reads; few plain channels are filled up to groups."""
    if reading.kind is ConvKind.PLAIN:
        return reading.x_block if reading.x_block > 1 else 0
    is_blocked = bool(assembler.plan.blocks.get(operation.node.inputs[0]))
    channels = operation.shape()[CHANNELS]
    if _is_made_of_blocks(operation, reading, assembler.unit):
        return blocked_channels(reading.dtype, reading.weight_dtype, assembler.unit)
    is_wide = channels >= assembler.lanes or operation.attribute("group", 1) > 1
    if is_blocked or is_wide or reading.kind is ConvKind.DEPTHWISE:
        return assembler.lanes
    group = DOT_GROUPS[reading.dtype]
    return -(-channels // group) * group
