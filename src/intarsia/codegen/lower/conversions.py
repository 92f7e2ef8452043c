# SPDX-License-Identifier: Apache-2.0
"""The step of a body that converts, also from and to types that numpy lacks."""

from __future__ import annotations

from intarsia.codegen.body import Apply, Attributes
from intarsia.codegen.scalar_ops.narrow import NARROW, storage_of


def convert_step(argument: int, source: str, target: str, attributes: Attributes = ()) -> Apply:
    """Return the step that makes one dtype of another, which either may be one of ours."""
    names = (("from", source), ("to", target))
    narrow = tuple((name, dtype) for name, dtype in names if dtype in NARROW)
    return Apply("Cast", (argument,), tuple(sorted(narrow + attributes)), storage_of(target))


FITS = (("fits", 1),)
"""Attributes of a conversion to a narrower integer dtype which holds every number that comes."""
