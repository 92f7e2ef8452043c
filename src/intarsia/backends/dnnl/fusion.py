# SPDX-License-Identifier: Apache-2.0
"""From a region to a program: which nodes become one primitive, and in which order they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import msgspec

from intarsia.backends.dnnl.lowering import aligned
from intarsia.backends.dnnl.pointwise import gated_post, post_of
from intarsia.backends.dnnl.program import Call, Origin, Post, Program, Tensor
from intarsia.backends.dnnl.rows import shuffle_from
from intarsia.backends.dnnl.table import Entry, Follow, entry_of
from intarsia.backends.dnnl.words import Binary
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import InternalError
from intarsia.graph.region import Region


@dataclass(slots=True)
class Fusion:
    """Builds the program of a region whose nodes the table takes.

    Attributes:
        region: What is lowered.
        tensors: Those of the program, so far.
        constants: Values of the constants that the program reads, in their order there.
    """

    region: Region
    tensors: list[Tensor] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    _ids: dict[int, int] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def run(self, precision: str = "f32", fpmath: str = "strict", num_threads: int = 0) -> Program:
        """Return the program."""
        graph = self.region.graph
        entries = [(graph.nodes[i], entry_of(graph.nodes[i])) for i in self.region.nodes]
        calls: dict[int, Call] = {}  # by the last node that it computes
        # of two convolutions whose results are added, the later one takes the sum
        heavy = [(node, entry) for node, entry in reversed(entries) if entry and entry.is_heavy]
        for node, entry in (*heavy, *entries):
            if entry is None:
                raise InternalError(f"{node.op_type} is not in the table", node=node.name)
            if node.id not in self._taken:
                last, call = self._grow(Operation(graph, node), entry)
                calls[last] = call
        return Program(
            tuple(self.tensors),
            tuple(_with_bias(calls[last], self.tensors) for last in sorted(calls)),
            tuple(self._id(value) for value in self.region.outputs),
            *(precision, fpmath, num_threads),
        )

    def _id(self, value_id: int) -> int:
        """Return the tensor that a value is."""
        if value_id not in self._ids:
            value = self.region.graph.values[value_id]
            origin, index = Origin.INNER, 0
            if value.constant is not None:
                origin, index = Origin.CONSTANT, len(self.constants)
                self.constants.append(value_id)
            elif value_id in self.region.inputs:
                origin, index = Origin.INPUT, self.region.inputs.index(value_id)
            assert value.shape is not None
            self._ids[value_id] = len(self.tensors)
            self.tensors.append(Tensor(value.shape, origin, index))
        return self._ids[value_id]

    def _grow(self, head: Operation, entry: Entry) -> tuple[int, Call]:
        """Return a primitive with all that follows it, and the last node that it computes."""
        shuffle = shuffle_from(head) if head.op_type == "Reshape" else None
        if shuffle is not None and all(op.node.id in self.region for op in shuffle[1]):
            return self._shuffle(*shuffle)
        call = entry.lower(head, self._id)
        if not isinstance(call, Call):
            raise InternalError(f"{head.op_type} is not taken: {call[1]}", node=head.node.name)
        last = head
        posts, names = list(call.posts), list(call.nodes)
        while True:
            following = self._following(last.node.outputs[0], entry, call)
            if following is None:
                break
            post, nodes = following
            posts.append(post)
            names += [operation.node.name for operation in nodes]
            self._taken.update(operation.node.id for operation in nodes)
            last = nodes[-1]
        self._taken.add(head.node.id)
        output = self._id(last.node.outputs[0])
        call = msgspec.structs.replace(call, output=output, posts=tuple(posts), nodes=tuple(names))
        return last.node.id, call

    def _shuffle(self, groups: int, nodes: tuple[Operation, ...]) -> tuple[int, Call]:
        self._taken.update(operation.node.id for operation in nodes)
        source, last = self._id(nodes[0].inputs[0].id), nodes[-1]
        call = Call(
            "shuffle",
            *((source,), self._id(last.output.id)),
            lists={"group_size": (groups,)},
            nodes=tuple(operation.node.name for operation in nodes),
        )
        return last.node.id, call

    def _following(
        self, value_id: int, entry: Entry, call: Call
    ) -> tuple[Post, tuple[Operation, ...]] | None:
        """Return what can be done to a result, if nothing else sees that."""
        graph = self.region.graph
        if not entry.takes or value_id in self.region.outputs:
            return None
        gated = gated_post(graph, value_id)
        if gated is not None and not any(op.node.id in self._taken for op in gated[1]):
            return gated if Follow.ELTWISE in entry.takes else None
        consumers = graph.values[value_id].consumers
        if len(consumers) != 1 or consumers[0] in self._taken:
            return None
        operation = Operation(graph, graph.nodes[consumers[0]])
        known = entry_of(operation.node)
        if known is None or known.name not in (Follow.ELTWISE, Follow.BINARY):
            return None
        post = post_of(operation, value_id, self._id)
        if post is None:
            return None
        if post.operand < 0:
            return (post, (operation,)) if Follow.ELTWISE in entry.takes else None
        shape = _flattened(post.shape, call)
        if Follow.BINARY not in entry.takes or shape is None:
            return None
        return msgspec.structs.replace(post, shape=shape), (operation,)


def _flattened(shape: tuple[int, ...], call: Call) -> tuple[int, ...] | None:
    """Return an operand's shape as a call with flattened rows sees it; None if that is not one."""
    seen = call.lists.get("shape")
    if seen is None or len(seen) >= len(shape):
        return shape
    leading = prod(shape[:-1])
    return (leading, shape[-1]) if leading in (1, seen[0]) else None


def _with_bias(call: Call, tensors: list[Tensor]) -> Call:
    """Return a matrix product with an addition of a constant row as its bias."""
    if call.kind != "matmul" or len(call.inputs) != 2 or not call.posts:  # noqa: PLR2004
        return call
    post = call.posts[0]
    shape = call.lists.get("shape") or tensors[call.output].shape
    row = aligned((shape[-1],), len(shape))
    if post.algorithm != Binary.ADD or post.shape != row:
        return call
    if tensors[post.operand].origin is not Origin.CONSTANT:
        return call
    return msgspec.structs.replace(
        call,
        inputs=(*call.inputs, post.operand),
        lists={**call.lists, "shape2": row},
        posts=call.posts[1:],
    )
