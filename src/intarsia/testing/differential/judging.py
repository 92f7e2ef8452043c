# SPDX-License-Identifier: Apache-2.0
"""One random graph through every target, against two judges: what a worker process does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.registry import load_backends
from intarsia.compiler import compile as compile_model
from intarsia.errors import BackendError, InputError, IntarsiaError, ModelError, UnsupportedError
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.testing.differential.comparing import SIGN_KEEPING, OutputDifference, compare
from intarsia.testing.differential.explaining import explain, flushes, inaccuracies
from intarsia.testing.differential.rounding import Evaluation
from intarsia.testing.differential.unrolling import unroll
from intarsia.testing.graphs import RandomGraph, draw_graph

if TYPE_CHECKING:
    import onnx

FALLBACK = "onnxruntime"
"""Takes the nodes that a target refuses, so that the others are still compared."""


class GraphVerdict(StrEnum):
    """The outcome of one graph on one target, in one word."""

    AGREES = "agrees"
    EXPLAINED = "explained"
    DISAGREES = "disagrees"
    REFUSED = "refused"
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class GraphFinding:
    """The outcome of one graph on one target.

    Attributes:
        target: As it was given; empty for the default.
        threads: How many.
        verdict: In one word.
        rule: The explanation's words, if there is one.
        text: What differs, or the error.
    """

    target: str
    threads: int
    verdict: GraphVerdict
    rule: str = ""
    text: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """Itself as JSON."""
        optional = ("rule", "text")
        return {k: v for k, v in asdict(self).items() if v != "" or k not in optional}


class Judged:
    """A model with numbers, and what the judges say to it.

    Args:
        model: Valid, without functions of its own.
        feeds: Arrays by name, for each run.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> None:
        self.model = model
        self.feeds: list[Mapping[str, Any]] = []
        self.evaluations: list[Evaluation] = []
        for draw in feeds:
            with contextlib.suppress(*() if not self.feeds else (Exception,)):
                self.evaluations.append(Evaluation(model, draw))
                self.feeds.append(draw)
        self._backends = load_backends(Settings.from_environment())
        self._moved: dict[int, list[dict[str, Any]]] = {}
        self.peer_error = ""
        self.is_signed = all(node.op_type in SIGN_KEEPING for node in model.graph.node)

    @cached_property
    def peers(self) -> list[dict[str, Any]]:
        """What ONNX Runtime without optimisations computes for each draw.

        If it refuses the graph, or the process would die of it, it is asked node by node, and the
        reference computes the others.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4

        def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            names = [output.name for output in session.get_outputs()]
            return dict(zip(names, session.run(None, dict(feeds)), strict=True))

        fatal = [
            _fatal(evaluation, self._backends.named(FALLBACK)) for evaluation in self.evaluations
        ]
        self.peer_error = next((words for nodes in fatal for words in nodes.values()), "")
        if not self.peer_error:
            try:
                return [run(self.model, feeds) for feeds in self.feeds]
            except Exception as error:
                self.peer_error = str(error).splitlines()[0]
        judged = zip(self.evaluations, fatal, strict=True)
        return [evaluation.by_nodes(run, nodes) for evaluation, nodes in judged]

    def moved(self, draw: int) -> list[dict[str, Any]]:
        """Return the reference's runs with moved floats."""
        if draw not in self._moved:
            self._moved[draw] = self.evaluations[draw].all_moved()
        return self._moved[draw]

    def differences(self, draw: int, results: Mapping[str, Any]) -> list[OutputDifference]:
        """Return which outputs agree with no judge."""
        judges: list[Mapping[str, Any]] = [self.evaluations[draw].values]
        judges.append(self.peers[draw])
        return compare(results, judges, partial(self.moved, draw), is_signed=self.is_signed)

    @property
    def dispute(self) -> str:
        """Where the two judges differ from each other; a result may agree with either."""
        differences = [
            difference
            for draw, peer in enumerate(self.peers)
            for difference in compare(
                peer,
                [self.evaluations[draw].values],
                partial(self.moved, draw),
                is_signed=self.is_signed,
            )
        ]
        return str(differences[0])[:200] if differences else ""

    def judge(self, target: str, threads: int) -> GraphFinding:
        """Compile for a target, run each draw and the first again, and compare."""
        try:
            with np.errstate(all="ignore"):
                program, is_whole = compile_graph(self.model, target, threads)
                for draw in (*range(len(self.feeds)), 0):
                    results = program.run(dict(self.feeds[draw]))
                    if self.differences(draw, results):
                        return self.explained(target, threads, program, draw, results)
        except UnsupportedError as error:
            return GraphFinding(target, threads, GraphVerdict.REFUSED, text=_first(error))
        except Exception as error:
            if isinstance(error, BackendError) and self._is_absent(target):
                return GraphFinding(target, threads, GraphVerdict.REFUSED, text=_first(error))
            return self._failed(target, threads, error)
        return GraphFinding(
            target, threads, GraphVerdict.AGREES, text="" if is_whole else "with a fallback"
        )

    def _is_absent(self, target: str) -> bool:
        """Tell whether a backend of a target finds none of its devices here."""
        placed = CompilationConfig.resolve(target).targets if target else ()
        return any(not self._backends.for_target(each.target).detect().targets for each in placed)

    def explained(
        self, target: str, threads: int, program: Any, draw: int, results: Mapping[str, Any]
    ) -> GraphFinding:
        """Return the finding about results that agree with no judge.

        Args:
            target: As it was given.
            threads: How many.
            program: What the model was compiled into.
            draw: Which inputs.
            results: Results by name.
        """
        differences = self.differences(draw, results)
        text = "; ".join(map(str, differences[:2]))
        outputs = [difference.output for difference in differences]
        model, evaluation = self._written_out(draw)
        rules = explain(model, program, evaluation.values, outputs, self._backends)
        left = {name: results[name] for name in outputs if name not in rules}
        bounds = self._inaccuracies(program, draw, left) if left else []
        if left and not bounds:
            return GraphFinding(target, threads, GraphVerdict.DISAGREES, text=text)
        words = "; ".join(dict.fromkeys((*rules.values(), *bounds)))
        return GraphFinding(target, threads, GraphVerdict.EXPLAINED, words, text)

    def _inaccuracies(self, program: Any, draw: int, results: Mapping[str, Any]) -> list[str]:
        """Return the stated bounds and flushed numbers that explain all that differs, or nothing.

        They explain only what agrees once the reference has them too.
        """
        model, evaluation = self._written_out(draw)
        bounds = inaccuracies(model, program, list(results), self._backends)
        zeros = flushes(model, program, list(results), self._backends)
        for moved, flushed in ((bounds, {}), ({}, zeros), (bounds, zeros)):
            words = [text for stated in moved.values() for text in stated]
            words += [text for text, _ in flushed.values()]
            judges: list[Mapping[str, Any]] = [evaluation.values, self.peers[draw]]
            if flushed:
                nodes = {name: which for name, (_, which) in flushed.items()}
                judges += [
                    evaluation.flushed(nodes, makes_zeros=makes_zeros)
                    for makes_zeros in (True, False)
                ]
            moves = {name: list(stated.values()) for name, stated in moved.items()}
            if words and not compare(results, judges, partial(evaluation.all_moved, moves)):
                return list(dict.fromkeys(words))
        return []

    def _written_out(self, draw: int) -> tuple[onnx.ModelProto, Evaluation]:
        """Return the model at the sizes of a draw, its bodies written out, and its evaluation."""
        evaluation = self.evaluations[draw]
        model = sized(self.model, self.feeds[draw])
        plain = unroll(model, evaluation.values)
        if plain is None:
            return model, evaluation
        return plain, Evaluation(plain, self.feeds[draw])

    def _failed(self, target: str, threads: int, error: Exception) -> GraphFinding:
        """An error counts unless ONNX Runtime does not take the graph either.

        A model that is found to be wrong is one all the same, unless it is so at some sizes only.
        """
        text = f"{type(error).__name__}: {_first(error)}"
        is_sized = sized(self.model, self.feeds[0]) != self.model
        wrong = InputError if is_sized else (ModelError, InputError)
        ours = isinstance(error, IntarsiaError) and not isinstance(error, wrong)
        is_foreign_refusal = bool(self.peers and self.peer_error) and ours
        verdict = GraphVerdict.REFUSED if is_foreign_refusal else GraphVerdict.ERROR
        return GraphFinding(target, threads, verdict, text=text)


