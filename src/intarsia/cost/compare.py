# SPDX-License-Identifier: Apache-2.0
"""What two cost databases say differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from intarsia.cost.database import CostDatabase
from intarsia.cost.key import Key
from intarsia.cost.selection import Entry, read_entries

Change: TypeAlias = Literal["left", "right", "faster", "slower", "alike"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One key in two databases.

    Attributes:
        key: What it is about.
        change: `left` or `right`: only there; `faster` or `slower`: the right one is, and their
            intervals are apart; `alike`.
        left_seconds: The figure in the first; None if it has no samples there.
        right_seconds: Likewise in the second.
    """

    key: Key
    change: Change
    left_seconds: float | None
    right_seconds: float | None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if not self.left_seconds or self.right_seconds is None:
            return None
        return self.right_seconds / self.left_seconds


def diff_costs(left: CostDatabase, right: CostDatabase) -> tuple[Difference, ...]:
    """Return every key that has samples in one of two databases, in their order there."""
    theirs = {entry.key: entry for entry in read_entries(right) if entry.samples}
    found = [
        _compare(entry, theirs.pop(entry.key, None))
        for entry in read_entries(left)
        if entry.samples
    ]
    found += [_compare(None, entry) for entry in theirs.values()]
    return tuple(found)


def _compare(left: Entry | None, right: Entry | None) -> Difference:
    entry = left or right
    assert entry is not None
    ours = None if left is None else left.seconds
    theirs = None if right is None else right.seconds
    if ours is None or theirs is None:
        change: Change = "right" if ours is None else "left"
    elif theirs[2] < ours[1]:
        change = "faster"
    elif theirs[1] > ours[2]:
        change = "slower"
    else:
        change = "alike"
    return Difference(entry.key, change, ours and ours[0], theirs and theirs[0])
