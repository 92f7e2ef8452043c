# SPDX-License-Identifier: Apache-2.0
"""Cuts that need one another, and what runs between them in every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem

_LONG = 0.5  # of all operators: a tensor that lives so long, such as a mask, passes by any cut
# In a small network half of all operators are not long.
_LONG_OPS = 32


@dataclass(frozen=True, slots=True)
class Sections:
    """Cuts, and what runs between them.

    Attributes:
        cuts: The operators, ascending; each needs the one before.
        section: By operator, its section as a reader: the position of the next cut; -1 if nothing
            is known of it.
        paths: By section, the longest path through what lies between its cuts.
    """

    cuts: tuple[int, ...]
    section: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]


def find_sections(problem: PlacementProblem, required: Sequence[int]) -> Sections | None:
    """Return cuts and sections; None if not all required operators can be cuts, or none is one.

    A cut is an operator that no tensor passes by, masks and the like aside.

    Args:
        problem: The problem.
        required: Operators that must be cuts.
    """
    count = problem.count
    needs: list[set[int]] = [set() for _ in range(count)]
    passing = np.zeros(count + 1, dtype=np.intp)
    for tensor in problem.tensors:
        if tensor.producer < 0:
            continue
        for op in tensor.consumers:
            needs[op].add(tensor.producer)
        last = max(tensor.consumers, default=tensor.producer)
        if last - tensor.producer < max(_LONG * count, _LONG_OPS):
            passing[tensor.producer + 1] += 1
            passing[max(last, tensor.producer + 1)] -= 1
    before = [0] * count  # bit sets of operators
    for op, makers in enumerate(needs):
        for maker in makers:
            before[op] |= before[maker] | 1 << maker
    cuts = _chain(np.flatnonzero(np.cumsum(passing)[:count] == 0).tolist(), required, before)
    if not cuts:
        return None
    section = [-1] * count
    start = -1
    for place, cut in enumerate([*cuts, count]):
        for op in range(start + 1, cut):
            is_between = (start < 0 or before[op] >> start & 1) and (
                cut == count or before[cut] >> op & 1
            )
            section[op] = place if is_between else -1
        start = cut
    for place, cut in enumerate(cuts):
        section[cut] = place
    paths = _paths(cuts, section, needs)
    return Sections(tuple(cuts), tuple(section), tuple(paths))


def _chain(
    candidates: Sequence[int], required: Sequence[int], before: Sequence[int]
) -> list[int] | None:
    """Return candidates each of which needs the one before, with all that are required."""
    chain: list[int] = []
    missing = sorted(required, reverse=True)
    for op in sorted({*candidates, *required}):
        if missing and op == missing[-1]:
            missing.pop()
            if chain and not before[op] >> chain[-1] & 1:
                return None
        elif (chain and not before[op] >> chain[-1] & 1) or (
            missing and not before[missing[-1]] >> op & 1
        ):
            continue
        chain.append(op)
    return chain


def _paths(
    cuts: Sequence[int], section: Sequence[int], needs: Sequence[set[int]]
) -> list[tuple[int, ...]]:
    length = [0] * len(section)
    step = [-1] * len(section)
    ends = [-1] * (len(cuts) + 1)
    is_cut = set(cuts)
    for op, place in enumerate(section):
        if place < 0 or op in is_cut:
            continue
        inner = [maker for maker in needs[op] if section[maker] == place]
        longest = max(inner, key=lambda maker: (length[maker], -maker), default=-1)
        length[op], step[op] = (length[longest] + 1 if inner else 1), longest
        if ends[place] < 0 or length[op] > length[ends[place]]:
            ends[place] = op
    paths = []
    for end in ends:
        path = []
        op = end
        while op >= 0:
            path.append(op)
            op = step[op]
        paths.append(tuple(reversed(path)))
    return paths
