# SPDX-License-Identifier: Apache-2.0
"""Asks the backends of a machine: which attributes, types and nodes each of them takes.

While a backend is called, the refined target is current, and what it raises becomes an error of
ours. Attributes of targets that change nothing are named before anything is compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from intarsia.backends.artifact import refuse
from intarsia.backends.values import BuildContext, Refusal
from intarsia.errors import BackendError, IntarsiaError, ReasonCode, TargetError
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.backends.registry import Backends
    from intarsia.graph.graph import Graph
    from intarsia.target import CompilationConfig, PlacedTarget, Target, VirtualDevice


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
    backend: RegisteredBackend
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
    graph: Graph, placed: PlacedTarget, backend: RegisteredBackend, context: BuildContext
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
    graph: Graph, backend: RegisteredBackend, context: BuildContext
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


def _why_missing(backend: RegisteredBackend) -> BackendError | None:
    """Return why a backend cannot be used here: what stands in for the host may be missing."""
    try:
        backend.version()
    except BackendError as error:
        return error
    return None


@contextmanager
def calling(backend: str, context: BuildContext, doing: str) -> Iterator[None]:
    """Turn whatever a backend raises into an error of ours; the refined target is current.

    Args:
        backend: Its name.
        context: What it is given.
        doing: When it would fail, in words: `on a region`.

    Raises:
        BackendError: It raised something that is not an error of ours.
    """
    try:
        with context.refined:
            yield
    except IntarsiaError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise BackendError(
            f"backend {backend!r} failed {doing}: {type(error).__name__}: {error}",
            backend=backend,
            target=str(context.target),
            hint=f"leave {context.target} out, and report it to the backend's author",
        ) from error


logger = logging.getLogger("intarsia")

LIBRARIES = "libs"
_LIBRARIES = '; list a library as a target of its own, before what it refines: "dnnl, llvm"'
_DESCRIBING = "model"
"""The attribute that only says what a device is called; a tag may say it unasked."""


def check_attributes(contexts: Mapping[PlacedTarget, BuildContext], backends: Backends) -> None:
    """Check the targets of a machine before a model is compiled for it here.

    Warns of attributes that change nothing.

    Raises:
        BackendError: A target has no backend, or its runtime is not installed.
        TargetError: An attribute cannot be carried out, or means another machine.
    """
    for placed, context in contexts.items():
        backend = backends.for_target(placed.target)
        backend.version()  # a missing runtime, before any work is done
        _check_device_type(placed.target, context.config.device_of(placed))
        with calling(backend.name, context, "to check its target"):
            in_vain = tuple(_without_effect(placed.target, backend))
        if in_vain:
            names = ", ".join(f"-{name}" for name in in_vain)
            note = _LIBRARIES if LIBRARIES in in_vain else ""
            logger.warning("no effect on what is compiled for '%s': %s%s", placed, names, note)


def _check_device_type(target: Target, device: VirtualDevice) -> None:
    number = target.attrs.get("target_device_type")
    if (
        number is None
        or device.device_type is None
        or device.device_type == target.kind.device_type
    ):
        return
    raise TargetError(
        f"target_device_type: programs of {target.kind.name} run on "
        f"{target.kind.device_type.name}, not on {device.device_type.name}",
        target=str(target),
        hint="leave it out: it describes devices that nothing is compiled for here",
    )


def _without_effect(target: Target, backend: RegisteredBackend) -> Iterable[str]:
    if target.attrs.get(LIBRARIES):
        yield LIBRARIES
    if _DESCRIBING in target.attrs and not target.tags:
        yield _DESCRIBING
    if backend.check_target is not None:
        yield from backend.check_target(target)
