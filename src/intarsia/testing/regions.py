# SPDX-License-Identifier: Apache-2.0
"""Check: what the rules take as a whole region compiles, loads and gives the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from intarsia.graph.region import Region
from intarsia.place.order import cut_regions
from intarsia.testing.case import Problem
from intarsia.testing.judging import NotApplicable
from intarsia.testing.sketch import Sketch, random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

SENTENCE = "What the rules take as a whole region compiles, loads and gives the numbers."

SEEDS = 12
_CHAIN = 12

Writer = Callable[[Subject, Sketch], list[str]]


def trials() -> Iterator[Trial]:
    """Yield hand-written regions and random graphs."""
    for name, write in WRITTEN.items():
        yield Trial("regions", name, partial(written, name=name, write=write))
    for seed in range(SEEDS):
        yield Trial("regions", f"random_graph_{seed}", partial(drawn, seed=seed))


def written(subject: Subject, name: str, write: Writer) -> None:
    """Try a region written by hand."""
    sketch = Sketch(np.random.default_rng(len(name)))
    outputs = write(subject, sketch)
    verify_cut(subject, sketch.finish(name, outputs), halves=False)


def drawn(subject: Subject, seed: int) -> None:
    """Try a random graph of operators that the backend takes alone, whole and in two halves."""
    verify_cut(subject, random_problem(taken_moves(subject), seed), halves=True)


def verify_cut(subject: Subject, problem: Problem, *, halves: bool) -> None:
    """Run every region that the backend takes on values from the reference.

    Args:
        subject: The backend.
        problem: The graph.
        halves: Whether to try the earlier and the later half of the nodes as well.
    """
    graph = subject.graph(problem.model)
    refused = subject.refusals(graph, problem.title)
    count = len(graph.nodes)
    taken = [-1 if node in refused else 0 for node in range(count)]
    cuts = [taken]
    if halves and count > 1:
        cuts.append([side if side < 0 else int(i >= count // 2) for i, side in enumerate(taken)])
    has_any = False
    for cut in cuts:
        for side, nodes in cut_regions(graph, cut):
            if side < 0:
                continue
            has_any = True
            region = Region.of(graph, nodes)
            operators = ", ".join(graph.nodes[node].op_type for node in nodes)
            title = f"{problem.title}, region of {operators}"
            subject.verify_region(region, problem.values, title, REGION_FACTOR)
    if not has_any:
        first = next(iter(refused.values()))
        raise NotApplicable(f"refused: {first.code}: {first.reason}")


def _one(subject: Subject, s: Sketch, x: str, which: int = 0) -> str:
    moves = taken_moves(subject, 1)
    return moves[which % len(moves)].write(s, x)


def _two(subject: Subject, s: Sketch, x: str, z: str) -> str:
    return taken_moves(subject, 2)[0].write(s, x, z)


def _two_outputs(subject: Subject, s: Sketch) -> list[str]:
    first = _one(subject, s, "x")
    return [first, _one(subject, s, first, 1)]  # one of them is read inside as well


def _shared_input(subject: Subject, s: Sketch) -> list[str]:
    return [_one(subject, s, "x"), _one(subject, s, "x", 1)]


def _diamond(subject: Subject, s: Sketch) -> list[str]:
    first = _one(subject, s, "x")
    return [_two(subject, s, _one(subject, s, first, 1), first)]


def _same_value_twice(subject: Subject, s: Sketch) -> list[str]:
    return [_two(subject, s, "x", "x")]


def _two_inputs(subject: Subject, s: Sketch) -> list[str]:
    return [_two(subject, s, "z", "x"), _two(subject, s, "x", "z")]


def _unconnected(subject: Subject, s: Sketch) -> list[str]:
    return [_one(subject, s, "z", 1), _one(subject, s, "x")]


def _chain(subject: Subject, s: Sketch) -> list[str]:
    last = "x"
    for position in range(_CHAIN):
        last = _one(subject, s, last, position)
    return [last]


WRITTEN: dict[str, Writer] = {
    "two_outputs": _two_outputs,
    "shared_input": _shared_input,
    "diamond": _diamond,
    "same_value_twice": _same_value_twice,
    "two_inputs": _two_inputs,
    "unconnected": _unconnected,
    "chain": _chain,
}
"""Regions whose borders are easily got wrong."""
