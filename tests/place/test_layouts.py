# SPDX-License-Identifier: Apache-2.0
"""Layouts between regions: who shares one, the same numbers, and the same after a round trip."""

from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.backends.dnnl.library import driver
from intarsia.backends.registry import collect
from intarsia.backends.values import Candidate
from intarsia.errors import BackendError, LockError
from intarsia.graph.region import Region
from intarsia.graph.state import BLOCKS, PLAIN, TensorState, blocked_shape
from intarsia.place.assign import Policy
from intarsia.place.build import build_program
from intarsia.place.decide import PlanChoice, cut_regions, decide_as_chosen
from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.schedule import AssignedRegion, choose_layouts, list_layouts, make_draft
from intarsia.place.setting import Capability, make_setting
from intarsia.plan.devices import HOST_DOMAIN
from intarsia.plan.lock import decode_lock, lock_plan
from intarsia.plan.plan import PlanTensor, TensorStorage
from intarsia.plan.tuning import TuningReport
from intarsia.runtime.package import read_package
from intarsia.runtime.verify import verify_plan
from intarsia.settings import Settings
from intarsia.target import CompilationConfig

OTHER_DOMAIN = (12, 0, "far")
CHAIN = """case (float[1,32,4,4] x) => (float[1,32,4,4] y)
    { a = Relu(x) b = Tanh(a) c = Abs(a) d = Add(b, c) y = Neg(d) }"""


class Stub:
    """A backend that lists given layouts for all of its border, or fails."""

    name = "stub"

    def __init__(self, *layouts, runtime="", failure=None):
        self.layouts, self.runtime, self.failure = layouts, runtime, failure
        self.asked = 0

    def states(self, candidate, context):
        del context
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [
            tuple(
                tuple(replace(state, layout=layout, runtime=self.runtime) for state in side)
                for side in (candidate.inputs, candidate.outputs)
            )
            for layout in self.layouts
        ]


class Silent:
    """A backend without any wishes."""

    name = "silent"
    states = None


@pytest.fixture(scope="module")
def setting_of(backends):
    """A function from a model and a machine to a `Setting`."""

    def make(model, target):
        config = CompilationConfig.resolve(target)
        return make_setting(Request(model=model, num_threads=1), Machine(config, backends))

    return make


@pytest.fixture
def choose(parse_model, setting_of):
    """A function from a backend per node of a chain to the layouts by name."""

    def make(*served, domains=None, text=CHAIN):
        setting = setting_of(parse_model(text), "onnxruntime")
        graph = setting.graph
        (given,) = setting.capabilities
        sides = []
        for node, backend in enumerate(served):
            capability = Capability(given.target, backend, given.context)
            domain = domains[node] if domains else HOST_DOMAIN
            sides.append(AssignedRegion(Region.of(graph, [node]), capability, domain))
        found = choose_layouts(sides)
        return {graph.values[value].name: layout for value, layout in found.items()}

    return make


def test_what_all_sides_list_is_shared_but_for_the_models_own_ends(choose):
    stub = Stub("nchw16c")
    assert choose(stub, stub, stub, stub, stub) == dict.fromkeys("abcd", "nchw16c")
    assert stub.asked <= 5  # once for each region; those alike share an answer


def test_one_reader_without_wishes_keeps_a_value_plain(choose):
    stub = Stub("nchw16c")
    assert choose(stub, stub, Silent(), stub, stub) == {"b": "nchw16c", "d": "nchw16c"}
    assert choose(Silent(), stub, stub, stub, stub) == dict.fromkeys("bcd", "nchw16c")


def test_the_makers_first_wish_that_all_readers_share_is_taken(choose):
    both, other = Stub("nchw16c", "nchw8c"), Stub("nchw8c", "nchw16c")
    assert choose(both, other, other, other, other)["a"] == "nchw16c"
    assert choose(other, both, both, both, both)["a"] == "nchw8c"
    eight = Stub("nchw8c")
    assert choose(both, eight, both, both, both) == {
        "a": "nchw8c",
        "b": "nchw8c",
        "c": "nchw16c",
        "d": "nchw16c",
    }
    assert "a" not in choose(Stub("nchw16c"), eight, eight, eight, eight)


def test_another_memory_keeps_a_value_plain(choose):
    stub = Stub("nchw16c")
    domains = [HOST_DOMAIN, HOST_DOMAIN, OTHER_DOMAIN, HOST_DOMAIN, HOST_DOMAIN]
    assert choose(*[stub] * 5, domains=domains) == {"b": "nchw16c", "d": "nchw16c"}
    assert choose(*[stub] * 5, domains=[OTHER_DOMAIN] * 5) == dict.fromkeys("abcd", "nchw16c")


