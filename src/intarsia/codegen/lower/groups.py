# SPDX-License-Identifier: Apache-2.0
"""Fusion: which operators become one kernel.

An elementwise operator joins the group of the operator that makes its operand, if nothing else sees
that operand: a chain such as bias, residual addition and activation becomes the epilogue of a
convolution. So does a diamond (`x * sigmoid(x)`) once all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Operators that one kernel computes.

    Attributes:
        anchor: The first; the others are elementwise.
        chain: The others, in order.
    """

    anchor: Operation
    chain: tuple[Operation, ...] = ()

    @property
    def members(self) -> tuple[Operation, ...]:
        """The anchor and the others."""
        return (self.anchor, *self.chain)

    @property
    def result(self) -> int:
        """The id of the value that it yields; the first that is wanted, if there are several."""
        return self.members[-1].outputs[0].id

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return tuple(node.name for node in self.nodes)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it computes."""
        return tuple(node for member in self.members for node in member.nodes)


def make_groups(
    graph: Graph,
    operations: Sequence[Operation],
    outputs: frozenset[int],
    accepts: Callable[[Operation], bool],
    can_join: Callable[[Operation], bool],
    fits: Callable[[KernelGroup], bool] = lambda _: True,
) -> list[KernelGroup]:
    """Return groups in an order in which they can run: each at the place of its last member.

    Args:
        graph: Where the operations are from.
        operations: All of a region, in topological order.
        outputs: Values that are seen outside the region.
        accepts: Tells whether an operation can be an anchor with an epilogue.
        can_join: Tells whether an operation is elementwise.
        fits: Tells whether one kernel can be given all that a group reads and writes.
    """
    by_result: dict[int, KernelGroup] = {}
    order: dict[int, int] = {}  # the place of the group with that result
    # An operation may read what its node does not: a product of codes does.
    readers: dict[int, set[int]] = {}
    for operation in operations:
        for value_id in operation.node.inputs:
            readers.setdefault(value_id, set()).add(operation.node.id)
    for place, operation in enumerate(operations):
        group = KernelGroup(operation)
        while can_join(group.anchor):
            producer = _producer(graph, group, by_result, order, outputs, accepts, readers)
            if producer is None:
                break
            joined = KernelGroup(producer.anchor, (*producer.chain, *group.members))
            if not fits(joined):
                break
            del by_result[producer.result]
            group = joined
        by_result[group.result] = group
        order[group.result] = place
    return sorted(by_result.values(), key=lambda group: order[group.result])


def widen_later(
    groups: Sequence[KernelGroup],
    outputs: frozenset[int],
    widens: Callable[[Operation], bool],
    can_join: Callable[[Operation], bool],
    fits: Callable[[KernelGroup], bool] = lambda _: True,
) -> list[KernelGroup]:
    """Return groups that do not end with what makes more bytes of few: its reader does it.

    That reader is elementwise, of as many entries, and the only one.

    Args:
        groups: In an order in which they can run.
        outputs: Values that are seen outside the region.
        widens: Tells whether an operation makes more bytes than it reads.
        can_join: Tells whether an operation is elementwise.
        fits: As for `make_groups`.
    """
    readers: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        for value in {value for member in group.members for value in member.node.inputs}:
            readers.setdefault(value, []).append(place)
    out, gone = list(groups), set[int]()
    for place, group in enumerate(out):
        *before, last = group.members
        places = readers.get(group.result, [])
        if not widens(last) or group.result in outputs or len(places) != 1:
            continue
        reader = out[places[0]]
        if reader.anchor.output_shape != last.output_shape or last.is_constant(0):
            continue
        own = [item for item in reader.members if group.result in item.node.inputs]
        wider = (
            KernelGroup(last, reader.members)
            if reader.anchor in own
            else KernelGroup(reader.anchor, (last, *reader.chain))
        )
        if all(map(can_join, own)) and fits(wider):
            if before:
                out[place] = KernelGroup(before[0], tuple(before[1:]))
            else:
                gone.add(place)
            out[places[0]] = wider
    return [group for place, group in enumerate(out) if place not in gone]


def split_tables(
    groups: Sequence[KernelGroup],
    is_code: Callable[[Value], bool],
    pays: Callable[[Sequence[Operation]], bool],
    can_join: Callable[[Operation], bool],
) -> list[KernelGroup]:
    """Return groups in which functions of codes alone are apart, so that they become tables.

    What is computed of the codes that an anchor makes, or what follows it, and of single numbers,
    and gives codes again (`x * sigmoid(x)` between Q and DQ) has as many results as there are
    codes. Of a product, a bias and a QuantizeLinear come first.

    Args:
        groups: In an order in which they can run.
        is_code: Tells whether a value is of few codes.
        pays: Tells whether it is worth a table, of the operations of a chain.
        can_join: Tells whether an operation is elementwise.
    """
    out = []
    for group in groups:
        chain = _read_late(group)
        start, end = _find_table(group.anchor, chain, is_code, pays, can_join)
        if start == end:
            out.append(group)
            continue
        out += [KernelGroup(group.anchor, chain[:start]), KernelGroup(*_cut(chain[start:end]))]
        out += [KernelGroup(*_cut(chain[end:]))] if end < len(chain) else []
    return out


def _cut(members: tuple[Operation, ...]) -> tuple[Operation, tuple[Operation, ...]]:
    return members[0], members[1:]


def _read_late(group: KernelGroup) -> tuple[Operation, ...]:
    """Return a chain in which what reads nothing of the group stands before its first reader."""
    made = {value.id for value in group.anchor.outputs}
    waiting: dict[int, Operation] = {}
    chain: list[Operation] = []
    for member in group.chain:
        read = {value.id for value in member.inputs}
        if not read & (made | waiting.keys()):
            waiting[member.output.id] = member
            continue
        chain += [waiting.pop(value) for value in sorted(read & waiting.keys())]
        chain.append(member)
        made.update(value.id for one in chain[-1 - len(read) :] for value in one.outputs)
    return (*chain, *waiting.values())


def _find_table(
    anchor: Operation,
    chain: tuple[Operation, ...],
    is_code: Callable[[Value], bool],
    pays: Callable[[Sequence[Operation]], bool],
    can_join: Callable[[Operation], bool],
) -> tuple[int, int]:
    """Return where in a chain the first function of codes begins and ends that pays; 0, 0 if none.

    A group of elementwise operators alone is a table by itself where it is one.
    """
    # The earliest codes have the most behind them.
    for start in range(1 if can_join(anchor) else len(chain)):
        *before, maker = (anchor, *chain[:start])
        read = {value.id for member in chain[start:] for value in member.inputs}
        if not is_code(maker.output) or any(member.output.id in read for member in before):
            continue
        end = start + _table_length(maker, chain[start:], is_code)
        if end > start and pays(chain[start:end]):
            return start, end
    return 0, 0


def _table_length(
    maker: Operation, chain: Sequence[Operation], is_code: Callable[[Value], bool]
) -> int:
    """Return how many operations of a chain are a function of the codes made before, at most."""
    own, length = {maker.output.id}, 0
    for count, member in enumerate(chain, 1):
        numbers = [value for value in member.inputs if value.id not in own]
        if any(value.constant is None or prod(value.shape or ()) != 1 for value in numbers):
            break
        own.add(member.output.id)
        later = {value.id for other in chain[count:] for value in other.inputs}
        if is_code(member.output) and own & later <= {member.output.id}:
            length = count
    return length


def _producer(
    graph: Graph,
    group: KernelGroup,
    by_result: dict[int, KernelGroup],
    order: dict[int, int],
    outputs: frozenset[int],
    accepts: Callable[[Operation], bool],
    readers: Mapping[int, set[int]],
) -> KernelGroup | None:
    """Return the group whose result only this one reads, the latest if there are several."""
    members = {node.id for node in group.nodes}
    shape = graph.values[group.result].shape
    producers = []
    for value_id in {i for member in group.members for i in member.node.inputs}:
        producer = by_result.get(value_id)
        if producer is None or value_id in outputs or not accepts(producer.anchor):
            continue
        # What reads another of its results would have to wait for the last member.
        if any(i >= 0 and graph.values[i].consumers for i in producer.anchor.node.outputs[1:]):
            continue
        value = graph.values[value_id]
        # An epilogue runs over its anchor's entries: of an operand that is broadcast there are
        # fewer.
        if value.shape == shape and members >= {*value.consumers, *readers[value_id]}:
            producers.append(producer)
    # A group moves to the place of its last member: the latest one moves least, so that its
    # operands need memory no longer than they must.
    return max(producers, key=lambda item: order[item.result], default=None)
