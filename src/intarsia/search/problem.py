# SPDX-License-Identifier: Apache-2.0
"""What the search is asked: labels for operators, tensors with conversions between states, calls.

A *plan* takes labels (and intervals) that cover every operator exactly once. It costs

* the seconds of each label,
* for each tensor the cheapest conversions that make it available in every state in which somebody
  outside its producer's label needs it, each destination paid once, however many need it,
* one overhead for each call; a call runs labels of one backend one after another.

A tensor in a *private* state exists only inside one call: between two calls it is converted to a
shared state and back, even if both belong to one backend.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAXIMAL_STATES = 8


@dataclass(frozen=True, slots=True)
class Label:
    """One way to run some operators.

    Attributes:
        ops: The operators that it covers, ascending.
        source: The state in which it needs every tensor from outside.
        state: The state of the tensors that it produces.
        seconds: What it costs, without the overhead of its call.
        backend: What runs it: a position in the user's order of targets.
        key: What the caller knows it by.
        alone: It is a call of its own and is never joined with its neighbours.
        nbytes: Bytes that it keeps on its device between runs (weights).
    """

    ops: tuple[int, ...]
    source: int
    state: int
    seconds: float
    backend: int
    key: Hashable = None
    alone: bool = False
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class ProblemTensor:
    """One value and all its readers.

    Attributes:
        producer: The operator that makes it, or -1 for an input of the problem.
        consumers: The operators that read it.
        transition: A position in `Problem.transitions`.
        is_output: It is also needed in the state `Problem.outside`.
    """

    producer: int
    consumers: tuple[int, ...]
    transition: int
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A large region that is priced as a whole and run as one call.

    It covers all operators after `first`, up to and including `last`; both are positions in the
    topological order.

    Attributes:
        first: The operator before the first one covered; -1 from the start.
        last: The last operator covered.
        source: The state in which it needs every tensor from outside.
        state: The state of the tensors that leave it.
        seconds: What it costs, without the overhead of its call.
        backend: What runs it.
        key: What the caller knows it by.
        nbytes: Bytes that it keeps on its device between runs.
    """

    first: int
    last: int
    source: int
    state: int
    seconds: float
    backend: int
    key: Hashable = None
    nbytes: int = 0

    @property
    def ops(self) -> range:
        """The operators covered, ascending."""
        return range(self.first + 1, self.last + 1)


Piece = Label | Interval


