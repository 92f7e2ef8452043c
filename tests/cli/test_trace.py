# SPDX-License-Identifier: Apache-2.0
"""`intarsia run --trace`: the file is in the Trace Event Format, and tells what ran when.

Source:
    "Trace Event Format" (Google, 2016): which members events of the kinds `X` and `M` have.
"""

import json
from typing import Annotated, Literal

import msgspec
import numpy as np
import onnx
import pytest

from intarsia import zoo
from intarsia.backends.onnxruntime_tracing import node_name
from intarsia.backends.tracing import cover_nodes

Number = Annotated[float, msgspec.Meta(ge=0)]
Id = Annotated[int, msgspec.Meta(ge=0)]


class Complete(msgspec.Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    cat: str
    ts: Number
    dur: Number
    pid: Id
    tid: Id
    args: dict[str, str | int | float | list[str]]


class MetadataFacts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str = ""
    sort_index: int = 0


class Metadata(msgspec.Struct, tag_field="ph", tag="M", forbid_unknown_fields=True):
    name: Literal["process_name", "thread_name", "thread_sort_index"]
    pid: Id
    tid: Id
    args: MetadataFacts


class Trace(msgspec.Struct, forbid_unknown_fields=True):
    traceEvents: list[Complete | Metadata]  # noqa: N815 - the format's name
    displayTimeUnit: Literal["ms", "ns"]  # noqa: N815 - likewise
    otherData: dict[str, str]  # noqa: N815 - likewise


class Tracks:
    """A trace, read strictly: its events by category, and the names of its tracks."""

    def __init__(self, path):
        trace = msgspec.json.decode(path.read_bytes(), type=Trace)
        events = trace.traceEvents
        self.events = [event for event in events if isinstance(event, Complete)]
        named = [one for one in events if isinstance(one, Metadata) and one.name == "thread_name"]
        self.names = {(one.pid, one.tid): one.args.name for one in named}
        assert {(one.pid, one.tid) for one in self.events} == self.names.keys()

    def of(self, category):
        return [event for event in self.events if event.cat == category]

    def track(self, event):
        return self.names[event.pid, event.tid]

    def check_nesting(self):
        """Of two events of a track, one is inside of the other, or they are apart."""
        for place in self.names:
            ends = []
            own = [one for one in self.events if (one.pid, one.tid) == place]
            for event in sorted(own, key=lambda one: (one.ts, -one.dur)):
                while ends and ends[-1] <= event.ts + 1e-2:  # figures are rounded to 1 ns
                    ends.pop()
                assert not ends or event.ts + event.dur <= ends[-1] + 1e-2
                ends.append(event.ts + event.dur)


def inside(inner, outer):
    return outer.ts - 1e-2 <= inner.ts and inner.ts + inner.dur <= outer.ts + outer.dur + 1e-2


@pytest.fixture
def network(folder):
    """A small convolutional network in the current folder."""
    onnx.save(zoo.build("random:1"), folder / "net.onnx")
    return "net.onnx"


def test_native_kernels_and_their_threads_are_in_a_trace(call, folder, network):
    traced = ("--trace", "t.json", "--repeat", "2", "--threads", "2")
    answer = call("run", network, "-t", "llvm", *traced)
    assert answer.code == 0
    assert "wrote t.json" in answer.out
    trace = Tracks(folder / "t.json")
    trace.check_nesting()
    runs, regions = trace.of("run"), trace.of("region")
    assert [run.name for run in runs] == ["run 1", "run 2"]
    assert all(inside(region, run) for region, run in zip(regions, runs, strict=True))
    kernels, chunks = trace.of("kernel"), trace.of("chunk")
    assert len(kernels) % 2 == 0  # the same in each run
    half = len(kernels) // 2
    assert [one.name for one in kernels[:half]] == [one.name for one in kernels[half:]]
    assert all(inside(kernel, regions[0]) for kernel in kernels[:half])
    assert sum(kernel.args["chunks"] for kernel in kernels) == len(chunks)
    # Each kernel is the whole of its chunks: none is lost, and none is of another.
    for kernel in kernels:
        parts = [one for one in chunks if one.name == kernel.name and inside(one, kernel)]
        assert len(parts) == kernel.args["chunks"]
        assert min(part.ts for part in parts) == pytest.approx(kernel.ts, abs=1e-2)
    nodes = onnx.load(folder / network).graph.node
    convolutions = {node.name for node in nodes if node.op_type == "Conv"}
    named = {name for kernel in kernels for name in kernel.args.get("ONNX nodes", ())}
    assert convolutions <= named <= {node.name for node in nodes}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_runtime_tells_of_its_operators_by_the_names_of_the_model(call, folder, network, target):
    chosen = target if target == "onnxruntime" else f"{target}, onnxruntime"
    answer = call("run", network, "-t", chosen, "--trace", "t.json", "--json", "--threads", "1")
    assert answer.code == 0
    assert answer.json["trace"] == "t.json"
    trace = Tracks(folder / "t.json")
    trace.check_nesting()
    (region,) = trace.of("region")
    kernels = trace.of("kernel")
    assert {trace.track(one) for one in (region, *kernels)} == {target}
    assert all(inside(kernel, region) for kernel in kernels)
    nodes = onnx.load(folder / network).graph.node
    convolutions = {node.name for node in nodes if node.op_type == "Conv"}
    named = [name for kernel in kernels for name in kernel.args.get("ONNX nodes", ())]
    assert convolutions <= set(named)
    assert len(named) == len(set(named))  # a node is in one operator


def test_copies_and_regions_without_kernels_are_in_a_trace(call, folder, model):
    answer = call("run", model, "-t", "fake -ops=Relu, onnxruntime", "--trace", "t.json")
    assert answer.code == 0
    trace = Tracks(folder / "t.json")
    copies = trace.of("copy")
    assert copies
    assert all(copy.args["bytes"] == 32 and copy.args["from"] for copy in copies)
    assert {trace.track(copy) for copy in copies} == {"copies"}
    assert {trace.track(one) for one in trace.of("region")} == {"fake -ops=Relu", "onnxruntime"}


LOOP = """loop (int64 m, float[64] x) => (float[64] y) <bool yes = {1}> {
    [exp] h = Exp(x)
    [loop] y = Loop(m, yes, h) <body = b (int64 i, bool on, float[64] v) =>
        (bool go, float[64] u) { [go] go = Identity(on) [tanh] u = Tanh(v) }> }"""


def test_each_iteration_of_a_body_is_in_a_trace(call, folder, parse_model):
    onnx.save(parse_model(LOOP), folder / "loop.onnx")
    np.save("m.npy", np.array(3))
    np.save("x.npy", np.linspace(0, 1, 64, dtype=np.float32))
    inputs = ("--input", "m=m.npy", "--input", "x=x.npy")
    answer = call("run", "loop.onnx", "-t", "llvm, onnxruntime", *inputs, "--trace", "t.json")
    assert answer.code == 0
    trace = Tracks(folder / "t.json")
    bodies = trace.of("body")
    assert len(bodies) == 3
    tanh = [one for one in trace.of("kernel") if "tanh" in str(one.args.get("ONNX nodes"))]
    assert len(tanh) == 3
    assert all(inside(one, body) for one, body in zip(tanh, bodies, strict=True))


def test_free_sizes_are_traced_as_they_come(call, folder, free_model):
    answer = call("run", free_model, "-t", "llvm", "--sizes", "N=5", "--trace", "t.json")
    assert answer.code == 0
    (region,) = Tracks(folder / "t.json").of("region")
    assert region.args["backend"] == "llvm"


def test_what_cannot_be_traced_is_an_error(call, folder, model, free_model):
    answer = call("run", model, "-t", "reference", "--verify", "--trace", "t.json")
    assert answer.code == 2
    assert "--trace" in answer.err
    bucket = ("--bucket", "N=4", "--sizes", "N=3")
    answer = call("run", free_model, "-t", "reference", *bucket, "--trace", "t.json")
    assert answer.code == 2
    assert "--bucket" in answer.err
    answer = call("run", model, "-t", "reference", "--trace", "missing/t.json")
    assert answer.code == 2
    assert "no folder" in answer.err
    assert not (folder / "t.json").exists()


def test_an_event_that_is_none_is_seen(folder):
    """The schema of this file refuses what the format does not have."""
    event = {"name": "a", "cat": "b", "ph": "X", "ts": 0, "dur": -1, "pid": 1, "tid": 1, "args": {}}
    for change in ({}, {"dur": 1, "ph": "Q"}, {"dur": 1, "time": 3}):
        trace = {"traceEvents": [event | change], "displayTimeUnit": "ms", "otherData": {}}
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(trace).encode(), type=Trace)


def test_what_a_runtime_fuses_belongs_to_the_node_that_it_names():
    nodes = [
        ("conv", ("x",), ("a",)),
        ("relu", ("a",), ("b",)),
        ("pool", ("b",), ("c",)),
        ("view", ("c",), ("d",)),
    ]
    groups = cover_nodes(nodes, ["relu", "pool"])
    assert groups == {"relu": ("conv", "relu"), "pool": ("pool", "view")}
    both = [("a", ("x",), ("p",)), ("b", ("p",), ("q",)), ("c", ("p",), ("r",))]
    assert cover_nodes(both, ["b", "c"]) == {"b": ("b",), "c": ("c",)}  # whose is a?


def test_names_that_onnx_runtime_makes_lead_to_nodes():
    known = frozenset(("block/relu", "head/MatMul"))
    assert node_name("block/relu_nchwc_kernel_time", known) == "block/relu"
    assert node_name("fused block/relu_kernel_time", known) == "block/relu"
    assert node_name("head/MatMul/MatmulAddFusion_kernel_time", known) == "head/MatMul"
    assert node_name("ReorderOutput_token_3_kernel_time", known) == ""
