# SPDX-License-Identifier: Apache-2.0
"""Attributes of targets as options: `--target-llvm-mcpu=cortex-a72`, for every kind's schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.target import TargetKind

_PREFIX = "--target-"
_OPTION = "--target-attr"
_OPTION_LIKE = re.compile("-[^0-9]")
_OTHERS = ("--target-file", "--target-host", _OPTION)


def expand_attributes(arguments: Sequence[str]) -> list[str]:
    """Rewrite `--target-KIND-ATTR=VALUE` as `--target-attr KIND:ATTR=VALUE`.

    The value may be the next argument; a flag needs none.

    Raises:
        SettingError: There is no such kind or attribute, or the value is missing.
    """
    expanded: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        option, equals, value = argument.partition("=")
        if argument == "--":
            return [*expanded, argument, *rest]
        if not option.startswith(_PREFIX) or option in _OTHERS:
            expanded.append(argument)
            continue
        kind, attr = _find(option)
        if not equals and kind.attrs[attr].type == "bool":
            value = "true"
        elif not equals:
            if not rest or _OPTION_LIKE.match(rest[0]):
                raise SettingError(f"{option} needs a value", hint=f"write {option}=VALUE")
            value = rest.pop(0)
        expanded += [_OPTION, f"{kind.name}:{attr}={value}"]
    return expanded


def read_attributes(texts: Sequence[str] | None) -> dict[str, dict[str, str]]:
    """Return attributes by kind from `KIND:ATTR=VALUE`.

    Raises:
        SettingError: A text is of another form, or an attribute is given twice.
    """
    overrides: dict[str, dict[str, str]] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        kind, colon, attr = name.partition(":")
        if not (kind and colon and attr and equals):
            raise SettingError(
                f"{_OPTION} {text!r} is not KIND:ATTR=VALUE",
                hint="write for example llvm:mcpu=cortex-a72",
            )
        attrs = overrides.setdefault(kind, {})
        if attr in attrs:
            raise SettingError(f"{_PREFIX}{kind}-{attr} is given twice", hint="leave one out")
        attrs[attr] = value
    return overrides


def _find(option: str) -> tuple[TargetKind, str]:
    """Return kind and attribute of an option; names may have dashes, and the longest kind wins."""
    from intarsia.target import get_kind, list_kinds
    from intarsia.target.text import suggest

    name = option.removeprefix(_PREFIX)
    kinds = [kind for kind in list_kinds(all=True) if name.startswith(f"{kind}-")]
    splits = [(get_kind(kind), name[len(kind) + 1 :]) for kind in sorted(kinds, key=len)]
    for kind, attr in reversed(splits):
        if attr in kind.attrs:
            return kind, attr
    if not splits:
        start = name.partition("-")[0]
        hint = suggest(start, list_kinds(all=True), what="kinds", listed=list_kinds())
        raise SettingError(f"there is no option {option!r}", hint=hint)
    kind, attr = splits[-1]
    hint = suggest(attr, sorted(kind.attrs), what=f"attributes of {kind.name}")
    raise SettingError(f"{option}: kind {kind.name!r} has no attribute {attr!r}", hint=hint)
