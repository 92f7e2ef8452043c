# SPDX-License-Identifier: Apache-2.0
"""The text form of a target.

It leaves out what a reader (and the parser) can deduce: attributes that have their default, and
keys that follow from the rest. JSON leaves nothing out, as it outlives releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.target.kind import TargetKind
from intarsia.target.schema import write


def print_target(
    kind: TargetKind,
    attrs: Mapping[str, Any],
    keys: tuple[str, ...] | None,
    tags: tuple[str, ...],
    *,
    with_tags: bool,
) -> str:
    """Return the text of a target.

    Args:
        kind: Its kind.
        attrs: Its attributes that are to be written, the host last.
        keys: Its keys, unless they follow from the rest.
        tags: Its own tags, if they are to be written.
        with_tags: Whether the tags of targets in it are written.
    """
    words = [kind.name]
    if keys is not None:
        words.append(f"-keys={write('array<string>', keys)}")
    for name, value in attrs.items():
        text = write(kind.attrs[name].type, value if with_tags else _untagged(value))
        words.append(f"-{name}={text}")
    if tags:
        words.append(f"-tag={write('array<string>', tags)}")
    return " ".join(words)


def _untagged(value: Any) -> Any:
    identity = getattr(value, "identity", None)  # of a target, which this module does not know
    if identity is not None:
        return Identity(identity)
    return tuple(_untagged(item) for item in value) if isinstance(value, tuple) else value


class Identity(str):
    """The identity of a nested target, printed as it is."""

    __slots__ = ()
