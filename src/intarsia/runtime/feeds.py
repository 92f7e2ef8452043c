# SPDX-License-Identifier: Apache-2.0
"""Checks the tensors that a caller gives; makes up some where nobody gives any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.graph.model_info import Legal
from intarsia.runtime.device_array import DeviceArray
from intarsia.runtime.dlpack import share
from intarsia.target.device import DeviceType

if TYPE_CHECKING:
    from intarsia.graph.free_sizes import FreeSpec


def check_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> list[Any]:
    """Return the arrays in the order of the specs.

    Raises:
        InputError: A name is missing or unknown, or a dtype or shape is wrong.
    """
    if not isinstance(feeds, dict) or len(feeds) != len(specs):
        check_names(specs, feeds)
    try:  # every call of a program comes by here: names are looked up once
        return [check_array(spec, feeds[spec.name]) for spec in specs]
    except KeyError:
        check_names(specs, feeds)
        raise


def check_names(specs: Sequence[TensorSpec | FreeSpec], feeds: Mapping[str, Any]) -> None:
    """Check that there is a value for each input, and no other.

    Raises:
        InputError: A name is missing or unknown.
    """
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"inputs are given as a mapping from name to array, not as {type(feeds).__name__}",
            hint="call the executable itself for the positional form",
        )
    if len(feeds) == len(specs) and all(spec.name in feeds for spec in specs):
        return
    names = {spec.name for spec in specs}
    unknown = [name for name in feeds if name not in names]
    missing = [spec for spec in specs if spec.name not in feeds]
    problems = [f"unknown input {name!r}" for name in unknown]
    problems += [f"input {spec.name!r} is missing" for spec in missing]
    raise InputError(
        "; ".join(problems), hint=f"the model takes {', '.join(map(str, specs)) or 'nothing'}"
    )


def check_array(spec: TensorSpec, value: Any, *, in_place: bool = False) -> Any:
    """Return a value as an array that fits a spec; nothing is converted silently.

    Args:
        spec: What is needed; without a shape, any value will do.
        value: An array, or anything with the DLPack or buffer protocol; its memory is shared.
        in_place: Whether the array's own memory must be usable.

    Raises:
        InputError: The dtype or shape is wrong, or the memory cannot be used in place.
    """
    if spec.shape is None:
        return value
    is_plain = type(value) is np.ndarray and not in_place  # the usual case
    if is_plain and value.dtype == np_dtype(spec.dtype) and value.shape == spec.shape:
        return value
    array: Any = as_array(spec, value, copies=not in_place)
    # numpy's texts of a fixed width; ONNX's are objects of Python.
    if spec.dtype == "string" and array.dtype.kind in "UT":
        array = array.astype(object)
    if array.dtype != np_dtype(spec.dtype):
        raise InputError(
            f"{spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            hint=f"pass array.astype({spec.dtype!r})",
        )
    if array.shape != spec.shape:
        raise InputError(
            f"{spec.name!r} has shape {list(array.shape)}, the model wants {list(spec.shape)}",
            hint="compile with shapes= (or --shape) for another size",
        )
    if in_place and not (array.flags.c_contiguous and array.flags.aligned):
        strides = f"not a C-contiguous array: its strides are {list(array.strides)} bytes"
        raise InputError(
            f"{spec.name!r} cannot be bound in place: it is "
            f"{'not aligned' if array.flags.c_contiguous else strides}",
            hint="pass tensor.contiguous()"
            if hasattr(value, "contiguous")
            else "pass numpy.ascontiguousarray(array)",
        )
    return array


def as_array(spec: TensorSpec | FreeSpec, value: Any, *, copies: bool = True) -> Any:
    """Return a value as an array, whatever its dtype and shape, over the same memory if it has any.

    Args:
        spec: Of the input, for errors.
        value: An array, or anything with the DLPack or buffer protocol.
        copies: Whether a copy will do for what has no memory to share, as a list.

    Raises:
        InputError: It is none, and has neither the DLPack nor the buffer protocol, or its memory is
            not the host's.
    """
    if isinstance(value, np.ndarray | DeviceArray):
        return value
    if value is None:
        raise InputError(f"{spec.name!r} is None", hint=f"pass an array: {spec}")
    try:
        return share(value, copies=copies)
    except Exception as error:  # foreign `__dlpack__` may raise anything
        reason = str(error).partition("\n")[0]
        place = _find_place(value)
        raise InputError(
            f"{spec.name!r} is on {place}, whose memory the host does not read"
            if place
            else f"{spec.name!r} cannot be read as an array: {reason}"
            if copies
            else f"{spec.name!r} cannot be bound in place: {reason}",
            hint="copy it to the host first, as by tensor.cpu()"
            if place
            else "pass a numpy array, or an object with the DLPack or buffer protocol",
        ) from error


def _find_place(value: Any) -> str:
    """Return the device that DLPack says an array is on; empty if that is the host, or unknown."""
    try:
        kind, number = value.__dlpack_device__()
        device = DeviceType(int(kind))
    except Exception:  # foreign, or no device that DLPack knows
        return ""
    return "" if device is DeviceType.CPU else f"{device.name.lower()}:{number}"


_MASK = "mask"
"""Part of the names of inputs that hide others where they are 0."""


def sample_feeds(
    specs: Sequence[TensorSpec], seed: int = 0, legal: Mapping[str, Legal] | None = None
) -> dict[str, Array]:
    """Return an array per spec that a model can do with.

    Floats are normally distributed, indices drawn from those that are legal. Other integers and
    booleans are ones, and so are floats whose name says that they are a mask: one that hides
    nothing. Texts are empty.

    Args:
        specs: What is wanted.
        seed: For what is drawn.
        legal: By name, what the model's operators say of an input (`graph.legal`).

    Raises:
        InputError: A spec has no fixed shape, or the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", hint="give a seed of 0 or more")
    generator = np.random.default_rng(seed)
    legal_values = legal or {}
    return {spec.name: _sample(spec, legal_values.get(spec.name), generator) for spec in specs}


def _sample(spec: TensorSpec, legal: Legal | None, generator: np.random.Generator) -> Array:
    if spec.shape is None:
        raise InputError(
            f"input {spec.name!r} has no fixed shape, so that no values can be made up for it",
            hint="pass an array for every input",
        )
    if spec.dtype == "string":
        return np.full(spec.shape, "", object)
    dtype = np_dtype(spec.dtype)
    if legal is not None and legal.values:
        return np.array(legal.values, dtype).reshape(spec.shape)
    if legal is not None and legal.bound:
        bound = min(legal.bound, np.iinfo(dtype).max if dtype.kind in "iu" else legal.bound)
        return generator.integers(0, bound, spec.shape).astype(dtype)
    if "float" in spec.dtype and _MASK not in spec.name.lower():
        return generator.standard_normal(spec.shape).astype(dtype)
    return np.ones(spec.shape, dtype)
