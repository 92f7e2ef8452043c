# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's descriptions of tensors and models, and its `OrtValue`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.extents import Expression
from intarsia.graph.free_sizes import FreeSpec

ORT_TYPES = {
    "bool": "tensor(bool)",
    "float16": "tensor(float16)",
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "string": "tensor(string)",
}
"""ONNX Runtime's names of types that are not `tensor(NUMPY-NAME)`."""

CPU_DEVICE = "cpu"


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes one: free dimensions by name, or None."""

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, spec: TensorSpec | FreeSpec, type_text: str | None = None) -> NodeArg:
        """Return the description of a tensor.

        Args:
            spec: The tensor.
            type_text: Its type, if it is not a tensor.
        """
        shape = [str(dim) if isinstance(dim, Expression) else dim for dim in spec.shape or ()]
        return cls(spec.name, shape, type_text or type_name(spec.dtype))


class OrtValue:
    """A tensor in host memory, or a list of tensors, with the shape of ONNX Runtime's class.

    Args:
        value: A numpy array, which is referred to and not copied, or a list of them.
    """

    def __init__(self, value: Array | list[Any]) -> None:
        self._value = value

    @classmethod
    def ortvalue_from_numpy(
        cls, data: Array, device_type: str = CPU_DEVICE, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a value that refers to an array.

        Raises:
            InputError: The device is not the host.
        """
        del vendor_id
        check_device(device_type, device_id)
        return cls(np.asarray(data))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return a value that reads an array's bytes as elements of another type of their size.

        Raises:
            InputError: ONNX has no such type, or its elements are of another size.
        """
        return cls(np.asarray(data).view(_element_dtype(onnx_element_type)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = CPU_DEVICE,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a value with memory that nothing was written to.

        Args:
            shape: Its dimensions.
            element_type: A numpy type, or the number of an ONNX type.
            device_type: Must be `cpu`.
            device_id: Must be 0.
            vendor_id: Means nothing here.

        Raises:
            InputError: The device is not the host, or there is no such type.
        """
        del vendor_id
        check_device(device_type, device_id)
        return cls(np.empty(tuple(shape), _element_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Return a value that shares the memory of anything with the DLPack protocol."""
        return cls(np.from_dlpack(data))

    def numpy(self) -> Any:
        """Return the array; the memory is shared."""
        return self._value

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._tensor().ctypes.data)

    def device_name(self) -> str:
        """Return `cpu`."""
        return CPU_DEVICE

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """Return the type in ONNX Runtime's words: `tensor(float)`."""
        if self.is_tensor():
            return type_name(_dtype_name(self._tensor()))
        first = type_name(_dtype_name(self._value[0])) if len(self._value) else "tensor()"
        return f"seq({first})"

    def element_type(self) -> int:
        """Return the number of the ONNX type of the elements."""
        from onnx import helper

        return helper.np_dtype_to_tensor_dtype(self._tensor().dtype)

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """Return whether there is anything."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Return whether it is one tensor."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Return whether it is a list of tensors."""
        return isinstance(self._value, list | tuple)

    def is_sparse_tensor(self) -> bool:
        """Return False: sparse tensors are not supported."""
        return False

    def update_inplace(self, data: Array) -> None:
        """Copy an array of the same shape and type into the memory.

        Raises:
            InputError: The array has another shape or type.
        """
        tensor = self._tensor()
        if np.shape(data) != tensor.shape or np.asarray(data).dtype != tensor.dtype:
            raise InputError(
                f"an array of {np.asarray(data).dtype}{list(np.shape(data))} does not fit into "
                f"{tensor.dtype}{list(tensor.shape)}"
            )
        np.copyto(tensor, data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the tensor for numpy, shared where that can be."""
        return np.array(self._tensor(), dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the tensor for DLPack."""
        return self._tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number of the CPU, and 0."""
        return self._tensor().__dlpack_device__()

    def _tensor(self) -> Array:
        if not isinstance(self._value, np.ndarray):
            raise InputError("this OrtValue is a sequence, not a tensor", hint="call numpy()")
        return self._value


def type_name(dtype: str) -> str:
    """Return ONNX Runtime's name of the type of a tensor."""
    return ORT_TYPES.get(dtype, f"tensor({dtype})")


def as_given(spec: TensorSpec | FreeSpec, value: Any) -> Any:
    """Return what a caller fed in a form that a program takes: lists and bytes become arrays.

    Raises:
        InputError: It is ragged, no number of the type, or no UTF-8.
    """
    try:
        return _as_given(spec, value)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"{spec.name!r} cannot be read as an array: {error}", hint=f"the model wants {spec}"
        ) from error


def _as_given(spec: TensorSpec | FreeSpec, value: Any) -> Any:
    if isinstance(value, OrtValue):
        value = value.numpy()
    if spec.shape is None:
        return value
    if isinstance(value, list | tuple | int | float):
        dtype = object if spec.dtype == "string" else np_dtype(spec.dtype)
        value = np.array(value, dtype)
    if spec.dtype == "string" and isinstance(value, np.ndarray) and value.dtype.kind in "SV":
        texts = [bytes(text).rstrip(b"\0").decode() for text in value.ravel()]
        value = np.array(texts, object).reshape(value.shape)
    return value


def array_at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    """Return an array over memory that the caller keeps alive.

    Args:
        address: Of the first element.
        shape: Its dimensions, row-major.
        element_type: A numpy type, or the number of an ONNX type.
    """
    import ctypes

    dtype = _element_dtype(element_type)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array


def check_device(device_type: str, device_id: int) -> None:
    """Refuse memory that is not the host's.

    Raises:
        InputError: It is not.
    """
    if device_type != CPU_DEVICE or device_id:
        raise InputError(
            f"values on {device_type}:{device_id} cannot be given to or taken from a session",
            hint="use device_type='cpu'; the plan copies to and from the devices of its targets",
        )


def _element_dtype(element_type: Any) -> np.dtype[Any]:
    if isinstance(element_type, int):
        from onnx import helper

        try:
            return np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
        except KeyError:
            raise InputError(f"ONNX has no element type {element_type}") from None
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name
