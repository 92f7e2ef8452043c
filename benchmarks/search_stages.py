# SPDX-License-Identifier: Apache-2.0
"""What each stage of the search is worth: recorded problems, solved with the stage and without it.

For every stage: on how many problems the plan gets dearer, and by how much at most; how many proofs
are lost (a plan that was proven to be the best one is not any more); by how much the bound gets
looser at most; and how long all problems take. The problems are those of `search_problems.py`.

    python benchmarks/search_stages.py [--only TEXT] [--details] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from search_problems import Recorded, recorded

from intarsia.search import solve as solving
from intarsia.search.folding import fold
from intarsia.search.pricing import OPTIMAL
from intarsia.search.problem import Infeasible
from intarsia.search.search import Search

SECONDS = 4.0

STAGES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "all stages": {},
    "variations of the price of crossing": {"variations": lambda search: []},
    "denying calls to their backends": {"improve": lambda search, plan, bound: (plan, 0)},
    "phases between cuts": {"solve_phased": lambda search: None},
    "reshaping the best plan's calls": {"reshape": lambda search, plan, bound: (plan, 0)},
    "CP-SAT, where memory is limited": {"cpsat_is_available": lambda: False},
    "CP-SAT, and filling the room": {
        "cpsat_is_available": lambda: False,
        "fill_room": lambda search, fitting, exceeding, deadline: fitting,
    },
    "sequences of calls": {"complete": lambda search, plan, bound: (plan, bound, 0)},
    "intervals that no cut allows": {"make_search": Search},
    "cuts (all intervals as labels)": {
        "make_search": lambda problem: Search(fold(problem, problem.intervals))
    },
}
"""By name, what stands in for functions of `search.solve`."""


@dataclass(frozen=True)
class Solved:
    """How one problem was solved; infinite if it was not."""

    seconds: float
    bound: float
    proof: str
    spent: float


@contextmanager
def without(replaced: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let others stand in for functions of the search for a while."""
    originals = {name: getattr(solving, name) for name in replaced}
    vars(solving).update(replaced)
    try:
        yield
    finally:
        vars(solving).update(originals)


def solve_once(each: Recorded) -> Solved:
    """Solve one problem."""
    start = time.process_time()
    solution = solving.solve(each.problem, seconds=SECONDS)
    spent = time.process_time() - start
    if isinstance(solution, Infeasible):
        return Solved(float("inf"), float("inf"), str(solution), spent)
    return Solved(solution.seconds, solution.bound, solution.proof, spent)


def compare(every: Sequence[Solved], without_it: Sequence[Solved]) -> dict[str, Any]:
    """Return what taking a stage out does to all problems."""
    pairs = [(a, b) for a, b in zip(every, without_it, strict=True) if a.seconds < float("inf")]
    ratios = [b.seconds / a.seconds for a, b in pairs]
    return {
        "dearer": sum(ratio > 1 + 1e-9 for ratio in ratios),
        "dearest": max(ratios),
        "proofs lost": sum(a.proof == OPTIMAL != b.proof for a, b in pairs),
        "bound looser": max(a.bound / b.bound if b.bound else float("inf") for a, b in pairs),
        "seconds": sum(b.spent for _, b in pairs),
    }


def main() -> None:
    """Print what each stage is worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="stages whose names contain it")
    parser.add_argument("--details", action="store_true", help="every problem that changes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    problems = list(recorded())
    every = [solve_once(each) for each in problems]
    rows = {}
    for name, replaced in STAGES.items():
        if options.only not in name:
            continue
        with without(replaced):
            others = [solve_once(each) for each in problems]
        rows[name] = compare(every, others)
        for each, a, b in zip(problems, every, others, strict=True):
            if options.details and (b.seconds > a.seconds * (1 + 1e-9) or a.proof != b.proof):
                print(f"{name}: {each.name}: x{b.seconds / a.seconds:.4f}, {a.proof}, {b.proof}")
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{len(problems)} problems, {sum(each.proof == OPTIMAL for each in every)} proven")
    print("| without | dearer | at most | proofs lost | bound looser, at most | seconds |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(
            f"| {name} | {row['dearer']} | {row['dearest'] - 1:.1%} | {row['proofs lost']} "
            f"| {row['bound looser'] - 1:.1%} | {row['seconds']:.1f} |"
        )


if __name__ == "__main__":
    main()