def sized(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model with the sizes that its inputs have, in place of free ones.

    Args:
        model: The model.
        feeds: An array per input, by name.
    """
    static = type(model)()
    static.CopyFrom(model)
    for value in static.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = np.shape(feeds[value.name])[axis]
    return static


def _fatal(evaluation: Evaluation, backend: RegisteredBackend) -> dict[str, str]:
    """Return by first output why ONNX Runtime must not be asked for a node: the process would die.

    Shapes are those of the evaluation: what is empty only while running counts too.
    """
    rules = [rule for rule in backend.defects if rule.is_fatal]
    reasons = {}
    for model in evaluation.alone(frozenset(name for rule in rules for name in rule.operators)):
        graph = Graph.from_model(load(model))
        for node, rule in itertools.product(graph.nodes, rules):
            if rule.describes(graph, node, backend.version()):
                reasons[model.graph.node[0].output[0]] = f"{node.op_type}: {rule.says}"
    return reasons


def compile_graph(model: onnx.ModelProto, target: str, threads: int) -> tuple[Any, bool]:
    """Return a program, and whether the target has all of it; what it refuses has a fallback.

    Nothing is timed, so that a graph is always placed alike, and no program is kept.

    Args:
        model: The model.
        target: Its text; empty for the default.
        threads: How many.

    Raises:
        UnsupportedError: The fallback does not take it either.
        IntarsiaError: As `compile`.
    """
    compiled = partial(compile_model, model, num_threads=threads, probe=False, cache=False)
    try:
        return compiled(target or None), True
    except UnsupportedError:
        if not target or FALLBACK in target:
            raise
    return compiled(f"{target}, {FALLBACK}"), False


def judge_seed(seed: int, plan: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Draw a graph and judge it on targets: what a worker calls.

    Args:
        seed: Of the graph.
        plan: Pairs of a target's text and a number of threads.
    """
    graph = draw_graph(seed)
    judged = Judged(graph.model, graph.draws)
    findings = [judged.judge(target, threads).row for target, threads in plan]
    doubts = {"peer": judged.peer_error[:200], "dispute": judged.dispute}
    return {**facts(graph), **{k: v for k, v in doubts.items() if v}, "findings": findings}


def facts(graph: RandomGraph) -> dict[str, Any]:
    """Return what a graph is, as JSON."""
    return {
        "seed": graph.seed,
        "heart": graph.heart,
        "opset": graph.opset,
        "nodes": [node.op_type for node in graph.model.graph.node],
        "kind": graph.kind,
        "dtype": graph.dtype,
        "family": str(graph.family),
    }


def _first(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:300]
