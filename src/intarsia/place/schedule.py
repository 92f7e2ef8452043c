# SPDX-License-Identifier: Apache-2.0
"""From an assignment to a plan that is still to be compiled: tensors, copies, arenas, layouts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.backends.calling import calling
from intarsia.backends.values import Candidate
from intarsia.errors import IntarsiaError, InternalError
from intarsia.extents import Expression, Symbol, late_symbols, to_data
from intarsia.graph.late_sizes import needed_by
from intarsia.graph.per_graph import per_graph
from intarsia.graph.region import Region
from intarsia.graph.state import BLOCKS, PLAIN, blocked_shape, can_block
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import CONTROL_FLOW, NodePlacement, PlacedRegion, Placement
from intarsia.plan.plan import (
    HOST,
    CopyStep,
    LateSize,
    Plan,
    PlanStep,
    PlanTensor,
    RegionStep,
    TensorStorage,
    fill_arena,
)
from intarsia.plan.wiring import describe_wiring

if TYPE_CHECKING:
    from intarsia.backends.values import ListStates
    from intarsia.extents import Data
    from intarsia.graph.graph import Graph, Value
    from intarsia.graph.state import TensorState
    from intarsia.place.decide import Decision
    from intarsia.place.setting import Bodies, Capability, Setting
    from intarsia.target.placed import MemoryDomain, VirtualDevice


_SIZED = -1
"""In the place of a memory: a tensor of the host whose size code is given before it runs."""


def _is_late(value: Value) -> bool:
    """Tell whether the data decides the size of a value, which has expressions for it."""
    return value.extents is not None and value.shape is None and value.dtype != "string"


@dataclass(slots=True)
class _PlanWriter:
    """The tensors and steps of a plan that is being written.

    A value is copied to another memory domain at most once. Values that live in an arena share
    its bytes when they are not needed at the same time. A value whose size the data decides is in a
    slot, and in an arena as well for code that is given sizes before it runs.

    Attributes:
        graph: What the plan runs.
        layouts: By value id, how what is not plain lies between regions.
        borders: By value id, the position of the memory of an input or output that is not the
            host's.
    """

    graph: Graph
    layouts: Mapping[int, str]
    borders: Mapping[int, int]
    tensors: list[PlanTensor] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)
    tensor_of: dict[tuple[int, int], int] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    extents: dict[int, tuple[int | Data, ...]] = field(default_factory=dict)
    needed: set[Symbol] = field(default_factory=set)

    def __post_init__(self) -> None:
        for value_id in self.graph.inputs:
            self.place(value_id, self.border(value_id), TensorStorage.INPUT)

    def run(self, region: Region, device: int, *, is_sized: bool = False) -> None:
        """Add the step that runs the next region, after the copies that it needs.

        Args:
            region: What runs.
            device: Position of its memory.
            is_sized: Whether its code is given the sizes that the data decides before it runs.
        """
        sizes = needed_by(self.graph, region.nodes) if is_sized else frozenset()
        inputs = tuple(self.at(i, device, is_sized=is_sized) for i in region.inputs)
        outputs = tuple(self.define(i, device, sizes) for i in region.outputs)
        position = sum(isinstance(step, RegionStep) for step in self.steps)
        names = tuple(sorted(symbol.name for symbol in sizes))
        self.steps.append(RegionStep(position, inputs, outputs, names))
        self.needed |= sizes

    def finish(self, placement: Placement, devices: Sequence[str], rewrites: Sequence[str]) -> Plan:
        """Return the plan, when every region has its step.

        Args:
            placement: What it carries out; its regions are in the order of the steps.
            devices: Text of each memory domain; host memory first.
            rewrites: What was done to the model before.
        """
        outputs = tuple(self.at_output(value_id) for value_id in self.graph.outputs)
        arena_bytes = tuple(
            fill_arena(self.tensors, self.steps, device) for device in range(len(devices))
        )
        return Plan(
            placement=placement,
            devices=tuple(devices),
            tensors=tuple(self.tensors),
            steps=tuple(self.steps),
            inputs=tuple(self.tensor_of[one, self.border(one)] for one in self.graph.inputs),
            outputs=outputs,
            arena_bytes=arena_bytes,
            rewrites=tuple(rewrites),
            extents=self.extents,
            late=tuple(self.late()),
            wiring=describe_wiring(self.graph.nodes, self.graph.values, self.graph.outputs),
        )

    def late(self) -> Iterator[LateSize]:
        """Yield the sizes that code is given while it runs, each with the slot that tells it."""
        waiting = {Expression.of(symbol): symbol for symbol in self.needed}
        for (value_id, device), position in self.tensor_of.items():
            for axis, extent in enumerate(self.graph.values[value_id].extents or ()):
                symbol = (
                    None
                    if device == _SIZED or isinstance(extent, int)
                    else waiting.pop(extent, None)
                )
                if symbol is not None:
                    yield LateSize(symbol.name, position, axis, symbol.high)
        if waiting:
            raise InternalError(f"nothing tells the size {', '.join(map(str, waiting))}")

    def border(self, value_id: int) -> int:
        """Return the memory in which an input is given or an output taken."""
        return self.borders.get(value_id, HOST)

    def place(
        self, value_id: int, device: int, storage: TensorStorage, *, is_sized: bool = False
    ) -> int:
        value = self.graph.values[value_id]
        shape = value.shape if value.is_static else None
        layout = self.layouts.get(value_id, PLAIN)
        if shape is not None:
            shape = blocked_shape(shape, BLOCKS[layout])
        self.tensors.append(
            PlanTensor(value.name, value.dtype, shape, device, storage, layout=layout)
        )
        position = len(self.tensors) - 1
        if value.extents is not None and (shape is not None or is_sized):
            self.extents[position] = tuple(
                one if isinstance(one, int) else to_data(one) for one in value.extents
            )
        self.tensor_of[value_id, _SIZED if is_sized else device] = position
        self.home.setdefault(value_id, position)
        return position

    def define(self, value_id: int, device: int, sizes: Collection[Symbol] = ()) -> int:
        value = self.graph.values[value_id]
        if _is_late(value) and late_symbols(value.extents or ()) <= frozenset(sizes):
            return self.place(value_id, device, TensorStorage.ARENA, is_sized=True)
        if not value.is_static or value.dtype == "string":
            storage = TensorStorage.SLOT
        elif device == self.border(value_id) and value_id in self.graph.output_set:
            storage = TensorStorage.OUTPUT
        else:
            storage = TensorStorage.ARENA
        return self.place(value_id, device, storage)

    def at(self, value_id: int, device: int, *, is_sized: bool = False) -> int:
        """Return the tensor of a value in a domain, with a copy step if it is not there yet."""
        is_late = _is_late(self.graph.values[value_id])
        is_sized = is_sized and is_late
        present = self.tensor_of.get((value_id, _SIZED if is_sized else device))
        if present is not None:
            return present
        source = self.home[value_id]
        is_output = device == self.border(value_id) and value_id in self.graph.output_set
        storage = TensorStorage.OUTPUT if is_output else TensorStorage.ARENA
        if is_late:
            storage = TensorStorage.ARENA if is_sized else TensorStorage.SLOT
        destination = self.place(value_id, device, storage, is_sized=is_sized)
        nbytes = self.tensors[destination].spec.nbytes
        self.steps.append(CopyStep(source, destination, nbytes))
        return destination

    def at_output(self, value_id: int) -> int:
        if self.graph.values[value_id].constant is not None:
            present = self.tensor_of.get((value_id, HOST))
            return (
                self.place(value_id, HOST, TensorStorage.CONSTANT) if present is None else present
            )
        return self.at(value_id, self.border(value_id))


@dataclass(frozen=True, slots=True)
class AssignedRegion:
    """A region with the target that runs it.

    Attributes:
        region: What runs.
        capability: Its target and backend.
        domain: The memory in which its tensors lie.
        bodies: Of a node that the plan runs itself, its bodies.
    """

    region: Region
    capability: Capability
    domain: MemoryDomain
    bodies: Bodies | None = None


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A plan with the regions that are to be compiled for it.

    Attributes:
        plan: Refers to the regions by position.
        regions: In the order in which they run.
        is_shared: Whether several runtimes take turns in what it is run in.
        layouts: How values lie between regions that are not plain there.
    """

    plan: Plan
    regions: tuple[AssignedRegion, ...]
    is_shared: bool
    layouts: Layouts

    @property
    def num_nodes(self) -> int:
        """Nodes of all regions."""
        return sum(len(assigned.region) for assigned in self.regions)


