# SPDX-License-Identifier: Apache-2.0
"""One node: where it runs, why, and why the other targets refused it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from intarsia.backends.values import Refusal
from intarsia.plan.placement import Placement


@dataclass(frozen=True, slots=True)
class NodeView:
    """Where a node runs and why.

    Attributes:
        name: The node's name.
        op_type: Its operator.
        origins: The nodes of the user's model that it stands for.
        region: Position of its region in the placement.
        target: Text of the target.
        device: Its run-time device.
        backend: Name of the backend.
        why: As in `NodePlacement.why`.
        refusals: Why it is not on a target that comes before.
    """

    name: str
    op_type: str
    origins: tuple[str, ...]
    region: int
    target: str
    device: str
    backend: str
    why: str
    refusals: tuple[Refusal, ...]


def view_nodes(placement: Placement) -> tuple[NodeView, ...]:
    """Return a view of every node, region by region."""
    refusals: dict[str, list[Refusal]] = {}
    for refusal in placement.refusals:
        refusals.setdefault(refusal.node, []).append(refusal)
    return tuple(
        NodeView(
            node.name,
            node.op_type,
            node.origins,
            index,
            region.target,
            region.device,
            region.backend,
            node.why,
            tuple(refusals.get(node.name, ())),
        )
        for index, region in enumerate(placement.regions)
        for node in region.nodes
    )


def find_nodes(placement: Placement, name: str) -> tuple[NodeView, ...]:
    """Return the nodes that have the name, or that stand for the user's node of that name."""
    return tuple(view for view in view_nodes(placement) if name in (view.name, *view.origins))


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Refusals of one operator on one target that give the same reason.

    Attributes:
        target: Text of the target.
        code: The reason's code.
        op_type: The operator.
        reason: What the first of them says.
        count: How many there are.
        first: The first node.
    """

    target: str
    code: str
    op_type: str
    reason: str
    count: int
    first: str


def group_refusals(placement: Placement) -> tuple[RefusalGroup, ...]:
    """Return the refusals by target, code and operator, most frequent first."""
    firsts: dict[tuple[str, str, str], Refusal] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for refusal in placement.refusals:
        key = (refusal.target, refusal.code.value, refusal.op_type)
        firsts.setdefault(key, refusal)
        counts[key] += 1
    return tuple(
        RefusalGroup(*key, firsts[key].reason, count, firsts[key].node)
        for key, count in counts.most_common()
    )
