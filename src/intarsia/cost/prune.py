# SPDX-License-Identifier: Apache-2.0
"""Removing what is not needed any more from the cost database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from intarsia.cost import tables
from intarsia.cost.database import CostDatabase
from intarsia.cost.selection import Selection
from intarsia.errors import CostDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


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
    """Remove what is selected; keys of which nothing is left go too.

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
