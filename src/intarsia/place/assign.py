# SPDX-License-Identifier: Apache-2.0
"""Chooses a target for every node: pins first, then by the policy, or as a search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from intarsia.backends.api import ReasonCode, Refusal
from intarsia.errors import PlacementError, UnsupportedError

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node
    from intarsia.place.capability import Capability
    from intarsia.place.constraints import Constraints
    from intarsia.target import CompilationConfig, VirtualDevice


_SHOWN = 8


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
    """

    choices: tuple[int, ...]
    whys: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def assign_targets(
    graph: Graph,
    config: CompilationConfig,
    capabilities: Sequence[Capability],
    constraints: Constraints,
    order: Sequence[int] | None = None,
) -> Assignment:
    """Give each node the first target that takes it.

    Args:
        graph: Its nodes are assigned.
        config: The machine.
        capabilities: One per target of the machine, in its order.
        constraints: Pins are obeyed or refused, never bent.
        order: Positions of targets in the order in which they are asked, for nodes without a pin;
            None means the user's. See `target_order`.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node; names every refusal.
    """
    positions = {capability.target: i for i, capability in enumerate(capabilities)}
    fallback = positions[config.fallback]
    order = range(len(capabilities)) if order is None else order
    choices: list[int] = []
    whys: list[str] = []
    refusals: list[Refusal] = []
    stranded: list[Node] = []
    for node in graph.nodes:
        pin = constraints.pins.get(node.id)
        if pin is not None:
            position = positions[pin.target]
            _demand(node, capabilities[position], pin.why)
            choices.append(position)
            whys.append(pin.why)
            continue
        for position in order:
            refusal = refusal_of(node, capabilities[position], constraints)
            if refusal is None:
                choices.append(position)
                policy_why = "fallback" if position == fallback else "priority"
                whys.append(capabilities[position].whys.get(node.id, policy_why))
                break
            refusals.append(refusal)
        else:
            stranded.append(node)
    if stranded:
        raise _unsupported(stranded, refusals, config.fallback)
    return Assignment(tuple(choices), tuple(whys), tuple(refusals))


def target_order(config: CompilationConfig, *first: int) -> list[int]:
    """Return the positions of a machine's targets: some first, the others as the user has them."""
    return [*first, *(i for i in range(len(config.targets)) if i not in first)]


def assign_as_chosen(
    graph: Graph,
    capabilities: Sequence[Capability],
    constraints: Constraints,
    choices: Sequence[int],
    why: str,
) -> Assignment:
    """Return the assignment that a search found.

    Args:
        graph: Its nodes are assigned.
        capabilities: One per target of the machine, in its order.
        constraints: What the user said.
        choices: By node id, the position of its target.
        why: The reason of every node without a pin.

    Raises:
        PlacementError: A pinned node's target does not take it, or the choice bends a pin.
        UnsupportedError: A target does not take, or must not have, what was chosen for it.
    """
    whys: list[str] = []
    refusals: list[Refusal] = []
    for node in graph.nodes:
        chosen = capabilities[choices[node.id]]
        pin = constraints.pins.get(node.id)
        if pin is not None:
            _demand(node, chosen, pin.why)
            if pin.target != chosen.target:
                raise PlacementError(
                    f"node {node.name!r} was chosen for {chosen.target} against {pin.why}",
                    node=node.name,
                    target=str(chosen.target),
                )
            whys.append(pin.why)
            continue
        refusal = refusal_of(node, chosen, constraints)
        if refusal is not None:
            raise _unsupported([node], [refusal], chosen.target)
        whys.append(why)
        refusals += [
            refusal_of(node, capability, constraints) or _too_dear(node, capability, chosen)
            for capability in capabilities[: choices[node.id]]
        ]
    return Assignment(tuple(choices), tuple(whys), tuple(refusals))


def _too_dear(node: Node, capability: Capability, chosen: Capability) -> Refusal:
    reason = f"the whole plan is cheaper with it on {chosen.target}"
    return Refusal(node.name, node.op_type, str(capability.target), ReasonCode.COST, reason)


def refusal_of(node: Node, capability: Capability, constraints: Constraints) -> Refusal | None:
    """Return why a target cannot or must not have a node; pins aside."""
    words = constraints.exclusions.get(capability.target, {}).get(node.id)
    if words is not None:
        return Refusal(node.name, node.op_type, str(capability.target), ReasonCode.USER, words)
    return capability.refusals.get(node.id)


def _demand(node: Node, capability: Capability, why: str) -> None:
    refusal = capability.refusals.get(node.id)
    if refusal is not None:
        raise PlacementError(
            f"{why} cannot be obeyed: node {node.name!r} ({node.op_type}) does not run on "
            f"{capability.target}: {refusal.code}: {refusal.reason}",
            node=node.name,
            target=str(capability.target),
            hint=refusal.hint or f"narrow the pattern so that it leaves {node.name!r} out",
        )


def _unsupported(
    stranded: Sequence[Node], refusals: Sequence[Refusal], fallback: VirtualDevice
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
        hint="add a complete target that takes it at the end of the list, or replace the operator",
    )
