# SPDX-License-Identifier: Apache-2.0
"""The elementwise operators of ONNX as operations on the values of one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value

Emit: TypeAlias = Callable[[Builder, Sequence[Any], Mapping[str, Any], str], Value]
"""From arguments (None if absent), attributes and the result's dtype to the result."""

SCALAR_OPS: dict[str, Emit] = {
    "Identity": lambda b, x, attrs, dtype: x[0],
    "Relu": lambda b, x, attrs, dtype: b.maximum(0, x[0]),
    "Add": lambda b, x, attrs, dtype: b.add(x[0], x[1]),
    "Mul": lambda b, x, attrs, dtype: b.mul(x[0], x[1]),
}


def apply_scalar(
    builder: Builder,
    op_type: str,
    arguments: Sequence[Value | None],
    attributes: Mapping[str, Any],
    dtype: str,
) -> Value:
    """Append one elementwise operator to a kernel and return its result."""
    return SCALAR_OPS[op_type](builder, arguments, attributes, dtype)
