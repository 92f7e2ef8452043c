# SPDX-License-Identifier: Apache-2.0
"""Chooses a target for every node: by pins, then by policy or search; keeps what must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from intarsia.backends.values import Refusal
from intarsia.errors import PlacementError, ReasonCode, UnsupportedError
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import HOST, STAND_IN, STEP

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node
    from intarsia.place.constraints import Constraints, MemoryGroup, Pin
    from intarsia.place.setting import Capability, Setting
    from intarsia.target import CompilationConfig, PlacedTarget
    from intarsia.target.placed import MemoryDomain

_SHOWN = 8

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft")

UNTYPED = "next to a value of unknown type"


class Policy(StrEnum):
    """How nodes that no pin binds find their target."""

    GREEDY = "greedy"
    MANUAL = "manual"
    COLLAGE = "collage"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A target per node.

    Attributes:
        choices: By node id, the position in `config.targets`.
        whys: By node id, the reason in words.
        refusals: Why nodes did not go to a target that comes before theirs.
        passed_over: Where the user gave no order, for each target that does not go first why not.
        steps: Ids of the nodes that the plan runs itself, with bodies that are placed apart.
    """

    choices: tuple[int, ...]
    whys: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    passed_over: tuple[str, ...] = ()
    steps: frozenset[int] = frozenset()


def assign_targets(setting: Setting, order: Sequence[int] | None = None) -> Assignment:
    """Give each node the first target that takes it.

    A node that computes shapes goes to the host, else to the first target in the host's memory
    that takes it.

    Args:
        setting: The model and the machine. Its constraints are obeyed or refused, never bent.
        order: Positions of the machine's targets in the order in which they are asked, for nodes
            without a pin; None means the user's. See `target_order`.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node, or no memory some group; names every refusal.
    """
    given = range(len(setting.config.targets))
    order = (*(given if order is None else order), *range(len(given), len(setting.capabilities)))
    return _Assigner(setting, order).run()


def target_order(config: CompilationConfig, *first: int) -> list[int]:
    """Return the positions of a machine's targets: some first, the others as the user has them."""
    return [*first, *(i for i in range(len(config.targets)) if i not in first)]


def assign_as_chosen(
    setting: Setting, choices: Sequence[int], why: str, steps: frozenset[int] = frozenset()
) -> Assignment:
    """Return the assignment that a search found.

    Args:
        setting: The model and the machine.
        choices: By node id, the position of its target.
        why: The reason of every node without a pin.
        steps: Ids of the nodes that the plan runs itself.

    Raises:
        PlacementError: A pinned node's target does not take it, the choice bends a pin, or it
            parts nodes that have to share a memory.
        UnsupportedError: A target does not take, or must not have, what was chosen for it.
    """
    graph, capabilities, constraints = setting.graph, setting.capabilities, setting.constraints
    whys: list[str] = []
    refusals: list[Refusal] = []
    for node in graph.nodes:
        chosen = capabilities[choices[node.id]]
        if node.id in steps:
            whys.append(STEP)
            continue
        pin = constraints.pins.get(node.id)
        refusal = refusal_of(node, chosen, constraints)
        if pin is not None:
            if refusal is not None:
                raise _disobeyed(node, pin, [refusal])
            if chosen.target not in pin.targets:
                raise PlacementError(
                    f"the plan puts node {node.name!r} on {chosen.target} against {pin.why}",
                    node=node.name,
                    target=str(chosen.target),
                )
            whys.append(pin.why)
            continue
        if refusal is not None:
            raise _unsupported([node], [refusal], chosen.target)
        whys.append(why)
        refusals += [
            refusal_of(node, capability, constraints) or _too_dear(node, capability, chosen)
            for capability in capabilities[: choices[node.id]]
        ]
    domains = [constraints.domains[capabilities[position].target] for position in choices]
    _check_memory(graph, domains, memory_limits(constraints.domains))
    for group in constraints.groups:
        used = {domains[node] for node in group.nodes}
        if len(used) > 1 or (group.on_host and HOST_DOMAIN not in used):
            raise PlacementError(
                f"nodes around {group.value!r}, which cannot be copied, were chosen for several "
                f"memories: {', '.join(sorted(map(domain_text, used)))}",
                node=graph.nodes[group.nodes[0]].name,
            )
    return Assignment(tuple(choices), tuple(whys), tuple(refusals), steps=steps)


