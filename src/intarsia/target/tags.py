# SPDX-License-Identifier: Apache-2.0
"""Tags: names of complete target configurations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.labels import find_label
from intarsia.target.registry import REGISTRY
from intarsia.target.target import Target
from intarsia.target.text import suggest
from intarsia.target.user_files import UserTables


def register_tag(
    name: str,
    config: str | Mapping[str, Any] | Target,
    override: bool = False,
) -> Target:
    """Name a target configuration, and return the target that the name now means.

    Args:
        name: Not that of a kind.
        config: A form of one target; a dictionary with `tag` builds on that tag.
        override: Whether to replace a tag of the same name.

    Raises:
        TargetError: The name is taken or malformed, or the configuration is not a target.
    """
    REGISTRY.tags.check_name(name)
    if name in Target(config).tags:
        raise TargetError(f"tag {name!r} would build on itself", hint="choose another name")
    stored = config.to_json() if isinstance(config, Target) else config
    REGISTRY.tags.add(name, stored, override=override)
    return get_tag(name)


def get_tag(name: str) -> Target:
    """Return the target that the tag names.

    Raises:
        TargetError: There is no such tag.
    """
    if REGISTRY.tags.find(name) is None:
        hint = suggest(name, REGISTRY.tags.names(), what="tags")
        raise TargetError(f"tag {name!r} is not known", hint=hint)
    return Target({"tag": name})


def list_tags() -> tuple[str, ...]:
    """Return the names of all tags, sorted.

    Raises:
        TargetError: A file of the user's cannot be read or clashes with what is known.
    """
    return REGISTRY.tags.names()


def given_names() -> dict[str, Any]:
    """Return what tags and labels mean that do not come with Intarsia, as they were written.

    Raises:
        TargetError: A file of the user's cannot be read or clashes with what is known.
    """
    return REGISTRY.tags.given()


def add_target_file(*paths: str | os.PathLike[str]) -> None:
    """Make the tags and labels of files known, until the process ends.

    The files of `INTARSIA_TARGETS` and the project's `intarsia.toml` need no such call.

    Args:
        paths: `.toml` or `.json` files with `tags`, `targets` (labels), or both; in any order.

    Raises:
        TargetError: A file cannot be read, defines a name that is taken, or something in it is no
            target; the message has the line.
    """
    for added in [REGISTRY.tags.add_file(path) for path in paths]:
        _check_tables(added)


def _check_tables(added: UserTables) -> None:
    for name, entry in added.tags.items():
        try:
            get_tag(name)
        except TargetError as error:
            if entry.source is None or str(entry.source.file) in error.message:
                raise
            message = f"{entry.place()}: tag {name!r}: {error.message}"
            raise TargetError(message, hint=error.hint) from None
    for name in added.labels:
        find_label(name)
