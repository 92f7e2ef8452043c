# SPDX-License-Identifier: Apache-2.0
"""What holds a problem together: operators that share labels, and its longest path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem


def find_ties(
    problem: PlacementProblem, positions: Iterable[int] | None = None
) -> dict[tuple[int, int], list[int]]:
    """Return by pair of operators the labels that tie them, a tree of pairs for each label.

    Args:
        problem: The problem.
        positions: The labels; all of several operators if not given.
    """
    labels = problem.labels
    if positions is None:
        positions = [place for place, label in enumerate(labels) if len(label.ops) > 1]
    makers: list[list[int]] = [[] for _ in range(problem.count)]
    for tensor in problem.tensors:
        if tensor.producer >= 0:
            for op in tensor.consumers:
                makers[op].append(tensor.producer)
    pairs: dict[tuple[int, int], list[int]] = {}
    for position in positions:
        for pair in _spanning_tree(labels[position].ops, makers):
            pairs.setdefault(pair, []).append(position)
    return pairs


def longest_path(problem: PlacementProblem) -> tuple[list[int], list[int]]:
    """Return a path of the most operators, and by which tensors it goes from one to the next."""
    length = [1] * problem.count
    best: list[tuple[int, int] | None] = [None] * problem.count
    reading: list[list[tuple[int, int]]] = [[] for _ in range(problem.count)]
    for position, tensor in enumerate(problem.tensors):
        if tensor.producer >= 0:
            for op in tensor.consumers:
                reading[op].append((tensor.producer, position))
    for op, makers in enumerate(reading):
        for producer, position in makers:
            if length[producer] + 1 > length[op]:
                length[op] = length[producer] + 1
                best[op] = (producer, position)
    if not length:
        return [], []
    path = [max(range(problem.count), key=length.__getitem__)]
    tensors: list[int] = []
    while (step := best[path[-1]]) is not None:
        path.append(step[0])
        tensors.append(step[1])
    return path[::-1], tensors[::-1]


def _spanning_tree(ops: tuple[int, ...], makers: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return pairs that connect operators, along tensors wherever there is one."""
    inside = set(ops)
    root = {op: op for op in ops}

    def find(op: int) -> int:
        while root[op] != op:
            root[op] = root[root[op]]
            op = root[op]
        return op

    pairs = []
    for op in ops:
        for maker in makers[op]:
            if maker in inside and find(maker) != find(op):
                root[find(op)] = find(maker)
                pairs.append((maker, op))
    for op in ops[1:]:
        if find(op) != find(ops[0]):
            root[find(op)] = find(ops[0])
            pairs.append((ops[0], op))
    return pairs
