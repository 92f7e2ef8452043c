# SPDX-License-Identifier: Apache-2.0
"""How the text of a target may go on, for the completion of shells.

Backends are not asked: what takes a moment to import would be felt at every tab.
"""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    Target,
    TargetKind,
    get_kind,
    get_tag,
    list_kinds,
    list_tags,
)
from intarsia.target.labels import find_label, list_labels

_TARGETS = ("target", "array<target>")


def complete_text(text: str) -> Iterator[tuple[str, str]]:
    """Yield each way in which a text goes on, as the whole text, with its help.

    Kinds, tags and labels come first, then after a blank the attributes of the kind, after `=`
    the values that an attribute may have; after a comma and a blank the next target begins, after
    an open quote one inside.
    """
    if text.count("'") % 2:
        outer, quote, inner = text.rpartition("'")
        for way, meaning in complete_text(inner):
            yield f"{outer}{quote}{way}", meaning
        return
    before, comma, segment = text.rpartition(", ")
    head, blank, word = segment.rpartition(" ")
    ways = _options(head.strip(), word) if blank else _names(word)
    for way, meaning in ways:
        yield f"{before}{comma}{head}{blank}{way}", meaning


def _names(begun: str) -> Iterator[tuple[str, str]]:
    for name in list_kinds():
        if name.startswith(begun):
            yield name, get_kind(name).help
    for name in (*list_tags(), *list_labels()):
        if name.startswith(begun):
            meaning = _meaning(name)
            if meaning:
                yield name, meaning


def _meaning(name: str) -> str:
    """Return what a tag or label stands for; nothing if it is broken."""
    try:
        placed = find_label(name)
        return get_tag(name).identity if placed is None else str(placed)
    except TargetError:
        return ""


def complete_attribute(text: str) -> Iterator[tuple[str, str]]:
    """Yield each way in which `KIND:ATTR=VALUE` goes on, as `complete_text` does."""
    name, colon, option = text.partition(":")
    if not colon:
        for kind in list_kinds():
            if kind.startswith(name):
                yield f"{kind}:", get_kind(kind).help
        return
    for way, meaning in _options(name, f"-{option}"):
        yield f"{name}:{way[1:]}", meaning


def _options(head: str, word: str) -> Iterator[tuple[str, str]]:
    kind = _kind_of(head.split(maxsplit=1)[0]) if head else None
    if kind is None or not "-".startswith(word[:1]):
        return
    name, equals, value = word.lstrip("-").partition("=")
    dashes = word[: len(word) - len(word.lstrip("-"))] or "-"
    if equals:
        spec = kind.attrs.get(name)
        for way, meaning in () if spec is None else _values(spec, value):
            yield f"{dashes}{name}={way}", meaning
        return
    named_attributes = {other.lstrip("-").partition("=")[0] for other in head.split()[1:]}
    for spec in kind.attrs.values():
        if spec.name.startswith(name) and spec.name not in named_attributes:
            yield f"{dashes}{spec.name}=", f"{spec.type}: {spec.help}"


def _values(spec: AttrSpec, begun: str) -> Iterator[tuple[str, str]]:
    if spec.type in _TARGETS:
        yield from _names(begun)
    for value in map(str, spec.choices or (("true", "false") if spec.type == "bool" else ())):
        if value.startswith(begun):
            yield value, spec.help


def _kind_of(name: str) -> TargetKind | None:
    try:
        return Target(name.partition(":")[0]).kind
    except TargetError:
        return None
