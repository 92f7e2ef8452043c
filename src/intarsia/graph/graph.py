# SPDX-License-Identifier: Apache-2.0
"""A read-only snapshot of one ONNX graph, with integer ids for nodes and values.

It decides nothing and changes nothing; `intarsia.graph.snapshot` makes it from an `onnx_ir`
model. Nothing here imports ONNX, so that running a package does not either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from intarsia.extents import Extent
from intarsia.graph.region import Region

if TYPE_CHECKING:
    import onnx_ir as ir

ABSENT = -1
"""The value id of an optional input or output that is not there."""

_ITEM_BYTES = {
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element in a dense numpy array.

    Sub-byte types take a whole byte each, as in ml_dtypes; strings and unknown types count 0.
    """
    if dtype in ("", "string"):
        return 0
    return _ITEM_BYTES.get(dtype, 1)


@dataclass(frozen=True, slots=True)
class Value:
    """One value: a graph input, a constant, or an output of a node.

    Attributes:
        id: Its position in `Graph.values`.
        name: Its name in the model.
        dtype: The numpy or ml_dtypes name of the element type, "string", or "" if unknown.
        shape: The dimensions, or None if they are not all known and fixed.
        producer: The node that makes it, or -1 for a graph input or a constant.
        consumers: The nodes that read or capture it, ascending.
        constant: The tensor, if the value is an initializer.
        is_tensor: False for sequences, optionals, maps and sparse tensors.
        ir: The value that it was made from; not to be changed.
        extents: In a graph with free dimensions, the dimensions for all sizes; `shape` has what
            they are for nominal ones. None if they are those of `shape`. Where the data decides one
            of them, `shape` is None.
        entries: What a small vector or scalar of integers holds for all sizes, if that is known.
    """

    id: int
    name: str
    dtype: str
    shape: tuple[int, ...] | None
    producer: int
    consumers: tuple[int, ...]
    constant: ir.TensorProtocol | None
    is_tensor: bool
    ir: ir.Value
    extents: tuple[Extent, ...] | None = None
    entries: tuple[Extent, ...] | None = None

    @property
    def is_free(self) -> bool:
        """Whether one of its dimensions is known only when it runs."""
        return self.extents is not None

    @property
    def is_static(self) -> bool:
        """Whether it is a tensor whose type and whole shape are known."""
        return self.is_tensor and bool(self.dtype) and self.shape is not None

    @property
    def nbytes(self) -> int:
        """The bytes of the dense numpy array; 0 for strings and if not static."""
        if not self.is_static or self.shape is None:
            return 0
        return prod(self.shape) * item_bytes(self.dtype)

    def __str__(self) -> str:
        if not self.is_tensor:
            return f"%{self.name}:?"
        shape = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"%{self.name}:{self.dtype or '?'}[{shape}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph.

    Attributes:
        id: Its position in `Graph.nodes`.
        name: Its name, unique in the model.
        op_type: The operator.
        domain: The operator's domain; "" is ai.onnx.
        inputs: Value ids, -1 for an absent optional input.
        captured: Outer values that its bodies read, at any depth, ascending.
        outputs: Value ids, -1 for an absent output.
        origins: Names of the nodes of the original model that it stands for.
        device: What `on_device` wrote on it, if anything.
        ir: The node that it was made from; not to be changed.
    """

    id: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[int, ...]
    captured: tuple[int, ...]
    outputs: tuple[int, ...]
    origins: tuple[str, ...]
    device: str | None
    ir: ir.Node

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads or captures, in order, without the absent ones."""
        return tuple(value for value in self.inputs if value >= 0) + self.captured


