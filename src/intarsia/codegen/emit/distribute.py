# SPDX-License-Identifier: Apache-2.0
"""Finds more parallelism inside a kernel's turns, for devices that run thousands of work-items.

A turn of the parallel loop is sized for a CPU's thread. Inside it, a loop that carries nothing, or
sums alone, and whose iterations provably touch no common memory may be shared by work-items. What
lies around such loops is computed by each of them, stores there are one item's alone, and where a
statement reads or overwrites what an earlier one has written, the items wait for each other.

The proof is a dependence test on affine subscripts: two iterations meet only if a sum of bounded
terms is 0, which is decided from the largest coefficient down (compare Banerjee, "Dependence
Analysis", 1997, and Maslov's delinearization, PLDI 1992).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from intarsia.codegen import ir
from intarsia.codegen.emit.spans import Spans

_UNKNOWN_TURNS = 8
"""Assumed iterations of a loop whose bounds are known only at run time."""

_SHARED_PART = 0.9
"""The part of a turn's work that must lie in shared loops: the rest is done by every item."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How the work-items of one turn share it.

    Attributes:
        shared: Loops whose iterations they divide.
        reduced: Those of them that carry sums, products or extrema, and how each is combined: the
            name of the operation.
        barriers: Statements before which they wait for each other.
        closing: Loops at the end of whose iterations they wait.
        items: Most work-items that have something to do; 1 if a turn is not to be divided.
        shared_bytes: Of memory that the items of a group share.
    """

    shared: frozenset[int] = frozenset()
    reduced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    barriers: frozenset[int] = frozenset()
    closing: frozenset[int] = frozenset()
    items: int = 1
    shared_bytes: int = 0

    @property
    def waits(self) -> bool:
        """Whether the items of a turn must be one group."""
        return bool(self.barriers or self.closing or self.reduced)


def distribute(function: ir.Function) -> Distribution:
    """Return how a turn may be shared; operations are named by `id`."""
    return _Analysis(function, Spans.of(function)).run()


@dataclass(frozen=True, slots=True)
class _Term:
    """A difference of two iterations' subscripts: a scale times what a loop's turns differ by.

    Attributes:
        scale: Elements of memory from one turn to the next.
        reach: The most turns that two may lie apart; None if that is not known.
        is_shared: Whether it is the loop whose iterations are to be independent.
    """

    scale: int
    reach: int | None
    is_shared: bool


@dataclass(frozen=True, slots=True)
class _Access:
    """Which entries of its buffer a load or store touches.

    Attributes:
        terms: What they depend on, with its scale.
        low: The least of its lanes, without the terms.
        high: The largest of its lanes, without the terms.
    """

    terms: dict[ir.IrValue, int]
    low: int
    high: int

    @classmethod
    def of(cls, access: ir.Load | ir.Store, place: ir.Index) -> _Access:
        last = place.const + (access.count - 1) * access.stride
        return cls(dict(place.terms), min(place.const, last), max(place.const, last))


def _never_meet(terms: list[_Term], low: int, high: int) -> bool:
    """Tell whether two iterations never have `sum of terms + c = 0`, with `low <= c <= high`.

    From the largest scale down: what follows is smaller, so mostly one difference of turns is left.
    """
    terms = sorted(terms, reverse=True, key=lambda term: term.scale)
    is_other = False
    for number, term in enumerate(terms):
        reaches = [item.reach for item in terms[number + 1 :]]
        if None in reaches or term.scale == 0:
            return False
        rest = sum(item.scale * (item.reach or 0) for item in terms[number + 1 :])
        first, last = -(-(-high - rest) // term.scale), (-low + rest) // term.scale
        if term.reach is not None:
            first, last = max(first, -term.reach), min(last, term.reach)
        if first > last:
            return True
        if first < last:
            return False
        # If the shared loop's turns cannot differ, it is one iteration that meets itself.
        if term.is_shared:
            if first == 0:
                return True
            is_other = True
        low, high = low + term.scale * first, high + term.scale * first
    return is_other and not low <= 0 <= high


@dataclass(slots=True)
class _Analysis:
    function: ir.Function
    spans: Spans
    shared: list[ir.Loop] = field(default_factory=list)
    reduced: dict[int, tuple[str, ...]] = field(default_factory=dict)
    barriers: set[int] = field(default_factory=set)
    closing: set[int] = field(default_factory=set)

    def run(self) -> Distribution:
        loop = self.function.parallel
        body = self.function.body if loop is None else loop.body
        self._body(body, is_outermost=True)
        everything = _work(body)
        divided = sum(self._work_in(body, item) for item in self.shared)
        if not self.shared or divided < _SHARED_PART * everything:
            return Distribution()
        extents = [self._extent(item) for item in self.shared]
        # Of unknown extent: as many as one likes.
        items = max(extent or 1 << 20 for extent in extents)
        shared = frozenset(id(item) for item in self.shared)
        return Distribution(
            shared, self.reduced, frozenset(self.barriers), frozenset(self.closing), items
        )

    def _work_in(self, body: tuple[ir.Operation, ...], wanted: ir.Loop) -> int:
        """Return the work of a loop, times the turns of those around it."""
        for operation in body:
            if operation is wanted:
                return _turns(wanted) * (1 + _work(wanted.body))
            if isinstance(operation, ir.Loop):
                inner = self._work_in(operation.body, wanted)
                if inner:
                    return _turns(operation) * inner
        return 0

    # Which loops, and where to wait

    def _body(self, body: tuple[ir.Operation, ...], *, is_outermost: bool = False) -> None:
        written: set[ir.Buffer] = set()
        touched: set[ir.Buffer] = set()
        for operation in body:
            stores, loads = _effects(operation)
            # Behind a write of another work-item, and before a write of what another one may still
            # read.
            if written & (stores | loads) or touched & stores:
                self.barriers.add(id(operation))
                written, touched = set(), set()
            written |= stores
            touched |= stores | loads
            if not isinstance(operation, ir.Loop):
                continue
            names = _reductions(operation) if is_outermost and operation.carried else ()
            if names and self._is_independent(operation):
                self.shared.append(operation)
                self.reduced[id(operation)] = names
                continue
            if not stores:
                continue
            if not operation.carried and self._is_independent(operation):
                self.shared.append(operation)
                continue
            self._body(operation.body)
            if self._extent(operation) != 1:
                self.closing.add(id(operation))

    # Dependence

    def _is_independent(self, loop: ir.Loop) -> bool:
        """Tell whether no iteration touches what another one writes."""
        inner = set(_defined(loop))
        stored: dict[ir.Buffer, list[_Access]] = {}
        touched: dict[ir.Buffer, list[_Access]] = {}
        for item in ir.walk(loop.body):
            if isinstance(item, ir.Load | ir.Store):
                access = _Access.of(item, self._affine(item.buffer.flatten(item.subscripts)))
                touched.setdefault(item.buffer, []).append(access)
                if isinstance(item, ir.Store):
                    stored.setdefault(item.buffer, []).append(access)
        are_apart = (
            self._are_apart(loop, inner, stores, touched[buffer])
            for buffer, stores in stored.items()
        )
        return all(are_apart) and self._extent(loop) != 1

    def _are_apart(
        self, loop: ir.Loop, inner: set[ir.IrValue], stores: list[_Access], others: list[_Access]
    ) -> bool:
        """Tell whether accesses to one buffer are of different entries in different iterations."""
        first = stores[0].terms
        if any(item.terms != first for item in others):  # the stores are among them
            return False
        terms: list[_Term] = []
        for value, scale in first.items():
            maker = self.spans.loops.get(value)
            if maker is None and value in inner:
                return False
            if maker is loop or (maker is not None and value in inner):
                if any(start in inner or start is loop.variable for start in self._starts(maker)):
                    return False
                extent = self._extent(maker)
                reach = None if extent is None else max(0, extent - 1)
                terms.append(_Term(abs(scale) * maker.step, reach, maker is loop))
        differences = {(a.low - b.high, a.high - b.low) for a in stores for b in others}
        return all(_never_meet(terms, low, high) for low, high in differences)

    def _starts(self, loop: ir.Loop) -> list[ir.IrValue]:
        """Return the values that a loop's first turn depends on."""
        return [value for value, _ in self._affine(loop.lower).terms]

    def _affine(self, index: ir.Index) -> ir.Index:
        """Return a subscript in terms of values that are not subscripts themselves."""
        total = ir.Index(index.const)
        for value, scale in index.terms:
            maker = self.spans.makers.get(value)
            if isinstance(maker, ir.IndexValue):
                total = total + self._affine(maker.index) * scale
            else:
                total = total + _place(value) * scale
        return total

    def _extent(self, loop: ir.Loop) -> int | None:
        """Return an upper bound of a loop's turns, if there is one that is known now."""
        lowers = self._bounds(loop.lower, "max")
        uppers = self._bounds(loop.upper, "min")
        spans = [upper - lower for lower in lowers for upper in uppers]
        constants = [span.const for span in spans if not span.terms]
        least, most = self.spans.index(loop.lower), self.spans.index(loop.upper)
        if least is not None and most is not None:
            constants.append(most[1] - least[0])
        return max(0, -(-min(constants) // loop.step)) if constants else None

    def _bounds(self, index: ir.Index, name: str) -> list[ir.Index]:
        """Return subscripts that bound one from the side that `name` picks from."""
        index = self._affine(index)
        out = [index]
        if len(index.terms) == 1 and index.terms[0][1] == 1:
            maker = self.spans.makers.get(index.terms[0][0])
            if isinstance(maker, ir.Binary) and maker.name == name:
                for operand in (maker.left, maker.right):
                    out += [bound + index.const for bound in self._bounds(_place(operand), name)]
        return out


def _place(value: ir.IrValue) -> ir.Index:
    """Return a value as a subscript, be it of 64 bits or narrowed."""
    return ir.Index(0, ((value, 1),))


def _reductions(loop: ir.Loop) -> tuple[str, ...]:
    """Return how each carried value takes one more term, if it does nothing else; else nothing.

    Terms may then be combined in another order. An extremum drops a NaN in any order only if the
    carried value is the right operand.
    """
    makers = {result: item for item in loop.body for result in ir.results(item)}
    used = Counter(value for item in ir.walk(loop.body) for value in ir.operands(item))
    names = []
    for carried, following in zip(loop.carried, loop.yielded, strict=True):
        match makers.get(following):
            case ir.Fma(addend=addend) | ir.Dot(addend=addend) if addend is carried:
                name = "add"
            case ir.Binary(name=("add" | "mul") as name, left=left, right=right) if (
                carried is left or carried is right
            ):
                pass
            case ir.Binary(name=("min" | "max") as name, right=right) if right is carried:
                pass
            case _:
                return ()
        # Each carried value is used once, by its own sum: nobody sees how far it has come.
        if used[carried] != 1 or used[following] or loop.yielded.count(following) != 1:
            return ()
        names.append(name)
    return tuple(names)


def _defined(loop: ir.Loop) -> Iterator[ir.IrValue]:
    for operation in ir.walk(loop.body):
        yield from ir.results(operation)
        if isinstance(operation, ir.Loop):
            yield operation.variable
            yield from operation.carried


def _effects(operation: ir.Operation) -> tuple[set[ir.Buffer], set[ir.Buffer]]:
    """Return the buffers that an operation writes and reads."""
    body = ir.walk((operation,))
    accesses = [item for item in body if isinstance(item, ir.Load | ir.Store)]
    stores = {item.buffer for item in accesses if isinstance(item, ir.Store)}
    return stores, {item.buffer for item in accesses if isinstance(item, ir.Load)}


def _work(body: tuple[ir.Operation, ...]) -> int:
    """Return roughly how many operations a body runs."""
    total = 0
    for operation in body:
        if isinstance(operation, ir.Loop):
            total += _turns(operation) * (1 + _work(operation.body))
        else:
            total += 1
    return total


def _turns(loop: ir.Loop) -> int:
    count = loop.trip_count
    return _UNKNOWN_TURNS if count is None else count
