# SPDX-License-Identifier: Apache-2.0
"""The tables of a region while they are made: tensors by what they are, calls one after another.

A value of four dimensions may lie in either layout: it is permuted where it is first read in the
other one. Where a match computes with integers, its floats are names for these (`standing_for`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.arm_acl.program import NCHW, NHWC, AclCall, AclProgram, AclTensor, TensorKind
from intarsia.backends.scaled_integers import ScaledIntegers, dequantise, read_linear
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Value
from intarsia.graph.region import Region

TYPES = {"float32": "F32", "int32": "S32", "uint8": "QASYMM8", "int8": "QASYMM8_SIGNED"}
_IMAGE = 4
"""Dimensions of what has a layout."""
_TO_NHWC, _TO_NCHW = (2, 0, 1), (1, 2, 0)
_BYTES = ("uint8", "int8")


class NotTaken(Exception):  # noqa: N818 - it is an answer
    """The library does not take something.

    Attributes:
        code: The reason's code.
        reason: One sentence.
    """

    def __init__(self, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def unsupported(reason: str) -> NotTaken:
    """Return the answer that an operator is not taken in this form."""
    return NotTaken(ReasonCode.UNSUPPORTED_OP, reason)


@dataclass(frozen=True, eq=False)
class DerivedConstant:
    """A constant that was made while compiling."""

    name: str
    array: Array


@dataclass(frozen=True, slots=True)
class Savepoint:
    """How far a builder was."""

    tensors: int
    calls: int
    constants: int
    forms: Mapping[tuple[int, str, tuple[float, ...], int], int]


class TableBuilder:
    """Makes the tables of a region.

    Args:
        region: What they compute.
        fast: Whether convolutions may compute faster and less exactly.

    Attributes:
        constants: By number, ids of values or what was made of them.
    """

    def __init__(self, region: Region, *, fast: bool = False) -> None:
        self.region = region
        self.fast = fast
        self.graph = region.graph
        self.tensors: list[AclTensor] = []
        self.calls: list[AclCall] = []
        self.constants: list[int | DerivedConstant] = []
        self.nodes: tuple[str, ...] = ()
        self._constant_numbers: dict[int, int] = {}
        self._forms: dict[tuple[int, str, tuple[float, ...], int], int] = {}
        self._integers: Mapping[int, ScaledIntegers] = {}

    def mark(self) -> Savepoint:
        """Return how far it is, to go back to if what follows is not taken."""
        return Savepoint(len(self.tensors), len(self.calls), len(self.constants), dict(self._forms))

    def back_to(self, mark: Savepoint) -> None:
        """Forget what was made since."""
        del self.tensors[mark.tensors :], self.calls[mark.calls :], self.constants[mark.constants :]
        self._forms = dict(mark.forms)
        self._constant_numbers = {
            value: number
            for value, number in self._constant_numbers.items()
            if number < mark.constants
        }

    def since(self, mark: Savepoint) -> AclProgram:
        """Return what was made since, with all tensors that the calls have."""
        return AclProgram(tuple(self.tensors), tuple(self.calls[mark.calls :]))

    @contextmanager
    def standing_for(self, integers: Mapping[int, ScaledIntegers]) -> Iterator[None]:
        """Read and write integers in place of the floats that they stand for, by these."""
        self._integers = integers
        try:
            yield
        finally:
            self._integers = {}

    def integers_of(self, value: Value) -> ScaledIntegers | None:
        """Return the integers that are read in place of a value, if there are some."""
        return self._integers.get(value.id)

    @property
    def has_integers(self) -> bool:
        """Whether the match is one of integers."""
        return bool(self._integers)

    def layout_of(self, *values: Value | None) -> str:
        """Return the layout in which an image of some is there already; else the plain one."""
        for value in values:
            if value is None or len(value.shape or ()) != _IMAGE:
                continue
            held = self._integers[value.id].value if value.id in self._integers else value
            if any(form[0] == held.id and form[1] == NHWC for form in self._forms):
                return NHWC
        return NCHW

    def call(
        self,
        function: str,
        *tensors: int,
        ints: Sequence[int] = (),
        floats: Sequence[float] = (),
    ) -> None:
        """Add a call."""
        self.calls.append(
            AclCall(function, tensors, tuple(map(int, ints)), tuple(floats), self.nodes)
        )

    def read(self, value: Value, layout: str = NCHW) -> int:
        """Return the tensor of a value that is read.

        Raises:
            NotTaken: The library has no such tensor.
        """
        quantised = self._integers.get(value.id)
        held = value if quantised is None else quantised.value
        layout = layout if len(held.shape or ()) == _IMAGE else NCHW
        spec = self.spec(held, layout, quantised)
        if quantised is None and spec.dtype.startswith("QASYMM8"):
            spec = self._as_written(held, layout, spec)
        form = (held.id, layout, spec.scales, spec.zero)
        if form in self._forms:
            return self._forms[form]
        if held.constant is not None:
            number = self._read_constant(held, layout, spec)
        elif held.id in self.region.inputs and layout == NCHW:
            index = self.region.inputs.index(held.id)
            number = self.add(replace(spec, room=TensorKind.INPUT, index=index))
        else:
            number = self._convert(held, layout, spec)
        self._forms[form] = number
        return number

    def write(self, value: Value, layout: str = NCHW) -> int:
        """Return the tensor that a value is written to.

        Raises:
            NotTaken: The library has no such tensor.
        """
        quantised = self._integers.get(value.id)
        held = value if quantised is None else quantised.value
        layout = layout if len(held.shape or ()) == _IMAGE else NCHW
        spec = self.spec(held, layout, quantised)
        if layout == NCHW and held.id in self.region.outputs:
            spec = replace(spec, room=TensorKind.OUTPUT, index=self.region.outputs.index(held.id))
        number = self.add(spec)
        self._forms[held.id, layout, spec.scales, spec.zero] = number
        return number

    def write_moved(self, value: Value, source: int, layout: str = NCHW) -> int:
        """Return the tensor of a value that is made by moving the numbers of another one."""
        number = self.write(value, layout)
        if self.tensors[source].scales and not self.has_integers:
            spec = self.tensors[number]
            del self._forms[value.id, layout, spec.scales, spec.zero]
            moved = self.tensors[source]
            self.tensors[number] = replace(spec, scales=moved.scales, zero=moved.zero)
            self._forms[value.id, layout, moved.scales, moved.zero] = number
        return number

    def add(self, tensor: AclTensor) -> int:
        """Add a tensor."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def inner(self, like: int, shape: Sequence[int], layout: str = NCHW) -> int:
        """Add a tensor of the region's own, of the numbers of another one; its shape is ONNX's."""
        return self.add(
            replace(
                self.tensors[like],
                shape=acl_shape(shape, layout),
                layout=layout,
                room=TensorKind.INNER,
                index=0,
            )
        )

    def constant(self, name: str, array: Array, spec: AclTensor) -> int:
        """Add a constant that is made here.

        Args:
            name: What it is called.
            array: What it holds, the innermost dimension last.
            spec: What it is; its shape is taken from the array.
        """
        array = np.ascontiguousarray(array)
        self.constants.append(DerivedConstant(name, array))
        shape = array.shape[::-1] or (1,)
        index = len(self.constants) - 1
        return self.add(replace(spec, shape=shape, room=TensorKind.CONSTANT, index=index))

    def spec(self, value: Value, layout: str, quantised: ScaledIntegers | None) -> AclTensor:
        """Return what tensor a value is.

        Raises:
            NotTaken: The library has no such tensor.
        """
        if not value.is_static or value.shape is None:
            raise NotTaken(ReasonCode.DYNAMIC_SHAPE, f"the shape of {value.name!r} is not known")
        dtype = TYPES.get(value.dtype)
        if dtype is None:
            raise NotTaken(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"{value.name!r} is of {value.dtype}, not {', '.join(TYPES)}",
            )
        if len(value.shape) > 6:  # noqa: PLR2004 - `most_dimensions`
            raise unsupported(f"{value.name!r} has {len(value.shape)} dimensions")
        if 0 in value.shape:
            raise unsupported(f"{value.name!r} has no elements")
        scales: tuple[float, ...] = (1.0,) if dtype.startswith("QASYMM8") else ()
        zero = 0
        if quantised is not None:
            scales, zero = tuple(map(float, quantised.scale)), quantised.zero
        return AclTensor(dtype, acl_shape(value.shape, layout), layout, scales=scales, zero=zero)

    def _as_written(self, value: Value, layout: str, spec: AclTensor) -> AclTensor:
        """Return the spec with the scale with which a value of integers was written, if it was."""
        for form in self._forms:
            if form[0] == value.id:
                return replace(spec, scales=form[2], zero=form[3])
        return spec

    def _read_constant(self, value: Value, layout: str, spec: AclTensor) -> int:
        array = constant_array(value)
        if layout == NHWC:
            return self.constant(f"{value.name}/NHWC", np.moveaxis(array, 1, -1), spec)
        number = self._constant_numbers.get(value.id)
        if number is None:
            number = self._constant_numbers[value.id] = len(self.constants)
            self.constants.append(value.id)
        return self.add(replace(spec, room=TensorKind.CONSTANT, index=number))

    def _convert(self, value: Value, layout: str, spec: AclTensor) -> int:
        """Return a value in another layout than it is in, or as floats that integers stand for."""
        other = NHWC if layout == NCHW else NCHW
        source = self._forms.get((value.id, other, spec.scales, spec.zero))
        if source is None and layout == NHWC and value.id in self.region.inputs:
            source = self._read_as(value, NCHW, spec)
        if source is None:
            if layout == NCHW and self._dequantised(value):
                return self._forms[value.id, NCHW, spec.scales, spec.zero]
            if layout == NHWC and self._dequantised(value):
                source = self._forms[value.id, NCHW, spec.scales, spec.zero]
        if source is None:
            raise unsupported(f"{value.name!r} has two scales")
        result = spec
        if layout == NCHW and value.id in self.region.outputs:
            result = replace(
                spec, room=TensorKind.OUTPUT, index=self.region.outputs.index(value.id)
            )
        number = self.add(result)
        order = _TO_NHWC if layout == NHWC else _TO_NCHW
        self.call("permute", source, number, ints=order)
        return number

    def _read_as(self, value: Value, layout: str, spec: AclTensor) -> int:
        """Return an input of the region as it comes."""
        form = (value.id, layout, spec.scales, spec.zero)
        if form not in self._forms:
            index = self.region.inputs.index(value.id)
            plain = replace(
                spec,
                shape=acl_shape(value.shape or (), NCHW),
                layout=NCHW,
                room=TensorKind.INPUT,
                index=index,
            )
            self._forms[form] = self.add(plain)
        return self._forms[form]

    def _dequantised(self, value: Value) -> bool:
        """Make floats that integers stand for and nobody has read yet; tell if they are such."""
        if value.producer < 0 or value.producer not in self.region:
            return False
        operation = Operation(self.graph, self.graph.nodes[value.producer])
        if operation.op_type != "DequantizeLinear":
            return False
        quantised = read_linear(operation)
        if not isinstance(quantised, ScaledIntegers):
            raise NotTaken(*quantised)
        held, integers = self._integers, {value.id: quantised}
        nodes, self.nodes = self.nodes, (operation.node.name,)
        try:
            self._integers = {}
            if quantised.value.constant is not None:
                array = dequantise(quantised, constant_array(quantised.value))
                spec = self.spec(value, NCHW, None)
                source = self.constant(f"{value.name}/floats", array, spec)
                if value.id in self.region.outputs:
                    self.call("reshape", source, self.write(value))
                else:
                    self._forms[value.id, NCHW, spec.scales, spec.zero] = source
                return True
            if quantised.value.dtype not in _BYTES or quantised.axis is not None:
                raise unsupported("integers that are not of 8 bits, or with scales along an axis")
            self._integers = integers
            source = self.read(value)
            self._integers = {}
            self.call("dequantize", source, self.write(value))
        finally:
            self._integers, self.nodes = held, nodes
        return True

    def finish(self) -> AclProgram:
        """Return the tables, once every output of the region is in its place."""
        for value_id in self.region.outputs:
            value = self.graph.values[value_id]
            if any(
                tensor.room is TensorKind.OUTPUT and self.region.outputs[tensor.index] == value_id
                for tensor in self.tensors
            ):
                continue
            source = self.read(value)
            if self.tensors[source].room is not TensorKind.OUTPUT:
                spec = replace(self.tensors[source], room=TensorKind.OUTPUT)
                spec = replace(spec, index=self.region.outputs.index(value_id))
                self.call("reshape", source, self.add(spec))
        return AclProgram(tuple(self.tensors), tuple(self.calls))


def acl_shape(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return a shape of ONNX as the library has it: the innermost dimension first."""
    if layout == NHWC and len(shape) == _IMAGE:
        batch, channels, height, width = shape
        return (channels, width, height, batch)
    return tuple(reversed(shape)) or (1,)


def acl_axis(axis: int, rank: int, layout: str) -> int:
    """Return an axis of ONNX as the library counts it."""
    if layout == NHWC and rank == _IMAGE:
        return (3, 0, 2, 1)[axis]
    return rank - 1 - axis
