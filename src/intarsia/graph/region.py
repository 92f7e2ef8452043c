# SPDX-License-Identifier: Apache-2.0
"""Regions: sets of nodes of one graph.

Everything but the bit set is derived. Convexity of each region does not make their quotient
acyclic; that each has one exit does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from intarsia.graph.graph import Graph

_FEW = 32


@dataclass(frozen=True)
class Region:
    """A set of nodes of one graph.

    Attributes:
        graph: The graph; regions of different graphs never mix.
        bits: Bit i is set if node i belongs to the region.
    """

    graph: Graph
    bits: int

    @classmethod
    def of(cls, graph: Graph, nodes: Iterable[int]) -> Region:
        """Make the region of these node ids, in any order."""
        ids = np.fromiter(nodes, dtype=np.int64)
        if not len(ids):
            return cls(graph, 0)
        if len(ids) == 1 and 0 <= ids[0] < len(graph.nodes):
            return cls(graph, 1 << int(ids[0]))
        if ids.min() < 0 or ids.max() >= len(graph.nodes):
            raise InternalError(f"node {ids.min()} or {ids.max()} is not in {graph!r}")
        flags = np.zeros(int(ids.max()) + 1, dtype=np.uint8)
        flags[ids] = 1
        packed = np.packbits(flags, bitorder="little")
        return cls(graph, int.from_bytes(packed.tobytes(), "little"))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The node ids, ascending."""
        bits = self.bits
        if bits and not bits & (bits - 1):
            return (bits.bit_length() - 1,)
        if bits.bit_count() <= _FEW:
            positions = []
            while bits:
                lowest = bits & -bits
                positions.append(lowest.bit_length() - 1)
                bits ^= lowest
            return tuple(positions)
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        flags = np.unpackbits(np.frombuffer(raw, dtype=np.uint8), bitorder="little")
        return tuple(np.flatnonzero(flags).tolist())

    @cached_property
    def _reads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        graph, members = self.graph, self._members
        inputs: set[int] = set()
        constants: set[int] = set()
        for node in self.nodes:
            for read in graph.nodes[node].reads:
                value = graph.values[read]
                if value.constant is not None:
                    constants.add(read)
                elif value.producer not in members:
                    inputs.add(read)
        return tuple(sorted(inputs)), tuple(sorted(constants))

    @cached_property
    def _members(self) -> frozenset[int]:
        return frozenset(self.nodes)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The values read or captured inside and made outside, constants excepted; ascending."""
        return self._reads[0]

    @property
    def constants(self) -> tuple[int, ...]:
        """The initializers read or captured inside, ascending."""
        return self._reads[1]

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The values made inside and read outside, or graph outputs; ascending."""
        graph, members = self.graph, self._members
        return tuple(
            output
            for node in self.nodes
            for output in graph.nodes[node].outputs
            if output >= 0
            and (
                output in graph.output_set or not members.issuperset(graph.values[output].consumers)
            )
        )

    def __or__(self, other: Region) -> Region:
        return Region(self.graph, self.bits | self._same(other).bits)

    def __and__(self, other: Region) -> Region:
        return Region(self.graph, self.bits & self._same(other).bits)

    def __sub__(self, other: Region) -> Region:
        return Region(self.graph, self.bits & ~self._same(other).bits)

    def __le__(self, other: Region) -> bool:
        return not self.bits & ~self._same(other).bits

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, node: object) -> bool:
        return isinstance(node, int) and node >= 0 and bool(self.bits >> node & 1)

    def __repr__(self) -> str:
        return f"Region({self})"

    def __str__(self) -> str:
        return f"{len(self)} nodes [{_spans(self.nodes)}]"

    def _same(self, other: Region) -> Region:
        if other.graph is not self.graph:
            raise InternalError("regions of two graphs were combined")
        return other


def _spans(nodes: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for node in nodes:
        if spans and node == spans[-1][1] + 1:
            spans[-1][1] = node
        else:
            spans.append([node, node])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
