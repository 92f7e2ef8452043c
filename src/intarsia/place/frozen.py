# SPDX-License-Identifier: Apache-2.0
"""The world of a setting, and carrying out a plan that was locked in the same world."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from intarsia.backends.api import Identifying
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import digest
from intarsia.errors import BackendError, LockError
from intarsia.graph.state import PLAIN
from intarsia.place.decide import Calls
from intarsia.plan.devices import domain_text
from intarsia.plan.lock import Lock, check_lock
from intarsia.plan.world import World
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.capability import Capability
    from intarsia.place.setting import Setting

_MOST_CHANGES = 4


def make_world(setting: Setting) -> World:
    """Return all that a plan for a setting depends on."""
    versions = {"intarsia": version("intarsia")}
    for capability in setting.capabilities:
        versions[capability.backend.name] = capability.backend.version()
    machine = this_machine()
    return World(
        model=model_digest(setting.graph),
        targets=setting.config.text,
        versions=versions,
        machine=machine.digest,
        machine_text=machine.text,
        threads=setting.num_threads,
        constraints=constraints_digest(setting),
        devices={
            str(each.target): _device_of(each)
            for each in setting.capabilities
            if isinstance(each.backend, Identifying)
        },
    )


def _device_of(capability: Capability) -> str:
    """Return which device a target is; nothing if it is not there."""
    backend = capability.backend
    assert isinstance(backend, Identifying)
    try:
        return backend.device_identity(capability.target)
    except BackendError:  # which whoever runs on it raises again
        return ""


def model_digest(graph: Graph) -> str:
    """Return a hash of a prepared model without its weights, as 32 hexadecimal digits.

    A model that was only trained further keeps it: of constants only dtypes and shapes count.
    """
    from intarsia.graph.signature import node_signature  # imports onnx_ir; loading does not

    known: str | None = graph.memo.get("model_digest")
    if known is None:
        values = (f"{value.name} {value.dtype} {value.shape}" for value in graph.values)
        nodes = (
            f"{node.name} {node_signature(graph, node.id, content=False).digest.hex()} "
            f"{node.inputs} {node.captured} {node.outputs}"
            for node in graph.nodes
        )
        known = digest((*values, *nodes, f"{graph.inputs} {graph.outputs}"))
        graph.memo["model_digest"] = known
    return known


def constraints_digest(setting: Setting) -> str:
    """Return a hash of what the user said about nodes, inputs and outputs; empty if nothing."""
    nodes, said = setting.graph.nodes, setting.constraints
    parts = [
        f"{nodes[node].name}={'|'.join(map(str, pin.targets))}"
        for node, pin in sorted(said.pins.items())
    ]
    for target, excluded in sorted(said.exclusions.items(), key=lambda item: str(item[0])):
        parts += [f"{nodes[node].name}!{target}" for node in sorted(excluded)]
    values, borders = setting.graph.values, setting.devices.borders
    parts += [f"{values[value].name}@{domain_text(borders[value])}" for value in sorted(borders)]
    return digest(parts) if parts else ""


def locked_calls(setting: Setting, lock: Lock) -> Calls:
    """Return the regions of a locked plan.

    Raises:
        LockError: The world is not the one that it was locked in, or it does not fit the model.
    """
    changes = check_lock(lock, make_world(setting))
    if changes:
        shown = "; ".join(map(str, changes[:_MOST_CHANGES]))
        more = len(changes) - _MOST_CHANGES
        raise LockError(
            "the world is not the one that the plan was locked in: "
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

    They follow from the regions; what backends answer may follow from more than a world tells.

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
    """Return what to do about a world that is another."""
    hints = {
        "constraints": "give the pins, exclusions and layers that it was compiled with",
        "threads": f"give --threads {lock.world.threads}, or leave it out",
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
        return lock.world.threads
    return num_threads


def _misfit(what: str) -> LockError:
    return LockError(
        f"the lock file does not fit its model: {what}",
        hint="it was edited; lock the plan again",
    )
