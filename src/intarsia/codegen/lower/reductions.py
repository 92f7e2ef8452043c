# SPDX-License-Identifier: Apache-2.0
"""Operators that combine elements: poolings, reductions, softmax and its kin, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import prod
from typing import TypeVar

import numpy as np

from intarsia.codegen.body import Apply, Body, Fused
from intarsia.codegen.fixed_point import exponentials
from intarsia.codegen.kernels import lrn
from intarsia.codegen.kernels.code_softmax import CodeSoftmax
from intarsia.codegen.kernels.domain import SumOrder
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.global_pool import GlobalPool
from intarsia.codegen.kernels.images import ImageKernel
from intarsia.codegen.kernels.pool import Pool
from intarsia.codegen.kernels.pool.combination import PoolKind, refuse_exponent
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.kernels.reduce import sum_order as reduction_order
from intarsia.codegen.kernels.rows import Rows
from intarsia.codegen.kernels.rows import sum_order as rows_order
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.fixed_point import limits_of
from intarsia.codegen.lower.grid import shared_reduction, shared_rows
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import ANCHOR, Recipe, Source, fuse, operand, over
from intarsia.codegen.lower.views import CHANNELS, View, without
from intarsia.codegen.lower.windows import read_window
from intarsia.codegen.scalar_ops.operator import FLOATS, WIDE
from intarsia.codegen.unit import CpuModel
from intarsia.graph.graph import ABSENT

_NARROW = frozenset(("bool", "int8", "uint8"))
REDUCTIONS = {
    "ReduceSum": WIDE,
    "ReduceMean": FLOATS,
    "ReduceMax": WIDE | _NARROW,
    "ReduceMin": WIDE | _NARROW,
    "ReduceProd": WIDE,
    "ReduceL1": FLOATS,
    "ReduceL2": FLOATS,
    "ReduceLogSum": FLOATS,
    "ReduceLogSumExp": FLOATS,
    "ReduceSumSquare": WIDE,
    "ArgMax": WIDE,
    "ArgMin": WIDE,
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
    if operation.op_type.startswith("Arg"):
        return "its input is empty" if 0 in operation.shape() else None
    if _are_axes_computed(operation) and not 0 < len(_possible_axes(operation)) <= _MOST_SETS:
        return "its axes are not constant, and do not follow from its shapes"
    return None


def _are_axes_computed(operation: Operation) -> bool:
    """Tell whether axes come when it runs."""
    return operation.value(1) is not None and not operation.is_constant(1)


_MOST_SETS = 8
"""Sets of axes that are compiled where shapes leave it open which: `[2, 2, 2]` to `[2]` has 3."""


def _possible_axes(operation: Operation) -> list[tuple[int, ...]]:
    """Return which dimensions may go by the shapes, of axes that come when it runs."""
    shape, result, count = operation.shape(), operation.output_shape, prod(operation.shape(1))
    rank = len(shape)
    if not count:
        return [() if operation.attribute("noop_with_empty_axes", 0) else tuple(range(rank))]
    keeps = operation.attribute("keepdims", 1)
    found = []
    for axes in combinations(range(rank), min(count, rank + 1)):
        ends = [
            1 if dim in axes else extent
            for dim, extent in enumerate(shape)
            if keeps or dim not in axes
        ]
        if tuple(ends) == result:
            found.append(axes)
    return found


def wish_reduction(operation: Operation, _unit: CpuModel) -> Wish:
    """Keep blocks of channels where only spatial dimensions go, and are kept as ones."""
    is_kept = operation.attribute("keepdims", 1)
    if _are_axes_computed(operation):
        return Wish()
    if is_kept and min(reduced_axes(operation), default=0) > CHANNELS:
        return Wish("follow", (operation.node.inputs[0],))
    return Wish()


def lower_reduction(assembler: Assembler, group: KernelGroup) -> None:
    """Append one reduction; for axes that come when it runs, one for each set that they may be."""
    operation = group.anchor
    axes_value = operation.value(1)
    if axes_value is not None and _are_axes_computed(operation):
        sets = assembler.choose_axes(axes_value, _possible_axes(operation), operation)
    else:
        sets = [(reduced_axes(operation), None)]
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block)
    dtype = "int64" if operation.op_type.startswith("Arg") else operation.inputs[0].dtype
    fused, operands = fuse(assembler, group, dtype)
    y = assembler.target(group.result)
    for axes, guard in sets:
        gone = axes if operation.attribute("keepdims", 1) else ()
        # Without axes each entry is one by itself.
        data, along = (x, axes) if axes else (x.unsqueezed(-1), (len(x.shape),))
        spec = Reduction(
            data.domain,
            along,
            operation.op_type.removeprefix("Reduce"),
            data.layout,
            without(y, gone),
            epilogue=fused.over(without(view, gone) for view in operands),
            select_last=bool(operation.attribute("select_last_index", 0)),
            unit=assembler.unit,
        )
        spec = in_settled_order(assembler, spec, operation.node.name)
        # A guard leaves turns out, and all work-items of a block have to come to its barriers.
        kernel = shared_reduction(assembler, spec) if guard is None else spec
        assembler.call(kernel, (data, y, *operands), group.names, guard=guard)


_Summing = TypeVar("_Summing", Reduction, Rows)


def in_settled_order(assembler: Assembler, spec: _Summing, name: str) -> _Summing:
    """Return a kernel that combines entries in the order of the program for all sizes.

    Args:
        assembler: Of the program.
        spec: The kernel.
        name: Says which it is.
    """

    def own() -> str:
        return str(rows_order(spec) if isinstance(spec, Rows) else reduction_order(spec))

    settled = assembler.settle(f"order of {name} along {spec.axes}", own)
    return spec if settled is None else replace(spec, order=SumOrder.parse(settled))


_KINDS = {
    "MaxPool": PoolKind.MAX,
    "GlobalMaxPool": PoolKind.MAX,
    "AveragePool": PoolKind.AVERAGE,
    "GlobalAveragePool": PoolKind.AVERAGE,
    "LpPool": PoolKind.LP,
    "GlobalLpPool": PoolKind.LP,
}


def refuse_pool(operation: Operation) -> str | None:
    """Say why a pooling is not taken."""
    rank = len(operation.shape())
    if rank <= 2:  # noqa: PLR2004 - batch and channels
        return "it has no spatial dimension"
    if 0 in operation.shape():
        return "its input is empty"
    return refuse_exponent(operation.attribute("p", 2))


def lower_pool(assembler: Assembler, group: KernelGroup) -> None:
    """Append one pooling, in the layout that its operand has."""
    operation = group.anchor
    make, views = _on_images(assembler, group, Pool)
    attributes = read_window(operation, operation.attribute("kernel_shape"))
    indices = [assembler.target(value.id).as_blocks() for value in operation.outputs[1:]]
    spec = make(
        kind=_KINDS[operation.op_type],
        window=attributes.at(operation.output_shape[2:]),
        pads=attributes.pads,
        indices=indices[0].layout if indices else None,
        is_column_major=bool(operation.attribute("storage_order", 0)),
        counts_padding=bool(operation.attribute("count_include_pad", 0)),
        p=operation.attribute("p", 2),
    )
    spec = assembler.choose(spec)
    assembler.call(spec, (*views[:2], *indices, *views[2:]), group.names)


_Kernel = TypeVar("_Kernel", bound=ImageKernel)


def lower_fixed_average_pool(assembler: Assembler, group: KernelGroup) -> None:
    """Append an average of codes as TFLite rounds it: halves away from zero, of sums in int32."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    spatial = len(operation.shape()) - 2
    pads = ((0, 0),) * spatial
    x = assembler.read_less(operation.node.inputs[0], None, _SUM, block, pads)
    low, high = limits_of(operation, _POOL_SCALE)
    limits = Apply("Clip", (0,), (("max", high), ("min", low)), _SUM)
    steps = (limits, convert_step(1, _SUM, operation.output.dtype))
    first = Recipe((ANCHOR,), steps)
    is_global = operation.attribute("kernel_shape") is None
    if is_global:
        make, views = _on_images(assembler, group, GlobalPool, x, first)
        spec: GlobalPool | Pool = make(kind=PoolKind.AVERAGE)
    else:
        make_pool, views = _on_images(assembler, group, Pool, x, first)
        window = read_window(operation, operation.attribute("kernel_shape"))
        at = window.at(operation.output_shape[2:])
        spec = make_pool(kind=PoolKind.AVERAGE, window=at, pads=window.pads)
    assembler.call(spec, views, group.names)


