# SPDX-License-Identifier: Apache-2.0
"""Opening the cost database: locks, the write-ahead log, the schema's version, errors.

Transactions that write begin with the lock that they need: SQLite's `begin immediate`, so that no
reader has to become a writer half-way; on PostgreSQL only what makes tables or merges is exclusive.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from intarsia.cost import tables
from intarsia.cost.storage import (
    SCHEMA_NAME,
    SCHEMA_VERSION,
    database_file,
    database_url,
    filesystem_type,
    is_local,
    is_there,
    make_folder,
)
from intarsia.errors import CostDatabaseError
from intarsia.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

logger = logging.getLogger("intarsia")

DIALECTS = ("sqlite", "postgresql")
BUSY_SECONDS = 30.0
"""How long a writer waits for another one."""

CONNECT_SECONDS = 10
"""How long a server may take to answer."""

_EXCLUSIVE = 0x1A7A5A  # key of our advisory lock on PostgreSQL
_WRITER = "intarsia_is_writer"
_MEMORY = ("", ":memory:")


class CostStore:
    """A database that is open: gives connections that read or write.

    Args:
        url: As `database_url` takes it.
        settings: Likewise.
        busy_seconds: How long to wait for another writer.
        create: Whether to make the file and the tables where they are missing.

    Raises:
        CostDatabaseError: It is missing and not to be made, is damaged, of another schema or out
            of reach.
    """

    def __init__(
        self,
        url: str | None,
        settings: Settings = DEFAULTS,
        *,
        busy_seconds: float = BUSY_SECONDS,
        create: bool = True,
    ) -> None:
        self.url = database_url(url, settings)
        self._settings = settings
        self.file = database_file(self.url)
        if self.file is not None and str(self.file) in _MEMORY:
            raise CostDatabaseError(
                "a cost database in memory would be lost", hint="give a file or a server"
            )
        self.engine = _make_engine(self.url, self.file, busy_seconds)
        self.name = str(self.file or _shown(self.engine.url))
        self._tables: frozenset[str] = frozenset()
        try:
            self._prepare(busy_seconds, create=create)
        except CostDatabaseError:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database."""
        with self._errors(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, *, exclusive: bool = False) -> Iterator[Connection]:
        """Give a connection whose changes are committed when the block ends without an error.

        Args:
            exclusive: Whether no other process may be in such a block too; SQLite has one writer
                at a time in any case.
        """
        with self._errors(), self.engine.connect() as plain:
            connection = plain.execution_options(**{_WRITER: True})
            with connection.begin():
                if exclusive and self.engine.dialect.name == "postgresql":
                    lock = sa.func.pg_advisory_xact_lock(_EXCLUSIVE)
                    connection.execute(sa.select(lock))
                yield connection

    def has(self, table: sa.Table) -> bool:
        """Whether there is a table; a database from before may lack some of `tables.ADDED`."""
        return table.name in self._tables

    def compact(self) -> None:
        """Give the disk back what a file does not need; left for later while others use it."""
        if self.file is None:
            return
        raw = self.engine.raw_connection()
        try:
            raw.cursor().execute("vacuum")
        except Exception as error:
            logger.info("%s keeps its size: %s", self.name, error)
        finally:
            raw.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _prepare(self, busy_seconds: float, *, create: bool) -> None:
        if self.file is not None and not is_there(self.file):
            if not create:
                raise CostDatabaseError(
                    f"there is no cost database {self.name!r}",
                    hint="`intarsia tune` makes one; INTARSIA_COSTS says where it is",
                )
            make_folder(self.file, self._settings)
        with self.read() as connection:
            is_ready = self._check_version(connection)
        if not is_ready:
            if not create:
                raise CostDatabaseError(f"{self.name!r} holds no costs", hint="tune a model first")
            self._make_tables()
        elif create and not all(map(self.has, tables.ADDED)):
            self._add_tables()
        if self.file is not None:
            with self._errors():
                _set_journal(self.engine, self.file, busy_seconds)
            self.engine.dispose()  # what is opened from now on knows the journal

    def _check_version(self, connection: Connection) -> bool:
        """Tell whether our tables are there."""
        names = sa.inspect(connection).get_table_names()
        self._tables = frozenset(names)
        if tables.meta.name not in names:
            # On a server other programs' tables beside ours are usual; a file is one program's.
            if names and self.file is not None:
                raise CostDatabaseError(
                    f"{self.name!r} belongs to another program: it has a table {names[0]!r}",
                    hint="name another file in INTARSIA_COSTS",
                )
            return False
        where = tables.meta.c.name == SCHEMA_NAME
        text = connection.execute(sa.select(tables.meta.c.value).where(where)).scalar()
        if text is None or not text.isdecimal():
            raise _damaged(self.name, "it does not say which schema it has")
        if int(text) > SCHEMA_VERSION:
            raise CostDatabaseError(
                f"the cost database {self.name!r} has schema {text}, newer than "
                f"{SCHEMA_VERSION}, which this version of Intarsia knows",
                hint="upgrade Intarsia, or name another database in INTARSIA_COSTS",
            )
        needed = {
            table.name for table in tables.metadata.sorted_tables if table not in tables.ADDED
        }
        missing = sorted(needed - self._tables)
        if int(text) < SCHEMA_VERSION or missing:
            what = f"table {missing[0]!r} is missing" if missing else f"schema {text} never existed"
            raise _damaged(self.name, what)
        return True

    def _make_tables(self) -> None:
        with self.write(exclusive=True) as connection:
            if self._check_version(connection):  # another process was faster
                return
            tables.metadata.create_all(connection)
            version = {"name": SCHEMA_NAME, "value": str(SCHEMA_VERSION)}
            connection.execute(sa.insert(tables.meta), version)
            self._tables = frozenset(tables.metadata.tables)

    def _add_tables(self) -> None:
        """Make what a database from before lacks; a user who may not make tables does without."""
        try:
            with self.write(exclusive=True) as connection:
                for table in tables.ADDED:
                    table.create(connection, checkfirst=True)
        except CostDatabaseError as error:
            logger.info("%s stays without newer tables: %s", self.name, error.message)
            return
        self._tables |= {table.name for table in tables.ADDED}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what SQLAlchemy raises into one line of ours."""
        try:
            yield
        except DBAPIError as error:
            raise _translate(self.name, error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # of what is read
            raise _damaged(self.name, str(error)) from error
        except SQLAlchemyError as error:
            text = str(error).partition("\n")[0]
            raise CostDatabaseError(f"the cost database {self.name!r} failed: {text}") from error


def _shown(url: URL) -> str:
    """Return a server's URL as users write it: no password, no driver."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _make_engine(url: str, file: Path | None, busy_seconds: float) -> Engine:
    try:
        parsed = make_url(url)
        dialect = parsed.get_backend_name()
        if dialect not in DIALECTS or (dialect == "sqlite" and file is None):
            raise CostDatabaseError(
                f"a cost database cannot be at {parsed.render_as_string(hide_password=True)!r}",
                hint="give a file, sqlite:///FILE, or postgresql://USER@HOST/NAME",
            )
        if file is not None:
            place = URL.create("sqlite", database=str(file))
            engine = sa.create_engine(place, connect_args={"timeout": busy_seconds})
            sa.event.listen(engine, "connect", _take_over_transactions)
            sa.event.listen(engine, "begin", _begin)
            return engine
        timeouts = {
            "connect_timeout": CONNECT_SECONDS,
            "options": f"-c lock_timeout={int(busy_seconds * 1000)}",
        }
        return sa.create_engine(parsed, pool_pre_ping=True, connect_args=timeouts)
    except (ArgumentError, NoSuchModuleError) as error:
        raise CostDatabaseError(
            f"INTARSIA_COSTS is neither a file nor the URL of a database: {error}",
            hint="give a file, sqlite:///FILE, or postgresql://USER@HOST/NAME",
        ) from error
    except ModuleNotFoundError as error:
        raise CostDatabaseError(
            f"a cost database on a server needs a driver: {error}",
            hint="pip install 'intarsia[postgresql]'",
        ) from error


