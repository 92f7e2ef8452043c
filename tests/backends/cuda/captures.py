# SPDX-License-Identifier: Apache-2.0
"""Programs whose steps on a GPU are one graph of the driver's, on the stand-ins (`worker.py`)."""

import ctypes
import gc
import logging
from unittest import mock

import numpy as np
import onnx
import onnx.reference
import pytest
from tests.backends.cuda import cublas_stand_in

import intarsia
from intarsia.backends.cuda.cublas import backend as cublas
from intarsia.backends.cuda.cublas import execution, library
from intarsia.plan.plan import CopyStep
from intarsia.runtime.captures import capturing_devices

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[6,16] x) => (float[6,4] y, float[6,5] s) {
    a = MatMul(x, u)
    b = Relu(a)
    s = Softmax(b)
    y = MatMul(s, v)
}"""


def make_model():
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(5)
    for name, shape in (("u", (16, 5)), ("v", (5, 4))):
        weight = rng.uniform(-1, 1, shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    for node in made.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return made


class Counts:
    """What the driver was asked for since the last look."""

    def __init__(self, stand_in):
        self.stand_in = stand_in
        self.last = {}

    def __call__(self, *names):
        now = {name: self.stand_in.stand_in_count(name.encode()) for name in names}
        found = tuple(now[name] - self.last.get(name, 0) for name in names)
        self.last |= now
        return found


def check_run(run, model, seed):
    x = np.random.default_rng(seed).standard_normal((6, 16)).astype(np.float32)
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    found = run({"x": x})
    for name, value in zip(("y", "s"), wanted, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def compiled(model, **options):
    targets = "cublas, cuda, llvm"
    return intarsia.compile(
        model, targets, num_threads=1, cache=False, placement="greedy", **options
    )


LAUNCHES = ("launches", "graph launches", "copies in", "copies out")


def one_launch(stand_in):
    """Regions of two backends and the copies at the border: one launch, and the same numbers."""
    model, counts = make_model(), Counts(stand_in)
    exe = compiled(model)
    assert {region.backend for region in exe.placement.regions} == {"cublas", "cuda"}
    steps = len(exe.plan.steps)
    assert steps == 6, exe.explain()
    (line,) = exe.explain().captures
    device = exe.plan.devices[1]
    assert line == f"steps 0 to {steps - 1} on {device}: one call from the second run"
    counts(*LAUNCHES)
    check_run(exe.run, model, 0)
    launches, *rest = counts(*LAUNCHES)
    assert launches > 0
    assert rest == [0, 1, 2]
    for seed in (1, 2, 3):
        check_run(exe.run, model, seed)
        assert counts(*LAUNCHES) == (0, 1, 1, 2)
    return exe, model


def other_addresses(stand_in, exe, model):
    """A binding to other memory takes over the graph that an older one has left."""
    counts = Counts(stand_in)
    gc.collect()
    made = ("instantiated", "updated", "graphs", "pinned")
    counts(*made)
    for number, wanted in enumerate([(1, 0), (0, 1), (0, 1)]):
        x = np.zeros((6, 16), np.float32)
        outputs = {"y": np.empty((6, 4), np.float32), "s": np.empty((6, 5), np.float32)}
        step = exe.bind({"x": x}, outputs)

        def run(feeds, x=x, outputs=outputs, step=step):
            x[:] = feeds["x"]
            step()
            return outputs

        for seed in range(3):
            check_run(run, model, 10 * number + seed)
        assert counts("instantiated", "updated") == wanted, number
        del step, run
        gc.collect()
    # What was left is kept for the next one; pinned memory of a graph's is not.
    assert counts("graphs", "pinned") == (1, 0)


def host_between(stand_in):
    """A step of the host's splits what is captured."""
    model, counts = make_model(), Counts(stand_in)
    exe = compiled(model, pins={"Softmax_s": "llvm"})
    copies = sum(isinstance(step, CopyStep) for step in exe.plan.steps)
    assert len(exe.explain().captures) == 2, exe.explain()
    for seed in (1, 2, 3):
        counts(*LAUNCHES)
        check_run(exe.run, model, seed)
    launches = counts(*LAUNCHES)
    assert launches[:2] == (0, 2)
    assert launches[2] + launches[3] == copies


def failing(stand_in):
    """What cannot be captured runs one by one, and says why."""
    model, counts = make_model(), Counts(stand_in)
    exe = compiled(model)
    stand_in.stand_in_failing_captures(1)
    counts(*LAUNCHES)
    with mock.patch.object(logging.getLogger("intarsia.runtime.captures"), "warning") as said:
        for seed in (1, 2, 3):
            check_run(exe.run, model, seed)
    assert said.call_count == 1
    assert counts(*LAUNCHES)[1] == 0
    (line,) = exe.explain().captures
    reason = "cuda:0 cannot capture what is queued: cuStreamEndCapture: CUDA_ERROR"
    assert f"one by one: {reason}" in line
    assert reason in str(exe.explain())


def failing_step(stand_in):
    """What was captured before a step failed is given back."""
    exe = compiled(make_model())
    context = exe.context()
    (view,) = capturing_devices(context._devices).values()
    before = stand_in.stand_in_count(b"graphs")

    def step():
        raise ValueError("a step failed")

    with pytest.raises(ValueError, match="a step failed"):
        view.capture(step)
    assert stand_in.stand_in_count(b"graphs") == before
    view.synchronize()


def check(stand_in):
    """Run all of these."""
    lt = cublas_stand_in.StandIn()
    stand_in.stand_in_failing_captures.argtypes = [ctypes.c_int]
    given = library.CublasLt(lt)
    with (
        mock.patch.object(cublas, "library", return_value=given),
        mock.patch.object(execution, "library", return_value=given),
    ):
        exe, model = one_launch(stand_in)
        other_addresses(stand_in, exe, model)
        host_between(stand_in)
        failing(stand_in)
        failing_step(stand_in)
        del exe
        gc.collect()
    left = {what: stand_in.stand_in_count(what.encode()) for what in ("device", "graphs")}
    assert left == {"device": 0, "graphs": 0}, left
