# SPDX-License-Identifier: Apache-2.0
"""Conv and ConvTranspose: which kernel computes them, in which layouts, with which weights.

A transposed convolution is one for each phase of the output's strides. Output o meets tap t where
`o + pad = i * stride + t * dilation` has an input i. Outputs that are congruent modulo the stride
meet the same taps, so they are a convolution of stride 1 with these taps in reverse, whose results
lie a stride apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import TypeAlias

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Fused
from intarsia.codegen.kernels import grid_conv, grid_strips, winograd
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.conv_plain import PlainConv
from intarsia.codegen.kernels.convolution import ConvKind, choose, pack_bias
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.families import weight_family
from intarsia.codegen.kernels.grid_conv import GridConv
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.kernels.winograd import Winograd
from intarsia.codegen.kernels.winograd.schedules import choose_winograd, fits_winograd
from intarsia.codegen.kernels.winograd.transform import LIMIT, OUTPUTS, error_ratio
from intarsia.codegen.lower.activations import refuse_activation, with_activation
from intarsia.codegen.lower.assembler import Assembler, TiledReads
from intarsia.codegen.lower.grid import shared_conv
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.layouts import Wish, widest
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import bfloat16_weights
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, fuse, over
from intarsia.codegen.lower.tiles import append_tiled, fits_tiles, reads_few
from intarsia.codegen.lower.views import Pads, View
from intarsia.codegen.lower.windows import read_conv_window
from intarsia.codegen.unit import CpuModel, WinogradMode
from intarsia.extents import Size, least, typical

FUSED = "com.microsoft.FusedConv"
_SPATIAL = 2
"""The first spatial dimension."""


def conv_kind(operation: Operation, unit: CpuModel) -> ConvKind:
    """Return the kernel that computes a convolution; without packing, only the plain one does."""
    if not operation.is_constant(1):
        return ConvKind.PLAIN
    inputs, outputs = operation.shape()[1], operation.output_shape[1]
    return choose(operation.attribute("group", 1), inputs, outputs, unit)


def refuse_conv(operation: Operation) -> str | None:
    """Say why a convolution is not taken."""
    if len(operation.shape()) <= _SPATIAL:
        return "it has no spatial dimension"
    inputs, outputs = operation.shape()[1], operation.output_shape[1]
    groups = operation.attribute("group", 1)
    wanted = (outputs, inputs // groups)
    if operation.op_type == "ConvTranspose":
        wanted = (inputs, outputs // groups)
    if len(operation.shape(1)) != len(operation.shape()):
        return "its weights do not have the dimensions of its input"
    if inputs % groups or outputs % groups or operation.shape(1)[:_SPATIAL] != wanted:
        return "its weights do not have the channels of its input and output"
    if operation.value(2) is not None and operation.shape(2) != (outputs,):
        return "its bias does not have the channels of its output"
    return None


def wish_conv(operation: Operation, unit: CpuModel) -> Wish:
    """Return what a convolution wants of layouts."""
    if conv_kind(operation, unit) is ConvKind.PLAIN:
        # Blocks are worth it for tiles where they are there already, as behind a 1 x 1 convolution.
        follows = (operation.node.inputs[0],)
        return Wish("follow", follows) if _may_take_tiles(operation, unit) else Wish()
    if _may_take_tiles(operation, unit):  # its copy has the zeros
        return Wish("blocked")
    pads = _pads(operation)
    return Wish("blocked", borders=((operation.node.inputs[0], pads),))


def _pads(operation: Operation) -> Pads:
    if operation.op_type == "ConvTranspose":
        parts = _transposed(operation)
        return tuple(zip(parts.before, parts.after, strict=True))
    return read_conv_window(operation).pads


def _transposed(operation: Operation) -> Transposed:
    extents, out = operation.shape()[_SPATIAL:], operation.output_shape[_SPATIAL:]
    attributes = read_conv_window(operation)
    befores = [before for before, _ in attributes.pads]
    if operation.attribute("auto_pad", "NOTSET").startswith("SAME") or operation.attribute(
        "output_shape"
    ):
        # the spec derives the padding from the shape that the result is to have; there is none
        # where that is longer, as in the convolution that it turns round and in onnxruntime
        extra = operation.attribute("output_padding") or (0,) * len(out)
        befores = []
        for dim, (extent, wanted) in enumerate(zip(extents, out, strict=True)):
            reach = (attributes.kernel[dim] - 1) * attributes.dilations[dim] + 1
            natural = attributes.strides[dim] * (extent - 1) + extra[dim] + reach
            total = max(0, natural - wanted)
            is_upper = operation.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
            befores.append(total // 2 if is_upper else total - total // 2)
    return transposed_parts(
        extents, out, attributes.kernel, attributes.strides, attributes.dilations, befores
    )


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """One convolution: tensors, weights and what follows; `x` includes the padding.

    Constant weights are an array (out_channels, in_channels / groups, *kernel), others a view over
    (groups, out_channels / groups, in_channels / groups, *kernel), which is turned if its taps are
    in reverse. `is_padded` tells whether there is padding at the end of each dimension.
    """

    kind: ConvKind
    groups: int
    x: View
    y: View
    window: Window
    weights: Array | View
    key: str
    bias: View | None
    epilogue: Fused
    operands: tuple[View, ...]
    is_padded: bool = False
    is_turned: bool = False


def lower_conv(assembler: Assembler, group: KernelGroup) -> None:
    """Append the call of a convolution with its epilogue."""
    if _takes_tiles(assembler, group):
        is_few = group.anchor.attribute("group", 1) == 1
        is_few = is_few and reads_few(group.anchor.shape()[1], read_conv_window(group.anchor))
        block = 0 if is_few else assembler.lanes
        x = assembler.read(group.anchor.node.inputs[0], block, is_wide=True)
        problem = conv_problem(assembler, group, x, assembler.target(group.result))
        append_tiled(assembler, group, problem, _pads(group.anchor))
        return
    x = read_conv(assembler, group.anchor)
    append_conv(assembler, group, conv_problem(assembler, group, x, assembler.target(group.result)))


def _takes_tiles(assembler: Assembler, group: KernelGroup) -> bool:
    """Tell whether a convolution is a product of tiles of bfloat16."""
    operation, unit = group.anchor, assembler.unit
    if not _may_take_tiles(operation, unit):
        return False
    is_direct = conv_kind(operation, unit) is ConvKind.DIRECT
    if is_direct and assembler.halves.get(operation.inputs[1].id):
        return False
    if assembler.plan.blocks.get(group.result, 0) != assembler.lanes:
        return False
    return bool(bfloat16_weights(operation.array(1))[0])


def find_tiled_reads(
    assembler: Assembler, groups: Sequence[KernelGroup]
) -> Mapping[int, TiledReads]:
    """Return how convolutions that are products of tiles read values, by value id.

    Args:
        assembler: Of the program.
        groups: Those of the region that are lowered by themselves.
    """
    if not assembler.unit.has_bf16_tiles:
        return {}
    readers: dict[int, dict[int, Pads]] = {}
    for group in groups:
        operation = group.anchor
        if operation.op_type in ("Conv", FUSED) and _takes_tiles(assembler, group):
            by_node = readers.setdefault(operation.inputs[0].id, {})
            by_node[operation.node.id] = _pads(operation)
    graph, outputs, parents = assembler.graph, assembler.region.outputs, assembler.plan.parents
    found = {}
    for value_id, by_node in readers.items():
        first, *others = by_node.values()
        is_once = all(graph.nodes[node].inputs.count(value_id) == 1 for node in by_node)
        is_all = is_once and set(graph.values[value_id].consumers) == by_node.keys()
        is_seen = value_id in outputs or value_id in parents
        found[value_id] = TiledReads(reduce(widest, others, first), is_all and not is_seen)
    return found


def _may_take_tiles(operation: Operation, unit: CpuModel) -> bool:
    """Tell whether a convolution may be a product of tiles; of few channels in a group, it is."""
    is_transposed = operation.op_type == "ConvTranspose"
    if is_transposed or not operation.is_constant(1) or not fits_tiles(operation, unit):
        return False
    kind = conv_kind(operation, unit)
    if kind is ConvKind.DIRECT:
        return True
    # Blocks are only for tiles then: what these do not hold is found before layouts are.
    is_grouped = kind is ConvKind.PLAIN and operation.attribute("group", 1) > 1
    return is_grouped and bool(bfloat16_weights(operation.array(1))[0])


def read_conv(assembler: Assembler, operation: Operation) -> View:
    """Return the input of a convolution, with its padding, as its kernel wants it."""
    kind = conv_kind(operation, assembler.unit)
    block = _input_block(assembler, operation, kind)
    return assembler.read(operation.node.inputs[0], block, _pads(operation), is_wide=True)


def conv_window(operation: Operation) -> Window:
    """Return the window of a `Conv`."""
    return read_conv_window(operation).at(operation.output_shape[_SPATIAL:])


def conv_problem(assembler: Assembler, group: KernelGroup, x: View, y: View) -> ConvProblem:
    """Return the convolution of a group from one tensor to another."""
    operation = group.anchor
    fused, operands = fuse(assembler, group, first=_first_steps(operation))
    kind, groups = conv_kind(operation, assembler.unit), operation.attribute("group", 1)
    weights: Array | View
    if operation.is_constant(1):
        weights = operation.array(1)
    else:
        whole = assembler.read(operation.node.inputs[1])
        outputs, (step, *steps) = whole.shape[0] // groups, whole.strides
        weights = replace(
            whole,
            shape=(groups, outputs, *whole.shape[1:]),
            strides=(outputs * step, step, *steps),
        )
    return ConvProblem(
        kind=kind,
        groups=groups,
        x=x,
        y=y,
        window=conv_window(operation),
        weights=weights,
        key=operation.inputs[1].name,
        bias=_bias(assembler, operation, kind),
        epilogue=fused,
        operands=tuple(operands),
        is_padded=all(after > 0 for _, after in _pads(operation)),
    )


def refuse_fused_conv(operation: Operation) -> str | None:
    """Say why a convolution with a sum and an activation is not taken."""
    summand = operation.value(3)
    if summand is not None and summand.shape != operation.output_shape:
        return "what is added does not have the shape of its result"
    return refuse_activation(operation) or refuse_conv(operation)


def _first_steps(operation: Operation) -> Recipe | None:
    """Return what belongs to a convolution itself behind its products."""
    if operation.op_type != FUSED:
        return None
    summand = operation.value(3)
    total = None
    if summand is not None:
        total = Recipe((ANCHOR, summand.id), (Apply("Add", (0, 1)),))
    return with_activation(operation, total)


def lower_conv_transpose(assembler: Assembler, group: KernelGroup) -> None:
    """Append one convolution for each phase of the output's strides."""
    operation = group.anchor
    kind, parts = conv_kind(operation, assembler.unit), _transposed(operation)
    block = _input_block(assembler, operation, kind)
    x = assembler.read(operation.node.inputs[0], block, _pads(operation), is_wide=True)
    fused, operands = fuse(assembler, group)
    y, groups = assembler.target(group.result), operation.attribute("group", 1)
    strides = read_conv_window(operation).strides
    name = f"{operation.node.name}/{operation.inputs[1].name}"
    weights: Array | View
    if is_constant := operation.is_constant(1):
        weights = operation.array(1)
    else:
        weights = assembler.read(operation.node.inputs[1])
    bias = _bias(assembler, operation, kind)
    # No zeros are multiplied, as they would be if they were put between the input's entries.
    for number, phase in enumerate(parts.phases):
        out, begin = phase.window.out, phase.y_offset
        views = [_every(view, begin, strides, out) for view in (y, *operands)]
        taps = (*x.shape[:2], *phase.window.reach)
        start = [0, 0, *phase.x_offset, *[0] * bool(x.block)]
        problem = ConvProblem(
            kind=kind,
            groups=groups,
            x=replace(x.at(start), shape=taps),
            y=views[0],
            window=phase.window,
            weights=phase.weights(weights, groups),
            key=f"{name}/phase{number}",
            bias=bias,
            epilogue=over(fused, views[1:]),
            operands=tuple(views[1:]),
            is_turned=not is_constant,
        )
        append_conv(assembler, group, problem)


