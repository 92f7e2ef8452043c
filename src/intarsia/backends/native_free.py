# SPDX-License-Identifier: Apache-2.0
"""Programs of native code whose sizes are known when they run: how they are stored, and fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from intarsia.backends.native import Calls, FreeCall, FreeRecord, problem_of
from intarsia.codegen.storage import StorageKind
from intarsia.errors import PackageError
from intarsia.extents import Expression, Extent, evaluate_data, to_data
from intarsia.graph.arena import assign_offsets

if TYPE_CHECKING:
    from intarsia.codegen.lower.program import Program

Payload = TypeVar("Payload", bound=Calls)


def free_record(program: Program) -> FreeRecord | None:
    """Return what of a program depends on sizes; None if nothing does."""
    if not program.is_free:
        return None
    numbers: dict[Expression, int] = {}

    def number(extent: Extent) -> int:
        if not isinstance(extent, Expression):
            return -1
        return numbers.setdefault(extent, len(numbers))

    record = FreeRecord(
        [],
        [number(storage.nbytes) for storage in program.storages],
        [storage.life for storage in program.storages],
        [
            FreeCall(
                number(call.extent),
                [number(argument.offset) for argument in call.arguments],
                [number(size) for size in call.sizes],
            )
            for call in program.calls
        ],
        [number(check.extent) for check in program.checks],
    )
    return msgspec.structs.replace(record, extents=[to_data(item) for item in numbers])


def fix_sizes(payload: Payload, sizes: Mapping[str, int], target: str) -> Payload:
    """Return the program for sizes: extents are numbers, and scratch memory has its places.

    Args:
        payload: With a free record.
        sizes: Of every symbol, by name.
        target: What it was compiled for, for errors.

    Raises:
        PackageError: It is damaged.
    """
    free = payload.free
    assert free is not None
    try:
        values = [evaluate_data(item, sizes) for item in free.extents]
        fixed = _fix(payload, free, values, sizes)
    except (KeyError, IndexError, ValueError, TypeError, ZeroDivisionError) as error:
        raise PackageError(
            f"the native code of {target} is damaged: its sizes: {error!r}"
        ) from error
    problem = problem_of(fixed, None)
    if problem:
        raise PackageError(f"the native code of {target} is damaged: {problem}")
    return fixed


def _fix(
    payload: Payload, free: FreeRecord, values: list[int], sizes: Mapping[str, int]
) -> Payload:
    def value(number: int, known: int) -> int:
        return known if number < 0 else values[number]

    nbytes = [
        value(number, known)
        for number, (_, _, known) in zip(free.nbytes, payload.storages, strict=True)
    ]
    # In the order in which they are first used, which is not always that of the storages.
    lives = sorted((*life, i) for i, life in enumerate(free.lives) if life is not None)
    offsets, scratch_bytes = assign_offsets([(first, last, nbytes[i]) for first, last, i in lives])
    starts = {i: offset for (_, _, i), offset in zip(lives, offsets, strict=True)}
    storages, faults = [], 0
    if not lives:  # all scratch memory is of known sizes, and has its places
        scratch_bytes = payload.scratch_bytes
    for i, (kind, index, _) in enumerate(payload.storages):
        if kind == StorageKind.SCRATCH and lives:
            storages.append((kind, starts.get(i, 0), nbytes[i] if i in starts else 0))
        elif kind == StorageKind.FAULT:
            storages.append((kind, faults, nbytes[i]))
            faults += nbytes[i]
        else:
            storages.append((kind, index, nbytes[i]))
    calls = []
    for call, item in zip(payload.calls, free.calls, strict=True):
        extent = value(item.extent, call.extent)
        # Operations grow with the turns; they only decide between one thread and several.
        share = extent / max(1, call.extent)
        places = [
            (storage, value(number, known) if nbytes[storage] else 0)  # nothing has no inside
            for (storage, known), number in zip(call.arguments, item.offsets, strict=True)
        ]
        calls.append(
            msgspec.structs.replace(
                call,
                arguments=places,
                extent=extent,
                flop=int(call.flop * share),
                nbytes=int(call.nbytes * share),
                sizes=[value(n, known) for n, known in zip(item.sizes, call.sizes, strict=True)],
            )
        )
    checks = [
        msgspec.structs.replace(check, extent=value(number, check.extent))
        for check, number in zip(payload.checks, free.checks, strict=True)
    ]
    found = [
        msgspec.structs.replace(
            one,
            shape=[n if isinstance(n, int) else evaluate_data(n, sizes) for n in one.shape],
        )
        for one in payload.found
    ]
    fields = {"storages": storages, "scratch_bytes": scratch_bytes, "calls": calls, "found": found}
    return msgspec.structs.replace(payload, **fields, checks=checks, free=None)  # type: ignore[type-var]