def _too_dear(node: Node, capability: Capability, chosen: Capability) -> Refusal:
    reason = f"the plan that is best as a whole runs it on {chosen.target}"
    return Refusal(node.name, node.op_type, str(capability.target), ReasonCode.COST, reason)


def refusal_of(node: Node, capability: Capability, constraints: Constraints) -> Refusal | None:
    """Return why a target cannot or must not have a node; pins aside."""
    words = constraints.exclusions.get(capability.target, {}).get(node.id)
    if words is not None:
        return Refusal(node.name, node.op_type, str(capability.target), ReasonCode.USER, words)
    return capability.refusals.get(node.id)


class _Assigner:
    """An assignment that is being made."""

    def __init__(self, setting: Setting, order: Sequence[int]) -> None:
        self.graph = setting.graph
        self.config = config = setting.config
        self.given = frozenset(config.targets)
        self.capabilities = setting.capabilities
        self.constraints = constraints = setting.constraints
        self.positions = {target: position for position, target in enumerate(setting.targets)}
        self.domains = [constraints.domains[target] for target in setting.targets]
        self.limits = memory_limits(constraints.domains)
        self.held: dict[MemoryDomain, dict[int, int]] = {domain: {} for domain in self.limits}
        self.fallback = self.positions[config.fallback]
        self.host = self.positions.get(config.placed_host, -1)
        self.order = list(order)
        self.choices: list[int] = []
        self.whys: list[str] = []
        self.refusals: list[Refusal] = []
        self.bodies = setting.bodies if self.host >= 0 else {}
        self.steps: set[int] = set()

    def run(self) -> Assignment:
        stranded = []
        for node in self.graph.nodes:
            found = self.choose(node)
            if found is None:
                stranded.append(node)
            self.choices.append(self.fallback if found is None else found)
            self.whys.append("" if found is None else self.why(node, found))
        if stranded:
            raise _unsupported(stranded, self.refusals, self.config.fallback)
        for group in self.constraints.groups:
            self.unite(group)
        for nodes in self.graph.tied:
            self.tie(nodes)
        if self.limits:
            _check_memory(self.graph, [self.domains[i] for i in self.choices], self.limits)
        steps = frozenset(self.steps)
        return Assignment(tuple(self.choices), tuple(self.whys), tuple(self.refusals), steps=steps)

    def choose(self, node: Node) -> int | None:
        """Return the first target that takes a node, or nothing; remember the refusals."""
        pin = self.constraints.pins.get(node.id)
        order = self.order
        if pin is not None:
            order = [self.positions[item] for item in pin.targets if item in self.positions]
        elif node.id in self.constraints.shapes:
            order = sorted(order, key=lambda i: (self.domains[i] != HOST_DOMAIN, i != self.host))
        refused: list[Refusal] = []
        if self.is_step(node, order):
            self.steps.add(node.id)
            return self.host
        for position in order:
            refusal = self.refusal(node, position) or self.overfull(node, position)
            if refusal is None:
                self.hold(node, self.domains[position])
                self.refusals += refused
                return position
            refused.append(refusal)
        if pin is not None:
            raise _disobeyed(node, pin, refused)
        self.refusals += refused
        return None

    def is_step(self, node: Node, order: Sequence[int]) -> bool:
        """Tell whether the plan runs a node itself, by its bodies.

        It does if the user said something of a node inside, if no target takes the node whole, or
        if one that comes before all of these takes something of the bodies; where nobody gave an
        order, the first that takes it whole has it.
        """
        bodies = self.bodies.get(node.id)
        if bodies is None:  # most nodes: the host is not asked of them, which may start a library
            return False
        host = refusal_of(node, self.capabilities[self.host], self.constraints)
        if host is not None and host.code is ReasonCode.USER:
            return False
        if bodies.is_pinned:
            return True
        for position in order:
            if self.refusal(node, position) is None:
                return False
            is_given = not self.config.reasons.is_detected
            if is_given and bodies.has_work(self.capabilities[position].target):
                return True
        return True

    def why(self, node: Node, position: int) -> str:
        if node.id in self.steps:
            return STEP
        pin = self.constraints.pins.get(node.id)
        if pin is not None:
            return pin.why
        if node.id in self.constraints.shapes and self.domains[position] == HOST_DOMAIN:
            return "shape"
        if self.is_stand_in(position):
            return STAND_IN
        if self.capabilities[position].target not in self.given:
            return HOST
        policy_why = "fallback" if position == self.fallback else "priority"
        return self.capabilities[position].whys.get(node.id, policy_why)

    def refusal(self, node: Node, position: int) -> Refusal | None:
        """Return why a target cannot or must not have a node.

        What the user keeps from the host, nothing has in its place.
        """
        if node.id in self.steps and position == self.host:
            return None
        refusal = refusal_of(node, self.capabilities[position], self.constraints)
        if refusal is None and self.host >= 0 and self.is_stand_in(position):
            kept = refusal_of(node, self.capabilities[self.host], self.constraints)
            if kept is not None and kept.code is ReasonCode.USER:
                return replace(kept, target=str(self.capabilities[position].target))
        return refusal

    def is_stand_in(self, position: int) -> bool:
        return position != self.host and self.capabilities[position].target not in self.given

    def overfull(self, node: Node, position: int) -> Refusal | None:
        """Return why a device has no room for a node's constants, if it has none."""
        domain = self.domains[position]
        limit = self.limits.get(domain)
        if limit is None:
            return None
        held = self.held[domain]
        constants = self.graph.constant_bytes((node.id,))
        more = sum(nbytes for value, nbytes in constants.items() if value not in held)
        left = limit - sum(held.values())
        if not more or more <= left:
            return None
        reason = (
            f"its constants take {more} B, and {ATTRIBUTE}={limit} leaves {left} on "
            f"{domain_text(domain)}"
        )
        target = str(self.capabilities[position].target)
        return Refusal(node.name, node.op_type, target, ReasonCode.USER, reason)

    def hold(self, node: Node, domain: MemoryDomain) -> None:
        """Note that a node's constants are on a device, if its memory is limited."""
        if domain in self.held:
            self.held[domain].update(self.graph.constant_bytes((node.id,)))

    def tie(self, nodes: Sequence[int]) -> None:
        """Give nodes that one region must have to the first target that takes all of them."""
        united = {node for group in self.constraints.groups for node in group.nodes}
        memory = next((self.domains[self.choices[node]] for node in nodes if node in united), None)
        for position in self.order:
            if memory in (None, self.domains[position]) and all(
                self.first(node, [position]) is not None for node in nodes
            ):
                for node in nodes:
                    if self.choices[node] != position:
                        self.choices[node] = position
                        self.whys[node] = UNTYPED
                return
        names = [self.graph.nodes[node].name for node in nodes]
        raise UnsupportedError(
            f"no target takes all {len(nodes)} nodes that exchange values of unknown type: "
            + ", ".join(map(repr, names[:_SHOWN])),
            refusals=self.refusals,
            node=names[0],
            target=str(self.config.fallback),
            hint="declare the types in the model's value_info, or add onnxruntime, with "
            "-custom_ops=PATH for operators of a library",
        )

    def unite(self, group: MemoryGroup) -> None:
        """Move a group that was given several memories to the first one that takes all of it."""
        used = {self.domains[self.choices[node]] for node in group.nodes}
        if len(used) == 1 and not (group.on_host and HOST_DOMAIN not in used):
            return
        order = (
            [HOST_DOMAIN] if group.on_host else dict.fromkeys(self.domains[i] for i in self.order)
        )
        for domain in order:
            members = [i for i in self.order if self.domains[i] == domain]
            found = {node: self.first(node, members) for node in group.nodes}
            if None not in found.values():
                for node, position in found.items():
                    if position is not None and position != self.choices[node]:
                        self.choices[node] = position
                        self.whys[node] = f"{group.value!r} cannot be copied"
                return
        first = self.graph.nodes[group.nodes[0]]
        raise UnsupportedError(
            f"no device takes all {len(group.nodes)} nodes around {group.value!r}, which cannot "
            f"be copied; they were given {', '.join(sorted(map(domain_text, used)))}",
            refusals=self.refusals,
            node=first.name,
            target=str(self.config.fallback),
            hint="add a target in the host's memory that takes them, such as onnxruntime",
        )

    def first(self, node_id: int, positions: Sequence[int]) -> int | None:
        """Return the first of some targets that may have a node and takes it."""
        pin = self.constraints.pins.get(node_id)
        node = self.graph.nodes[node_id]
        for position in positions:
            is_legal = pin is None or self.capabilities[position].target in pin.targets
            if is_legal and self.refusal(node, position) is None:
                return position
        return None


