# SPDX-License-Identifier: Apache-2.0
"""How long the search takes, and how far its plans are from the best there are.

Costs are made up: log-normal factors between four backends, patterns that save 10% to 40%,
conversions of a few microseconds, 20 microseconds a call. Structures are generated, or those of the
project's zoo. Times are process time of one thread: building the tables, eliminating them, and
all of `solve`, which also sweeps, forms calls and prices.

    python benchmarks/search.py [--sizes 200 2000 20000] [--zoo resnet50] [--gaps 10000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.place.search.engine import Engine, Scenario
from intarsia.place.search.problem import Infeasible, Label, Problem, Tensor
from intarsia.place.search.search import Search
from intarsia.place.search.solve import solve
from intarsia.zoo.catalogue import build

BACKENDS = 4
CALL_SECONDS = 20e-6
MUST = {200: 0.2, 2000: 1.0, 20000: 12.0}
AIM = {200: 0.05, 2000: 0.4, 20000: 4.0}


class Structure:
    """Operators and which operators they read."""

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []

    def add(self, *inputs: int) -> int:
        """Add an operator and return its number."""
        self.inputs.append(sorted(set(inputs)))
        return len(self.inputs) - 1

    def line(self, start: int, length: int) -> int:
        """Add operators one after another and return the last."""
        for _ in range(length):
            start = self.add(start)
        return start


def chain(graph: Structure, x: int) -> int:
    """One operator after another."""
    return graph.line(x, 10)


def residual(graph: Structure, x: int) -> int:
    """A bottleneck block with a sum."""
    return graph.add(graph.add(graph.line(x, 8), x))


def transformer(graph: Structure, x: int) -> int:
    """Attention, layer norms and a feed-forward part, each decomposed."""
    query, key, value = (graph.line(x, 4) for _ in range(3))
    scores = graph.line(graph.add(query, key), 3)
    x = graph.add(graph.line(graph.add(scores, value), 4), x)
    for _ in range(2):
        centred = graph.add(x, graph.add(x))
        scale = graph.line(centred, 4)
        x = graph.line(graph.add(centred, scale), 2)
    hidden = graph.line(x, 2)
    active = graph.add(hidden, graph.line(hidden, 3))
    return graph.add(graph.line(active, 3), x)


def inception(graph: Structure, x: int) -> int:
    """Four branches that are joined."""
    return graph.add(*(graph.line(x, 2 * (branch + 1)) for branch in range(4)))


FAMILIES: dict[str, Callable[[Structure, int], int]] = {
    "chain": chain,
    "residual": residual,
    "transformer": transformer,
    "inception": inception,
}


def generate(family: str, size: int) -> list[list[int]]:
    """Return the structure of about this many operators."""
    graph = Structure()
    x = graph.add()
    while len(graph.inputs) < size:
        x = FAMILIES[family](graph, x)
    return graph.inputs


def zoo_structure(name: str) -> list[list[int]]:
    """Return the structure of a model of the zoo."""
    graph = snapshot(load(build(name)))
    return [sorted(before) for before in graph.predecessors]


def invent(inputs: Sequence[Sequence[int]], seed: int, backends: int = BACKENDS) -> Problem:
    """Return a problem of this structure with made-up costs."""
    random = Random(seed)
    count = len(inputs)
    readers: list[list[int]] = [[] for _ in range(count)]
    for op, makers in enumerate(inputs):
        for maker in makers:
            readers[maker].append(op)
    base = [random.uniform(5, 100) * 1e-6 for _ in range(count)]
    labels = []
    for op in range(count):
        for backend in range(backends):
            if not backend or random.random() > 0.08:
                seconds = base[op] * random.lognormvariate(0, 0.4)
                labels.append(Label((op,), backend, backend, seconds, backend))
        path = [op]
        while len(readers[path[-1]]) == 1 and len(path) < 4 and backends > 1:
            path.append(readers[path[-1]][0])
            if random.random() < 0.4:
                backend = random.randrange(1, backends)
                seconds = sum(base[each] for each in path) * random.uniform(0.6, 0.9)
                labels.append(Label(tuple(sorted(path)), backend, backend, seconds, backend))
    matrix = np.array(
        [
            [0.0 if a == b else random.choice([1e-6, 3e-6, 8e-6]) for b in range(backends)]
            for a in range(backends)
        ]
    )
    transitions = tuple(matrix * random.uniform(0.5, 5) for _ in range(64))
    starts = tuple(op for op in range(count) if not inputs[op])
    tensors = [Tensor(-1, starts, 0)]
    tensors += [Tensor(op, tuple(r), random.randrange(64), not r) for op, r in enumerate(readers)]
    return Problem(
        count, tuple(labels), tuple(tensors), transitions, call_seconds=(CALL_SECONDS,) * backends
    )


def timed(problem: Problem) -> dict[str, Any]:
    """Return the seconds of each stage and what came out."""
    start = time.process_time()
    search = Search(problem)
    built = time.process_time()
    if search.is_narrow:
        Engine.solve(search.engine, [Scenario()])
    eliminated = time.process_time()
    found = solve(problem)
    end = time.process_time()
    if isinstance(found, Infeasible):
        raise SystemExit(str(found))
    return {
        "operators": problem.count,
        "labels": len(problem.labels),
        "build": built - start,
        "eliminate": eliminated - built,
        "solve": end - eliminated,
        "calls": len(found.calls),
        "proof": found.proof,
    }


def random_structure(random: Random) -> list[list[int]]:
    """Return any graph of up to nine operators."""
    count = random.randint(2, 9)
    return [
        sorted({random.randrange(op) for _ in range(random.randint(1, 2))})
        if op and random.random() > 0.1
        else []
        for op in range(count)
    ]


class Enumeration:
    """Every plan of a small problem, without those that are already too dear."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.by_first: list[list[Label]] = [[] for _ in range(problem.count)]
        share = [float("inf")] * problem.count
        for label in problem.labels:
            self.by_first[label.ops[0]].append(label)
            for op in label.ops:
                share[op] = min(share[op], label.seconds / len(label.ops))
        self.share = share

    def best(self, limit: float, *, calls: bool) -> float:
        """Return the least cost of any plan, or the limit if none is below."""
        self.least = limit
        self._extend(0, [None] * self.problem.count, 0.0, calls)
        return self.least

    def _extend(self, op: int, labels: list[Label | None], cost: float, calls: bool) -> None:
        while op < self.problem.count and labels[op] is not None:
            op += 1
        rest = sum(self.share[each] for each in range(op, len(labels)) if labels[each] is None)
        if cost + rest >= self.least * (1 - 1e-12):
            return
        if op == self.problem.count:
            cost += self._conversions(labels)
            if calls and cost < self.least:
                cost += self._calls(labels)
            self.least = min(self.least, cost)
            return
        for label in self.by_first[op]:
            if all(labels[each] is None for each in label.ops):
                for each in label.ops:
                    labels[each] = label
                self._extend(op + 1, labels, cost + label.seconds, calls)
                for each in label.ops:
                    labels[each] = None

    def _conversions(self, labels: Sequence[Label | None]) -> float:
        total = 0.0
        for tensor in self.problem.tensors:
            maker = labels[tensor.producer] if tensor.producer >= 0 else None
            state = maker.state if maker else self.problem.outside
            wanted = {labels[op].source for op in tensor.consumers if labels[op] is not maker}
            if tensor.is_output:
                wanted.add(self.problem.outside)
            total += steiner(self.problem.transitions[tensor.transition], state, wanted)
        return total

    def _calls(self, labels: Sequence[Label | None]) -> float:
        pieces = list(dict.fromkeys(labels))
        needs = [0] * len(pieces)
        for tensor in self.problem.tensors:
            for op in tensor.consumers:
                if tensor.producer >= 0 and labels[op] is not labels[tensor.producer]:
                    needs[pieces.index(labels[op])] |= 1 << pieces.index(labels[tensor.producer])
        everything = (1 << len(pieces)) - 1

        @cache
        def least(done: int, current: int) -> float:
            if done == everything:
                return 0.0
            return min(
                (
                    least(done | 1 << place, piece.backend)
                    + (0.0 if piece.backend == current else CALL_SECONDS)
                    for place, piece in enumerate(pieces)
                    if not done >> place & 1 and not needs[place] & ~done
                ),
                default=float("inf"),
            )

        return least(0, -1)


