# SPDX-License-Identifier: Apache-2.0
"""What an elementwise operator is, and sets of dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import DTYPES, IrValue

Emit: TypeAlias = Callable[[Builder, Sequence[Any], Mapping[str, Any], str], IrValue]
"""Maps arguments (None if absent), attributes and the result's dtype to the result."""

FLOATS = frozenset(("float32", "float64"))
"""What floating-point operators compute in; float16 is converted before and after."""

UNSIGNED = frozenset(dtype for dtype in DTYPES if dtype.startswith("uint"))
INTS = frozenset(dtype for dtype in DTYPES if dtype.startswith("int")) | UNSIGNED
NUMBERS = FLOATS | INTS
WIDE = FLOATS | {"int32", "int64", "uint32", "uint64"}
"""Numbers that sums and products are computed in."""

BOOL = frozenset(("bool",))
ANY = frozenset(DTYPES)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One elementwise operator.

    Attributes:
        emit: Appends it to a kernel.
        dtypes: What its inputs may be.
    """

    emit: Emit
    dtypes: frozenset[str]


def unary(function: Callable[[Builder, IrValue], IrValue], dtypes: frozenset[str]) -> ScalarOp:
    """Return the operator of a function of one value."""
    return ScalarOp(lambda b, x, attrs, dtype: function(b, x[0]), dtypes)


def binary(
    function: Callable[[Builder, IrValue, IrValue], IrValue], dtypes: frozenset[str]
) -> ScalarOp:
    """Return the operator of a function of two values."""
    return ScalarOp(lambda b, x, attrs, dtype: function(b, x[0], x[1]), dtypes)


def parametric(
    function: Callable[..., IrValue], dtypes: frozenset[str], **defaults: float
) -> ScalarOp:
    """Return the operator of a function of one value, and of attributes that are numbers."""

    def emit(b: Builder, x: Sequence[Any], attributes: Mapping[str, Any], _dtype: str) -> IrValue:
        given = {name: float(attributes.get(name, number)) for name, number in defaults.items()}
        return function(b, x[0], **given)

    return ScalarOp(emit, dtypes)
