# SPDX-License-Identifier: Apache-2.0
"""Which values each node of a plan reads and writes: what a picture of the graph is drawn from.

Running needs none of it: a plan holds it as JSON, which is read when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from intarsia.decoding import decode_json
from intarsia.errors import PackageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from intarsia.graph.graph import Node, Value


class ValueSource(StrEnum):
    """Where a value comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class WiredValue:
    """A value that some node reads or writes.

    Attributes:
        name: Its name in the model.
        dtype: Its numpy or ml_dtypes name, `string`, or empty if unknown.
        shape: Its dimensions, free ones as text; None if unknown.
        source: What makes it.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    source: ValueSource


@dataclass(frozen=True, slots=True)
class WiredNode:
    """A node and its values.

    Attributes:
        name: As in `NodePlacement`.
        inputs: Positions in `Wiring.values`, absent ones left out; what its bodies read from
            outside at the end.
        outputs: Likewise.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """The graph that a plan places, without its weights.

    Attributes:
        values: Every value.
        nodes: Every node, in topological order.
        outputs: Positions in `values` of the graph's outputs.
    """

    values: tuple[WiredValue, ...]
    nodes: tuple[WiredNode, ...]
    outputs: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every position is one of a value."""
        count = len(self.values)
        ends = (end for node in self.nodes for end in (*node.inputs, *node.outputs))
        return all(0 <= end < count for end in (*ends, *self.outputs))


def describe_wiring(
    nodes: Iterable[Node], all_values: Sequence[Value], ends: Sequence[int]
) -> bytes:
    """Return the wiring of a graph as JSON.

    Args:
        nodes: Of the graph.
        all_values: Likewise.
        ends: Ids of its outputs.
    """
    values: dict[int, int] = {}
    described: list[WiredValue] = []

    def at(value_id: int) -> int:
        if value_id not in values:
            values[value_id] = len(described)
            described.append(_describe(all_values[value_id]))
        return values[value_id]

    wired = tuple(
        WiredNode(
            node.name,
            tuple(map(at, node.reads)),
            tuple(at(value) for value in node.outputs if value >= 0),
        )
        for node in nodes
    )
    outputs = tuple(map(at, ends))
    return msgspec.json.encode(Wiring(tuple(described), wired, outputs))


def read_wiring(text: bytes) -> Wiring | None:
    """Return the wiring of its JSON; None if there is none, as in plans of older versions.

    Raises:
        PackageError: It is malformed.
    """
    if not text:
        return None
    try:
        wiring = decode_json(text, Wiring)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PackageError(f"the package's wiring of nodes is malformed: {error}") from error
    if not wiring.is_whole:
        raise PackageError("the package's wiring of nodes refers to values that it does not have")
    return wiring


def _describe(value: Value) -> WiredValue:
    if value.constant is not None:
        source = ValueSource.CONSTANT
    else:
        source = ValueSource.INPUT if value.producer < 0 else ValueSource.NODE
    extents = value.shape if value.extents is None else value.extents
    shape = None if extents is None else tuple(e if isinstance(e, int) else str(e) for e in extents)
    return WiredValue(value.name, value.dtype, shape, source)