def _take_over_transactions(connection: Any, record: Any) -> None:
    """Keep Python's driver from beginning transactions by itself: it would do so too late.

    With a write-ahead log a commit need not wait for the disk: what was committed survives the
    process, and after a power cut the file is sound, less the last commits.
    """
    del record
    connection.isolation_level = None
    with suppress(sqlite3.Error):  # no database: the first query says so
        connection.execute("pragma foreign_keys = on")
        if connection.execute("pragma journal_mode").fetchone()[0] == "wal":
            connection.execute("pragma synchronous = normal")


def _begin(connection: Connection) -> None:
    is_writer = connection.get_execution_options().get(_WRITER, False)
    connection.exec_driver_sql("begin immediate" if is_writer else "begin")


def _set_journal(engine: Engine, file: Path, busy_seconds: float) -> None:
    """Use a write-ahead log on a local disk, so that readers and a writer need not wait.

    Where the disk may be on a network, or that is not known, SQLite's rollback journal is kept.
    """
    wanted = "wal" if is_local(file) else "delete"
    if wanted == "delete":
        kind = filesystem_type(file) or "unknown"
        logger.info("%s: no write-ahead log on a filesystem of type %s", file, kind)
    deadline = time.monotonic() + busy_seconds
    raw = engine.raw_connection()
    try:
        while True:
            try:
                if raw.cursor().execute("pragma journal_mode").fetchone()[0] != wanted:
                    raw.cursor().execute(f"pragma journal_mode = {wanted}")
            except Exception as error:  # SQLite does not wait for a change of the journal
                if "locked" in str(error) and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                logger.info("%s keeps its journal: %s", file, error)
            return
    finally:
        raw.close()


def _translate(name: str, error: DBAPIError) -> CostDatabaseError:
    text = " ".join(str(error.orig).split())
    if any(sign in text for sign in ("malformed", "not a database", "corrupt")):
        return _damaged(name, text)
    if "locked" in text or "lock timeout" in text:
        return CostDatabaseError(
            f"the cost database {name!r} is busy: another process holds it ({text})",
            hint="wait for the other tuner, or name another database in INTARSIA_COSTS",
        )
    if "disk is full" in text or "No space left" in text:  # of SQLite, and of a server
        return CostDatabaseError(
            f"the cost database {name!r} cannot be written: {text}",
            hint="make space on its disk, or name another database in INTARSIA_COSTS",
        )
    return CostDatabaseError(
        f"the cost database {name!r} cannot be used: {text}",
        hint="check that it exists and that you may write to it; INTARSIA_COSTS names it",
    )


def _damaged(name: str, what: str) -> CostDatabaseError:
    return CostDatabaseError(
        f"the cost database {name!r} is damaged: {what}",
        hint="nothing was changed; move the file away to begin a new one (`sqlite3 FILE .recover` "
        "may save its samples), or bring an export back with `intarsia costs import`",
    )
