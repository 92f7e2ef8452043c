# SPDX-License-Identifier: Apache-2.0
"""Dimensions that are not known before a model runs, and what can be said of them all the same.

A `Symbol` is one free dimension of a model. An `Extent` is an int or an `Expression`: a polynomial
of symbols, and of rounded-down quotients and maxima of such, with integer coefficients.
Expressions are canonical: two that are equal as polynomials are equal as values, so that "is this
tensor dense?" and "do these shapes fit?" have an answer for all sizes at once. A comparison that
sizes within the symbols' bounds answer differently raises `UndecidedError` instead of guessing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, inf, prod
from typing import Any, NoReturn, TypeAlias

from intarsia.errors import IntarsiaError

_BEYOND = 1 << 40
"""More than any extent."""


class UndecidedError(IntarsiaError, ValueError):
    """A question about a free extent has different answers for different sizes."""


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """One free dimension.

    Attributes:
        name: Of the dimension in the model, or one made from its input and axis.
        low: The smallest size, inclusive.
        high: The largest size, inclusive; None if there is none.
        multiple: What every size is a multiple of.
        is_late: Whether the data decides it: it is known when the step has run that finds it.
    """

    name: str
    low: int = 1
    high: int | None = None
    multiple: int = 1
    is_late: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest size; infinity where there is none."""
        return self.low, inf if self.high is None else self.high

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return its size."""
        return sizes[self.name]


@dataclass(frozen=True, slots=True)
class Quotient:
    """An expression divided by a positive int, rounded down."""

    dividend: Expression
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend})//{self.divisor})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers it is."""
        low, high = self.dividend.bounds
        return max(low, -_BEYOND) // self.divisor, min(high, _BEYOND - 1) // self.divisor

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return what it is for sizes."""
        return self.dividend.evaluate(sizes) // self.divisor


@dataclass(frozen=True, slots=True)
class Maximum:
    """The larger one of an expression and an extent; see `larger`."""

    first: Expression
    second: Extent

    def __str__(self) -> str:
        return f"max({self.first}, {self.second})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers it is."""
        second = self.second
        low, high = (second, second) if isinstance(second, int) else second.bounds
        return max(self.first.bounds[0], low), max(self.first.bounds[1], high)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return what it is for sizes."""
        return max(self.first.evaluate(sizes), evaluate(self.second, sizes))


Factor: TypeAlias = "Symbol | Quotient | Maximum"
Monomial: TypeAlias = tuple[Factor, ...]
"""A product of factors, sorted by their text; () is 1."""


@dataclass(frozen=True, eq=True)
class Expression:
    """A polynomial that has at least one symbol; see `extent_of`, which makes one or an int.

    Attributes:
        terms: Products and their coefficients, none 0, sorted by text.
    """

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, symbol: Factor) -> Expression:
        """Return a symbol as an expression."""
        return cls((((symbol,), 1),))

    def __str__(self) -> str:
        parts: list[str] = []
        for factors, coefficient in self.terms:
            names = "*".join(map(str, factors))
            if not names:
                text = str(abs(coefficient))
            else:
                text = names if abs(coefficient) == 1 else f"{abs(coefficient)}*{names}"
            sign = "-" if coefficient < 0 else "+"
            parts.append(text if not parts and sign == "+" else f"{sign}{text}")
        return "".join(parts)

    __repr__ = __str__

    # Arithmetic

    def __add__(self, other: Extent) -> Extent:
        if not isinstance(other, int | Expression):
            return NotImplemented
        merged = dict(self.terms)
        for factors, coefficient in _terms(other):
            merged[factors] = merged.get(factors, 0) + coefficient
        return extent_of(merged)

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return self * -1

    def __sub__(self, other: Extent) -> Extent:
        return self + other * -1

    def __rsub__(self, other: Extent) -> Extent:
        return self * -1 + other

    def __mul__(self, other: Extent) -> Extent:
        if not isinstance(other, int | Expression):
            return NotImplemented
        merged: dict[Monomial, int] = {}
        for left, first in self.terms:
            for right, second in _terms(other):
                factors = tuple(sorted((*left, *right), key=str))
                merged[factors] = merged.get(factors, 0) + first * second
        return extent_of(merged)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Extent) -> Extent:
        """Divide and round down.

        Raises:
            UndecidedError: The divisor is an expression that does not divide without a rest.
        """
        exact = divide(self, divisor)
        if exact is not None:
            return exact
        if isinstance(divisor, Expression) or divisor <= 0:
            raise UndecidedError(f"{self} divided by {divisor} is not a polynomial")
        whole = {factors: number for factors, number in self.terms if number % divisor == 0}
        rest = {factors: number for factors, number in self.terms if number % divisor}
        common = gcd(divisor, *rest.values())
        inner = extent_of({factors: number // common for factors, number in rest.items()})
        outer = extent_of({factors: number // divisor for factors, number in whole.items()})
        if isinstance(inner, int):
            return outer + inner // (divisor // common)
        return outer + Expression.of(Quotient(inner, divisor // common))

    def __rfloordiv__(self, dividend: int) -> Extent:
        if dividend == 0:
            return 0
        raise UndecidedError(f"{dividend} divided by {self} is not a polynomial")

    def __rmod__(self, dividend: int) -> Extent:
        return dividend - dividend // self * self

    def __mod__(self, divisor: Extent) -> Extent:
        return self - self // divisor * divisor

    def __divmod__(self, divisor: Extent) -> tuple[Extent, Extent]:
        return self // divisor, self % divisor

    def __rdivmod__(self, dividend: int) -> tuple[Extent, Extent]:
        return dividend // self, dividend % self

    # Questions

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers it is, for all sizes within the bounds of the symbols."""
        low = high = 0.0
        for factors, coefficient in self.terms:
            ends = {1.0}
            for factor in factors:
                ends = {_times(end, bound) for end in ends for bound in factor.bounds}
            products = [_times(coefficient, end) for end in ends]
            low, high = low + min(products), high + max(products)
        return low, high

    def _decide(self, other: Extent, relation: str, *, below: bool) -> bool:
        """Tell whether the difference to another one is negative (`below`) or at most 0."""
        if not isinstance(other, int | Expression):
            return NotImplemented
        difference = self - other
        low, high = difference.bounds if isinstance(difference, Expression) else (difference,) * 2
        if (high < 0) if below else (high <= 0):
            return True
        if (low >= 0) if below else (low > 0):
            return False
        raise UndecidedError(f"whether {self} {relation} {other} depends on the sizes")

    def __lt__(self, other: Extent) -> bool:
        return self._decide(other, "<", below=True)

    def __le__(self, other: Extent) -> bool:
        return self._decide(other, "<=", below=False)

    def __gt__(self, other: Extent) -> bool:
        return not self._decide(other, "<=", below=False)

    def __ge__(self, other: Extent) -> bool:
        return not self._decide(other, "<", below=True)

    def __abs__(self) -> Extent:
        return self if self >= 0 else -self

    def _is_needed(self, *_: object) -> NoReturn:
        """Refuse to be a number."""
        raise UndecidedError(f"{self} is needed when compiling")

    __index__ = __int__ = __float__ = bit_length = _is_needed
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _is_needed

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low > 0 or high < 0:
            return True
        raise UndecidedError(f"whether {self} is 0 depends on the sizes")

    @property
    def known_part(self) -> int:
        """The summand that no symbol is in."""
        return dict(self.terms).get((), 0)

    @property
    def symbols(self) -> frozenset[Symbol]:
        """What it depends on."""
        return frozenset(
            symbol for factors, _ in self.terms for factor in factors for symbol in _symbols(factor)
        )

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return what it is for sizes."""
        return sum(
            coefficient * prod([factor.evaluate(sizes) for factor in factors])
            for factors, coefficient in self.terms
        )


def _symbols(factor: Factor) -> frozenset[Symbol]:
    match factor:
        case Symbol():
            return frozenset((factor,))
        case Quotient():
            return factor.dividend.symbols
        case Maximum():
            return factor.first.symbols | free_symbols([factor.second])


Extent: TypeAlias = "int | Expression"
"""A dimension, a stride or an offset: known, or known only when it runs."""

Size: TypeAlias = Any
"""An extent where code for known ones and code for all meet.