def make_draft(setting: Setting, decision: Decision, *, is_frozen: bool = False) -> PlanDraft:
    """Return the plan that carries out a decision, still to be compiled.

    Args:
        setting: The model and the machine.
        decision: Where its nodes run, and in which regions.
        is_frozen: Whether nothing that was measured on this machine may change its layouts.
    """
    graph, config, constraints = setting.graph, setting.config, setting.constraints
    capabilities = {
        one.target: replace(one, context=replace(one.context, is_frozen=is_frozen))
        for one in setting.capabilities
    }
    regions = tuple(
        AssignedRegion(
            Region.of(graph, piece.nodes),
            capabilities[piece.target],
            constraints.domains[piece.target],
            setting.bodies[piece.nodes[0]] if piece.nodes[0] in decision.assignment.steps else None,
        )
        for piece in decision.pieces
    )
    ends = constraints.borders
    domains = list(
        dict.fromkeys((HOST_DOMAIN, *ends.values(), *(assigned.domain for assigned in regions)))
    )
    layouts = choose_layouts(regions)
    writer = _PlanWriter(
        graph, layouts, {value: domains.index(domain) for value, domain in ends.items()}
    )
    for assigned in regions:
        is_sized = assigned.capability.backend.takes_late and assigned.bodies is None
        writer.run(assigned.region, domains.index(assigned.domain), is_sized=is_sized)
    assignment = decision.assignment
    placement = Placement(
        decision.policy.value,
        tuple(str(target) for target in config.targets),
        str(config.fallback),
        tuple(_placed(assigned, assignment.whys) for assigned in regions),
        assignment.refusals,
        assignment.passed_over,
        str(config.placed_host),
    )
    devices = [domain_text(domain) for domain in domains]
    plan = writer.finish(placement, devices, setting.rewrites)
    return PlanDraft(plan, regions, plan.is_mixed, layouts)


