# SPDX-License-Identifier: Apache-2.0
"""What the reference makes of the inputs of a region of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from intarsia.backends.artifact import onnx_artifact
from intarsia.backends.evaluator import Evaluator
from intarsia.backends.values import Candidate
from intarsia.errors import BackendError, IntarsiaError
from intarsia.graph.extract import extract
from intarsia.graph.region import Region
from intarsia.measure.divergence import WorstElement, asked_precision, compare_value, find_worst
from intarsia.process.workers import own_seconds
from intarsia.target import PlacedTarget
from intarsia.verifying.judging import judge_cost, judge_outputs
from intarsia.verifying.values import Fault, RegionAgreement, RegionFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from intarsia.graph.graph import Graph
    from intarsia.plan.placement import PlacedRegion, Placement
    from intarsia.runtime.monitor import WatchedRegion


class RegionReference:
    """A region of a prepared model, evaluated by the reference.

    Args:
        region: It.

    Raises:
        BackendError: The reference does not know an operator.
    """

    def __init__(self, region: Region) -> None:
        candidate = Candidate.plain(region, PlacedTarget.parse("reference"))
        artifact = onnx_artifact("reference", onnx.__version__, candidate, constants="inputs")
        self._evaluate = Evaluator(artifact)
        self.inputs = tuple(spec.name for spec in artifact.inputs)
        self.outputs = tuple(spec.name for spec in artifact.outputs)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return its outputs, by name.

        Raises:
            ExecutionError: The evaluator failed.
        """
        results = self._evaluate([inputs[name] for name in self.inputs])
        return dict(zip(self.outputs, results, strict=True))


class RegionJudge:
    """Compares the calls of a program's regions with the reference, run after run.

    Args:
        graph: The prepared model.
        placement: Of the program that was made of it.

    Attributes:
        faults: What went wrong so far: the first fault of each region.
        evidence: What the region of the first fault of numbers read.
    """

    def __init__(self, graph: Graph, placement: Placement) -> None:
        self.graph, self.placement = graph, placement
        self.faults: list[RegionFault] = []
        self.evidence: dict[str, Any] = {}
        self.run = 0
        self._names = {node.name: node.id for node in graph.nodes}
        self._references: dict[int, RegionReference | str] = {}
        self._errors: dict[int, float] = {}
        self._worst: dict[int, WorstElement | None] = {}
        self._spent: dict[int, list[tuple[float, float, int]]] = {}

    def region_of(self, position: int) -> Region | None:
        """Return a placed region in the prepared model; None if nodes of it are not there."""
        names = [node.name for node in self.placement.regions[position].nodes]
        if any(name not in self._names for name in names):
            return None
        return Region.of(self.graph, (self._names[name] for name in names))

    def judge(self, watched: WatchedRegion) -> Fault | None:
        """Compare one call with the reference, and note what is wrong; return the fault."""
        position = watched.region
        reference = self._reference(position)
        placed = self.placement.regions[position]
        if isinstance(reference, str):
            return None
        missing = [name for name in reference.inputs if name not in watched.inputs]
        if missing:
            self._references[position] = f"the program does not hand it {missing[0]!r}"
            return None
        start = own_seconds()
        try:
            expected = reference(watched.inputs)
        except IntarsiaError as error:
            self._references[position] = f"the reference failed: {error.message}"
            return None
        seconds = own_seconds() - start
        fault, found = judge_outputs(
            watched.inputs,
            expected,
            watched.outputs,
            {node.op_type for node in placed.nodes},
            precision_of(placed.target),
            reference,
        )
        self._note(position, found.error, expected, watched.outputs)
        if self.run:
            spent = self._spent.setdefault(position, [])
            spent.append((watched.seconds, seconds, watched.grown))
            ours, references, grown = zip(*spent, strict=True)
            fault = fault or judge_cost(ours, min(references), grown)
        if fault is not None and position not in {one.region for one in self.faults}:
            if not self.faults:
                self.evidence = dict(watched.inputs)
            self.faults.append(region_fault(position, placed, self.run, fault))
        return fault

    def agreements(self) -> tuple[RegionAgreement, ...]:
        """Return how near each region came, in their order."""
        found = []
        for position, placed in enumerate(self.placement.regions):
            reference = self._references.get(position, "it did not run")
            found.append(
                RegionAgreement(
                    position,
                    placed.runs_on,
                    placed.operators,
                    self._errors.get(position, 0.0),
                    self._worst.get(position),
                    reference if isinstance(reference, str) else "",
                )
            )
        return tuple(found)

    def _note(
        self, position: int, error: float, expected: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> None:
        """Keep the largest error of a region, and its worst element."""
        if position in self._errors and error <= self._errors[position]:
            return
        self._errors[position] = error
        self._worst[position] = worst_of(expected, actual)

    def _reference(self, position: int) -> RegionReference | str:
        """Return the reference of a region, or why there is none."""
        if position not in self._references:
            region = self.region_of(position)
            made: RegionReference | str = "the prepared model has other nodes"
            if region is not None:
                try:
                    made = RegionReference(region)
                except (BackendError, IntarsiaError) as error:
                    made = error.message
            self._references[position] = made
        return self._references[position]


def region_fault(position: int, placed: PlacedRegion, run: int, fault: Fault) -> RegionFault:
    """Return a fault with the region that it is of."""
    names = tuple(node.name for node in placed.nodes)
    return RegionFault(position, placed.target, names, placed.operators, run, fault)


def precision_of(target: str) -> str:
    """Return the precision that a placed target asks for; empty if none."""
    return asked_precision(PlacedTarget.parse(target).target.attrs)


def worst_of(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> WorstElement | None:
    """Return the worst element of all outputs, by what is tolerated; None if all are equal."""
    worst, most = None, -1.0
    for name, value in expected.items():
        if not isinstance(value, np.ndarray) or name not in actual:
            continue
        found = compare_value(name, value, actual[name]).error
        element = find_worst(value, actual[name])
        if element is not None and found > most:
            worst, most = element, found
    return worst


def evaluate_all(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value of a model by name, its inputs among them, as the reference computes it.

    Args:
        graph: The model; values of text are left out.
        feeds: An array per input, by name.

    Raises:
        BackendError: The reference does not know an operator, or failed.
    """
    computed: Iterable[int] = [
        value.id for value in graph.values if value.producer >= 0 and value.dtype != "string"
    ]
    view = graph.with_ends(graph.inputs, computed)
    return {**feeds, **RegionReference(view.whole)(feeds)}


def embedded(region: Region) -> bytes:
    """Return a region as a model that holds its constants.

    Raises:
        ModelError: A value at its border has no type, or it is larger than a file may be.
    """
    return extract(region, constants="embed").model