What needs a number takes it for one: an expression that is no number raises `UndecidedError`.
"""


def extent_of(terms: Mapping[Monomial, int]) -> Extent:
    """Return the sum of products with coefficients: an int if nothing of it is free."""
    left = {factors: coefficient for factors, coefficient in terms.items() if coefficient}
    if not left.keys() - {()}:
        return left.get((), 0)
    # The constant last, as people write it.
    return Expression(tuple(sorted(left.items(), key=lambda term: (not term[0], str(term[0])))))


def symbol(name: str, low: int = 1, high: int | None = None) -> Expression:
    """Return a free dimension as an expression."""
    return Expression.of(Symbol(name, low, high))


def extent_of_symbol(symbol: Symbol) -> Expression:
    """Return a free dimension as an expression: of a multiple, how many times, as one factor.

    So halves of multiples are whole, and two of them are the dimension again.
    """
    if symbol.multiple == 1:
        return Expression.of(symbol)
    part = Quotient(Expression.of(symbol), symbol.multiple)
    return Expression((((part,), symbol.multiple),))


def larger(first: Extent, second: Extent) -> Extent:
    """Return the larger one of two extents, whichever that is."""
    for one, other in ((first, second), (second, first)):
        with suppress(UndecidedError):
            if one >= other:
                return one
    first, second = sorted((first, second), key=lambda one: (isinstance(one, int), str(one)))
    assert isinstance(first, Expression)  # two numbers have an order
    return Expression.of(Maximum(first, second))


def substitute(extent: Extent, values: Mapping[str, Extent]) -> Extent:
    """Return an extent with others for some symbols, by name.

    Raises:
        UndecidedError: It would be divided by an expression.
    """
    if isinstance(extent, int):
        return extent
    total: Extent = 0
    for factors, coefficient in extent.terms:
        product: Extent = coefficient
        for factor in factors:
            product = product * _substituted(factor, values)
        total = total + product
    return total


def _substituted(factor: Factor, values: Mapping[str, Extent]) -> Extent:
    match factor:
        case Symbol():
            return values.get(factor.name, Expression.of(factor))
        case Quotient():
            return substitute(factor.dividend, values) // factor.divisor
        case Maximum():
            return larger(substitute(factor.first, values), substitute(factor.second, values))


def _terms(extent: Extent) -> Sequence[tuple[Monomial, int]]:
    return extent.terms if isinstance(extent, Expression) else (((), extent),)


def _times(left: float, right: float) -> float:
    return 0.0 if 0 in (left, right) else left * right  # infinity times 0 is not a number


def divide(dividend: Extent, divisor: Extent) -> Extent | None:
    """Return the quotient if there is no rest for any sizes, else None.

    Raises:
        ZeroDivisionError: The divisor is 0.
    """
    if isinstance(dividend, int) and isinstance(divisor, int):
        return None if dividend % divisor else dividend // divisor
    if dividend == divisor:
        return 1
    # Long division by the leading term; as terms have no order here that is right for any sum, a
    # divisor of several terms must divide by their first one.
    (lead, scale), *_ = _terms(divisor)
    rest, quotient = dict(_terms(dividend)), extent_of({})
    for _ in range(len(rest)):
        found = next((item for item in rest.items() if item[1]), None)
        if found is None:
            break
        factors, coefficient = found
        others = list(factors)
        for factor in lead:
            if factor not in others:
                return None
            others.remove(factor)
        if coefficient % scale:
            return None
        part = extent_of({tuple(others): coefficient // scale})
        quotient = part + quotient
        remaining = extent_of(rest) - part * divisor
        rest = dict(_terms(remaining))
    return quotient if not any(rest.values()) else None


_TYPICAL = 64
"""A size that is neither small nor large, for choices that change no result."""


def typical(extent: Extent) -> int:
    """Return what an extent may be: for choices of how to run, which change no result."""
    if isinstance(extent, int):
        return extent
    sizes = {}
    for symbol in extent.symbols:
        most = _TYPICAL if symbol.high is None else min(symbol.high, _TYPICAL)
        sizes[symbol.name] = max(symbol.low, most)
    return extent.evaluate(sizes)


def least(extent: Extent) -> int:
    """Return the smallest that an extent may be: for choices that give few images enough turns."""
    if isinstance(extent, int):
        return extent
    return extent.evaluate({symbol.name: symbol.low for symbol in extent.symbols})


def most(extent: Extent, limit: int) -> int:
    """Return the largest that an extent may be, or a limit if that is less."""
    if isinstance(extent, int):
        return min(extent, limit)
    return int(min(extent.bounds[1], limit))


def at_most(extent: Extent, limit: int) -> Extent:
    """Return 1 for sizes at which an extent is at most a limit, else 0."""
    return -((extent - limit - 1) // _BEYOND)


def common_divisor(number: int, extent: Extent) -> int:
    """Return the largest number that divides a number, and an extent for all sizes."""
    return gcd(number, *(coefficient for _, coefficient in _terms(extent)))


def nonempty(extent: Extent) -> Extent:
    """Return an extent whose symbols are at least 1."""
    if not isinstance(extent, Expression):
        return extent

    def raised(factor: Factor) -> Factor:
        match factor:
            case Symbol():
                return replace(factor, low=max(factor.low, 1))
            case Quotient():
                return Quotient(raised_all(factor.dividend), factor.divisor)
            case Maximum():
                return Maximum(raised_all(factor.first), nonempty(factor.second))

    def raised_all(expression: Expression) -> Expression:
        result = nonempty(expression)
        assert isinstance(result, Expression)
        return result

    return extent_of(
        {tuple(map(raised, factors)): coefficient for factors, coefficient in extent.terms}
    )


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """Return what an extent is for sizes, given by the symbols' names."""
    return extent.evaluate(sizes) if isinstance(extent, Expression) else extent