@dataclass(frozen=True, eq=False, slots=True)
class ReadArrays:
    """Which operators read what, as arrays.

    Attributes:
        tensors: intp[R]: by read, a position in `Problem.tensors`, ascending.
        ops: intp[R]: by read, the operator that reads.
        producers: intp[T]: by tensor, its producer, -1 for an input of the problem.
        transitions: intp[T]: by tensor, a position in `Problem.transitions`.
        is_output: bool[T]: by tensor, whether it is also needed outside.
    """

    tensors: NDArray[np.intp]
    ops: NDArray[np.intp]
    producers: NDArray[np.intp]
    transitions: NDArray[np.intp]
    is_output: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """All that the search knows.

    Attributes:
        count: How many operators there are, numbered in a topological order.
        labels: The ways to run them. A pin or an exclusion is a label that is not there.
        tensors: All values, inputs of the problem included; constants are not.
        transitions: f64[S, S] matrices: seconds to convert from a state (row) to another
            (column), infinite if it cannot be done directly. The diagonal is zero.
        outside: The state of the problem's inputs and outputs.
        call_seconds: By backend, the overhead of one call. Empty: none.
        intervals: Large regions.
        private: States that exist only inside one call.
        devices: By backend, its device. Empty: each backend is a device of its own.
        memory: By device, how many bytes the labels on it may keep. Empty: any.

    Raises:
        InternalError: Something refers to what is not there, or is not a cost.
    """

    count: int
    labels: tuple[Label, ...]
    tensors: tuple[ProblemTensor, ...]
    transitions: tuple[NDArray[np.float64], ...]
    outside: int = 0
    call_seconds: tuple[float, ...] = ()
    intervals: tuple[Interval, ...] = ()
    private: frozenset[int] = frozenset()
    devices: tuple[int, ...] = ()
    memory: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check every reference, so that nothing below has to."""
        _check_matrices(self)
        _check_totals(self)
        for label in self.labels:
            _check_piece(self, label)
            ops = label.ops
            if not ops or ops[0] < 0 or ops[-1] >= self.count:
                raise InternalError(f"label {label} covers no operator, or one that is not there")
            if len(ops) > 1 and any(a >= b for a, b in pairwise(ops)):
                raise InternalError(f"the operators of label {label} do not ascend")
        for interval in self.intervals:
            _check_piece(self, interval)
            if not -1 <= interval.first < interval.last < self.count:
                raise InternalError(f"interval {interval} covers no operator")
        for tensor in self.tensors:
            if tensor.consumers and not (
                tensor.producer < min(tensor.consumers) and max(tensor.consumers) < self.count
            ):
                raise InternalError(f"tensor {tensor} is read before it is made")
            if not (-1 <= tensor.producer < self.count) or not (
                0 <= tensor.transition < len(self.transitions)
            ):
                raise InternalError(f"tensor {tensor} refers to what is not there")

    @property
    def states(self) -> int:
        """How many states there are."""
        return len(self.transitions[0]) if self.transitions else 1

    @cached_property
    def backends(self) -> int:
        """How many backends there are."""
        pieces: Iterable[Piece] = (*self.labels, *self.intervals)
        named = 1 + max((piece.backend for piece in pieces), default=-1)
        return max(named, len(self.call_seconds), len(self.devices))

    @cached_property
    def overheads(self) -> tuple[float, ...]:
        """The overhead of one call, by backend."""
        return (*self.call_seconds, *(0.0,) * (self.backends - len(self.call_seconds)))

    @cached_property
    def reads(self) -> ReadArrays:
        """Which operators read what."""
        tensors = self.tensors
        sizes = [len(tensor.consumers) for tensor in tensors]
        ops = [op for tensor in tensors for op in tensor.consumers]
        return ReadArrays(
            np.repeat(np.arange(len(tensors)), sizes),
            np.array(ops, dtype=np.intp),
            np.array([tensor.producer for tensor in tensors], dtype=np.intp),
            np.array([tensor.transition for tensor in tensors], dtype=np.intp),
            np.array([tensor.is_output for tensor in tensors], dtype=bool),
        )

    @cached_property
    def device_of(self) -> tuple[int, ...]:
        """The device of each backend."""
        return self.devices or tuple(range(self.backends))


@dataclass(frozen=True, slots=True)
class Infeasible:
    """There is no plan; or none was found, because private states cannot be left between its calls.

    Attributes:
        message: Why, in one line.
        ops: The operators without any label, where that is the reason.
    """

    message: str
    ops: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Pieces that one backend runs in one go.

    Attributes:
        backend: What runs it.
        ops: The operators, ascending.
        pieces: What was chosen, ordered by their first operators.
    """

    backend: int
    ops: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What one tensor costs between the calls and labels of a plan.

    Attributes:
        tensor: A position in `Problem.tensors`.
        seconds: The sum of its conversions.
    """

    tensor: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Price:
    """A plan's cost in its parts; `seconds` is their sum.

    Attributes:
        label_seconds: The labels and intervals.
        conversions: The tensors that cost something, ascending.
        call_seconds: The overheads of all calls.
    """

    label_seconds: float
    conversions: tuple[Conversion, ...]
    call_seconds: float

    @property
    def seconds(self) -> float:
        """The seconds of one run."""
        converted = sum(conversion.seconds for conversion in self.conversions)
        return self.label_seconds + converted + self.call_seconds


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, and how good it is.

    Attributes:
        chosen: The labels and intervals, ordered by their first operators.
        calls: The same as calls, in the order in which they run.
        price: What it costs with its calls.
        label_seconds: What it costs before calls were formed: labels, and conversions once per
            tensor and state.
        bound: No plan can cost less.
        proof: `optimal under the cost model`, or `within 1.8%`.
        statistics: What the search did, as names and numbers.
    """

    chosen: tuple[Piece, ...]
    calls: tuple[PlannedCall, ...]
    price: Price
    label_seconds: float
    bound: float
    proof: str
    statistics: dict[str, float]

    @property
    def seconds(self) -> float:
        """The seconds of one run, calls included."""
        return self.price.seconds

    @property
    def gap(self) -> float:
        """How much of the seconds could at most be saved: 0.018 if it is within 1.8%."""
        if self.bound > 0:
            return max(0.0, self.seconds / self.bound - 1.0)
        return float(self.seconds > 0)


def covering(count: int, chosen: Sequence[Piece]) -> list[int]:
    """Return by operator which of the chosen pieces covers it.

    Raises:
        InternalError: One is covered twice or not at all.
    """
    piece_of = [-1] * count
    for position, piece in enumerate(chosen):
        for op in piece.ops:
            if piece_of[op] >= 0:
                raise InternalError(f"operator {op} is covered twice: {chosen[piece_of[op]]}")
            piece_of[op] = position
    if -1 in piece_of:
        raise InternalError(f"operator {piece_of.index(-1)} is not covered")
    return piece_of


def _check_matrices(problem: PlacementProblem) -> None:
    states = problem.states
    if states > MAXIMAL_STATES:
        raise InternalError(
            f"{states} states of tensors; at most {MAXIMAL_STATES} are distinguished"
        )
    if not 0 <= problem.outside < states or problem.outside in problem.private:
        raise InternalError(f"state {problem.outside} cannot be the state outside")
    for matrix in problem.transitions:
        if matrix.shape != (states, states) or np.isnan(matrix).any() or (matrix < 0).any():
            raise InternalError("a transition is not a matrix of non-negative seconds by states")
        if matrix.diagonal().any():
            raise InternalError("a transition to the same state costs something")


def _check_totals(problem: PlacementProblem) -> None:
    if not all(0 <= seconds < inf for seconds in problem.call_seconds):
        raise InternalError(f"an overhead that is not a number of seconds: {problem.call_seconds}")
    if not all(nbytes >= 0 for nbytes in problem.memory):
        raise InternalError(f"a memory that is not a number of bytes: {problem.memory}")


def _check_piece(problem: PlacementProblem, piece: Piece) -> None:
    states = problem.states
    if not (0 <= piece.source < states and 0 <= piece.state < states):
        raise InternalError(f"a state that is not there: {piece}")
    if not (piece.seconds >= 0 and piece.nbytes >= 0):
        raise InternalError(f"a cost that is negative or no number: {piece}")
    if piece.backend < 0:
        raise InternalError(f"no backend: {piece}")
