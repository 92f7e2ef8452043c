# SPDX-License-Identifier: Apache-2.0
"""What `make test` leaves out, and what it says of skipped tests."""

import gc
from types import SimpleNamespace

import pytest
from tests import conftest


class Item:
    """A collected test, as far as sampling looks at it."""

    def __init__(self, function, parameters, one_in):
        self.parent = SimpleNamespace(nodeid="tests/test_it.py")
        self.originalname, self.name = function, f"{function}[{parameters}]"
        self.mark = SimpleNamespace(args=(one_in,)) if one_in else None
        self.added = []

    def get_closest_marker(self, name):
        assert name == "sample"
        return self.mark

    def add_marker(self, name):
        self.added.append(name)


def draw(sweeps):
    items = [
        Item(function, str(number), one_in)
        for function, count, one_in in sweeps
        for number in range(count)
    ]
    conftest.pytest_collection_modifyitems(items)
    assert all(item.added in ([], ["exhaustive"]) for item in items)
    return {item.name for item in items if not item.added}


@pytest.mark.parametrize(("count", "one_in", "kept"), [(40, 4, 10), (41, 4, 11), (2, 8, 1)])
def test_a_sample_is_of_the_size_that_was_asked_for_and_never_empty(count, one_in, kept):
    assert len(draw([("test_a", count, one_in)])) == kept


def test_a_sample_depends_on_its_own_sweep_only():
    alone = draw([("test_a", 40, 4)])
    beside = draw([("test_b", 7, 2), ("test_a", 40, 4), ("test_c", 5, None)])
    assert {name for name in beside if name.startswith("test_a")} == alone
    assert len({name for name in beside if name.startswith("test_c")}) == 5


def test_what_was_collected_is_left_out_of_searches_for_garbage():
    assert gc.get_freeze_count() > 1000


WHY = ("no gcc", "refused: unsupported-op: A", "refused: unsupported-op: B", "no gcc", "no gcc")


def test_skips_are_told_once_for_each_reason():
    lines = []
    reports = [SimpleNamespace(longrepr=("f.py", 1, f"Skipped: {why}")) for why in WHY]
    reporter = SimpleNamespace(
        stats={"skipped": reports}, section=lines.append, write_line=lines.append
    )
    conftest.pytest_terminal_summary(reporter)
    assert lines == ["skipped, and why", "    3 no gcc", "    2 refused: unsupported-op"]
