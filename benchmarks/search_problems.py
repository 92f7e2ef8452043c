# SPDX-License-Identifier: Apache-2.0
"""Problems of the search as tuning meets them: recorded, kept in files, read again.

`record` tunes a model for some targets and notes every problem that the search is given, at first
with guessed costs and later with measured ones; one from the middle and the last two are kept, by
what problem of the run they were. A file is one run: JSON in gzip without a time stamp, costs with
six digits. What is here is from an AMD EPYC (Zen 4) of which two cores were shared.

    python benchmarks/search_problems.py mobilenet_v2 --target dnnl,llvm --budget 20 [--list]

With `--declared`, nothing is measured: the problems are those of `intarsia plan absent`.

    python benchmarks/search_problems.py resnet18 --target "cuda -max_memory=20000000,llvm" \
        --declared benchmarks/search_problems/small_gpu.toml
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia.compiler import read_setting
from intarsia.place.request import Request
from intarsia.search.problem import Interval, Label, PlacementProblem, ProblemTensor
from intarsia.tuning import prospector
from intarsia.tuning.absent import outlooks
from intarsia.tuning.absent.absent import plan_without_measuring
from intarsia.tuning.options import Options
from intarsia.zoo.catalogue import build

FOLDER = Path(__file__).parent / "search_problems"
DIGITS = 6


@dataclass(frozen=True)
class Recorded:
    """A problem with where it comes from.

    Attributes:
        name: Model, targets, objective, and which problem of the run it was.
        problem: What the search was given.
    """

    name: str
    problem: PlacementProblem


def recorded() -> Iterator[Recorded]:
    """Read all recorded problems, ordered by their names."""
    for path in sorted(FOLDER.glob("*.json.gz")):
        problems = json.loads(gzip.decompress(path.read_bytes()))
        for place, values in problems.items():
            yield Recorded(f"{path.name.removesuffix('.json.gz')} {place}", from_json(values))


def write(name: str, problems: Mapping[int, PlacementProblem]) -> Path:
    """Keep problems of a run as a file."""
    FOLDER.mkdir(exist_ok=True)
    values = {place: to_json(problem) for place, problem in problems.items()}
    text = json.dumps(values, separators=(",", ":"))
    path = FOLDER / f"{name}.json.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return path


def to_json(problem: PlacementProblem) -> dict[str, Any]:
    """Return a problem as JSON values, without what its caller knows the pieces by."""
    return {
        "count": problem.count,
        "labels": [
            [
                each.ops,
                each.source,
                each.state,
                _short(each.seconds),
                each.backend,
                int(each.alone),
                each.nbytes,
            ]
            for each in problem.labels
        ],
        "tensors": [
            [each.producer, each.consumers, each.transition, int(each.is_output)]
            for each in problem.tensors
        ],
        "transitions": [
            [[_short(float(cell)) for cell in row] for row in matrix]
            for matrix in problem.transitions
        ],
        "outside": problem.outside,
        "call_seconds": [_short(each) for each in problem.call_seconds],
        "intervals": [
            [
                each.first,
                each.last,
                each.source,
                each.state,
                _short(each.seconds),
                each.backend,
                each.nbytes,
            ]
            for each in problem.intervals
        ],
        "private": sorted(problem.private),
        "devices": problem.devices,
        "memory": problem.memory,
    }


def from_json(values: dict[str, Any]) -> PlacementProblem:
    """Return the problem that JSON values tell of."""
    return PlacementProblem(
        count=values["count"],
        labels=tuple(
            Label(tuple(ops), source, state, float(seconds), backend, None, bool(alone), nbytes)
            for ops, source, state, seconds, backend, alone, nbytes in values["labels"]
        ),
        tensors=tuple(
            ProblemTensor(producer, tuple(consumers), transition, bool(is_output))
            for producer, consumers, transition, is_output in values["tensors"]
        ),
        transitions=tuple(np.array(each, dtype=np.float64) for each in values["transitions"]),
        outside=values["outside"],
        call_seconds=tuple(map(float, values["call_seconds"])),
        intervals=tuple(
            Interval(first, last, source, state, float(seconds), backend, None, nbytes)
            for first, last, source, state, seconds, backend, nbytes in values["intervals"]
        ),
        private=frozenset(values["private"]),
        devices=tuple(values["devices"]),
        memory=tuple(map(float, values["memory"])),
    )


def _short(seconds: float) -> float | str:
    """Return seconds with few digits; JSON knows no infinity, so a word stands for it."""
    return float(f"{seconds:.{DIGITS}g}") if np.isfinite(seconds) else "inf"


@contextmanager
def listening(module: Any) -> Iterator[dict[str, PlacementProblem]]:
    """Note the distinct problems that a module gives the search."""
    met: dict[str, PlacementProblem] = {}
    solve: Callable[..., Any] = module.solve

    def keeping(problem: PlacementProblem, **options: Any) -> Any:
        met[json.dumps(to_json(problem))] = problem
        return solve(problem, **options)

    module.solve = keeping
    try:
        yield met
    finally:
        module.solve = solve


def record(name: str, targets: str, objective: str, budget: float) -> list[PlacementProblem]:
    """Tune a model from nothing and return the distinct problems that the search was given."""
    with listening(prospector) as met, tempfile.TemporaryDirectory() as folder:
        intarsia.tune(
            build(name),
            target=targets.split(","),
            objective=objective,
            budget=budget,
            costs=f"{folder}/costs.db",
            cache=False,
        )
    return list(met.values())


def record_absent(name: str, targets: str, declared: Path) -> list[PlacementProblem]:
    """Plan a model for a machine that is not here and return the distinct problems of that."""
    request = Request(
        model=build(name),
        target=targets.split(","),
        is_here=False,
        declared=declared,
        num_threads=1,
    )
    with listening(outlooks) as met:
        plan_without_measuring(read_setting(request), None, Options())
    return list(met.values())


def worth_keeping(problems: Sequence[PlacementProblem]) -> list[int]:
    """Return the positions of the problems to keep: one from the middle, and the last two."""
    last = len(problems) - 1
    return sorted({last, max(last - 1, 0), last // 2}) if last >= 0 else []


def main() -> None:
    """Record the problems of one run, or list those that are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a model of the zoo")
    parser.add_argument("--target", default="dnnl,llvm")
    parser.add_argument("--objective", default="latency")
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--declared", type=Path, help="plan for an absent machine with these rates")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.model:
        if options.declared:
            problems = record_absent(options.model, options.target, options.declared)
        else:
            problems = record(options.model, options.target, options.objective, options.budget)
        chosen = {place: problems[place] for place in worth_keeping(problems)}
        kinds = [target.split()[0] for target in options.target.split(",")]
        aim = "absent" if options.declared else options.objective
        name = [options.model.replace(":", ""), *kinds, aim]
        print(write("-".join(name), chosen))
    if options.list:
        for each in recorded():
            problem = each.problem
            print(
                f"{each.name}: {problem.count} operators, {len(problem.labels)} labels, "
                f"{len(problem.intervals)} intervals, {problem.states} states"
            )


if __name__ == "__main__":
    main()