@dataclass(frozen=True, eq=False)
class Graph:
    """The snapshot: nodes in topological order, values with graph inputs first.

    Two graphs are equal only if they are the same object.

    Attributes:
        name: The name of the ONNX graph.
        nodes: Every node; the id is the position.
        values: Every value; the id is the position.
        inputs: Graph inputs without initializers, in the model's order.
        outputs: Graph outputs, in the model's order; one value may stand here twice.
        model: The model that it was made from; not to be changed.
        predecessors: Per node, the distinct nodes that it reads from, ascending.
        successors: Per node, the distinct nodes that read from it, ascending.
        viewed: The graph of the same nodes and values that this is a view of, if it is one.
    """

    name: str
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    model: ir.Model
    predecessors: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    viewed: Graph | None = field(default=None, repr=False)

    @classmethod
    def from_model(cls, model: ir.Model) -> Graph:
        """Make the snapshot of a loaded model; see `intarsia.graph.snapshot`."""
        from intarsia.graph.snapshot import snapshot

        return snapshot(model)

    @cached_property
    def whole(self) -> Region:
        """The region of all nodes."""
        return Region(self, (1 << len(self.nodes)) - 1)

    @cached_property
    def output_set(self) -> frozenset[int]:
        """The ids of the graph outputs, to ask for membership."""
        return frozenset(self.outputs)

    @cached_property
    def tied(self) -> tuple[tuple[int, ...], ...]:
        """The sets of nodes that one region has to have, each ascending; none is usual.

        What makes and what reads a value of unknown type belong together, and so does whatever
        lies between two of them, so that the region is convex and no two of them wait for each
        other: they are the components in which every node reaches every other one if such a value
        leads both ways. Linear in the graph.
        """
        after = [list(nodes) for nodes in self.successors]
        before = [list(nodes) for nodes in self.predecessors]
        is_tied = False
        for value in self.values:
            if value.constant is not None or value.ir.type is not None:
                continue
            ends = [node for node in (value.producer, *value.consumers) if node >= 0]
            for one, other in pairwise(ends):
                is_tied = True
                for edges in (after, before):
                    edges[one].append(other)
                    edges[other].append(one)
        if not is_tied:
            return ()
        finished = [node for tree in _trees(range(len(after)), after) for node in tree]
        parts = _trees(reversed(finished), before)
        return tuple(sorted(tuple(sorted(part)) for part in parts if len(part) > 1))

    @cached_property
    def structure(self) -> str:
        """Hash of all but the weights; see `intarsia.graph.signature.structure_digest`."""
        from intarsia.graph.signature import structure_digest

        return structure_digest(self)

    def constant_bytes(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the constants that nodes read, by value id, with their bytes."""
        reads = {read for node in nodes for read in self.nodes[node].reads}
        return {
            read: self.values[read].nbytes
            for read in reads
            if self.values[read].constant is not None
        }

    def node_named(self, name: str) -> Node:
        """Return the node of that name.

        Raises:
            KeyError: No node has that name.
        """
        return self._nodes_by_name[name]

    def value_named(self, name: str) -> Value:
        """Return the value of that name.

        Raises:
            KeyError: No value has that name.
        """
        return self._values_by_name[name]

    def with_ends(self, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
        """Return a view of the graph: the same nodes and values with other inputs and outputs."""
        whole = self.viewed or self
        return replace(self, inputs=tuple(inputs), outputs=tuple(outputs), viewed=whole)

    @cached_property
    def _nodes_by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _values_by_name(self) -> dict[str, Value]:
        return {value.name: value for value in self.values}

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.nodes)} nodes)"

    def __str__(self) -> str:
        inputs = ", ".join(str(self.values[value]) for value in self.inputs)
        outputs = ", ".join(str(self.values[value]) for value in self.outputs)
        lines = [f"graph {self.name}({inputs}) -> ({outputs})"]
        lines += [self._line(node) for node in self.nodes]
        return "\n".join(lines)

    def _line(self, node: Node) -> str:
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        arguments = [self._argument(value) for value in node.inputs]
        arguments += [f"captured {self._argument(value)}" for value in node.captured]
        results = ", ".join("_" if value < 0 else str(self.values[value]) for value in node.outputs)
        device = f" @{node.device}" if node.device else ""
        return f"  {node.id}: {results} = {operator}({', '.join(arguments)})  # {node.name}{device}"

    def _argument(self, value: int) -> str:
        if value < 0:
            return "_"
        if self.values[value].constant is not None:
            return f"const {self.values[value]}"
        return f"%{self.values[value].name}"


def _trees(starts: Iterable[int], edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the trees of a search in depth from each start that is new, in order of leaving."""
    seen: set[int] = set()
    trees = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        tree: list[int] = []
        stack = [(start, iter(edges[start]))]
        while stack:
            node, others = stack[-1]
            other = next((each for each in others if each not in seen), None)
            if other is None:
                tree.append(node)
                stack.pop()
            else:
                seen.add(other)
                stack.append((other, iter(edges[other])))
        trees.append(tree)
    return trees
