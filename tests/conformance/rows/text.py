# SPDX-License-Identifier: Apache-2.0
"""Rows 1 to 19: the text form of one target."""

from intarsia.target import DeviceType, Target
from rows import row


@row(1)
def a_kind_alone_has_its_keys_and_device():
    target = Target("llvm")
    assert target.kind.name == "llvm"
    assert target.keys == ("cpu",)
    assert target.device_type == DeviceType.CPU == 1
