# SPDX-License-Identifier: Apache-2.0
"""Costs as text to pass on, one JSON value in a line, and back; merging databases.

Bringing the same costs in twice changes nothing: samples are counted, not numbered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
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
    verdict_of,
)
from intarsia.cost.key import CostKey, JunctionKey, Key, Sample
from intarsia.cost.records import Poison, Verdict, VerdictKey
from intarsia.cost.selection import Selection, read_entries, read_machines
from intarsia.errors import CostDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

FORMAT = "intarsia-costs"
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


class _Junction(msgspec.Struct, tag="junction", tag_field="kind", forbid_unknown_fields=True):
    key: JunctionKey
    samples: tuple[tuple[float, float, str, float, str], ...]
    poison: Poison | None = None


class _Verdict(msgspec.Struct, tag="verdict", tag_field="kind", forbid_unknown_fields=True):
    key: VerdictKey
    verdict: Verdict


_Record = _Header | _Machine | _Cost | _Junction | _Verdict


@dataclass(frozen=True, slots=True)
class Added:
    """What was new: how many samples, failures and verdicts, and how many keys they are of."""

    keys: int = 0
    samples: int = 0
    poisons: int = 0
    verdicts: int = 0


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
    yield _Header(FORMAT, tables.SCHEMA_VERSION)
    for digest, text in read_machines(database).items():
        yield _Machine(digest, text)
    for entry in read_entries(database, selection):
        samples = tuple(
            (s.seconds, s.anchor_seconds, s.anchor, s.taken_at, s.session) for s in entry.samples
        )
        if isinstance(entry.key, CostKey):
            yield _Cost(entry.key, samples, entry.poison)
        else:
            yield _Junction(entry.key, samples, entry.poison)
    if selection is None:
        yield from _read_verdicts(database)


def _read_verdicts(database: CostDatabase) -> Iterator[_Verdict]:
    with database.store.read() as connection:
        rows = connection.execute(sa.select(tables.verdicts).order_by(tables.verdicts.c.digest))
        for row in rows.all():
            key = VerdictKey(
                *(row.model, row.targets, row.backends, row.machine, row.threads),
                *(row.constraints, row.objective),
            )
            yield _Verdict(key, verdict_of(row))


def _decode(lines: Iterable[str], name: str) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(_Record)
    has_header = False
    try:
        for number, line in enumerate(lines, 1):
            try:
                record: _Record = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise _wrong(name, number, str(error)) from error
            if isinstance(record, _Header):
                _check_header(record, name, number)
                has_header = True
            elif not has_header:
                raise _wrong(name, number, "the header is missing")
            _check_numbers(record, name, number)
            yield record
    except UnicodeDecodeError as error:
        raise _wrong(name, 0, "it is no text") from error
    if not has_header:
        raise _wrong(name, 0, "it is empty")


def _check_header(header: _Header, name: str, number: int) -> None:
    if header.format != FORMAT:
        raise _wrong(name, number, f"the format is {header.format!r}")
    if header.schema > tables.SCHEMA_VERSION:
        raise CostDatabaseError(
            f"{name!r} has schema {header.schema}, newer than {tables.SCHEMA_VERSION}, "
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


def _wrong(name: str, number: int, what: str) -> CostDatabaseError:
    where = f"line {number} of {name!r}" if number else repr(name)
    return CostDatabaseError(
        f"{where} is not from `intarsia costs export`: {what}",
        hint="nothing was changed; export the costs again",
    )


def _take(database: CostDatabase, records: Iterable[_Record]) -> Added:
    total: Counter[str] = Counter()
    with database.store.write(exclusive=True) as connection:
        waiting: list[_Cost | _Junction] = []
        for record in records:
            match record:
                case _Header():
                    pass
                case _Machine():
                    save_machine(connection, record.digest, record.text)
                case _Verdict():
                    total["verdicts"] += _take_verdict(connection, record)
                case _Cost() | _Junction():
                    waiting.append(record)
                    if len(waiting) >= _AT_A_TIME:
                        total += _take_keys(connection, waiting)
                        waiting = []
        total += _take_keys(connection, waiting)
    return Added(**total)


def _take_keys(connection: Connection, records: list[_Cost | _Junction]) -> Counter[str]:
    """Add what is new: of equal samples as many as are missing, of failures the latest."""
    total: Counter[str] = Counter()
    found: dict[Key, list[Sample]] = {}
    poisons: dict[Key, Poison] = {}
    for record in records:
        found.setdefault(record.key, []).extend(Sample(*values) for values in record.samples)
        if record.poison is not None:
            poisons[record.key] = record.poison
    ids = ensure_keys(connection, found)
    present = read_samples(connection, found)
    changed = set()
    rows = []
    for key, samples in found.items():
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
    total["keys"] += len(changed)
    return total


def _take_verdict(connection: Connection, record: _Verdict) -> int:
    where = tables.verdicts.c.digest == record.key.digest
    before = connection.execute(sa.select(tables.verdicts).where(where)).one_or_none()
    if before is not None and before.decided_at >= record.verdict.decided_at:
        return 0
    save_verdict(connection, record.key, record.verdict)
    return 1
