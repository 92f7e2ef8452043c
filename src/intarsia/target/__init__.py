# SPDX-License-Identifier: Apache-2.0
"""Targets: what to compile for, described without a device being present.

This layer stands alone: it imports neither numpy nor onnx, and reads its catalogue at first use.
"""

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
