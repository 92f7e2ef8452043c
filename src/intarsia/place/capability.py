# SPDX-License-Identifier: Apache-2.0
"""Asks every backend which nodes it takes on each target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.candidate import BuildContext

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
        BackendError: A target that the user asked for has no backend here.
    """
    answers = []
    for placed in config.targets:
        assert placed.target is not None
        backend = backends.for_target(placed.target)
        backend.version()  # raises if the runtime is missing, before any work is done
        refined = config.refined(placed) or placed.target
        context = BuildContext(placed, refined, config, num_threads)
        answers.append(Capability(placed, backend, context, _refusals(graph, backend, context)))
    return tuple(answers)


def _refusals(graph: Graph, backend: Backend, context: BuildContext) -> Mapping[int, Refusal]:
    rules = backend.rules(context)
    refused = dict(rules[0].refuse(graph, context)) if rules else {}
    for rule in rules[1:]:
        still = rule.refuse(graph, context)
        refused = {node: refusal for node, refusal in refused.items() if node in still}
    return refused
