# SPDX-License-Identifier: Apache-2.0
"""Bytes of regions in the cost database, beside their seconds and under the same keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

import sqlalchemy as sa

from intarsia.cost import tables
from intarsia.cost.database import CostDatabase, digest_groups, ensure_keys
from intarsia.cost.key import CostKey, KeyT
from intarsia.cost.records import Weight

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def add_weights(database: CostDatabase, weights: Mapping[CostKey, Sequence[Weight]]) -> None:
    """Add what was weighed; it is committed when this returns.

    A database from before, in which this user may not make tables, stays without.

    Raises:
        CostDatabaseError: The database cannot be written.
    """
    if not weights or not database.store.has(tables.weights):
        return
    with database.store.write() as connection:
        insert_weights(connection, ensure_keys(connection, weights), weights)


def insert_weights(
    connection: Connection, ids: Mapping[CostKey, int], weights: Mapping[CostKey, Sequence[Weight]]
) -> None:
    """Add what was weighed under keys that are there."""
    rows = [
        {"key_id": ids[key], **asdict(weight)} for key, every in weights.items() for weight in every
    ]
    if rows:
        connection.execute(sa.insert(tables.weights), rows)


def find_weights(database: CostDatabase, keys: Iterable[KeyT]) -> dict[KeyT, tuple[Weight, ...]]:
    """Return the weights of those keys that have some, in the order in which they were measured."""
    if not database.store.has(tables.weights):
        return {}
    with database.store.read() as connection:
        return read_weights(connection, keys)


def read_weights(connection: Connection, keys: Iterable[KeyT]) -> dict[KeyT, tuple[Weight, ...]]:
    """Return the same within a transaction, where there is the table."""
    by_key: dict[KeyT, list[Weight]] = {}
    w = tables.weights.c
    query = sa.select(tables.keys.c.digest, w.nbytes, w.taken_at, w.session).join_from(
        tables.weights, tables.keys
    )
    for by_digest in digest_groups(keys):
        where = tables.keys.c.digest.in_(by_digest)
        for digest, *values in connection.execute(query.where(where).order_by(w.id)):
            by_key.setdefault(by_digest[digest], []).append(Weight(*values))
    return {key: tuple(weights) for key, weights in by_key.items()}


def typical_bytes(weights: Iterable[Weight]) -> int:
    """Return the bytes of a region that was weighed several times: the median."""
    return round(median(weight.nbytes for weight in weights))
