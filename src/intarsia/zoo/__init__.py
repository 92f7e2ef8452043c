# SPDX-License-Identifier: Apache-2.0
"""Networks made from a seed: the true structures, weights that need no download.

A zoo network has the layers, shapes and cost of the published one; its weights are random but
scaled, so that activations neither vanish nor saturate. It answers every question about placement,
speed and numerical agreement, and none about accuracy::

    python -m intarsia.zoo resnet50 --out .zoo
"""

from __future__ import annotations

from intarsia.zoo.catalogue import build, models

__all__ = ["build", "models"]
