# SPDX-License-Identifier: Apache-2.0
"""Which plan to take where costs are intervals."""

import pytest

from intarsia.tuning.absent.outlooks import Outlook, rank


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ({"a": (2.0, 3.0, 1.2), "b": (1.0, 9.0, 1.9)}, "a"),  # least slow at worst
        ({"a": (2.0, 3.0, 5.0), "b": (1.0, 9.0, 1.9)}, "b"),  # but not far from the best
        ({"a": (2.0, 3.0, 5.0), "b": (1.0, 9.0, 4.0)}, "b"),  # or as little as there is
        ({"a": (2.0, 3.0, 1.2), "b": (1.0, 3.01, 1.3)}, "b"),  # alike at worst
        ({"a measured": (2.0, 3.0, 5.0), "b": (1.0, 9.0, 1.1)}, "a measured"),
        ({"a measured": (2.0, 3.0, 5.0), "b": (1.0, 2.9, 1.1)}, "b"),
    ],
)
def test_the_plan_to_take_is_the_least_slow_at_worst_within_a_cap_of_regret(rows, first):
    outlooks = [
        Outlook(name, None, seconds, seconds / 2, high, regret, is_measured="measured" in name)
        for name, (seconds, high, regret) in rows.items()
    ]
    ranked = rank(outlooks)
    assert ranked[0].name == first
    assert sorted(each.name for each in ranked) == sorted(rows)
