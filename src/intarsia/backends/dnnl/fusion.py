# SPDX-License-Identifier: Apache-2.0
"""From a region to a program: which nodes become one primitive, and in which order they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.dnnl.chains import FunctionChain, chains_of
from intarsia.backends.dnnl.lowering import aligned
from intarsia.backends.dnnl.numbering import Numbering, Substituted
from intarsia.backends.dnnl.pointwise import gated_post, post_of
from intarsia.backends.dnnl.program import (
    Origin,
    Post,
    PrimitiveCall,
    PrimitiveProgram,
    ProgramTensor,
)
from intarsia.backends.dnnl.quantised import (
    BYTES,
    Quantised,
    integer_product,
    integer_sum,
    integers_of,
    quantising_post,
    read_linear,
    rounding_posts,
)
from intarsia.backends.dnnl.rows import shuffle_from, slices_of
from intarsia.backends.dnnl.table import Follow, PatternHead, entry_of, find_alone
from intarsia.backends.dnnl.words import BinaryAlgorithm, Eltwise
from intarsia.backends.values import FusedGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import InternalError
from intarsia.graph.graph import Value
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph


_Following = tuple[tuple[Post, ...], tuple[Operation, ...]]
"""An operation fused into a result, and the operators that it stands for."""


@dataclass(slots=True)
class Fusion:
    """Builds the program of a region whose nodes the table takes.

    Attributes:
        region: What is lowered.
        ids: Numbers the tensors.
    """

    region: Region
    ids: Numbering = field(init=False)
    _taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ids = Numbering(self.region)

    def run(
        self, precision: str = "f32", fpmath: str = "strict", num_threads: int = 0
    ) -> PrimitiveProgram:
        """Return the program."""
        graph = self.region.graph
        entries = []
        for node_id in self.region.nodes:
            node = graph.nodes[node_id]
            entry = entry_of(node)
            if entry is None:
                raise InternalError(f"{node.op_type} is not in the table", node=node.name)
            entries.append((node, entry))
        calls: dict[int, list[PrimitiveCall]] = {}  # by the last node that they compute
        # of two convolutions whose results are added, the later one takes the sum
        heavy = [(node, entry) for node, entry in reversed(entries) if entry.is_heavy]
        floats = [item for item in entries if item[0].op_type == "DequantizeLinear"]
        others = [item for item in entries if item[0].op_type != "DequantizeLinear"]
        for node, entry in (*heavy, *others):
            if node.id in self._taken:
                continue
            if entry.name == "slice":
                calls[node.id] = self._slice(Operation(graph, node))
                continue
            last, call = self._grow(Operation(graph, node), entry)
            calls[last] = [call]
        for node, entry in floats:  # where all readers take the integers, nothing needs them
            (result,) = node.outputs
            if result in self.ids.ids or result in self.region.outputs:
                last, call = self._grow(Operation(graph, node), entry)
                calls[last] = [call]
        return PrimitiveProgram(
            tensors=tuple(self.ids.tensors),
            calls=tuple(
                _with_bias(call, self.ids.tensors) for last in sorted(calls) for call in calls[last]
            ),
            outputs=tuple(self.ids(value) for value in self.region.outputs),
            precision=precision,
            fpmath=fpmath,
            num_threads=num_threads,
        )

    def _grow(self, head: Operation, entry: PatternHead) -> tuple[int, PrimitiveCall]:
        """Return a primitive with all that follows it, and the last node that it computes."""
        shuffle = shuffle_from(head) if head.op_type == "Reshape" else None
        if shuffle is not None and all(op.node.id in self.region for op in shuffle[1]):
            return self._shuffle(*shuffle)
        chain = self._whole_chain(head.node.id)
        if chain is not None:
            return self._function(chain)
        passed = self._pass_integers(head, entry) if entry.keeps_integers(head.node) else None
        if passed is not None:
            return passed
        call = self._lower(head, entry)
        last = head
        if call.kind == "batch_normalization":
            call, last = self._fold_affine(head, call)
        posts, names = list(call.posts), list(call.nodes)
        while True:
            following = self._following(last.node.outputs[0], entry, call)
            if following is None:
                break
            more, nodes = following
            posts += more
            names += [operation.node.name for operation in nodes]
            self._taken.update(operation.node.id for operation in nodes)
            last = nodes[-1]
        self._taken.add(head.node.id)
        output = self.ids(last.node.outputs[0])
        call = msgspec.structs.replace(call, output=output, posts=tuple(posts), nodes=tuple(names))
        return last.node.id, call

    def _fold_affine(self, head: Operation, call: PrimitiveCall) -> tuple[PrimitiveCall, Operation]:
        """Return a batch normalisation with products and sums per channel behind it folded in.

        Its scale and shift then are other constants.
        """
        last, folded = head, list[Operation]()
        if not (head.is_constant(1) and head.is_constant(2)):
            return call, last
        scale, shift = (head.array(position).astype(np.float64) for position in (1, 2))
        while True:
            following = self._only_reader(last.node.outputs[0])
            if following is None or following.op_type not in ("Add", "Mul"):
                break
            number = _per_channel(following, last.node.outputs[0])
            if number is None:
                break
            if following.op_type == "Mul":
                scale, shift = scale * number, shift * number
            else:
                shift = shift + number
            folded.append(following)
            last = following
        if not folded:
            return call, last
        self._taken.update(operation.node.id for operation in folded)
        source, _, _, *rest = call.inputs
        dtype = head.array(1).dtype
        constants = (
            self.ids.constant(f"{head.node.name}/{name}", array.astype(dtype))
            for name, array in (("scale", scale), ("shift", shift))
        )
        names = (*call.nodes, *(operation.node.name for operation in folded))
        call = msgspec.structs.replace(call, inputs=(source, *constants, *rest), nodes=names)
        return call, last

    def _lower(self, head: Operation, entry: PatternHead) -> PrimitiveCall:
        call: PrimitiveCall | None = None
        if entry.is_heavy and Follow.QUANTIZE in entry.takes:
            call = integer_product(head, self.region, self.ids)
        elif entry.name == Follow.BINARY:
            call = integer_sum(head, self.region, self.ids)
        if call is not None:
            return call
        lowered = entry.lower(head, self.ids)
        if not isinstance(lowered, PrimitiveCall):
            raise InternalError(f"{head.op_type} is not taken: {lowered[1]}", node=head.node.name)
        return lowered

    def _pass_integers(
        self, head: Operation, entry: PatternHead
    ) -> tuple[int, PrimitiveCall] | None:
        """Return what moves integers as it would move the floats that they stand for, or None.

        All operands are dequantised, and the result is quantised, with the same numbers.
        """
        operands = head.inputs[: entry.data]
        parts = [integers_of(value, self.region) for value in operands]
        first = parts[0]
        follower = self._only_reader(head.node.outputs[0])
        if first is None or follower is None or follower.op_type != "QuantizeLinear":
            return None
        quantised = read_linear(follower)
        if not isinstance(quantised, Quantised) or quantised.axis is not None:
            return None
        if not all(part is not None and part.is_same(quantised) for part in parts):
            return None
        instead = {
            value.id: self.ids(part.value.id)
            for value, part in zip(operands, parts, strict=True)
            if part is not None
        }
        instead[head.output.id] = self.ids(follower.output.id)
        call = entry.lower(head, Substituted(self.ids, instead))
        assert isinstance(call, PrimitiveCall)
        self._taken.update((head.node.id, follower.node.id))
        names = (*call.nodes, follower.node.name)
        return follower.node.id, msgspec.structs.replace(call, nodes=names)

    def _slice(self, operation: Operation) -> list[PrimitiveCall]:
        parts = slices_of(operation, self.ids)
        assert isinstance(parts, list)
        return parts

    def _whole_chain(self, node_id: int) -> FunctionChain | None:
        """Return the chain that a node is of, if all of it is here and free."""
        chain = chains_of(self.region.graph).get(node_id)
        if chain is None or any(
            node not in self.region or node in self._taken for node in chain.nodes
        ):
            return None
        return chain

    def _function(self, chain: FunctionChain) -> tuple[int, PrimitiveCall]:
        """Return a chain as one function of its operand."""
        graph = self.region.graph
        self._taken.update(chain.nodes)
        call = PrimitiveCall(
            "eltwise",
            (self.ids(chain.source),),
            self.ids(chain.output),
            chain.post.algorithm,
            numbers={"alpha": chain.post.alpha, "beta": chain.post.beta},
            nodes=tuple(graph.nodes[node].name for node in chain.nodes),
        )
        return chain.nodes[-1], call

    def _shuffle(self, groups: int, nodes: tuple[Operation, ...]) -> tuple[int, PrimitiveCall]:
        self._taken.update(operation.node.id for operation in nodes)
        source, last = self.ids(nodes[0].inputs[0].id), nodes[-1]
        call = PrimitiveCall(
            "shuffle",
            (source,),
            self.ids(last.output.id),
            lists={"group_size": (groups,)},
            nodes=tuple(operation.node.name for operation in nodes),
        )
        return last.node.id, call

    def _only_reader(self, value_id: int) -> Operation | None:
        """Return the one node that reads a result, if it is of this region and is not taken."""
        graph = self.region.graph
        consumers = graph.values[value_id].consumers
        if value_id in self.region.outputs or len(consumers) != 1:
            return None
        if consumers[0] in self._taken:
            return None
        return Operation(graph, graph.nodes[consumers[0]])

    def _following(
        self, value_id: int, entry: PatternHead, call: PrimitiveCall
    ) -> _Following | None:
        """Return what can be done to a result, if nothing else sees that."""
        graph = self.region.graph
        if not entry.takes or value_id in self.region.outputs:
            return None
        gated = gated_post(graph, value_id)
        if gated is not None and not any(op.node.id in self._taken for op in gated[1]):
            return ((gated[0],), gated[1]) if Follow.ELTWISE in entry.takes else None
        consumers = graph.values[value_id].consumers
        chain = self._whole_chain(consumers[0]) if consumers else None
        if chain is not None and chain.source == value_id and set(consumers) <= set(chain.nodes):
            nodes = tuple(Operation(graph, graph.nodes[node]) for node in chain.nodes)
            return ((chain.post,), nodes) if Follow.ELTWISE in entry.takes else None
        operation = self._only_reader(value_id)
        return None if operation is None else self._single(value_id, operation, entry, call)

    def _single(
        self, value_id: int, operation: Operation, entry: PatternHead, call: PrimitiveCall
    ) -> _Following | None:
        """Return what the only reader of a result does to it, if it can be fused into the call."""
        follower = entry_of(operation.node)
        if follower is None:
            return None
        if follower.name in (Follow.ELTWISE, Follow.BINARY):
            return self._elementwise(value_id, operation, entry, call)
        if follower.name == Follow.CAST and Follow.CAST in entry.takes:
            # The primitive writes float32 itself: int32 sums to floats are one conversion in
            # registers.
            return ((), (operation,)) if operation.output.dtype == "float32" else None
        if follower.name != Follow.QUANTIZE:
            return None
        residual = self._residual(operation) if call.scalings and entry.is_heavy else None
        if residual is not None:
            return residual
        is_taken = bool(call.scalings) or call.kind == "binary"  # with a number it is a function
        post = quantising_post(operation) if is_taken else None
        return None if post is None else ((post,), (operation,))

    def _residual(self, quantize: Operation) -> _Following | None:
        """Return a sum of a result that was rounded to integers and other integers, or None.

        Nothing is written between: the result is rounded as if it were, and the sum is made in
        units of the other's scale.
        """
        floats = self._only_reader(quantize.node.outputs[0])
        if floats is None or floats.op_type != "DequantizeLinear":
            return None
        written, read = read_linear(quantize), read_linear(floats)
        total = self._only_reader(floats.node.outputs[0])
        if total is None or total.op_type not in ("Add", "Sum") or _other(total, floats) is None:
            return None
        other = integers_of(_other(total, floats), self.region)
        if not (isinstance(written, Quantised) and isinstance(read, Quantised) and other):
            return None
        parts = (written, other)
        if not written.is_same(read) or any(part.axis is not None for part in parts):
            return None
        if other.value.shape != written.value.shape or other.value.dtype not in BYTES:
            return None
        unit = float(other.scale[0])
        shape = total.output_shape
        addend = Post(BinaryAlgorithm.ADD, operand=self.ids(other.value.id), shape=shape)
        back = Post(Eltwise.LINEAR, unit, -unit * other.zero)
        return (*rounding_posts(written, unit), addend, back), (quantize, floats, total)

    def _elementwise(
        self, value_id: int, operation: Operation, entry: PatternHead, call: PrimitiveCall
    ) -> _Following | None:
        post = post_of(operation, value_id, self.ids)
        if post is None:
            return None
        if post.operand < 0:
            return ((post,), (operation,)) if Follow.ELTWISE in entry.takes else None
        shape = _flattened(post.shape, call)
        if Follow.BINARY not in entry.takes or shape is None:
            return None
        return (msgspec.structs.replace(post, shape=shape),), (operation,)


def _other(total: Operation, floats: Operation) -> Value | None:
    """Return the operand of a sum that is not a given result, or None if there is no other."""
    result = floats.node.outputs[0]
    others = [value for value in total.inputs if value.id != result]
    return others[0] if len(others) == 1 == len(total.inputs) - 1 else None


def _per_channel(operation: Operation, source: int) -> Array | None:
    """Return the constant operand beside a result as a number for each channel, if it is that."""
    shape = operation.output_shape
    for position, value in enumerate(operation.inputs):
        if value.id == source or value.constant is None or value.shape is None:
            continue
        if len(value.shape) > len(shape):
            return None
        aligned_shape = aligned(value.shape, len(shape))
        if any(extent != 1 for dim, extent in enumerate(aligned_shape) if dim != 1):
            return None
        numbers: Array = operation.array(position).reshape(-1).astype(np.float64)
        return numbers
    return None


def _flattened(shape: tuple[int, ...], call: PrimitiveCall) -> tuple[int, ...] | None:
    """Return an operand's shape as a call with flattened rows sees it; None if that is not one."""
    seen = call.lists.get("shape")
    if seen is None or len(seen) >= len(shape):
        return shape
    leading = prod(shape[:-1])
    # Rows were flattened into one dimension; an operand that repeats within them has no such shape.
    return (leading, shape[-1]) if leading in (1, seen[0]) else None


