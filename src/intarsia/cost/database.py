# SPDX-License-Identifier: Apache-2.0
"""The cost database: measured samples, what failed, accepted plans.

Every call is one transaction, committed when it returns: a tuner that is killed loses at most what
it was just adding, and several tuners may share one database. Importing this module loads
SQLAlchemy; `cost.storage.has_database` tells without it whether there is anything to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from intarsia.cost import tables
from intarsia.cost.direct import verdict_of
from intarsia.cost.engine import BUSY_SECONDS, CostStore
from intarsia.cost.fingerprint import host_id, this_machine
from intarsia.cost.key import BoundaryKey, CostKey, Key, KeyT, Sample
from intarsia.cost.records import PlanVerdict, Poison, VerdictKey
from intarsia.cost.sampling import estimate_cost
from intarsia.cost.storage import has_database
from intarsia.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

    from intarsia.cost.cost import Cost

_MOST_PARAMETERS = 500
"""Values in one `in` list; SQLite before 3.32 takes 999 in a statement."""


_SampleRow = tuple[str, float, float, str, float, str]
"""A key's digest and the fields of a sample: SQLite would keep anything in any column."""


class CostDatabase:
    """Measured costs, shared by all tuners that are pointed at it. A context manager."""

    def __init__(self, store: CostStore) -> None:
        self.store = store

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        settings: Settings = DEFAULTS,
        busy_seconds: float = BUSY_SECONDS,
        create: bool = True,
    ) -> Self:
        """Open the database.

        Args:
            url: A file or a URL of SQLAlchemy (`postgresql://USER@HOST/NAME`); None means what
                the settings say, else a file among the caches.
            settings: Say where it is if nothing else does.
            busy_seconds: How long to wait for another writer.
            create: Whether to make it where it is missing.

        Raises:
            CostDatabaseError: It is missing and not to be made, is damaged, was written by a newer
                version, or is out of reach.
        """
        return cls(CostStore(url, settings, busy_seconds=busy_seconds, create=create))

    def close(self) -> None:
        """Close all connections."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, key: Key, samples: Sequence[Sample]) -> None:
        """Add samples of one key; they are committed when this returns.

        Raises:
            CostDatabaseError: The database cannot be written.
        """
        self.add_all({key: samples})

    def add_all(self, samples: Mapping[KeyT, Sequence[Sample]]) -> None:
        """Add samples of several keys: all of them or, if it fails, none.

        Raises:
            CostDatabaseError: The database cannot be written.
        """
        with self.store.write() as connection:
            ids = ensure_keys(connection, samples)
            rows = [
                {"key_id": ids[key], **asdict(sample)}
                for key, every in samples.items()
                for sample in every
            ]
            if rows:
                connection.execute(sa.insert(tables.samples), rows)

    def samples(self, keys: Iterable[KeyT]) -> dict[KeyT, tuple[Sample, ...]]:
        """Return all samples of keys, in the order in which they were added.

        Keys without samples are left out.
        """
        with self.store.read() as connection:
            return read_samples(connection, keys)

    def cost(self, key: CostKey) -> Cost | None:
        """Return what a key costs by its samples, or nothing without any."""
        return self.costs([key]).get(key)

    def costs(self, keys: Iterable[CostKey]) -> dict[CostKey, Cost]:
        """Return what keys cost by their samples; keys without samples are left out.

        Samples of this host are used if there are any, else those of others with its fingerprint.
        """
        with self.store.read() as connection:
            samples = read_samples(connection, keys)
            anchors = {sample.anchor for every in samples.values() for sample in every}
            history = read_anchors(connection, sorted(anchors - {""}))
        here = host_id()
        return {
            key: estimate_cost(every, history.get((key.machine, key.threads), {}), here)
            for key, every in samples.items()
        }

    def poison(
        self, key: CostKey, code: str, reason: str, *, taken_at: float = 0.0, session: str = ""
    ) -> None:
        """Record that something must not be tried again with this version of its backend.

        Args:
            key: What failed.
            code: A reason code, such as `crashed`.
            reason: One sentence.
            taken_at: Seconds since 1970-01-01 UTC.
            session: Which run of the tuner found it.
        """
        with self.store.write() as connection:
            row = asdict(Poison(code, reason, taken_at, session))
            save_poison(connection, ensure_keys(connection, [key])[key], row)

    def poisoned(self, keys: Iterable[KeyT]) -> dict[KeyT, Poison]:
        """Return what is recorded against keys; those that are sound are left out."""
        poisons: dict[KeyT, Poison] = {}
        query = sa.select(tables.poisons, tables.keys.c.digest).join(tables.keys)
        with self.store.read() as connection:
            for by_digest in digest_groups(keys):
                where = tables.keys.c.digest.in_(by_digest)
                for row in connection.execute(query.where(where)):
                    poisons[by_digest[row.digest]] = poison_of(row)
        return poisons

    def save_verdict(self, key: VerdictKey, verdict: PlanVerdict) -> None:
        """Record an accepted plan; the one before it is replaced."""
        with self.store.write() as connection:
            save_verdict(connection, key, verdict)

    def verdict(self, key: VerdictKey) -> PlanVerdict | None:
        """Return the plan that was accepted under these circumstances, if one was."""
        where = tables.verdicts.c.digest == key.digest
        with self.store.read() as connection:
            rows = connection.execute(sa.select(tables.verdicts).where(where)).mappings()
            row = rows.one_or_none()
            return None if row is None else verdict_of(dict(row))


@contextmanager
def known_costs(
    url: str | None = None, settings: Settings = DEFAULTS
) -> Iterator[CostDatabase | None]:
    """Open the cost database if there is one.

    Args:
        url: A file or a URL, as `CostDatabase.open` takes it.
        settings: Likewise.

    Raises:
        CostDatabaseError: The database is damaged or out of reach.
    """
    if not has_database(url, settings):
        yield None
        return
    with CostDatabase.open(url, settings=settings, create=False) as database:
        yield database


def digest_groups(keys: Iterable[KeyT]) -> Iterator[dict[str, KeyT]]:
    """Yield keys by digest, as many at a time as one statement takes.

    In order of the digests, so that no two writers wait for one another in a circle.
    """
    every = {key.digest: key for key in keys}
    digests = sorted(every)
    for start in range(0, len(digests), _MOST_PARAMETERS):
        yield {digest: every[digest] for digest in digests[start : start + _MOST_PARAMETERS]}


def _insert(connection: Connection, table: sa.Table) -> Any:
    """Return an `insert` that can say what to do about a row that is there."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def ensure_keys(connection: Connection, keys: Iterable[KeyT]) -> dict[KeyT, int]:
    """Return the row of each key, made where it is missing; notes this machine's text."""
    ids: dict[KeyT, int] = {}
    machine = this_machine()
    for by_digest in digest_groups(keys):
        rows = [
            {"next_region": "", "next_target": "", **asdict(key), "digest": digest}
            for digest, key in by_digest.items()
        ]
        connection.execute(_insert(connection, tables.keys).on_conflict_do_nothing(), rows)
        if any(key.machine == machine.digest for key in by_digest.values()):
            save_machine(connection, machine.digest, machine.text)
        where = tables.keys.c.digest.in_(by_digest)
        for row in connection.execute(sa.select(tables.keys).where(where)):
            ids[by_digest[row.digest]] = row.id
    return ids


