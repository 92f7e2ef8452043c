# SPDX-License-Identifier: Apache-2.0
"""Which numbers random graphs are made of: kinds of values, drawn for a dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from intarsia.arrays import Array

_SPECIAL_SHARE = 0.2


def draw(
    rng: np.random.Generator, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    """Return numbers of a kind; integers and truth values have kinds of their own.

    Args:
        rng: Draws them.
        kind: A key of `KINDS`.
        dtype: Of the result.
        shape: Of the result.
    """
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return _integers(rng, kind, dtype, shape)
    with np.errstate(over="ignore", under="ignore"):
        return np.array(KINDS[kind](rng, dtype, shape), dtype)


def _integers(
    rng: np.random.Generator, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    info = np.iinfo(dtype)
    low, high = max(info.min, -6), 7
    if kind in ("huge", "specials"):
        low, high = info.min, info.max
    return np.asarray(rng.integers(low, high, shape, dtype=dtype, endpoint=True))


def _limits(dtype: np.dtype[Any]) -> Any:
    """Return the limits of a type of floats, of those that numpy lacks too."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _specials(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    info = _limits(dtype)
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, info.smallest_subnormal, -info.smallest_normal / 2]
    odd += [info.max, info.min, info.smallest_normal]
    chosen = rng.choice(np.array(odd, np.float64), shape)
    return np.where(rng.random(shape) < _SPECIAL_SHARE, chosen, rng.standard_normal(shape))


def _infinities(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    chosen = rng.choice(np.array([np.inf, -np.inf, 0.0, -0.0]), shape)
    return np.where(rng.random(shape) < _SPECIAL_SHARE, chosen, rng.standard_normal(shape))


def _huge(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    exponent = rng.uniform(0.3, 0.99) * np.log(float(_limits(dtype).max))
    return np.asarray(rng.uniform(-1, 1, shape) * np.exp(exponent))


def _tiny(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.standard_normal(shape) * 4 * float(_limits(dtype).smallest_normal))


KINDS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "plain": lambda rng, dtype, shape: rng.standard_normal(shape),
        "wide": lambda rng, dtype, shape: rng.standard_normal(shape) * 30,
        "ties": lambda rng, dtype, shape: rng.integers(-2, 3, shape) / 2,
        "zeros": lambda rng, dtype, shape: rng.choice(np.array([0.0, -0.0]), shape),
        "specials": _specials,
        "infinities": _infinities,
        "huge": _huge,
        "tiny": _tiny,
    }
)
"""Kinds of floating-point numbers: how each is drawn for a dtype and a shape."""

WEIGHTS = MappingProxyType(
    {
        "plain": 0.52,
        "wide": 0.08,
        "ties": 0.1,
        "zeros": 0.02,
        "specials": 0.12,
        "infinities": 0.05,
        "huge": 0.07,
        "tiny": 0.04,
    }
)
"""How often the inputs of a graph are of each kind."""
