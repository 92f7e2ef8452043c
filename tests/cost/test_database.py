# SPDX-License-Identifier: Apache-2.0
"""The cost database keeps what it is given, on SQLite and on PostgreSQL, or says why not."""

import dataclasses
import sqlite3
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from intarsia.cache import cache_info, make_cache_folder
from intarsia.cost import tables
from intarsia.cost.cost import CostSource
from intarsia.cost.database import CostDatabase
from intarsia.cost.fingerprint import host_id, this_machine
from intarsia.cost.key import Sample, new_session
from intarsia.cost.records import Assigned, PlanVerdict, Poison, VerdictKey
from intarsia.errors import CostDatabaseError
from intarsia.settings import Settings

_SAMPLES = (
    Sample(1.25e-3, 1e-3, "anchor", 1234.5, "host.session"),
    Sample(0.1 + 0.2, 1e-300, "Ω 'anchor'", 2.0**40 + 2**-12, "host.session"),
)

_VERDICT_KEY = VerdictKey("m" * 32, "openvino, llvm", "openvino 1; llvm 2", "f" * 16, "2")
_VERDICT = PlanVerdict(
    regions=(Assigned("llvm", ("a", 'b"é')), Assigned("openvino", ("c",))),
    seconds=1e-3,
    single="llvm",
    single_seconds=1.25e-3,
    predicted_seconds=0.9e-3,
    confidence=0.975,
    is_mixed=True,
    decided_at=17.0,
    session="s",
    report='{"rounds": 24}',
)


def test_samples_come_back_as_they_were(database, make_key, make_junction):
    keys = [make_key("r0"), make_key("r1"), make_junction("r0", "r1"), make_key("r2")]
    database.add(keys[0], _SAMPLES)
    database.add_all({keys[1]: _SAMPLES[:1], keys[2]: [Sample(-1e-6)], keys[3]: []})
    database.add(keys[0], [Sample(3.0)])
    assert database.samples(keys) == {
        keys[0]: (*_SAMPLES, Sample(3.0)),
        keys[1]: _SAMPLES[:1],
        keys[2]: (Sample(-1e-6),),
    }
    assert database.samples([]) == {}


@pytest.mark.parametrize("field", ["region", "target", "backend", "machine", "threads"])
def test_every_field_of_a_key_counts(tmp_path, make_key, field):
    key = make_key()
    other = dataclasses.replace(key, **{field: "another"})
    with CostDatabase.open(str(tmp_path / "c.sqlite")) as database:
        database.add(key, _SAMPLES)
        assert database.samples([other]) == {}
        assert database.cost(other) is None


def test_more_keys_than_one_statement_takes(database, make_key):
    keys = [make_key(f"r{number}") for number in range(1203)]
    database.add_all({key: [Sample(float(n + 1))] for n, key in enumerate(keys)})
    found = database.samples([*keys, make_key("none")])
    assert [found[key][0].seconds for key in keys] == [n + 1.0 for n in range(1203)]


def test_a_cost_uses_the_anchor_of_all_keys(database, make_key):
    here = new_session()
    database.add(make_key("other"), [Sample(1.0, 2e-3, "a", 0.0, here)] * 5)
    slow = Sample(6e-3, 4e-3, "a", 1.0, here)  # the machine was twice as slow
    database.add(make_key("r"), [slow])
    cost = database.cost(make_key("r"))
    assert cost.seconds == pytest.approx(1.5 * 3e-3)  # its runs: 2 ms, once for a round, and 4 ms
    assert cost.source is CostSource.MEASURED
    foreign = make_key("r", machine="another")
    database.add(foreign, [dataclasses.replace(slow, session="twin.1")])
    assert database.cost(foreign).seconds == pytest.approx(6e-3)
    assert database.cost(foreign).source is CostSource.FINGERPRINT


def test_the_text_of_this_machine_is_kept(database, make_key):
    database.add(make_key(machine=this_machine().digest), _SAMPLES)
    with database.store.read() as connection:
        rows = connection.execute(sa.select(tables.machines)).all()
    assert rows == [(this_machine().digest, this_machine().text)]


def test_the_last_poison_stays(database, make_key):
    key = make_key()
    database.poison(key, "crashed", "signal 11", taken_at=1.0)
    database.poison(key, "timeout", "ran for 60 s", taken_at=2.0, session="s")
    found = database.poisoned([key, make_key(backend="llvm 23")])
    assert found == {key: Poison("timeout", "ran for 60 s", 2.0, "s")}


