# SPDX-License-Identifier: Apache-2.0
"""A model and a machine, read and resolved: what placing needs, whichever way it is done.

load -> annotations -> types, passes before placement -> constraints, devices -> capabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.registry import Backends
from intarsia.backends.values import Refusal
from intarsia.errors import PlacementError, UnsupportedError
from intarsia.place.assign import assign_targets
from intarsia.place.capability import (
    Capability,
    ask_backends,
    check_attributes,
    make_contexts,
)
from intarsia.place.constraints import (
    Constraints,
    annotate_model,
    resolve_constraints,
)
from intarsia.place.devices import (
    DevicePlan,
    plan_devices,
)
from intarsia.place.machine import Machine, asked_host, host_targets
from intarsia.place.pipeline import Pipeline
from intarsia.place.request import Progress, Request, quiet
from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict
from intarsia.plan.plan import PassRun
from intarsia.target import CompilationConfig

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.target import PlacedTarget


@dataclass(frozen=True, slots=True)
class Setting:
    """All that placing a model needs.

    Attributes:
        config: The machine.
        backends: Serve its targets.
        pipeline: The passes that the targets bring.
        num_threads: Threads that one run may use.
        graph: The prepared model.
        rewrites: What was done to the model before placement, as `name xCOUNT`.
        passes: The passes that did it.
        constraints: What the user said, by node.
        devices: The memories in which nodes may run.
        capabilities: What each target takes, in the user's order; then, if the model needs it,
            the same of the host and of what stands in for it.
        hosts: What may run the nodes that no target takes, whether it is needed or not.
    """

    config: CompilationConfig
    backends: Backends
    pipeline: Pipeline
    num_threads: int
    graph: Graph
    rewrites: tuple[str, ...]
    passes: tuple[PassRun, ...]
    constraints: Constraints
    devices: DevicePlan
    capabilities: tuple[Capability, ...]
    hosts: tuple[Capability, ...] = ()

    @property
    def targets(self) -> tuple[PlacedTarget, ...]:
        """By position, every target that may have nodes."""
        return tuple(capability.target for capability in self.capabilities)

    def without(self, position: int, refusals: Mapping[int, Refusal]) -> Setting:
        """Return the setting in which one target refuses some more nodes."""
        refused = self.capabilities[position].without(refusals)
        return replace(
            self,
            capabilities=_replaced(self.capabilities, refused),
            hosts=_replaced(self.hosts, refused),
        ).with_hosts()

    def with_hosts(self) -> Setting:
        """Return the setting with the host, and what stands in for it, where a node needs them."""
        own = self.capabilities[: len(self.config.targets)]
        every = (*own, *self.hosts)
        try:
            assignment = assign_targets(
                self.graph, self.config, every, self.constraints, self.devices
            )
        except (PlacementError, UnsupportedError):  # placing says it again
            return replace(self, capabilities=every)
        used = max(assignment.choices, default=0) + 1
        return replace(self, capabilities=every[: max(len(own), used)])


def make_setting(request: Request, machine: Machine, tell: Progress = quiet) -> Setting:
    """Read and prepare a model, and ask every backend what it takes of it.

    Args:
        request: What is asked for.
        machine: What it means.
        tell: Told about the stages as they go.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: An attribute of a target cannot be carried out here.
        PlacementError: A pin, exclusion or layer matches nothing or contradicts another.
        BackendError: A backend is missing, or failed.
    """
    from intarsia.graph.load import load as load_model

    config, backends, num_threads = machine.config, machine.backends, request.threads
    if request.is_here:
        check_attributes(make_contexts(config, num_threads, asked_host(config)), backends)
    untagged = config.without_tags()  # what is made may be read where a tag is not known
    contexts = make_contexts(untagged, num_threads, host_targets(untagged, backends))
    pipeline = Pipeline.of(untagged, contexts, backends)
    tell("load", 0, 1)
    loaded = load_model(request.model, request.shapes)
    annotations = annotate_model(loaded, request, config)
    tell("prepare", 0, 1)
    graph, rewrites, passes = pipeline.prepare(loaded, backends)
    tell("place", 0, 1)
    constraints = resolve_constraints(graph, config, annotations, request.exclude)
    devices = plan_devices(graph, config, backends, constraints.pins, annotations.borders)
    capabilities = ask_backends(graph, contexts, backends)
    given = len(config.targets)
    setting = Setting(
        config=untagged,
        backends=backends,
        pipeline=pipeline,
        num_threads=num_threads,
        graph=graph,
        rewrites=rewrites,
        passes=passes,
        constraints=constraints,
        devices=devices,
        capabilities=capabilities[:given],
        hosts=capabilities[given:],
    )
    return setting.with_hosts()


def _replaced(capabilities: Sequence[Capability], one: Capability) -> tuple[Capability, ...]:
    """Return capabilities with another one of the same target."""
    return tuple(one if item.target == one.target else item for item in capabilities)


_MOST_NODES = 5


def check_setting(file: str, setting: Setting) -> CheckReport:
    """Say which targets take a model's nodes; nothing is compiled.

    Args:
        file: Where the model came from.
        setting: The prepared model and the machine.
    """
    return CheckReport.of(file, (*_model(setting), *_targets(setting), *_homeless(setting)))


def _model(setting: Setting) -> Iterator[CheckFinding]:
    graph = setting.graph
    inputs = ", ".join(str(graph.values[value].name) for value in graph.inputs)
    message = f"{len(graph.nodes)} nodes after preparation; inputs {inputs or 'none'}"
    yield CheckFinding("model", CheckVerdict.OK, message)


def _targets(setting: Setting) -> Iterator[CheckFinding]:
    count = len(setting.graph.nodes)
    for capability in setting.capabilities:
        codes = Counter(str(refusal.code) for refusal in capability.refusals.values())
        why = ", ".join(f"{code} {number}" for code, number in codes.most_common())
        message = f"takes {count - len(capability.refusals)} of {count} nodes"
        yield CheckFinding(
            str(capability.target), CheckVerdict.OK, message + (f": {why}" if why else "")
        )


def _homeless(setting: Setting) -> Iterator[CheckFinding]:
    """Name nodes that every target refuses, with the reason of the last: that is the fallback."""
    homeless = [
        node
        for node in setting.graph.nodes
        if all(node.id in capability.refusals for capability in setting.capabilities)
    ]
    for node in homeless[:_MOST_NODES]:
        refusal = setting.capabilities[-1].refusals[node.id]
        message = f"{node.op_type} is not taken by any target: {refusal.reason}"
        hint = refusal.hint or "add a target that takes it, such as onnxruntime"
        yield CheckFinding(f"node {node.name}", CheckVerdict.INCOMPATIBLE, message, hint)
    if len(homeless) > _MOST_NODES:
        message = f"{len(homeless) - _MOST_NODES} more are not taken by any target"
        yield CheckFinding("nodes", CheckVerdict.INCOMPATIBLE, message)
