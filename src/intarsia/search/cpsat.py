# SPDX-License-Identifier: Apache-2.0
"""The same problem for CP-SAT (OR-Tools), which keeps limits of memory exactly.

One Boolean for each piece, and for each tensor one for each state in which it is made together
with each set of states in which it is then available. Each reader needs a set with its state; so
the linear relaxation is tight. Optional: the extra `search` installs OR-Tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.conversions import Conversions
from intarsia.search.problem import Interval, Label, Piece, PlacementProblem, ProblemTensor

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

HINT = "pip install 'intarsia[search]' may find or prove more"
# Sums have 64 bits: plans up to 10^8 times as dear as the best one still fit.
_RESOLUTION = 1e10
_MOST_CYCLES = 50


@dataclass(frozen=True, slots=True)
class ProvenPlan:
    """What CP-SAT found.

    Attributes:
        bound: No plan costs less before calls are formed; minus infinity if it knows none.
        chosen: The pieces of its best plan; empty if it found none.
        is_impossible: It proved that there is no plan.
    """

    bound: float
    chosen: tuple[Piece, ...]
    is_impossible: bool = False


def is_available() -> bool:
    """Return whether OR-Tools is installed."""
    return find_spec("ortools") is not None


def solve_by_cpsat(
    problem: PlacementProblem,
    conversions: Conversions,
    *,
    seconds: float,
    seed: int,
    hint: Sequence[Piece] = (),
    scale: float,
) -> ProvenPlan:
    """Minimise the seconds of a run before calls are formed, within the limits of memory.

    One worker and a fixed seed: the same input gives the same plan, unless the time ends first.

    Args:
        problem: The problem.
        conversions: Its conversions.
        seconds: How long at most.
        seed: The solver's seed.
        hint: A plan to start from.
        scale: About what the best plan is worth, one second if nothing is known; costs are
            resolved to its 10**-10.
    """
    from ortools.sat.python import cp_model

    scale = scale if 0 < scale < inf else 1.0
    formulation = _BooleanFormulation(problem, conversions, cp_model.CpModel(), _RESOLUTION / scale)
    formulation.build(hint)
    solver = cp_model.CpSolver()
    # Workers race, and the plan would depend on which one is first.
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    # All rows go into the linear relaxation: on ResNet-50 with three backends 0.4 s to a proof,
    # where the default was 25% off after 15 s (OR-Tools 9.15, one core).
    solver.parameters.linearization_level = 2
    left = seconds
    for _ in range(_MOST_CYCLES):
        solver.parameters.max_time_in_seconds = max(left, 0.01)
        status = solver.solve(formulation.model)
        left -= solver.wall_time
        if status == cp_model.INFEASIBLE:
            return ProvenPlan(float("inf"), (), is_impossible=True)
        bound = solver.best_objective_bound / formulation.scale
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return ProvenPlan(max(bound, 0.0), ())
        chosen = [
            piece
            for piece, variable in zip(formulation.pieces, formulation.chosen, strict=True)
            if solver.boolean_value(variable)
        ]
        chosen.sort(key=lambda piece: piece.ops[0])
        formed = form_calls(problem, chosen)
        if not isinstance(formed, Cycle):
            return ProvenPlan(max(bound, 0.0), tuple(chosen))
        # Cycles are rare, so rows that exclude all of them beforehand would cost more than solving
        # again: on 345 small random problems one such row was needed in all.
        formulation.forbid([chosen[place] for place in formed.pieces])
        if left <= 0:
            return ProvenPlan(max(bound, 0.0), ())
    return ProvenPlan(0.0, ())


class _BooleanFormulation:
    """The variables and rows of one problem."""

    def __init__(
        self, problem: PlacementProblem, conversions: Conversions, model: CpModel, scale: float
    ) -> None:
        self.problem = problem
        self.conversions = conversions
        self.model = model
        self.scale = scale
        pieces: list[Label | Interval] = [*problem.labels, *problem.intervals]
        self.pieces = [piece for piece in pieces if isfinite(piece.seconds)]
        self.chosen: list[IntVar] = [model.new_bool_var("") for _ in self.pieces]
        self.covering: list[list[int]] = [[] for _ in range(problem.count)]
        for place, piece in enumerate(self.pieces):
            for op in piece.ops:
                self.covering[op].append(place)

    def build(self, hint: Sequence[Piece]) -> None:
        """Add all variables, rows and the objective."""
        model, problem = self.model, self.problem
        for places in self.covering:
            model.add_exactly_one([self.chosen[place] for place in places])
        link: list[Any] = []
        for position in range(len(problem.tensors)):
            link += self._convert(position)
        for device, limit in enumerate(problem.memory):
            if isfinite(limit):
                model.add(sum(self._bytes_on(device)) <= int(limit))
        seconds = [
            # Rounded down, so that the solver's bound is one for the problem itself.
            int(piece.seconds * self.scale) * variable
            for piece, variable in zip(self.pieces, self.chosen, strict=True)
        ]
        model.minimize(sum(seconds) + sum(link))
        hinted = {id(piece) for piece in hint}
        for piece, variable in zip(self.pieces, self.chosen, strict=True):
            if hinted:
                model.add_hint(variable, id(piece) in hinted)

    def forbid(self, cycle: Sequence[Piece]) -> None:
        """Exclude these pieces together."""
        together = {id(piece) for piece in cycle}
        variables = [
            variable
            for piece, variable in zip(self.pieces, self.chosen, strict=True)
            if id(piece) in together
        ]
        self.model.add(sum(variables) <= len(variables) - 1)

    def _bytes_on(self, device: int) -> list[Any]:
        return [
            piece.nbytes * variable
            for piece, variable in zip(self.pieces, self.chosen, strict=True)
            if self.problem.device_of[piece.backend] == device
        ]

    def _convert(self, position: int) -> list[Any]:
        """Add one tensor's conversions; return their costs."""
        problem, model = self.problem, self.model
        tensor = problem.tensors[position]
        makers_by_state = self._made(tensor)
        needs = self._needs(tensor)
        costs: list[Any] = []
        serving: dict[int, list[IntVar]] = {state: [] for state, _ in needs}
        for state, makers in makers_by_state.items():
            ways = []
            for wanted in _subsets(sorted(serving)):
                bits = sum(1 << each for each in wanted)
                seconds = self.conversions.multicast[tensor.transition, state, bits]
                if isfinite(seconds):
                    way = model.new_bool_var("")
                    ways.append(way)
                    for each in wanted:
                        serving[each].append(way)
                    costs.append(int(seconds * self.scale) * way)
            model.add(sum(ways) <= (1 if makers is None else sum(makers)))
        for state, readers in needs:
            model.add(sum(serving[state]) >= (1 if readers is None else sum(readers)))
        return costs

    def _made(self, tensor: ProblemTensor) -> dict[int, list[IntVar] | None]:
        """Return by state the pieces that make a tensor in it; None: it always is."""
        if tensor.producer < 0:
            return {self.problem.outside: None}
        makers_by_state: dict[int, list[IntVar] | None] = {}
        for place in self.covering[tensor.producer]:
            makers = makers_by_state.setdefault(self.pieces[place].state, [])
            if makers is not None:
                makers.append(self.chosen[place])
        return makers_by_state

    def _needs(self, tensor: ProblemTensor) -> list[tuple[int, list[IntVar] | None]]:
        """Return a state, and by which pieces it is needed, for each reader; None: always."""
        inside = set(self.covering[tensor.producer]) if tensor.producer >= 0 else set()
        needs: list[tuple[int, list[IntVar] | None]] = []
        for op in dict.fromkeys(tensor.consumers):
            by_state: dict[int, list[IntVar]] = {}
            for place in self.covering[op]:
                if place not in inside:
                    by_state.setdefault(self.pieces[place].source, []).append(self.chosen[place])
            needs.extend(by_state.items())
        if tensor.is_output:
            needs.append((self.problem.outside, None))
        return needs


def _subsets(states: Sequence[int]) -> list[tuple[int, ...]]:
    return [subset for size in range(1, len(states) + 1) for subset in combinations(states, size)]
