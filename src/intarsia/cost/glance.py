# SPDX-License-Identifier: Apache-2.0
"""One look at the cost database, for an accepted plan: a start that finds its program asks no more.

A file of SQLite is read as such; opening it with all that tuning needs takes longer than loading
many a program. Whatever is odd about it is left to `CostDatabase`, which says what is wrong.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from typing import Any
from urllib.parse import quote

import msgspec

from intarsia.cost.records import Assigned, PlanVerdict, VerdictKey
from intarsia.cost.storage import SCHEMA_NAME, SCHEMA_VERSION, database_file, database_url
from intarsia.settings import DEFAULTS, Settings

_PATIENCE_SECONDS = 5.0
"""A database that others write to for longer is opened as tuners open it."""


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
        try:
            place = f"file:{quote(str(file))}?mode=ro"
            opened = sqlite3.connect(place, uri=True, timeout=_PATIENCE_SECONDS)
            with closing(opened) as connection:
                return _read(connection, key)
        except (sqlite3.Error, msgspec.DecodeError, ValueError):
            pass
    from intarsia.cost.database import CostDatabase

    with CostDatabase.open(url, settings=settings, create=False) as database:
        return database.verdict(key)


def verdict_of(row: Mapping[str, Any]) -> PlanVerdict:
    """Return the value of a row of verdicts, by names of columns.

    Raises:
        msgspec.DecodeError: It is damaged.
    """
    found = {field.name: row[field.name] for field in fields(PlanVerdict)}
    found["regions"] = msgspec.json.decode(row["regions"], type=tuple[Assigned, ...])
    return msgspec.convert(found | {"is_mixed": bool(row["is_mixed"])}, PlanVerdict)


def _read(connection: sqlite3.Connection, key: VerdictKey) -> PlanVerdict | None:
    """Return what a database of our schema has under a key.

    Raises:
        ValueError: It has another schema.
    """
    query = "select value from intarsia_meta where name = ?"
    version = connection.execute(query, (SCHEMA_NAME,)).fetchone()
    if version != (str(SCHEMA_VERSION),):
        raise ValueError(version)
    connection.row_factory = sqlite3.Row
    found = connection.execute("select * from intarsia_verdict where digest = ?", (key.digest,))
    row = found.fetchone()
    return None if row is None else verdict_of(dict(row))