def _disobeyed(node: Node, pin: Pin, refused: Sequence[Refusal]) -> PlacementError:
    if not refused:  # the host, which was not asked for and is not there
        target = str(pin.targets[0])
        return PlacementError(
            f"{pin.why} cannot be followed: no backend here serves {target}",
            node=node.name,
            target=target,
            hint="add a target in the host's memory, such as reference",
        )
    reasons = "; ".join(f"{item.target}: {item.code}: {item.reason}" for item in refused)
    return PlacementError(
        f"{pin.why} cannot be followed: node {node.name!r} ({node.op_type}) does not run on "
        f"{reasons}",
        node=node.name,
        target=refused[0].target,
        hint=refused[0].hint or f"narrow the pattern so that it leaves {node.name!r} out",
    )


def _unsupported(
    stranded: Sequence[Node], refusals: Sequence[Refusal], fallback: PlacedTarget
) -> UnsupportedError:
    names = {node.name for node in stranded}
    ours = [refusal for refusal in refusals if refusal.node in names]
    first = stranded[0]
    shown = "\n".join(f"  {refusal}" for refusal in ours[:_SHOWN])
    more = f"\n  ... and {len(ours) - _SHOWN} more refusals" if len(ours) > _SHOWN else ""
    return UnsupportedError(
        f"node {first.name!r} ({first.op_type}) has no target that takes it"
        + (f", nor have {len(stranded) - 1} other nodes" if len(stranded) > 1 else "")
        + f":\n{shown}{more}",
        refusals=ours,
        node=first.name,
        target=str(fallback),
        hint=_way_out(first, ours),
    )


