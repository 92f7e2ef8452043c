# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a graph become one: as many as can, so that what is left still has an order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class HasEnds(Protocol):
    """A node, by what it reads and writes."""

    @property
    def number(self) -> int:
        """What it is called by."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What it writes."""

    @property
    def implicit(self) -> tuple[str, ...]:
        """What graphs inside it read."""


def group_nodes(nodes: Sequence[HasEnds], taken: Collection[int]) -> list[list[int]]:
    """Return the nodes that are taken in groups, each of which may become one node.

    The level of a node is how often a way to it goes from a node that is not taken to one that is.
    Levels never fall along a way, and rise where it leaves the nodes that are taken and comes back:
    so between two nodes of one level there is nothing else, and groups are in the order of levels.

    Args:
        nodes: In an order in which they can run.
        taken: Numbers of those that are taken.

    Returns:
        Of each group the numbers of its nodes, in the order of the nodes.
    """
    levels: dict[str, int] = {}
    written_elsewhere: set[str] = set()
    groups: dict[int, list[int]] = {}
    for node in nodes:
        is_taken = node.number in taken
        level = 0
        for name in (*node.inputs, *node.implicit):
            rises = is_taken and name in written_elsewhere
            level = max(level, levels.get(name, 0) + rises)
        for name in filter(None, node.outputs):
            levels[name] = level
            if not is_taken:
                written_elsewhere.add(name)
        if is_taken:
            groups.setdefault(level, []).append(node.number)
    return [groups[level] for level in sorted(groups)]
