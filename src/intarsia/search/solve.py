# SPDX-License-Identifier: Apache-2.0
"""The search: the cheapest plan, its calls, and how good it is."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.cpsat import HINT, solve_by_cpsat
from intarsia.search.cpsat import is_available as cpsat_is_available
from intarsia.search.folding import fold, make_search
from intarsia.search.phases import solve_phased
from intarsia.search.pricing import bound_with_calls, gap, price, proof_text
from intarsia.search.problem import Infeasible, Interval, Piece, PlacementProblem, Price, Solution
from intarsia.search.search import PricedPlan, Search, best_plan
from intarsia.search.sequences import complete, reshape
from intarsia.search.sweep import bounding, improve, variations
from intarsia.search.wide import search_wide

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOLERANCE = 1e-6
# With 2%, the 81 recorded problems take a quarter less time, one plan is 0.05% dearer and bounds
# lie up to 0.51% lower; without it nothing changes.
_LOOSE = 0.005  # a bound that is closer is not worth larger tables
_SINGLES = 3  # where the scenarios of single backends begin
_STEPS = 24  # prices of bytes that are tried
_FLAT = 1e-4


def solve(
    problem: PlacementProblem, *, seconds: float = 10.0, seed: int = 0
) -> Solution | Infeasible:
    """Return the cheapest plan found, with a bound that no plan can beat.

    The same problem and seed give the same plan, unless `seconds` cut the search short.

    Args:
        problem: What to solve.
        seconds: How long at most to go on where elimination alone does not do: tables that are
            too large, limits of memory.
        seed: For what is tried at random there.
    """
    lacking = _lacking(problem)
    if lacking:
        return Infeasible(f"no label covers operator {lacking[0]}", lacking)
    if not problem.count:
        return _nothing(problem)
    with _without_collector():
        if has_limits(problem):
            return _solve_within_limits(Search(problem), seconds, seed)
        return _solve_plain(problem, seconds, seed)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hold back the collector of cycles: there are none, and millions of small objects to walk."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _solve_plain(problem: PlacementProblem, seconds: float, seed: int) -> Solution | Infeasible:
    search = make_search(problem)
    if not search.is_narrow:
        return _solve_wide(Search(problem, intervals=False), seconds, seed)
    solution = _solve_exactly(search)
    if isinstance(solution, Infeasible) and search.dropped_intervals:
        search = Search(fold(problem, problem.intervals))
        if not search.is_narrow:
            return Infeasible(f"{solution}, unless intervals are chosen that no cut allows")
        solution = _solve_exactly(search)
    return solution


def _solve_exactly(search: Search) -> Solution | Infeasible:
    problem = search.problem
    first = bounding(search)
    optima = search.engine.solve(first)
    if not optima[0].chosen:
        return Infeasible(
            "every plan costs an infinite time: a conversion or a label is impossible"
        )
    # The first three scenarios are those of `bounding`: plain, with the spine, with ties broken.
    exact = search.exact(first[0], optima[0])
    if math.isinf(exact.bound):
        return Infeasible("the operators of every plan wait for one another")
    # Every bound is admissible by itself, so the largest counts; where intervals were left out, no
    # more than what a plan with one of them could cost.
    bound = bound_with_calls(problem, exact.bound, [each.value for each in optima[_SINGLES:]])
    if search.has_crossings:
        bound = max(bound, optima[1].value)
    bound = min([bound, *_bounds_with(problem, search.dropped_intervals)])
    plans = search.plans(first, optima)
    if exact.optimum is not None:
        plans += [plan for plan in [search.plan(exact.optimum.chosen)] if plan]
    further = []
    if not plans or gap(best_plan(plans, problem.count).price.seconds, bound):
        further = variations(search)
        plans += search.plans(further)
    if not plans:
        return Infeasible("no plan was found whose calls can run one after another")
    best = best_plan(plans, problem.count)
    if gap(best.price.seconds, bound) > _LOOSE and (relaxed := solve_phased(search)):
        bound = max(bound, min([relaxed.value, *_bounds_with(problem, search.dropped_intervals)]))
        # Labels that were chosen with an eye on calls are often better than those of the plain
        # optimum.
        other = search.plan(relaxed.chosen, thorough=True) if relaxed.chosen else None
        best = best_plan([best, other], problem.count) if other else best
    best, looked = improve(search, best, bound)
    best, reshaped = reshape(search, best, bound)
    best, bound, begun = complete(search, best, bound)
    statistics = _statistics(search) | {
        "scenarios": len(first) + len(further),
        "plans": len(plans) + looked + reshaped + begun,
    }
    return solution(search, best, bound, exact.bound, statistics)


def _solve_wide(search: Search, seconds: float, seed: int) -> Solution | Infeasible:
    """Neighbourhoods, and a bound by small tables."""
    problem = search.problem
    wide = search_wide(search, seconds, seed)
    plans = [
        plan
        for pieces in dict.fromkeys([*wide.chosen, *whole_intervals(problem)])
        if (plan := search.plan(pieces, thorough=True))
    ]
    if not plans:
        return Infeasible(f"no plan found within {seconds} s")
    bound = min(
        [
            wide.bound,
            *_bounds_with(problem, problem.intervals),
            *(_label_seconds(search, plan.chosen) for plan in plans),
        ]
    )
    total = bound_with_calls(problem, bound, [bound] * problem.backends)
    statistics = _statistics(search) | {"plans": len(plans), "neighbourhoods": wide.rounds}
    return solution(search, best_plan(plans, problem.count), total, bound, statistics)


def _solve_within_limits(search: Search, seconds: float, seed: int) -> Solution | Infeasible:
    """Price bytes, fill the room that is left; CP-SAT, if installed, for the rest of the time."""
    problem = search.problem
    deadline = time.monotonic() + seconds
    priced = search_within_limits(problem) or WithinLimits(0.0, (), ())
    bound = priced.bound
    chosen = list(priced.chosen)
    start = min(chosen, key=lambda pieces: _label_seconds(search, pieces), default=())
    if start:
        filled = [fill_room(search, start, other, deadline) for other in priced.exceeding]
        chosen += filled
        start = min([start, *filled], key=lambda pieces: _label_seconds(search, pieces))
    remark = f" ({HINT})"
    if cpsat_is_available():
        remark = ""
        proven = solve_by_cpsat(
            problem,
            search.conversions,
            seconds=deadline - time.monotonic(),
            seed=seed,
            hint=start,
            scale=_label_seconds(search, start) if start else max(bound, 1e-6),
        )
        if proven.is_impossible:
            return Infeasible("no plan stays within the limits of memory")
        bound = max(bound, proven.bound)
        chosen += [proven.chosen] if proven.chosen else []
    plans = [
        plan
        for pieces in dict.fromkeys(chosen)
        if fits(problem, pieces) and (plan := search.plan(pieces, thorough=True))
    ]
    if not plans:
        return Infeasible("no plan found that stays within the limits of memory")
    # Every plan has one call at least.
    bound += min(problem.overheads, default=0.0)
    statistics = _statistics(search) | {"plans": len(plans)}
    return solution(search, best_plan(plans, problem.count), bound, 0.0, statistics, remark)


def _label_seconds(search: Search, chosen: tuple[Piece, ...]) -> float:
    return price(search.problem, chosen, None, search.conversions).seconds


def _bounds_with(problem: PlacementProblem, intervals: Sequence[Interval]) -> list[float]:
    """Return by interval what no plan with it undercuts: all else at its cheapest share."""
    if not intervals:
        return []
    least = np.full(problem.count, np.inf)
    pieces: list[Piece] = [*problem.labels, *problem.intervals]
    for piece in pieces:
        ops = slice(piece.first + 1, piece.last + 1) if isinstance(piece, Interval) else piece.ops
        index = ops if isinstance(ops, slice) else list(ops)
        # Shared out evenly, no piece costs less than its operators' cheapest shares together.
        least[index] = np.minimum(least[index], piece.seconds / len(piece.ops))
    sums = np.concatenate([[0.0], np.cumsum(np.where(np.isinf(least), 0.0, least))])
    return [
        float(each.seconds + sums[each.first + 1] + sums[-1] - sums[each.last + 1])
        for each in intervals
    ]


def _statistics(search: Search) -> dict[str, float]:
    problem = search.problem
    return {
        "operators": problem.count,
        "labels": len(problem.labels),
        "labels dropped": search.model.dropped,
        "intervals": len(problem.intervals),
        "intervals dropped": len(search.dropped_intervals),
        "largest table": search.engine.order.entries if search.engine.order else math.inf,
    }


def solution(
    search: Search,
    plan: PricedPlan,
    bound: float,
    label_bound: float,
    statistics: dict[str, float],
    remark: str = "",
) -> Solution:
    """Return a plan with its proof, after checking that it is what it claims to be.

    Raises:
        InternalError: A cost does not hold; our bug.
    """
    problem = search.problem
    before = _label_seconds(search, plan.chosen)
    value = plan.price.seconds
    slack = _TOLERANCE * max(value, before, 1e-12)
    if not math.isfinite(value):
        raise InternalError("the plan found needs a conversion that is impossible")
    # What undercuts a bound disproves the bound: a wrong proof is worse than none.
    if before < label_bound - slack or value < bound - slack:
        raise InternalError(f"a plan of {value} s, {before} s without calls, beats its bound")
    if not fits(problem, plan.chosen):
        raise InternalError("the plan found keeps more bytes than it may")
    executed = [op for call in plan.calls for op in call.ops]
    if sorted(executed) != list(range(problem.count)):
        raise InternalError("the calls do not run every operator once")
    return Solution(
        chosen=plan.chosen,
        calls=plan.calls,
        price=plan.price,
        label_seconds=before,
        bound=min(bound, value),
        proof=proof_text(value, bound, remark),
        statistics=statistics | {"label bound": label_bound, "calls": len(plan.calls)},
    )


def whole_intervals(problem: PlacementProblem) -> list[tuple[Piece, ...]]:
    """Return the plans that are one interval."""
    return [
        (interval,)
        for interval in problem.intervals
        if interval.first == -1 and interval.last == problem.count - 1
    ]


def _nothing(problem: PlacementProblem) -> Solution:
    cost = price(problem, (), ())
    total = Price(0.0, cost.conversions, 0.0)
    return Solution((), (), total, total.seconds, total.seconds, proof_text(0, 0), {})


def _lacking(problem: PlacementProblem) -> tuple[int, ...]:
    covered = [False] * problem.count
    for label in problem.labels:
        for op in label.ops:
            covered[op] = True
    for interval in problem.intervals:
        covered[interval.first + 1 : interval.last + 1] = [True] * len(interval.ops)
    return tuple(op for op, is_covered in enumerate(covered) if not is_covered)


@dataclass(frozen=True, slots=True)
class WithinLimits:
    """What pricing bytes gave.

    Attributes:
        bound: No plan within the limits costs less, before calls are formed.
        chosen: The pieces of plans within the limits.
        exceeding: The pieces of cheaper plans that keep too many bytes.
    """

    bound: float
    chosen: tuple[tuple[Piece, ...], ...]
    exceeding: tuple[tuple[Piece, ...], ...]


def has_limits(problem: PlacementProblem) -> bool:
    """Return whether some device may keep only so much."""
    return bool(np.isfinite(problem.memory).any())


def kept_bytes(problem: PlacementProblem, chosen: Sequence[Piece]) -> list[int]:
    """Return by device how many bytes a plan keeps on it."""
    nbytes = [0] * (1 + max(problem.device_of, default=0))
    for piece in chosen:
        nbytes[problem.device_of[piece.backend]] += piece.nbytes
    return nbytes


def fits(problem: PlacementProblem, chosen: Sequence[Piece]) -> bool:
    """Return whether a plan keeps every limit of memory."""
    nbytes = kept_bytes(problem, chosen)
    return all(bytes_ <= limit for bytes_, limit in zip(nbytes, problem.memory, strict=False))


def search_within_limits(problem: PlacementProblem) -> WithinLimits | None:
    """Return plans within the limits and a bound on all of them; None if tables are too large.

    Bytes on devices that keep too many get a price, which doubles until the plan fits; then it is
    halved into the interval in which it begins to fit.
    """
    limits = _limits(problem)
    bound, fitting, exceeding = 0.0, [], []
    low = rate = np.zeros(len(limits))
    high: NDArray[np.float64] | None = None
    for _ in range(_STEPS):
        cheapest = _solve_charged(problem, rate)
        if cheapest is None:
            return None
        value, chosen = cheapest
        # Lagrange's bound: a plan within the limits pays at most rate times limits for its bytes,
        # so its seconds are at least the charged optimum less that (Fisher, "The Lagrangian
        # relaxation method for solving integer programming problems", Management Science 27(1),
        # 1981).
        bound = max(bound, value - float(rate @ np.where(rate > 0, limits, 0.0)))
        if not chosen:
            break
        nbytes = np.array(kept_bytes(problem, chosen), dtype=np.float64)
        over = nbytes > limits
        if over.any() and chosen not in exceeding:
            exceeding.append(chosen)
        if not over.any():
            if chosen not in fitting:
                fitting.append(chosen)
            if not rate.any():
                break
            high = rate
        elif high is None:
            # A first price that makes the bytes kept as dear as all seconds: the scale is right at
            # once.
            usual = value / np.maximum(nbytes, 1.0)
            low, rate = rate, np.where(over, np.maximum(2 * rate, usual), rate)
            continue
        else:
            low = rate
        rate = (low + high) / 2
        if (high - low).max() <= _FLAT * high.max():
            break
    return WithinLimits(bound, tuple(fitting), tuple(exceeding))


def fill_room(
    search: Search, fitting: tuple[Piece, ...], exceeding: tuple[Piece, ...], deadline: float
) -> tuple[Piece, ...]:
    """Return a plan within the limits that takes what it can from one that keeps too many bytes.

    A price of bytes takes all of several equal layers or none, so it leaves room. The plans are
    mixed in blocks, the smallest sets of operators that are whole pieces of both: at first the
    beginning of one plan and the end of the other, since neighbours save conversions; then single
    blocks, those that save most seconds for their share of the limits first.

    Args:
        search: The problem.
        fitting: A plan within the limits.
        exceeding: A plan that is not.
        deadline: When to stop, by the monotonic clock.
    """
    problem = search.problem
    limits = np.maximum(_limits(problem), 1.0)
    blocks = _common_blocks(problem.count, fitting, exceeding)

    def mixed(taken: set[int]) -> tuple[Piece, ...]:
        pieces = [piece for place, block in enumerate(blocks) for piece in block[place in taken]]
        return tuple(sorted(pieces, key=lambda piece: piece.ops[0]))

    def saving(place: int) -> float:
        before, after = (sum(piece.seconds for piece in side) for side in blocks[place])
        # Each device's bytes as a share of its own limit, so that devices can be added up.
        room = [
            sum(piece.nbytes / limits[problem.device_of[piece.backend]] for piece in side)
            for side in blocks[place]
        ]
        return float((before - after) / max(room[1] - room[0], _FLAT))

    differing = [place for place, (mine, other) in enumerate(blocks) if mine != other]
    best, taken, least = fitting, set[int](), _label_seconds(search, fitting)

    def take(wanted: set[int]) -> bool:
        nonlocal best, taken, least
        if time.monotonic() > deadline:
            return False
        pieces = mixed(wanted)
        if not fits(problem, pieces):
            return False
        seconds = _label_seconds(search, pieces)
        if seconds < least:
            best, taken, least = pieces, wanted, seconds
            return True
        return False

    for place in range(1, len(differing)):
        take(set(differing[:place]))
        take(set(differing[place:]))
    order = sorted(differing, key=saving, reverse=True)
    is_better = True
    while is_better:
        is_better = False
        for place in order:
            is_better |= place not in taken and take(taken | {place})
    return best


def _common_blocks(
    count: int, first: Sequence[Piece], second: Sequence[Piece]
) -> list[tuple[list[Piece], list[Piece]]]:
    """Return the pieces of both plans by the smallest sets of operators that both cover whole."""
    block_of = list(range(count))
    for piece in (*first, *second):
        joined = {block_of[op] for op in piece.ops}
        if len(joined) > 1:
            block_of = [min(joined) if block in joined else block for block in block_of]
    blocks: dict[int, tuple[list[Piece], list[Piece]]] = {
        block: ([], []) for block in sorted(set(block_of))
    }
    for side, plan in enumerate((first, second)):
        for piece in plan:
            blocks[block_of[piece.ops[0]]][side].append(piece)
    return list(blocks.values())


def _limits(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return by device how many bytes it may keep."""
    limits = np.full(1 + max(problem.device_of), np.inf)
    limits[: len(problem.memory)] = problem.memory[: len(limits)]
    return limits


def _solve_charged(
    problem: PlacementProblem, rate: NDArray[np.float64]
) -> tuple[float, tuple[Piece, ...]] | None:
    """Return the least sum of seconds and bytes at a price, and the pieces of the problem itself.

    No pieces if there is no plan; None if the tables are too large. Plans with cycles do not count.
    """
    device = problem.device_of

    def cost(piece: Piece) -> float:
        return float(piece.seconds + piece.nbytes * rate[device[piece.backend]])

    labels = tuple(replace(label, seconds=cost(label)) for label in problem.labels)
    intervals = tuple(replace(each, seconds=cost(each)) for each in problem.intervals)
    original: dict[int, Piece] = dict(zip(map(id, labels), problem.labels, strict=True))
    original.update(zip(map(id, intervals), problem.intervals, strict=True))
    search = Search(replace(problem, labels=labels, intervals=intervals, memory=()))
    if not search.is_narrow:
        return None
    exact = search.optimum()
    if exact.optimum is None:
        return exact.bound, ()
    return exact.bound, tuple(original[id(piece)] for piece in exact.optimum.chosen)