def _every(view: View, begin: Sequence[int], steps: Sequence[int], out: Sequence[int]) -> View:
    """Return a tensor's entries that are some steps apart in the spatial dimensions."""
    strides = list(view.strides)
    for dim, step in enumerate(steps, start=_SPATIAL):
        strides[dim] *= step
    moved = view.at([0, 0, *begin, *[0] * bool(view.block)])
    return replace(moved, shape=(*view.shape[:_SPATIAL], *out), strides=tuple(strides))


def _input_block(assembler: Assembler, operation: Operation, kind: ConvKind) -> int:
    """Return the blocks that a convolution reads.

    Plain images of few channels are read by the direct kernel as they are; more channels are worth
    a conversion, and groups need it.
    """
    if kind is ConvKind.PLAIN:
        return 0
    is_blocked = bool(assembler.plan.blocks.get(operation.node.inputs[0]))
    is_wide = operation.shape()[1] >= assembler.lanes or operation.attribute("group", 1) > 1
    return assembler.lanes if is_blocked or is_wide or kind is ConvKind.DEPTHWISE else 0


def append_conv(assembler: Assembler, group: KernelGroup, problem: ConvProblem) -> None:
    """Append the call of the kernel that a convolution is for."""
    operation, weights = group.anchor, problem.weights
    biases = [] if problem.bias is None else [problem.bias]
    describe = partial(_describe, assembler, problem)
    if isinstance(weights, View):
        plain = describe(0)
        assert isinstance(plain, PlainConv)
        plain = replace(plain, weights=weights.strides, is_turned=problem.is_turned)
        arguments = (problem.x, weights, *biases, problem.y, *problem.operands)
        assembler.call(plain, arguments, group.names, "weights as they are")
        return
    shared = shared_conv(assembler, describe(0))
    if shared is not None:
        half = assembler.halves.get(operation.inputs[1].id, "")
        if isinstance(shared, GridConv):
            name, pack = grid_conv.packing(shared), partial(grid_conv.pack, shared, weights)
        else:
            name, pack = grid_strips.packing(shared), partial(grid_strips.pack, shared, weights)
        packed = assembler.panels(f"{problem.key}/{name}", pack, half)
        x = problem.x.as_blocks() if problem.kind is ConvKind.DIRECT else problem.x
        assembler.call(shared, (x, packed, *biases, problem.y, *problem.operands), group.names)
        return
    tiles = _winograd_tiles(assembler, problem, operation)
    key = f"tiles of {operation.node.name}/{problem.key}"
    settled = assembler.settle(key, lambda: str(tiles))
    if settled is not None and (settled == "0" or _fits_winograd(assembler, problem)):
        tiles = _Tiles.parse(settled)
    images = problem.x.shape[0]
    is_split = not isinstance(images, int) and tiles.few != tiles.many

    def others() -> list[_ConvSpec]:
        if settled is not None or is_split:
            return []
        allowed = _allowed_tiles(assembler, problem, operation)
        return [describe(other) for other in allowed if other != tiles.of(images)]

    # Where sizes are known when it runs, both kernels are there, and one of them has no turns.
    share = tiles.share(images)
    ways = {tiles.few: 1 - share, tiles.many: share} if is_split else {tiles.of(images): 1}
    for size, part in ways.items():
        spec = describe(size)
        if is_split and size == tiles.many and isinstance(spec, Winograd):
            spec = replace(spec, schedule=winograd.schedule(replace(spec, batch=tiles.limit)))
        spec = assembler.choose(spec, others)
        family = weight_family(spec)
        key = f"{problem.key}/{family.packing(spec)}"
        half, note = _kept_weights(assembler, spec, operation, weights)
        packed = assembler.panels(key, partial(family.pack, spec, weights), half)
        x = problem.x.as_blocks() if problem.kind is ConvKind.DIRECT else problem.x
        arguments = (x, packed, *biases, problem.y, *problem.operands)
        assembler.call(spec, arguments, group.names, note)
        assembler.share_last_call(part)


