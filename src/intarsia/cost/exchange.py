# SPDX-License-Identifier: Apache-2.0
"""Costs as text to pass on, one JSON value in a line, and back; merging databases.

Bringing the same costs in twice changes nothing: samples are counted, not numbered.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from intarsia.cost import tables
from intarsia.cost.database import (
    CostDatabase,
    ensure_keys,
    poison_of,
    read_samples,
    save_machine,
    save_poison,
    save_verdict,
)
from intarsia.cost.direct import verdict_of
from intarsia.cost.key import BoundaryKey, CostKey, Key, Sample
from intarsia.cost.records import PlanVerdict, Poison, VerdictKey, Weight
from intarsia.cost.selection import Selection, read_entries, read_machines
from intarsia.cost.weights import insert_weights, read_weights
from intarsia.errors import CostDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

logger = logging.getLogger("intarsia")

FORMAT = "intarsia-costs"
EXPORT_SCHEMA = 2
"""Schema of a file with weights; a file without has schema 1, which all versions read."""

_AT_A_TIME = 200


class _Header(msgspec.Struct, tag="header", tag_field="kind", forbid_unknown_fields=True):
    format: str
    schema: int


class _Machine(msgspec.Struct, tag="machine", tag_field="kind", forbid_unknown_fields=True):
    digest: str
    text: str


class _Cost(msgspec.Struct, tag="cost", tag_field="kind", forbid_unknown_fields=True):
    key: CostKey
    samples: tuple[tuple[float, float, str, float, str], ...]
    poison: Poison | None = None


class _Weights(msgspec.Struct, tag="weights", tag_field="kind", forbid_unknown_fields=True):
    key: CostKey
    weights: tuple[tuple[int, float, str], ...]


class _Junction(msgspec.Struct, tag="junction", tag_field="kind", forbid_unknown_fields=True):
    key: BoundaryKey
    samples: tuple[tuple[float, float, str, float, str], ...]
    poison: Poison | None = None


class _Verdict(msgspec.Struct, tag="verdict", tag_field="kind", forbid_unknown_fields=True):
    key: VerdictKey
    verdict: PlanVerdict


_Record = _Header | _Machine | _Cost | _Weights | _Junction | _Verdict


@dataclass(frozen=True, slots=True)
class Added:
    """Numbers of new keys, samples, failures, verdicts and weights."""

    keys: int = 0
    samples: int = 0
    poisons: int = 0
    verdicts: int = 0
    weights: int = 0


def export_costs(database: CostDatabase, selection: Selection | None = None) -> Iterator[str]:
    """Yield costs as lines of JSON, each with its line end.

    Args:
        database: Where they are.
        selection: Which keys; None means all, and the verdicts too.
    """
    for record in _read_records(database, selection):
        yield msgspec.json.encode(record).decode() + "\n"


def import_costs(database: CostDatabase, lines: Iterable[str], name: str) -> Added:
    """Bring exported costs in: all of them or, if a line is wrong, none.

    Args:
        database: Where to.
        lines: As `export_costs` yields them.
        name: Of where they come from, for messages.

    Raises:
        CostDatabaseError: A line is not what it has to be, or the schema is newer than ours.
    """
    return _take(database, list(_decode(lines, name)))


def merge_costs(database: CostDatabase, other: CostDatabase) -> Added:
    """Bring all in that another database holds."""
    return _take(database, list(_read_records(other, None)))


def _read_records(database: CostDatabase, selection: Selection | None) -> Iterator[_Record]:
    # The older schema wherever it will do: then older versions can read the file.
    yield _Header(FORMAT, EXPORT_SCHEMA if _has_weights(database, selection) else 1)
    for digest, text in read_machines(database).items():
        yield _Machine(digest, text)
    for entry in read_entries(database, selection):
        samples = tuple(
            (s.seconds, s.anchor_seconds, s.anchor, s.taken_at, s.session) for s in entry.samples
        )
        if isinstance(entry.key, CostKey):
            if samples or entry.poison is not None or not entry.weights:
                yield _Cost(entry.key, samples, entry.poison)
            if entry.weights:
                yield _Weights(entry.key, tuple(map(astuple, entry.weights)))
        else:
            yield _Junction(entry.key, samples, entry.poison)
    if selection is None:
        yield from _read_verdicts(database)


def _has_weights(database: CostDatabase, selection: Selection | None) -> bool:
    """Whether any of the selected keys has weights."""
    if not database.store.has(tables.weights):
        return False
    clauses = (selection or Selection()).clauses()
    query = sa.select(tables.weights.c.id).join_from(tables.weights, tables.keys).where(*clauses)
    with database.store.read() as connection:
        return connection.execute(query.limit(1)).first() is not None


def _read_verdicts(database: CostDatabase) -> Iterator[_Verdict]:
    with database.store.read() as connection:
        rows = connection.execute(sa.select(tables.verdicts).order_by(tables.verdicts.c.digest))
        for row in rows.mappings():
            key = VerdictKey(**{field.name: row[field.name] for field in fields(VerdictKey)})
            yield _Verdict(key, verdict_of(dict(row)))


def _decode(lines: Iterable[str], name: str) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(_Record)
    has_header = False
    try:
        for number, line in enumerate(lines, 1):
            try:
                record: _Record = decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise _wrong(name, number, str(error)) from error
            if isinstance(record, _Header):
                _check_header(record, name, number)
                has_header = True
            elif not has_header:
                raise _wrong(name, number, "the header is missing")
            _check_numbers(record, name, number)
            yield record
    except UnicodeDecodeError as error:
        raise _wrong(name, 0, "it is not text") from error
    if not has_header:
        raise _wrong(name, 0, "it is empty")


def _check_header(header: _Header, name: str, number: int) -> None:
    if header.format != FORMAT:
        raise _wrong(name, number, f"the format is {header.format!r}")
    if header.schema > EXPORT_SCHEMA:
        raise CostDatabaseError(
            f"{name!r} has schema {header.schema}, newer than {EXPORT_SCHEMA}, "
            "which this version of Intarsia knows",
            hint="upgrade Intarsia",
        )


def _check_numbers(record: _Record, name: str, number: int) -> None:
    if isinstance(record, _Cost | _Junction):
        values = [value for s in record.samples for value in (s[0], s[1], s[3])]
        if not all(map(math.isfinite, values)):
            raise _wrong(name, number, "a number is not finite")
        if isinstance(record, _Cost) and any(s[0] < 0 for s in record.samples):
            raise _wrong(name, number, "a time is negative")

    if isinstance(record, _Weights) and not all(
        nbytes >= 0 and math.isfinite(taken_at) for nbytes, taken_at, _ in record.weights
    ):
        raise _wrong(name, number, "a number of bytes is negative, or a time is not finite")


def _wrong(name: str, number: int, what: str) -> CostDatabaseError:
    where = f"line {number} of {name!r}" if number else repr(name)
    return CostDatabaseError(
        f"{where} is not from `intarsia costs export`: {what}",
        hint="nothing was changed; export the costs again",
    )


def _take(database: CostDatabase, records: Iterable[_Record]) -> Added:
    total: Counter[str] = Counter()
    changed: set[Key] = set()
    with database.store.write(exclusive=True) as connection:
        waiting: list[_Cost | _Junction] = []
        weighed: dict[CostKey, list[Weight]] = {}
        for record in records:
            match record:
                case _Header():
                    pass
                case _Machine():
                    save_machine(connection, record.digest, record.text)
                case _Verdict():
                    total["verdicts"] += _take_verdict(connection, record)
                case _Weights():
                    weights = (Weight(*values) for values in record.weights)
                    weighed.setdefault(record.key, []).extend(weights)
                case _Cost() | _Junction():
                    waiting.append(record)
                    if len(waiting) >= _AT_A_TIME:
                        total += _take_keys(connection, waiting, changed)
                        waiting = []
        total += _take_keys(connection, waiting, changed)
        if weighed and database.store.has(tables.weights):
            total += _take_weights(connection, weighed, changed)
        elif weighed:
            logger.warning("%s has no table for weights: they are left out", database.store.name)
    return Added(len(changed), **total)


def _take_weights(
    connection: Connection, weighed: Mapping[CostKey, list[Weight]], changed: set[Key]
) -> Counter[str]:
    """Add what is new: of equal weights as many as are missing."""
    ids, present = ensure_keys(connection, weighed), read_weights(connection, weighed)
    new = {
        key: tuple((Counter(weights) - Counter(present.get(key, ()))).elements())
        for key, weights in weighed.items()
    }
    insert_weights(connection, ids, new)
    changed |= {key for key, weights in new.items() if weights}
    return Counter(weights=sum(map(len, new.values())))


def _take_keys(
    connection: Connection, records: list[_Cost | _Junction], changed: set[Key]
) -> Counter[str]:
    """Add what is new: of equal samples as many as are missing, of failures the latest."""
    total: Counter[str] = Counter()
    by_key: dict[Key, list[Sample]] = {}
    poisons: dict[Key, Poison] = {}
    for record in records:
        by_key.setdefault(record.key, []).extend(Sample(*values) for values in record.samples)
        if record.poison is not None:
            poisons[record.key] = record.poison
    ids = ensure_keys(connection, by_key)
    present = read_samples(connection, by_key)
    rows = []
    for key, samples in by_key.items():
        missing = Counter(samples) - Counter(present.get(key, ()))
        for sample in samples:
            if missing[sample] > 0:
                missing[sample] -= 1
                rows.append({"key_id": ids[key], **asdict(sample)})
                changed.add(key)
    if rows:
        connection.execute(sa.insert(tables.samples), rows)
    for key, poison in poisons.items():
        where = tables.poisons.c.key_id == ids[key]
        before = connection.execute(sa.select(tables.poisons).where(where)).one_or_none()
        if before is None or poison_of(before).taken_at < poison.taken_at:
            save_poison(connection, ids[key], asdict(poison))
            total["poisons"] += 1
            changed.add(key)
    total["samples"] += len(rows)
    return total


def _take_verdict(connection: Connection, record: _Verdict) -> int:
    where = tables.verdicts.c.digest == record.key.digest
    before = connection.execute(sa.select(tables.verdicts).where(where)).one_or_none()
    if before is not None and before.decided_at >= record.verdict.decided_at:
        return 0
    save_verdict(connection, record.key, record.verdict)
    return 1
