# SPDX-License-Identifier: Apache-2.0
"""How inaccurate libraries are where that is more than rounding: stated bounds, with a source.

A bound explains a disagreement only if it is no larger than what the bound itself makes of the
graph: the reference is run with the node's result moved by up to the bound (`rounding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.backends.api import Array
from intarsia.testing.differential.rounding import Bound, epsilon

_TRIED = "measured by random graphs against ONNX Runtime 1.31 and onnx.reference 1.23: "


@dataclass(frozen=True)
class Accuracy:
    """What a library's operator may be off by.

    Attributes:
        backend: Name of the backend.
        operators: Of ONNX.
        says: The bound in words.
        source: How it is known.
        bound: From what a node reads and makes to the largest error of each element.
    """

    backend: str
    operators: frozenset[str]
    says: str
    source: str
    bound: Bound


def _zero_point(inputs: Sequence[Any], made: Array) -> Array | float:
    if len(inputs) < 3 or not isinstance(inputs[2], np.ndarray):  # noqa: PLR2004
        return 0.0
    size = np.abs(inputs[2].astype(np.float64)) * np.abs(inputs[1].astype(np.float64))
    return 2 * epsilon(made.dtype) * float(np.max(size, initial=0))


ACCURACIES = (
    *(
        Accuracy(
            backend,
            frozenset(("Gelu",)),
            "one is added to the error function, as ONNX writes it, which cancels below zero",
            "the function body of Gelu in ONNX, in the type of its input",
            lambda inputs, made: 2 * epsilon(made.dtype) * np.abs(inputs[0].astype(np.float64)),
        )
        for backend in ("llvm", "opencl")
    ),
    *(
        Accuracy(
            backend,
            frozenset(("Resize",)),
            "coordinates are float32, like the scales, also for float64",
            _TRIED + "native code, and ONNX Runtime where it has a kernel",
            lambda inputs, made: 2.0**-20 * float(np.max(np.abs(made), initial=0)),
        )
        for backend in ("llvm", "opencl", "openvino")
    ),
    Accuracy(
        "openvino",
        frozenset(("Erf", "Gelu")),
        "the error function is off by up to 3e-7",
        _TRIED + "OpenVINO 2026.4 approximates it by a rational function",
        lambda inputs, made: 3e-7,
    ),
    Accuracy(
        "openvino",
        frozenset(("DequantizeLinear",)),
        "the zero point is subtracted after scaling, so that results are rounded at its size",
        _TRIED + "OpenVINO 2026.4",
        _zero_point,
    ),
    Accuracy(
        "dnnl",
        frozenset(("DequantizeLinear",)),
        "the zero point is subtracted after scaling, so that results are rounded at its size",
        _TRIED + "oneDNN 3.2 where it fuses an addition",
        _zero_point,
    ),
    Accuracy(
        "dnnl",
        frozenset(("Log",)),
        "the logarithm is off by up to 64 units in the last place",
        _TRIED + "oneDNN 3.2 on AVX-512",
        lambda inputs, made: 64 * epsilon(made.dtype) * np.abs(made.astype(np.float64)),
    ),
)
"""By backend and operator; everything else is held to the units of `rounding`."""


def accuracy_of(backend: str, op_type: str) -> Accuracy | None:
    """Return the bound that is stated for an operator of a backend, or None."""
    found = (a for a in ACCURACIES if a.backend == backend and op_type in a.operators)
    return next(found, None)
