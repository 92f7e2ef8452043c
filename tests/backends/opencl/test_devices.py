# SPDX-License-Identifier: Apache-2.0
"""OpenCL devices: which there are, memory of their own, queues, and what goes wrong with them."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import intarsia
from intarsia.backends.device import QueuedDevice
from intarsia.backends.opencl import driver
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.values import TensorSpec
from intarsia.errors import BackendError, ExecutionError, SettingError, TargetError
from intarsia.settings import Settings

SPEC = TensorSpec("t", "float32", (5, 3))


def tensor_on(device, array=None):
    made = device.tensor(device.allocate(SPEC.nbytes), 0, SPEC)
    if array is not None:
        device.write(array, made)
    return made


def fetch(device, tensor):
    array = np.zeros(SPEC.shape, np.float32)
    device.read(tensor, array)
    return array


def test_one_device_may_stand_twice_each_with_its_own_memory(twice, open_device):
    first, second = open_device(0), open_device(1)
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    tensor = tensor_on(first, array)
    np.testing.assert_array_equal(fetch(first, tensor), array)
    with pytest.raises(ExecutionError, match="memory that is not its own"):
        fetch(second, tensor)
    with pytest.raises(ExecutionError, match="memory that is not its own"):
        second.tensor(first.allocate(64), 0, SPEC)


def test_a_region_refuses_memory_of_another_device(twice, program, open_device):
    (artifact,) = program.artifacts
    own, other = open_device(0), open_device(1)
    loaded = twice.load(artifact, own)

    def buffers(device):
        specs = (*artifact.inputs, *artifact.outputs)
        return [device.tensor(device.allocate(spec.nbytes), 0, spec) for spec in specs]

    scratch = own.allocate(loaded.scratch_bytes)
    *inputs, output = buffers(own)
    loaded.bind(inputs, [output], scratch)
    with pytest.raises(ExecutionError, match="not of one queue"):
        loaded.bind(inputs, [buffers(other)[-1]], scratch)
    with pytest.raises(ExecutionError, match="not of one queue"):
        loaded.bind(inputs, [np.zeros((3, 4), np.float32)], scratch)
    with pytest.raises(ExecutionError, match="not of one queue"):
        loaded.bind(inputs, [buffers(own.open_queue())[-1]], scratch)


def test_a_device_may_be_cut_into_parts(opencl, monkeypatch):
    monkeypatch.delenv("INTARSIA_OPENCL_DEVICES", raising=False)
    whole = driver.list_devices(Settings.from_environment())[0].device
    if whole.max_compute_units < 2:
        pytest.skip("the device has one compute unit")
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", "0/2")
    parts = [entry.device for entry in driver.list_devices(Settings.from_environment())]
    assert [part.max_compute_units for part in parts] == [whole.max_compute_units // 2] * 2


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("x", "is not a device"),
        ("0/x", "is not a device"),
        ("77", "no device 77"),
        ("0/999", "not cut"),
    ],
)
def test_a_setting_that_fits_nothing_is_an_error(setting, problem, opencl, monkeypatch):
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", setting)
    with pytest.raises(SettingError, match=problem) as caught:
        driver.list_devices(Settings.from_environment())
    assert caught.value.hint
    detection = opencl.configured(Settings.from_environment()).detect()
    assert not detection.targets
    assert problem in detection.reason


def test_a_device_that_is_not_there_is_named_with_those_that_are(small_model, opencl, backends):
    with pytest.raises(BackendError, match="there is no OpenCL device 7") as caught:
        intarsia.compile(small_model, "opencl:7, llvm", backends=backends)
    assert caught.value.target == "opencl:7"
    assert (
        f"opencl:0 is {driver.list_devices(Settings.from_environment())[0].name}"
        in caught.value.hint
    )


@pytest.mark.parametrize("most", [0, -4])
def test_groups_without_work_items_are_an_error(most, small_model, opencl, backends):
    del opencl
    with pytest.raises(TargetError, match=f"max_num_threads: {most} is less than 1"):
        intarsia.compile(small_model, f"opencl -max_num_threads={most}, llvm", backends=backends)


def test_detection_lists_every_device(twice):
    first, second = twice.detect().devices
    assert first.startswith("opencl:0 ")
    assert second.startswith("opencl:1 ")


def test_without_pyopencl_the_fix_is_a_command(tmp_path):
    script = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "from intarsia.backends.registry import load_backends\n"
        "from intarsia.settings import Settings\n"
        "from intarsia.report.health import backend_health\n"
        "health = backend_health(load_backends(Settings.from_environment()).named('opencl'))\n"
        "print(health.is_usable, '|', health.reason, '|', health.fix)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    usable, reason, fix = answer.stdout.strip().split(" | ")
    assert usable == "False"
    assert "pyopencl" in reason
    assert fix == "pip install 'intarsia[opencl]'"


def test_a_buffer_that_is_too_large_is_an_error_with_the_limit(open_device):
    device = open_device()
    most = device.entry.max_buffer_bytes
    with pytest.raises(ExecutionError, match=f"no room for a buffer of {most * 4} bytes") as caught:
        device.allocate(most * 4)
    assert f"at most {most} in one buffer" in caught.value.hint


def test_what_is_queued_is_done_in_order(open_device):
    device = open_device()
    assert isinstance(device, QueuedDevice)
    tensor = tensor_on(device)
    found = [np.zeros(SPEC.shape, np.float32) for _ in range(3)]
    waits = []
    for number, array in enumerate(found):
        waits.append(device.start_write(np.full(SPEC.shape, number, np.float32), tensor))
        waits.append(device.start_read(tensor, array))
    waits[-1]()
    assert [array[0, 0] for array in found] == [0, 1, 2]
    device.synchronize()
    assert all(wait() is None for wait in waits)


def test_arrays_with_gaps_and_odd_dtypes_go_both_ways(open_device):
    import ml_dtypes

    device = open_device()
    spec = TensorSpec("t", "bfloat16", (4, 6))
    written = np.arange(48).reshape(4, 12).astype(ml_dtypes.bfloat16)[:, ::2]
    tensor = device.tensor(device.allocate(spec.nbytes), 0, spec)
    device.write(written, tensor)
    found = np.zeros((6, 4), ml_dtypes.bfloat16).T
    device.read(tensor, found)
    np.testing.assert_array_equal(found, written)
    empty = TensorSpec("e", "float32", (0, 3))
    nothing = device.tensor(device.allocate(0), 0, empty)
    device.write(np.zeros((0, 3), np.float32), nothing)
    device.read(nothing, np.zeros((0, 3), np.float32))


def test_a_child_of_a_fork_says_why_it_cannot(open_device):
    device = open_device()
    tensor = tensor_on(device)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        for use in (lambda: fetch(device, tensor), open_device):
            try:
                use()
            except ExecutionError as error:
                os.write(writer, f"{error.message}\n".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        said = pipe.read().splitlines()
    assert len(said) == 2
    assert all("before the process was forked" in line for line in said)


def test_errors_of_the_driver_are_ours(open_device, monkeypatch):
    import pyopencl

    device = open_device()

    def fail(*arguments, **keywords):
        raise pyopencl.MemoryError("clEnqueueWriteBuffer", -4, "no memory")

    tensor = tensor_on(device)
    monkeypatch.setattr(pyopencl, "enqueue_copy", fail)
    with pytest.raises(ExecutionError, match="opencl:0 is out of memory"):
        device.write(np.zeros(SPEC.shape, np.float32), tensor)


def test_an_entry_says_what_code_depends_on(opencl):
    entry = driver.list_devices(Settings.from_environment())[0]
    assert entry.limits.vector_bits >= 32
    assert entry.limits.max_work_group >= 1
    assert all(entry.key)
    again = OpenClDevice(0, replace(entry, name="other"), None)
    assert again.name == "other"
