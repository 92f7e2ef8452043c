# SPDX-License-Identifier: Apache-2.0
"""Selecting entries of the cost database to list, export or remove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from intarsia.cost import tables
from intarsia.cost.cost import Cost
from intarsia.cost.database import CostDatabase, key_of, poison_of
from intarsia.cost.key import CostKey, Key, Sample
from intarsia.cost.records import Poison, Weight
from intarsia.cost.sampling import median_interval
from intarsia.cost.weights import find_weights, typical_bytes
from intarsia.errors import CostDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


# A page in one transaction: so a listing of any size holds no lock for long, and older SQLites take
# at most 999 parameters.
_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys are meant: those that all of these fit; an empty text fits everything.

    Attributes:
        key: What the key's digest begins with.
        region: What the region's hash begins with, on either side of a boundary.
        target: A part of the target's text.
        backend: What the backend's name and version begin with.
        machine: What the fingerprint's digest begins with.
    """

    key: str = ""
    region: str = ""
    target: str = ""
    backend: str = ""
    machine: str = ""

    def clauses(self) -> list[Any]:
        """Return the conditions on `tables.keys`."""
        k = tables.keys.c
        conditions: list[Any] = []
        if self.key:
            conditions.append(k.digest.startswith(self.key, autoescape=True))
        if self.region:
            region = k.region.startswith(self.region, autoescape=True)
            conditions.append(region | k.next_region.startswith(self.region, autoescape=True))
        if self.target:
            target = k.target.contains(self.target, autoescape=True)
            conditions.append(target | k.next_target.contains(self.target, autoescape=True))
        if self.backend:
            conditions.append(k.backend.startswith(self.backend, autoescape=True))
        if self.machine:
            conditions.append(k.machine.startswith(self.machine, autoescape=True))
        return conditions


