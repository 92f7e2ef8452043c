# SPDX-License-Identifier: Apache-2.0
"""The differences between two cost databases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from intarsia.cost.database import CostDatabase
from intarsia.cost.key import Key
from intarsia.cost.selection import CostEntry, read_entries

Change: TypeAlias = Literal["left", "right", "faster", "slower", "lighter", "heavier", "alike"]

CHANGED = ("faster", "slower", "lighter", "heavier")
"""The kinds of difference that make two databases contradict each other."""

BYTES_APART = 0.1
"""Weights that differ by less are the same: allocators round, and the system counts pages."""
# glibc takes memory from the system 128 KiB at a time (M_TOP_PAD, mallopt(3)).
_FEW_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class CostDifference:
    """One key in two databases.

    Attributes:
        key: What it is about.
        change: `left` or `right`: only there; `faster` or `slower`: the right one is, and their
            intervals are apart; `lighter` or `heavier`: it is, and as fast; `alike`.
        left_seconds: The figure in the first; None if it has no samples there.
        right_seconds: Likewise in the second.
        left_nbytes: By how much a process grows under it in the first; None if not weighed there.
        right_nbytes: Likewise in the second.
        left_interval: Of the seconds in the first, if it has samples there.
        right_interval: Likewise in the second.
    """

    key: Key
    change: Change
    left_seconds: float | None
    right_seconds: float | None
    left_nbytes: int | None = None
    right_nbytes: int | None = None
    left_interval: tuple[float, float] | None = None
    right_interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if not self.left_seconds or self.right_seconds is None:
            return None
        return self.right_seconds / self.left_seconds


def diff_costs(left: CostDatabase, right: CostDatabase) -> tuple[CostDifference, ...]:
    """Return every key that was timed or weighed in one of two databases, in their order there."""
    theirs = {entry.key: entry for entry in read_entries(right) if entry.samples or entry.weights}
    differences = [
        _compare(entry, theirs.pop(entry.key, None))
        for entry in read_entries(left)
        if entry.samples or entry.weights
    ]
    differences += [_compare(None, entry) for entry in theirs.values()]
    return tuple(differences)


def _compare(left: CostEntry | None, right: CostEntry | None) -> CostDifference:
    entry = left or right
    assert entry is not None
    ours = None if left is None else left.seconds
    theirs = None if right is None else right.seconds
    weights = left.nbytes if left else None, right.nbytes if right else None
    if left is None or right is None:
        change: Change = "right" if left is None else "left"
    elif ours is not None and theirs is not None and theirs[2] < ours[1]:
        change = "faster"
    elif ours is not None and theirs is not None and theirs[1] > ours[2]:
        change = "slower"
    else:
        change = _compare_bytes(*weights)
    return CostDifference(
        *(entry.key, change, ours and ours[0], theirs and theirs[0], *weights),
        left_interval=ours and ours[1:],
        right_interval=theirs and theirs[1:],
    )


def _compare_bytes(ours: int | None, theirs: int | None) -> Change:
    if ours is None or theirs is None:
        return "alike"
    if abs(theirs - ours) <= max(_FEW_BYTES, BYTES_APART * max(ours, theirs)):
        return "alike"
    return "lighter" if theirs < ours else "heavier"
