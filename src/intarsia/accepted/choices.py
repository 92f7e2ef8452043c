# SPDX-License-Identifier: Apache-2.0
"""Plans that were accepted, by measurements or in a lock file: found again, and carried out.

`find_accepted` is what most compilations ask; it loads what opens a database only if there is one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.cost.records import Assigned, PlanVerdict
from intarsia.cost.storage import has_database
from intarsia.errors import CostDatabaseError, LockError, PlacementError, UnsupportedError
from intarsia.place.assign import Policy, assign_as_chosen, refusal_of
from intarsia.place.decide import Calls, PlanChoice, cut_regions
from intarsia.plan.lock import check_lock
from intarsia.plan.tuning import TuningReport, from_json, to_json

if TYPE_CHECKING:
    from intarsia.cost.records import VerdictKey
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Setting
    from intarsia.plan.lock import Lock

logger = logging.getLogger("intarsia")

_MOST_CHANGES = 4


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the cost database says of a setting.

    Attributes:
        key: What plans for it are filed under; None if the database was not asked, or did not
            answer.
        verdict: The plan that was accepted; None if none was.
    """

    key: VerdictKey | None = None
    verdict: PlanVerdict | None = None

    def choice(self, setting: Setting) -> PlanChoice | None:
        """Return the accepted plan, if it fits the setting."""
        report = None if self.verdict is None else from_json(self.verdict.report)
        if self.verdict is None or report is None:
            return None
        try:
            calls = _calls_of(setting, self.verdict.regions)
            steps = _named_steps(setting, report.steps)
        except _MisfitError:  # its nodes or targets are not these
            return None
        return PlanChoice(Policy.COLLAGE, calls, report, steps=steps)

    def with_key(self, setting: Setting) -> Accepted:
        """Return the same with a key, if there was no database and now there is one."""
        try:
            if self.key is not None or not has_database(settings=setting.backends.settings):
                return self
        except CostDatabaseError as error:  # looking for an accepted plan has warned of it
            logger.info("the costs cannot be read: %s", error.message)
            return self
        return replace(self, key=setting.identity(is_exact=True).verdict_key())


def ask_accepted(
    setting: Setting, objective: str = "latency", costs: str | None = None
) -> Accepted:
    """Return which plan was accepted for a setting, if any was.

    Args:
        setting: The model and the machine.
        objective: What was minimised, with its limit.
        costs: The database; None means what the settings say.

    Raises:
        CostDatabaseError: The database is damaged or out of reach.
    """
    if not has_database(costs, setting.backends.settings):
        return Accepted()
    from intarsia.cost.direct import find_verdict

    key = setting.identity(is_exact=True).verdict_key(objective)
    return Accepted(key, find_verdict(key, costs, setting.backends.settings))


def find_accepted(setting: Setting) -> Accepted:
    """Return which plan was accepted for a setting, for latency, if any was.

    A database that cannot be read is one warning: placement is greedy then.
    """
    try:
        return ask_accepted(setting)
    except CostDatabaseError as error:
        logger.warning("the costs cannot be read, so placement is greedy: %s", error.message)
        return Accepted()


def make_verdict(
    setting: Setting, calls: Calls, report: TuningReport, session: str = ""
) -> PlanVerdict:
    """Return an accepted plan as the database keeps it.

    Args:
        setting: The model and the machine.
        calls: The plan.
        report: How it was found.
        session: Which run of the tuner found it.
    """
    nodes, targets = setting.graph.nodes, setting.targets
    return PlanVerdict(
        regions=tuple(
            Assigned(str(targets[position]), tuple(nodes[node].name for node in members))
            for position, members in calls
        ),
        seconds=report.seconds or 0.0,
        single=report.single,
        single_seconds=report.single_seconds or 0.0,
        predicted_seconds=report.predicted_seconds or 0.0,
        confidence=report.confidence,
        is_mixed=report.is_mixed,
        decided_at=time.time(),
        session=session,
        report=to_json(report),
    )


def locked_choice(setting: Setting, lock: Lock) -> PlanChoice:
    """Return the choice of a locked plan.

    Raises:
        LockError: The environment has changed since, or it does not fit the model.
    """
    changes = check_lock(lock, setting.identity())
    if changes:
        shown = "; ".join(map(str, changes[:_MOST_CHANGES]))
        more = len(changes) - _MOST_CHANGES
        raise LockError(
            "the plan was locked in another environment: "
            f"{shown}{f'; and {more} more' if more > 0 else ''}",
            hint=_hint({change.what for change in changes}, lock),
        )
    try:
        calls = _calls_of(setting, lock.regions)
        steps = _steps_of(setting, lock)
    except _MisfitError as error:
        raise LockError(
            f"the lock file does not fit its model: {error}",
            hint="it has been edited; lock the plan again",
        ) from error
    return PlanChoice(Policy(lock.policy), calls, lock=lock, steps=steps)


def fitted_choice(setting: Setting, regions: Sequence[Assigned]) -> PlanChoice | None:
    """Return the choice of a plan that was measured at other sizes; None if it cannot be had.

    Targets have If, Loop and Scan whole in it.

    Args:
        setting: The model at these sizes, and the machine.
        regions: The plan, by names.
    """
    calls = fit_calls(setting.whole, regions)
    return None if calls is None else PlanChoice(Policy.COLLAGE, calls)


