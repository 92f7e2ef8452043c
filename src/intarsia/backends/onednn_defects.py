# SPDX-License-Identifier: Apache-2.0
"""What functions of oneDNN are known to get wrong, in the library and in OpenVINO, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.defects import KnownDefect

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.graph.graph import Graph, Node

_EVERY = (
    "four million floats of [-100, 100] through oneDNN 3.2 and OpenVINO 2026.4, against float64"
)
_TRIED = "oneDNN 3.2 and OpenVINO 2026.4 against ONNX Runtime 1.31 without optimisations"

_FACTORS = {"Celu": (1.0, 1.0), "Elu": (1.0, 1.0), "Selu": (1.67326319, 1.05070102)}
"""Defaults of `alpha` and `gamma`."""
_LARGEST_FACTOR = 4.0
_MISH = 24 * log(2) * 2.0**-24
"""Mish of -24 log(2), from which on oneDNN's is 0: there `exp(x)` is half a unit of one."""
_LEAST_EXPONENTIAL = 2.0**-125.5
"""The power of two is rounded to a whole exponent first; -126 counts as none."""
# At -87 it gives just this, where the function is 2e-38: the largest error of four million points
# of [-100, 100] with oneDNN 3.2.
_SOFTPLUS = 2.0**-17


def _has_small_factor(graph: Graph, node: Node) -> bool:
    alpha, gamma = _FACTORS[node.op_type]
    attributes = node.ir.attributes
    factor = attributes.get_float("alpha", alpha) * attributes.get_float("gamma", gamma)
    return abs(factor) <= _LARGEST_FACTOR


def _of_exponential(inputs: Sequence[Any], result: Array) -> float:
    """Return two roundings next to one, times the largest factor."""
    return _LARGEST_FACTOR * float(np.finfo(result.dtype).eps)


def _divides(graph: Graph, node: Node) -> bool:
    """Tell whether a node's result is a divisor, or its logarithm is taken."""
    result = node.outputs[0]
    readers = (graph.nodes[reader] for reader in graph.values[result].consumers)
    return any(
        reader.op_type in ("Log", "Reciprocal")
        or (reader.op_type == "Div" and reader.inputs[1] == result)
        for reader in readers
    )


def _pads_gaps(graph: Graph, node: Node) -> bool:
    """Tell whether a pooling pads windows with gaps, which may then lie in the padding alone."""
    attributes = node.ir.attributes
    mode = attributes.get_string("auto_pad", "")
    is_padded = any(attributes.get_ints("pads", ())) or mode.startswith("SAME")
    return is_padded and any(gap > 1 for gap in attributes.get_ints("dilations", ()))


def onednn_defects(backend: str) -> tuple[KnownDefect, ...]:
    """Return the rules of a backend that computes by oneDNN.

    Args:
        backend: Its name.
    """
    rule = partial(KnownDefect.of, backend, _TRIED)
    every = partial(KnownDefect.of, backend, _EVERY)
    return (
        rule(
            "MaxPool",
            "of padding alone it gives the least finite number, and not -infinity",
            where=_pads_gaps,
        ),
        rule(
            "Softplus",
            "it is off by up to 7.7e-6, which is another number next to 0",
            where=_divides,
        ),
        every("Softplus", "it is as exact as 7.7e-6", bound=lambda inputs, result: _SOFTPLUS),
        every("Mish", "below -24 log(2) it is 0", bound=lambda inputs, result: _MISH),
        every(
            "Celu Elu Selu",
            "one is subtracted from the exponential, which cancels next to 0",
            where=_has_small_factor,
            bound=_of_exponential,
        ),
        every(
            "Exp Softmax",
            "an exponential below 2**-125.5 is 0",
            bound=lambda inputs, result: _LEAST_EXPONENTIAL,
        ),
    )
