# SPDX-License-Identifier: Apache-2.0
"""Proof that random graphs see: known defects are put back one by one, and must be found.

A defect that is refused or explained by a rule of its backend is put back by forgetting the rule
(what other rules state of its operators is forgotten meanwhile, with it and without);
one that folding avoids, by folding again; one that was mended, by the old computation (`mended`).
Where reproducers are known (`reproducers`), each operator of a rule is looked for by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from intarsia.backends.defects import KnownDefect, forgotten
from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import BackendError
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.passes import fold_constants
from intarsia.settings import Settings
from intarsia.testing.differential.explaining import arrays_of, node_of
from intarsia.testing.differential.judging import GraphFinding, GraphVerdict, Judged
from intarsia.testing.differential.mended import MENDED, REPRODUCERS, Shown
from intarsia.testing.graphs import OPERATORS, draw_graph

LAST_SEED = 400_000
"""Where a search ends, which may have tried less graphs than it was to."""

PEER = "onnxruntime"
"""A judge: of its defects, those of its optimisations are looked for, which have reproducers."""

TWIN = "opencl"
"""It runs the kernels of `llvm`, and has the same rules, which are put back there."""

TARGETS = {"dnnl": "dnnl, llvm", "openvino": "openvino, onnxruntime"}
"""By backend, the target that its defects are looked for on; the backend's name where it lacks."""

_BAD = (GraphVerdict.DISAGREES, GraphVerdict.ERROR)


@dataclass(frozen=True)
class Switch:
    """A defect that can be put back.

    Attributes:
        name: Names it.
        target: Text of the target that it shows on.
        operators: One of which a graph needs; empty for any.
        concerns: Whether it may show in a graph.
        back: Puts it back while the block lasts.
        reproducers: Names of models that showed it first.
        masks: Rules that would explain what it does, and are forgotten with it and without.
    """

    name: str
    target: str
    operators: frozenset[str]
    concerns: Callable[[Judged], bool]
    back: Callable[[], AbstractContextManager[Any]]
    reproducers: tuple[str, ...] = ()
    masks: tuple[KnownDefect, ...] = ()


def switches() -> list[Switch]:
    """Return every defect that can be put back, in a fixed order."""
    backends = load_backends(Settings.from_environment())
    return [*_rules(backends), *_foldings(), *_mended(backends)]


def _rules(backends: Backends) -> Iterator[Switch]:
    for name, backend in sorted(backends.by_name.items()):
        if name == TWIN or not _is_here(backend):
            continue
        defects: tuple[KnownDefect, ...] = tuple(getattr(backend, "defects", ()))
        for defect in defects:
            alone = [
                each
                for each in sorted(REPRODUCERS)
                if (each.backend, each.says) == (name, defect.says)
                and each.op_type in (defect.operators or {each.op_type})
            ]
            for each in alone:
                found_by = REPRODUCERS[each]
                yield _rule(defect, backend, frozenset((each.op_type,)), found_by)
            if not alone and name != PEER:
                yield _rule(defect, backend, defect.operators)


def _is_here(backend: Any) -> bool:
    """Tell whether a backend has what it needs: without a GPU's driver nothing of it is seen."""
    try:
        backend.version()
    except BackendError:
        return False
    return True


def _rule(
    defect: KnownDefect,
    backend: Any,
    operators: frozenset[str],
    reproducers: tuple[str, ...] = (),
) -> Switch:
    return Switch(
        f"{defect.backend} {' '.join(sorted(operators)) or 'all'}: {defect.says}",
        TARGETS.get(defect.backend, defect.backend),
        operators,
        partial(_describes, defect, backend.version(), operators),
        partial(forgotten, defect),
        reproducers,
        tuple(other for other in _stated(backend, operators) if other is not defect),
    )


def _stated(backend: Any, operators: frozenset[str]) -> Iterator[KnownDefect]:
    """Yield the rules of a backend that explain something of such operators."""
    for defect in getattr(backend, "defects", ()):
        if not defect.is_refused and defect.operators & operators:
            yield defect


