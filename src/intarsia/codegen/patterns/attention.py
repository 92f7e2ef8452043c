# SPDX-License-Identifier: Apache-2.0
"""Attention in the spellings of exporters, found around its softmax.

What may stand between the products and the softmax, and between values and the products, are rows
of tables: an operator, and what it means. A row that is not meant leaves the value to be read as it
is. Spellings: torch's eager attention (a scale after the product), its scaled dot-product attention
(the root of the scale on both factors, NaN made 0), products of stacks (fairseq), windows (Swin),
heads that share keys by Expand (Llama).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.codegen.kernels.attention import EmptyRow, MaskKind
from intarsia.codegen.lower.attention import (
    PROBLEM,
    AttentionProblem,
    Lead,
    Matrices,
    ScoreMask,
    refine,
)
from intarsia.codegen.lower.attention_operators import LARGEST_HEAD
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Node
from intarsia.graph.region import Region

_MATRIX = 2
_ONE_AXIS = 13
"""The operator set in which the axis of Softmax became one dimension, by default the last."""
_CLOSED = -1e30
"""From here down, what a mask adds leaves nothing of a score."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores that are understood so far, from their product on."""

    product: Node
    lead: Lead
    factor: float = 1.0
    cap: float = 0.0
    masks: tuple[ScoreMask, ...] = ()
    leads: tuple[Lead, ...] = ()
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack of matrices that is understood so far, from its reader on."""

    value: int
    factor: float = 1.0
    is_turned: bool = False
    repeated: tuple[Lead, Lead] | None = None
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """What may stand between the product of queries and keys and the softmax.

    Attributes:
        types: Operators.
        read: From the scores that a node makes; None if they are not meant.
    """

    types: tuple[str, ...]
    read: Callable[[_Walk, Node], _Scores | None]


@dataclass(frozen=True, slots=True)
class StackStep:
    """What may stand between a value and a product.

    Attributes:
        types: Operators.
        read: From a node and what is understood behind it, to that with the node; None if it is
            not meant.
    """

    types: tuple[str, ...]
    read: Callable[[_Walk, Node, _Stack], _Stack | None]


class _Walk:
    """Reads a region from a softmax on."""

    def __init__(self, region: Region) -> None:
        self.region, self.graph = region, region.graph
        self.outputs = frozenset(region.outputs)

    def shape(self, value: int) -> tuple[int, ...]:
        return self.graph.values[value].shape or ()

    def lead(self, value: int) -> Lead:
        return self.shape(value)[:-_MATRIX]

    def maker(self, value: int, reader: int) -> Node | None:
        """Return the node that makes a value which one node alone reads."""
        item = self.graph.values[value] if value >= 0 else None
        if item is None or item.producer < 0 or item.consumers != (reader,):
            return None
        if item.producer not in self.region:
            return None
        return None if value in self.outputs else self.graph.nodes[item.producer]

    def number(self, value: int) -> float | None:
        """Return a constant of one entry."""
        item = self.graph.values[value] if value >= 0 else None
        if item is None or item.constant is None or math.prod(item.shape or ()) != 1:
            return None
        return float(constant_array(item).reshape(()))

    def is_float(self, value: int) -> bool:
        item = self.graph.values[value]
        return item.is_static and item.dtype == "float32" and 0 not in (item.shape or (0,))

    def keeps_matrices(self, node: Node) -> bool:
        """Tell whether a node leaves the last two dimensions as they are, in the same order."""
        before, after = self.shape(node.inputs[0]), self.shape(node.outputs[0])
        return min(len(before), len(after)) >= _MATRIX and before[-2:] == after[-2:]

    def scores(self, value: int, reader: int) -> _Scores | None:
        """Return what is understood of scores, down to their product."""
        node = self.maker(value, reader)
        if node is None or not self.is_float(value) or node.domain:
            return None
        for step in SCORE_STEPS:
            scores = step.read(self, node) if node.op_type in step.types else None
            if scores is not None:
                return replace(scores, nodes=(*scores.nodes, node.id))
        return None

    def stack(self, value: int, reader: int, *, is_scalable: bool) -> _Stack:
        """Return what is understood of a factor of a product."""
        stack = _Stack(value)
        while True:
            node = self.maker(stack.value, reader)
            if node is None or node.domain or not self.is_float(node.outputs[0]):
                return stack
            for step in STACK_STEPS:
                found = step.read(self, node, stack) if node.op_type in step.types else None
                if found is not None and (is_scalable or found.factor == 1):
                    stack = replace(found, nodes=(*found.nodes, node.id))
                    break
            else:
                return stack
            reader = node.id


def _product(walk: _Walk, node: Node) -> _Scores | None:
    left, right = node.inputs
    if not all(walk.is_float(i) and len(walk.shape(i)) >= _MATRIX for i in (left, right)):
        return None
    return _Scores(node, walk.lead(node.outputs[0])) if left != right else None


def _scaled(walk: _Walk, node: Node) -> _Scores | None:
    for value, factor in _numbered(walk, node):
        scores = walk.scores(value, node.id)
        # What masks the scores is scaled too then; what caps them is another cap.
        if scores is not None and not scores.masks and not scores.cap:
            return replace(scores, factor=scores.factor * factor)
    return None


def _numbered(walk: _Walk, node: Node) -> Iterator[tuple[int, float]]:
    """Yield which value a node multiplies by which number, if it does."""
    left, right = node.inputs
    number = walk.number(right)
    if number is not None and math.isfinite(number):
        if node.op_type == "Mul":
            yield left, number
        elif number:
            yield left, 1 / number
    number = walk.number(left)
    if node.op_type == "Mul" and number is not None and math.isfinite(number):
        yield right, number


def _capped(walk: _Walk, node: Node) -> _Scores | None:
    """Read `cap * tanh(scores / cap)`."""
    for value, cap in _numbered(walk, node):
        inner = walk.maker(value, node.id)
        if inner is None or inner.op_type != "Tanh" or cap <= 0:
            continue
        scores = walk.scores(inner.inputs[0], inner.id)
        if scores is not None and not scores.masks and not scores.cap:
            nodes = (*scores.nodes, inner.id)
            return replace(scores, factor=scores.factor * cap, cap=cap, nodes=nodes)
    return None


def _added(walk: _Walk, node: Node) -> _Scores | None:
    for value, mask in (node.inputs, node.inputs[::-1]):
        same = walk.shape(value) == walk.shape(node.outputs[0])
        scores = walk.scores(value, node.id) if same and walk.is_float(mask) else None
        if scores is not None:
            return _with_mask(scores, ScoreMask(mask, MaskKind.ADDED, scores.lead))
    return None


def _selected(walk: _Walk, node: Node) -> _Scores | None:
    mask, *others = node.inputs
    kinds = (MaskKind.KEPT, MaskKind.DROPPED)
    for kind, value, fill in zip(kinds, others, others[::-1], strict=True):
        number = walk.number(fill)
        same = walk.shape(value) == walk.shape(node.outputs[0])
        scores = walk.scores(value, node.id) if same and number is not None else None
        if scores is not None and number is not None and not math.isnan(number):
            return _with_mask(scores, ScoreMask(mask, kind, scores.lead, number))
    return None


def _with_mask(scores: _Scores, mask: ScoreMask) -> _Scores:
    return replace(scores, masks=(*scores.masks, mask))


def _viewed(walk: _Walk, node: Node) -> _Scores | None:
    scores = walk.scores(node.inputs[0], node.id) if walk.keeps_matrices(node) else None
    if scores is None:
        return None
    lead = walk.lead(node.outputs[0])
    return replace(scores, lead=lead, leads=(*scores.leads, lead))


_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")

SCORE_STEPS = (
    ScoreStep(("MatMul",), _product),
    ScoreStep(("Add",), _added),
    ScoreStep(("Where",), _selected),
    ScoreStep(("Mul",), _capped),
    ScoreStep(("Mul", "Div"), _scaled),
    ScoreStep(_VIEWS, _viewed),
)
"""Earlier rows have priority."""


def _factored(walk: _Walk, node: Node, stack: _Stack) -> _Stack | None:
    for value, factor in _numbered(walk, node):
        if walk.shape(value) == walk.shape(node.outputs[0]):
            return replace(stack, value=value, factor=stack.factor * factor)
    return None


def _turned(walk: _Walk, node: Node, stack: _Stack) -> _Stack | None:
    """Read a transposition of matrices, whatever is in front."""
    rank = len(walk.shape(node.outputs[0]))
    order = Operation(walk.graph, node).attribute("perm", tuple(reversed(range(rank))))
    if rank < _MATRIX or order != (*range(rank - 2), rank - 1, rank - 2):
        return None
    return replace(stack, value=node.inputs[0], is_turned=not stack.is_turned)


def _reshaped(walk: _Walk, node: Node, stack: _Stack) -> _Stack | None:
    if not walk.keeps_matrices(node):
        return None
    value = node.inputs[0]
    if stack.repeated is not None and not _differ_by_ones(walk.lead(value), stack.repeated[0]):
        return None  # other extents than these were not broadcast
    return replace(stack, value=value)


def _repeated(walk: _Walk, node: Node, stack: _Stack) -> _Stack | None:
    """Read heads that are there several times: every query head has a key head of its own then."""
    if stack.repeated is not None or not walk.keeps_matrices(node):
        return None
    value = node.inputs[0]
    lead, repeated = walk.lead(value), walk.lead(node.outputs[0])
    padded = (*[1] * (len(repeated) - len(lead)), *lead)
    return replace(stack, value=value, repeated=(padded, repeated))


def _differ_by_ones(first: Lead, second: Lead) -> bool:
    return [n for n in first if n != 1] == [n for n in second if n != 1]


STACK_STEPS = (
    StackStep(("Mul", "Div"), _factored),
    StackStep(("Transpose",), _turned),
    StackStep(_VIEWS, _reshaped),
    StackStep(("Expand",), _repeated),
)
"""Earlier rows have priority."""


@dataclass(frozen=True, slots=True)
class _SoftmaxWeights:
    """What the softmax makes, on its way to the product with the values."""

    value: int
    empty: EmptyRow = EmptyRow.NAN
    leads: tuple[Lead, ...] = ()
    nodes: tuple[int, ...] = ()


def _follow_weights(walk: _Walk, value: int) -> tuple[_SoftmaxWeights, Node] | None:
    """Return what becomes of weights, and the product that reads them."""
    graph, weights = walk.graph, _SoftmaxWeights(value)
    while weights.value not in walk.outputs:
        readers = [graph.nodes[node] for node in graph.values[weights.value].consumers]
        if not all(node.id in walk.region and not node.domain for node in readers):
            return None
        types = [node.op_type for node in readers]
        node = readers[-1] if readers else None
        if node is None:
            return None
        if types == ["MatMul"]:
            is_left = node.inputs[0] == weights.value != node.inputs[1]
            return (weights, node) if is_left else None
        if types == ["IsNaN", "Where"]:
            asked, cleaned = readers[0].outputs[0], node.inputs
            is_alone = graph.values[asked].consumers == (node.id,) and asked not in walk.outputs
            is_zero = walk.number(cleaned[1]) == 0
            if cleaned[::2] != (asked, weights.value) or not is_alone or not is_zero:
                return None
            weights = replace(weights, empty=EmptyRow.CLEAN)
        elif len(types) == 1 and node.op_type in _VIEWS and walk.keeps_matrices(node):
            weights = replace(weights, leads=(*weights.leads, walk.lead(node.outputs[0])))
        else:
            return None
        more = tuple(reader.id for reader in readers)
        weights = replace(weights, value=node.outputs[0], nodes=(*weights.nodes, *more))
        if not walk.is_float(weights.value):
            return None
    return None


def _follow_context(walk: _Walk, value: int) -> tuple[int, list[Lead], list[int]]:
    """Return the context as heads, the extents in front on the way there, and the nodes."""
    leads, nodes = [walk.lead(value)], []
    while value not in walk.outputs and len(walk.graph.values[value].consumers) == 1:
        node = walk.graph.nodes[walk.graph.values[value].consumers[0]]
        is_view = node.id in walk.region and not node.domain and node.op_type in _VIEWS
        if not is_view or not walk.keeps_matrices(node):
            break
        value = node.outputs[0]
        leads.append(walk.lead(value))
        nodes.append(node.id)
    return value, leads, nodes


def _match(walk: _Walk, softmax: Node) -> tuple[AttentionProblem, tuple[int, ...]] | None:
    """Return the attention around a softmax, and its nodes; None if it is something else."""
    (source,), (made,) = softmax.inputs, softmax.outputs
    operation = Operation(walk.graph, softmax)
    axis = operation.attribute("axis", -1 if operation.opset >= _ONE_AXIS else 1)
    if axis not in (-1, len(walk.shape(source)) - 1) or not walk.is_float(made):
        return None
    scores = walk.scores(source, softmax.id)
    followed = None if scores is None else _follow_weights(walk, made)
    if scores is None or followed is None:
        return None
    weights, last = followed
    product, stacks, matrices = scores.product, [], []
    for node, place in ((product, 0), (product, 1), (last, 1)):
        value = node.inputs[place]
        if not walk.is_float(value) or len(walk.shape(value)) < _MATRIX:
            return None
        stack = walk.stack(value, node.id, is_scalable=node is product)
        is_key = node is product and place == 1
        stacks.append(stack)
        matrices.append(_matrices(walk, stack, value, walk.lead(node.outputs[0]), is_key=is_key))
    q, k, v = matrices
    result, leads, after = _follow_context(walk, last.outputs[0])
    if q is None or k is None or v is None or not walk.is_float(result):
        return None
    leads += [scores.lead, walk.lead(product.outputs[0]), *scores.leads, *weights.leads]
    for item in (q, k, v):
        if math.prod(item.lead) == math.prod(item.over):
            leads += [item.lead, item.repeated[1] if item.repeated else walk.lead(item.value)]
    if len({math.prod(lead) for lead in leads}) != 1:
        return None
    batch = refine(leads)
    if batch is None:
        return None
    factor = scores.factor * math.prod(stack.factor for stack in stacks)
    (queries, size), (_, value_size) = (walk.shape(i)[-2:] for i in (product.inputs[0], result))
    keys = walk.shape(product.inputs[1])[-1]
    masks, limit = _simplified(walk, scores.masks, queries, keys)
    problem = AttentionProblem(
        q,
        k,
        v,
        result,
        (queries, keys, size, value_size),
        batch,
        factor,
        scores.cap,
        masks,
        limit,
        empty=weights.empty,
    )
    nodes = {*scores.nodes, softmax.id, *weights.nodes, last.id, *after}
    return problem, tuple(sorted(nodes.union(*(stack.nodes for stack in stacks))))


def _matrices(
    walk: _Walk, stack: _Stack, value: int, over: Lead, *, is_key: bool
) -> Matrices | None:
    """Return a factor of a product as the kernel reads it: keys as rows."""
    lead = walk.lead(value)
    base = stack.repeated[1] if stack.repeated else walk.lead(stack.value)
    if math.prod(lead) != math.prod(over) and not _differ_by_ones(lead, base):
        return None
    return Matrices(stack.value, stack.is_turned != is_key, stack.repeated, lead, over)


def _simplified(
    walk: _Walk, masks: tuple[ScoreMask, ...], queries: int, keys: int
) -> tuple[tuple[ScoreMask, ...], int | None]:
    """Return the masks that are none of the constant ones which the kernel needs not read."""
    kept, limit = [], None
    for mask in masks:
        value = walk.graph.values[mask.value]
        closed = None
        if value.constant is not None:
            array = constant_array(value)
            closed = _closed(mask, array)
        if closed is None:
            kept.append(mask)
            continue
        if not closed.any():
            continue
        last = _diagonal(closed, queries, keys)
        if last is None or limit is not None:
            kept.append(mask)
        else:
            limit = last
    return tuple(kept), limit


def _closed(mask: ScoreMask, array: np.ndarray) -> np.ndarray | None:
    """Return where a constant mask leaves nothing; None if it does something else besides."""
    if mask.kind is MaskKind.ADDED:
        closed = array <= _CLOSED
        return closed if bool(np.all(closed | (array == 0))) else None
    closed = array == (mask.kind is MaskKind.DROPPED)
    return closed if mask.fill <= _CLOSED else None


def _diagonal(closed: np.ndarray, queries: int, keys: int) -> int | None:
    """Return up to which key the first query sees, if each sees one more than that before it."""
    if closed.shape[-2:] != (queries, keys):
        return None
    last = keys - int(closed.reshape(-1, queries, keys)[0, 0].sum()) - 1
    wanted = np.arange(keys) > np.arange(queries)[:, None] + last
    # A query that sees nothing would be the mean of all values if what is added is a finite number.
    return last if last >= 0 and bool(np.all(closed == wanted)) else None


def find_attention(region: Region) -> list[Operation]:
    """Return the attention of a region, each as one operation; its result is its last node's."""
    walk, graph = _Walk(region), region.graph
    operations = []
    for node_id in region.nodes:
        softmax = graph.nodes[node_id]
        if softmax.op_type != "Softmax" or softmax.domain:
            continue
        match = _match(walk, softmax)
        if match is None or max(match[0].sizes[2:]) > LARGEST_HEAD:
            continue
        problem, members = match
        nodes = tuple(graph.nodes[member] for member in members)
        node = replace(nodes[-1], op_type="Attention", inputs=problem.inputs)
        operations.append(Operation(graph, node, nodes, {PROBLEM: problem}))
    return operations


def read_attention(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return a region's operations with those that are attention as one each, in order."""
    fused = find_attention(region)
    inner = {node.id for operation in fused for node in operation.nodes}
    others = [item for item in operations if inner.isdisjoint(node.id for node in item.nodes)]
    return sorted((*others, *fused), key=lambda item: item.node.id) if fused else list(operations)