_SUM = "int32"
_POOL_SCALE = 3
"""The position of the scale of an average in fixed point."""


DEQUANTIZED_POOL = "DequantizedAveragePool"
"""The operator that an average of a dequantised operand means: inputs as those of the
DequantizeLinear, attributes as those of AveragePool; without a `kernel_shape` it is of images."""


def lower_dequantized_pool(assembler: Assembler, group: KernelGroup) -> None:
    """Append an average of codes, and make a number of it by their scale."""
    operation = group.anchor
    name, scale = operation.node.name, operation.array(1).astype(np.float32)
    zero = 0 if operation.value(2) is None else int(operation.array(2).item())
    ones = (1,) * len(operation.output_shape)
    sources: tuple[Source, ...] = (ANCHOR, (f"{name}/scale", scale.reshape(ones)))
    first = Recipe(sources, (Apply("Mul", (0, 1), (), _NUMBER),))
    if operation.attribute("kernel_shape") is None:
        make, views = _on_images(assembler, group, GlobalPool, None, first, _NUMBER)
        spec: GlobalPool | Pool = make(kind=PoolKind.AVERAGE, zero=zero)
    else:
        make_pool, views = _on_images(assembler, group, Pool, None, first, _NUMBER)
        window = read_window(operation, operation.attribute("kernel_shape"))
        spec = make_pool(
            kind=PoolKind.AVERAGE,
            window=window.at(operation.output_shape[2:]),
            pads=window.pads,
            counts_padding=bool(operation.attribute("count_include_pad", 0)),
            zero=zero,
        )
    assembler.call(spec, views, group.names, f"sums of {views[0].dtype}")