def _placed(assigned: AssignedRegion, whys: Sequence[str]) -> PlacedRegion:
    """Return what `explain` says of a region.

    Args:
        assigned: The region and its target.
        whys: By node id, the reason in words.
    """
    nodes = (assigned.region.graph.nodes[node] for node in assigned.region.nodes)
    return PlacedRegion(
        str(assigned.capability.target),
        domain_text(assigned.domain),
        assigned.capability.backend.name if assigned.bodies is None else CONTROL_FLOW,
        tuple(
            NodePlacement(node.name, node.op_type, whys[node.id], node.origins) for node in nodes
        ),
    )


logger = logging.getLogger("intarsia")

Layouts = Mapping[int, str]
"""Layouts of the values that are not plain, by value id."""


def choose_layouts(regions: Sequence[AssignedRegion]) -> dict[int, str]:
    """Return the layout of each value between regions that is not plain.

    Of several layouts that all sides list, the one that its maker likes best is taken.

    Args:
        regions: All regions of a plan, or some: what others read is plain, and so are inputs and
            outputs of the graph that they are of.
    """
    if not regions:
        return {}
    graph = regions[0].region.graph
    nodes = frozenset(node for assigned in regions for node in assigned.region.nodes)
    makers = {value: i for i, assigned in enumerate(regions) for value in assigned.region.outputs}
    readers: dict[int, list[int]] = {}
    for i, assigned in enumerate(regions):
        for value in assigned.region.inputs:
            readers.setdefault(value, []).append(i)
    layouts: dict[int, str] = {}
    for value, maker in makers.items():
        ends = (maker, *readers.get(value, ()))
        if len(ends) == 1 or value in graph.output_set or not may_block(graph.values[value]):
            continue
        if not nodes.issuperset(graph.values[value].consumers):
            continue
        if any(regions[i].capability.backend.states is None or regions[i].bodies for i in ends):
            continue
        if len({regions[i].domain for i in ends}) > 1:
            continue
        liked = list_layouts(regions[maker].region, regions[maker].capability).get(value, ())
        for i in ends[1:]:
            if liked:  # asking may take a while
                others = list_layouts(regions[i].region, regions[i].capability).get(value, ())
                liked = tuple(layout for layout in liked if layout in others)
        if liked:
            layouts[value] = liked[0]
    return layouts


def may_block(value: Value) -> bool:
    """Tell whether a value can lie in some shared blocks of channels."""
    if not value.is_static or value.is_free or value.shape is None or not value.is_tensor:
        return False
    return any(can_block(value.dtype, value.shape, block) for block in BLOCKS.values())


def list_layouts(region: Region, capability: Capability) -> Mapping[int, tuple[str, ...]]:
    """Return the shared layouts, other than plain, that a region may have for its border's values.

    They are by value id, what its backend likes best first. A backend that fails here gets its
    tensors plain, with a warning. Answers are kept with the graph, and regions that are written
    alike share them.
    """
    if capability.backend.states is None:
        return {}
    context = capability.context
    kept = _known_layouts(region.graph)
    how = (str(capability.target), context.num_threads, context.is_frozen)
    found = kept.get((region.bits, *how))
    if found is None:
        alike = (_wiring(region), *how)
        if alike not in kept:
            kept[alike] = _ask(region, capability, capability.backend.states)
        found = kept[region.bits, *how] = kept[alike]
    return dict(zip((*region.inputs, *region.outputs), found, strict=True))


