# SPDX-License-Identifier: Apache-2.0
"""Costs go out as text and come back as they were; wrong text changes nothing."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.cost.compare import diff_costs
from intarsia.cost.database import CostDatabase
from intarsia.cost.exchange import Added, export_costs, import_costs, merge_costs
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import CostKey, Sample
from intarsia.cost.records import Assigned, PlanVerdict, Poison, VerdictKey
from intarsia.cost.selection import (
    Pruned,
    Selection,
    count_keys,
    find_entry,
    prune_costs,
    read_entries,
    read_machines,
)
from intarsia.errors import CostDatabaseError

_NUMBERS = itertools.count()
_VERDICT_KEY = VerdictKey("m", "llvm", "llvm 1; openvino 2", "f", "2", "pins", "latency")
_VERDICT = PlanVerdict((Assigned("llvm", ("a",)),), 1.0, "llvm", 1.0, 1.0, 0.975, False, 5.0)


@pytest.fixture
def other(tmp_path):
    """A second database, in a file."""
    with CostDatabase.open(str(tmp_path / "other.sqlite")) as opened:
        yield opened


@pytest.fixture
def filled(database, make_key, make_junction):
    """A database with some of everything."""
    mine = this_machine().digest
    database.add(make_key("r0", machine=mine), [Sample(0.1 + 0.2, 1.0, "a", 1.5, "s")] * 3)
    database.add(make_key("r1", target="llvm -libs='ä, b'"), [Sample(1e-300, taken_at=9.0)])
    database.add(make_junction("r0", "r1"), [Sample(-1e-5, taken_at=2.0)])
    database.poison(make_key("r2"), "crashed", 'signal "11"', taken_at=3.0)
    database.save_verdict(_VERDICT_KEY, _VERDICT)
    return database


def test_text_brings_everything_over(filled, other):
    lines = list(export_costs(filled))
    assert all(line.endswith("\n") and json.loads(line) for line in lines)
    assert import_costs(other, lines, "x") == Added(keys=4, samples=5, poisons=1, verdicts=1)
    assert list(read_entries(other)) == list(read_entries(filled))
    assert read_machines(other) == read_machines(filled) == {
        this_machine().digest: this_machine().text
    }  # fmt: skip
    assert other.verdict(_VERDICT_KEY) == _VERDICT
    assert list(export_costs(other)) == lines


def test_bringing_in_twice_changes_nothing(filled, other):
    assert merge_costs(other, filled).samples == 5
    assert merge_costs(other, filled) == Added()
    assert merge_costs(filled, other) == Added()
    assert merge_costs(filled, filled) == Added()


def test_the_later_failure_and_verdict_win(filled, other, make_key):
    merge_costs(other, filled)
    other.poison(make_key("r2"), "timeout", "60 s", taken_at=4.0)
    newer = dataclasses.replace(_VERDICT, seconds=0.5, decided_at=6.0)
    other.save_verdict(_VERDICT_KEY, newer)
    assert merge_costs(other, filled) == Added()
    assert merge_costs(filled, other) == Added(keys=1, poisons=1, verdicts=1)
    assert filled.poisoned([make_key("r2")])[make_key("r2")] == Poison("timeout", "60 s", 4.0)
    assert filled.verdict(_VERDICT_KEY) == newer


_samples = st.lists(
    st.builds(
        Sample,
        seconds=st.floats(0, 1e9),
        anchor_seconds=st.floats(0, 1e9),
        anchor=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
        taken_at=st.sampled_from([1.0, 2.0]),
        session=st.sampled_from(["s", "t"]),
    ),
    max_size=6,
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(left=_samples, right=_samples)
def test_merging_is_the_union_of_what_was_sampled(tmp_path, left, right):
    """In either order; samples that were taken twice are kept twice."""
    key = CostKey("r", "llvm", "llvm 1", "m", "2")
    folder = tmp_path / str(next(_NUMBERS))
    with (
        CostDatabase.open(str(folder / "a.sqlite")) as a,
        CostDatabase.open(str(folder / "b.sqlite")) as b,
    ):
        a.add(key, left)
        b.add(key, right)
        merge_costs(a, b)
        merge_costs(b, a)
        both = [sorted(x.samples([key]).get(key, ()), key=repr) for x in (a, b)]
    assert both[0] == both[1]
    for sample in {*left, *right}:
        assert both[0].count(sample) == max(left.count(sample), right.count(sample))


_HEADER = '{"kind":"header","format":"intarsia-costs","schema":1}\n'
_KEY = '{"region":"r","target":"llvm","backend":"llvm 1","machine":"m","threads":"2"}'
_GOOD = f'{{"kind":"cost","key":{_KEY},"samples":[[1.0,0.0,"",0.0,""]]}}\n'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "'x' is not from .*: it is empty"),
        ([_GOOD], "line 1 of 'x' .*: the header is missing"),
        (["{}\n"], "line 1 of 'x'"),
        (["\n"], "line 1 of 'x'"),
        ([_HEADER, _GOOD, "not json\n"], "line 3 of 'x'"),
        ([_HEADER.replace("intarsia-costs", "other")], "line 1 of 'x' .*: the format is 'other'"),
        ([_HEADER.replace("1}", "3}")], "'x' has schema 3, newer than 2"),
        ([_HEADER, _GOOD, _GOOD.replace("[[1.0", "[[-1.0")], "line 3 .*: a time is negative"),
        ([_HEADER, _GOOD.replace("[[1.0", '[["fast"')], "line 2 .*Expected `float`"),
        ([_HEADER, _GOOD.replace("[[1.0", "[[null")], "line 2 of 'x'"),
        ([_HEADER, _GOOD.replace('"threads"', '"thread"')], "line 2 .*threads"),
        ([_HEADER, _GOOD.replace('"samples"', '"more":1,"samples"')], "line 2 .*`more`"),
        ([_HEADER, _GOOD.replace("[[1.0", "[[1e999")], "line 2 of 'x'"),
    ],
)
def test_wrong_text_changes_nothing(other, lines, message):
    with pytest.raises(CostDatabaseError, match=message) as caught:
        import_costs(other, lines, "x")
    assert caught.value.hint
    assert count_keys(other, Selection()) == 0


def test_keys_are_selected_by_what_they_say(filled, make_key):
    def regions(**fields):
        return sorted(entry.key.region for entry in read_entries(filled, Selection(**fields)))

    assert regions() == ["r0", "r0", "r1", "r2"]
    assert regions(region="r1") == ["r0", "r1"]  # a junction's other side counts
    assert regions(target="libs='ä") == ["r1"]
    assert regions(target="%") == []
    assert regions(backend="llvm 22") == ["r0", "r0", "r1", "r2"]
    assert regions(backend="openvino") == []
    assert regions(machine=this_machine().digest[:6]) == ["r0"]
    assert count_keys(filled, Selection(region="r0")) == 2
    assert len(list(read_entries(filled, most=2))) == 2
    digest = make_key("r2").digest
    assert find_entry(filled, digest[:10]).poison.code == "crashed"
    for text in ("", "xyz"):
        with pytest.raises(CostDatabaseError, match="no key begins with"):
            find_entry(filled, text)


def test_a_selection_passes_on_only_that(filled, other):
    import_costs(other, export_costs(filled, Selection(region="r1")), "x")
    assert {entry.key.region for entry in read_entries(other)} == {"r1", "r0"}
    assert other.verdict(_VERDICT_KEY) is None


def test_many_keys_are_read_in_parts(other, make_key):
    keys = [make_key(f"r{number}") for number in range(1001)]
    other.add_all({key: [Sample(1.0)] for key in keys})
    assert [entry.key for entry in read_entries(other)] == sorted(keys, key=lambda k: k.digest)


@pytest.mark.parametrize(
    ("options", "expected", "left"),
    [
        ({"before": 2.5}, Pruned(2, 4, 0, 0), ["r1", "r2"]),
        ({"keep": 1}, Pruned(0, 2, 0, 0), ["r0", "r0", "r1", "r2"]),
        ({"keep": 0}, Pruned(3, 5, 0, 0), ["r2"]),
        ({"selection": Selection(region="r2")}, Pruned(1, 0, 1, 0), ["r0", "r0", "r1"]),
        ({"selection": Selection(backend="llvm")}, Pruned(4, 5, 1, 1), []),
        ({"before": 100.0}, Pruned(4, 5, 1, 1), []),
        ({"before": 0.5}, Pruned(0, 0, 0, 0), ["r0", "r0", "r1", "r2"]),
    ],
)
def test_what_is_selected_is_removed(filled, options, expected, left):
    arguments = {"selection": Selection(), **options}
    before = list(export_costs(filled))
    assert prune_costs(filled, **arguments, dry_run=True) == expected
    assert list(export_costs(filled)) == before
    assert prune_costs(filled, **arguments) == expected
    assert sorted(entry.key.region for entry in read_entries(filled)) == left
    assert (filled.verdict(_VERDICT_KEY) is None) == bool(expected.verdicts)


def test_the_newest_samples_are_kept(other, make_key):
    other.add(make_key(), [Sample(float(n + 1), taken_at=float(n % 3)) for n in range(6)])
    prune_costs(other, Selection(), keep=2)
    assert [sample.seconds for sample in other.samples([make_key()])[make_key()]] == [3.0, 6.0]


def test_nothing_is_removed_by_accident(filled):
    with pytest.raises(CostDatabaseError, match="nothing says what to remove"):
        prune_costs(filled, Selection())


def test_two_databases_are_compared(database, other, make_key, make_junction):
    database.add_all({make_key(r): [Sample(1.0)] for r in ("a", "b", "c", "d")})
    other.add_all({make_key(r): [Sample(s)] for r, s in {"b": 0.5, "c": 2.0, "d": 1.01}.items()})
    other.add(make_junction("e"), [Sample(-1.0)])
    found = {item.key.region: (item.change, item.ratio) for item in diff_costs(database, other)}
    assert found == {
        "a": ("left", None),
        "b": ("faster", pytest.approx(0.5)),
        "c": ("slower", pytest.approx(2.0)),
        "d": ("alike", pytest.approx(1.01)),
        "e": ("right", None),
    }


def test_a_file_shrinks_when_it_is_emptied(tmp_path, make_key):
    file = tmp_path / "big.sqlite"
    with CostDatabase.open(str(file)) as database:
        samples = [Sample(float(n + 1), session="x" * 60) for n in range(5000)]
        database.add(make_key(), samples)
    before = file.stat().st_size
    with CostDatabase.open(str(file)) as database:
        assert prune_costs(database, Selection(), keep=1).samples == 4999
    assert file.stat().st_size < before / 4