_NUMBER = "float32"
"""What an average of codes is."""


def lower_fixed_softmax(assembler: Assembler, group: KernelGroup) -> None:
    """Append a softmax of codes along the last dimension, as TFLite computes it."""
    operation = group.anchor
    x, y = assembler.read(operation.node.inputs[0]), assembler.target(group.result)
    scale = float(operation.array(1).item())
    table = assembler.packed(f"exponentials by {scale!r}", lambda: exponentials(scale))
    *rows, entries = y.shape
    spec = CodeSoftmax(tuple(rows), entries, x.layout, y.layout)
    assembler.call(spec, (x, table, y), group.names)


def _on_images(
    assembler: Assembler,
    group: KernelGroup,
    kernel: Callable[..., _Kernel],
    x: View | None = None,
    first: Recipe | None = None,
    dtype: str = "",
) -> tuple[Callable[..., _Kernel], list[View]]:
    """Return how to describe a kernel in the layout that its operand has, and its arguments.

    What is returned takes the rest of the description by name.

    Args:
        assembler: Of the program.
        group: What is lowered.
        kernel: Describes the kernel.
        x: Its operand, if that is not input 0 as it is.
        first: What else belongs to the anchor.
        dtype: Of what the kernel makes, if not that of its operand.
    """
    block = assembler.plan.blocks.get(group.result, 0)
    x = x or assembler.read(group.anchor.node.inputs[0], block)
    fused, operands = fuse(assembler, group, dtype or x.dtype, first)
    views = [view.as_blocks() for view in (x, assembler.target(group.result), *operands)]
    shape, unit = (x.shape[0], x.shape[CHANNELS], x.shape[2:]), assembler.unit
    layouts = [view.layout for view in views]
    make = partial(kernel, *shape, *layouts[:2], block=block or 1, unit=unit)
    return partial(make, epilogue=fused.over(layouts[2:])), views


