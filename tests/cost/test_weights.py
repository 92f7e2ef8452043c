# SPDX-License-Identifier: Apache-2.0
"""Bytes of regions are kept beside their seconds; databases from before go on working."""

import json
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from intarsia.cost import tables
from intarsia.cost.compare import diff_costs
from intarsia.cost.database import CostDatabase
from intarsia.cost.exchange import Added, export_costs, import_costs, merge_costs
from intarsia.cost.key import Sample
from intarsia.cost.records import Weight
from intarsia.cost.selection import Pruned, Selection, find_entry, prune_costs, read_entries
from intarsia.cost.weights import add_weights, find_weights

LARGE = Weight(5 << 32, 7.25, "s")
SMALL = Weight(0, 9.5, "t")


@pytest.fixture
def other(tmp_path):
    """A second database, in a file."""
    with CostDatabase.open(str(tmp_path / "other.sqlite")) as opened:
        yield opened


@pytest.fixture
def old_file(tmp_path, make_key):
    """A database that was made before weights were kept, with a sample of the key `r0`."""
    file = tmp_path / "old.sqlite"
    with CostDatabase.open(str(file)) as made:
        made.add(make_key("r0"), [Sample(1.0)])
    with sqlite3.connect(file) as connection:
        connection.execute(f"drop table {tables.weights.name}")
    connection.close()
    return str(file)


def table_names(file):
    connection = sqlite3.connect(Path(file))
    names = {name for (name,) in connection.execute("select name from sqlite_master")}
    connection.close()
    return names


def test_weights_come_back_as_they_were(database, make_key):
    first, second, third = map(make_key, ("r0", "r1", "r2"))
    add_weights(database, {first: [LARGE], second: [SMALL, LARGE]})
    add_weights(database, {first: [SMALL]})
    found = find_weights(database, [first, second, third])
    assert found == {first: (LARGE, SMALL), second: (SMALL, LARGE)}
    assert database.costs([first]) == {}  # bytes are not seconds
    entry = find_entry(database, second.digest)
    assert (entry.nbytes, entry.last_at, entry.seconds) == ((5 << 32) // 2, 9.5, None)


def test_a_database_from_before_is_read_as_it_is_and_grows_when_it_is_written(old_file, make_key):
    key = make_key("r0")
    with CostDatabase.open(old_file, create=False) as old:
        assert find_weights(old, [key]) == {}
        assert [entry.weights for entry in read_entries(old)] == [()]
        add_weights(old, {key: [LARGE]})  # who only reads makes no tables
        assert prune_costs(old, Selection(region="r9")) == Pruned(0, 0, 0, 0)
        assert json.loads(next(export_costs(old)))["schema"] == 1
    assert tables.weights.name not in table_names(old_file)
    with CostDatabase.open(old_file) as old:
        add_weights(old, {key: [LARGE]})
        assert find_weights(old, [key]) == {key: (LARGE,)}
        assert old.samples([key]) == {key: (Sample(1.0),)}


def test_who_must_not_make_tables_goes_on_without(server, make_key):
    url, key = server(), make_key("r0")
    with CostDatabase.open(url) as owner:
        owner.add(key, [Sample(1.0)])
        with owner.store.write() as connection:
            connection.execute(sa.text(f"drop table {tables.weights.name}"))
            connection.execute(sa.text("drop role if exists tuner"))
            connection.execute(sa.text("create role tuner login"))
            every = "select, insert, update, delete on all tables in schema public"
            connection.execute(sa.text(f"grant {every} to tuner"))
            connection.execute(sa.text("grant usage on all sequences in schema public to tuner"))
    with CostDatabase.open(url.replace("tester@", "tuner@")) as tuner:
        tuner.add(key, [Sample(2.0)])
        add_weights(tuner, {key: [LARGE]})
        assert find_weights(tuner, [key]) == {}
    with CostDatabase.open(url) as owner:  # may
        add_weights(owner, {key: [LARGE]})
        assert find_weights(owner, [key]) == {key: (LARGE,)}


def test_text_and_merging_bring_weights_over_once(database, other, make_key):
    timed, weighed = make_key("r0"), make_key("r1")
    database.add(timed, [Sample(1.0)])
    add_weights(database, {timed: [LARGE, LARGE], weighed: [SMALL]})
    lines = list(export_costs(database))
    assert json.loads(lines[0])["schema"] == 2  # versions from before say so
    assert import_costs(other, lines, "x") == Added(keys=2, samples=1, weights=3)
    assert list(export_costs(other)) == lines
    assert merge_costs(other, database) == Added()
    add_weights(database, {timed: [SMALL]})
    assert merge_costs(other, database) == Added(keys=1, weights=1)
    assert json.loads(next(export_costs(database, Selection(region="r9"))))["schema"] == 1


def test_weights_that_find_no_table_are_left_out_with_a_warning(
    database, other, make_key, monkeypatch, caplog
):
    add_weights(database, {make_key("r0"): [LARGE]})
    monkeypatch.setattr(other.store, "has", lambda table: False)
    assert import_costs(other, export_costs(database), "x") == Added()
    assert "no table for weights: they are left out" in caplog.text


@pytest.mark.parametrize("values", ["[-1,0.0,'s']", "[1,1e999,'s']", "[0.5,0.0,'s']"])
def test_weights_that_are_none_are_refused(other, make_key, database, values):
    add_weights(database, {make_key("r0"): [Weight(1, 2.0, "s")]})
    header, line = export_costs(database)
    wrong = line.replace('[1,2.0,"s"]', values.replace("'", '"'))
    assert wrong != line
    with pytest.raises(Exception, match="line 2 of 'x' is not from"):
        import_costs(other, [header, wrong], "x")
    assert list(read_entries(other)) == []


def test_pruning_takes_weights_along(database, make_key):
    timed, weighed = make_key("r0"), make_key("r1")
    database.add(timed, [Sample(1.0, taken_at=1.0)])
    add_weights(database, {timed: [LARGE, SMALL], weighed: [SMALL]})
    assert prune_costs(database, Selection(), before=8.0) == Pruned(0, 1, 0, 0, 1)
    assert find_weights(database, [timed, weighed]) == {timed: (SMALL,), weighed: (SMALL,)}
    add_weights(database, {timed: [LARGE]})
    assert prune_costs(database, Selection(region="r0"), keep=1, dry_run=True).weights == 1
    assert prune_costs(database, Selection(region="r0"), keep=1) == Pruned(0, 0, 0, 0, 1)
    assert find_weights(database, [timed]) == {timed: (SMALL,)}
    assert prune_costs(database, Selection(region="r")) == Pruned(2, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("nbytes", "change"),
    [(80_000_000, "lighter"), (99_000_000, "alike"), (112_000_000, "heavier")],
)
def test_a_difference_may_be_one_of_bytes(database, other, make_key, nbytes, change):
    key = make_key("r0")
    for costs, weight in ((database, 100_000_000), (other, nbytes)):
        costs.add(key, [Sample(1.0)])
        add_weights(costs, {key: [Weight(weight)]})
    (found,) = diff_costs(database, other)
    assert found.change == change
    assert (found.left_nbytes, found.right_nbytes) == (100_000_000, nbytes)