def _kept_weights(
    assembler: Assembler, spec: _ConvSpec, operation: Operation, weights: Array
) -> tuple[str, str]:
    """Return how memory keeps the weights of a convolution, if as halves, and a note.

    Only those of dense convolutions are many; Winograd's are transformed, and no halves any more.
    """
    if isinstance(spec, Winograd):
        return "", f"Winograd {spec.algorithm}"
    if not isinstance(spec, Conv):
        return "", ""
    half = assembler.halves.get(operation.inputs[1].id, "")
    if half or not assembler.is_bf16:
        return half, ""
    return bfloat16_weights(weights)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of Winograd's transforms by the number of images; 0 to compute it directly.

    Attributes:
        few: Of fewer images than `limit`.
        many: Of others.
        limit: A number of images.
    """

    few: int
    many: int
    limit: int = 0

    def __str__(self) -> str:
        return f"{self.few} {self.many} {self.limit}"

    @classmethod
    def parse(cls, text: str) -> _Tiles:
        """Read what `str` wrote; of other versions, one number for all."""
        few, *rest = map(int, text.split())
        return cls(few, *(rest or [few]))

    def of(self, images: Size) -> int:
        """Return the tiles of so many images; of a free number, those of many."""
        return self.few if isinstance(images, int) and images < self.limit else self.many

    def share(self, images: Size) -> Size:
        """Return 1 where there are many images, else 0."""
        return (images + _MOST_IMAGES - self.limit) // _MOST_IMAGES


_MOST_IMAGES = 1 << 31
"""More than there are."""


_ConvSpec: TypeAlias = Winograd | Conv | Depthwise | PlainConv


def _describe(assembler: Assembler, problem: ConvProblem, tiles: int) -> _ConvSpec:
    """Return the description of a kernel for a convolution, by Winograd's tiles unless 0."""
    x, y = problem.x, problem.y
    make: Callable[..., _ConvSpec]
    if tiles:
        threads, is_padded = assembler.threads, problem.is_padded
        make = partial(Winograd, outputs=tiles, threads=threads, is_padded=is_padded)
    elif problem.kind is ConvKind.DIRECT:
        x = x.as_blocks()
        make = partial(Conv, x_block=x.block)
    else:
        make = Depthwise if problem.kind is ConvKind.DEPTHWISE else PlainConv
    return make(
        x.shape[0],
        problem.groups,
        x.shape[1],
        y.shape[1],
        problem.window,
        x.layout,
        y.layout,
        problem.bias is not None,
        problem.epilogue,
        assembler.unit,
    )


