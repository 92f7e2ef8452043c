# SPDX-License-Identifier: Apache-2.0
"""The trial of a program that an OpenCL driver may have died of."""

from intarsia.backends.device_payload import decode, source_of
from intarsia.backends.first_use import notes_folder, text_of
from intarsia.backends.opencl import first_use
from intarsia.backends.opencl.driver import driver
from intarsia.process import selftest


def test_the_trial_runs_every_kernel_on_zeros(program, open_device, monkeypatch):
    (artifact,) = program.artifacts
    payload = decode(artifact)
    launched = []
    cl = driver()
    enqueue = cl.enqueue_nd_range_kernel
    monkeypatch.setattr(
        cl,
        "enqueue_nd_range_kernel",
        lambda *arguments: (launched.append(arguments[1].function_name), enqueue(*arguments)),
    )
    first_use.try_program(open_device().name, [], text_of(payload))
    assert launched == [payload.kernels[call.kernel].name for call in payload.calls]
    launched.clear()
    first_use.try_program("no such device", [], text_of(payload))
    assert launched == []


def test_inside_a_trial_there_are_no_notes(program, open_device, own_cache, monkeypatch):
    monkeypatch.setitem(selftest._state, "is_inside", True)
    (artifact,) = program.artifacts
    payload = decode(artifact)
    first = first_use.first_use(
        source_of(artifact, payload), [], payload, open_device(), "1", own_cache
    )
    first.begin()
    assert not notes_folder("opencl", own_cache).exists()