def lower_global_pool(assembler: Assembler, group: KernelGroup) -> None:
    """Append one pooling of whole images, in the layout that its operand has."""
    operation = group.anchor
    make, views = _on_images(assembler, group, GlobalPool)
    spec = make(kind=_KINDS[operation.op_type], p=operation.attribute("p", 2))
    assembler.call(spec, views, group.names)


_ONE_AXIS = 13
"""The operator set since which softmax is along one dimension; before, along all from `axis` on."""
_SCALE_OF_GROUPS = 21
"""The operator set before which GroupNormalization had a scale for each group."""


def lower_softmax(assembler: Assembler, group: KernelGroup) -> None:
    """Append Softmax, LogSoftmax or Hardmax."""
    operation = group.anchor
    rank = len(operation.shape())
    is_one = operation.opset >= _ONE_AXIS
    first = operation.attribute("axis", -1 if is_one else 1)
    first = first + rank if first < 0 else first
    axes = (first,) if is_one else tuple(range(first, rank))
    x = assembler.read(operation.node.inputs[0])
    fused, operands = fuse(assembler, group, x.dtype)
    y = assembler.target(group.result)
    if not axes:  # each entry is a row by itself
        x, y, *operands = (view.unsqueezed(-1) for view in (x, y, *operands))
        axes = (rank,)
    spec = Rows(
        x.domain,
        axes,
        operation.op_type,
        x.layout,
        y.layout,
        epilogue=over(fused, operands),
        unit=assembler.unit,
    )
    spec = in_settled_order(assembler, spec, operation.node.name)
    assembler.call(shared_rows(assembler, spec), (x, y, *operands), group.names)


def refuse_softmax(operation: Operation) -> str | None:
    """Say why a softmax is not taken."""
    return None if operation.shape() else "its input is a scalar"


def refuse_normalization(operation: Operation) -> str | None:
    """Say why a normalisation is not taken."""
    rank = len(operation.shape())
    op_type = operation.op_type
    dtypes = {value.dtype for value in (*operation.inputs, *operation.outputs)}
    if dtypes - {operation.inputs[0].dtype}:
        return "its tensors are of several dtypes"
    if operation.attribute("stash_type", _FLOAT) != _FLOAT:
        return "it computes in another dtype than float32"
    if op_type == "GroupNormalization" and operation.shape()[CHANNELS] % _groups(operation):
        return "its channels are not a multiple of its groups"
    if op_type in ("InstanceNormalization", "GroupNormalization") and rank <= CHANNELS + 1:
        return "it has no spatial dimension"
    return None


_FLOAT = 1
"""ONNX's number of float32."""


def _groups(operation: Operation) -> int:
    groups: int = operation.attribute("num_groups")
    return groups


def wish_instance(operation: Operation, _unit: CpuModel) -> Wish:
    """Keep blocks of channels: each channel is a row of its own."""
    return Wish("follow", (operation.node.inputs[0],))


def normalized_axes(operation: Operation) -> tuple[int, ...]:
    """Return the dimensions of a row, ascending: the last ones, or as nodes spell them."""
    rank = len(operation.shape())
    spelled: tuple[int, ...] = operation.attribute("axes", ())
    return spelled or tuple(range(operation.attribute("axis", -1) % rank, rank))


_RMS = frozenset(("RMSNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"))


def refuse_skip(operation: Operation) -> str | None:
    """Say why a normalisation of a sum is not taken."""
    outputs = (*operation.node.outputs, ABSENT, ABSENT, ABSENT)
    if outputs[1] != ABSENT or outputs[2] != ABSENT:
        return "its mean or its deviation is asked for"
    shape = operation.shape()
    if not shape or operation.shape(2) != shape[-1:]:
        return "its scale does not have the last dimension of its input"
    if np.broadcast_shapes(shape, operation.shape(1)) != shape:
        return "what is added has more dimensions than its input"
    return refuse_normalization(operation)


