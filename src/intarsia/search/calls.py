# SPDX-License-Identifier: Apache-2.0
"""Which chosen pieces run together in one call, and in which order the calls run.

A call takes every piece of its backend whose inputs are there; then another backend has its turn.
So calls are intervals of one topological order, and their quotient is acyclic by construction,
whatever their shape; a call need not be connected. For two backends the better of the two starts
has the fewest calls; for more, a small beam looks for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.search.problem import Interval, Piece, PlacementProblem, PlannedCall, covering

_TWO = 2
# The 81 recorded problems (benchmarks/search_stages.py) have the same plans with 1 and with 32.
# Made-up networks on four backends are 0.8% to 1.2% dearer without a beam (benchmarks/RESULTS.md).
_BEAM_WIDTH = 8
BEAM_CLUSTERS = 600


@dataclass(frozen=True, slots=True)
class Cycle:
    """Pieces that wait for one another: no order can run them.

    Attributes:
        pieces: Positions among the chosen pieces.
    """

    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Clusters:
    """Pieces that run in one call in any case, and which wait for which.

    Attributes:
        members: By cluster, its pieces.
        backends: By cluster, its backend.
        alone: By cluster, whether it is a call of its own.
        after: By cluster, the clusters that need it.
        needs: By cluster, how many clusters it needs.
    """

    members: list[list[int]]
    backends: list[int]
    alone: list[bool]
    after: list[list[int]]
    needs: list[int]


def form_calls(
    problem: PlacementProblem, chosen: Sequence[Piece], *, beam: bool = False
) -> tuple[PlannedCall, ...] | Cycle:
    """Return the calls with the least overhead of some ways to form them.

    Args:
        problem: The problem.
        chosen: Labels and intervals that cover each operator once.
        beam: Look harder where there are more than two backends.

    Returns:
        The sequence of calls, or a cycle that no order can run.
    """
    edges = _edges(problem, chosen)
    order = _topological(chosen, edges)
    if isinstance(order, Cycle):
        return order
    clusters = _cluster(chosen, edges, order)
    overheads = problem.overheads
    # With two backends only the start is a choice: a call that takes all that is ready leaves the
    # next ones no less to take.
    starts = sorted({clusters.backends[c] for c, needed in enumerate(clusters.needs) if not needed})
    schedules = [_greedy(clusters, start) for start in starts]
    several = len(set(clusters.backends)) > _TWO
    if beam and several and len(clusters.members) <= BEAM_CLUSTERS:
        schedules.extend(_beam(clusters, overheads))
    if not schedules:  # nothing is chosen
        return ()
    best = min(
        schedules,
        key=lambda runs: (sum(overheads[clusters.backends[run[0]]] for run in runs), len(runs)),
    )
    return tuple(_call(chosen, clusters, run) for run in best)


def _call(chosen: Sequence[Piece], clusters: _Clusters, run: Sequence[int]) -> PlannedCall:
    pieces = sorted(
        (chosen[piece] for cluster in run for piece in clusters.members[cluster]),
        key=lambda piece: piece.ops[0],
    )
    ops = tuple(sorted(op for piece in pieces for op in piece.ops))
    return PlannedCall(pieces[0].backend, ops, tuple(pieces))


def _edges(problem: PlacementProblem, chosen: Sequence[Piece]) -> list[list[int]]:
    """Return by piece the pieces whose results it needs, ascending."""
    piece_of = np.array(covering(problem.count, chosen), dtype=np.intp)
    reads = problem.reads
    producers = reads.producers[reads.tensors]
    readers, makers = piece_of[reads.ops], piece_of[producers]
    crosses = (producers >= 0) & (readers != makers)
    pairs = set((readers[crosses] * len(chosen) + makers[crosses]).tolist())
    needs: list[list[int]] = [[] for _ in chosen]
    for pair in sorted(pairs):
        reader, maker = divmod(pair, len(chosen))
        needs[reader].append(maker)
    return needs


def _topological(chosen: Sequence[Piece], needs: Sequence[Sequence[int]]) -> list[int] | Cycle:
    """Order the pieces; by their last operators wherever that is an order."""
    order = sorted(range(len(chosen)), key=lambda piece: chosen[piece].ops[-1])
    place = [0] * len(order)
    for position, piece in enumerate(order):
        place[piece] = position
    if all(place[before] < place[piece] for piece in order for before in needs[piece]):
        return order
    waiting = [len(before) for before in needs]
    after: list[list[int]] = [[] for _ in needs]
    for piece in order:
        for before in needs[piece]:
            after[before].append(piece)
    done = [piece for piece in order if not waiting[piece]]
    for piece in done:  # grows while it is walked
        for follower in after[piece]:
            waiting[follower] -= 1
            if not waiting[follower]:
                done.append(follower)
    if len(done) == len(order):
        return done
    return _find_cycle(needs, waiting)


def _find_cycle(needs: Sequence[Sequence[int]], waiting: Sequence[int]) -> Cycle:
    piece = next(piece for piece, count in enumerate(waiting) if count)
    path: list[int] = []
    while piece not in path:
        path.append(piece)
        piece = min(before for before in needs[piece] if waiting[before])
    return Cycle(tuple(sorted(path[path.index(piece) :])))


def _cluster(
    chosen: Sequence[Piece], needs: Sequence[Sequence[int]], order: Sequence[int]
) -> _Clusters:
    """Join each piece to the one cluster that it needs, if that is of its backend."""
    cluster_of = [-1] * len(chosen)
    clusters = _Clusters([], [], [], [], [])
    for piece in order:
        label = chosen[piece]
        alone = isinstance(label, Interval) or label.alone
        before = {cluster_of[each] for each in needs[piece]}
        # It waits for nothing but that cluster, so joining it cannot make a cycle.
        if len(before) == 1 and not alone:
            (only,) = before
            if clusters.backends[only] == label.backend and not clusters.alone[only]:
                cluster_of[piece] = only
                clusters.members[only].append(piece)
                continue
        mine = cluster_of[piece] = len(clusters.members)
        clusters.members.append([piece])
        clusters.backends.append(label.backend)
        clusters.alone.append(alone)
        clusters.after.append([])
        clusters.needs.append(len(before))
        for each in sorted(before):
            clusters.after[each].append(mine)
    return clusters


class _Sweep:
    """How far one schedule has come."""

    def __init__(self, clusters: _Clusters) -> None:
        self.clusters = clusters
        self.waiting = list(clusters.needs)
        self.ready = [c for c, count in enumerate(self.waiting) if not count]
        self.runs: list[list[int]] = []
        self.size = 0
        self.cost = 0.0

    def copy(self) -> _Sweep:
        """Return a sweep that goes its own way from here."""
        other = object.__new__(_Sweep)
        other.clusters = self.clusters
        other.waiting = list(self.waiting)
        other.ready = list(self.ready)
        other.runs = list(self.runs)
        other.size = self.size
        other.cost = self.cost
        return other

    def moves(self) -> list[tuple[int, int]]:
        """Return what can run next: (backend, -1), or (backend, cluster) of one that is alone."""
        clusters = self.clusters
        moves = {(clusters.backends[c], c if clusters.alone[c] else -1): None for c in self.ready}
        return sorted(moves)

    def reachable(self, move: tuple[int, int]) -> list[int]:
        """Return all clusters that one call could run now."""
        backend, single = move
        if single >= 0:
            return [single]
        clusters = self.clusters
        run = [c for c in self.ready if clusters.backends[c] == backend and not clusters.alone[c]]
        left: dict[int, int] = {}
        for cluster in run:  # grows while it is walked
            for follower in clusters.after[cluster]:
                if clusters.backends[follower] == backend and not clusters.alone[follower]:
                    left[follower] = left.get(follower, self.waiting[follower]) - 1
                    if not left[follower]:
                        run.append(follower)
        return run

    def take(self, run: list[int]) -> None:
        """Run these clusters as one call."""
        taken = set(run)
        self.runs.append(run)
        self.size += sum(len(self.clusters.members[cluster]) for cluster in run)
        self.ready = [cluster for cluster in self.ready if cluster not in taken]
        for cluster in run:
            for follower in self.clusters.after[cluster]:
                self.waiting[follower] -= 1
                if not self.waiting[follower] and follower not in taken:
                    self.ready.append(follower)


def _greedy(clusters: _Clusters, start: int) -> list[list[int]]:
    """Begin with one backend; then the one that can take the most is next."""
    sweep = _Sweep(clusters)
    first = True
    while sweep.ready:
        moves = sweep.moves()
        if first:
            moves = [move for move in moves if move[0] == start]
            first = False
        if len(moves) == 1:
            run = sweep.reachable(moves[0])
        else:
            runs = [sweep.reachable(move) for move in moves]
            run = max(runs, key=lambda run: sum(len(clusters.members[c]) for c in run))
        sweep.take(run)
    return sweep.runs


def _beam(clusters: _Clusters, overheads: Sequence[float]) -> list[list[list[int]]]:
    """Keep the few beginnings that got furthest for their number of calls."""
    beam = [_Sweep(clusters)]
    finished: list[list[list[int]]] = []
    while beam and not finished:
        longer: dict[tuple[int, ...], tuple[tuple[float, float], _Sweep]] = {}
        for sweep in beam:
            for move in sweep.moves():
                follower = sweep.copy()
                follower.take(follower.reachable(move))
                follower.cost += overheads[move[0]]
                if not follower.ready:
                    finished.append(follower.runs)
                    continue
                # What is ready are the first of what is left, and they decide all that is left: of
                # two beginnings that leave the same, one is enough.
                name = tuple(sorted(follower.ready))
                rank = (-follower.size, follower.cost)
                if name not in longer or rank < longer[name][0]:
                    longer[name] = (rank, follower)
        furthest = sorted(longer.values(), key=lambda item: item[0])[:_BEAM_WIDTH]
        beam = [sweep for _, sweep in furthest]
    return finished
