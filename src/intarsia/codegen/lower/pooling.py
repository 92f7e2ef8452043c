# SPDX-License-Identifier: Apache-2.0
"""MaxPool, AveragePool, LpPool and the global forms."""

from __future__ import annotations

from intarsia.codegen.kernels.global_pool import GlobalPool
from intarsia.codegen.kernels.pool import Pool
from intarsia.codegen.kernels.pool.combination import PoolKind, refuse_exponent
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import fuse, over
from intarsia.codegen.lower.views import Pads
from intarsia.codegen.lower.windows import read_window

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


def lower_pool(assembler: Assembler, group: Group) -> None:
    """Append one pooling, in the layout that its operand has."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block)
    extents, out = x.shape[2:], operation.output_shape[2:]
    fused, operands = fuse(assembler, group)
    y = assembler.target(group.result)
    window, pads = _window(operation, out)
    views = [view.as_blocks() for view in (x, y, *operands)]
    indices = [assembler.target(value.id).as_blocks() for value in operation.outputs[1:]]
    spec = Pool(
        *(_KINDS[operation.op_type], x.shape[0], x.shape[1], extents, window, pads),
        *(views[0].layout, views[1].layout, block or 1),
        indices=indices[0].layout if indices else None,
        is_column_major=bool(operation.attribute("storage_order", 0)),
        counts_padding=bool(operation.attribute("count_include_pad", 0)),
        p=operation.attribute("p", 2),
        epilogue=over(fused, views[2:]),
        unit=assembler.unit,
    )
    spec = assembler.choose(spec)
    assembler.call(spec, (*views[:2], *indices, *views[2:]), group.names)


def lower_global_pool(assembler: Assembler, group: Group) -> None:
    """Append one pooling of whole images, in the layout that its operand has."""
    operation = group.anchor
    block = assembler.plan.blocks.get(group.result, 0)
    x = assembler.read(operation.node.inputs[0], block).as_blocks()
    fused, operands = fuse(assembler, group)
    y = assembler.target(group.result).as_blocks()
    views = [view.as_blocks() for view in operands]
    spec = GlobalPool(
        *(_KINDS[operation.op_type], x.shape[0], x.shape[1], x.shape[2:]),
        *(x.layout, y.layout, block or 1),
        p=operation.attribute("p", 2),
        epilogue=over(fused, views),
        unit=assembler.unit,
    )
    assembler.call(spec, (x, y, *views), group.names)


def _window(operation: Operation, out: tuple[int, ...]) -> tuple[Window, Pads]:
    attributes = read_window(operation, operation.attribute("kernel_shape"))
    window = Window(out, attributes.kernel, attributes.strides, attributes.dilations)
    return window, attributes.pads