def _winograd_tiles(assembler: Assembler, problem: ConvProblem, operation: Operation) -> _Tiles:
    """Return the tiles of Winograd's transforms that a convolution is computed by."""
    mode = assembler.winograd
    if mode is WinogradMode.OFF or not _fits_winograd(assembler, problem):
        return _Tiles(0, 0)
    images = problem.x.shape[0]
    _, groups, inputs, outputs, unit = _winograd_shape(assembler, problem)

    # First what is fast, then what is exact enough: looking at errors takes some 50 ms for a large
    # layer.
    @cache
    def exact(size: int) -> int:
        return next(_exact_tiles(assembler, problem, operation, size), 0)

    def best(count: int) -> int:
        tiles = choose_winograd(problem.window, count, groups, inputs, outputs, unit)
        return exact(min(tiles or 0, mode.largest))

    few, many = least(images), typical(images)
    limit = next((count for count in range(few, many) if best(count) == best(many)), many)
    return _Tiles(best(few), best(many), limit)


def _allowed_tiles(assembler: Assembler, problem: ConvProblem, operation: Operation) -> list[int]:
    """Return all tiles that the target allows for a convolution, fast or not; 0 is a direct one."""
    if not _fits_winograd(assembler, problem):
        return [0]
    return [0, *_exact_tiles(assembler, problem, operation, assembler.winograd.largest)]


