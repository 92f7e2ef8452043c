# SPDX-License-Identifier: Apache-2.0
"""Which convolutions may be computed by Winograd's transforms: the target's choice."""

from __future__ import annotations

from enum import StrEnum


class Winograd(StrEnum):
    """Values of `-winograd`."""

    OFF = "off"
    F2 = "f2"
    F4 = "f4"
    AUTO = "auto"  # the largest tiles whose error is within `winograd_error.LIMIT`, by layer

    @property
    def largest(self) -> int:
        """The largest extent of a tile; 0 for none."""
        return {Winograd.OFF: 0, Winograd.F2: 2}.get(self, 4)
