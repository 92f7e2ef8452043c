# SPDX-License-Identifier: Apache-2.0
"""Layers between Q and DQ nodes: in integers and in float32, compiled and bound, for the tuner.

Each way runs as it would inside a program: between two runs other memory is read, so that weights
come from beyond the second cache, and then the codes, which a layer before would just have written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.calling import calling
from intarsia.backends.device import Step
from intarsia.backends.values import LAYERS, Candidate, TensorSpec
from intarsia.codegen.lower.schedules import Recorder, Schedules
from intarsia.codegen.patterns.codes import read_codes
from intarsia.codegen.patterns.float_layers import keep_floats
from intarsia.codegen.unit import Requantise
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.region import Region
from intarsia.native.native_target import lowering_options, target_cpu, why_not_here
from intarsia.runtime.loader import run_options

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Capability
    from intarsia.target import Target

BOTH_WAYS: Sequence[Mapping[str, str]] = ({LAYERS: "integers"}, {LAYERS: "float32"})
AS_MEASURED: Sequence[Mapping[str, str]] = ({LAYERS: "integers"}, {})
"""Options of the candidates that are compared, the first of them what is taken otherwise."""

_BLOCK_SECONDS = 2e-3
"""What one side of a round takes, about."""
_MOST_RUNS = 8
_FAR_BYTES = 8 << 20
"""Bytes that are read between two runs: more than a second-level cache."""
_CODES = ("int8", "uint8")


def find_layers(capability: Capability, graph: Graph, known: Schedules) -> Recorder:
    """Return the layers of a graph that a target could compute in integers or in float32.

    Args:
        capability: What the target takes.
        graph: Of the model.
        known: What was measured before.
    """
    recorder, target = Recorder(known), capability.target.target
    if not _may_differ(target) or not any(node.op_type == _DEQUANTIZE for node in graph.nodes):
        return recorder
    options = lowering_options(target)
    if options.requantise is Requantise.ONNX and not options.is_bf16:
        refused = capability.refusals
        region = Region.of(graph, [n.id for n in graph.nodes if n.id not in refused])
        if not any(value.is_free for value in graph.values):
            keep_floats(read_codes(region), options.winograd, recorder)
    return recorder


_DEQUANTIZE = "DequantizeLinear"


def _may_differ(target: Target) -> bool:
    """Tell whether code for a target has such a choice, and can be measured here."""
    if not target.kind.is_native or target.attrs.get("runner"):
        return False
    return not why_not_here(target_cpu(target)[0])


class RegionContest:
    """Several ways to compile one region, bound to the same memory.

    Args:
        region: What is compiled.
        capability: The target and its backend.
        ways: Options of each candidate.

    Raises:
        BackendError: One cannot be compiled.
    """

    def __init__(
        self, region: Region, capability: Capability, ways: Sequence[Mapping[str, str]]
    ) -> None:
        backend, context = capability.backend, capability.context
        self._threads = context.num_threads
        self._far = np.ones(_FAR_BYTES // 4, np.float32)
        self._inputs: list[Array] = []
        self._steps: list[Step] = []
        candidate = Candidate.plain(region, capability.target)
        for way in ways:
            with calling(backend.name, context, "on a layer"):
                artifact = backend.compile(replace(candidate, options=way), context)
                options = run_options(self._threads, (backend,), is_shared=False)
                executable = backend.load(artifact, backend.open(capability.target, options))
                self._inputs = self._inputs or [_made_up(spec) for spec in artifact.inputs]
                outputs = [_array(spec) for spec in artifact.outputs]
                scratch = aligned_bytes(executable.scratch_bytes)
                self._steps.append(executable.bind(self._inputs, outputs, scratch))
        self._counts = [self._count(number) for number in range(len(ways))]

    def seconds(self, candidate: int) -> float:
        """Run one for about 2 ms, and return the seconds of a run."""
        return self._run(candidate, self._counts[candidate])

    def close(self) -> None:
        """Give back its memory and code."""
        self._steps.clear()

    def _count(self, candidate: int) -> int:
        self._steps[candidate]()
        count = math.ceil(_BLOCK_SECONDS / max(self._run(candidate, 1), 1e-7))
        return min(count, _MOST_RUNS)

    def _run(self, candidate: int, count: int) -> float:
        # one thread's own time leaves out what other processes take from it
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        step, seconds = self._steps[candidate], 0.0
        for _ in range(count):
            self._far.sum()
            for array in self._inputs:
                array.sum()
            start = clock()
            step()
            seconds += clock() - start
        return seconds / count


def _array(spec: TensorSpec) -> Array:
    assert spec.shape is not None
    return (
        aligned_bytes(max(1, spec.nbytes))[: spec.nbytes]
        .view(np_dtype(spec.dtype))
        .reshape(spec.shape)
    )


def _made_up(spec: TensorSpec) -> Array:
    """Return numbers for an input: all codes, floats, and zeros for what may be indices."""
    array, rng = _array(spec), np.random.default_rng(0)
    if spec.dtype in _CODES:
        limits = np.iinfo(spec.dtype)
        array[...] = rng.integers(limits.min, limits.max + 1, array.shape)
    elif spec.dtype.startswith(("float", "bfloat")):
        array[...] = rng.standard_normal(array.shape)
    return array