def _with_bias(call: PrimitiveCall, tensors: list[ProgramTensor]) -> PrimitiveCall:
    """Return a matrix product with an addition of a constant row as its bias."""
    if call.kind != "matmul" or len(call.inputs) != 2 or not call.posts:  # noqa: PLR2004
        return call
    post = call.posts[0]
    shape = call.lists.get("shape") or tensors[call.output].shape
    row = aligned((shape[-1],), len(shape))
    if post.algorithm != BinaryAlgorithm.ADD or post.shape != row:
        return call
    if tensors[post.operand].origin is not Origin.CONSTANT:
        return call
    return msgspec.structs.replace(
        call,
        inputs=(*call.inputs, post.operand),
        lists={**call.lists, "shape2": row},
        posts=call.posts[1:],
    )


def fused_groups(region: Region) -> tuple[FusedGroup, ...]:
    """Return the nodes of every primitive that computes two or more.

    A DequantizeLinear of which only one primitive reads, and only the integers, is a part of that.

    Args:
        region: Nodes that the table takes.
    """
    graph = region.graph
    region = Region.of(graph, [node for node in region.nodes if _is_computed(graph, node, region)])
    ids = {graph.nodes[node].name: node for node in region.nodes}
    members: list[set[int]] = []
    kinds: list[str] = []
    owner: dict[int, int] = {}
    for call in Fusion(region).run().calls:
        nodes = {ids[name] for name in call.nodes} - owner.keys()  # a Split is several calls
        owner.update(dict.fromkeys(nodes, len(members)))
        members.append(nodes)
        kinds.append(call.kind)
    for node in region.nodes:
        if node in owner:
            continue
        readers = {owner.get(after, -1) for after in graph.successors[node]}
        if len(readers) == 1 and -1 not in readers:
            (at,) = readers
            owner[node] = at
            members[at].add(node)
    return tuple(
        FusedGroup(tuple(sorted(nodes)), kind)
        for nodes, kind in zip(members, kinds, strict=True)
        if len(nodes) > 1
    )


def _is_computed(graph: Graph, node: int, region: Region) -> bool:
    """Tell whether a node can be computed in a region: not if only its whole chain could."""
    chain = chains_of(graph).get(node)
    if chain is None or all(member in region for member in chain.nodes):
        return True
    return find_alone(graph, graph.nodes[node]) is None