def test_the_last_verdict_stays(database):
    assert database.verdict(_VERDICT_KEY) is None
    database.save_verdict(_VERDICT_KEY, dataclasses.replace(_VERDICT, seconds=7.0))
    database.save_verdict(_VERDICT_KEY, _VERDICT)
    assert database.verdict(_VERDICT_KEY) == _VERDICT
    for field in dataclasses.fields(VerdictKey):
        other = dataclasses.replace(_VERDICT_KEY, **{field.name: "another"})
        assert database.verdict(other) is None


def test_opening_again_finds_everything(url, make_key):
    with CostDatabase.open(url) as database:
        database.add(make_key(), _SAMPLES)
    with CostDatabase.open(url, create=False) as database:
        assert database.samples([make_key()])[make_key()] == _SAMPLES


def test_a_failed_call_leaves_nothing(database, make_key):
    with pytest.raises(CostDatabaseError):
        database.add_all({make_key("a"): _SAMPLES, make_key("b"): [Sample(None)]})
    assert database.samples([make_key("a"), make_key("b")]) == {}


_ADDER = """
import sys
from intarsia.cost.database import CostDatabase
from intarsia.cost.key import CostKey, Sample
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with CostDatabase.open(url) as database:
    for number in range(count):
        for region in ("shared", name):
            key = CostKey(region, "llvm", "llvm 1", "m", "2")
            database.add(key, [Sample(float(number + 1), session=name)])
        print(number, flush=True)
"""


