# SPDX-License-Identifier: Apache-2.0
"""An accelerator, a GPU and a host as one target: as much as possible to the first, what it cannot
take to the second, the rest to the host, and a user's own annotations throughout.

The accelerator is a plug-in's backend: a partial kind with a memory of its own, which the host and
the GPU cannot read. The GPU is OpenCL, whatever device of it there is.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.opencl import first_device

import intarsia
from intarsia import zoo
from intarsia.backends.fake import FakeBackend, FakeDevice
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection, Rule
from intarsia.errors import PlacementError
from intarsia.place.machine import make_contexts
from intarsia.target import CompilationConfig, DeviceType, Target, TargetKind

NPU, GPU, GPU1, CPU = "opencl:0/npu", "opencl:0", "opencl:1", "cpu:0"
COMPOSITE = {
    "kind": "composite",
    "target_host": "llvm",
    "devices": [{"kind": "fake-npu"}, {"kind": "opencl"}],
}
POLICIES = ("auto", "greedy", "manual")
"""Placement by measured cost has a test of its own: it measures in processes, which know installed
backends only."""


class NpuExecutable:
    """A region in ONNX Runtime, over tensors in the accelerator's memory."""

    scratch_bytes = 0

    def __init__(self, artifact, device):
        self.device = device
        self.session = onnxruntime.InferenceSession(artifact.payload)
        self.constants = {constant.name: constant.data for constant in artifact.constants}
        self.inputs = [spec.name for spec in artifact.inputs]
        self.outputs = [spec.name for spec in artifact.outputs]

    def bind(self, inputs, outputs, scratch):
        def step():
            feeds = dict(self.constants)
            for name, tensor in zip(self.inputs, inputs, strict=True):
                feeds[name] = self.device.fetch(tensor)
            results = self.session.run(self.outputs, feeds)
            for tensor, result in zip(outputs, results, strict=True):
                self.device.write(result, tensor)

        return step


class Npu(FakeBackend):
    """Takes convolutions and Relu; beside a GPU, with a memory of its own."""

    name = "fake-npu"
    kinds = (
        TargetKind(
            "fake-npu",
            DeviceType.OPENCL,
            is_complete=False,
            refines=("opencl", "llvm"),
            memory_scope="npu",
        ),
    )

    is_default = False

    def detect(self):
        return Detection((Target("fake-npu"),))

    def rules(self, context):
        return (Rule("table", only("Conv", "Relu")),)

    def load(self, artifact, device):
        assert isinstance(device, FakeDevice)
        return NpuExecutable(artifact, device)


def only(*operators):
    """Return what refuses every node with another operator."""
    from intarsia.backends.artifact import refuse
    from intarsia.errors import ReasonCode

    def refuse_others(graph, context):
        return {
            node.id: refuse(node, context, ReasonCode.UNSUPPORTED_OP, "not in the table")
            for node in graph.nodes
            if node.op_type not in operators
        }

    return refuse_others


@pytest.fixture(scope="module", autouse=True)
def twice():
    """Lists the first OpenCL device twice, as if there were two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_OPENCL_DEVICES", "0,0")
        yield


@pytest.fixture(scope="module")
def machine(backends):
    """The installed backends and the accelerator's."""
    first_device()
    return collect([*backends.by_name.values(), Npu()])


def run_in_onnxruntime(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_numbers(exe, model, rtol=1e-3, atol=1e-4):
    rng = np.random.default_rng(5)
    feeds = {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in exe.inputs}
    expected = run_in_onnxruntime(model, feeds)
    for _ in range(2):  # the second run meets what the first left
        found = exe.run(feeds)
        assert list(found) == list(expected)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol)


def devices_of(exe):
    return {node.name: r.device for r in exe.placement.regions for node in r.nodes}


def copies_of(exe):
    return [(row.tensor, row.source, row.destination) for row in exe.explain().copies]


def check_copies(exe):
    """Check every copy: between two memories, once for each, with its bytes in the report."""
    report = exe.explain()
    tensors = {tensor.name: tensor.spec.nbytes for tensor in exe.plan.tensors}
    assert len({(row.tensor, row.destination) for row in report.copies}) == len(report.copies)
    for row in report.copies:
        assert row.source != row.destination
        assert row.nbytes == tensors[row.tensor] > 0
        text = f"{row.tensor}: {row.source} -> {row.destination}, {row.nbytes} B"
        assert text in str(report)


# a: an accelerator, a GPU and a host


@pytest.fixture(scope="module")
def resnet50():
    return zoo.build("resnet50")


@pytest.fixture(scope="module")
def composite_plan(resnet50, machine):
    """ResNet-50 on the composite, with nothing said of any node."""
    return intarsia.compile(resnet50, with_host(COMPOSITE), backends=machine, exclude=NOT_THERE)


