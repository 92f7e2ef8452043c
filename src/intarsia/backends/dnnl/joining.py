# SPDX-License-Identifier: Apache-2.0
"""Concatenations in place: parts are made where they belong in the result.

That is possible where a part of the result is one piece of memory, as the channels of one image
are, row by row or in blocks. With channels last it is not: oneDNN's fast primitives do not write a
part of a larger tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.backends.dnnl.forms import Assembly, Form, PrimitiveArgument, PrimitiveStep, Room
from intarsia.backends.dnnl.words import Arg
from intarsia.graph.arena import ALIGNMENT


def join_in_place(assembly: Assembly) -> None:
    """Let parts of concatenations be made in place; a concatenation itself has no work then."""
    reads, writes = _uses(assembly.steps)
    moved: dict[int, tuple[int, int]] = {}  # by buffer, the one that it is a part of, and where
    joined: set[int] = set()
    members: dict[int, set[int]] = {}  # by buffer, all that lies in it
    for time, step in enumerate(assembly.steps):
        parts = _parts(assembly, step)
        if parts is None or any(buffer in moved for buffer in parts):
            continue
        inside = {other for buffer in parts for other in (buffer, *members.get(buffer, ()))}
        later = [moment for moment in writes[step.writes] if moment > time]
        last_read = max(max(reads.get(buffer, [-1])) for buffer in inside)
        is_kept = not any(moment <= last_read for moment in later)
        if is_kept and all(max(writes[buffer]) < time for buffer in inside):
            moved.update((buffer, (step.writes, offset)) for buffer, offset in parts.items())
            members[step.writes] = inside
            joined.add(time)
    assembly.steps[:] = [
        _moved(step, moved) for time, step in enumerate(assembly.steps) if time not in joined
    ]


def _uses(steps: Sequence[PrimitiveStep]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return when each buffer is read and when it is written."""
    reads: dict[int, list[int]] = {}
    writes: dict[int, list[int]] = {}
    for time, step in enumerate(steps):
        writes.setdefault(step.writes, []).append(time)
        for argument in step.arguments:
            if argument.position != Arg.DST:
                reads.setdefault(argument.form.buffer, []).append(time)
    return reads, writes


def _parts(assembly: Assembly, step: PrimitiveStep) -> dict[int, int] | None:
    """Return where the parts of a concatenation belong, or None if it has to copy."""
    *sources, result = step.arguments
    if not all(Arg.MULTIPLE_SRC <= item.position < Arg.ATTR_SCALES for item in sources):
        return None
    whole = result.form.layout
    shapes = [item.form.layout.shape for item in sources]
    axis = next((d for d in range(len(whole.shape)) if shapes[0][d] != whole.shape[d]), None)
    if axis is None or result.form.offset:
        return None
    found: dict[int, int] = {}
    begin = [0] * len(whole.shape)
    for item in sources:
        form = item.form
        place = whole.offset_of(form.layout.shape, begin)
        like = whole.like(form.layout.shape)
        buffer = assembly.buffers[form.buffer]
        is_own = buffer.room is Room.INNER and not form.offset and form.buffer not in found
        if not is_own or buffer.nbytes != form.layout.nbytes:
            return None
        if place is None or place % ALIGNMENT or like is None or not like.is_same(form.layout):
            return None
        found[form.buffer] = place
        begin[axis] += form.layout.shape[axis]
    return found


def _moved(step: PrimitiveStep, moved: Mapping[int, tuple[int, int]]) -> PrimitiveStep:
    """Return a step whose buffers are those that they lie in."""
    arguments = tuple(
        PrimitiveArgument(item.position, _resolve(item.form, moved)) for item in step.arguments
    )
    written = step.writes
    while written in moved:
        written = moved[written][0]
    return replace(step, arguments=arguments, writes=written)


def _resolve(form: Form, moved: Mapping[int, tuple[int, int]]) -> Form:
    buffer, offset = form.buffer, form.offset
    while buffer in moved:
        buffer, place = moved[buffer]
        offset += place
    return Form(form.layout, buffer, offset)
