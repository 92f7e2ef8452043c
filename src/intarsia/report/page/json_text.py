# SPDX-License-Identifier: Apache-2.0
"""JSON of any value, also of names that are no text, as those of files may be."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with null for what is no finite number.

    Args:
        value: Made of dataclasses, dictionaries, sequences and scalars.
        indent: Spaces of a level; None for one line.
    """
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a name that is not text: with escapes it is, in JSON
        return json.dumps(_finite(msgspec.to_builtins(value, str_keys=True)), indent=indent)
    return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
