# SPDX-License-Identifier: Apache-2.0
"""Makes up inputs from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.backends.api import Array, TensorSpec, np_dtype
from intarsia.errors import InputError


def sample_feeds(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, Array]:
    """Return an array per spec: normally distributed floats, zeros of all else, empty texts.

    Raises:
        InputError: A spec has no fixed shape, or the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", hint="give a seed of 0 or more")
    generator = np.random.default_rng(seed)
    return {spec.name: _sample(spec, generator) for spec in specs}


def _sample(spec: TensorSpec, generator: np.random.Generator) -> Array:
    if spec.shape is None:
        raise InputError(
            f"input {spec.name!r} has no fixed shape, so that no values can be made up for it",
            hint="pass an array for every input",
        )
    if spec.dtype == "string":
        return np.full(spec.shape, "", object)
    dtype = np_dtype(spec.dtype)
    if "float" in spec.dtype:
        return generator.standard_normal(spec.shape).astype(dtype)
    return np.zeros(spec.shape, dtype)
