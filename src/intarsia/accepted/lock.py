# SPDX-License-Identifier: Apache-2.0
"""Carrying out a plan that was locked under the same circumstances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import LockError, UnsupportedError
from intarsia.graph.state import PLAIN
from intarsia.place.assign import Policy
from intarsia.place.decide import Calls, decide_as_chosen
from intarsia.place.identity import make_identity
from intarsia.place.program import finish, make_builder
from intarsia.plan.lock import Lock, check_lock
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.place.setting import Progress, Setting
    from intarsia.runtime.executor import PlanExecutable

_MOST_CHANGES = 4


def build_frozen(setting: Setting, lock: Lock, *, tell: Progress | None = None) -> PlanExecutable:
    """Compile the regions of a locked plan: those, or none.

    Args:
        setting: The model and the machine.
        lock: The plan.
        tell: Told about the stages as they go.

    Raises:
        LockError: What the plan depends on has changed, or it does not fit the model.
        UnsupportedError: A target refuses its region.
        BackendError: A backend failed.
    """
    builder = make_builder(setting, tell=tell, is_strict=True)
    builder.is_frozen = True
    decision = decide_as_chosen(setting, locked_calls(setting, lock), "lock")
    decision = replace(decision, policy=Policy(lock.policy))
    draft = decision.draft(setting, is_frozen=True)
    check_layouts(lock, draft.plan.layouts)
    failed = builder.build(draft)
    if failed is not None:
        refusals = tuple(failed[1].values())
        raise UnsupportedError(
            f"the locked plan cannot be built: {refusals[0]}",
            refusals=refusals,
            node=refusals[0].node,
            target=refusals[0].target,
            hint="compile without --frozen, and lock the new plan",
        )
    return finish(builder, setting, draft, decision)


def locked_calls(setting: Setting, lock: Lock) -> Calls:
    """Return the regions of a locked plan.

    Raises:
        LockError: The environment has changed since, or it does not fit the model.
    """
    changes = check_lock(lock, make_identity(setting))
    if changes:
        shown = "; ".join(map(str, changes[:_MOST_CHANGES]))
        more = len(changes) - _MOST_CHANGES
        raise LockError(
            "the plan was locked in another environment: "
            f"{shown}{f'; and {more} more' if more > 0 else ''}",
            hint=_hint({change.what for change in changes}, lock),
        )
    ids = {node.name: node.id for node in setting.graph.nodes}
    positions = {str(target): i for i, target in enumerate(setting.targets)}
    calls = []
    for region in lock.regions:
        if region.target not in positions:
            raise _misfit(f"target {region.target!r} is not one of the targets")
        unknown = [name for name in region.nodes if name not in ids]
        if unknown:
            raise _misfit(f"node {unknown[0]!r} is not in the model")
        nodes = tuple(sorted(ids[name] for name in region.nodes))
        calls.append((positions[region.target], nodes))
    placed = sorted(node for _, nodes in calls for node in nodes)
    if placed != list(range(len(setting.graph.nodes))):
        raise _misfit("its regions do not have every node once")
    return tuple(calls)


def check_layouts(lock: Lock, layouts: Mapping[str, str]) -> None:
    """Compare how values lie between the regions of a locked plan with how they did.

    They follow from the regions; what backends answer may follow from more than an identity tells.

    Args:
        lock: The plan.
        layouts: By name, the layouts that are not plain now.

    Raises:
        LockError: One is another.
    """
    if lock.layouts is None or lock.layouts == layouts:
        return
    names = sorted(lock.layouts.keys() | layouts.keys())
    name = next(name for name in names if lock.layouts.get(name) != layouts.get(name))
    raise LockError(
        f"between its regions {name!r} was {lock.layouts.get(name, PLAIN)} when the plan was "
        f"locked, and would be {layouts.get(name, PLAIN)} now",
        hint="compile without --frozen, and lock the new plan",
    )


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


def locked_threads(lock: Lock, num_threads: int | None) -> int | None:
    """Return the threads for a locked plan: its own, where neither user nor setting names some."""
    if num_threads is None and not Settings.from_environment().num_threads:
        return lock.identity.threads
    return num_threads


def _misfit(what: str) -> LockError:
    return LockError(
        f"the lock file does not fit its model: {what}",
        hint="it was edited; lock the plan again",
    )
