# SPDX-License-Identifier: Apache-2.0
"""Buckets: sizes that inputs are padded up to, so that few programs run at many sizes.

Only the user can say that a model is right with padded inputs, so nobody else asks for it. Inputs
get more entries behind theirs; outputs are cut back where their dimensions follow from the padded
ones. What a model does across such a dimension (a sum, a mean) is for its masks to keep right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.errors import InputError
from intarsia.extents import Expression, evaluate, evaluate_data
from intarsia.graph.free_sizes import FreeSignature, FreeSpec, bounds_text
from intarsia.runtime.device_array import DeviceArray
from intarsia.runtime.feeds import as_array

if TYPE_CHECKING:
    from intarsia.plan.plan import Plan

PadValue: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes that inputs are padded up to.

    Attributes:
        sizes: By free dimension, the smallest first.
        pads: What is written behind an input's own entries, by name; 0 where it is not said.
    """

    sizes: Mapping[str, tuple[int, ...]]
    pads: Mapping[str, PadValue] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many programs there may be for one size of each other dimension."""
        return prod(map(len, self.sizes.values()))

    @property
    def largest(self) -> dict[str, int]:
        """The largest size of each padded dimension."""
        return {name: row[-1] for name, row in self.sizes.items()}

    def round_up(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the program that runs some sizes.

        Raises:
            InputError: One is above the largest bucket.
        """
        rounded = dict(sizes)
        for name, row in self.sizes.items():
            fitting = [size for size in row if size >= sizes[name]]
            if not fitting:
                texts = ",".join(map(str, (*row, sizes[name])))
                raise InputError(
                    f"dimension {name!r} is {sizes[name]}, and its largest bucket is {row[-1]}",
                    hint=f"compile with a larger one, as in --bucket {name}={texts}",
                )
            rounded[name] = fitting[0]
        return rounded

    def pad(self, spec: FreeSpec, value: Any, shape: tuple[int, ...]) -> Any:
        """Return an input with entries behind its own ones.

        Args:
            spec: Of the input.
            value: It, in any form.
            shape: What it has to have.

        Raises:
            InputError: It is on a device, or not an array.
        """
        array = as_array(spec, value)
        if tuple(array.shape) == shape:
            return array
        if isinstance(array, DeviceArray):
            raise InputError(
                f"{spec.name!r} is on a device and cannot be padded",
                hint="pass an array of the host, or one whose sizes are those of a bucket",
            )
        padded = np.full(shape, _pad_value(spec, self.pads), array.dtype)
        padded[tuple(map(slice, array.shape))] = array
        return padded

    def __str__(self) -> str:
        texts = (f"{name}={','.join(map(str, row))}" for name, row in self.sizes.items())
        return "padded to " + " ".join(texts)


def make_buckets(
    sizes: Mapping[str, int | Sequence[int]],
    pads: Mapping[str, PadValue],
    signature: FreeSignature,
) -> Buckets:
    """Return the buckets that a user asks for.

    Args:
        sizes: By free dimension, in any order.
        pads: By input, what is written behind its own entries.
        signature: What the model takes.

    Raises:
        InputError: A dimension or input is unknown, or a size or value is not one.
    """
    symbols = {symbol.name: symbol for symbol in signature.symbols}
    rows = {}
    for name, given in sizes.items():
        if name not in symbols:
            raise InputError(
                f"there is no free dimension {name!r} to pad",
                hint=f"the free dimensions are {', '.join(map(repr, symbols)) or 'none'}",
            )
        row = sorted({given} if isinstance(given, int) else set(given))
        symbol = symbols[name]
        lowest, highest = max(symbol.low, 1), symbol.high
        if not row or row[0] < lowest or (highest is not None and row[-1] > highest):
            raise InputError(
                f"buckets {row} of dimension {name!r}: sizes from {bounds_text(symbol)} can be",
                hint=f"write for example {name}=64,128",
            )
        rows[name] = tuple(row)
    inputs = {spec.name: spec for spec in signature.inputs}
    for name in pads:
        if name not in inputs:
            raise InputError(
                f"there is no input {name!r} to pad",
                hint=f"the model takes {', '.join(map(str, signature.inputs))}",
            )
        _pad_value(inputs[name], pads)
    return Buckets(rows, dict(pads))


def _pad_value(spec: FreeSpec, pads: Mapping[str, PadValue]) -> Any:
    """Return what is written behind the entries of an input.

    Raises:
        InputError: The input cannot hold it.
    """
    if spec.dtype == "string" and spec.name not in pads:
        return ""
    value = pads.get(spec.name, 0)
    try:
        return np.full((), value, np_dtype(spec.dtype))[()]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{spec.name!r} cannot be padded with {value!r}: {error}",
            hint=f"give a value of {spec.dtype}",
        ) from error


def output_shapes(
    signature: FreeSignature, plan: Plan | None, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each output at some sizes.

    Args:
        signature: What the model declares.
        plan: Of the program for all sizes, which knows better, if there is one.
        sizes: By free dimension.

    Raises:
        InputError: A dimension does not follow from those of the inputs.
    """
    shapes = {}
    for number, spec in enumerate(signature.outputs):
        extents: Sequence[Any] | None = spec.shape
        if plan is not None:
            position = plan.outputs[number]
            extents = plan.extents.get(position, plan.tensors[position].shape)
        try:
            shape = None if extents is None else tuple(_size(one, sizes) for one in extents)
        except KeyError:
            shape = None
        if shape is None:
            raise InputError(
                f"output {spec} cannot be cut back to what was not padded: it is not known how "
                "its dimensions follow from those of the inputs",
                hint="leave out --bucket",
            )
        shapes[spec.name] = shape
    return shapes


def _size(extent: Any, sizes: Mapping[str, int]) -> int:
    """Return a dimension of a signature or of a plan at some sizes.

    Raises:
        KeyError: It is unknown, or follows from others than the inputs'.
    """
    if extent is None:
        raise KeyError(extent)
    if isinstance(extent, int | Expression):
        return evaluate(extent, sizes)
    return evaluate_data(extent, sizes)


def cut_back(
    outputs: Mapping[str, Any],
    padded: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Return outputs without what the padding has added.

    Args:
        outputs: Of the padded run.
        padded: The shapes that they should have.
        shapes: Those that are wanted.

    Raises:
        InputError: One has another shape than the model declares.
    """
    cut: dict[str, Any] = {}
    for name, value in outputs.items():
        array: Array = value.numpy() if isinstance(value, DeviceArray) else value
        if array.shape != padded[name]:
            raise InputError(
                f"output {name!r} has shape {list(array.shape)} and not {list(padded[name])}, "
                "which the model declares: it cannot be cut back to what was not padded",
                hint="leave out --bucket",
            )
        is_whole = array.shape == shapes[name]
        cut[name] = array if is_whole else array[tuple(map(slice, shapes[name]))].copy()
    return cut
