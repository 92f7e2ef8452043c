# SPDX-License-Identifier: Apache-2.0
"""Device planning: what an annotation may say, what it binds, and the error where two contradict.

The rows of the contract that are about it are in tests/conformance/rows/placement.py.
"""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.fake import FakeBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Rule
from intarsia.errors import PlacementError, TargetError, UnsupportedError
from intarsia.target import DeviceType, TargetKind, register_tag

GPU, GPU1, CPU = "ext_dev:0/fake", "ext_dev:1/fake", "cpu:0"
LABELS = {
    "cpu": {"kind": "reference"},
    "gpu1": {"kind": "fake"},
    "gpu2": {"inherits": "gpu1", "device_id": 1},
}
MACHINE = {"targets": ["gpu1", "gpu2", "cpu"], "labels": LABELS}


class Npu(FakeBackend):
    """Says that it takes everything, values that cannot be copied too."""

    name = "npu"
    kinds = (TargetKind("test-npu", DeviceType.EXT_DEV),)

    def rules(self, context):
        return (Rule("all", lambda graph, context: {}),)


def devices_of(exe):
    return {node.name: r.device for r in exe.placement.regions for node in r.nodes}


def targets_of(exe):
    return {node.name: r.target for r in exe.placement.regions for node in r.nodes}


def copies_of(exe):
    return [(row.tensor, row.source, row.destination) for row in exe.explain().copies]


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("gpu2", GPU1),  # a label
        ("fake:1", GPU1),  # a kind with an ordinal
        ("fake -device_id=1", GPU1),  # a target's text
        ("ext_dev:1", GPU1),  # a device
        ("ext_dev", GPU),
        ("gpu1", GPU),
        ("cpu", CPU),
        ("cpu:0", CPU),
        ("reference", CPU),
    ],
)
def test_a_device_is_said_in_many_words(text, device, chain_model, backends):
    annotated = intarsia.on_device(chain_model, {"second": text})
    exe = intarsia.compile(annotated, MACHINE, backends=backends)
    assert devices_of(exe)["second"] == device
    pinned = intarsia.compile(chain_model, MACHINE, pins={"second": text}, backends=backends)
    assert devices_of(pinned)["second"] == device


def test_a_device_that_is_not_there_is_an_error(chain_model, backends):
    with pytest.raises(TargetError, match="'gpu:1' means none of the targets") as caught:
        intarsia.compile(chain_model, MACHINE, pins={"second": "gpu:1"}, backends=backends)
    assert "gpu1" in caught.value.hint


def test_a_device_without_a_number_is_the_first_that_is_there(chain_model, backends):
    machine = "fake:2 -ops=Relu, fake:1, reference"
    exe = intarsia.compile(chain_model, machine, pins={"second": "ext_dev"}, backends=backends)
    assert devices_of(exe)["second"] == GPU1
    with pytest.raises(TargetError, match="'ext_dev:0' means none of the targets"):
        intarsia.compile(chain_model, machine, pins={"second": "ext_dev:0"}, backends=backends)


def test_a_tag_is_a_device(chain_model, backends):
    register_tag("test/board", {"kind": "fake", "ops": ["Relu", "Tanh"]}, override=True)
    exe = intarsia.compile(
        chain_model,
        "fake:1, test/board, reference",
        pins={"second": "test/board", "fourth": "test/board"},
        backends=backends,
    )
    assert devices_of(exe)["second"] == devices_of(exe)["fourth"] == GPU
    assert devices_of(exe)["fifth"] == GPU1


def test_a_device_leaves_the_choice_among_its_targets(chain_model, backends):
    machine = "fake, onnxruntime, reference"
    exe = intarsia.compile(chain_model, machine, pins={"second": "cpu"}, backends=backends)
    assert targets_of(exe)["second"] == "onnxruntime"
    other = intarsia.compile(
        chain_model,
        machine,
        pins={"second": "cpu"},
        exclude=["onnxruntime:Relu"],
        backends=backends,
    )
    assert targets_of(other)["second"] == "reference"
    with pytest.raises(PlacementError, match=r"exclude 'cpu:Relu' contradicts pin 'second=cpu'"):
        intarsia.compile(
            chain_model, machine, pins={"second": "cpu"}, exclude=["cpu:Relu"], backends=backends
        )


