# SPDX-License-Identifier: Apache-2.0
"""What goes into a file directly is what SQLAlchemy would put there and finds there."""

import dataclasses
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from intarsia.cost.database import CostDatabase
from intarsia.cost.direct import add_samples, read_costs
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import Sample, new_session
from intarsia.errors import CostDatabaseError


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "folder" / "costs.sqlite")


@pytest.fixture
def keys(make_key):
    here = dataclasses.replace(make_key("here"), machine=this_machine().digest)
    return [here, make_key("r1")]


def samples(*seconds, anchor=""):
    session = new_session()
    return [Sample(each, float(bool(anchor)), anchor, 17.5, session) for each in seconds]


def described(file):
    """Everything that SQLite knows of tables, columns, indexes and references."""
    with sqlite3.connect(file) as connection:
        names = [
            name
            for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        every = {}
        for name in names:
            columns = connection.execute(f"pragma table_info({name})").fetchall()
            references = connection.execute(f"pragma foreign_key_list({name})").fetchall()
            indexes = connection.execute(f"pragma index_list({name})").fetchall()
            inside = [
                (index[1:], connection.execute(f"pragma index_info({index[1]})").fetchall())
                for index in indexes
            ]
            every[name] = (columns, references, sorted(inside))
        meta = connection.execute("select * from intarsia_meta").fetchall()
        journal = connection.execute("pragma journal_mode").fetchone()
        return every, meta, journal


def test_the_tables_are_the_same(url, keys, tmp_path):
    add_samples({keys[0]: samples(1e-3)}, url)
    other = tmp_path / "other.sqlite"
    CostDatabase.open(str(other)).close()
    assert described(url) == described(other)


def test_both_ways_find_what_either_wrote(url, keys):
    first, second = samples(1e-3, 2e-3), samples(0.1 + 0.2)
    add_samples({keys[0]: first, keys[1]: second}, url)
    with CostDatabase.open(url, create=False) as database:
        assert database.samples(keys) == {keys[0]: tuple(first), keys[1]: tuple(second)}
        assert database.costs(keys) == read_costs(keys, url)
        more = samples(5e-3, 6e-3, 7e-3)
        database.add(keys[0], more)
        add_samples({keys[0]: first}, url)
        assert database.samples(keys)[keys[0]] == (*first, *more, *first)
        assert database.costs(keys) == read_costs(keys, url)


def test_rows_are_the_same_whoever_wrote_them(url, keys, tmp_path):
    taken = {key: samples(1e-3, 2e-3) for key in keys}
    add_samples(taken, url)
    other = str(tmp_path / "other.sqlite")
    with CostDatabase.open(other) as database:
        database.add_all(taken)

    def rows(file):
        with sqlite3.connect(file) as connection:
            return {
                name: sorted(connection.execute(f"select * from {name}").fetchall())
                for name in ("intarsia_key", "intarsia_sample", "intarsia_machine")
            }

    assert {k[1]: k[2:] for k in rows(url)["intarsia_key"]} == {
        k[1]: k[2:] for k in rows(other)["intarsia_key"]
    }
    assert rows(url)["intarsia_machine"] == rows(other)["intarsia_machine"]
    assert len(rows(url)["intarsia_sample"]) == len(rows(other)["intarsia_sample"]) == 4


def test_samples_beside_an_anchor_count_by_its_history(url, keys):
    with CostDatabase.open(url) as database:
        database.add(keys[0], samples(1e-3, 3e-3, anchor="all"))
        database.add(keys[1], samples(5e-3, anchor="all"))
        assert read_costs(keys, url) == database.costs(keys)


def test_keys_without_samples_are_left_out(url, keys):
    add_samples({keys[0]: samples(1e-3)}, url)
    assert list(read_costs(keys, url)) == keys[:1]


def spoil(statement):
    def change(file):
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
        connection.close()

    return change


ODD = {
    "newer": spoil("update intarsia_meta set value = '99'"),
    "a table is missing": spoil("drop table intarsia_meta"),
    "of something else": lambda file: file.unlink() or spoil("create table music (x)")(file),
    "no database": lambda file: file.write_bytes(b"no database " * 100),
    "text for a number": spoil("update intarsia_sample set seconds = 'x'"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_the_same_error(odd, tmp_path, keys):
    file = tmp_path / "costs.sqlite"
    add_samples({keys[0]: samples(1e-3)}, str(file))
    ODD[odd](file)
    said = []
    for ask in (
        lambda: read_costs(keys, str(file)),
        lambda: CostDatabase.open(str(file), create=False).costs(keys),
    ):
        with pytest.raises(CostDatabaseError) as caught:
            ask()
        said.append(caught.value.message)
    assert said[0] == said[1]
    if odd != "text for a number":  # who only adds reads none
        before = file.read_bytes()
        with pytest.raises(CostDatabaseError):
            add_samples({keys[0]: samples(1e-3)}, str(file))
        assert file.read_bytes() == before


def test_a_missing_database_is_an_error_where_it_is_read(url, keys):
    with pytest.raises(CostDatabaseError, match="there is no cost database"):
        read_costs(keys, url)


def test_many_writers_at_once_lose_nothing(url, make_key):
    def add(number):
        add_samples({make_key(f"r{number % 3}"): samples(1e-3, 2e-3)}, url)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    with CostDatabase.open(url, create=False) as database:
        found = database.samples([make_key(f"r{number}") for number in range(3)])
    assert sum(map(len, found.values())) == 80


def test_sqlalchemy_is_not_loaded(url):
    code = (
        "import sys\n"
        "from intarsia.cost.direct import add_samples, read_costs\n"
        "from intarsia.cost.key import CostKey, Sample\n"
        "key = CostKey('r', 't', 'b', 'm', '1')\n"
        "add_samples({key: [Sample(1.0)]}, sys.argv[1])\n"
        "assert read_costs([key], sys.argv[1])[key].seconds == 1.0\n"
        "print('sqlalchemy' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
