# SPDX-License-Identifier: Apache-2.0
"""The elementwise operators of ONNX as operations on the values of one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.arithmetic import ACTIVATIONS, ARITHMETIC, LOGIC
from intarsia.codegen.scalar_ops.conversion import CONVERSIONS
from intarsia.codegen.scalar_ops.fixed_point import FIXED_POINT
from intarsia.codegen.scalar_ops.narrow import CASTS
from intarsia.codegen.scalar_ops.operator import ScalarOp

SCALAR_OPS: Mapping[str, ScalarOp] = {
    **ARITHMETIC,
    **ACTIVATIONS,
    **LOGIC,
    **CONVERSIONS,
    **CASTS,
    **FIXED_POINT,
}
"""All elementwise operators, by name."""


def supported_dtypes(op_type: str) -> frozenset[str]:
    """Return which dtypes the inputs of an elementwise operator may have; none if it is none.

    The condition of `Where` is bool besides, and the exponent of `Pow` may be of another dtype.
    """
    operator = SCALAR_OPS.get(op_type)
    return operator.dtypes if operator else frozenset()


def apply_scalar(
    builder: Builder,
    op_type: str,
    arguments: Sequence[IrValue | None],
    attributes: Mapping[str, Any],
    dtype: str,
) -> IrValue:
    """Append one elementwise operator to a kernel and return its result.

    Args:
        builder: Of the kernel.
        op_type: One of `SCALAR_OPS`.
        arguments: Of equal lanes; None for an optional input that is absent.
        attributes: Those that are given; the others have ONNX's defaults.
        dtype: Of the result.
    """
    return SCALAR_OPS[op_type].emit(builder, arguments, attributes, dtype)


__all__ = ["SCALAR_OPS", "ScalarOp", "apply_scalar", "supported_dtypes"]
