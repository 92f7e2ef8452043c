# SPDX-License-Identifier: Apache-2.0
"""Programs: where scratch memory lies, what calls point to, and that runs are independent."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import Buffer
from intarsia.codegen.lower.program import StorageKind

PADDED = "<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>"
NETWORK = (
    f"a = Conv{PADDED}(x, w) b = Relu(a) c = Conv{PADDED}(b, w) d = Add(c, b)"
    f" e = Concat<axis = 1>(d, b) f = Conv(e, v) y = Add(f, x)"
)
WEIGHTS = {"w": (32, 32, 3, 3), "v": (32, 64, 1, 1)}


def spans(program):
    """Yield, for each scratch storage in use, first and last call, and its bytes."""
    for number, storage in enumerate(program.storages):
        if storage.kind is not StorageKind.SCRATCH:
            continue
        uses = [
            place
            for place, call in enumerate(program.calls)
            if any(argument.storage == number for argument in call.arguments)
        ]
        if uses:
            yield min(uses), max(uses), storage.index, storage.index + storage.nbytes


def stays_inside(program, call) -> bool:
    """Tell by running it: copies of channels that end in a block do not read all they span.

    The interpreter raises an error where a kernel leaves its memory. What computes needs no such
    leave: it is told by its spans.
    """
    kernel = program.kernels[call.kernel]
    rests = [
        (program.storages[argument.storage].nbytes - argument.offset) // buffer.item_bytes
        for argument, buffer in zip(call.arguments, kernel.buffers, strict=True)
    ]
    pairs = zip(rests, kernel.buffers, strict=True)
    interpret(kernel, [np.zeros(rest, buffer.dtype) for rest, buffer in pairs])
    return call.flop == 0


def reach(buffer: Buffer) -> int:
    """Return the bytes that a kernel may touch from a buffer's address on."""
    steps = zip(buffer.shape, buffer.strides, strict=True)
    return (1 + sum((extent - 1) * stride for extent, stride in steps)) * buffer.item_bytes


BACKWARDS = small_model(
    "c",
    "a = Conv(x, w) b = Slice(a, last, first, axis, step) c = Conv(b, v)",
    {"x": (1, 3, 2, 1)},
    {"w": (20, 3, 1, 1), "v": (16, 20, 1, 1)}
    | {"last": np.array([-1]), "first": np.array([-99]), "axis": np.array([1])}
    | {"step": np.array([-1])},
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(max_nodes=12))
@example(BACKWARDS)
def test_memory_is_sound(lower_model, model):
    program, _ = lower_model(model)
    taken = list(spans(program))
    for place, (first, last, begin, end) in enumerate(taken):
        assert 0 <= begin <= end <= program.scratch_bytes
        assert begin % 64 == 0
        for other_first, other_last, other_begin, other_end in taken[place + 1 :]:
            if first <= other_last and other_first <= last:
                assert end <= other_begin or other_end <= begin, "two live storages overlap"
    arrays = list(program.constants.values())
    written = set()
    for call in program.calls:
        for argument, buffer in zip(
            call.arguments, program.kernels[call.kernel].buffers, strict=True
        ):
            storage = program.storages[argument.storage]
            assert argument.offset >= 0
            is_inside = argument.offset + reach(buffer) <= storage.nbytes
            assert is_inside or stays_inside(program, call), "a kernel leaves its storage"
            if storage.kind is StorageKind.CONSTANT:
                assert storage.nbytes == arrays[storage.index].nbytes
            if buffer.is_written:
                kinds = (StorageKind.SCRATCH, StorageKind.OUTPUT, StorageKind.FAULT)
                assert storage.kind in kinds
                written.add(argument.storage)
            elif storage.kind is StorageKind.SCRATCH:
                assert argument.storage in written, "scratch is read before it is written"


def test_a_program_says_what_it_does(lower_model):
    program, _ = lower_model(small_model("y", NETWORK, weights=WEIGHTS))
    lines = str(program).splitlines()
    assert len(lines) == 1 + len(program.calls)
    assert f"{len(program.calls)} calls of {len(program.kernels)} kernels" in lines[0]
    assert str(program.scratch_bytes) in lines[0]
    assert any("n2 + n3" in line for line in lines)
    assert any("# plain to blocked by 16 x" in line for line in lines)


def test_equal_kernels_are_built_once(lower_model):
    body = " ".join(f"a{i + 1} = Conv{PADDED}(a{i}, w)" for i in range(6))
    model = small_model("a6", body, {"a0": (1, 32, 5, 5)}, {"w": (32, 32, 3, 3)})
    program, _ = lower_model(model)
    convolutions = {call.kernel for call in program.calls if call.nodes}
    assert len(convolutions) <= 3  # first, inner and last differ in their borders only
    assert len(program.constants) == 1  # one packed weight


def compiled(backends):
    model = small_model("y", NETWORK, weights=WEIGHTS)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    return model, exe


def test_nothing_is_left_from_run_to_run(backends):
    model, exe = compiled(backends)
    first, second = feeds_of(model, 1), feeds_of(model, 2)
    fresh = compiled(backends)[1].run(second)["y"]
    for poison in (np.nan, np.inf, -np.inf):
        exe.run(first)
        exe.run({"x": np.full_like(first["x"], poison)})
        np.testing.assert_array_equal(exe.run(second)["y"], fresh)


def test_many_threads_share_an_executable(backends):
    model, exe = compiled(backends)
    feeds = [feeds_of(model, seed) for seed in range(8)]
    wanted = [exe.run(feed)["y"] for feed in feeds]
    start = threading.Barrier(len(feeds))

    def work(number):
        start.wait()
        for _ in range(50):
            np.testing.assert_array_equal(exe.run(feeds[number])["y"], wanted[number])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(feeds)) as pool:
            list(pool.map(work, range(len(feeds))))
    finally:
        sys.setswitchinterval(interval)


def test_contexts_are_independent(backends):
    model, exe = compiled(backends)
    one, two = feeds_of(model, 1)["x"], feeds_of(model, 2)["x"]
    contexts = [exe.context(), exe.context()]
    for context, x in zip(contexts, (one, two), strict=True):
        context.write_inputs([x])
    for context in contexts:
        context.run()
    for context, x in zip(contexts, (one, two), strict=True):
        np.testing.assert_array_equal(context.read_outputs()["y"], exe(x))


def test_scratch_is_reported(backends):
    _, exe = compiled(backends)
    (artifact,) = exe.artifacts
    backend = backends.named("llvm")
    device = backend.open(None, None)
    assert backend.load(artifact, device).scratch_bytes > 32 * 25 * 4