def steiner(matrix: np.ndarray, start: int, wanted: set[int]) -> float:
    """Return the cheapest conversions to all wanted states: every way to add one after another."""
    best = [float("inf")]

    def grow(reached: frozenset[int], cost: float) -> None:
        if wanted <= reached:
            best[0] = min(best[0], cost)
            return
        for a in reached:
            for b in range(len(matrix)):
                if b not in reached and cost + matrix[a, b] < best[0]:
                    grow(reached | {b}, cost + matrix[a, b])

    grow(frozenset({start}), 0.0)
    return best[0]


def gaps(count: int) -> dict[str, Any]:
    """Compare with enumeration on random graphs, before and after calls are formed."""
    random = Random(11)
    before, after, bounds = [], [], []
    for seed in range(count):
        problem = invent(random_structure(random), seed, backends=random.randint(1, 3))
        found = solve(problem)
        enumeration = Enumeration(problem)
        label_bound = found.statistics["label bound"]
        least = enumeration.best(label_bound * (1 + 1e-9), calls=False)
        before.append(label_bound / least - 1)
        best = enumeration.best(found.seconds, calls=True)
        after.append(found.seconds / best - 1)
        bounds.append(found.bound / best - 1)
    return {
        "graphs": count,
        "before: largest": max(map(abs, before)),
        "after: mean": statistics.mean(after),
        "after: largest": max(after),
        "bound: largest": max(bounds),
        "bound: mean": statistics.mean(bounds),
        "after: optimal": sum(gap < 1e-9 for gap in after) / count,
    }


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 2000, 20000])
    parser.add_argument(
        "--zoo", nargs="*", default=["resnet50", "bert_base", "inception_v1", "densenet121"]
    )
    parser.add_argument("--gaps", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        for family in FAMILIES:
            row = {"graph": f"{family} {size}", **timed(invent(generate(family, size), 1))}
            rows.append(row | {"must": MUST.get(size), "aim": AIM.get(size)})
            show(rows[-1], arguments.json)
    for name in arguments.zoo:
        rows.append({"graph": name, **timed(invent(zoo_structure(name), 1))})
        show(rows[-1], arguments.json)
    if arguments.gaps:
        rows.append(gaps(arguments.gaps))
        show(rows[-1], arguments.json)
    if arguments.json:
        print(json.dumps(rows, indent=1))


def show(row: dict[str, Any], is_json: bool) -> None:
    """Print a row for people."""
    if not is_json:
        parts = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
            if value is not None
        )
        print("  ".join(parts), flush=True)


if __name__ == "__main__":
    main()
