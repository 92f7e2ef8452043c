# SPDX-License-Identifier: Apache-2.0
"""The `fake` kind: an accelerator for tests, with memory of its own that the host cannot read.

It computes through the ONNX reference evaluator. Its target declares what it can do
(`fake -ops=Add,Relu`), what that costs (`fake -cost=Add:1e-3`) and how it fails (`fake -fault=run
-fault-ops=Relu`). The device has a clock of its own, which calls and copies advance by exactly
what they cost, so that measuring takes no time and is never wrong. What running costs is invented
and exact, and all in the target: `fake -cost=Relu:1e-3,Conv+Relu:2e-3,*:1e-4 -call-cost=1e-5`.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import onnx_artifact, probe_nodes, refuse
from intarsia.backends.device import Buffer, Device, Step, ThreadOptions
from intarsia.backends.evaluator import Evaluator, lacks_evaluation
from intarsia.backends.values import Artifact, Detection, FusedGroup, Refusal, Rule, TensorSpec
from intarsia.cost.cost import Cost, CostSource
from intarsia.errors import BackendError, ExecutionError, ReasonCode, TargetError
from intarsia.graph.region import Region
from intarsia.process.workers import own_seconds
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.graph.graph import Graph
    from intarsia.target import VirtualDevice

ANY = "*"
"""Stands for all operators without a cost of their own."""

_DEFAULT_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class FakeCosts:
    """The prices of one target.

    Attributes:
        operators: Seconds by operator, or by a whole region's operators joined by `+` in the order
            of the nodes.
        fusion: The k-th operator of a region costs `fusion ** k` of its price.
        call_seconds: Of each call.
        copy_seconds: Of each copy to or from the device.
        copy_seconds_per_byte: Beside that.
        kept: Bytes by operator that a loaded region keeps.
        estimate: What `estimate` says, as a part of the truth; None means that it says nothing.
    """

    operators: Mapping[str, float] = field(default_factory=dict)
    fusion: float = 1.0
    call_seconds: float = 0.0
    copy_seconds: float = 0.0
    copy_seconds_per_byte: float = 0.0
    estimate: float | None = None
    kept: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> FakeCosts:
        """Read the attributes of a target.

        Raises:
            TargetError: One is not a number.
        """
        operators, kept_bytes = (
            {
                name: _number(attribute, text)
                for name, _, text in (entry.rpartition(":") for entry in attrs.get(attribute, ()))
            }
            for attribute in ("cost", "kept")
        )
        copy, copied_byte, *_ = (
            *(_number("copy-cost", text) for text in attrs.get("copy-cost", ())),
            *(0.0, 0.0),
        )
        factor = attrs.get("estimate")
        return cls(
            operators,
            _number("fusion", attrs.get("fusion", "1")),
            _number("call-cost", attrs.get("call-cost", "0")),
            copy,
            copied_byte,
            None if factor is None else _number("estimate", factor),
            kept_bytes,
        )

    def seconds(self, operators: Sequence[str]) -> float:
        """Return what one run of a region costs, the call itself left out.

        Args:
            operators: Of its nodes, in their order.
        """
        whole = self.operators.get("+".join(operators))
        if whole is not None:
            return whole
        other = self.operators.get(ANY, _DEFAULT_SECONDS)
        prices = (self.operators.get(name, other) for name in operators)
        return sum(price * self.fusion**k for k, price in enumerate(prices))

    def kept_bytes(self, operators: Sequence[str]) -> int:
        """Return how many bytes a loaded region keeps.

        Args:
            operators: Of its nodes.
        """
        other = self.kept.get(ANY, 0.0)
        return round(sum(self.kept.get(name, other) for name in operators))


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise TargetError(
            f"-{name}={text!r} is not a number of seconds",
            hint="write seconds: -cost=Relu:1e-3,Add:2e-3 -call-cost=1e-5 -copy-cost=1e-6,1e-10",
        )
    return number


# Four of eight bits, so that neither zeros nor text nor small integers look right by chance.
_SCRAMBLE = 0xA5
_KEYS = itertools.count()
# Later than the run by which a probe is checked: in the middle of a race.
_LATER_RUN, _SLOW_FACTOR = 3, 100.0
_SLOW_SECONDS, _SLOWNESS = 0.5, 15.0
"""Of the clock on the wall, at least so long, and so many times what the evaluation takes: a fault
that whoever times a real run sees."""

_LEAK_BYTES = 64 << 20
_OFF = 0.1
"""Relative error of numbers that are made wrong on purpose."""

_loads: Counter[str] = Counter()
"""How many programs of each target this process has loaded."""

_leaked: list[bytes] = []


class FakeTensor:
    """A handle to a tensor in a fake device's memory: no buffer protocol, no `__array__`."""

    __slots__ = ("__weakref__", "device", "key", "spec")

    def __init__(self, device: FakeDevice, key: int, spec: TensorSpec) -> None:
        self.device = device
        self.key = key
        self.spec = spec


