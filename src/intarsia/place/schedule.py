# SPDX-License-Identifier: Apache-2.0
"""From an assignment to a plan that is still to be compiled: tensors, copies, arenas, layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.graph.arena import assign_offsets
from intarsia.graph.region import Region
from intarsia.graph.state import BLOCKS, PLAIN, blocked_shape
from intarsia.place.assign import Assignment, Policy
from intarsia.place.capability import Capability
from intarsia.place.layouts import Layouts, Side, choose_layouts
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import NodePlacement, PlacedRegion, Placement
from intarsia.plan.plan import HOST, CopyStep, Plan, PlanStep, PlanTensor, RegionStep, Storage

if TYPE_CHECKING:
    from intarsia.backends.values import Piece
    from intarsia.graph.graph import Graph
    from intarsia.place.devices import DevicePlan
    from intarsia.target import CompilationConfig


@dataclass(frozen=True, slots=True)
class ScheduledRegion:
    """A region with the position of its memory domain in the plan's devices."""

    region: Region
    device: int


def make_plan(
    graph: Graph,
    regions: Sequence[ScheduledRegion],
    placement: Placement,
    devices: Sequence[str],
    rewrites: Sequence[str] = (),
    layouts: Mapping[int, str] | None = None,
    borders: Mapping[int, int] | None = None,
) -> Plan:
    """Return the plan that runs regions in the given order.

    A value is copied to another memory domain at most once. Values that live in an arena share
    its bytes when they are not needed at the same time.

    Args:
        graph: Where the regions are from.
        regions: In an order in which they can run; `placement.regions` in the same order.
        placement: What the plan carries out.
        devices: Text of each memory domain; host memory first.
        rewrites: What was done to the model before.
        layouts: By value id, how what is not plain lies between regions.
        borders: By value id, the memory of an input or output that is not the host's.
    """
    draft = _Draft(graph, layouts or {}, borders or {})
    for value_id in graph.inputs:
        draft.place(value_id, draft.border(value_id), Storage.INPUT)
    for position, scheduled in enumerate(regions):
        inputs = tuple(draft.at(value_id, scheduled.device) for value_id in scheduled.region.inputs)
        outputs = tuple(
            draft.define(value_id, scheduled.device) for value_id in scheduled.region.outputs
        )
        draft.steps.append(RegionStep(position, inputs, outputs))
    outputs = tuple(draft.at_output(value_id) for value_id in graph.outputs)
    arena_bytes = tuple(draft.fill_arena(device) for device in range(len(devices)))
    return Plan(
        placement=placement,
        devices=tuple(devices),
        tensors=tuple(draft.tensors),
        steps=tuple(draft.steps),
        inputs=tuple(draft.tensor_of[one, draft.border(one)] for one in graph.inputs),
        outputs=outputs,
        arena_bytes=arena_bytes,
        rewrites=tuple(rewrites),
    )


@dataclass(slots=True)
class _Draft:
    """A plan that is being written."""

    graph: Graph
    layouts: Mapping[int, str]
    borders: Mapping[int, int]
    tensors: list[PlanTensor] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)
    tensor_of: dict[tuple[int, int], int] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    outputs: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.outputs = frozenset(self.graph.outputs)

    def border(self, value_id: int) -> int:
        """Return the memory in which an input is given or an output taken."""
        return self.borders.get(value_id, HOST)

    def place(self, value_id: int, device: int, storage: Storage) -> int:
        value = self.graph.values[value_id]
        shape = value.shape if value.is_static else None
        layout = self.layouts.get(value_id, PLAIN)
        if shape is not None:
            shape = blocked_shape(shape, BLOCKS[layout])
        self.tensors.append(
            PlanTensor(value.name, value.dtype, shape, device, storage, layout=layout)
        )
        position = len(self.tensors) - 1
        self.tensor_of[value_id, device] = position
        self.home.setdefault(value_id, position)
        return position

    def define(self, value_id: int, device: int) -> int:
        value = self.graph.values[value_id]
        if not value.is_static or value.dtype == "string":
            storage = Storage.SLOT
        elif device == self.border(value_id) and value_id in self.outputs:
            storage = Storage.OUTPUT
        else:
            storage = Storage.ARENA
        return self.place(value_id, device, storage)

    def at(self, value_id: int, device: int) -> int:
        """Return the tensor of a value in a domain, with a copy step if it is not there yet."""
        present = self.tensor_of.get((value_id, device))
        if present is not None:
            return present
        source = self.home[value_id]
        is_output = device == self.border(value_id) and value_id in self.outputs
        storage = Storage.OUTPUT if is_output else Storage.ARENA
        destination = self.place(value_id, device, storage)
        nbytes = self.tensors[destination].spec.nbytes
        self.steps.append(CopyStep(source, destination, nbytes))
        return destination

    def at_output(self, value_id: int) -> int:
        if self.graph.values[value_id].constant is not None:
            present = self.tensor_of.get((value_id, HOST))
            return self.place(value_id, HOST, Storage.CONSTANT) if present is None else present
        return self.at(value_id, self.border(value_id))

    def fill_arena(self, device: int) -> int:
        """Give every arena tensor of a device its offset and return the arena's size, in bytes."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for when, step in enumerate(self.steps):
            if isinstance(step, CopyStep):
                used: tuple[int, ...] = (step.source, step.destination)
            else:
                used = (*step.inputs, *step.outputs)
            for position in used:
                tensor = self.tensors[position]
                if tensor.device == device and tensor.storage is Storage.ARENA:
                    first.setdefault(position, when)
                    last[position] = when
        sizes = {position: self.tensors[position].spec.nbytes for position in first}
        offsets, size = assign_offsets(
            [(first[position], last[position], sizes[position]) for position in first]
        )
        for position, offset in zip(first, offsets, strict=True):
            self.tensors[position] = replace(self.tensors[position], offset=offset)
        return size


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
