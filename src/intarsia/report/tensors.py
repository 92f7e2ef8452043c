# SPDX-License-Identifier: Apache-2.0
"""A tensor in one line: type, range, mean and its first values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FIRST = 5
"""How many values a summary shows."""


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """What a tensor holds.

    Attributes:
        name: Its name in the model.
        dtype: Element type; the Python type of a value that is not a tensor.
        shape: Dimensions; None for a value that is not a tensor.
        min: Smallest value; None where there is none or values have no order.
        max: Largest value, likewise.
        mean: Their mean, likewise.
        first: Its first values in row-major order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    min: float | None
    max: float | None
    mean: float | None
    first: tuple[Any, ...]


def summarize(outputs: Mapping[str, Any]) -> tuple[TensorSummary, ...]:
    """Return a summary of each output."""
    return tuple(_summary(name, value) for name, value in outputs.items())


def _summary(name: str, value: Any) -> TensorSummary:
    if not isinstance(value, np.ndarray | np.generic):
        items = tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
        return TensorSummary(name, type(value).__name__, None, None, None, None, items[:FIRST])
    array = np.asarray(value)
    first = array.reshape(-1)[:FIRST]
    is_text = array.dtype.kind in "OUST"
    if is_text or array.dtype.kind == "c":
        texts = tuple(map(str, first))
        dtype = "string" if is_text else array.dtype.name
        return TensorSummary(name, dtype, array.shape, None, None, None, texts)
    numbers = array.astype(np.float64)
    values = tuple(first.astype(object if array.dtype.kind in "biu" else np.float64).tolist())
    if not array.size:
        return TensorSummary(name, array.dtype.name, array.shape, None, None, None, ())
    return TensorSummary(
        name,
        array.dtype.name,
        array.shape,
        float(numbers.min()),
        float(numbers.max()),
        float(numbers.mean()),
        values,
    )
