# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.extents import (
    Expression,
    Extent,
    UndecidedError,
    at_most,
    data_symbols,
    divide,
    evaluate,
    evaluate_data,
    free_symbols,
    larger,
    parse_extent,
    read_data,
    substitute,
    symbol,
    to_data,
)

B, S = symbol("batch"), symbol("seq", 1, 512)
SIZES = st.fixed_dictionaries({"batch": st.integers(1, 9), "seq": st.integers(1, 512)})
LEAVES = st.one_of(st.integers(-7, 7), st.sampled_from([B, S]))


def _grown(inner: st.SearchStrategy[Extent]) -> st.SearchStrategy[Extent]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] + pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        pairs.map(lambda pair: pair[0] * pair[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda pair: pair[0] // pair[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda pair: pair[0] % pair[1]),
    )


EXTENTS = st.recursive(LEAVES, _grown, max_leaves=6)


@given(EXTENTS, EXTENTS, st.integers(1, 9), SIZES)
def test_arithmetic_is_that_of_numbers(left, right, divisor, sizes):
    a, b = evaluate(left, sizes), evaluate(right, sizes)
    assert evaluate(left + right, sizes) == a + b
    assert evaluate(left - right, sizes) == a - b
    assert evaluate(left * right, sizes) == a * b
    assert evaluate(left // divisor, sizes) == a // divisor
    assert evaluate(left % divisor, sizes) == a % divisor


@given(EXTENTS, EXTENTS, SIZES)
def test_a_comparison_holds_for_all_sizes_or_is_undecided(left, right, sizes):
    a, b = evaluate(left, sizes), evaluate(right, sizes)
    for of_extents, of_numbers in (
        (lambda: left < right, a < b),
        (lambda: left <= right, a <= b),
        (lambda: left > right, a > b),
        (lambda: left >= right, a >= b),
    ):
        try:
            assert of_extents() == of_numbers
        except UndecidedError:
            assert isinstance(left - right, Expression)


@given(EXTENTS, EXTENTS, SIZES)
def test_an_exact_quotient_is_one(left, right, sizes):
    if right == 0:
        return
    quotient = divide(left * right, right)
    if quotient is not None:
        assert evaluate(quotient * right, sizes) == evaluate(left * right, sizes)


@given(EXTENTS, st.integers(0, 9), SIZES)
def test_at_most_is_one_or_none(extent, limit, sizes):
    assert evaluate(at_most(extent, limit), sizes) == (evaluate(extent, sizes) <= limit)


def test_at_most_is_decided_where_bounds_decide():
    assert at_most(S, 512) >= 0
    assert at_most(B, 0) <= 0  # there is no upper bound, and yet no dimension beyond 2**40
    assert 1 - at_most(B, 3) >= 0
    with pytest.raises(UndecidedError):
        bool(at_most(B, 3))


def test_equal_polynomials_are_equal_values():
    assert (B + 1) * (B - 1) == B * B - 1
    assert hash(2 * S + B) == hash(B + S + S)
    assert B * S != S
    assert divide(B * S * 768, B * 12) == 64 * S
    assert divide(S, 2) is None
    assert (B - B) == 0


def test_questions_are_answered_within_bounds_only():
    assert S >= 1
    assert S <= 512
    with pytest.raises(UndecidedError, match="seq < 2 depends on the sizes"):
        _ = S < 2
    assert {item.name for item in free_symbols((S * B, 3))} == {"seq", "batch"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2*seq + 1", 2 * S + 1), ("seq//2", S // 2), ("12", 12), ("batch*(seq-1)", B * S - B)],
)
def test_expressions_are_read(text, expected):
    symbols = {item.name: item for item in free_symbols((S, B))}
    assert parse_extent(text, symbols) == expected
    assert parse_extent(str(parse_extent(text, symbols)), symbols) == expected


@pytest.mark.parametrize("text", ["unk__1.3", "a b", "f(x)", "decoder.45_dim_1", ""])
def test_any_other_text_is_one_name(text):
    assert parse_extent(text, {}) == symbol(text)


def test_the_larger_one_of_two_sizes_is_known_when_both_are():
    longer = larger(S, B)
    assert larger(B, S) == longer
    assert larger(S, S + B) == S + B
    assert larger(3, 7) == 7
    assert str(longer) == "max(batch, seq)"
    for sizes in ({"seq": 5, "batch": 2}, {"seq": 2, "batch": 5}):
        assert evaluate(longer * 3 + S, sizes) == 15 + sizes["seq"]
        assert evaluate_data(read_data(to_data(longer * 3 + S)), sizes) == 15 + sizes["seq"]
    assert data_symbols(to_data(longer)) == {"seq", "batch"}
    assert longer.bounds == (1, inf)
    assert longer >= 1
    with pytest.raises(UndecidedError):
        _ = longer > S
    symbols = {item.name: item for item in free_symbols((S, B))}
    assert parse_extent(str(longer), symbols) == longer
    assert substitute(longer, {"batch": 600}) == 600
    assert substitute(longer, {"batch": 3, "seq": 2}) == 3


def test_the_larger_one_of_a_size_and_a_number():
    longer = larger(64, S)
    assert longer == larger(S, 64)
    assert evaluate(longer, {"seq": 9}) == 64
    assert evaluate_data(read_data(to_data(longer)), {"seq": 90}) == 90
    assert parse_extent("max(seq, 64)", {"seq": next(iter(S.symbols))}) == longer
    assert larger(S, 0) == S
    assert larger(S, 512) == 512
