# SPDX-License-Identifier: Apache-2.0
"""Blocked dot products as others, for targets without an instruction for blocks of sums."""

from __future__ import annotations

from intarsia.codegen import ir


def without_blocks(dot: ir.Dot) -> list[ir.Operation]:
    """Return the operations that make the result of a blocked dot product.

    Two that are not blocked: of the first half of each row and column, and of the second one. Each
    lane has its row's neighbours of the left operand, and its column's of the right one.
    """
    assert dot.is_blocked, "its lanes are sums of their own"
    out: list[ir.Operation] = []
    total = dot.addend
    for half, result in enumerate((ir.IrValue(dot.result.type), dot.result)):
        rows = _spread(out, dot.left, dot.group, [half, half, 2 + half, 2 + half])
        columns = _spread(out, dot.right, dot.group, [half, 2 + half, half, 2 + half])
        out.append(ir.Dot(result, rows, columns, total))
        total = result
    return out


def _spread(
    out: list[ir.Operation], operand: ir.IrValue, group: int, places: list[int]
) -> ir.IrValue:
    """Append what gives each lane of a block a group, and return it.

    Args:
        out: Where to.
        operand: Groups, four for each block.
        group: Elements of one.
        places: Which group of its block each lane gets.
    """
    count = operand.type.lanes
    picks = [
        (block + place) * group + number
        for block in range(0, count // group, ir.DOT_BLOCK)
        for place in places
        for number in range(group)
    ]
    result = ir.IrValue(operand.type)
    out.append(ir.Shuffle(result, operand, operand, tuple(picks)))
    return result
