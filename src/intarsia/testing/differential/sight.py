# SPDX-License-Identifier: Apache-2.0
"""Proof that random graphs see: known defects are put back one by one, and must be found.

A defect that is refused or explained by a rule of its backend is put back by forgetting the rule;
one that folding avoids, by folding again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from intarsia.backends.defects import KnownDefect, forgotten
from intarsia.backends.registry import load_backends
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.passes import fold_constants
from intarsia.testing.differential.explaining import arrays_of, node_of
from intarsia.testing.differential.judging import Judged, Verdict
from intarsia.testing.graphs import OPERATORS, draw_graph

_LAST = 200_000

PEER = "onnxruntime"
"""Its defects are not looked for: it is a judge."""

TARGETS = {"dnnl": "dnnl, llvm", "openvino": "openvino, onnxruntime"}
"""By backend, the target that its defects are looked for on; the backend's name where it lacks."""


@dataclass(frozen=True)
class Switch:
    """A defect that can be put back.

    Attributes:
        name: Names it.
        target: Text of the target that it shows on.
        operators: What graphs are drawn for.
        concerns: Whether it may show in a graph.
        back: Puts it back while the block lasts.
    """

    name: str
    target: str
    operators: frozenset[str]
    concerns: Callable[[Judged], bool]
    back: Callable[[], AbstractContextManager[Any]]


def switches() -> list[Switch]:
    """Return every defect that can be put back, in a fixed order."""
    return [*_rules(), *_foldings()]


def _rules() -> Iterator[Switch]:
    for name, backend in sorted(load_backends().by_name.items()):
        if name == PEER:
            continue
        known: tuple[KnownDefect, ...] = tuple(getattr(backend, "defects", ()))
        for defect in known:
            words = f"{name} {' '.join(sorted(defect.operators))}: {defect.says}"
            target = TARGETS.get(name, name)
            concerns = partial(_describes, defect, backend.version())
            yield Switch(words, target, defect.operators, concerns, partial(forgotten, defect))


def _foldings() -> Iterator[Switch]:
    known = fold_constants.MISEVALUATED
    for name in sorted(known):
        without = partial(patch.object, fold_constants, "MISEVALUATED", known - {name})
        words = f"folding {name}: the reference evaluator gets it wrong in some versions"
        concerns = partial(_folds, name)
        yield Switch(words, "onnxruntime", frozenset((name,)), concerns, without)


def _describes(defect: KnownDefect, version: str, judged: Judged) -> bool:
    graph = Graph.from_model(load(judged.model))
    return any(
        defect.explains(arrays_of(proto, evaluation.values))
        for proto in judged.model.graph.node
        if defect.describes(graph, node_of(graph, proto), version)
        for evaluation in judged.evaluations
    )


def _folds(name: str, judged: Judged) -> bool:
    constants = {tensor.name for tensor in judged.model.graph.initializer}
    outputs = {output.name for output in judged.model.graph.output}
    return any(
        node.op_type == name
        and constants.issuperset(filter(None, node.input))
        and outputs.isdisjoint(node.output)
        for node in judged.model.graph.node
    )


def find(index: int, tries: int, threads: int = 1) -> dict[str, Any]:
    """Put a defect back and return the first seed that finds it: what a worker calls.

    A seed finds a defect if it disagrees with the defect put back, and not without.

    Args:
        index: Of the defect in `switches`.
        tries: How many graphs that it may show in to try.
        threads: Of each program.
    """
    switch = switches()[index]
    tried = 0
    for seed in _seeds(switch.operators):
        if tried == tries or seed > _LAST:
            break
        graph = draw_graph(seed)
        judged = Judged(graph.model, (graph.feeds, graph.others))
        if not switch.concerns(judged):
            continue
        tried += 1
        with switch.back():
            finding = judged.judge(switch.target, threads)
        bad = (Verdict.DISAGREES, Verdict.ERROR)
        if finding.verdict in bad and judged.judge(switch.target, threads).verdict not in bad:
            return {"name": switch.name, "seed": seed, "tried": tried, "text": finding.text}
    return {"name": switch.name, "seed": None, "tried": tried, "text": ""}


def _seeds(operators: frozenset[str]) -> Iterator[int]:
    """Yield the seeds whose graphs are drawn for one of these operators."""
    hearts = [i for i, name in enumerate(OPERATORS) if name in operators]
    turn = 0
    while hearts:
        yield from (heart + turn * len(OPERATORS) for heart in hearts)
        turn += 1
