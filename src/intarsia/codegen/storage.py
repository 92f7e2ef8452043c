# SPDX-License-Identifier: Apache-2.0
"""Whose memory a kernel's pointers lead to. Light: running a package needs no more of `codegen`."""

from __future__ import annotations

from enum import StrEnum


class StorageKind(StrEnum):
    """Whose memory a storage is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    SCRATCH = "scratch"
    FAULT = "fault"
    COUNT = "count"