NOT_THERE = {"opencl": ["Gemm", "Softmax"]}
"""So that something is left for the host: OpenCL would take all of ResNet-50."""


def with_host(spec):
    """Return a composite under the new name of the host."""
    return {("host" if key == "target_host" else key): value for key, value in spec.items()}


@pytest.mark.exhaustive
def test_resnet50_on_an_accelerator_a_gpu_and_a_host(resnet50, composite_plan):
    exe = composite_plan
    assert [target.split()[0] for target in exe.placement.targets] == ["fake-npu", "opencl", "llvm"]
    coverage = {target.split()[0]: count for target, count in exe.placement.coverage().items()}
    operators = {"fake-npu": set(), "opencl": set(), "llvm": set()}
    for region in exe.placement.regions:
        operators[region.target.split()[0]] |= {node.op_type for node in region.nodes}
    assert operators["fake-npu"] == {"Conv", "Relu"}
    assert operators["llvm"] == {"Gemm", "Softmax"}
    assert not operators["opencl"] & {"Conv", "Relu", "Gemm", "Softmax"}
    assert coverage["fake-npu"] >= 100
    assert coverage["opencl"] >= 16
    assert coverage["llvm"] == 2
    assert exe.plan.devices == (CPU, NPU, GPU)
    check_copies(exe)
    check_numbers(exe, resnet50)
    text = str(exe.explain())
    for target in exe.placement.targets:
        assert f"on {target}" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["list", "old name"])
def test_other_forms_of_the_composite_give_the_same_plan(resnet50, composite_plan, machine, form):
    if form == "list":
        target = "fake-npu, opencl, llvm"
        exe = intarsia.compile(resnet50, target, backends=machine, exclude=NOT_THERE)
    else:
        with pytest.warns(FutureWarning, match="target_host"):
            exe = intarsia.compile(resnet50, COMPOSITE, backends=machine, exclude=NOT_THERE)
    assert exe.plan == composite_plan.plan


@pytest.mark.exhaustive
def test_resnet50_annotated_in_part(resnet50, machine):
    names = [node.name for node in resnet50.graph.node]
    operators = {node.name: node.op_type for node in resnet50.graph.node}
    convolutions = [name for name in names if operators[name] == "Conv"]
    (last,) = [name for name in names if operators[name] == "Softmax"]
    said = {convolutions[0]: "llvm", convolutions[20]: "opencl:0", convolutions[21]: "opencl:0"}
    said[last] = "cpu"
    annotated = intarsia.on_device(resnet50, said)
    exe = intarsia.compile(annotated, with_host(COMPOSITE), backends=machine)
    homes = {
        origin: region.device
        for region in exe.placement.regions
        for node in region.nodes
        for origin in node.origins
    }
    assert homes[convolutions[0]] == CPU
    assert homes[convolutions[20]] == homes[convolutions[21]] == GPU
    assert homes[last] == CPU
    others = {homes[name] for name in convolutions if name not in said}
    assert others == {NPU}  # what is said of one node keeps no other from the accelerator
    check_copies(exe)
    check_numbers(exe, resnet50)


# b: two GPUs

ADDS = """
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[8] a, float[8] b, float[8] c, float[8] d) => (float[8] z) {
        [left] x = Add(a, b) [right] y = Add(c, d) [sum] z = Add(x, y)
    }"""


@pytest.mark.parametrize(
    ("one", "two"),
    [("gpu1", "gpu2"), ("opencl", "opencl:1"), ("gpu:0", "gpu:1"), ("gpu", "opencl -device_id=1")],
)
def test_two_gpus_give_the_copies_that_annotations_imply(machine, one, two):
    model = onnx.parser.parse_model(ADDS)
    labels = {
        "cpu": {"kind": "llvm"},
        "gpu1": {"kind": "opencl"},
        "gpu2": {"inherits": "gpu1", "device_id": 1},
    }
    target = {"targets": ["gpu1", "gpu2", "cpu"], "labels": labels}
    annotated = intarsia.on_device(model, {"left": one, "right": two})
    inputs = {("a", CPU, GPU), ("b", CPU, GPU), ("c", CPU, GPU1), ("d", CPU, GPU1)}
    for policy, rest in (
        ("greedy", {("y", GPU1, GPU), ("z", GPU, CPU)}),
        ("manual", {("x", GPU, CPU), ("y", GPU1, CPU)}),
    ):
        exe = intarsia.compile(annotated, target, placement=policy, backends=machine)
        assert set(copies_of(exe)) == inputs | rest
        assert len(exe.plan.copies) == 6
        check_copies(exe)
        check_numbers(exe, model)


# c: a partial kind on the GPU

