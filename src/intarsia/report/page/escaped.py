# SPDX-License-Identifier: Apache-2.0
"""JSON of values with names that are no text, as those of files may be."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec


def escaped_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON of ASCII alone; as msgspec does, null for what is no finite number."""
    return json.dumps(_finite(msgspec.to_builtins(value, str_keys=True)), indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
