# SPDX-License-Identifier: Apache-2.0
"""How much a kernel does: an estimate that decides whether several threads pay."""

from __future__ import annotations

from intarsia.codegen.ir import (
    Constant,
    Function,
    IndexValue,
    Load,
    Loop,
    Operation,
    Prefetch,
    Store,
    Type,
)
from intarsia.codegen.unit import VectorUnit

_UNKNOWN_TURNS = 8
"""Of a loop whose bounds are known only when it runs: mostly what is left over at an edge."""

_MEMORY = 2
"""Cost of a load or store in operations: data may come from beyond the first cache."""


def count_work(function: Function, unit: VectorUnit) -> int:
    """Return roughly how many operations of the vector unit one call runs, all turns together.

    Args:
        function: A kernel without loops that are still to be unrolled.
        unit: What it is for.
    """
    return _work(function.body, unit)


def call_work(count: int, flop: int, nbytes: int) -> int:
    """Return the work of one call of a kernel: its count, held to what the call is known to do.

    A count misses turns of loops whose bounds are known only when they run, and has turns of both
    ways that a branch may take.

    Args:
        count: What `count_work` says of the kernel.
        flop: Operations of the call's nodes; 0 if it only moves data.
        nbytes: What it reads and writes.
    """
    known = flop // _VECTOR_FLOP + nbytes * _VECTOR_WORK // _VECTOR_BYTES
    return max(known, min(count, _MOST_TIMES * known)) if known else count


_VECTOR_FLOP = 32
_VECTOR_BYTES = 64
_VECTOR_WORK = 6
"""What moving a vector costs in multiply-adds of vectors: data come from beyond the first cache."""
_MOST_TIMES = 8
"""How much more than a multiply-add per operation a kernel may do, such as exponentials."""


def _work(body: tuple[Operation, ...], unit: VectorUnit) -> int:
    total = 0
    for operation in body:
        match operation:
            case Loop():
                total += _turns(operation) * (1 + _work(operation.body, unit))
            case Constant() | IndexValue():
                pass
            case Load(result=value, stride=stride) | Store(value=value, stride=stride):
                is_apart = stride not in (0, 1)
                steps = value.type.lanes if is_apart else _registers(value.type, unit)
                total += _MEMORY * steps
            case Prefetch():
                total += 1
            case _:
                total += _registers(operation.result.type, unit)
    return total


def _turns(loop: Loop) -> int:
    span = loop.upper - loop.lower
    return _UNKNOWN_TURNS if span.terms else max(0, -(-span.const // loop.step))


def _registers(type_: Type, unit: VectorUnit) -> int:
    """Return how many registers hold a value."""
    return -(-type_.lanes // unit.lanes(type_.dtype))
