# SPDX-License-Identifier: Apache-2.0
"""Check: what is written to a device is read back, and the host reads no device by chance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.device import Device, ThreadOptions, queue_of
from intarsia.backends.values import TensorSpec
from intarsia.graph.arena import ALIGNMENT
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

SENTENCE = "A device gives back what was written; off the host, its buffers are opaque."

DTYPES = (
    *("float32", "float16", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8"),
)
SHAPES: tuple[tuple[int, ...], ...] = ((3, 5, 7), (1,), (), (0, 4))


def trials() -> Iterator[Trial]:
    """Yield one round trip per dtype, and what concerns blocks."""
    for dtype in DTYPES:
        yield Trial("devices", f"round_trip-{dtype}", partial(round_trip, dtype=dtype))
    yield Trial("devices", "two_tensors_in_one_block", share_a_block)
    yield Trial("devices", "buffers", look_at_buffers)
    yield Trial("devices", "queues", use_queues)


def round_trip(subject: Subject, dtype: str) -> None:
    """Write and read tensors of one dtype."""
    device = _open(subject)
    rng = np.random.default_rng(9)
    for shape in SHAPES:
        spec = TensorSpec("t", dtype, shape)
        title = f"a round trip of {spec}"
        with subject.calling("the device", title):
            buffer = device.tensor(device.allocate(spec.nbytes), 0, spec)
            written = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(np_dtype(dtype))
            device.write(written, buffer)
            found = _fetch(device, buffer, spec)
        _same(found, written, title)


def share_a_block(subject: Subject) -> None:
    """Write two tensors that lie in one block, as in a plan's arena."""
    device = _open(subject)
    spec = TensorSpec("t", "float32", (3, 5))
    with subject.calling("the device", "two tensors in one block"):
        block = device.allocate(2 * ALIGNMENT)
        buffers = [device.tensor(block, offset, spec) for offset in (0, ALIGNMENT)]
        arrays = [np.full((3, 5), value, np.float32) for value in (1, 2)]
        for array, buffer in zip(arrays, buffers, strict=True):
            device.write(array, buffer)
        found = [_fetch(device, buffer, spec) for buffer in buffers]
        again = _fetch(device, device.tensor(block, ALIGNMENT, spec), spec)
    for array, wanted in zip((*found, again), (*arrays, arrays[1]), strict=True):
        _same(array, wanted, "two tensors in one block")


def look_at_buffers(subject: Subject) -> None:
    """Require aligned arrays on the host, and handles that the host cannot read elsewhere."""
    device = _open(subject)
    spec = TensorSpec("t", "float32", (3, 5))
    with subject.calling("the device", "buffers"):
        buffer = device.tensor(device.allocate(spec.nbytes), 0, spec)
    if subject.is_host:
        if not isinstance(buffer, np.ndarray):
            raise ConformanceError(f"a buffer in host memory is {buffer!r}, not a numpy array")
        if buffer.ctypes.data % ALIGNMENT:
            raise ConformanceError(f"a block of host memory is not aligned to {ALIGNMENT} bytes")
        return
    for name in ("__array__", "__array_interface__", "__buffer__"):
        if hasattr(buffer, name):
            raise ConformanceError(f"a buffer of the device has {name}: the host could read it")
    try:
        memoryview(buffer)
    except TypeError:
        return
    raise ConformanceError("a buffer of the device has the buffer protocol: the host could read it")


def use_queues(subject: Subject) -> None:
    """Queue copies on two queues of a device, and wait for the last of each only."""
    device = queue_of(_open(subject))
    if device is None:
        raise NotApplicable("the device has no queue")
    spec, title = TensorSpec("t", "float32", (64, 64)), "two queues"
    found, waits = {}, []
    with subject.calling("the device", title):
        views = [device.open_queue() for _ in range(2)]
        for number, view in enumerate(views):
            buffer = view.tensor(view.allocate(spec.nbytes), 0, spec)
            for value in range(3):
                written = np.full(spec.shape or (), 10 * number + value, np.float32)
                found[number, value] = (np.zeros_like(written), written)
                view.start_write(written, buffer)
                waits.append(view.start_read(buffer, found[number, value][0]))
            waits[-1]()
        for view in views:
            view.synchronize()
        for wait in waits:
            wait()  # again, or late
    for array, written in found.values():
        _same(array, written, title)


def _open(subject: Subject) -> Device:
    with subject.calling("open", str(subject.placed)):
        return subject.backend.open(subject.placed, ThreadOptions(num_threads=1))


def _fetch(device: Device, buffer: object, spec: TensorSpec) -> Array:
    found = np.zeros(spec.shape or (), np_dtype(spec.dtype))
    device.read(buffer, found)
    return found


def _same(found: Array, written: Array, title: str) -> None:
    if found.tobytes() != written.tobytes():
        raise ConformanceError(f"{title}: read {found.tolist()}, written {written.tolist()}")