class FakeDevice:
    """Memory whose bytes are scrambled, so that an access that is not a copy shows as nonsense."""

    def __init__(
        self, options: ThreadOptions | None = None, costs: FakeCosts | None = None
    ) -> None:
        self.options = options or ThreadOptions()
        self.costs = costs or FakeCosts()
        self._memory: dict[int, Array] = {}
        self._busy = 0.0

    def clock(self) -> float:
        """Return for how long it would have been busy, in seconds."""
        return self._busy

    def work(self, seconds: float) -> None:
        """Let the clock advance."""
        self._busy += seconds

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
        self._put(source, destination)
        self._work_on_copy(destination)

    def store(self, result: Array, destination: FakeTensor) -> None:
        """Put what was computed here into a tensor."""
        self._put(result, destination)

    def _put(self, source: Array, destination: FakeTensor) -> None:
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._memory[destination.key][:] = flat ^ _SCRAMBLE

    def _work_on_copy(self, tensor: FakeTensor) -> None:
        costs = self.costs
        self.work(costs.copy_seconds + costs.copy_seconds_per_byte * tensor.spec.nbytes)

    def read(self, source: FakeTensor, destination: Array) -> None:
        """Copy into host memory, unscrambling."""
        self._own(source)
        self._get(source, destination)
        self._work_on_copy(source)

    def _get(self, source: FakeTensor, destination: Array) -> None:
        flat = self._memory[source.key] ^ _SCRAMBLE
        assert source.spec.shape is not None
        np.copyto(destination, flat.view(np_dtype(source.spec.dtype)).reshape(source.spec.shape))

    def fetch(self, source: FakeTensor) -> Array:
        """Return a fresh array with a tensor's contents, for what computes here."""
        self._own(source)
        assert source.spec.shape is not None
        array = np.empty(source.spec.shape, np_dtype(source.spec.dtype))
        self._get(source, array)
        return array

    def _own(self, tensor: FakeTensor) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.device is not self:
            raise ExecutionError(
                "a fake device was given a tensor that is not in its memory", backend="fake"
            )


