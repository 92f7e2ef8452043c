# SPDX-License-Identifier: Apache-2.0
"""Intervals that no cut allows, as labels: small ones, or all of them where nothing else is left.

An interval is a label of its own call; only the way in which it is found differs. As a label it
ties its operators together, which makes tables larger, and nothing can be cut inside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.place.search.problem import Interval, Label, Problem
from intarsia.place.search.search import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_OPS = 12
_MOST_ENTRIES = 1 << 16


def make_search(problem: Problem) -> Search:
    """Return the search of a problem with as many of its intervals as its tables allow.

    An interval that does not begin and end at cuts becomes a label, with its key, if it is small
    and no cut that others use lies inside.
    """
    search = Search(problem)
    if not search.dropped_intervals or search.engine.order is None:
        return search
    cuts = search.chain.layout.cuts if search.chain else ()
    small = [
        each
        for each in search.dropped_intervals
        if len(each.ops) <= _MOST_OPS and not _is_cut(each, cuts)
    ]
    if not small:
        return search
    folded = Search(fold(problem, small))
    order = folded.engine.order
    most = max(_MOST_ENTRIES, search.engine.order.entries)
    return folded if order is not None and order.entries <= most else search


def fold(problem: Problem, intervals: Iterable[Interval]) -> Problem:
    """Return the problem with some of its intervals as labels, behind all others."""
    gone = {id(each) for each in intervals}
    labels = tuple(
        Label(
            *(tuple(each.ops), each.source, each.state, each.seconds, each.backend, each.key),
            alone=True,
            nbytes=each.nbytes,
        )
        for each in problem.intervals
        if id(each) in gone
    )
    return replace(
        problem,
        labels=(*problem.labels, *labels),
        intervals=tuple(each for each in problem.intervals if id(each) not in gone),
    )


def _is_cut(interval: Interval, cuts: Sequence[int]) -> bool:
    """Tell whether a cut lies inside an interval; its last operator may be one."""
    place = bisect_left(cuts, interval.first + 1)
    return place < len(cuts) and cuts[place] < interval.last
