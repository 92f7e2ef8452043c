# SPDX-License-Identifier: Apache-2.0
"""How a tensor lies at a region's border."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class TensorState:
    """How a tensor lies at a region's border.

    Attributes:
        domain: The memory domain, as `(device type, device id, memory scope)`.
        layout: `plain` (row-major, dense), another shared name (`nchw8c`), or one that is private
            to `runtime`.
        dtype: Element type, by its numpy or ml_dtypes name.
        runtime: The runtime that owns a private layout; empty for shared layouts.
    """

    domain: tuple[int, int, str]
    layout: str
    dtype: str
    runtime: str = ""