@pytest.mark.parametrize("channels", [20, 24, 32])
def test_channels_have_to_fill_the_blocks(choose, channels):
    text = CHAIN.replace("1,32", f"1,{channels}")
    found = choose(*[Stub("nchw16c", "nchw8c")] * 5, text=text)
    layout = {20: None, 24: "nchw8c", 32: "nchw16c"}[channels]
    assert found == ({} if layout is None else dict.fromkeys("abcd", layout))


def test_layouts_of_a_runtimes_own_or_without_a_name_are_not_shared(choose):
    assert choose(*[Stub("nchw16c", runtime="stub")] * 5) == {}
    assert choose(*[Stub("hwcn")] * 5) == {}
    assert choose(*[Stub(PLAIN)] * 5) == {}
    assert choose(*[Stub()] * 5) == {}


@pytest.mark.parametrize("failure", [BackendError("no"), ValueError("no")])
def test_a_backend_that_fails_here_gets_its_tensors_plain_and_is_told_of_once(
    choose, caplog, failure
):
    bad, stub = Stub(failure=failure), Stub("nchw16c")
    assert choose(stub, bad, bad, stub, stub) == {"d": "nchw16c"}
    (record,) = caplog.records
    assert "borders of onnxruntime are plain" in record.message


class Nonsense(Stub):
    """Lists what is not a border."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def states(self, candidate, context):
        return self.make(candidate)


def in_blocks(states):
    return tuple(replace(state, layout="nchw16c") for state in states)


@pytest.mark.parametrize(
    "make",
    [
        lambda c: None,
        lambda c: ["nchw16c"],
        lambda c: [(("nchw16c",), ("nchw16c",))],
        lambda c: [(in_blocks(c.inputs),)],
        lambda c: [((), in_blocks((*c.inputs, *c.outputs)))],  # as many, but not where they are
        lambda c: [(in_blocks(c.inputs) * 2, in_blocks(c.outputs))],
        lambda c: [tuple((replace(side[0], layout=[]),) for side in (c.inputs, c.outputs))],
    ],
    ids=("nothing", "text", "layouts", "one side", "moved", "too many", "unhashable"),
)
def test_nonsense_gets_plain_tensors_and_a_warning(choose, caplog, make):
    bad, stub = Nonsense(make), Stub("nchw16c")
    assert choose(stub, bad, bad, stub, stub) == {"d": "nchw16c"}
    (record,) = caplog.records
    assert "borders of onnxruntime are plain" in record.message


def test_an_empty_tensor_is_in_no_blocks(choose):
    assert choose(*[Stub("nchw16c", "nchw8c")] * 5, text=CHAIN.replace("1,32", "0,32")) == {}
    assert choose(*[Stub("nchw16c", "nchw8c")] * 5, text=CHAIN.replace("1,32", "1,0")) == {}


def test_what_readers_outside_may_need_is_plain(parse_model, setting_of):
    setting = setting_of(parse_model(CHAIN), "onnxruntime")
    (given,) = setting.capabilities
    capability = Capability(given.target, Stub("nchw16c"), given.context)
    pair = [
        AssignedRegion(Region.of(setting.graph, [node]), capability, HOST_DOMAIN) for node in (0, 1)
    ]
    assert choose_layouts(pair) == {}  # `a` is read by a third


def network(draw_seed, blocks=4):
    """Return a small convolutional network, drawn from a seed."""
    rng = np.random.default_rng(draw_seed)
    node = onnx.helper.make_node
    nodes, constants = [], []

    def weight(*shape):
        array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        constants.append(
            onnx.numpy_helper.from_array(array.astype(np.float32), f"w{len(constants)}")
        )
        return constants[-1].name

    values = [("x", 16)]
    for i in range(blocks):
        name, channels = values[rng.integers(len(values))] if i else values[0]
        kind = rng.integers(6)
        same = [other for other, size in values if size == channels and other != name]
        if kind < 3 or not i:
            made, kernel = int(rng.choice([16, 20, 32, 32])), int(rng.choice([1, 3]))
            inputs = [name, weight(made, channels, kernel, kernel)]
            nodes.append(node("Conv", inputs, [f"v{i}c"], f"conv{i}", pads=[kernel // 2] * 4))
            nodes.append(node("Relu", [f"v{i}c"], [f"v{i}"], f"relu{i}"))
        elif kind == 3 and same:
            made = channels
            nodes.append(node("Add", [name, same[0]], [f"v{i}"], f"add{i}"))
        elif kind == 4:
            other, more = values[rng.integers(len(values))]
            made = channels + more
            nodes.append(node("Concat", [name, other], [f"v{i}"], f"join{i}", axis=1))
        else:
            made = channels
            attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
            nodes.append(node("MaxPool", [name], [f"v{i}"], f"pool{i}", **attributes))
        values.append((f"v{i}", made))
    read = {name for one in nodes for name in one.input}
    info = onnx.helper.make_tensor_value_info
    batch = int(rng.integers(1, 3))
    outputs = [
        info(name, onnx.TensorProto.FLOAT, [batch, size, 6, 5])
        for name, size in values
        if name not in read
    ]
    inputs = [info("x", onnx.TensorProto.FLOAT, [batch, 16, 6, 5])]
    graph = onnx.helper.make_graph(nodes, "network", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def report(calls):
    """Return a tuner's report that says nothing."""
    return TuningReport(
        *((), (), "", 1, "latency", (), "drawn", len(calls) > 1, "", None, None, None, 0.0)
    )


