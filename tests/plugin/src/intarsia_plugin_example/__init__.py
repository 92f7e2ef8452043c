# SPDX-License-Identifier: Apache-2.0
"""A whole backend: numpy for five float32 operators, as a partial kind of its own."""

import json

import numpy as np

from intarsia.backends.artifact import refuse, tensor_spec
from intarsia.backends.device import HostDevice
from intarsia.backends.values import Artifact, ArtifactConstant, Detection, Rule
from intarsia.errors import ReasonCode
from intarsia.graph.extract import constant_array
from intarsia.target import AttrSpec, DeviceType, Target, TargetKind

FUNCTIONS = {
    "Add": np.add,
    "Mul": np.multiply,
    "Neg": np.negative,
    "MatMul": np.matmul,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
}

KIND = TargetKind(
    "plugin-kind",
    DeviceType.CPU,
    attrs=(AttrSpec("ops", "array<string>", "the operators to take; all if not given"),),
    is_complete=False,
    refines=("*",),
    default_keys=("cpu",),
    help="numpy on this CPU, from a plug-in",
)


def refuse_others(graph, context):
    """Take what is in the table, in float32 and of known shape."""
    declared = context.target.target.attrs.get("ops") or tuple(FUNCTIONS)
    refusals = {}
    for node in graph.nodes:
        values = [graph.values[i] for i in (*node.reads, *node.outputs) if i >= 0]
        if node.domain or node.op_type not in FUNCTIONS or node.op_type not in declared:
            verdict = (ReasonCode.UNSUPPORTED_OP, "it is not in the table")
        elif not all(value.is_static for value in values):
            verdict = (ReasonCode.DYNAMIC_SHAPE, "a shape is only known while running")
        elif any(value.dtype != "float32" for value in values):
            verdict = (ReasonCode.UNSUPPORTED_DTYPE, "the table is for float32")
        else:
            continue
        refusals[node.id] = refuse(node, context, *verdict)
    return refusals


class PluginExecutable:
    """One region: a list of calls. Nothing in it changes, so that threads can share it."""

    scratch_bytes = 0

    def __init__(self, artifact):
        self.artifact = artifact
        self.calls = json.loads(artifact.payload)

    def bind(self, inputs, outputs, scratch):
        """Return the call that runs on these arrays."""
        sources = zip((spec.name for spec in self.artifact.inputs), inputs, strict=True)
        arrays = {constant.name: constant.data for constant in self.artifact.constants}
        arrays |= dict(sources)

        def step():
            values = dict(arrays)
            for op_type, reads, made in self.calls:
                values[made] = FUNCTIONS[op_type](*(values[name] for name in reads))
            for spec, buffer in zip(self.artifact.outputs, outputs, strict=True):
                np.copyto(buffer, values[spec.name])

        return step


class PluginBackend:
    """Serves the kind `plugin-kind`."""

    name = "plugin"
    kinds = (KIND,)

    def version(self):
        """Return the version of what computes."""
        return np.__version__

    def detect(self):
        """Return the one target."""
        return Detection((Target(KIND.name),))

    def rules(self, context):
        """Return the one rule."""
        return (Rule("table", refuse_others),)

    def check(self, candidate, context):
        """Return no refusal."""

    def estimate(self, candidate, context):
        """Return no cost."""

    def compile(self, candidate, context):
        """Return the region as a list of calls."""
        region, values = candidate.region, candidate.region.graph.values
        nodes = [region.graph.nodes[i] for i in region.nodes]
        calls = [
            (node.op_type, [values[i].name for i in node.inputs], values[node.outputs[0]].name)
            for node in nodes
        ]
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=json.dumps(calls).encode(),
            inputs=tuple(tensor_spec(values[i]) for i in region.inputs),
            outputs=tuple(tensor_spec(values[i]) for i in region.outputs),
            constants=tuple(
                ArtifactConstant(values[i].name, constant_array(values[i]))
                for i in region.constants
            ),
        )

    def open(self, placed, options):
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact, device):
        """Return the region, ready to run."""
        return PluginExecutable(artifact)


BACKEND = PluginBackend()