def test_a_target_narrows_a_device(chain_model, backends):
    machine = "fake, onnxruntime, reference"
    annotated = intarsia.on_device(chain_model, {"second": "cpu"})
    exe = intarsia.compile(annotated, machine, pins={"second": "reference"}, backends=backends)
    assert targets_of(exe)["second"] == "reference"
    annotated = intarsia.on_device(chain_model, {"second": "reference"})
    exe = intarsia.compile(annotated, machine, pins={"*": "cpu"}, backends=backends)
    assert targets_of(exe)["second"] == "reference"
    assert set(devices_of(exe).values()) == {CPU}
    with pytest.raises(PlacementError, match=r"pin 'second=fake' contradicts .*'reference'"):
        intarsia.compile(annotated, machine, pins={"second": "fake"}, backends=backends)


def test_a_device_none_of_whose_targets_takes_the_node(chain_model, backends):
    with pytest.raises(PlacementError, match="'second=ext_dev:0' cannot be followed") as caught:
        intarsia.compile(
            chain_model, "fake -ops=Add, reference", pins={"second": "ext_dev:0"}, backends=backends
        )
    assert (caught.value.node, caught.value.target) == ("second", "fake -ops=Add")


def test_two_gpus_and_a_host(parse_model, random_feeds, evaluate, assert_same, backends):
    model = parse_model("""
        g (float[4] a, float[4] b, float[4] c, float[4] d) => (float[4] z) {
            [left] x = Add(a, b) [right] y = Add(c, d) [sum] z = Add(x, y)
        }""")
    annotated = intarsia.on_device(model, {"left": "gpu1", "right": "gpu2"})
    borders = [("a", CPU, GPU), ("b", CPU, GPU), ("c", CPU, GPU1), ("d", CPU, GPU1)]
    expected = {
        "greedy": [("y", GPU1, GPU), ("z", GPU, CPU)],  # the first target has the rest
        "manual": [("x", GPU, CPU), ("y", GPU1, CPU)],  # the fallback has it
    }
    feeds = random_feeds(model)
    for policy, inner in expected.items():
        exe = intarsia.compile(annotated, MACHINE, placement=policy, backends=backends)
        assert sorted(copies_of(exe)) == sorted(borders + inner)
        assert {row.nbytes for row in exe.explain().copies} == {16}
        assert_same(exe.run(feeds), evaluate(model, feeds))


def test_a_kind_may_have_a_memory_of_its_own(parse_model, backends, random_feeds, evaluate):
    class Accelerator(FakeBackend):
        name = "accelerator"
        kinds = (
            TargetKind(
                "test-accelerator",
                DeviceType.CPU,
                is_complete=False,
                refines=["onnxruntime"],
                memory_scope="sram",
            ),
        )

        def rules(self, context):
            return (Rule("all", lambda graph, context: {}),)

    model = parse_model("g (float[4] x) => (float[4] y) { [a] p = Relu(x) [b] y = Exp(p) }")
    known = collect([*backends.by_name.values(), Accelerator()])
    exe = intarsia.compile(
        model, "test-accelerator, onnxruntime", pins={"b": "cpu"}, backends=known
    )
    own = "cpu:0/sram"
    assert devices_of(exe) == {"a": own, "b": CPU}
    assert copies_of(exe) == [("x", CPU, own), ("p", own, CPU)]
    feeds = random_feeds(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-6)


SEQUENCE = """g (float[4] x, float[4] y) => (float[8] z) {
    [make] s = SequenceConstruct(x, y)
    [more] t = SequenceInsert(s, x)
    [join] u = ConcatFromSequence<axis = 0>(t)
    [end] z = Exp(u) }"""


def test_contradicting_annotations_are_one_error_with_both_and_the_path(parse_model, backends):
    known = collect([*backends.by_name.values(), Npu()])
    model = intarsia.on_device(parse_model(SEQUENCE), {"make": "test-npu", "join": "reference"})
    with pytest.raises(PlacementError) as caught:
        intarsia.compile(model, "test-npu, reference", backends=known)
    assert caught.value.message == (
        "annotation 'test-npu' (node 'make') contradicts annotation 'reference' (node 'join'): "
        "they have to share a memory, because what lies between cannot be copied: "
        "make -> 's' -> more -> 't' -> join"
    )
    assert caught.value.hint == "put both on one device, or remove one of the two"


