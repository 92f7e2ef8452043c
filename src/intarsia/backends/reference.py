# SPDX-License-Identifier: Apache-2.0
"""The `reference` kind: the ONNX reference evaluator as a complete backend on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from intarsia.backends.artifact import fill, onnx_artifact, probe_nodes
from intarsia.backends.device import Buffer, Device, HostDevice, Step, ThreadOptions, ValueSlot
from intarsia.backends.evaluator import Evaluator, lacks_evaluation
from intarsia.backends.values import Artifact, Detection, Refusal, Rule
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.graph.graph import Graph
    from intarsia.target import VirtualDevice


class ReferenceExecutable:
    """One region; `bind` gives a step that evaluates it with numpy."""

    scratch_bytes = 0
    survives_fork = True

    def __init__(self, artifact: Artifact) -> None:
        self._evaluate = Evaluator(artifact)
        self._specs = artifact.outputs

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that evaluates the region on these arrays or slots."""

        def step() -> None:
            arrays = [
                buffer.value if isinstance(buffer, ValueSlot) else buffer for buffer in inputs
            ]
            results = self._evaluate(arrays)
            for buffer, result, spec in zip(outputs, results, self._specs, strict=True):
                fill(buffer, result, spec, "reference")

        return step


class ReferenceBackend:
    """Serves the kind `reference`."""

    name = "reference"
    kinds = ("reference",)
    own_threads = "numpy's library for matrices takes the threads that the environment says"

    def version(self) -> str:
        """Return the version of the `onnx` package."""
        import onnx

        return str(onnx.__version__)

    def detect(self) -> Detection:
        """Return the one target; the evaluator is a dependency of ours."""
        return Detection((Target("reference"),))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that the evaluator implements."""
        return (Rule("evaluator", refuse_unknown),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what the rule lets through is run."""
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX."""
        # As inputs: the evaluator would parse and copy initializers, and all regions share ours.
        return onnx_artifact(self.name, self.version(), candidate, constants="inputs")

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def is_data(self, artifact: Artifact) -> bool:
        """Return that every artifact is: ONNX."""
        return True

    def load(self, artifact: Artifact, device: Device) -> ReferenceExecutable:
        """Return the region, ready to be evaluated."""
        return ReferenceExecutable(artifact)


def refuse_unknown(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse operators that the evaluator does not implement."""
    return probe_nodes(graph, context, lacks_evaluation)


BACKEND = ReferenceBackend()
