# SPDX-License-Identifier: Apache-2.0
"""Activations that ONNX Runtime's operators have as attributes: FusedConv, FusedGemm."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.codegen.body import Apply
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import ANCHOR, Recipe

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
"""By activation its parameters, in their order; "" is none."""
_GREEK = ("alpha", "beta", "gamma")


def _values(operation: Operation) -> tuple[float, ...]:
    """Return the parameters that are stated, in order."""
    stated: tuple[float, ...] = operation.attribute("activation_params", ())
    if stated:
        return stated
    numbers = (operation.attribute(f"activation_{name}") for name in _GREEK)
    return tuple(number for number in numbers if number is not None)


def refuse_activation(operation: Operation) -> str | None:
    """Say why an operator's activation is not taken."""
    name = operation.attribute("activation", "")
    if name not in _PARAMETERS:
        return f"its activation is {name}"
    if len(_values(operation)) < len(_PARAMETERS[name]):
        return f"its {name} lacks a parameter"
    return None


def with_activation(operation: Operation, before: Recipe | None = None) -> Recipe | None:
    """Return the steps of a group's anchor with the operator's activation behind them.

    Args:
        operation: Of the anchor.
        before: What is done first; None for nothing.
    """
    name, dtype = operation.attribute("activation", ""), operation.output.dtype
    if not name:
        return before
    before = before or Recipe((ANCHOR,), ())
    last = len(before.sources) + len(before.steps) - 1 if before.steps else 0
    attributes = tuple(sorted(zip(_PARAMETERS[name], _values(operation), strict=False)))
    return Recipe(before.sources, (*before.steps, Apply(name, (last,), attributes, dtype)))