def _adder(url, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", _ADDER, url, name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_two_tuners_at_once_lose_nothing(url, make_key):
    """Both make the tables, too: the database is not there when they start."""
    processes = [_adder(url, name, 40) for name in ("a", "b")]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    facts = {"target": "llvm", "backend": "llvm 1", "machine": "m"}
    with CostDatabase.open(url) as database:
        for name in ("a", "b"):
            own = database.samples([make_key(name, **facts)])[make_key(name, **facts)]
            assert [sample.seconds for sample in own] == [n + 1.0 for n in range(40)]
        shared = database.samples([make_key("shared", **facts)])[make_key("shared", **facts)]
        assert len(shared) == 80


def test_a_killed_tuner_loses_only_what_it_was_adding(url, make_key):
    process = _adder(url, "a", 1_000_000)
    told = 0
    for line in process.stdout:
        told = int(line)
        if told >= 60:
            process.kill()
            break
    process.communicate()
    facts = {"target": "llvm", "backend": "llvm 1", "machine": "m"}
    with CostDatabase.open(url) as database:
        own = database.samples([make_key("a", **facts)])[make_key("a", **facts)]
        assert len(own) > told
        assert [sample.seconds for sample in own] == [n + 1.0 for n in range(len(own))]
        database.add(make_key("b"), _SAMPLES)  # no lock is left behind


def test_threads_share_a_database(database, make_key):
    def add(name):
        for number in range(20):
            database.add(make_key(name), [Sample(number + 1.0)])

    threads = [threading.Thread(target=add, args=(f"r{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = database.samples([make_key(f"r{n}") for n in range(3)])
    assert [len(samples) for samples in found.values()] == [20, 20, 20]


def test_a_newer_schema_is_refused_and_left_alone(url, make_key):
    with CostDatabase.open(url) as database:
        database.add(make_key(), _SAMPLES)
        with database.store.write() as connection:
            connection.execute(sa.update(tables.meta).values(value="7"))
    with pytest.raises(CostDatabaseError, match=r"schema 7, newer than 1") as caught:
        CostDatabase.open(url)
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "change", ["delete from intarsia_meta", "drop table intarsia_poison"], ids=["version", "table"]
)
def test_a_schema_with_holes_is_damage(url, change):
    with CostDatabase.open(url) as database, database.store.write() as connection:
        connection.execute(sa.text(change))
    with pytest.raises(CostDatabaseError, match="is damaged: "):
        CostDatabase.open(url)


def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    file = tmp_path / "costs.sqlite"
    file.write_bytes(b"not a database, but somebody's text\n" * 100)
    before = file.read_bytes()
    with pytest.raises(CostDatabaseError, match="is damaged: file is not a database") as caught:
        CostDatabase.open(str(file))
    assert "move the file away" in caught.value.hint
    assert file.read_bytes() == before


def test_a_page_that_is_overwritten_is_damage(tmp_path, make_key):
    file = tmp_path / "costs.sqlite"
    keys = [make_key(f"r{number}") for number in range(200)]
    with CostDatabase.open(str(file)) as database:
        database.add_all(dict.fromkeys(keys, _SAMPLES))
    data = bytearray(file.read_bytes())
    for page in range(4, len(data) // 4096):
        data[4096 * page : 4096 * page + 512] = b"\xa5" * 512
    file.write_bytes(data)

    def read():
        with CostDatabase.open(str(file)) as database:
            database.samples(keys)

    with pytest.raises(CostDatabaseError, match="is damaged"):
        read()
    assert file.read_bytes() == data


def test_another_programs_database_is_left_alone(tmp_path):
    file = tmp_path / "theirs.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("create table places (name text)")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(CostDatabaseError, match="another program: it has a table 'places'"):
        CostDatabase.open(str(file))
    assert file.read_bytes() == before


def test_a_database_that_is_held_is_busy(tmp_path, make_key):
    file = tmp_path / "costs.sqlite"
    with CostDatabase.open(str(file), busy_seconds=0.05) as database:
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("begin immediate")
        with pytest.raises(CostDatabaseError, match="is busy: another process holds it"):
            database.add(make_key(), _SAMPLES)
        assert database.samples([make_key()]) == {}  # readers do not wait
        holder.execute("rollback")
        holder.close()
        database.add(make_key(), _SAMPLES)


def test_local_disks_have_a_write_ahead_log(tmp_path, monkeypatch, caplog):
    file = tmp_path / "costs.sqlite"

    def journal():
        with CostDatabase.open(str(file)) as database, database.store.read() as connection:
            return connection.exec_driver_sql("pragma journal_mode").scalar()

    assert journal() == "wal"
    monkeypatch.setattr("intarsia.cost.engine.is_local", lambda path: False)
    monkeypatch.setattr("intarsia.cost.engine.filesystem_type", lambda path: "nfs4")
    with caplog.at_level("INFO", logger="intarsia"):
        assert journal() == "delete"
    assert "no write-ahead log on a filesystem of type nfs4" in caplog.text


def test_the_default_is_in_a_cache_folder_of_ours(tmp_path, monkeypatch):
    folder = tmp_path / "caches"
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder))
    monkeypatch.delenv("INTARSIA_COSTS", raising=False)
    with CostDatabase.open(settings=Settings.from_environment()):
        pass
    info = cache_info(folder)
    assert info.is_ours
    assert [kind.kind for kind in info.kinds] == ["costs"]
    assert make_cache_folder(folder) == folder  # other caches may use it


def test_what_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CostDatabaseError, match=r"folder .* cannot be made"):
        CostDatabase.open(str(tmp_path / "file" / "costs.sqlite"))
    with pytest.raises(CostDatabaseError, match="there is no cost database"):
        CostDatabase.open(str(tmp_path / "none.sqlite"), create=False)
    with pytest.raises(CostDatabaseError, match="in memory would be lost"):
        CostDatabase.open("sqlite:///:memory:")


@pytest.mark.parametrize("url", ["mysql://me:secret@host/x", "sqlite://", "nonsense://", "://x"])
def test_other_kinds_of_databases_are_refused(url):
    with pytest.raises(CostDatabaseError) as caught:
        CostDatabase.open(url)
    assert "postgresql://" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(CostDatabaseError, match="cannot be used") as caught:
        CostDatabase.open(f"postgresql://me:secret@/x?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CostDatabaseError) as caught:
        CostDatabase.open("postgresql://me@host/x")
    assert caught.value.hint == "pip install 'intarsia[postgresql]'"


def test_who_may_only_read_a_server_can_read(server, make_key):
    url = server()
    with CostDatabase.open(url) as database:
        database.add(make_key(), _SAMPLES)
        with database.store.write() as connection:
            for statement in (
                "create table theirs (x int)",  # tables of others are not a hindrance
                "drop role if exists reader",
                "create role reader login",
                "grant select on all tables in schema public to reader",
            ):
                connection.execute(sa.text(statement))
    with CostDatabase.open(url.replace("tester@", "reader@"), create=False) as database:
        assert database.samples([make_key()])[make_key()] == _SAMPLES
        with pytest.raises(CostDatabaseError, match="permission denied"):
            database.add(make_key(), _SAMPLES)


def test_sessions_name_their_host():
    first, second = new_session(), new_session()
    assert first != second
    assert Sample(1.0, session=first).host == host_id()
