# SPDX-License-Identifier: Apache-2.0
"""Labels: a user's own names for placed targets, kept in a file or a dictionary.

A label may inherit from another: `gpu2 = {inherits = "gpu", device_id = 1}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intarsia.errors import TargetError
from intarsia.target.fields import Fields, read_fields
from intarsia.target.placed import VirtualDevice, placed_from_fields
from intarsia.target.registry import REGISTRY
from intarsia.target.schema import parse_json
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from pathlib import Path

Labels = Mapping[str, VirtualDevice]
SUFFIXES = (".json", ".toml")


def load_labels(path: str | Path) -> dict[str, VirtualDevice]:
    """Read labels from a `.toml` or `.json` file: its `labels` table, else all of it.

    Raises:
        TargetError: The file cannot be read, or a label is malformed.
    """
    content = read_file(path)
    table = content.get("labels", content) if isinstance(content, dict) else content
    return read_labels(table)


def read_labels(table: Any) -> dict[str, VirtualDevice]:
    """Make placed targets of a table from label to target.

    Raises:
        TargetError: A label is malformed, has the name of a kind or tag, or inherits from itself.
    """
    if not isinstance(table, Mapping):
        raise TargetError("labels have to be a table from name to target")
    labels = {}
    for name in table:
        if not isinstance(name, str) or name in REGISTRY.kind_names() or REGISTRY.has_tag(name):
            raise TargetError(f"label {name!r} is the name of a kind or tag, or no string")
        try:
            labels[name] = placed_from_fields(_inherited(name, table, ()))
        except TargetError as error:
            raise TargetError(f"label {name!r}: {error.message}", hint=error.hint) from None
    return labels


def read_file(path: str | Path) -> Any:
    """Read a `.toml` or `.json` file.

    Raises:
        TargetError: The file is missing, malformed, or of another suffix.
    """
    import tomllib  # only a file pays for these
    from pathlib import Path

    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise TargetError(f"'{file}' is not a .json or .toml file")
    try:
        text = file.read_text(encoding="utf-8")
        return parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TargetError(f"cannot read targets from '{file}': {error}") from None
    except TargetError as error:
        raise TargetError(f"'{file}': {error.message}", hint=error.hint) from None


def _inherited(name: str, table: Mapping[str, Any], seen: tuple[str, ...]) -> Fields:
    if name in seen:
        raise TargetError(f"inherits from itself: {' -> '.join((*seen, name))}")
    if name not in table:
        raise TargetError(
            f"there is no label {name!r} to inherit from", hint=suggest(name, table, what="labels")
        )
    spec = table[name]
    if not isinstance(spec, Mapping) or "inherits" not in spec:
        return read_fields(spec)
    own = {key: value for key, value in spec.items() if key != "inherits"}
    base = _inherited(spec["inherits"], table, (*seen, name))
    if own.get("kind", base["kind"]) != base["kind"]:
        raise TargetError(f"has another kind than {spec['inherits']!r}, which it inherits from")
    return {**base, **own}
