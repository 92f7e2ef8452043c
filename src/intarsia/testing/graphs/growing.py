# SPDX-License-Identifier: Apache-2.0
"""How every operator is drawn, and how a graph grows by nodes of some of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from intarsia.testing.graphs import movement, pointwise, quantised, structures, sums, windows
from intarsia.testing.graphs.draft import Draft, Unfit

RECIPES = {
    **pointwise.RECIPES,
    **movement.RECIPES,
    **windows.RECIPES,
    **sums.RECIPES,
    **quantised.RECIPES,
    **structures.RECIPES,
}
"""By operator, how it is drawn."""

UNFIT = (
    *(Unfit, ValueError, IndexError),  # empty dimensions have no elements to choose from
    *(onnx.checker.ValidationError, onnx.shape_inference.InferenceError),
)
"""What says that something that was drawn makes no valid graph."""


def grow(d: Draft, operators: Sequence[str], count: int) -> None:
    """Add a few nodes of some operators; what does not fit is left out.

    Args:
        d: The draft.
        operators: Their names, as often as they are to come.
        count: How many nodes to try.
    """
    for _ in range(count):
        op_type = d.pick(operators)
        nodes, values = len(d.nodes), dict(d.values)
        try:
            RECIPES[op_type](d, op_type)
        except UNFIT:
            del d.nodes[nodes:]
            d.values = values
