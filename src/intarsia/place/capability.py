# SPDX-License-Identifier: Apache-2.0
"""Asks every backend which nodes it takes on each target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.api import ReasonCode
from intarsia.backends.artifact import refuse
from intarsia.backends.candidate import BuildContext
from intarsia.errors import BackendError, IntarsiaError, TargetError
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.backends.api import Backend, Refusal
    from intarsia.backends.registry import Backends
    from intarsia.graph.graph import Graph
    from intarsia.target import CompilationConfig, VirtualDevice


@dataclass(frozen=True, slots=True)
class Capability:
    """What one placed target takes.

    Attributes:
        target: The placed target.
        backend: Serves it.
        context: What the backend is given for it.
        refusals: By node id, why it is not taken; every other node is.
    """

    target: VirtualDevice
    backend: Backend
    context: BuildContext
    refusals: Mapping[int, Refusal]

    def without(self, refusals: Mapping[int, Refusal]) -> Capability:
        """Return the capability less some more nodes."""
        return replace(self, refusals={**self.refusals, **refusals})


def ask_backends(
    graph: Graph, config: CompilationConfig, backends: Backends, num_threads: int
) -> tuple[Capability, ...]:
    """Return what each target of a machine takes, in the user's order.

    Raises:
        BackendError: A target that the user asked for has no backend here, or that failed.
        TargetError: A target is on a device that cannot be there.
    """
    answers = []
    for placed in config.targets:
        assert placed.target is not None
        if placed.device_type is DeviceType.CPU and placed.device_id:
            raise TargetError(
                f"{str(placed)!r}: there is one CPU, and its number is 0",
                target=str(placed),
                hint=f"write {str(placed.target)!r}",
            )
        backend = backends.for_target(placed.target)
        refined = config.refined(placed) or placed.target
        context = BuildContext(placed, refined, config, num_threads)
        answers.append(Capability(placed, backend, context, _refusals(graph, backend, context)))
    return tuple(answers)


def _refusals(graph: Graph, backend: Backend, context: BuildContext) -> Mapping[int, Refusal]:
    """Return the refusals of nodes that no rule of the backend takes."""
    try:
        answers = [rule.refuse(graph, context) for rule in backend.rules(context)]
    except IntarsiaError:
        raise
    except Exception as error:  # a stranger's backend may raise anything
        raise BackendError(
            f"backend {backend.name!r} failed when asked what it takes: "
            f"{type(error).__name__}: {error}",
            backend=backend.name,
            target=str(context.target),
            hint=f"leave {context.target} out, and report it to the backend's author",
        ) from error
    if not answers:
        return {
            node.id: refuse(node, context, ReasonCode.UNSUPPORTED_OP, "the backend has no rule")
            for node in graph.nodes
        }
    first, *others = answers
    return {
        node: refusal
        for node, refusal in first.items()
        if all(node in refused for refused in others)
    }
