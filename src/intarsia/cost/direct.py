# SPDX-License-Identifier: Apache-2.0
"""A cost database that is a file, without SQLAlchemy: an accepted plan, a few samples in and out.

Its import takes longer than loading many a program, or than timing a plan, of which a first
compilation keeps the time. What is odd about a database, or is on a server, is left to
`CostDatabase`, which says what is wrong.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from intarsia.cost.fingerprint import host_id, this_machine
from intarsia.cost.key import CostKey, Sample
from intarsia.cost.records import Assigned, PlanVerdict, VerdictKey
from intarsia.cost.sampling import estimate_cost
from intarsia.cost.storage import (
    SCHEMA_NAME,
    SCHEMA_VERSION,
    database_file,
    database_url,
    is_local,
    make_folder,
)
from intarsia.decoding import decode_json
from intarsia.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from intarsia.cost.cost import Cost


_PATIENCE_SECONDS = 5.0
"""A database that others write to for longer is opened as tuners open it."""

_SAMPLE = tuple(field.name for field in fields(Sample))
_SampleRow = tuple[float, float, str, float, str]


class _OddError(Exception):
    """Not a database of our schema, or one that holds more than is understood here."""


def read_costs(
    keys: Sequence[CostKey], url: str | None = None, settings: Settings = DEFAULTS
) -> dict[CostKey, Cost]:
    """Return what keys cost by their samples, as `CostDatabase.costs` does.

    Args:
        keys: A few; those without samples are left out.
        url: A file or a URL, as `database_url` takes it.
        settings: Likewise.

    Raises:
        CostDatabaseError: The database is missing, damaged, of a newer version or out of reach.
    """
    file = database_file(database_url(url, settings))
    if file is not None:
        with suppress(_OddError, sqlite3.Error, msgspec.ValidationError):
            with _connect(file, "ro") as connection:
                _check_version(connection)
                samples = {key: _samples(connection, key) for key in keys}
            here = host_id()
            return {key: estimate_cost(every, {}, here) for key, every in samples.items() if every}
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(url, settings=settings, create=False) as database:
        return database.costs(keys)


def add_samples(
    samples: Mapping[CostKey, Sequence[Sample]],
    url: str | None = None,
    settings: Settings = DEFAULTS,
) -> None:
    """Add samples of several keys, all or none; the database is made where it is missing.

    Args:
        samples: By key.
        url: A file or a URL, as `database_url` takes it.
        settings: Likewise.

    Raises:
        CostDatabaseError: The database is damaged, of a newer version or out of reach.
        SettingError: The folder of the caches cannot be made.
    """
    file = database_file(database_url(url, settings))
    if file is not None and file.name:
        make_folder(file, settings)
        with suppress(_OddError, sqlite3.Error), _connect(file, "rwc") as connection:
            connection.execute("begin immediate")  # closing it half-way changes nothing
            _make_tables(connection)
            for key, every in samples.items():
                _add(connection, key, every)
            connection.execute("commit")
            _choose_journal(connection, file)
            return
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(url, settings=settings) as database:
        database.add_all(samples)


@contextmanager
def _connect(file: Path, mode: str) -> Iterator[sqlite3.Connection]:
    place = f"file:{quote(str(file))}?mode={mode}"
    connection = sqlite3.connect(place, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _choose_journal(connection: sqlite3.Connection, file: Path) -> None:
    """Use the journal that `engine` would; while others hold the file it stays as it is."""
    if is_local(file):
        with suppress(sqlite3.OperationalError):
            connection.execute("pragma journal_mode = wal")


def _check_version(connection: sqlite3.Connection) -> None:
    query = "select value from intarsia_meta where name = ?"
    version = connection.execute(query, (SCHEMA_NAME,)).fetchone()
    if version != (str(SCHEMA_VERSION),):
        raise _OddError(version)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty database, inside a transaction."""
    if connection.execute("select 1 from sqlite_master").fetchone() is not None:
        _check_version(connection)
        return
    for statement in _statements():
        connection.execute(statement)
    version = (SCHEMA_NAME, str(SCHEMA_VERSION))
    connection.execute("insert into intarsia_meta (name, value) values (?, ?)", version)


@cache
def _statements() -> tuple[str, ...]:
    text = Path(__file__).with_name("tables.sql").read_text(encoding="utf-8")
    return tuple(filter(None, map(str.strip, text.split(";"))))


def _samples(connection: sqlite3.Connection, key: CostKey) -> tuple[Sample, ...]:
    """Return the samples of a key.

    Raises:
        _OddError: They were taken beside another key, whose own history counts.
    """
    names = ", ".join(f"s.{name}" for name in _SAMPLE)
    query = (
        f"select {names} from intarsia_sample s join intarsia_key k on k.id = s.key_id "
        "where k.digest = ? order by s.id"
    )
    rows = connection.execute(query, (key.digest,)).fetchall()
    samples = tuple(Sample(*row) for row in msgspec.convert(rows, list[_SampleRow]))
    if any(sample.anchor for sample in samples):
        raise _OddError(key)
    return samples


def _add(connection: sqlite3.Connection, key: CostKey, samples: Sequence[Sample]) -> None:
    row = {"digest": key.digest, "next_region": "", "next_target": "", **asdict(key)}
    _insert(connection, "intarsia_key", row)
    machine = this_machine()
    if key.machine == machine.digest:
        _insert(connection, "intarsia_machine", {"digest": machine.digest, "text": machine.text})
    query = "select id from intarsia_key where digest = ?"
    (number,) = connection.execute(query, (key.digest,)).fetchone()
    for sample in samples:
        _insert(connection, "intarsia_sample", {"key_id": number, **asdict(sample)})


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Add a row, unless one of its key is there."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    statement = f"insert into {table} ({names}) values ({marks}) on conflict do nothing"
    connection.execute(statement, tuple(row.values()))


def find_verdict(
    key: VerdictKey, url: str | None = None, settings: Settings = DEFAULTS
) -> PlanVerdict | None:
    """Return the plan that was accepted under some circumstances, if one was.

    Args:
        key: The circumstances.
        url: A file or a URL, as `database_url` takes it.
        settings: Likewise.

    Raises:
        CostDatabaseError: The database is missing, damaged, of a newer version or out of reach.
    """
    file = database_file(database_url(url, settings))
    if file is not None:
        odd = (_OddError, sqlite3.Error, msgspec.DecodeError, ValueError)
        with suppress(*odd), _connect(file, "ro") as connection:
            return _read_verdict(connection, key)
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(url, settings=settings, create=False) as database:
        return database.verdict(key)


def verdict_of(row: Mapping[str, Any]) -> PlanVerdict:
    """Return the value of a row of verdicts, by names of columns.

    Raises:
        msgspec.DecodeError: It is damaged.
    """
    columns = {field.name: row[field.name] for field in fields(PlanVerdict)}
    columns["regions"] = decode_json(row["regions"], tuple[Assigned, ...])
    return msgspec.convert(columns | {"is_mixed": bool(row["is_mixed"])}, PlanVerdict)


def _read_verdict(connection: sqlite3.Connection, key: VerdictKey) -> PlanVerdict | None:
    """Return what a database has under a key."""
    _check_version(connection)
    connection.row_factory = sqlite3.Row
    query = "select * from intarsia_verdict where digest = ?"
    row = connection.execute(query, (key.digest,)).fetchone()
    return None if row is None else verdict_of(dict(row))
