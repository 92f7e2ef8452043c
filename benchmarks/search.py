# SPDX-License-Identifier: Apache-2.0
"""How long the search takes, and how far its plans are from the best there are.

Costs are made up: log-normal factors between four backends, patterns that save 10% to 40%,
conversions of a few microseconds, 20 microseconds a call. Structures are generated, or those of the
project's zoo. Times are process time of one thread: building the tables, eliminating them, and
all of `solve`, which also sweeps, forms calls and prices.

    python benchmarks/search.py [--sizes 200 2000] [--zoo resnet50] [--gaps 10000] [--harsh 10000]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from search_reference import Enumeration, harsh, random_structure

from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.search.engine import Engine, Scenario
from intarsia.search.pricing import OPTIMAL
from intarsia.search.problem import Infeasible, Label, PlacementProblem, ProblemTensor
from intarsia.search.search import Search
from intarsia.search.solve import solve
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


def invent(
    inputs: Sequence[Sequence[int]], seed: int, backends: int = BACKENDS
) -> PlacementProblem:
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
    tensors = [ProblemTensor(-1, starts, 0)]
    tensors += [
        ProblemTensor(op, tuple(r), random.randrange(64), not r) for op, r in enumerate(readers)
    ]
    return PlacementProblem(
        count, tuple(labels), tuple(tensors), transitions, call_seconds=(CALL_SECONDS,) * backends
    )


def timed(problem: PlacementProblem) -> dict[str, Any]:
    """Return the seconds of each stage and what came out."""
    start = time.process_time()
    search = Search(problem)
    built = time.process_time()
    if search.is_narrow:
        Engine.solve(search.engine, [Scenario()])
    eliminated = time.process_time()
    solution = solve(problem)
    end = time.process_time()
    if isinstance(solution, Infeasible):
        raise SystemExit(str(solution))
    return {
        "operators": problem.count,
        "labels": len(problem.labels),
        "build": built - start,
        "eliminate": eliminated - built,
        "solve": end - eliminated,
        "calls": len(solution.calls),
        "proof": solution.proof,
    }


def gaps(problems: Iterable[PlacementProblem]) -> dict[str, Any]:
    """Compare with enumeration of all plans, before and after calls are formed."""
    before, after, bounds, proven, seconds = [], [], [], [], []
    for problem in problems:
        start = time.process_time()
        solution = solve(problem)
        seconds.append(time.process_time() - start)
        enumeration = Enumeration(problem)
        if isinstance(solution, Infeasible):
            after.append(float(enumeration.best(math.inf, calls=True) < math.inf))
            continue
        label_bound = solution.statistics["label bound"]
        least = enumeration.best(label_bound * (1 + 1e-9) + 1e-12, calls=False)
        before.append(_above(label_bound, least))
        best = enumeration.best(solution.seconds, calls=True)
        after.append(_above(solution.seconds, best))
        bounds.append(_above(solution.bound, best))
        proven.append(solution.proof == OPTIMAL)
    return {
        "graphs": len(after),
        "before: largest": max(map(abs, before)),
        "after: mean": statistics.mean(after),
        "after: largest": max(after),
        "after: optimal": sum(gap < 1e-9 for gap in after) / len(after),
        "bound: largest": max(bounds),
        "bound: mean": statistics.mean(bounds),
        "proven optimal": sum(proven) / len(proven),
        "solve: mean s": statistics.mean(seconds),
        "solve: longest s": max(seconds),
    }


def usual(first: int, count: int) -> Iterator[PlacementProblem]:
    """Yield random graphs of up to nine operators with up to three backends."""
    random = Random(11)
    for seed in range(first + count):
        inputs, backends = random_structure(random), random.randint(1, 3)
        if seed >= first:
            yield invent(inputs, seed, backends=backends)


def _above(value: float, least: float) -> float:
    return value / least - 1 if least > 0 else float(value > 0)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 2000, 20000])
    parser.add_argument(
        "--zoo", nargs="*", default=["resnet50", "bert_base", "inception_v1", "densenet121"]
    )
    parser.add_argument("--gaps", type=int, default=1000, help="usual problems to enumerate")
    parser.add_argument("--harsh", type=int, default=0, help="harsh problems to enumerate")
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--most", type=int, default=6, help="operators of the harsh ones")
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
        rows.append({"graph": "usual", **gaps(usual(arguments.first, arguments.gaps))})
        show(rows[-1], arguments.json)
    if arguments.harsh:
        seeds = range(arguments.first, arguments.first + arguments.harsh)
        problems = (harsh(seed, arguments.most) for seed in seeds)
        rows.append({"graph": "harsh", **gaps(problems)})
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
