# SPDX-License-Identifier: Apache-2.0
"""What runs in the process of an isolated backend: it loads regions, binds them and runs them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec

from intarsia.arrays import Array, np_dtype
from intarsia.backends.device import (
    Executable,
    HostDevice,
    Resizable,
    Step,
    ThreadOptions,
    ValueSlot,
)
from intarsia.backends.isolated import DONE, FAILED, shared_views
from intarsia.backends.registry import load_backends
from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.errors import words
from intarsia.graph.arena import aligned_array, aligned_bytes
from intarsia.settings import Settings

_regions: dict[int, Executable] = {}
_numbers = count()

_MOST_WORDS = 60_000
"""Of an error, in bytes: it is read at once."""


def load(
    dropped: Sequence[int],
    backend: str,
    settings: Mapping[str, Any],
    num_threads: int,
    is_shared: bool,
    record: Sequence[Any],
    *,
    arrays: Mapping[str, Array],
) -> tuple[int, bool]:
    """Load a region; return its number, and whether it is given sizes before it runs."""
    for number in dropped:
        _regions.pop(number, None)
    fields, names = record
    constants = tuple(ArtifactConstant(name, arrays[str(i)]) for i, name in enumerate(names))
    artifact = msgspec.convert(fields, Artifact)
    artifact = replace(artifact, payload=arrays["payload"].tobytes(), constants=constants)
    used = load_backends(msgspec.convert(dict(settings), Settings), {backend})
    device = HostDevice(ThreadOptions(num_threads, is_shared))
    number = next(_numbers)
    _regions[number] = used.named(backend).load(artifact, device)
    return number, isinstance(_regions[number], Resizable)


def bind(
    number: int,
    sizes: Mapping[str, int] | None,
    places: Sequence[tuple[str, Sequence[int], int]],
    inputs: int,
    *,
    files: Sequence[int],
) -> None:
    """Bind a region to memory that is shared, and run it when the socket says so.

    Args:
        number: The region's.
        sizes: Of its free dimensions, if it is given any.
        places: Where its tensors lie.
        inputs: How many of them are inputs.
        files: The memory, and the socket.
    """
    memory, line = files[0], socket.socket(fileno=files[1])
    try:
        views = shared_views(memory, places)
    finally:
        os.close(memory)
    step = _step(number, sizes, views[:inputs], views[inputs:])
    threading.Thread(target=_serve, args=(line, step), daemon=True).start()


def run_loose(
    number: int,
    sizes: Mapping[str, int] | None,
    slots: Sequence[int],
    outputs: Sequence[Sequence[Any] | None],
    *,
    arrays: Mapping[str, Array] | None = None,
) -> tuple[None, dict[str, Array]]:
    """Run a region once; return its outputs by their number.

    Args:
        number: The region's.
        sizes: Of its free dimensions, if it is given any.
        slots: Which inputs have a shape that is not known before.
        outputs: Of each its dtype and shape; None where that is not known.
        arrays: The inputs.
    """
    inputs: list[Any] = list((arrays or {}).values())
    for slot in slots:
        inputs[slot] = ValueSlot(inputs[slot])
    results: list[Any] = [
        ValueSlot() if one is None else aligned_array(tuple(one[1:]), np_dtype(one[0]))
        for one in outputs
    ]
    _step(number, sizes, inputs, results)()
    values = (one.value if isinstance(one, ValueSlot) else one for one in results)
    return None, {str(i): one for i, one in enumerate(values)}


def _step(
    number: int, sizes: Mapping[str, int] | None, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Step:
    region = _regions[number]
    if sizes is not None and isinstance(region, Resizable):
        region = region.at(sizes)
    scratch = aligned_bytes(region.scratch_bytes) if region.scratch_bytes else None
    return region.bind(inputs, outputs, scratch)


def _serve(line: socket.socket, step: Step) -> None:
    """Run a step whenever the other side says so, until it is gone."""
    with line:
        while line.recv(1):
            try:
                step()
            except Exception as error:  # a library may raise anything
                line.sendall(FAILED + (words(error).encode()[:_MOST_WORDS] or b"?"))
            else:
                line.sendall(DONE)