class FakeExecutable:
    """One region on one fake device."""

    scratch_bytes = 0
    survives_fork = True

    def __init__(self, artifact: Artifact, device: FakeDevice) -> None:
        self._evaluate = Evaluator(artifact)
        self._device = device
        self._fault = artifact.metadata.get("fault", "")
        self._seconds = float(artifact.metadata.get("seconds", "0"))
        self._kept = np.ones(int(artifact.metadata.get("kept", "0")), np.uint8)
        self._runs = 0

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that evaluates the region inside the device."""
        device = self._device

        def step() -> None:
            self._runs += 1
            is_late = self._runs == _LATER_RUN
            is_slow = is_late and self._fault == "slow-once"
            device.work(self._seconds * (_SLOW_FACTOR if is_slow else 1.0))
            fault = self._fault
            if fault.startswith("later-"):
                fault = fault.removeprefix("later-") if is_late else ""
            _fail(fault)
            start = own_seconds()
            results = self._evaluate([device.fetch(buffer) for buffer in inputs])
            if fault == "slow":
                time.sleep(max(_SLOW_SECONDS, _SLOWNESS * (own_seconds() - start)))
            for buffer, result in zip(outputs, results, strict=True):
                device.store(_spoil(result, fault), buffer)

        return step


def _fail(fault: str) -> None:
    """Show a fault that ends a run, if it is one."""
    if fault == "run":
        raise ExecutionError("the fake device failed, as its target asks", backend="fake")
    if fault.endswith("hang"):
        threading.Event().wait()  # without a clock, which tests replace: a hang outlives its test
    if fault.endswith("segfault"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "leak":
        # Bytes that were written: untouched pages would not be resident.
        _leaked.append(os.urandom(1) * _LEAK_BYTES)


def _spoil(result: Array, fault: str) -> Array:
    """Return numbers that are as wrong as a fault asks."""
    if result.dtype.kind != "f" or fault not in ("nan", "wrong", "layout"):
        return result
    if fault == "layout":  # column-major, where rows are wanted
        return np.ravel(result, order="F").reshape(result.shape)
    return np.full_like(result, np.nan) if fault == "nan" else result * (1 + _OFF) + _OFF


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
        """Return one rule: the operators that the target declares.

        Raises:
            TargetError: A cost is not a number.
        """
        FakeCosts.of(context.attrs)
        return (Rule("declared", refuse_undeclared),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Refuse a part of what the target declares to be whole; take all else."""
        if not context.attrs.get("is-whole"):
            return None
        graph = candidate.region.graph
        everything = Region.of(graph, range(len(graph.nodes)))
        for group in self.groups(everything, context):
            inside = [node for node in group.nodes if node in candidate.region]
            if 0 < len(inside) < len(group.nodes):
                reason = f"it is part of {group.name}, which runs only as a whole"
                return refuse(graph.nodes[inside[0]], context, ReasonCode.UNSUPPORTED_OP, reason)
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return chains of the operators that the target declares to run as one."""
        groups: list[FusedGroup] = []
        taken: set[int] = set()
        for name in context.attrs.get("groups", ()):
            for node in region.nodes:
                chain = _chain(region, node, name.split("+"))
                if len(chain) > 1 and taken.isdisjoint(chain):
                    taken.update(chain)
                    groups.append(FusedGroup(tuple(chain), name))
        return tuple(groups)

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return the estimate that its target asks for, a fraction of the true cost, or None."""
        costs = FakeCosts.of(context.attrs)
        if costs.estimate is None:
            return None
        seconds = costs.seconds(_operators(candidate)) * costs.estimate
        return Cost(seconds=seconds, nbytes=0, source=CostSource.ESTIMATED)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX.

        Raises:
            BackendError: The target asks for it.
        """
        attrs = context.attrs
        operators = _operators(candidate)
        wanted = attrs.get("fault-ops")
        has_fault = not wanted or any(_has_run(operators, name.split("+")) for name in wanted)
        fault = str(attrs.get("fault", "")) if has_fault else ""
        if fault.startswith("compile-"):
            _fail(fault)
        if fault == "compile":
            raise BackendError(
                "the fake compiler failed, as its target asks",
                backend=self.name,
                target=str(context.target),
            )
        costs = FakeCosts.of(attrs)
        metadata = {
            "fault": fault,
            "seconds": repr(costs.seconds(operators) + costs.call_seconds),
            "copy-cost": f"{costs.copy_seconds!r},{costs.copy_seconds_per_byte!r}",
            "budget": str(attrs.get("budget", "")),
            "kept": str(costs.kept_bytes(operators)),
        }
        artifact = onnx_artifact(
            self.name, self.version(), candidate, constants="inputs", metadata=metadata
        )
        return _lie(artifact, fault)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return a device with memory of its own."""
        attrs = placed.target.attrs if placed.target is not None else {}
        return FakeDevice(options, FakeCosts.of(attrs))

    def is_data(self, artifact: Artifact) -> bool:
        """Tell whether it shows no fault: some end the process."""
        return not artifact.metadata.get("fault")

    def load(self, artifact: Artifact, device: Device) -> FakeExecutable:
        """Return the region, ready to be evaluated.

        Raises:
            BackendError: The target asks for it, or its budget is spent.
        """
        assert isinstance(device, FakeDevice)
        metadata = artifact.metadata
        if metadata.get("fault") == "load":
            raise BackendError(
                "the fake loader failed, as its target asks",
                backend=self.name,
                target=artifact.target,
            )
        _loads[artifact.target] += 1
        budget = metadata.get("budget")
        if budget and _loads[artifact.target] > int(budget):
            raise BackendError(
                f"the fake device has loaded {budget} programs, and may load no more",
                backend=self.name,
                target=artifact.target,
            )
        copies = metadata.get("copy-cost", "0,0").split(",")
        device.costs = FakeCosts.of({"copy-cost": copies})  # it was opened without its target
        return FakeExecutable(artifact, device)


def _chain(region: Region, first: int, operators: Sequence[str]) -> list[int]:
    """Return the nodes of these operators, of which each alone reads the one before; or nothing."""
    graph = region.graph
    chain = [first]
    for operator in operators[1:]:
        after = graph.successors[chain[-1]]
        is_seen = any(value in region.outputs for value in graph.nodes[chain[-1]].outputs)
        if len(after) != 1 or is_seen or graph.nodes[after[0]].op_type != operator:
            return []
        chain.append(after[0])
    return chain if graph.nodes[first].op_type == operators[0] else []


def _has_run(operators: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tell whether some operators stand one after another, as they are fused by mistake."""
    ends = range(len(wanted), len(operators) + 1)
    return any(list(operators[end - len(wanted) : end]) == list(wanted) for end in ends)


def _operators(candidate: Candidate) -> list[str]:
    region = candidate.region
    return [region.graph.nodes[node].op_type for node in region.nodes]


def _lie(artifact: Artifact, fault: str) -> Artifact:
    """Return an artifact that says something else of its outputs, if the fault is a lie."""
    if fault == "shape":
        outputs = (replace(spec, shape=(*(spec.shape or ()), 1)) for spec in artifact.outputs)
    elif fault == "dtype":
        outputs = (replace(spec, dtype="float64") for spec in artifact.outputs)
    else:
        return artifact
    return replace(artifact, outputs=tuple(outputs))


def refuse_undeclared(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse operators that the target does not declare, unevaluable ones, and dynamic shapes."""
    declared = context.attrs.get("ops")
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