def fit_calls(setting: Setting, regions: Sequence[Assigned]) -> Calls | None:
    """Return a plan that was found for other sizes, as far as it fits these.

    The same nodes make the same regions. Where the model has other nodes at these sizes, as some
    are folded at one and not at another, those of the same name stay on their targets, the others
    join a neighbour, and regions are cut anew.

    Args:
        setting: The model at these sizes, and the machine.
        regions: The plan, by names.

    Returns:
        None if the machine has none of the plan's targets, or constraints forbid it.
    """
    try:
        calls = _calls_of(setting, regions)
    except _MisfitError:
        calls = ()
    if not calls or not (_takes_all(setting, calls) and _is_in_order(setting.graph, calls)):
        calls = _recut(setting, regions)
    try:
        choices = {node: position for position, nodes in calls for node in nodes}
        assign_as_chosen(setting, [choices[node.id] for node in setting.graph.nodes], "cost")
    except (KeyError, PlacementError, UnsupportedError) as error:
        logger.info("a plan of other sizes does not fit these: %s", error)
        return None
    return calls


def _takes_all(setting: Setting, calls: Calls) -> bool:
    return all(
        node not in setting.capabilities[position].refusals
        for position, nodes in calls
        for node in nodes
    )


def _is_in_order(graph: Graph, calls: Calls) -> bool:
    """Tell whether every region comes after those that it reads."""
    done: set[int] = set()
    for _, nodes in calls:
        done.update(nodes)
        if not all(done.issuperset(graph.predecessors[node]) for node in nodes):
            return False
    return True


def _recut(setting: Setting, regions: Sequence[Assigned]) -> Calls:
    """Return a plan with the targets of another one where nodes have its names.

    Nodes with other names, or that their target does not take here, go where a neighbour is whose
    target takes them, else to the first target that does.
    """
    graph, capabilities = setting.graph, setting.capabilities
    positions = {str(target): i for i, target in enumerate(setting.targets)}
    wanted = {
        name: positions[region.target]
        for region in regions
        if region.target in positions
        for name in region.nodes
    }
    choices: dict[int, int] = {}

    def takes(position: int, node: int) -> bool:
        return refusal_of(graph.nodes[node], capabilities[position], setting.constraints) is None

    def neighbours(node: int) -> Iterator[int]:
        yield from (choices[other] for other in graph.predecessors[node])
        for other in graph.successors[node]:
            if graph.nodes[other].name in wanted:
                yield wanted[graph.nodes[other].name]

    if not wanted:
        return ()
    for node in graph.nodes:  # in topological order
        named = (wanted[node.name],) if node.name in wanted else ()
        ranked = (*named, *neighbours(node.id), *range(len(capabilities)))
        chosen = next((position for position in ranked if takes(position, node.id)), None)
        if chosen is None:
            return ()
        choices[node.id] = chosen
    cut = cut_regions(graph, [choices[node.id] for node in graph.nodes])
    return tuple((position, tuple(nodes)) for position, nodes in cut)


class _MisfitError(Exception):
    """Regions by names do not fit a setting."""


def _calls_of(setting: Setting, regions: Iterable[Assigned]) -> Calls:
    """Return regions that were written down by names, with positions and node ids.

    Raises:
        _MisfitError: They are of other targets or nodes, or do not have every node once.
    """
    ids = {node.name: node.id for node in setting.graph.nodes}
    positions = {str(target): i for i, target in enumerate(setting.targets)}
    calls = []
    for region in regions:
        if region.target not in positions:
            raise _MisfitError(f"target {region.target!r} is not one of the targets")
        unknown = [name for name in region.nodes if name not in ids]
        if unknown:
            raise _MisfitError(f"node {unknown[0]!r} is not in the model")
        nodes = tuple(sorted(ids[name] for name in region.nodes))
        calls.append((positions[region.target], nodes))
    placed = sorted(node for _, nodes in calls for node in nodes)
    if placed != list(range(len(setting.graph.nodes))):
        raise _MisfitError("its regions do not cover every node exactly once")
    return tuple(calls)


def _named_steps(setting: Setting, names: Iterable[str]) -> frozenset[int]:
    """Return the ids of nodes that an accepted plan runs itself.

    Raises:
        _MisfitError: One has no bodies that can be placed.
    """
    ids = {setting.graph.nodes[number].name: number for number in setting.bodies}
    unknown = [name for name in names if name not in ids]
    if unknown:
        raise _MisfitError(f"node {unknown[0]!r} is no step of a plan")
    return frozenset(ids[name] for name in names)


def _steps_of(setting: Setting, lock: Lock) -> frozenset[int]:
    """Return the ids of the nodes that the locked plan runs itself.

    Raises:
        _MisfitError: It cannot do so any more, or they do not stand alone.
    """
    alone = [region.nodes[0] for region in lock.regions if len(region.nodes) == 1]
    steps = []
    for node_id, bodies in setting.bodies.items():
        name = setting.graph.nodes[node_id].name
        if name in alone and all(f"{name}/{body}" in lock.bodies for body in bodies.settings):
            steps.append(node_id)
    return frozenset(steps)


def _hint(changed: set[str], lock: Lock) -> str:
    """Return what to do about an environment that is another."""
    hints = {
        "constraints": "give the pins, exclusions and layers that it was compiled with",
        "threads": f"give --threads {lock.identity.threads}, or leave it out",
        "targets": "give the targets that it was compiled for, or none: the lock file names them",
    }
    if len(changed) == 1:
        (what,) = changed
        if what in hints:
            return hints[what]
    return "compile without --frozen, or tune again, and lock the new plan"
