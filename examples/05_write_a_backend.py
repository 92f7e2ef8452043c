# SPDX-License-Identifier: Apache-2.0
"""Write a backend: numpy for three operators, as a partial kind next to ONNX Runtime.

In a package of its own, it would be registered by an entry point::

    [project.entry-points."intarsia.backends"]
    numpy = "my_package:BACKEND"
"""

import json

import numpy as np
import onnx.parser

import intarsia
from intarsia.backends.artifact import refuse, tensor_spec
from intarsia.backends.device import HostDevice
from intarsia.backends.registry import collect, load_backends
from intarsia.backends.values import Artifact, Detection, Rule
from intarsia.errors import ReasonCode
from intarsia.settings import Settings
from intarsia.target import DeviceType, Target, TargetKind

FUNCTIONS = {"Add": np.add, "Mul": np.multiply, "Neg": np.negative}


def refuse_others(graph, context):
    """Take float32 Add, Mul and Neg; refuse the rest, with a reason."""
    refusals = {}
    for node in graph.nodes:
        values = [graph.values[i] for i in (*node.inputs, *node.outputs)]
        if node.op_type not in FUNCTIONS:
            refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, "not in the table")
        elif any(value.dtype != "float32" or not value.is_static for value in values):
            refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_DTYPE, "not float32")
    return refusals


class NumpyExecutable:
    """One region: a list of calls over named arrays."""

    scratch_bytes = 0

    def __init__(self, artifact):
        self.artifact = artifact
        self.calls = json.loads(artifact.payload)

    def bind(self, inputs, outputs, scratch):
        """Return the call that runs on these arrays."""
        arrays = {constant.name: constant.data for constant in self.artifact.constants}
        arrays |= {s.name: a for s, a in zip(self.artifact.inputs, inputs, strict=True)}
        results = {s.name: a for s, a in zip(self.artifact.outputs, outputs, strict=True)}

        def step():
            local = dict(arrays)
            for op_type, sources, result in self.calls:
                operands = [local[name] for name in sources]
                local[result] = FUNCTIONS[op_type](*operands, out=results.get(result))

        return step


class NumpyBackend:
    """Serves the kind `numpy`. A backend inherits from nothing."""

    name = "numpy"
    kinds = (
        TargetKind(
            "numpy",
            DeviceType.CPU,
            is_complete=False,
            refines=("onnxruntime", "reference"),
        ),
    )

    def version(self):
        """Return the version of the library that runs the code."""
        return np.__version__

    def detect(self):
        """Return the targets on this machine."""
        return Detection((Target("numpy"),))

    def rules(self, context):
        """Return the one rule, which proposes regions."""
        return (Rule("table", refuse_others),)

    def check(self, candidate, context):
        """Return None: the rule has refused all other nodes already."""

    def estimate(self, candidate, context):
        """Return None: the cost has to be measured."""

    def compile(self, candidate, context):
        """Return the region as a list of calls."""
        from intarsia.backends.values import ArtifactConstant
        from intarsia.graph.extract import constant_array

        region, values = candidate.region, candidate.region.graph.values
        nodes = [region.graph.nodes[i] for i in region.nodes]
        calls = [
            (n.op_type, [values[i].name for i in n.inputs], values[n.outputs[0]].name)
            for n in nodes
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
        return NumpyExecutable(artifact)


BACKEND = NumpyBackend()

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    example (float[2, 3] x) => (float[2, 3] y) {
        doubled = Add(x, x)
        shifted = Sigmoid(doubled)
        scaled = Mul(shifted, doubled)
        y = Neg(scaled)
    }
"""

if __name__ == "__main__":  # `intarsia.testing.examine` imports this file
    backends = collect([*load_backends(Settings.from_environment()).by_name.values(), BACKEND])
    model = onnx.parser.parse_model(MODEL)
    executable = intarsia.compile(model, "numpy, onnxruntime", backends=backends)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    print(executable.placement)
    assert np.allclose(executable(x), -(2 * x) / (1 + np.exp(-2 * x)))
