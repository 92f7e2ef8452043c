# SPDX-License-Identifier: Apache-2.0
"""The networks of the zoo: a name, and the function that builds it from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx

from intarsia.errors import ModelError
from intarsia.zoo import naming
from intarsia.zoo.light import from_light

Builder = Callable[[np.random.Generator], onnx.ModelProto]

BUILDERS: Mapping[str, Builder] = MappingProxyType(
    # Softmax after the mean of rectified values would be all but uniform at a gain of 1.
    {
        "densenet121": partial(from_light, "densenet121", naming.DENSENET, "logits", 1.0),
        "resnet50": partial(from_light, "resnet50", naming.RESNET, "prob", 1.0),
        "squeezenet": partial(from_light, "squeezenet", naming.SQUEEZENET, "prob", 5.0),
    }
)


def models() -> tuple[str, ...]:
    """Return the names that `build` knows, sorted."""
    return tuple(sorted(BUILDERS))


def find(name: str) -> Builder:
    """Return the function that builds a network.

    Args:
        name: One of `models()`.

    Raises:
        ModelError: If there is no such network.
    """
    if name not in BUILDERS:
        known = ", ".join(models())
        msg = f"the zoo has no network {name!r}"
        raise ModelError(msg, hint=f"choose from {known}")
    return BUILDERS[name]


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build one network; the same name and seed give the same bytes.

    Args:
        name: One of `models()`.
        seed: Seeds every weight; not negative.

    Returns:
        A checked model whose image input is called `data`.

    Raises:
        ModelError: If there is no such network, or the seed is negative.
    """
    builder = find(name)
    if seed < 0:
        msg = f"seed {seed} is negative"
        raise ModelError(msg, hint="give a seed of 0 or more")
    model = builder(np.random.default_rng(seed))
    onnx.checker.check_model(model, full_check=True)
    return model
