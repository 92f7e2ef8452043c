# SPDX-License-Identifier: Apache-2.0
"""From an assignment to a plan that still has to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.graph.region import Region
from intarsia.place.assign import Assignment, Policy
from intarsia.place.capability import Capability
from intarsia.place.layouts import Layouts, Side, choose_layouts
from intarsia.place.schedule import ScheduledRegion, make_plan
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import NodePlacement, PlacedRegion, Placement
from intarsia.plan.plan import Plan

if TYPE_CHECKING:
    from intarsia.backends.passes import Piece
    from intarsia.graph.graph import Graph
    from intarsia.place.devices import DevicePlan
    from intarsia.target import CompilationConfig


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan with the regions that are to be compiled for it.

    Attributes:
        plan: Refers to the regions by position.
        regions: In the order in which they run.
        positions: By region, the position of its target in `capabilities`.
        capabilities: One per target of the machine.
        is_shared: Whether several runtimes take turns in what it is run in.
        layouts: How values lie between regions that are not plain there.
    """

    plan: Plan
    regions: tuple[Region, ...]
    positions: tuple[int, ...]
    capabilities: tuple[Capability, ...]
    is_shared: bool
    layouts: Layouts


def make_draft(
    graph: Graph,
    config: CompilationConfig,
    capabilities: Sequence[Capability],
    devices: DevicePlan,
    assignment: Assignment,
    pieces: Sequence[Piece],
    policy: Policy,
    rewrites: Sequence[str],
) -> Draft:
    """Return the plan that runs the pieces of an assigned graph as regions.

    Args:
        graph: What is placed.
        config: The machine.
        capabilities: One per target of the machine, in its order.
        devices: The memory of each target, and of inputs and outputs that are not the host's.
        assignment: The target of each node.
        pieces: The nodes of each region, in the order in which they run.
        policy: How it was found.
        rewrites: What was done to the model before.
    """
    by_target = {item.target: position for position, item in enumerate(capabilities)}
    positions = tuple(by_target[piece.target] for piece in pieces)
    domains = list(dict.fromkeys((HOST_DOMAIN, *devices.borders.values())))
    scheduled: list[ScheduledRegion] = []
    sides: list[Side] = []
    placed: list[PlacedRegion] = []
    for position, piece in zip(positions, pieces, strict=True):
        capability = capabilities[position]
        domain = devices.domains[capability.target]
        if domain not in domains:
            domains.append(domain)
        region = Region.of(graph, piece.nodes)
        scheduled.append(ScheduledRegion(region, domains.index(domain)))
        sides.append(Side(region, capability, domain))
        members = (graph.nodes[node] for node in piece.nodes)
        placed.append(
            PlacedRegion(
                str(capability.target),
                domain_text(domain),
                capability.backend.name,
                tuple(
                    NodePlacement(node.name, node.op_type, assignment.whys[node.id], node.origins)
                    for node in members
                ),
            )
        )
    placement = Placement(
        policy.value,
        tuple(str(target) for target in config.targets),
        str(config.fallback),
        tuple(placed),
        assignment.refusals,
        assignment.passed_over,
        str(config.placed_host),
    )
    layouts = choose_layouts(graph, sides)
    plan = make_plan(
        graph,
        scheduled,
        placement,
        [domain_text(domain) for domain in domains],
        rewrites,
        layouts,
        {value: domains.index(domain) for value, domain in devices.borders.items()},
    )
    regions = tuple(item.region for item in scheduled)
    return Draft(plan, regions, positions, tuple(capabilities), plan.is_mixed, layouts)
