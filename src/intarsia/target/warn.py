# SPDX-License-Identifier: Apache-2.0
"""Warnings about a target, shown at the line of the user's program that gave it."""

from __future__ import annotations

import sys
import warnings

_given = 0


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, naming the nearest caller outside this package."""
    global _given  # noqa: PLW0603 - a counter
    _given += 1
    level, frame = 1, sys._getframe()  # noqa: SLF001 - the documented way to see a caller
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warnings_given() -> int:
    """Return how often `warn` was called so far: a value made meanwhile is not worth caching."""
    return _given


def _is_ours(module: str) -> bool:
    return module == "intarsia" or module.startswith("intarsia.")