@pytest.fixture(scope="session")
def library():
    """OneDNN, or a skip that says what is missing."""
    try:
        return driver(Settings.from_environment())
    except BackendError as error:
        pytest.skip(error.message)


MIXED = "dnnl, llvm, dnnl -num-cores=1, onnxruntime"
LIKELY = (6, 6, 3, 1)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), blocks=st.integers(2, 6))
def test_any_mix_computes_the_same_and_agrees_on_layouts(
    library, setting_of, tmp_path_factory, seed, blocks
):
    import onnxruntime as ort

    del library
    model = network(seed, blocks)
    setting = setting_of(model, MIXED)
    graph = setting.graph
    rng = np.random.default_rng(seed)
    choices = []
    for node in graph.nodes:
        may = [i for i, c in enumerate(setting.capabilities) if node.id not in c.refusals]
        weights = np.array([LIKELY[i] for i in may])
        choices.append(int(rng.choice(may, p=weights / weights.sum())))
    calls = tuple((at, tuple(nodes)) for at, nodes in cut_regions(graph, choices))
    executable = build_program(setting, PlanChoice(Policy.COLLAGE, calls, report(calls)))
    plan = executable.plan
    draft = make_draft(setting, decide_as_chosen(setting, calls))
    for value, layout in draft.layouts.items():
        assert plan.layouts[graph.values[value].name] == layout
        ends = [
            assigned
            for assigned in draft.regions
            if value in (*assigned.region.inputs, *assigned.region.outputs)
        ]
        assert len(ends) > 1
        for end in ends:
            assert layout in list_layouts(end.region, end.capability)[value]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    wanted = session.run(None, feeds)
    path = tmp_path_factory.mktemp("layouts") / "m.intarsia"
    executable.save(path)
    loaded = intarsia.load(path, num_threads=1)
    assert loaded.plan.layouts == plan.layouts
    verify_plan(plan, executable.artifacts, executable.constants)
    for one in (executable, loaded):
        for array, other in zip(one.run(feeds).values(), wanted, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5)


PINNED = """case (float[1,32,8,8] x) => (float[1,32,8,8] y)
    <float[32,32,3,3] w, float[32,32,1,1] v> {
    [one] a = Conv<pads=[1,1,1,1]>(x, w) [two] b = Relu(a) [three] c = Conv(b, v)
    [four] d = Add(c, b) [five] e = Conv<pads=[1,1,1,1]>(d, w) [six] y = Sigmoid(e) }"""


@pytest.fixture(scope="module")
def alternating(library, parse_model):
    """A model whose convolutions take turns between two backends, and its program."""
    del library
    model = parse_model(PINNED.replace("<float[32,32,3,3] w, float[32,32,1,1] v>", _weights()))
    pins = {"three": "dnnl", "four": "dnnl"}
    return model, intarsia.compile(model, "llvm, dnnl", pins=pins, num_threads=1)


def _weights():
    rng = np.random.default_rng(3)

    def numbers(count):
        return ",".join(f"{value:.3f}" for value in rng.standard_normal(count) / 12)

    return (
        f"<float[32,32,3,3] w = {{{numbers(32 * 32 * 9)}}}, "
        f"float[32,32,1,1] v = {{{numbers(32 * 32)}}}>"
    )


