# SPDX-License-Identifier: Apache-2.0
"""What OpenVINO counts of a region's operators, by the names of the region's nodes.

Source:
    OpenVINO, `InferRequest.get_profiling_info`: how long each operator took, in the order in which
    they run. The CPU plug-in gives the mean over all runs of the compiled model, in microseconds
    (2026.4; `PerfCount::avg` of its sources): a run is the difference of two sums. When each began
    it does not tell, so they are laid end to end here from the start of the call.
    `originalLayersNames` in the run-time model says what an operator was fused of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import onnx

from intarsia.backends.device import Step
from intarsia.backends.tracing import WorkSpan, cover_nodes
from intarsia.backends.values import Artifact


class CountedInference:
    """The call of a request that tells afterwards how long its operators took.

    Args:
        step: Infers.
        request: Which request does.
        compiled: Of which model.
        artifact: The region.
    """

    def __init__(self, step: Step, request: Any, compiled: Any, artifact: Artifact) -> None:
        self._step, self._request = step, request
        self._nodes = fused_nodes(compiled, artifact)
        self._spans: list[WorkSpan] = []
        self._runs = 0
        self._sums: dict[str, float] = {}

    def __call__(self) -> None:
        """Run."""
        start = perf_counter()
        self._step()
        self._runs += 1
        for one in self._request.get_profiling_info():
            if one.status.name != "EXECUTED":
                continue
            total = one.real_time.total_seconds() * self._runs
            seconds = max(total - self._sums.get(one.node_name, 0.0), 0.0)
            self._sums[one.node_name] = total
            facts = {
                "operator": str(one.node_type),
                "implementation": str(one.exec_type),
                "start": "not told by OpenVINO: after the operators before it",
            }
            nodes = self._nodes.get(one.node_name, ())
            self._spans.append(WorkSpan(str(one.node_name), nodes, start, seconds, facts))
            start += seconds

    def spans(self) -> Sequence[WorkSpan]:
        """Return the operators of all runs."""
        return self._spans


def fused_nodes(compiled: Any, artifact: Artifact) -> Mapping[str, tuple[str, ...]]:
    """Return the nodes of a region that each operator of a compiled model computes."""
    graph = onnx.load_from_string(artifact.payload).graph
    nodes = [(node.name, tuple(node.input), tuple(node.output)) for node in graph.node]
    known = frozenset(name for name, _, _ in nodes)
    layers: dict[str, list[str]] = {}
    for operator in compiled.get_runtime_model().get_ordered_ops():
        facts = operator.get_rt_info()
        text = str(facts["originalLayersNames"].astype(str)) if _NAMES in facts else ""
        layers[operator.get_friendly_name()] = [one for one in text.split(",") if one in known]
    groups = cover_nodes(nodes, [one for some in layers.values() for one in some])
    return {
        name: tuple(dict.fromkeys(node for one in some for node in groups.get(one, ())))
        for name, some in layers.items()
    }


_NAMES = "originalLayersNames"
