# SPDX-License-Identifier: Apache-2.0
"""The decision: every node covered once, each region with its target, and why.

These values refer to nodes by name and to targets by text, so that a package carries them and
`explain` needs no model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from intarsia.backends.values import Refusal
from intarsia.errors import ReasonCode

HOST = "host"
"""The reason of a node that runs on the host because no target takes it."""

STAND_IN = "in the host's place"
"""The reason of a node that the host does not take either, on the next complete target."""


CONTROL_FLOW = "plan"
"""In the place of a backend's name: the plan itself runs the region, by the programs of its bodies.
Its target is then the host."""

THE_PLAN = "the plan"
"""What runs such a region, for people."""

STEP = "control flow"
"""The reason of an If, Loop or Scan that the plan runs itself."""


def _is_slow(target: str) -> bool:
    """Tell whether a placed target is worth a warning."""
    from intarsia.target import PlacedTarget  # only people ask; a program runs without

    return PlacedTarget.parse(target).target.kind.is_slow


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """One node and why it is where it is.

    Attributes:
        name: The node's name.
        op_type: Its operator.
        why: `priority` (the first target that takes it), `fallback`, `pattern 'NAME'` (the first,
            by a pattern of its backend), `pin 'PATTERN=TARGET'`, `annotation`, either of these `of
            'NODE'` with which it shares a memory, `copy 'NODE' (SOURCE -> DESTINATION)`, `shape`
            (computed on the host), `'VALUE' cannot be copied`, `host` (no target takes it),
            `in the host's place` (nor does the host) or `control flow` (the plan runs it, by
            bodies that are placed apart).
        origins: Names of the nodes of the user's model that it stands for.
    """

    name: str
    op_type: str
    why: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacedRegion:
    """A region and where it runs.

    Attributes:
        target: Text of the placed target.
        device: Its run-time device, such as `cpu:0`.
        backend: Name of the backend.
        nodes: The region's nodes in topological order.
    """

    target: str
    device: str
    backend: str
    nodes: tuple[NodePlacement, ...]

    @property
    def runs_on(self) -> str:
        """Text of what runs it, for people: a target, or the plan itself."""
        return THE_PLAN if self.backend == CONTROL_FLOW else self.target

    @property
    def reason(self) -> str:
        """Why, over all its nodes, most frequent first."""
        counts = Counter(node.why for node in self.nodes)
        return ", ".join(
            why if len(counts) == 1 else f"{why} ({count})" for why, count in counts.most_common()
        )

    @property
    def is_slow(self) -> bool:
        """Whether it is on a target that is worth a warning."""
        return _is_slow(self.target)

    @property
    def operators(self) -> str:
        """Its operators with their counts, most frequent first."""
        counts = Counter(node.op_type for node in self.nodes)
        return ", ".join(
            op if count == 1 else f"{op} x{count}" for op, count in counts.most_common()
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Every region with its target, in the order in which they run.

    Attributes:
        policy: How it was found: `greedy`, `manual` or `collage`.
        targets: Text of every target that was asked for, in the user's order; where nobody gave
            one, in that of the default target.
        fallback: Text of the target that takes what no other took.
        regions: Every node is in exactly one.
        refusals: Why nodes did not go to a target that comes before theirs.
        passed_over: Where the user gave no order, for each target that does not go first why not.
        host: Text of the host; it is one of the targets, or takes what none of them takes.
    """

    policy: str
    targets: tuple[str, ...]
    fallback: str
    regions: tuple[PlacedRegion, ...]
    refusals: tuple[Refusal, ...] = ()
    passed_over: tuple[str, ...] = ()
    host: str = ""

    @property
    def node_count(self) -> int:
        """How many nodes are placed."""
        return sum(len(region.nodes) for region in self.regions)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The targets that have nodes because neither a target nor the host takes them."""
        used = dict.fromkeys(one.target for one in self.regions if one.backend != CONTROL_FLOW)
        return tuple(target for target in used if target not in (*self.targets, self.host))

    def coverage(self) -> dict[str, int]:
        """Return how many nodes each target has, in the user's order; targets without any too.

        What has nodes beside them comes after them: so does the plan, if it runs some itself.
        """
        counts = dict.fromkeys(self.targets, 0)
        for region in self.regions:
            counts[region.runs_on] = counts.get(region.runs_on, 0) + len(region.nodes)
        return counts

    @property
    def shortfall(self) -> str | None:
        """One line if something that the user asked for did not happen, else None.

        What the user asked for by a pin or an exclusion did happen, and so did the cheapest plan
        if nothing but costs kept nodes away; that something stands in for the host, nobody asked
        for. A node counts once, for the first target that refused it.
        """
        stand_ins = self.stand_ins
        unwanted: dict[str, Refusal] = {}
        for refusal in self.refusals:
            if refusal.code is not ReasonCode.USER or stand_ins:
                unwanted.setdefault(refusal.node, refusal)
        if all(refusal.code is ReasonCode.COST for refusal in unwanted.values()):
            return None
        first, *others = (
            f"{count} on {target}{self._role(target)}"
            for target, count in self.coverage().items()
            if count or target != self.fallback
        )
        first = first.replace(" on ", f" of {self.node_count} nodes on ", 1)
        return f"{'; '.join((first, *others))}: {_reasons(tuple(unwanted.values()))}"

    def _role(self, target: str) -> str:
        """Return why a target that was not asked for has nodes; nothing of one that was."""
        if target in self.targets or target == THE_PLAN:
            return ""
        if target == self.host:
            return " (the host)"
        return f" (in place of the host, {self.host}{', and slow' if _is_slow(target) else ''})"

    def __str__(self) -> str:
        lines = [
            f"{index:4d}  {len(region.nodes):5d} nodes  {region.runs_on}  [{region.device}]  "
            f"{region.reason}  ({region.operators})"
            for index, region in enumerate(self.regions)
        ]
        return "\n".join(lines) if lines else "no nodes"


def _reasons(refusals: tuple[Refusal, ...]) -> str:
    by_code: dict[ReasonCode, Counter[str]] = {}
    for refusal in refusals:
        by_code.setdefault(refusal.code, Counter())[refusal.op_type] += 1
    return ", ".join(
        f"{code} {counts.total()} ({_operators(counts)})" for code, counts in by_code.items()
    )


def _operators(counts: Counter[str], most: int = 3) -> str:
    names = [op_type for op_type, _ in counts.most_common()]
    return ", ".join(names[:most] + (["..."] if len(names) > most else []))