def lower_skip(assembler: Assembler, group: KernelGroup) -> None:
    """Append the normalisation of the sum of a tensor, another one and perhaps a vector."""
    operation = group.anchor
    x = assembler.read(operation.node.inputs[0])

    def over_x(position: int) -> View | None:
        value = operation.value(position)
        return None if value is None else operand(assembler, value.id, x.shape, 0)

    has_bias = operation.op_type not in _RMS
    scale, bias = over_x(2), over_x(3) if has_bias else None
    added = [view for view in (over_x(1), over_x(4 if has_bias else 3)) if view is not None]
    totals = tuple(assembler.target(value.id) for value in operation.outputs[1:])
    last = (len(x.shape) - 1,)
    sum_of = SumFirst(tuple(added), totals)
    append_normalization(assembler, group, x, last, scale, bias, sum_of=sum_of)


def wish_normalization(operation: Operation, _unit: CpuModel) -> Wish:
    """Keep blocks of channels where each channel is a row of its own."""
    if normalized_axes(operation)[0] > CHANNELS:
        return Wish("follow", (operation.node.inputs[0],))
    return Wish()


def lower_normalization(assembler: Assembler, group: KernelGroup) -> None:
    """Append LayerNormalization or RMSNormalization, scaled and shifted if that belongs to it."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block)
    vectors = [
        None if value is None else operand(assembler, value.id, x.shape, block)
        for value in (operation.value(1), operation.value(2))
    ]
    append_normalization(assembler, group, x, normalized_axes(operation), *vectors)


def lower_instance(assembler: Assembler, group: KernelGroup) -> None:
    """Append InstanceNormalization: each channel of each image is a row."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block)
    rank = len(x.shape)
    scale, bias = (_per_channel(assembler, operation, at, x) for at in (1, 2))
    append_normalization(assembler, group, x, tuple(range(CHANNELS + 1, rank)), scale, bias)


def _per_channel(assembler: Assembler, operation: Operation, position: int, x: View) -> View:
    """Return a number for each channel over the domain of a tensor."""
    value = operation.inputs[position]
    ones = (1,) * (len(x.shape) - CHANNELS - 1)
    if operation.is_constant(position):
        array = operation.array(position)
        source = (f"{value.name}/channels", array.reshape(-1, *ones))
        return operand(assembler, source, x.shape, x.block)
    view = assembler.read(value.id)
    strides = (0, view.strides[0], *(0 for _ in ones))
    view = replace(view, shape=(1, x.shape[CHANNELS], *ones), strides=strides)
    if not x.block:
        return view.expanded(x.shape)
    packed = assembler.blocked(view, x.block)
    strides = (0, packed.strides[1], *(0 for _ in ones), packed.strides[-1])
    return replace(packed, shape=x.shape, strides=strides)