def _foldings() -> Iterator[Switch]:
    operators = fold_constants.MISEVALUATED
    for name in sorted(operators):
        without = partial(patch.object, fold_constants, "MISEVALUATED", operators - {name})
        words = f"folding {name}: the reference evaluator gets it wrong in some versions"
        concerns = partial(_folds, name)
        yield Switch(words, "onnxruntime", frozenset((name,)), concerns, without)


def _mended(backends: Backends) -> Iterator[Switch]:
    for each in MENDED:
        reproducers = REPRODUCERS.get(Shown("", *each.name.split(": ", 1)), ())
        words = f"mended {each.name}"
        backend = backends.named(each.target.split(",")[0])
        masks = tuple(_stated(backend, each.operators))
        shown = (each.may_show, each.back, reproducers)
        yield Switch(words, each.target, each.operators, *shown, masks)


def _describes(
    defect: KnownDefect, version: str, operators: frozenset[str], judged: Judged
) -> bool:
    nodes = [
        proto
        for proto in judged.model.graph.node
        if (not operators or proto.op_type in operators)
        and any(
            defect.explains(arrays_of(proto, evaluation.values))
            for evaluation in judged.evaluations
        )
    ]
    if not nodes:
        return False
    graph = Graph.from_model(load(judged.model))
    return any(defect.describes(graph, node_of(graph, proto), version) for proto in nodes)


def _folds(name: str, judged: Judged) -> bool:
    constants = {tensor.name for tensor in judged.model.graph.initializer}
    outputs = {output.name for output in judged.model.graph.output}
    return any(
        node.op_type == name
        and constants.issuperset(filter(None, node.input))
        and outputs.isdisjoint(node.output)
        for node in judged.model.graph.node
    )


def find(index: int, tries: int, first: int | None = None, threads: int = 1) -> dict[str, Any]:
    """Put a defect back and return the first seed that finds it: what a worker calls.

    A seed finds a defect if it disagrees with the defect put back, and not without.

    Args:
        index: Of the defect in `switches`.
        tries: How many graphs that it may show in to try.
        first: A seed to begin with, such as the one that found it the last time.
        threads: Of each program.
    """
    switch = switches()[index]
    row = {"name": switch.name, "reproducers": switch.reproducers}
    tried = 0
    remembered = [] if first is None else [first]
    for seed in itertools.chain(remembered, _seeds(switch.operators)):
        if tried == tries:
            break
        graph = draw_graph(seed)
        kinds = {node.op_type for node in graph.model.graph.node}
        if switch.operators and switch.operators.isdisjoint(kinds):
            continue
        judged = Judged(graph.model, graph.draws)
        if not switch.concerns(judged):
            continue
        tried += 1
        finding = put_back(switch, judged, threads)
        if finding is not None:
            return {**row, "seed": seed, "tried": tried, "text": finding.text}
    return {**row, "seed": None, "tried": tried, "text": ""}


def put_back(switch: Switch, judged: Judged, threads: int = 1) -> GraphFinding | None:
    """Return what a defect that is put back makes of a graph that is right without it, or None.

    Args:
        switch: The defect.
        judged: The graph.
        threads: Of each program.
    """
    for masks in ((), switch.masks):
        with ExitStack() as masked:
            for mask in masks:
                masked.enter_context(forgotten(mask))
            with switch.back():
                finding = judged.judge(switch.target, threads)
            if finding.verdict in _BAD and judged.judge(switch.target, threads).verdict not in _BAD:
                return finding
        if finding.verdict is GraphVerdict.AGREES:
            break
    return None


def _seeds(operators: frozenset[str]) -> Iterator[int]:
    """Yield seeds whose graphs are drawn for one of these operators, and all others between."""
    hearts = [i for i, name in enumerate(OPERATORS) if not operators or name in operators]
    remaining = iter(seed for seed in range(LAST_SEED) if seed % len(OPERATORS) not in hearts)
    for turn in range(0, LAST_SEED, len(OPERATORS)):
        for heart in hearts:
            yield turn + heart
            yield from itertools.islice(remaining, 1)
