# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a program's device, which a caller holds between runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.device import Buffer, Device
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError


class DeviceArray:
    """A dense tensor in the memory of one of a program's devices; for that program alone.

    Args:
        device: Whose memory it is.
        text: The device, as the plan calls it: `opencl:1`.
        spec: Name, dtype and shape.
        block: Memory of the device for it; None allocates some, whose contents are not defined.

    Raises:
        ExecutionError: The device has not so much memory.
    """

    __slots__ = ("_owner", "block", "device", "spec")

    def __init__(self, device: Device, text: str, spec: TensorSpec, block: Any = None) -> None:
        self._owner = device
        self.device = text
        self.spec = spec
        self.block = device.allocate(spec.nbytes) if block is None else block

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        assert self.spec.shape is not None
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np_dtype(self.spec.dtype)

    @property
    def owner(self) -> Device:
        """The opened device whose memory it is."""
        return self._owner

    def write(self, value: Any) -> None:
        """Copy an array from the host, and wait until that is done.

        Raises:
            InputError: It has another dtype or shape.
        """
        from intarsia.runtime.feeds import check_array  # which takes device arrays

        self._owner.write(check_array(self.spec, value), self.buffer(self._owner))

    def numpy(self) -> Array:
        """Return a copy in the host's memory."""
        host = np.empty(self.shape, self.dtype)
        self._owner.read(self.buffer(self._owner), host)
        return host

    def buffer(self, device: Device) -> Buffer:
        """Return what a device's code reads and writes.

        Args:
            device: The owner, or a view of it with a queue of its own.
        """
        return device.tensor(self.block, 0, self.spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return a copy in the host's memory.

        Raises:
            ValueError: `copy` is False: there is no other way.
        """
        if copy is False:
            raise ValueError(f"{self!r} is not in the host's memory: it has to be copied")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.device}>"


def check_device_array(spec: TensorSpec, array: DeviceArray, device: Device, text: str) -> None:
    """Refuse a device array that a tensor of a plan cannot be.

    Args:
        spec: The tensor.
        array: What was given for it.
        device: The opened device on which the plan has the tensor.
        text: The same in words.

    Raises:
        InputError: It is another program's, on another device, or of another dtype or shape.
    """
    if array.owner is not device:
        where = "is another program's" if array.device == text else f"is on {array.device}"
        raise InputError(
            f"{spec.name!r} has to be on {text}, the array that was given {where}",
            hint="pass array.numpy(), which copies it; or annotate it with the other device",
        )
    if (array.spec.dtype, array.spec.shape) != (spec.dtype, spec.shape):
        raise InputError(f"{spec.name!r} is {array.spec}, the model wants {spec}")


def to_host(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run returned, all of it in the host's memory."""
    return {
        name: one.numpy() if isinstance(one, DeviceArray) else one for name, one in outputs.items()
    }
