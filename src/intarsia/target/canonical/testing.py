# SPDX-License-Identifier: Apache-2.0
"""The canonicaliser of the kind `test`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.target.kind import Canonical


def canonicalize_test(attrs: Mapping[str, Any]) -> Canonical:
    """Set the feature that tells tests that features reach them."""
    return Canonical(attrs, features={"is_test": True})