def lower_group_normalization(assembler: Assembler, group: KernelGroup) -> None:
    """Append GroupNormalization: the channels of a group are a row."""
    operation = group.anchor
    groups = _groups(operation)
    x = assembler.read(operation.node.inputs[0])
    rank = len(x.shape)
    per_group = operation.attribute("per_group", operation.opset < _SCALE_OF_GROUPS)
    split = x.split(CHANNELS, groups)
    vectors: list[View | None] = []
    for value in (operation.value(1), operation.value(2)):
        if value is None:
            vectors.append(None)
            continue
        view = assembler.read(value.id)
        step = view.strides[0]
        inner = 0 if per_group else step
        outer = step if per_group else step * (x.shape[CHANNELS] // groups)
        strides = (0, outer, inner, *(0 for _ in range(rank - 2)))
        vectors.append(replace(view, shape=split.shape, strides=strides))
    append_normalization(
        assembler, group, split, tuple(range(2, rank + 1)), *vectors, groups=(CHANNELS, groups)
    )


GROUP_NORM = "com.microsoft.GroupNorm"
_ACTIVATED = 1


def refuse_group_norm(operation: Operation) -> str | None:
    """Say why a GroupNorm of ONNX Runtime is not taken."""
    rank, at = len(operation.shape()), _channels(operation)
    if rank <= CHANNELS + 1:
        return "it has no spatial dimension"
    channels = operation.shape()[at]
    if channels % operation.attribute("groups"):
        return "its channels are not a multiple of its groups"
    if any(operation.shape(position) != (channels,) for position in (1, 2)):
        return "its scale or shift is not one for each channel"
    if operation.attribute("activation", 0) not in (0, _ACTIVATED):
        return "its activation is not SiLU"
    return refuse_normalization(operation)


def _channels(operation: Operation) -> int:
    """Return the dimension of channels of a GroupNorm."""
    return len(operation.shape()) - 1 if operation.attribute("channels_last", 1) else CHANNELS


def lower_group_norm(assembler: Assembler, group: KernelGroup) -> None:
    """Append ONNX Runtime's GroupNorm: channels may be the last dimension, and SiLU may follow."""
    operation = group.anchor
    x, at = assembler.read(operation.node.inputs[0]), _channels(operation)
    groups = operation.attribute("groups")
    split = x.split(at, groups)
    vectors = []
    for value in operation.node.inputs[1:3]:
        view = assembler.read(value)
        (step,) = view.strides
        steps = {at: step * split.shape[at + 1], at + 1: step}
        strides = tuple(steps.get(dim, 0) for dim in range(len(split.shape)))
        vectors.append(replace(view, shape=split.shape, strides=strides))
    axes = tuple(dim for dim in range(1, len(split.shape)) if dim != at)
    append_normalization(assembler, group, split, axes, *vectors, groups=(at, groups))


def refuse_lrn(operation: Operation) -> str | None:
    """Say why an LRN is not taken."""
    return None if len(operation.shape()) > CHANNELS + 1 else "it has no spatial dimension"


def wish_lrn(operation: Operation, unit: CpuModel) -> Wish:
    """Keep blocks of channels if the neighbours of a block's are in the blocks beside it."""
    if not lrn.fits_blocks(operation.attribute("size"), unit.lanes()):
        return Wish()
    return Wish("follow", (operation.node.inputs[0],))


def lower_lrn(assembler: Assembler, group: KernelGroup) -> None:
    """Append a local response normalisation, in the layout that its operand has."""
    operation = group.anchor
    make, views = _on_images(assembler, group, lrn.Lrn)
    spec = make(
        size=operation.attribute("size"),
        alpha=operation.attribute("alpha", 1e-4),
        beta=operation.attribute("beta", 0.75),
        bias=operation.attribute("bias", 1.0),
    )
    assembler.call(spec, views, group.names)


def lower_mean_variance(assembler: Assembler, group: KernelGroup) -> None:
    """Append MeanVarianceNormalization: no scale, and epsilon is added to the deviation."""
    operation = group.anchor
    x = assembler.read(operation.node.inputs[0])
    rank = len(x.shape)
    axes = sorted({axis % rank for axis in operation.attribute("axes", (0, 2, 3))})
    append_normalization(assembler, group, x, tuple(axes), None, None)


@dataclass(frozen=True, slots=True)
class SumFirst:
    """A sum that is normalised.

    Attributes:
        added: What is added to x, over its domain.
        totals: Where the sum is written, if it is wanted.
    """

    added: tuple[View, ...]
    totals: tuple[View, ...] = ()


def append_normalization(
    assembler: Assembler,
    group: KernelGroup,
    x: View,
    axes: tuple[int, ...],
    scale: View | None,
    bias: View | None,
    *,
    groups: tuple[int, int] | None = None,
    sum_of: SumFirst | None = None,
) -> None:
    """Append a normalisation over some dimensions; one may be cut into groups, so many of it."""
    operation = group.anchor
    is_whole = operation.op_type == "MeanVarianceNormalization"
    is_activated = operation.op_type == GROUP_NORM and operation.attribute("activation", 0)
    silu = Apply("Swish", (0,), (("alpha", 1.0),), x.dtype)
    first = Recipe((ANCHOR,), (silu,)) if is_activated else None
    fused, operands = fuse(assembler, group, x.dtype, first)
    y = assembler.target(group.result)
    if groups:
        y, *operands = (view.split(*groups) for view in (y, *operands))
    added, totals = (sum_of.added, sum_of.totals) if sum_of else ((), ())
    others = () if added else operation.outputs[1:]
    statistics = [assembler.target(value.id) for value in others]
    layouts = [without(view, axes) for view in statistics]
    is_mean_there = bool(layouts) and operation.node.outputs[1] >= 0
    mean = layouts[0] if is_mean_there else None
    inverse = layouts[-1] if len(layouts) > is_mean_there else None
    spec = Rows(
        x.domain,
        axes,
        "RmsNormalize" if operation.op_type in _RMS else "Normalize",
        x.layout,
        y.layout,
        scale=scale.layout if scale else None,
        bias=bias.layout if bias else None,
        # ONNX defines MeanVarianceNormalization as a function, with this constant in it.
        epsilon=1e-9 if is_whole else operation.attribute("epsilon", 1e-12 if added else 1e-5),
        mean=mean,
        inverse=inverse,
        adds_to_deviation=is_whole or bool(operation.attribute("adds_to_deviation", 0)),
        epilogue=over(fused, operands),
        prologue=Fused(_sum_of(x.dtype, 1 + len(added)), tuple(view.layout for view in added)),
        made=totals[0].layout if totals else None,
        unit=assembler.unit,
    )
    spec = in_settled_order(assembler, spec, operation.node.name)
    constants = [view for view in (scale, bias) if view is not None]
    views = (x, *constants, y, *statistics, *operands, *added, *totals)
    assembler.call(shared_rows(assembler, spec), views, group.names)


def _sum_of(dtype: str, count: int) -> Body:
    """Return the body that adds up so many operands, one after another."""
    firsts = (0, *range(count, 2 * count - 2))
    steps = (Apply("Add", (first, i), (), dtype) for i, first in enumerate(firsts[: count - 1], 1))
    return Body((dtype,) * count, tuple(steps), (max(0, 2 * count - 2),))


def lower_lp_normalization(assembler: Assembler, group: KernelGroup) -> None:
    """Divide by the norm of each row; a row of zeros stays."""
    operation = group.anchor
    x = assembler.read(operation.node.inputs[0])
    axis = operation.attribute("axis", -1) % len(x.shape)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    norm = assembler.scratch(x.dtype, shape)
    reduction = Reduction(
        x.domain,
        (axis,),
        f"L{operation.attribute('p', 2)}",
        x.layout,
        without(norm, (axis,)),
        unit=assembler.unit,
    )
    reduction = in_settled_order(assembler, reduction, operation.node.name)
    assembler.call(shared_reduction(assembler, reduction), (x, norm), group.names)
    wide, y = norm.expanded(x.shape), assembler.target(group.result)
    # A comparison and a choice, not a maximum with a small number: ONNX adds no epsilon.
    zero = assembler.constant("zero", np.zeros(1, x.dtype))
    zeros = replace(zero, shape=x.shape, strides=(0,) * len(x.shape))
    body = Body(
        (x.dtype,) * 3,
        (
            Apply("Equal", (1, 2), (), "bool"),
            Apply("Div", (0, 1), (), x.dtype),
            Apply("Where", (3, 2, 4), (), x.dtype),
        ),
        (5,),
    )
    inputs = (x, wide, zeros)
    spec = Elementwise(
        y.domain, tuple(view.layout for view in inputs), (y.layout,), body, assembler.unit
    )
    moved = prod(y.domain) * y.item_bytes
    assembler.call(spec, (*inputs, y), group.names, "divide", moved)