NETWORK = """
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[1,2,8,8] x) => (float[1,4,8,8] y)
    <float[4,2,3,3] v, float[4,4,3,3] w> {
        [conv1] a = Conv<pads = [1, 1, 1, 1]>(x, v)
        [neg] b = Neg(a)
        [conv2] c = Conv<pads = [1, 1, 1, 1]>(b, w)
        [add] d = Add(c, a)
        [exp] y = Tanh(d)
    }"""


@pytest.fixture(scope="module")
def network():
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in (("v", (4, 2, 3, 3)), ("w", (4, 4, 3, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.fixture(scope="module")
def with_library(machine):
    """The machine with a library of convolutions for OpenCL, by a plug-in."""
    opencl = type(machine.named("opencl").value)

    class Library(opencl):
        name = "test-clnn"
        kinds = (
            TargetKind("test-clnn", DeviceType.OPENCL, is_complete=False, refines=("opencl",)),
        )

        def detect(self):
            return Detection((Target("test-clnn"),))

        def rules(self, context):
            return (Rule("convolutions", only("Conv")),)

        def open(self, placed, options):
            raise AssertionError("the backend of the kind opencl opens its devices")

    return collect([*machine.by_name.values(), Library()])


def test_a_partial_kind_and_its_base_share_tensors(network, with_library, tmp_path):
    exe = intarsia.compile(network, "test-clnn, opencl, llvm", backends=with_library)
    targets = {node.name: r.target for r in exe.placement.regions for node in r.nodes}
    assert {name for name, target in targets.items() if target == "test-clnn"} == {"conv1", "conv2"}
    assert {name for name, target in targets.items() if target == "opencl"} == {"neg", "add", "exp"}
    assert len(exe.placement.regions) >= 4
    assert copies_of(exe) == [("x", CPU, GPU), ("y", GPU, CPU)]
    check_numbers(exe, network)
    exe.save(tmp_path / "shared.intarsia")
    check_numbers(intarsia.load(tmp_path / "shared.intarsia", backends=with_library), network)


# d: a contradiction


def test_a_contradiction_is_one_error_with_both_sides_and_the_path(machine):
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[4] x, float[4] y) => (float[8] z) {
            [pack] s = SequenceConstruct(x, y) [grow] t = SequenceInsert(s, x)
            [join] u = ConcatFromSequence<axis = 0>(t) [end] z = Exp(u)
        }""")
    annotated = intarsia.on_device(model, {"pack": "opencl", "join": "cpu"})
    with pytest.raises(PlacementError) as caught:
        intarsia.compile(annotated, with_host(COMPOSITE), backends=machine)
    message = caught.value.message
    assert "annotation 'opencl' (node 'pack') contradicts annotation 'cpu' (node 'join')" in message
    assert message.endswith("pack -> 's' -> grow -> 't' -> join")
    assert caught.value.hint == "put both on one device, or remove one of the two"


# e: however it is placed


@pytest.mark.parametrize("pins", [{}, {"conv2": "llvm", "add": "opencl"}, {"*": "cpu"}])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_a_valid_plan(network, machine, policy, pins):
    exe = intarsia.compile(
        network, with_host(COMPOSITE), placement=policy, pins=pins, backends=machine
    )
    devices = devices_of(exe)
    wanted = {"llvm": CPU, "opencl": GPU, "cpu": CPU}
    for name, device in devices.items():
        said = pins.get(name, pins.get("*"))
        assert said is None or device == wanted[said]
    if not pins and policy != "manual":
        assert devices["conv1"] == devices["conv2"] == NPU
        assert devices["neg"] == GPU
    if policy == "manual":
        assert all(device == CPU for name, device in devices.items() if name not in pins)
    check_copies(exe)
    check_numbers(exe, network)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pins", [{}, {"conv1": "fake", "conv2": "llvm", "add": "opencl"}])
def test_measured_placement_gives_a_valid_plan(network, pins, tmp_path):
    exe = intarsia.tune(
        network,
        "fake -ops=Conv,Relu, opencl, llvm",
        budget=600,
        pins=pins,
        num_threads=1,
        costs=str(tmp_path / "costs.sqlite"),
    )
    devices = devices_of(exe)
    wanted = {"llvm": CPU, "opencl": GPU, "fake": "ext_dev:0/fake"}
    assert {name: devices[name] for name in pins} == {n: wanted[text] for n, text in pins.items()}
    tried = {plan.name for plan in exe.explain().tuning.finalists}
    assert pins or {"fake alone", "opencl alone", "llvm alone"} <= tried
    check_copies(exe)
    check_numbers(exe, network)


def test_the_memories_of_the_composite(machine):
    config = CompilationConfig.resolve(with_host(COMPOSITE))
    first, second, third = make_contexts(config, 1).values()
    assert str(first.refined) == str(second.refined) == "opencl"
    places = [config.device_of(item).short_text for item in config.targets]
    assert places == ["opencl:0/npu", "opencl:0", "cpu:0"]
    assert third.refined == config.host