def _fits_winograd(assembler: Assembler, problem: ConvProblem) -> bool:
    """Tell whether Winograd's transforms can compute a convolution."""
    is_fit = problem.kind is ConvKind.DIRECT and problem.x.block == assembler.lanes
    return is_fit and fits_winograd(problem.window, *_winograd_shape(assembler, problem))


def _winograd_shape(
    assembler: Assembler, problem: ConvProblem
) -> tuple[int, int, int, int, CpuModel]:
    """Return images, groups, channels in and out, and the vector unit of a convolution."""
    x, y = problem.x, problem.y
    return least(x.shape[0]), problem.groups, x.shape[1], y.shape[1], assembler.unit


def _exact_tiles(
    assembler: Assembler, problem: ConvProblem, operation: Operation, most: int
) -> Iterator[int]:
    """Yield tiles whose error is not too large for the target, the largest first."""
    is_positive, weights = _is_positive(operation), problem.weights
    assert not isinstance(weights, View)
    for tiles in sorted(OUTPUTS, reverse=True):
        if tiles <= most and (
            assembler.winograd is not WinogradMode.AUTO
            or error_ratio(tiles, weights, is_positive=is_positive) <= LIMIT
        ):
            yield tiles


_POSITIVE = frozenset(("Relu", "Sigmoid", "HardSigmoid", "Softplus"))