def _way_out(node: Node, refusals: Sequence[Refusal]) -> str:
    """Return what to do about a node that nothing takes."""
    missing = (item.hint for item in refusals if item.code is ReasonCode.UNAVAILABLE)
    hint = next((item for item in missing if item), None)
    if hint is not None:
        return hint
    if node.domain not in _KNOWN_DOMAINS:
        return (
            f"if a library has the operators of {node.domain!r}, name its file: "
            "onnxruntime -custom_ops=PATH"
        )
    return "add a complete target that takes it at the end of the list, or replace the operator"


ATTRIBUTE = "max_memory"


def memory_limits(domains: Mapping[PlacedTarget, MemoryDomain]) -> dict[MemoryDomain, int]:
    """Return by memory domain how many bytes a plan may keep there, where that is limited.

    Args:
        domains: Of every target of a machine.
    """
    found: dict[MemoryDomain, int] = {}
    for placed, domain in domains.items():
        limit = placed.target.attrs.get(ATTRIBUTE)
        if limit is not None:
            found[domain] = min(int(limit), found.get(domain, int(limit)))
    return found


def _check_memory(
    graph: Graph, choices: Sequence[MemoryDomain], limits: Mapping[MemoryDomain, int]
) -> None:
    """Check that all constants fit where a placement needs them.

    Args:
        graph: The model.
        choices: By node id, the memory in which it runs.
        limits: By memory domain, in bytes.

    Raises:
        PlacementError: They do not.
    """
    for domain, limit in limits.items():
        nodes = [node for node, at in enumerate(choices) if at == domain]
        nbytes = sum(graph.constant_bytes(nodes).values())
        if nbytes > limit:
            raise PlacementError(
                f"{len(nodes)} nodes on {domain_text(domain)} have {nbytes} B of constants; "
                f"{ATTRIBUTE}={limit} allows less",
                hint=f"raise {ATTRIBUTE}, or pin fewer nodes to it",
            )
