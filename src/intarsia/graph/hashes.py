# SPDX-License-Identifier: Apache-2.0
"""The two hashes of a region: of its shape, for costs, and of its content, for artifacts.

Nodes get a Merkle colour forward and one backward; a topological order by colour numbers the
values; what is hashed at the end is the whole wiring in that numbering. So two regions that are
not isomorphic differ up to a collision of 128-bit BLAKE2b, while isomorphic ones that are written
in another node order may rarely be told apart: if equal colours hide different neighbours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from intarsia.graph.per_graph import per_graph
from intarsia.graph.signature import constant_digest, node_signature

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Value
    from intarsia.graph.region import Region

_DIGEST_BYTES = 16
_UNNUMBERED = 1 << 62


def shape_hash(region: Region) -> str:
    """Return the hash of what decides a region's speed, as 32 hexadecimal digits.

    It covers operators, domains, operator set versions, attributes with their bodies, called
    functions, shapes (free ones with their expressions), dtypes and wiring; of constants the values
    of integers, booleans, strings and of tensors of up to 64 elements. Names do not count, nor does
    the order in which inputs and outputs are listed: code that is reused by this hash must order
    them itself. Not seen as equal: bodies with another node order, attributes spelt out that equal
    their defaults.
    """
    return _hash(region, content=False)


def content_hash(region: Region) -> str:
    """Return the hash of all that decides a region's results, as 32 hexadecimal digits.

    As `shape_hash`, and also the values of all constants, and the order of inputs and outputs.
    """
    return _hash(region, content=True)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of each node of a region before the order is."""

    signatures: dict[int, bytes]
    reads: dict[int, tuple[int, ...]]
    leaves: dict[int, bytes]
    outputs: frozenset[int]


def _hash(region: Region, *, content: bool) -> str:
    hashes = _hashes(region.graph)
    is_single = len(region.nodes) == 1  # every node is probed: no key as long as the graph
    key = (region.nodes if is_single else region.bits, content)
    if key not in hashes:
        facts = _collect(region, content=content)
        order = _order(region, facts, _colours(region, facts))
        hashes[key] = _final(region, facts, order, content=content)
    return hashes[key]


@per_graph
def _hashes(_graph: Graph) -> dict[tuple[object, bool], str]:
    return {}


def _collect(region: Region, *, content: bool) -> _Facts:
    graph = region.graph
    signatures: dict[int, bytes] = {}
    reads: dict[int, tuple[int, ...]] = {}
    for position in region.nodes:
        signature = node_signature(graph, position, content=content)
        signatures[position] = signature.digest
        reads[position] = graph.nodes[position].inputs + signature.captured
    leaves = {value: b"i" + _type(graph.values[value]) for value in region.inputs}
    for value in region.constants:
        leaves[value] = b"c" + constant_digest(graph, value, content=content)
    return _Facts(signatures, reads, leaves, frozenset(region.outputs))


def _colours(region: Region, facts: _Facts) -> dict[int, bytes]:
    """Return a colour per node that depends on all before it and all after it."""
    graph = region.graph
    forward: dict[int, bytes] = {}
    colour_of: dict[int, bytes] = {-1: b"-", **facts.leaves}
    for node in region.nodes:
        parts = [facts.signatures[node], *(colour_of[value] for value in facts.reads[node])]
        outputs = graph.nodes[node].outputs
        parts += [_output(graph, value, facts.outputs) for value in outputs]
        forward[node] = _digest(parts)
        for index, value in enumerate(outputs):
            if value >= 0:
                colour_of[value] = b"o%d:" % index + forward[node]
    users: dict[int, list[bytes]] = {}
    both: dict[int, bytes] = {}
    for node in reversed(region.nodes):
        after = [
            b"%d:" % index + user
            for index, value in enumerate(graph.nodes[node].outputs)
            for user in users.get(value, ())
        ]
        # Sorted: readers have no order of their own, and that of node ids is not the region's.
        both[node] = _digest([forward[node], *sorted(after)])
        for slot, value in enumerate(facts.reads[node]):
            if value >= 0:
                users.setdefault(value, []).append(b"%d:" % slot + both[node])
    return both


def _order(region: Region, facts: _Facts, colours: dict[int, bytes]) -> list[int]:
    """Return the nodes topologically, by colour, then by the numbers of what they read."""
    graph = region.graph
    members = frozenset(region.nodes)
    numbers: dict[int, int] = {-1: -1}
    waiting = {
        node: sum(before in members for before in graph.predecessors[node]) for node in region.nodes
    }

    def key(node: int) -> tuple[bytes, tuple[int, ...], int]:
        reads = tuple(numbers.get(value, _UNNUMBERED) for value in facts.reads[node])
        return colours[node], reads, node

    ready = [key(node) for node, count in waiting.items() if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        node = heappop(ready)[2]
        order.append(node)
        for value in (*facts.reads[node], *graph.nodes[node].outputs):
            numbers.setdefault(value, len(numbers))
        for after in graph.successors[node]:
            if after in members:
                waiting[after] -= 1
                if not waiting[after]:
                    heappush(ready, key(after))
    return order


def _final(region: Region, facts: _Facts, order: list[int], *, content: bool) -> str:
    graph = region.graph
    numbers: dict[int, int] = {-1: 0}
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for node in order:
        parts = [facts.signatures[node]]
        for value in facts.reads[node]:
            leaf = facts.leaves.get(value, b"") if value not in numbers else b""
            parts.append(b"%d:" % numbers.setdefault(value, len(numbers)) + leaf)
        parts.append(b"->")
        for value in graph.nodes[node].outputs:
            number = numbers.setdefault(value, len(numbers))
            parts.append(b"%d:" % number + _output(graph, value, facts.outputs))
        hasher.update(_digest(parts))
    if content:
        ends = [b"%d" % numbers[value] for value in (*region.inputs, -1, *region.outputs)]
        hasher.update(_digest(ends))
    return hasher.hexdigest()


def _output(graph: Graph, value: int, outputs: frozenset[int]) -> bytes:
    if value < 0:
        return b"-"
    return (b"!" if value in outputs else b".") + _type(graph.values[value])


def _type(value: Value) -> bytes:
    if not value.is_tensor:
        return str(value.ir.type).encode()
    # Free extents beside the nominal ones: code for all sizes is other code than for these.
    free = "" if value.extents is None else f"~{value.extents}"
    return f"{value.dtype}{value.shape}{free}".encode()


def _digest(parts: list[bytes]) -> bytes:
    """Return the digest of parts, each with its length, so that no two lists look alike."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    hasher.update(b"".join(b"%d#" % len(part) + part for part in parts))
    return hasher.digest()