def _is_positive(operation: Operation) -> bool:
    """Tell whether the input of a convolution has nothing below zero, as far as its maker shows."""
    graph, producer = operation.graph, operation.inputs[0].producer
    for _ in range(_FAR):
        node = graph.nodes[producer] if producer >= 0 else None
        if node is None or node.op_type not in _PASSING:
            return node is not None and node.op_type in _POSITIVE
        producer = graph.values[node.inputs[0]].producer
    return False


_PASSING = frozenset(("MaxPool", "AveragePool", "Concat", "Dropout", "Identity", "Pad", "LRN"))
# Enough for pooling, padding and concatenation in a row.
_FAR = 8


def _bias(assembler: Assembler, operation: Operation, kind: ConvKind) -> View | None:
    """Return the bias as a kernel reads it; whole blocks, but for the plain one."""
    value = operation.value(2)
    if value is None:
        return None
    if value.constant is None:
        computed = assembler.read_dense(value.id)
        if kind is ConvKind.PLAIN:
            return computed
        return assembler.blocked(computed.unsqueezed(0), assembler.lanes)
    name, bias = value.name, operation.array(2)
    if kind is ConvKind.PLAIN:
        return assembler.constant(name, bias)
    key = f"{name}/by{assembler.lanes}"
    return assembler.packed(key, lambda: pack_bias(assembler.lanes, bias))


