# SPDX-License-Identifier: Apache-2.0
"""Sizes of real requests, and which few of them stand for all.

A file has one request a line, as JSON: `{"batch": 1, "seq": 37}`; `"count": 12` says how many there
were. What is measured is taken from the distribution: if one dimension differs, its quantiles, both
ends among them, so that the crossovers of all requests lie between; else the most frequent sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from intarsia.errors import InputError, SettingError
from intarsia.graph.free_sizes import SizesLike, list_sizes, sizes_text

MOST_SIZES = 5
"""How many sizes stand for all requests."""

COUNT = "count"
"""The name under which a request says how often it came."""

RequestsLike: TypeAlias = "str | Path | Iterable[Mapping[str, int]]"
"""A file of requests, or the sizes of each."""

_Row: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ChosenSizes:
    """Sizes that stand for requests.

    Attributes:
        sizes: Those that are measured.
        text: What was chosen, and which part of the requests it covers.
    """

    sizes: tuple[dict[str, int], ...]
    text: str


def read_requests(path: str | Path) -> list[dict[str, int]]:
    """Read a file of requests.

    Raises:
        InputError: It cannot be read, or a line is no request; says which.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"cannot read requests from {str(path)!r}: {reason}") from error
    requests = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            requests.append(msgspec.json.decode(line, type=dict[str, int]))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InputError(
                f"line {number} of {str(path)!r} is no request: {error}",
                hint='write for example {"batch": 1, "seq": 37, "count": 12}',
            ) from error
    return requests


def choose_sizes(requests: RequestsLike, most: int = MOST_SIZES) -> ChosenSizes:
    """Return the sizes that stand for requests.

    Args:
        requests: A file, or the sizes of each; with `count`, of several at once.
        most: How many sizes at most.

    Raises:
        InputError: There is none, or they do not have the same dimensions.
    """
    rows = read_requests(requests) if isinstance(requests, str | Path) else list(requests)
    counts = _count(rows)
    names = [name for name, _ in next(iter(counts))]
    differing = [name for name in names if len({dict(row)[name] for row in counts}) > 1]
    total = sum(counts.values())
    if len(counts) <= most:
        chosen, how = sorted(counts), "all sizes"
    elif len(differing) == 1:
        chosen = _quantiles(counts, differing[0], most)
        how = f"quantiles of {differing[0]}"
    else:
        chosen = sorted(row for row, _ in counts.most_common(most))
        how = "the most frequent sizes"
    covered = sum(counts[row] for row in chosen) / total
    texts = "; ".join(sizes_text(dict(row)) for row in chosen)
    text = (
        f"{how} of {total} requests with {len(counts)} different sizes: {texts}; "
        f"{covered:.1%} of the requests have these"
    )
    if len(differing) == 1 and len(chosen) < len(counts):
        text += ", the others lie between them"
    return ChosenSizes(tuple(map(dict, chosen)), text)


def ask_sizes(sizes: SizesLike | None, requests: RequestsLike | None) -> ChosenSizes:
    """Return the sizes that are asked for: none, some, or those that stand for requests.

    Raises:
        SettingError: Both are given.
        InputError: As of `choose_sizes`.
    """
    if requests is None:
        return ChosenSizes(() if sizes is None else list_sizes(sizes), "")
    if sizes:
        raise SettingError("sizes and requests exclude one another", hint="give one of them")
    return choose_sizes(requests)


def _count(rows: Sequence[Mapping[str, int]]) -> Counter[_Row]:
    """Return how often each sizes came.

    Raises:
        InputError: There is none, one is no size, or they do not have the same dimensions.
    """
    counts: Counter[_Row] = Counter()
    names = {name for name in (rows[0] if rows else ()) if name != COUNT}
    if not names:
        raise InputError("there are no requests", hint='write a line such as {"seq": 37} for each')
    for number, row in enumerate(rows, 1):
        if row.keys() - {COUNT} != names:
            raise InputError(
                f"request {number} has other dimensions than the first one: "
                f"{', '.join(sorted(row.keys() - {COUNT})) or 'none'}",
                hint=f"give each {', '.join(sorted(names))}",
            )
        wrong = [name for name, size in row.items() if size < (name == COUNT)]
        if wrong:
            raise InputError(f"request {number}: {row[wrong[0]]} is no {wrong[0]!r}")
        sizes = tuple((name, row[name]) for name in sorted(names))
        counts[sizes] += row.get(COUNT, 1)
    return counts


def _quantiles(counts: Counter[_Row], name: str, most: int) -> list[_Row]:
    """Return the sizes at equal steps of the requests in order of a dimension, from end to end."""
    ordered = sorted(counts, key=lambda row: dict(row)[name])
    last = sum(counts.values()) - 1
    wanted = [round(last * step / (most - 1)) for step in range(most)] if most > 1 else [last]
    found: dict[_Row, None] = {}
    passed = 0
    for row in ordered:
        passed += counts[row]
        while wanted and wanted[0] < passed:
            found[row] = None
            wanted.pop(0)
    return list(found)
