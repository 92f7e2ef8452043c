# SPDX-License-Identifier: Apache-2.0
"""The tables of the cost database: one schema for SQLite and PostgreSQL.

All texts that identify something are kept in full beside its digest, so that a row can be read
without the program that wrote it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

_DIGEST = String(32)

metadata = MetaData()

meta = Table(
    "intarsia_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

machines = Table(
    "intarsia_machine",
    metadata,
    Column("digest", _DIGEST, primary_key=True),
    Column("text", Text, nullable=False),
)

keys = Table(
    "intarsia_key",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", _DIGEST, nullable=False, unique=True),
    Column("region", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("next_region", Text, nullable=False),  # empty but for boundaries
    Column("next_target", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("machine", _DIGEST, nullable=False),
    Column("threads", String(32), nullable=False),
)

samples = Table(
    "intarsia_sample",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key_id", ForeignKey("intarsia_key.id", ondelete="CASCADE"), nullable=False),
    Column("seconds", Double, nullable=False),
    Column("anchor_seconds", Double, nullable=False),
    Column("anchor", Text, nullable=False),
    Column("taken_at", Double, nullable=False),
    Column("session", String(64), nullable=False),
    Index("intarsia_sample_key", "key_id"),
    Index("intarsia_sample_anchor", "anchor"),
)

poisons = Table(
    "intarsia_poison",
    metadata,
    Column("key_id", ForeignKey("intarsia_key.id", ondelete="CASCADE"), primary_key=True),
    Column("code", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("taken_at", Double, nullable=False),
    Column("session", String(64), nullable=False),
)

weights = Table(
    "intarsia_weight",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key_id", ForeignKey("intarsia_key.id", ondelete="CASCADE"), nullable=False),
    Column("nbytes", BigInteger, nullable=False),
    Column("taken_at", Double, nullable=False),
    Column("session", String(64), nullable=False),
    Index("intarsia_weight_key", "key_id"),
)

verdicts = Table(
    "intarsia_verdict",
    metadata,
    Column("digest", _DIGEST, primary_key=True),
    Column("model", String(64), nullable=False),
    Column("targets", Text, nullable=False),
    Column("backends", Text, nullable=False),
    Column("machine", _DIGEST, nullable=False),
    Column("threads", String(32), nullable=False),
    Column("constraints", Text, nullable=False),
    Column("objective", String(32), nullable=False),
    Column("regions", Text, nullable=False),  # JSON: [{"target": ..., "nodes": [...]}, ...]
    Column("seconds", Double, nullable=False),
    Column("single", Text, nullable=False),
    Column("single_seconds", Double, nullable=False),
    Column("predicted_seconds", Double, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("is_mixed", Boolean, nullable=False),
    Column("decided_at", Double, nullable=False),
    Column("session", String(64), nullable=False),
    Column("report", Text, nullable=False),
)

ADDED = (weights,)
"""Tables that databases of this schema may lack, as they were made before these were thought of.

A user who may write makes them; until then, and for versions that do not know them, they are empty.
"""