def evaluate_all(extents: Iterable[Extent], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return what extents are for sizes, given by the symbols' names."""
    return tuple([evaluate(extent, sizes) for extent in extents])


Data: TypeAlias = "list[tuple[int, list[DataFactor]]]"
"""An expression for storing: coefficients and factors."""

DataFactor: TypeAlias = "str | tuple[Data, int] | tuple[Data, Data]"
"""A factor for storing: a name, a quotient or a maximum."""


def to_data(expression: Extent) -> Data:
    """Return an extent for storing; bounds of symbols are not."""
    return [
        (coefficient, [_factor_data(factor) for factor in factors])
        for factors, coefficient in _terms(expression)
    ]


def _factor_data(factor: Factor) -> DataFactor:
    match factor:
        case Symbol():
            return factor.name
        case Quotient():
            return to_data(factor.dividend), factor.divisor
        case Maximum():
            return to_data(factor.first), to_data(factor.second)


def read_data(stored: Any) -> Any:
    """Return a stored expression as `to_data` made it, from what JSON makes of it; an int stays."""
    if not isinstance(stored, list):
        return stored
    return [
        (
            coefficient,
            [one if isinstance(one, str) else tuple(map(read_data, one)) for one in factors],
        )
        for coefficient, factors in stored
    ]


def data_symbols(data: Data) -> frozenset[str]:
    """Return the names of the symbols of a stored expression."""
    names: set[str] = set()
    for _, factors in data:
        for factor in factors:
            parts = [factor] if isinstance(factor, str) else factor
            for part in parts:
                if isinstance(part, str):
                    names.add(part)
                elif not isinstance(part, int):
                    names |= data_symbols(part)
    return frozenset(names)


def evaluate_data(data: Data, sizes: Mapping[str, int]) -> int:
    """Return what a stored expression is for sizes.

    Raises:
        KeyError: A symbol has no size.
        ZeroDivisionError: It divides by 0.
    """
    total = 0
    for coefficient, factors in data:
        product = coefficient
        for factor in factors:
            if isinstance(factor, str):
                product *= sizes[factor]
                continue
            first, second = factor
            value = evaluate_data(first, sizes)
            if isinstance(second, int):
                product *= value // second
            else:
                product *= max(value, evaluate_data(second, sizes))
        total += product
    return total


def is_free(extents: Iterable[Extent]) -> bool:
    """Tell whether one of some extents is known only when it runs."""
    return any(isinstance(extent, Expression) for extent in extents)


def free_symbols(extents: Iterable[Extent]) -> frozenset[Symbol]:
    """Return what some extents depend on."""
    parts = [extent.symbols for extent in extents if isinstance(extent, Expression)]
    return frozenset().union(*parts)


def late_symbols(extents: Iterable[Extent]) -> frozenset[Symbol]:
    """Return those on which some extents depend that the data decides."""
    return frozenset(symbol for symbol in free_symbols(extents) if symbol.is_late)


def parse_extent(text: str, symbols: Mapping[str, Symbol]) -> Extent:
    """Read what a model calls a dimension: `seq`, `2*seq+1`, or any other text as one name.

    Args:
        text: Of the dimension.
        symbols: Those that have bounds; others get none.
    """
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, symbols)
    except (SyntaxError, ValueError, RecursionError):
        return extent_of_symbol(symbols.get(text) or Symbol(text))


def _read(tree: ast.expr, symbols: Mapping[str, Symbol]) -> Extent:
    """Read the tree of an expression.

    Raises:
        ValueError: It has something else than sums, products, quotients and maxima.
    """
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return extent_of_symbol(symbols.get(name) or Symbol(name))
        case ast.Call(func=ast.Name(id="max"), args=[left, right], keywords=[]):
            return larger(_read(left, symbols), _read(right, symbols))
        case ast.BinOp(left=left, op=operator, right=right):
            first, second = _read(left, symbols), _read(right, symbols)
            match operator:
                case ast.Add():
                    return first + second
                case ast.Sub():
                    return first - second
                case ast.Mult():
                    return first * second
                case ast.FloorDiv():
                    return first // second
                case _:
                    pass
        case _:
            pass
    raise ValueError(f"{ast.unparse(tree)} is not a sum of products")
