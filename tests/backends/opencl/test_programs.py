# SPDX-License-Identifier: Apache-2.0
"""Programs for OpenCL: numbers, packages, binaries, damage, and devices that lack something."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import intarsia
from intarsia.backends.device_payload import Payload, decode
from intarsia.backends.opencl import driver
from intarsia.backends.opencl.binaries import KIND, BinaryCache
from intarsia.errors import BackendError, PackageError
from intarsia.settings import Settings

SOURCE = "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2.0f; }"


@pytest.fixture
def limited(opencl, monkeypatch):
    """A function that gives the device other limits."""

    def limit(**changes):
        (entry,) = driver.list_devices(Settings.from_environment())
        other = replace(entry, limits=replace(entry.limits, **changes))
        monkeypatch.setattr(driver, "_devices", lambda setting, caches: (other,))

    return limit


def seal(artifact, payload):
    encoded = msgspec.msgpack.encode(payload)
    return replace(artifact, payload=hashlib.sha256(encoded).digest() + encoded)


def test_a_region_gives_the_numbers_again_and_again(
    program, small_model, random_feeds, evaluate, assert_same
):
    for seed in range(3):
        feeds = random_feeds(small_model, seed)
        assert_same(program.run(feeds), evaluate(small_model, feeds))


def test_two_targets_on_one_device_share_its_memory(parse_model, twice, backends):
    model = parse_model("""
        g (float[8,8] x) => (float[8,8] y)
        { [a] a = MatMul(x, x) [b] b = Tanh(a) [c] y = Neg(b) }""")
    target = "opencl -max_num_threads=1, opencl, llvm"
    exe = intarsia.compile(model, target, pins={"b": "opencl"}, backends=backends)
    assert len(exe.placement.regions) == 3
    assert [(row.tensor, row.destination) for row in exe.explain().copies] == [
        ("x", "opencl:0"),
        ("y", "cpu:0"),
    ]
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    np.testing.assert_allclose(exe(x), -np.tanh(x @ x), rtol=1e-4, atol=1e-5)


def test_a_network_over_two_devices_and_the_host(
    chain_model, random_feeds, evaluate, assert_same, twice, backends
):
    pins = {"first": "opencl:0", "second": "opencl:1", "third": "llvm", "fourth": "opencl:1"}
    exe = intarsia.compile(chain_model, "opencl, opencl:1, llvm", pins=pins, backends=backends)
    assert set(exe.plan.devices) == {"cpu:0", "opencl:0", "opencl:1"}
    for seed in range(3):
        feeds = random_feeds(chain_model, seed)
        assert_same(exe.run(feeds), evaluate(chain_model, feeds))


@pytest.mark.parametrize(
    ("dtype", "missing"), [("double", "cl_khr_fp64"), ("float16", "cl_khr_fp16")]
)
def test_what_the_device_cannot_compute_is_refused(dtype, missing, parse_model, limited, backends):
    limited(has_fp64=False, has_fp16=False)
    model = parse_model(f"g ({dtype}[4] x) => ({dtype}[4] y) {{ [n] y = Neg(x) }}")
    exe = intarsia.compile(model, "opencl, llvm", backends=backends)
    (refusal,) = exe.placement.refusals
    assert (refusal.code, refusal.node) == ("unsupported-dtype", "n")
    assert missing in refusal.reason


def test_code_for_a_better_device_is_refused(parse_model, opencl, limited, backends, open_device):
    if not driver.list_devices(Settings.from_environment())[0].limits.has_fp64:
        pytest.skip("the device has no float64")
    model = parse_model("g (double[4] x) => (double[4] y) { y = Neg(x) }")
    (artifact,) = intarsia.compile(model, "opencl, llvm", backends=backends).artifacts
    limited(has_fp64=False)
    with pytest.raises(BackendError, match="needs cl_khr_fp64, which opencl:0") as caught:
        opencl.load(artifact, open_device())
    assert "compile the model again" in caught.value.hint


def test_groups_that_are_too_large_are_refused(program, opencl, limited, open_device):
    (artifact,) = program.artifacts
    payload = decode(artifact)
    kernel = payload.kernels[0]
    large = msgspec.structs.replace(kernel, local_size=[64, *kernel.local_size[1:]])
    sizes = [[64 * s[0], *s[1:]] for s in payload.global_sizes]
    changed = msgspec.structs.replace(
        payload, kernels=[large, *payload.kernels[1:]], global_sizes=sizes
    )
    limited(max_work_group=32)
    with pytest.raises(BackendError, match="needs groups of 64 work-items"):
        opencl.load(seal(artifact, changed), open_device())


def test_memory_and_arrays_that_the_device_lacks_are_refused(program, opencl, limited, open_device):
    (artifact,) = program.artifacts
    payload = decode(artifact)
    first, *others = payload.kernels
    wide = msgspec.structs.replace(first, shared_bytes=40 << 10)
    changed = seal(artifact, msgspec.structs.replace(payload, kernels=[wide, *others]))
    limited(local_bytes=32 << 10)
    with pytest.raises(BackendError, match="needs 40960 bytes of memory that a group shares, whi"):
        opencl.load(changed, open_device())
    count = len(first.item_bytes)
    limited(most_buffers=count - 1)
    with pytest.raises(BackendError, match=f"needs {count} arrays for a kernel, which opencl:0"):
        opencl.load(artifact, open_device())


def test_what_a_group_shares_is_noted(parse_model, backends, limited):
    model = parse_model("g (float[4,64] x) => (float[4,64] y) { y = Softmax(x) }")
    limited(work_group=64)
    (artifact,) = intarsia.compile(model, "opencl", backends=backends).artifacts
    (kernel,) = decode(artifact).kernels
    assert kernel.shared_bytes >= 4 * kernel.local_size[1] > 0


CHANGES = {
    "its digest is wrong": lambda payload: None,
    "its kernels": lambda payload: {"kernels": payload.kernels[:-1]},
    "its sizes": lambda payload: {"global_sizes": payload.global_sizes[:-1]},
    "a size": lambda payload: {"global_sizes": [[0, 0] for _ in payload.global_sizes]},
    "a storage": lambda payload: {"storages": [("input", 9, 4), *payload.storages[1:]]},
    "its scratch memory": lambda payload: {"scratch_bytes": -1},
    "an offset": lambda payload: {
        "calls": [
            msgspec.structs.replace(call, arguments=[(s, o + 1) for s, o in call.arguments])
            for call in payload.calls
        ]
    },
}


@pytest.mark.parametrize("problem", CHANGES)
def test_a_damaged_artifact_is_refused(problem, program, opencl, open_device):
    (artifact,) = program.artifacts
    payload = decode(artifact)
    changes = CHANGES[problem](payload)
    if changes is None:
        broken = replace(artifact, payload=artifact.payload[:-1] + b"?")
    else:
        broken = seal(artifact, msgspec.structs.replace(payload, **changes))
    with pytest.raises(PackageError, match=f"is damaged: {problem}"):
        opencl.load(broken, open_device())


def test_a_kernel_that_does_not_build_is_an_error_of_the_backend(program, opencl, open_device):
    from intarsia.backends.native import pack_text

    (artifact,) = program.artifacts
    payload = msgspec.structs.replace(decode(artifact), source=pack_text("__kernel void f( {"))
    with pytest.raises(BackendError, match="opencl:0 does not build the kernels") as caught:
        opencl.load(seal(artifact, payload), open_device())
    assert caught.value.backend == "opencl"
    assert "error" in caught.value.message


def test_memory_for_another_backend_is_refused(program, opencl, backends):
    from intarsia.backends.device import HostDevice

    with pytest.raises(BackendError, match="another backend's device"):
        opencl.load(program.artifacts[0], HostDevice())


def test_kernels_are_written_for_people(small_model, opencl, backends, tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_DUMP", str(tmp_path))
    intarsia.compile(small_model, "opencl, llvm", backends=backends)
    (folder,) = tmp_path.iterdir()
    texts = [path.read_text() for path in sorted(folder.glob("*.cl"))]
    assert texts
    assert all("__kernel void" in text and "FP_CONTRACT OFF" in text for text in texts)
    assert len(list(folder.glob("*.loop"))) == len(texts)


def build(cache, device):
    """Return what a program from the cache makes of 1, 2, 3."""
    import pyopencl

    program = cache.program_of(SOURCE, (), device, "1")
    kernel = pyopencl.Kernel(program, "twice")
    array = np.array([1, 2, 3], np.float32)
    block = device.allocate(array.nbytes)
    pyopencl.enqueue_copy(device.queue, block.memory, array)
    kernel.set_args(block.memory)
    pyopencl.enqueue_nd_range_kernel(device.queue, kernel, (3,), (1,))
    pyopencl.enqueue_copy(device.queue, array, block.memory)
    return array.tolist()


@pytest.fixture
def keeper(open_device):
    """A device whose driver keeps nothing by itself."""
    device = open_device()
    device.entry = replace(device.entry, keeps_builds=False)
    return device


def test_a_program_is_built_once(keeper, tmp_path):
    cache = BinaryCache(tmp_path)
    for misses in (1, 1):
        assert build(cache, keeper) == [2, 4, 6]
        assert cache.misses == misses
    assert len(list((tmp_path / KIND).iterdir())) == 1
    assert build(BinaryCache(tmp_path), keeper) == [2, 4, 6]


def test_another_driver_makes_another_entry(keeper, tmp_path):
    cache = BinaryCache(tmp_path)
    build(cache, keeper)
    keeper.entry = replace(keeper.entry, key=(*keeper.entry.key[:-1], "newer"))
    build(cache, keeper)
    assert (cache.hits, cache.misses) == (0, 2)


@pytest.mark.parametrize("harm", ["cut", "nonsense"])
def test_a_damaged_binary_is_built_anew(harm, keeper, tmp_path):
    cache = BinaryCache(tmp_path)
    build(cache, keeper)
    (entry,) = (tmp_path / KIND).iterdir()
    content = entry.read_bytes()
    if harm == "cut":
        entry.write_bytes(content[: len(content) // 2])
    else:  # sound as a file, and no binary
        nonsense = b"no binary"
        entry.write_bytes(hashlib.sha256(nonsense).digest() + nonsense)
    harmed = entry.read_bytes()
    assert build(cache, keeper) == [2, 4, 6]
    assert entry.read_bytes() != harmed
    again = BinaryCache(tmp_path)  # its bytes may differ: Intel's driver names each build anew
    assert build(again, keeper) == [2, 4, 6]
    assert (again.hits, again.misses) == (1, 0)


def test_a_driver_that_keeps_builds_is_left_to_it(open_device, tmp_path):
    device = open_device()
    device.entry = replace(device.entry, keeps_builds=True)
    assert build(BinaryCache(tmp_path), device) == [2, 4, 6]
    assert list(tmp_path.iterdir()) == []


def test_a_payload_says_what_it_is_made_for(program):
    payload = decode(program.artifacts[0])
    assert isinstance(payload, Payload)
    assert payload.device == driver.list_devices(Settings.from_environment())[0].name
    assert {"about", "scratch_bytes"} <= set(program.artifacts[0].metadata)


def test_the_report_counts_the_memory_that_is_taken(parse_model, opencl, backends, monkeypatch):
    import pyopencl

    taken = []

    class Buffer(pyopencl.Buffer):
        def __init__(self, context, flags, size):
            taken.append(size)
            super().__init__(context, flags, size)

    monkeypatch.setattr(pyopencl, "Buffer", Buffer)
    model = parse_model("""
        g (float[8,64] x, float[64,64] w) => (float[8,64] y)
        { a = MatMul(x, w) b = Softmax(a) c = MatMul(b, w) y = Tanh(c) }""")
    exe = intarsia.compile(model, "opencl, llvm", exclude=["opencl:Softmax"], backends=backends)
    loaded = sum(taken)
    del taken[:]
    exe.run({"x": np.ones((8, 64), np.float32), "w": np.ones((64, 64), np.float32)})
    (view,) = [view for view in exe.explain().devices if view.device == "opencl:0"]
    assert len(view.regions) == 2
    assert sum(taken) == view.tensor_bytes + view.scratch_bytes
    assert loaded == view.constant_bytes


def test_threads_share_a_program(program, small_model, random_feeds, evaluate, assert_same):
    draws = [random_feeds(small_model, seed) for seed in range(4)]
    wanted = [evaluate(small_model, feeds) for feeds in draws]

    def work(number):
        for _ in range(20):
            assert_same(program.run(draws[number]), wanted[number])

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(work, number) for number in range(4)]:
            job.result()


def test_a_bound_program_works_on_the_callers_arrays(program, small_model, evaluate, random_feeds):
    feeds = random_feeds(small_model)
    y = np.zeros((3, 4), np.float32)
    step = program.bind(feeds, {"y": y})
    for factor in (1, 2):
        feeds["x"] *= factor
        step()
        np.testing.assert_allclose(y, evaluate(small_model, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_a_run_waits_only_at_its_end(program, small_model, random_feeds, evaluate):
    """With the queue held, every copy and kernel is queued and nothing is done."""
    import pyopencl

    context = program.context()
    (view,) = context._queued
    feeds = random_feeds(small_model)
    context.write_inputs([feeds[spec.name] for spec in program.inputs])
    output = context._buffers[program.plan.outputs[0]]
    output[...] = 77
    gate = pyopencl.UserEvent(view.context)
    rescue = threading.Timer(300, gate.set_status, [pyopencl.command_execution_status.COMPLETE])
    pyopencl.enqueue_barrier(view.queue, wait_for=[gate])
    rescue.start()
    for step in context._steps:
        step()
    assert rescue.is_alive()  # no step waited for the queue
    assert (output == 77).all()
    rescue.cancel()
    gate.set_status(pyopencl.command_execution_status.COMPLETE)
    view.synchronize()
    np.testing.assert_allclose(output, evaluate(small_model, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_an_empty_value_between_kernels_needs_no_memory(opencl, parse_model, backends):
    model = parse_model("""
        g (float[0] x) => (float[1,0] y) <int64[1] a = {0}>
        { v = Exp(x) y = Unsqueeze(v, a) }""")
    program = intarsia.compile(model, "opencl", num_threads=1, backends=backends)
    assert program.run({"x": np.zeros(0, np.float32)})["y"].shape == (1, 0)
