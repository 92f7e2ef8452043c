# SPDX-License-Identifier: Apache-2.0
"""The `fake` kind: an accelerator for tests, with memory of its own that the host cannot read.

It computes through the ONNX reference evaluator. Its target declares what it can do
(`fake -ops=Add,Relu`) and how it fails (`fake -fault=run`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.api import (
    Array,
    Artifact,
    Buffer,
    Detection,
    Device,
    ReasonCode,
    Refusal,
    Rule,
    RunOptions,
    Step,
    TensorSpec,
    np_dtype,
)
from intarsia.backends.artifact import onnx_artifact, probe_nodes, refuse
from intarsia.backends.evaluator import Evaluator, lacks_evaluation
from intarsia.errors import BackendError, ExecutionError
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.candidate import BuildContext, Candidate
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.target import VirtualDevice

_SCRAMBLE = 0xA5
_KEYS = itertools.count()


class FakeTensor:
    """A handle to a tensor in a fake device's memory: no buffer protocol, no `__array__`."""

    __slots__ = ("__weakref__", "device", "key", "spec")

    def __init__(self, device: FakeDevice, key: int, spec: TensorSpec) -> None:
        self.device = device
        self.key = key
        self.spec = spec


class FakeDevice:
    """Memory whose bytes are scrambled, so that an access that is no copy shows as nonsense."""

    def __init__(self, options: RunOptions | None = None) -> None:
        self.options = options or RunOptions()
        self._memory: dict[int, Array] = {}

    def allocate(self, nbytes: int) -> Array:
        """Return a block of this device's memory."""
        return np.zeros(nbytes, np.uint8)

    def tensor(self, block: Array, offset: int, spec: TensorSpec) -> FakeTensor:
        """Return a handle; the memory lives as long as it does."""
        handle = FakeTensor(self, next(_KEYS), spec)
        self._memory[handle.key] = block[offset : offset + spec.nbytes]
        weakref.finalize(handle, self._memory.pop, handle.key)
        return handle

    def write(self, source: Array, destination: FakeTensor) -> None:
        """Copy from host memory, scrambling."""
        self._own(destination)
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._memory[destination.key][:] = flat ^ _SCRAMBLE

    def read(self, source: FakeTensor, destination: Array) -> None:
        """Copy into host memory, unscrambling."""
        self._own(source)
        flat = self._memory[source.key] ^ _SCRAMBLE
        assert source.spec.shape is not None
        np.copyto(destination, flat.view(np_dtype(source.spec.dtype)).reshape(source.spec.shape))

    def fetch(self, source: FakeTensor) -> Array:
        """Return a fresh array with a tensor's contents."""
        assert source.spec.shape is not None
        array = np.empty(source.spec.shape, np_dtype(source.spec.dtype))
        self.read(source, array)
        return array

    def _own(self, tensor: FakeTensor) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.device is not self:
            raise ExecutionError(
                "a fake device was given a tensor that is not in its memory", backend="fake"
            )


class FakeExecutable:
    """One region on one fake device."""

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, device: FakeDevice) -> None:
        self._evaluate = Evaluator(artifact)
        self._device = device
        self._fault = artifact.metadata.get("fault", "")

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that evaluates the region inside the device."""
        del scratch
        device = self._device

        def step() -> None:
            if self._fault == "run":
                raise ExecutionError("the fake device failed, as its target asks", backend="fake")
            results = self._evaluate([device.fetch(buffer) for buffer in inputs])
            for buffer, result in zip(outputs, results, strict=True):
                poisoned = self._fault == "nan" and result.dtype.kind == "f"
                device.write(np.full_like(result, np.nan) if poisoned else result, buffer)

        return step


class FakeBackend:
    """Serves the kind `fake`."""

    name = "fake"
    kinds = ("fake",)

    def version(self) -> str:
        """Return the version of what computes."""
        import onnx

        return str(onnx.__version__)

    def detect(self) -> Detection:
        """Return the target: it is on every machine."""
        return Detection((Target("fake"),))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: the operators that the target declares."""
        del context
        return (Rule("declared", refuse_undeclared),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what the rule lets through is run."""
        del candidate, context
        return None

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return nothing: there is no telling."""
        del candidate, context
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX.

        Raises:
            BackendError: The target asks for it.
        """
        fault = _fault(context)
        if fault == "compile":
            raise BackendError(
                "the fake compiler failed, as its target asks",
                backend=self.name,
                target=str(context.target),
            )
        return onnx_artifact(
            self.name, self.version(), candidate, constants="inputs", metadata={"fault": fault}
        )

    def open(self, placed: VirtualDevice, options: RunOptions) -> Device:
        """Return a device with memory of its own."""
        del placed
        return FakeDevice(options)

    def load(self, artifact: Artifact, device: Device) -> FakeExecutable:
        """Return the region, ready to be evaluated.

        Raises:
            BackendError: The target asks for it.
        """
        assert isinstance(device, FakeDevice)
        if artifact.metadata.get("fault") == "load":
            raise BackendError(
                "the fake loader failed, as its target asks",
                backend=self.name,
                target=artifact.target,
            )
        return FakeExecutable(artifact, device)


def _fault(context: BuildContext) -> str:
    assert context.target.target is not None
    return str(context.target.target.attrs.get("fault", ""))


def refuse_undeclared(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse what the target does not declare, what cannot be evaluated, and loose shapes."""
    assert context.target.target is not None
    declared = context.target.target.attrs.get("ops")
    refusals = probe_nodes(graph, context, lacks_evaluation)
    for node in graph.nodes:
        values = [graph.values[i] for i in (*node.inputs, *node.captured, *node.outputs) if i >= 0]
        if declared and node.op_type not in declared:
            refusals[node.id] = refuse(
                node, context, ReasonCode.UNSUPPORTED_OP, f"-ops does not list {node.op_type}"
            )
        elif any(not value.is_static or value.dtype == "string" for value in values):
            refusals[node.id] = refuse(
                node, context, ReasonCode.DYNAMIC_SHAPE, "takes dense tensors of known shape only"
            )
    return refusals


BACKEND = FakeBackend()
