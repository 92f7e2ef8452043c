# SPDX-License-Identifier: Apache-2.0
"""Matrix products with constant weights, and matrix-vector products."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_rows.row import Area


def areas() -> Sequence[Area]:
    """Return the areas of this family."""
    return ()
