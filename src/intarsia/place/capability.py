# SPDX-License-Identifier: Apache-2.0
"""Asks every backend which nodes it takes on each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from intarsia.backends.api import Refusal
from intarsia.backends.artifact import refuse
from intarsia.backends.candidate import BuildContext
from intarsia.errors import BackendError, ReasonCode, TargetError
from intarsia.place.hooks import calling
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.backends.api import Backend
    from intarsia.backends.registry import Backends
    from intarsia.graph.graph import Graph
    from intarsia.target import CompilationConfig, PlacedTarget

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Capability:
    """What one placed target takes.

    Attributes:
        target: The placed target.
        backend: Serves it.
        context: What the backend is given for it.
        refusals: By node id, why it is not taken; every other node is. The backend is asked when
            it is looked at for the first time.
        whys: By node id, why it is taken, where a rule says so.
    """

    target: PlacedTarget
    backend: Backend
    context: BuildContext
    refusals: Mapping[int, Refusal]
    whys: Mapping[int, str] = field(default_factory=dict)

    def without(self, refusals: Mapping[int, Refusal]) -> Capability:
        """Return the capability less some more nodes."""
        return replace(self, refusals={**self.refusals, **refusals})


def make_contexts(
    config: CompilationConfig, num_threads: int, hosts: Sequence[PlacedTarget] = ()
) -> dict[PlacedTarget, BuildContext]:
    """Return what backends are given, by target in the user's order.

    Args:
        config: The machine.
        num_threads: Threads that one run may use.
        hosts: Targets beside those of the machine, which come after them; see `host_targets`.

    Raises:
        TargetError: A target is on a device that cannot be there.
    """
    contexts = {}
    for placed in (*config.targets, *hosts):
        if placed.device_type is DeviceType.CPU and placed.device_id:
            raise TargetError(
                f"{str(placed)!r}: there is one CPU, and its number is 0",
                target=str(placed),
                hint=f"write {str(placed.target)!r}",
            )
        refined = config.refined(placed) or placed.target
        contexts[placed] = BuildContext(placed, refined, config, num_threads)
    return contexts


def ask_backends(
    graph: Graph, contexts: Mapping[PlacedTarget, BuildContext], backends: Backends
) -> tuple[Capability, ...]:
    """Return what each target of a machine takes, in the user's order.

    A backend is asked when somebody wants to know: its query may take seconds, and no node may be
    left when it is its turn.

    Raises:
        BackendError: A target that the user asked for has no backend here. It is also raised when
            a backend is asked and fails.
    """
    found = []
    for placed, context in contexts.items():
        found.append(_capability(graph, placed, backends.for_target(placed.target), context))
    return tuple(found)


def _capability(
    graph: Graph, placed: PlacedTarget, backend: Backend, context: BuildContext
) -> Capability:
    """Return what a target takes; its backend is asked once, when somebody looks."""
    answer = cache(partial(_ask, graph, backend, context))
    refusals: Mapping[int, Refusal] = _Asked(lambda: answer()[0])
    whys: Mapping[int, str] = _Asked(lambda: answer()[1])
    return Capability(placed, backend, context, refusals, whys)


class _Asked(Mapping[int, Value]):
    """A mapping by node id that is made when it is looked at."""

    def __init__(self, answer: Callable[[], Mapping[int, Value]]) -> None:
        self._answer = answer

    def __getitem__(self, key: int) -> Value:
        return self._answer()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._answer())

    def __len__(self) -> int:
        return len(self._answer())


def _ask(
    graph: Graph, backend: Backend, context: BuildContext
) -> tuple[Mapping[int, Refusal], Mapping[int, str]]:
    """Return the refusals of nodes that no rule takes, and what the rules say of the others."""
    missing = _why_missing(backend)
    if missing is not None:
        return {
            node.id: refuse(node, context, ReasonCode.UNAVAILABLE, missing.message, missing.hint)
            for node in graph.nodes
        }, {}
    with calling(backend.name, context, "when asked what it takes"):
        rules = tuple(backend.rules(context))
        answers = [dict(rule.refuse(graph, context)) for rule in rules]
    if not answers:
        return {
            node.id: refuse(node, context, ReasonCode.UNSUPPORTED_OP, "the backend has no rule")
            for node in graph.nodes
        }, {}
    first, *others = answers
    refusals = {
        node: refusal
        for node, refusal in first.items()
        if all(node in refused for refused in others)
    }
    whys: dict[int, str] = {}
    for rule, refused in zip(rules, answers, strict=True):
        for node in graph.nodes if rule.why else ():
            if node.id not in refused:
                whys.setdefault(node.id, rule.why)
    return refusals, whys


def _why_missing(backend: Backend) -> BackendError | None:
    """Return why a backend cannot be used here: what stands in for the host may be missing."""
    try:
        backend.version()
    except BackendError as error:
        return error
    return None
