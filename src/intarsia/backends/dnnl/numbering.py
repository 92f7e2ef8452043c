# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a program a value of the graph is, and constants made when compiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from intarsia.arrays import Array
from intarsia.backends.dnnl.lowering import Ids
from intarsia.backends.dnnl.program import Origin, ProgramTensor
from intarsia.graph.region import Region


@dataclass(frozen=True, eq=False)
class Derived:
    """A constant that the model does not have: made of its constants.

    Attributes:
        name: What it is called in the artifact.
        array: Its data.
    """

    name: str
    array: Array


@dataclass(slots=True)
class Numbering:
    """Numbers the tensors of a region as they are asked for.

    Attributes:
        region: Whose values are numbered.
        tensors: Those of the program, so far.
        constants: Values of the constants that the program reads, or constants made, in order.
        ids: The tensor of each value that was asked for.
    """

    region: Region
    tensors: list[ProgramTensor] = field(default_factory=list)
    constants: list[int | Derived] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)
    _derived: dict[str, int] = field(default_factory=dict)

    def __call__(self, value_id: int) -> int:
        """Return the tensor that a value is."""
        if value_id not in self.ids:
            value = self.region.graph.values[value_id]
            origin, index = Origin.INNER, 0
            if value.constant is not None:
                origin, index = Origin.CONSTANT, len(self.constants)
                self.constants.append(value_id)
            elif value_id in self.region.inputs:
                origin, index = Origin.INPUT, self.region.inputs.index(value_id)
            assert value.shape is not None
            self.ids[value_id] = self._add(ProgramTensor(value.shape, origin, index, value.dtype))
        return self.ids[value_id]

    def constant(self, name: str, array: Array, /) -> int:
        """Return the tensor of a constant made when compiling; one of each name."""
        if name not in self._derived:
            tensor = ProgramTensor(
                array.shape, Origin.CONSTANT, len(self.constants), array.dtype.name
            )
            self.constants.append(Derived(name, array))
            self._derived[name] = self._add(tensor)
        return self._derived[name]

    def _add(self, tensor: ProgramTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


@dataclass(frozen=True, slots=True)
class Substituted:
    """Numbers of which some are others: of the integers that stand for floats.

    Attributes:
        ids: The numbers otherwise.
        instead: Tensors by value.
    """

    ids: Ids
    instead: Mapping[int, int]

    def __call__(self, value_id: int) -> int:
        """Return the tensor that stands for a value."""
        tensor = self.instead.get(value_id)
        return self.ids(value_id) if tensor is None else tensor

    def constant(self, name: str, array: Array, /) -> int:
        """Return the tensor of a constant made when compiling."""
        return self.ids.constant(name, array)


@dataclass(slots=True)
class OpenNumbering:
    """Stands in for a `Numbering` where it is not known yet what a program consists of.

    Attributes:
        references: What was asked for, in order: values, which are their own numbers, and
            constants made when compiling, which have numbers of no value.
        derived: These constants by their numbers.
    """

    references: list[int] = field(default_factory=list)
    derived: dict[int, Derived] = field(default_factory=dict)

    def __call__(self, value_id: int) -> int:
        """Return the value itself."""
        self.references.append(value_id)
        return value_id

    def constant(self, name: str, array: Array, /) -> int:
        """Return the tensor of a constant that is made when compiling."""
        reference = _FIRST_MADE + len(self.derived)
        self.derived[reference] = Derived(name, array)
        self.references.append(reference)
        return reference

    def number(self, ids: Numbering) -> dict[int, int]:
        """Return the tensor of each requested reference."""
        tensors = {}
        for reference in self.references:
            constant = self.derived.get(reference)
            tensors[reference] = (
                ids(reference) if constant is None else ids.constant(constant.name, constant.array)
            )
        return tensors


_FIRST_MADE = 1 << 32