def save_machine(connection: Connection, digest: str, text: str) -> None:
    """Record what a fingerprint's digest stands for, unless that is known."""
    row = {"digest": digest, "text": text}
    connection.execute(_insert(connection, tables.machines).on_conflict_do_nothing(), row)


def save_poison(connection: Connection, key_id: int, row: Mapping[str, Any]) -> None:
    """Record a failure; the one before it is replaced."""
    statement = _insert(connection, tables.poisons).values(key_id=key_id, **row)
    connection.execute(statement.on_conflict_do_update(index_elements=["key_id"], set_=dict(row)))


def save_verdict(connection: Connection, key: VerdictKey, verdict: PlanVerdict) -> None:
    """Record an accepted plan; the one before it is replaced."""
    row = {**asdict(key), **asdict(verdict)}
    row["regions"] = msgspec.json.encode(verdict.regions).decode()
    statement = _insert(connection, tables.verdicts).values(digest=key.digest, **row)
    connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_=row))


def read_samples(connection: Connection, keys: Iterable[KeyT]) -> dict[KeyT, tuple[Sample, ...]]:
    """Return all samples of keys, in the order in which they were added."""
    by_key: dict[KeyT, list[Sample]] = {}
    s = tables.samples.c
    query = sa.select(
        tables.keys.c.digest, s.seconds, s.anchor_seconds, s.anchor, s.taken_at, s.session
    ).join_from(tables.samples, tables.keys)
    for by_digest in digest_groups(keys):
        where = tables.keys.c.digest.in_(by_digest)
        rows = connection.execute(query.where(where).order_by(s.id))
        for row in msgspec.convert(list(map(tuple, rows)), list[_SampleRow]):
            by_key.setdefault(by_digest[row[0]], []).append(Sample(*row[1:]))
    return {key: tuple(samples) for key, samples in by_key.items()}


Anchors = dict[tuple[str, str], dict[str, tuple[tuple[str, float], ...]]]


def read_anchors(connection: Connection, anchors: Sequence[str]) -> Anchors:
    """Return by machine and threads, for each anchor, the sessions and seconds of its runs.

    A run that was compared with several keys in one round counts once.
    """
    by_place: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = {}
    s, k = tables.samples.c, tables.keys.c
    query = (
        sa.select(k.machine, k.threads, s.anchor, s.session, s.anchor_seconds)
        .join_from(tables.samples, tables.keys)
        .distinct()
    )
    for start in range(0, len(anchors), _MOST_PARAMETERS):
        where = s.anchor.in_(anchors[start : start + _MOST_PARAMETERS])
        for machine, threads, anchor, session, seconds in connection.execute(query.where(where)):
            runs = by_place.setdefault((machine, threads), {}).setdefault(anchor, [])
            runs.append((session, seconds))
    return {
        place: {anchor: tuple(sorted(runs)) for anchor, runs in by_anchor.items()}
        for place, by_anchor in by_place.items()
    }


def key_of(row: Row[Any]) -> Key:
    """Return the key of a row of `tables.keys`."""
    if row.next_region:
        return BoundaryKey(
            row.region,
            row.target,
            row.next_region,
            row.next_target,
            row.backend,
            row.machine,
            row.threads,
        )
    return CostKey(row.region, row.target, row.backend, row.machine, row.threads)


def poison_of(row: Row[Any]) -> Poison:
    """Return the value of a row of `tables.poisons`."""
    return Poison(row.code, row.reason, row.taken_at, row.session)
