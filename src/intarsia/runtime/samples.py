# SPDX-License-Identifier: Apache-2.0
"""Makes up inputs from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.graph.legal import Legal

_MASK = "mask"
"""Part of the names of inputs that hide others where they are 0."""


def sample_feeds(
    specs: Sequence[TensorSpec], seed: int = 0, legal: Mapping[str, Legal] | None = None
) -> dict[str, Array]:
    """Return an array per spec that a model can do with.

    Floats are normally distributed, indices drawn from those that are legal. Other integers and
    booleans are ones, and so are floats whose name says that they are a mask: one that hides
    nothing. Texts are empty.

    Args:
        specs: What is wanted.
        seed: For what is drawn.
        legal: By name, what the model's operators say of an input (`graph.legal`).

    Raises:
        InputError: A spec has no fixed shape, or the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", hint="give a seed of 0 or more")
    generator = np.random.default_rng(seed)
    known = legal or {}
    return {spec.name: _sample(spec, known.get(spec.name), generator) for spec in specs}


def _sample(spec: TensorSpec, legal: Legal | None, generator: np.random.Generator) -> Array:
    if spec.shape is None:
        raise InputError(
            f"input {spec.name!r} has no fixed shape, so that no values can be made up for it",
            hint="pass an array for every input",
        )
    if spec.dtype == "string":
        return np.full(spec.shape, "", object)
    dtype = np_dtype(spec.dtype)
    if legal is not None and legal.values:
        return np.array(legal.values, dtype).reshape(spec.shape)
    if legal is not None and legal.bound:
        bound = min(legal.bound, np.iinfo(dtype).max if dtype.kind in "iu" else legal.bound)
        return generator.integers(0, bound, spec.shape).astype(dtype)
    if "float" in spec.dtype and _MASK not in spec.name.lower():
        return generator.standard_normal(spec.shape).astype(dtype)
    return np.ones(spec.shape, dtype)