def test_regions_by_pins_share_blocks_and_everybody_says_so(alternating, library, tmp_path):
    import onnxruntime as ort

    model, executable = alternating
    layout = f"nchw{library.block}c"
    plan = executable.plan
    assert plan.layouts == {"b": layout, "d": layout}
    assert [region.backend for region in plan.placement.regions] == ["llvm", "dnnl", "llvm"]
    between = [tensor for tensor in plan.tensors if tensor.storage is TensorStorage.ARENA]
    size = BLOCKS[layout]
    assert {tensor.shape for tensor in between} == {blocked_shape((1, 32, 8, 8), size)}
    assert f" {layout} arena" in str(plan)
    explanation = executable.explain()
    assert explanation.layouts == plan.layouts
    assert f"{layout}: 2 tensors between regions: b, d" in str(explanation)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 32, 8, 8)).astype(np.float32)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    np.testing.assert_allclose(executable.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
    path = tmp_path / "m.intarsia"
    executable.save(path)
    assert read_package(path).plan.layouts == plan.layouts


def test_a_lock_says_the_layouts_and_notices_others(alternating, tmp_path):
    model, executable = alternating
    pins = {"three": "dnnl", "four": "dnnl"}
    file = tmp_path / "plan.lock.json"
    lock = lock_plan(executable.plan)
    assert lock.layouts == executable.plan.layouts
    file.write_text(str(lock))
    again = intarsia.compile(model, "llvm, dnnl", pins=pins, num_threads=1, frozen=file)
    assert again.plan.layouts == executable.plan.layouts
    file.write_text(str(msgspec.structs.replace(lock, layouts={})))
    with pytest.raises(LockError, match="'b' was plain when the plan was locked"):
        intarsia.compile(model, "llvm, dnnl", pins=pins, num_threads=1, frozen=file)
    older = msgspec.json.decode(str(lock))
    del older["layouts"]
    assert decode_lock(msgspec.json.encode(older), "older").layouts is None


class Boastful:
    """Native code that lists blocks, and compiles plain borders whatever it is asked for."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def with_settings(self, settings):
        return Boastful(self.backend.with_settings(settings))

    def states(self, candidate, context):
        return self.backend.states(candidate, context)

    def compile(self, candidate, context):
        plain = Candidate.plain(candidate.region, candidate.target)
        return self.backend.compile(plain, context)


def test_a_backend_that_compiles_another_border_than_it_lists_loses_the_region(
    alternating, backends
):
    model, executable = alternating
    known = [one for one in backends.by_name.values() if one.name not in ("llvm", "dnnl")]
    false = Boastful(backends.named("llvm").value)
    mixed = collect([*known, backends.named("dnnl"), false])
    pins = {"three": "dnnl", "four": "dnnl"}
    target = "llvm, dnnl, onnxruntime"
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 32, 8, 8)).astype(np.float32)}
    exe = intarsia.compile(model, target, pins=pins, num_threads=1, backends=mixed)
    np.testing.assert_allclose(
        exe.run(feeds)["y"], executable.run(feeds)["y"], rtol=1e-4, atol=1e-5
    )
    refused = {refusal.node: refusal.reason for refusal in exe.placement.refusals}
    assert "llvm lists a border of" in refused["one"]
    with pytest.raises(BackendError, match="lists a border of"):
        intarsia.compile(model, target, pins=pins, num_threads=1, backends=mixed, strict=True)


def test_a_plan_of_before_has_plain_tensors(alternating):
    _, executable = alternating
    tensor = executable.plan.tensors[0]
    older = msgspec.to_builtins(tensor)
    del older["layout"]
    assert msgspec.convert(older, PlanTensor) == tensor


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "nchw9c"},
        {"layout": "nchw8c", "shape": (1, 32, 8, 8)},
        {"layout": "nchw16c", "shape": (1, 4, 8, 8, 8)},
        {"layout": "nchw8c", "shape": (1, 4, 8, 8, 8), "storage": TensorStorage.OUTPUT},
    ],
)
def test_a_layout_that_cannot_be_is_refused(alternating, change):
    _, executable = alternating
    plan = executable.plan
    position = next(i for i, one in enumerate(plan.tensors) if one.storage is TensorStorage.ARENA)
    tensors = list(plan.tensors)
    tensors[position] = replace(tensors[position], **change)
    with pytest.raises(ValueError, match="cannot be in the layout"):
        verify_plan(
            replace(plan, tensors=tuple(tensors)), executable.artifacts, executable.constants
        )


def test_states_differ_in_their_layout_alone():
    state = TensorState(HOST_DOMAIN, "nchw8c", "float32")
    assert replace(state, layout=PLAIN) == TensorState(HOST_DOMAIN, PLAIN, "float32")
