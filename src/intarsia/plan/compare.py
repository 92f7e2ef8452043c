# SPDX-License-Identifier: Apache-2.0
"""What is different between two plans: where nodes run, where regions are cut, their identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from intarsia.cost.records import Assigned
from intarsia.plan.by_sizes import PlansBySizes
from intarsia.plan.identity import Change, Identity, compare_identities


@dataclass(frozen=True, slots=True)
class MovedNodes:
    """Nodes that run elsewhere, in a row.

    Attributes:
        nodes: Their names, in the order of the first plan that has them.
        before: Text of their target in the first plan; None if it does not have them.
        now: Likewise in the second.
    """

    nodes: tuple[str, ...]
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Two nodes of one target in each plan, one after another, that one plan runs as one region.

    Attributes:
        before: The last node ahead of the cut.
        after: The first node behind it.
        is_new: Whether it is the second plan that cuts.
    """

    before: str
    after: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Relayout:
    """A value that crosses between regions in another layout.

    Attributes:
        value: Its name.
        before: Its layout in the first plan; None if it is plain there or stays in a region.
        now: Likewise in the second.
    """

    value: str
    before: str | None
    now: str | None


class PlanDifference(msgspec.Struct, frozen=True, rename={"changes": "world"}):
    """What is different between two plans.

    Attributes:
        changes: What they depend on that is not the same; `world` in JSON.
        moves: Nodes that run elsewhere, or are only in one of them.
        cuts: Where only one of them cuts a target's nodes in two.
        regions: How many regions the first and the second has.
        is_reordered: Whether the same regions run in another order.
        layouts: Values that cross between regions in another layout.
        by_sizes: Of models with free dimensions, what only the first plan says of sizes, and what
            only the second does; nothing if neither says anything, or both the same.
    """

    changes: tuple[Change, ...]
    moves: tuple[MovedNodes, ...]
    cuts: tuple[Cut, ...]
    regions: tuple[int, int]
    is_reordered: bool
    layouts: tuple[Relayout, ...] = ()
    by_sizes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def is_empty(self) -> bool:
        """Whether both place the same nodes in the same way, whatever their identities."""
        has_sizes = any(self.by_sizes)
        return not (self.moves or self.cuts or self.is_reordered or self.layouts or has_sizes)


def compare_plans(
    before: Sequence[Assigned],
    now: Sequence[Assigned],
    identities: tuple[Identity | None, Identity | None] = (None, None),
    layouts: tuple[Mapping[str, str] | None, Mapping[str, str] | None] = (None, None),
    by_sizes: tuple[PlansBySizes | None, PlansBySizes | None] = (None, None),
) -> PlanDifference:
    """Return what is different between two plans.

    Args:
        before: The regions of the first, in the order in which they run.
        now: The regions of the second.
        identities: What each depends on, where it says so.
        layouts: By name, how values of each cross that are not plain, where it says so.
        by_sizes: Which plan is for which sizes, where it says so.
    """
    first, second = _places(before), _places(now)
    moves: list[MovedNodes] = []
    for name in dict.fromkeys((*first, *second)):
        here, there = first.get(name), second.get(name)
        a = None if here is None else before[here].target
        b = None if there is None else now[there].target
        if a == b:
            moves.append(MovedNodes((), None, None))  # ends a row
        elif moves and moves[-1].nodes and (moves[-1].before, moves[-1].now) == (a, b):
            moves[-1] = MovedNodes((*moves[-1].nodes, name), a, b)
        else:
            moves.append(MovedNodes((name,), a, b))
    given = [identity for identity in identities if identity is not None]
    cuts = (*_cuts(before, second, is_new=True), *_cuts(now, first, is_new=False))
    same = {frozenset(region.nodes) for region in before} == {
        frozenset(region.nodes) for region in now
    }
    orders = [[frozenset(region.nodes) for region in regions] for regions in (before, now)]
    return PlanDifference(
        changes=compare_identities(*given) if len(given) == len(identities) else (),
        moves=tuple(move for move in moves if move.nodes),
        cuts=cuts,
        regions=(len(before), len(now)),
        is_reordered=same and orders[0] != orders[1],
        layouts=_relayouts(*layouts),
        by_sizes=_other_decisions(*by_sizes),
    )


def _other_decisions(
    before: PlansBySizes | None, now: PlansBySizes | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what only the first of two says of sizes, and what only the second does."""
    first, second = (() if plans is None else plans.decisions for plans in (before, now))
    return (
        tuple(line for line in first if line not in second),
        tuple(line for line in second if line not in first),
    )


def _relayouts(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> tuple[Relayout, ...]:
    if before is None or now is None:
        return ()
    names = dict.fromkeys((*before, *now))
    changed = (Relayout(name, before.get(name), now.get(name)) for name in names)
    return tuple(relayout for relayout in changed if relayout.before != relayout.now)


def _places(regions: Sequence[Assigned]) -> dict[str, int]:
    return {name: i for i, region in enumerate(regions) for name in region.nodes}


def _cuts(regions: Sequence[Assigned], other: dict[str, int], *, is_new: bool) -> list[Cut]:
    """Return where neighbours inside a region are in two regions of the other plan."""
    return [
        Cut(a, b, is_new)
        for region in regions
        for a, b in zip(region.nodes, region.nodes[1:], strict=False)
        if a in other and b in other and other[a] != other[b]
    ]