@dataclass(frozen=True, slots=True)
class Phase:
    """One of the convolutions.

    Attributes:
        window: Of stride 1; without taps in some dimension the results are 0 (plus the bias).
        taps: For each dimension, which taps of the whole kernel it has, in order.
        x_offset: The entry of the padded input where the kernel's input begins.
        y_offset: The entry of the output where its output begins; the next one in a dimension is
            the transposed convolution's stride further.
    """

    window: Window
    taps: tuple[tuple[int, ...], ...]
    x_offset: tuple[int, ...]
    y_offset: tuple[int, ...]

    def weights(self, weights: Array | View, groups: int) -> Array | View:
        """Return its weights, as `ConvProblem` has them; of a view the turned ones.

        Args:
            weights: Of the whole: (in_channels, out_channels / groups, *kernel), as ONNX has them.
            groups: Of channels.
        """
        if isinstance(weights, View):
            return self._view(weights, groups)
        inputs, outputs = weights.shape[0] // groups, weights.shape[1]
        kernel = weights.shape[2:]
        swapped = weights.reshape(groups, inputs, outputs, *kernel).swapaxes(1, 2)
        whole = swapped.reshape(groups * outputs, inputs, *kernel)
        return whole[np.ix_(*map(range, whole.shape[:2]), *self.taps)]

    def _view(self, weights: View, groups: int) -> View:
        """Return its weights in the memory of all, with the taps in the order that they have there.

        Taps of one phase are evenly spaced.
        """
        inputs, outputs = weights.shape[0] // groups, weights.shape[1]
        by_input, by_output, *by_tap = weights.strides
        begins = [min(taps, default=0) for taps in self.taps]
        steps = [taps[0] - taps[1] if len(taps) > 1 else 0 for taps in self.taps]
        return replace(
            weights.at((0, 0, *begins)),
            shape=(groups, outputs, inputs, *map(len, self.taps)),
            strides=(
                *(inputs * by_input, by_output, by_input),
                *(stride * step for stride, step in zip(by_tap, steps, strict=True)),
            ),
        )


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution as convolutions of one padded input.

    Attributes:
        before: Zeros that the input needs before its first entry, in each dimension.
        after: Zeros that it needs after its last entry.
        phases: Together they write every output once.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    phases: tuple[Phase, ...]


def transposed_parts(
    extents: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> Transposed:
    """Return the convolutions that compute a transposed one.

    Args:
        extents: Of the input, in each spatial dimension.
        out: Of the output; output padding is in it.
        kernel: Taps.
        strides: Of the transposed convolution.
        dilations: Between its taps.
        pads: Entries that are cut off before the first output, in each dimension.
    """
    dims = [
        _phases(*dim) for dim in zip(out, kernel, strides, dilations, pads, strict=True)
    ]  # fmt: skip
    before = tuple(max(0, *(-line.x_begin for line in lines), 0) for lines in dims)
    after = tuple(
        max(0, *(line.x_end - extent for line in lines), 0)
        for lines, extent in zip(dims, extents, strict=True)
    )
    phases = []
    for lines in itertools.product(*dims):
        window = Window(
            tuple(line.count for line in lines),
            tuple(len(line.taps) for line in lines),
            (1,) * len(lines),
            tuple(line.dilation for line in lines),
        )
        begins = zip(lines, before, strict=True)
        x_offset = tuple(line.x_begin + zeros if line.taps else 0 for line, zeros in begins)
        y_offset = tuple(line.y_begin for line in lines)
        phases.append(Phase(window, tuple(line.taps for line in lines), x_offset, y_offset))
    return Transposed(before, after, tuple(phases))


@dataclass(frozen=True, slots=True)
class _PhaseLine:
    """A phase in one dimension: which inputs its outputs meet, counted from the first real one."""

    taps: tuple[int, ...]
    dilation: int
    count: int
    x_begin: int
    x_end: int
    y_begin: int


def _phases(out: int, kernel: int, stride: int, dilation: int, pad: int) -> list[_PhaseLine]:
    lines = []
    for begin in range(min(stride, out)):
        first, phase = divmod(begin + pad, stride)
        taps = [tap for tap in range(kernel) if (tap * dilation - phase) % stride == 0]
        count = -(-(out - begin) // stride)
        x_begin = x_end = 0
        if taps:
            x_begin = first - (taps[-1] * dilation - phase) // stride
            x_end = first - (taps[0] * dilation - phase) // stride + count
        # Taps that meet an output are stride / gcd apart, and their inputs dilation / gcd.
        step = dilation // math.gcd(dilation, stride)
        lines.append(_PhaseLine(tuple(reversed(taps)), step, count, x_begin, x_end, begin))
    return lines