def test_an_annotation_contradicts_what_only_the_host_has(parse_model, backends):
    known = collect([*backends.by_name.values(), Npu()])
    model = parse_model(
        "g (string[2] x) => (bool[2] y) { [a] p = Identity(x) [b] y = Equal(p, x) }"
    )
    with pytest.raises(PlacementError, match=r"pin 'b=test-npu' \(node 'b'\) contradicts the host"):
        intarsia.compile(model, "test-npu, reference", pins={"b": "test-npu"}, backends=known)


def test_one_annotation_holds_for_what_shares_its_memory(parse_model, random_feeds, backends):
    known = collect([*backends.by_name.values(), Npu()])
    model = parse_model(SEQUENCE.replace("float[8]", "float[12]"))
    exe = intarsia.compile(
        intarsia.on_device(model, {"more": "cpu"}), "test-npu, onnxruntime", backends=known
    )
    assert set(devices_of(exe).values()) == {CPU}
    whys = {node.name: node.why for r in exe.placement.regions for node in r.nodes}
    assert whys == {
        "make": "annotation of 'more'",
        "more": "annotation",
        "join": "annotation of 'more'",
        "end": "annotation of 'more'",
    }
    feeds = random_feeds(model)
    expected = np.exp(np.concatenate([feeds["x"], feeds["y"], feeds["x"]]))
    np.testing.assert_allclose(exe.run(feeds)["z"], expected, rtol=1e-6)


def test_what_cannot_be_copied_goes_where_all_of_it_is_taken(parse_model, random_feeds, backends):
    known = collect([*backends.by_name.values(), Npu()])
    model = parse_model(SEQUENCE.replace("float[8]", "float[12]"))
    exe = intarsia.compile(
        model, "test-npu, onnxruntime", exclude=["test-npu:SequenceInsert"], backends=known
    )
    assert set(devices_of(exe).values()) == {CPU}
    feeds = random_feeds(model)
    expected = np.exp(np.concatenate([feeds["x"], feeds["y"], feeds["x"]]))
    np.testing.assert_allclose(exe.run(feeds)["z"], expected, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="no device takes all 4 nodes around 's'"):
        intarsia.compile(
            model,
            "test-npu, onnxruntime",
            exclude=["test-npu:SequenceInsert", "onnxruntime:SequenceConstruct"],
            backends=known,
        )


def test_a_long_chain_of_what_cannot_be_copied_needs_no_recursion(backends):
    length = 2000
    nodes = [
        onnx.helper.make_node("Neg" if i else "NonZero", [f"v{i}"], [f"v{i + 1}"], f"n{i}")
        for i in range(length)
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [onnx.helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, [4])],
        [onnx.helper.make_tensor_value_info(f"v{length}", onnx.TensorProto.INT64, None)],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9
    )
    known = collect([*backends.by_name.values(), Npu()])
    ends = {"n0": "reference", f"n{length - 1}": "test-npu"}
    with pytest.raises(PlacementError) as caught:
        intarsia.compile(intarsia.on_device(model, ends), "test-npu, reference", backends=known)
    assert caught.value.message.endswith(
        "n0 -> 'v1' -> n1 -> 'v2' -> n2 -> ... 3989 more ... -> "
        "n1997 -> 'v1998' -> n1998 -> 'v1999' -> n1999"
    )


PLAN = """
import sys, intarsia, msgspec, onnx
devices = {"n1": "fake:1", "n5": "cpu", "n9": "fake:0", "n7": "cpu -> fake:1"}
model = intarsia.on_device(onnx.parser.parse_model(sys.argv[1]), devices)
exe = intarsia.compile(model, "fake:0, fake:1, onnxruntime, reference", host="reference")
sys.stdout.buffer.write(msgspec.json.encode(exe.plan))
"""


@pytest.mark.exhaustive
def test_plans_are_the_same_under_other_hash_seeds():
    lines = [f"[n{i}] v{i} = Add(v{i - 1}, v{i - 3})" for i in range(3, 12) if i != 7]
    lines = ["[n0] v0 = Neg(x) [n1] v1 = Add(v0, x) [n2] v2 = Add(v1, x)", *lines]
    lines.insert(5, "[n7] v7 = Identity(v6)")
    text = (
        '<ir_version: 9, opset_import: ["" : 20]>\n'
        f"g (float[4] x) => (float[4] v11, float[4] v4) {{ {' '.join(lines)} }}"
    )
    plans = set()
    for seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PLAN, text],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=600,
        )
        plans.add(done.stdout)
    (plan,) = plans
    assert plan.count(b"nbytes") >= 5
