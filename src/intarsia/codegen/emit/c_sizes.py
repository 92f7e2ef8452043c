# SPDX-License-Identifier: Apache-2.0
"""Programs in C whose sizes are parameters: extents as C, and an arena for the largest of them.

A program of free sizes says of its memory how large it is at which sizes. In C its arena is planned
once, for the largest sizes, so that every address is known when it is compiled, and a run needs no
memory but what it says; the sizes decide then how far kernels go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.codegen.lower.program import Program, place_scratch
from intarsia.codegen.storage import StorageKind
from intarsia.errors import UnsupportedError
from intarsia.extents import Expression, Extent, Maximum, Quotient, Symbol

HELPERS = """\
/* Rounds down; the divisor is positive. */
static int64_t quotient(int64_t dividend, int64_t divisor)
{
    return dividend / divisor - (dividend % divisor < 0);
}

static int64_t larger(int64_t first, int64_t second)
{
    return first > second ? first : second;
}
"""


def at_most(program: Program) -> Program:
    """Return a program of free sizes with memory for the largest ones, whose places are known.

    Raises:
        UnsupportedError: A size has no bound, or is found by a run.
    """
    if program.found:
        raise UnsupportedError(
            "the size of an output is found by a run, and a program in C has none such",
            hint="write a package instead (--emit package)",
        )
    storages, faults = [], 0
    for block in program.storages:
        nbytes = largest(block.nbytes)
        placed = replace(block, nbytes=nbytes, life=None)
        if block.kind is StorageKind.FAULT:
            placed, faults = replace(placed, index=faults), faults + nbytes
        storages.append(placed)
    fixed, size = place_scratch(storages, program.calls)
    return replace(program, storages=fixed, scratch_bytes=size)


def largest(extent: Extent) -> int:
    """Return the most that an extent may be.

    Raises:
        UnsupportedError: There is no bound.
    """
    if isinstance(extent, int):
        return extent
    most = extent.bounds[1]
    if math.isinf(most):
        names = sorted(symbol.name for symbol in extent.symbols if symbol.high is None)
        raise UnsupportedError(
            f"dimension {names[0] if names else str(extent)!r} has no largest size",
            hint=f"bound it, as in --shape {names[0] if names else 'batch'}=1..8",
        )
    return int(most)


def spell(extent: Extent, names: Mapping[str, str]) -> str:
    """Return an extent as an expression in C, in parentheses where it is not one number or name.

    Args:
        extent: Which.
        names: What symbols are called in C.
    """
    if isinstance(extent, int):
        return str(extent)
    terms = []
    for factors, coefficient in extent.terms:
        parts = [_factor(factor, names) for factor in factors]
        if coefficient != 1 or not parts:
            parts.insert(0, str(coefficient) if coefficient > 0 else f"({coefficient})")
        terms.append(" * ".join(parts))
    text = " + ".join(terms)
    return f"({text})" if " " in text else text


def _factor(factor: Symbol | Quotient | Maximum, names: Mapping[str, str]) -> str:
    match factor:
        case Symbol():
            return names[factor.name]
        case Quotient():
            return f"quotient({spell(factor.dividend, names)}, {factor.divisor})"
        case Maximum():
            return f"larger({spell(factor.first, names)}, {spell(factor.second, names)})"


def refuse_sizes(symbols: Sequence[Symbol], names: Mapping[str, str]) -> str:
    """Return a condition in C that holds where sizes are outside their bounds."""
    wrong = []
    for symbol in symbols:
        name = names[symbol.name]
        wrong.append(f"{name} < {symbol.low} || {name} > {largest(Expression.of(symbol))}")
        if symbol.multiple != 1:
            wrong.append(f"{name} % {symbol.multiple} != 0")
    return " || ".join(wrong)
