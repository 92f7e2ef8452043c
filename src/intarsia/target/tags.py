# SPDX-License-Identifier: Apache-2.0
"""Tags: names of complete target configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.registry import REGISTRY
from intarsia.target.target import Target
from intarsia.target.text import suggest


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
        TargetError: The name is taken or malformed, or the configuration is no target.
    """
    REGISTRY.check_tag_name(name)
    if name in Target(config).tags:
        raise TargetError(f"tag {name!r} would build on itself", hint="choose another name")
    stored = config.to_json() if isinstance(config, Target) else config
    REGISTRY.add_tag(name, stored, override=override)
    return get_tag(name)


def get_tag(name: str) -> Target:
    """Return the target that the tag names.

    Raises:
        TargetError: There is no such tag.
    """
    if not REGISTRY.has_tag(name):
        hint = suggest(name, REGISTRY.tag_names(), what="tags")
        raise TargetError(f"tag {name!r} is not known", hint=hint)
    return Target({"tag": name})


def list_tags() -> tuple[str, ...]:
    """Return the names of all tags, sorted."""
    return REGISTRY.tag_names()