@dataclass(frozen=True, slots=True)
class CostEntry:
    """All that is known under one key.

    Attributes:
        key: What it is about.
        samples: In the order in which they were added.
        poison: Why it must not be tried again, if it failed.
        cost: Of what is not a boundary: by the samples.
        weights: The bytes that it needs, in the order in which it was weighed.
    """

    key: Key
    samples: tuple[Sample, ...]
    poison: Poison | None
    cost: Cost | None = None
    weights: tuple[Weight, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """The bytes by which a process grows; None if that was not measured."""
        return typical_bytes(self.weights) if self.weights else None

    @property
    def last_at(self) -> float:
        """When something was last learnt of it, in seconds since 1970-01-01 UTC."""
        times = [sample.taken_at for sample in self.samples]
        times += [weight.taken_at for weight in self.weights]
        return max((*times, self.poison.taken_at if self.poison else 0.0), default=0.0)

    @property
    def seconds(self) -> tuple[float, float, float] | None:
        """The figure and its interval; of a boundary the median, which may be negative."""
        if self.cost is not None:
            return self.cost.seconds, self.cost.low_seconds, self.cost.high_seconds
        if not self.samples:
            return None
        values = [sample.seconds for sample in self.samples]
        return median_interval(values)


def count_keys(database: CostDatabase, selection: Selection) -> int:
    """Return how many keys are meant."""
    query = sa.select(sa.func.count()).select_from(tables.keys).where(*selection.clauses())
    with database.store.read() as connection:
        return int(connection.execute(query).scalar_one())


def count_boundaries(database: CostDatabase, before: str, after: str, machine: str) -> int:
    """Return how many borders are known between regions of two targets.

    Args:
        database: Where.
        before: Text of the target of the first region, without an ordinal.
        after: Text of the target of the second.
        machine: Digest of the machine's fingerprint.
    """
    k = tables.keys.c
    query = (
        sa.select(sa.func.count())
        .select_from(tables.keys)
        .where(k.target == before, k.next_target == after, k.machine == machine)
    )
    with database.store.read() as connection:
        return int(connection.execute(query).scalar_one())


def read_entries(
    database: CostDatabase, selection: Selection | None = None, most: int | None = None
) -> Iterator[CostEntry]:
    """Yield what is known, key by key, in order of the keys' digests.

    Args:
        database: Where.
        selection: Which keys; None means all.
        most: At most so many.
    """
    clauses = (selection or Selection()).clauses()
    last, left = "", most
    while left is None or left > 0:
        limit = _AT_A_TIME if left is None else min(_AT_A_TIME, left)
        with database.store.read() as connection:
            query = sa.select(tables.keys).where(tables.keys.c.digest > last, *clauses)
            rows = connection.execute(query.order_by(tables.keys.c.digest).limit(limit)).all()
            poisons = _poisons(connection, [row.id for row in rows])
        keys = [key_of(row) for row in rows]
        samples = database.samples(keys)
        costs = database.costs(key for key in keys if isinstance(key, CostKey))
        weights = find_weights(database, keys)
        for row, key in zip(rows, keys, strict=True):
            cost = costs.get(key) if isinstance(key, CostKey) else None
            facts = samples.get(key, ()), poisons.get(row.id), cost, weights.get(key, ())
            yield CostEntry(key, *facts)
        if len(rows) < limit:
            return
        last = rows[-1].digest
        left = None if left is None else left - len(rows)


def _poisons(connection: Connection, ids: list[int]) -> dict[int, Poison]:
    query = sa.select(tables.poisons).where(tables.poisons.c.key_id.in_(ids))
    return {row.key_id: poison_of(row) for row in connection.execute(query)}


def find_entry(database: CostDatabase, digest: str) -> CostEntry:
    """Return the entry whose key's digest begins so.

    Raises:
        CostDatabaseError: None or several do.
    """
    entries = list(read_entries(database, Selection(key=digest), most=2)) if digest else []
    if len(entries) != 1:
        what = "several keys begin" if entries else "no key begins"
        raise CostDatabaseError(
            f"{what} with {digest!r} in {database.store.name!r}",
            hint="`intarsia costs ls` lists the keys",
        )
    return entries[0]


def read_machines(database: CostDatabase) -> dict[str, str]:
    """Return the text of every fingerprint that is known, by its digest."""
    query = sa.select(tables.machines).order_by(tables.machines.c.digest)
    with database.store.read() as connection:
        return {row.digest: row.text for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much was removed: keys with all that belonged to them, samples, failures, and so on."""

    keys: int
    samples: int
    poisons: int
    verdicts: int
    weights: int = 0


def prune_costs(
    database: CostDatabase,
    selection: Selection,
    *,
    before: float | None = None,
    keep: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove the selected records, and keys without any left.

    Verdicts go by age, machine, target and backend; a region or key says nothing of them.

    Args:
        database: Where from.
        selection: Which keys.
        before: Only what is older, in seconds since 1970-01-01 UTC.
        keep: Leave so many of the newest samples of each key; failures and verdicts stay.
        dry_run: Only count.

    Raises:
        CostDatabaseError: It is not said what is to be removed.
    """
    if selection == Selection() and before is None and keep is None:
        raise CostDatabaseError(
            "nothing says what to remove",
            hint="give an age, a number of samples to keep, a target, a backend or a machine",
        )
    with database.store.write() as connection:
        has_weights = database.store.has(tables.weights)
        counts = _prune(connection, selection, before, keep, has_weights=has_weights)
        if dry_run:
            connection.rollback()
    if not dry_run and (counts.samples or counts.weights):
        database.store.compact()
    return counts


def _prune(
    connection: Connection,
    selection: Selection,
    before: float | None,
    keep: int | None,
    *,
    has_weights: bool,
) -> Pruned:
    ids = sa.select(tables.keys.c.id).where(*selection.clauses())
    s, p, w = tables.samples, tables.poisons, tables.weights
    samples = _delete_old(connection, s, ids, before, keep)
    weights = _delete_old(connection, w, ids, before, keep) if has_weights else 0
    poisons = verdicts = 0
    if keep is None:
        age = [] if before is None else [p.c.taken_at < before]
        poisons = connection.execute(sa.delete(p).where(p.c.key_id.in_(ids), *age)).rowcount
        verdicts = _prune_verdicts(connection, selection, before)
    is_empty = ~sa.exists().where(s.c.key_id == tables.keys.c.id)
    is_sound = ~sa.exists().where(p.c.key_id == tables.keys.c.id)
    gone = sa.delete(tables.keys).where(is_empty, is_sound)
    if has_weights:
        gone = gone.where(~sa.exists().where(w.c.key_id == tables.keys.c.id))
    keys = connection.execute(gone.where(*selection.clauses())).rowcount
    return Pruned(keys, samples, poisons, verdicts, weights)


def _delete_old(
    connection: Connection, table: sa.Table, ids: Any, before: float | None, keep: int | None
) -> int:
    """Remove rows of some keys: those that are older, and not among the newest of their key."""
    c = table.c
    old: list[Any] = [c.key_id.in_(ids)]
    if before is not None:
        old.append(c.taken_at < before)
    if keep is not None:
        newest_first = (c.taken_at.desc(), c.id.desc())
        place = sa.func.row_number().over(partition_by=c.key_id, order_by=newest_first)
        ranked = sa.select(c.id, place.label("place")).subquery()
        old.append(c.id.in_(sa.select(ranked.c.id).where(ranked.c.place > keep)))
    return int(connection.execute(sa.delete(table).where(*old)).rowcount)


def _prune_verdicts(connection: Connection, selection: Selection, before: float | None) -> int:
    if selection.key or selection.region:
        return 0
    v = tables.verdicts.c
    clauses: list[Any] = [] if before is None else [v.decided_at < before]
    if selection.target:
        clauses.append(v.targets.contains(selection.target, autoescape=True))
    if selection.backend:
        clauses.append(v.backends.contains(selection.backend, autoescape=True))
    if selection.machine:
        clauses.append(v.machine.startswith(selection.machine, autoescape=True))
    return int(connection.execute(sa.delete(tables.verdicts).where(*clauses)).rowcount)
