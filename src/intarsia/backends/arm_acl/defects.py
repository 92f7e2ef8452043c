# SPDX-License-Identifier: Apache-2.0
"""What Arm Compute Library is known to compute otherwise than ONNX says, as rules."""

from __future__ import annotations

from functools import partial

from intarsia.backends.defects import KnownDefect

_TRIED = "Arm Compute Library 20.08 of Debian 12 under qemu-aarch64 7.2 against onnx.reference 1.23"

_rule = partial(KnownDefect.of, "arm_acl", _TRIED)

DEFECTS: tuple[KnownDefect, ...] = ()
"""All that is known of the release; see `docs/numbers.md`."""
