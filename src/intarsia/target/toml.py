# SPDX-License-Identifier: Apache-2.0
"""TOML documents of the values that targets have: tables, arrays, strings, integers, booleans."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.schema import check_depth

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(items: Mapping[str, Any]) -> str:
    """Return a document, one line for each item."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in items.items())


def read_toml(text: str) -> dict[str, Any]:
    """Read a document.

    Raises:
        TargetError: It is malformed, or nested too deeply.
    """
    import tomllib  # only TOML pays for it

    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TargetError(f"malformed TOML: {error}") from None
    check_depth(document)
    return document


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _string(value) if isinstance(value, str) else str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    # A JSON string is a TOML string but for DEL, which TOML wants escaped (TOML 1.0, String).
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
