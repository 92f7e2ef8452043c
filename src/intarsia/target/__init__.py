# SPDX-License-Identifier: Apache-2.0
"""Targets: what to compile for, described without a device being present.

This layer stands alone: it imports neither numpy nor onnx, and reads its catalogue at first use.
Names are imported when they are first used: a package runs without reading a target.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.target.config import CompilationConfig
    from intarsia.target.device import DeviceType
    from intarsia.target.kind import Canonical, TargetKind
    from intarsia.target.labels import load_labels
    from intarsia.target.placed import PlacedTarget, VirtualDevice
    from intarsia.target.registry import get_kind, list_kinds, list_stand_ins, register_kind
    from intarsia.target.schema import AttrSpec
    from intarsia.target.tags import add_target_file, get_tag, list_tags, register_tag
    from intarsia.target.target import KeyTable, Target

__all__ = [
    "AttrSpec",
    "Canonical",
    "CompilationConfig",
    "DeviceType",
    "KeyTable",
    "PlacedTarget",
    "Target",
    "TargetKind",
    "VirtualDevice",
    "add_target_file",
    "get_kind",
    "get_tag",
    "list_kinds",
    "list_stand_ins",
    "list_tags",
    "load_labels",
    "register_kind",
    "register_tag",
]

_HOMES = {
    "AttrSpec": "schema",
    "Canonical": "kind",
    "CompilationConfig": "config",
    "DeviceType": "device",
    "KeyTable": "target",
    "PlacedTarget": "placed",
    "Target": "target",
    "TargetKind": "kind",
    "VirtualDevice": "placed",
    "add_target_file": "tags",
    "get_kind": "registry",
    "get_tag": "tags",
    "list_kinds": "registry",
    "list_stand_ins": "registry",
    "list_tags": "tags",
    "load_labels": "labels",
    "register_kind": "registry",
    "register_tag": "tags",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
