# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a library's program lie, and how those of a region are numbered."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.backends.artifact import tensor_spec
from intarsia.graph.arena import ALIGNMENT

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.graph.region import Region


class LibraryPlace(StrEnum):
    """Where a tensor of a program lies."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    SCRATCH = "scratch"


class LibraryTensor(msgspec.Struct, frozen=True):
    """A tensor of a program."""

    place: LibraryPlace
    index: int
    """Which input, output or constant it is; of scratch memory, where it begins, in bytes."""


@dataclass(slots=True)
class RegionTensors:
    """The tensors of a region, numbered as they are asked for.

    Attributes:
        region: The region.
        tensors: By their numbers.
        constants: By their names.
        scratch_bytes: Of what is kept between the program's calls.
    """

    region: Region
    tensors: list[LibraryTensor] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    scratch_bytes: int = 0
    _numbers: dict[int, int] = field(default_factory=dict)

    def number(self, value: int) -> int:
        """Return the number of a value of the graph."""
        from intarsia.graph.extract import constant_array  # running a package reads no graph

        if value in self._numbers:
            return self._numbers[value]
        region, one = self.region, self.region.graph.values[value]
        if value in region.inputs:
            tensor = LibraryTensor(LibraryPlace.INPUT, region.inputs.index(value))
        elif value in region.outputs:
            tensor = LibraryTensor(LibraryPlace.OUTPUT, region.outputs.index(value))
        elif one.constant is not None:
            return self._numbers.setdefault(value, self.constant(one.name, constant_array(one)))
        else:
            tensor = LibraryTensor(LibraryPlace.SCRATCH, self.scratch_bytes)
            self.scratch_bytes += -(-tensor_spec(one).nbytes // ALIGNMENT) * ALIGNMENT
        self._numbers[value] = self._add(tensor)
        return self._numbers[value]

    def constant(self, name: str, array: Array) -> int:
        """Return the number of a constant; one that is equal to another of its name is that one.

        Args:
            name: What others are not called, if they differ: it is made longer then.
            array: Its data.
        """
        while name in self.constants:
            other = self.constants[name]
            if other.dtype == array.dtype and np.array_equal(other, array):
                place = list(self.constants).index(name)
                return self.tensors.index(LibraryTensor(LibraryPlace.CONSTANT, place))
            name += "'"
        self.constants[name] = array
        return self._add(LibraryTensor(LibraryPlace.CONSTANT, len(self.constants) - 1))

    def _add(self, tensor: LibraryTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1