@per_graph
def _known_layouts(_graph: Graph) -> dict[object, tuple[tuple[str, ...], ...]]:
    """By a region, or how it is wired, and the backend that was asked: its border's layouts."""
    return {}


@per_graph
def _failed_targets(_graph: Graph) -> set[VirtualDevice]:
    return set()


def _ask(
    region: Region,
    capability: Capability,
    states: ListStates,
) -> tuple[tuple[str, ...], ...]:
    """Return the layouts that a backend lists for each input and output of a region."""
    backend, context, graph = capability.backend, capability.context, region.graph
    candidate = Candidate.plain(region, capability.target)
    plain = (*candidate.inputs, *candidate.outputs)
    found: list[list[str]] = [[] for _ in plain]
    try:
        with calling(backend.name, context, "when asked for layouts of a region's border"):
            for given, made in states(candidate, context):
                listed = *_of_side(given, candidate.inputs), *_of_side(made, candidate.outputs)
                for layouts, state, usual in zip(found, listed, plain, strict=True):
                    is_new = _is_shared(state, usual) and state.layout not in layouts
                    if is_new and state.layout in BLOCKS:
                        layouts.append(state.layout)
    except InternalError:
        raise
    except IntarsiaError as error:
        told = _failed_targets(graph)
        if capability.target not in told:  # once is enough
            told.add(capability.target)
            logger.warning("borders of %s are plain: %s", capability.target, error.message)
        return tuple(() for _ in plain)
    return tuple(
        tuple(layout for layout in layouts if _fits(graph, value, layout))
        for value, layouts in zip((*region.inputs, *region.outputs), found, strict=True)
    )


def _of_side(
    states: Sequence[TensorState], plain: Sequence[TensorState]
) -> tuple[TensorState, ...]:
    """Return the states of one side of a border, one for each of its tensors."""
    return tuple(state for state, _ in zip(states, plain, strict=True))


def _wiring(region: Region) -> tuple[object, ...]:
    """Return a key that only regions have that are alike node by node and value by value."""
    from intarsia.graph.signature import constant_digest, node_signature

    graph, constants = region.graph, frozenset(region.constants)
    numbers = {value: position for position, value in enumerate(region.inputs)}
    types = [(graph.values[value].dtype, graph.values[value].shape) for value in region.inputs]
    rows: list[object] = []
    for node in region.nodes:
        signature = node_signature(graph, node, content=False)
        for read in (*graph.nodes[node].inputs, *signature.captured):
            if read in constants:
                rows.append(constant_digest(graph, read, content=False))
            else:
                rows.append(numbers[read] if read >= 0 else -1)
        for made in graph.nodes[node].outputs:
            numbers[made] = len(numbers)
        rows.append(signature.digest)
    return (*types, *rows, *(numbers[value] for value in region.outputs))


def _is_shared(state: TensorState, plain: TensorState) -> bool:
    """Tell whether a state differs from the plain one in a shared layout and in nothing else."""
    return not state.runtime and state.layout != PLAIN and replace(state, layout=PLAIN) == plain


def _fits(graph: Graph, value: int, layout: str) -> bool:
    one = graph.values[value]
    return can_block(one.dtype, one.shape or (), BLOCKS.get(layout, 0))


def candidate_of(assigned: AssignedRegion, layouts: Layouts) -> Candidate:
    """Return a region as a candidate whose border's tensors lie as a plan has them."""
    region, plain = assigned.region, Candidate.plain(assigned.region, assigned.capability.target)
    if layouts.keys().isdisjoint((*region.inputs, *region.outputs)):
        return plain
    return replace(
        plain,
        inputs=_states(region.inputs, plain.inputs, layouts),
        outputs=_states(region.outputs, plain.outputs, layouts),
    )


def _states(
    values: Sequence[int], states: Sequence[TensorState], layouts: Layouts
) -> tuple[TensorState, ...]:
    return tuple(
        replace(state, layout=layouts.get(value, PLAIN))
        for value, state in zip(values, states, strict=True)
    )


def border_text(candidate: Candidate) -> str:
    """Return the layouts of a candidate's border as a key: empty if all of it is plain."""
    sides = [[state.layout for state in some] for some in (candidate.inputs, candidate.outputs)]
    if all(layout == PLAIN for side in sides for layout in side):
        return ""
    return " -> ".join(",".join(side) for side in sides)
