# SPDX-License-Identifier: Apache-2.0
"""Random graphs, annotated in part in random words: exactly the copies that the devices imply."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import intarsia
from intarsia.errors import PlacementError
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare
from intarsia.place.annotations import resolve_copies
from intarsia.plan import TensorStorage
from intarsia.target import CompilationConfig

LABELS = {
    "cpu": {"kind": "reference"},
    "gpu1": {"kind": "fake"},
    "gpu2": {"inherits": "gpu1", "device_id": 1},
}
WORDS = {
    "cpu:0": ("cpu", "reference", "cpu:0"),
    "ext_dev:0/fake": ("gpu1", "fake", "fake:0", "ext_dev:0"),
    "ext_dev:1/fake": ("gpu2", "fake:1", "ext_dev:1", "fake -device_id=1"),
}
MEANING = {word: device for device, words in WORDS.items() for word in words}
UNARY = ("Neg", "Abs", "Tanh", "Relu")
BINARY = ("Add", "Sub", "Mul")


@dataclass
class Case:
    """A model, what is said of its nodes, and the machine.

    Attributes:
        model: All its values are f32[6] or pieces of it.
        devices: By node name, the words for its device, or for the two sides of a copy.
        targets: In order.
        policy: What becomes of the others.
    """

    model: onnx.ModelProto
    devices: dict[str, str]
    targets: list[str]
    policy: str

    def copies(self):
        """Return, by the name of each explicit copy, the memories where it starts and ends."""
        pairs = {name: text.split(" -> ") for name, text in self.devices.items() if "->" in text}
        return {name: (MEANING[start], MEANING[end]) for name, (start, end) in pairs.items()}

    def said(self):
        """Return, by node name, the memories that annotations and copies ask for; two contradict.

        A copy counts with where it starts.
        """
        copies = self.copies()
        makers = {value: node.name for node in self.model.graph.node for value in node.output}
        found = {}
        for node in self.model.graph.node:
            here = found[node.name] = set()
            if node.name in copies:
                here.add(copies[node.name][0])
            elif node.name in self.devices:
                here.add(MEANING[self.devices[node.name]])
            for maker in (makers[value] for value in reads(node) if value in makers):
                if maker in copies:
                    here.add(copies[maker][1])
                elif node.name in copies:
                    found[maker].add(copies[node.name][0])
        return found


@st.composite
def cases(draw):
    values = {f"x{i}": 6 for i in range(draw(st.integers(1, 3)))}
    inputs = list(values)
    nodes, devices = [], {}
    words = st.sampled_from(sorted(WORDS)).flatmap(lambda device: st.sampled_from(WORDS[device]))
    for i in range(draw(st.integers(1, 14))):
        name, made = f"n{i}", [f"v{i}"]
        source = draw(st.sampled_from(list(values)))
        shape = values[source]
        what = draw(st.integers(0, 9))
        if what == 0 and shape == 6:
            made = [f"v{i}", f"w{i}", f"u{i}"]
            node = helper.make_node("Split", [source], made, name, num_outputs=3)
            shape = 2
        elif what < 3:
            node = helper.make_node("Identity", [source], made, name)
            if draw(st.booleans()):
                devices[name] = f"{draw(words)} -> {draw(words)}"
        elif what == 3:
            captured = draw(st.sampled_from([v for v, size in values.items() if size == shape]))
            node = branch(name, source, captured, made[0], shape)
        elif what < 7:
            other = draw(st.sampled_from([v for v, size in values.items() if size == shape]))
            node = helper.make_node(draw(st.sampled_from(BINARY)), [source, other], made, name)
        else:
            node = helper.make_node(draw(st.sampled_from(UNARY)), [source], made, name)
        nodes.append(node)
        values |= dict.fromkeys(made, shape)
        if name not in devices and draw(st.integers(0, 3)) == 0:
            devices[name] = draw(words)
    outputs = draw(
        st.lists(
            st.sampled_from([v for v in values if v not in inputs]),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    graph = helper.make_graph(
        nodes,
        "random",
        [tensor(name, values[name]) for name in inputs] + [condition()],
        [tensor(name, values[name]) for name in outputs],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    targets = draw(st.permutations(["gpu1", "gpu2", "cpu"]))
    return Case(model, devices, targets, draw(st.sampled_from(["greedy", "manual"])))


def reads(node):
    """Return what a node reads, its bodies included."""
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return dict.fromkeys([*node.input, *(v for b in bodies for n in b.node for v in n.input)])


def tensor(name, size):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])


def condition():
    return helper.make_tensor_value_info("condition", TensorProto.BOOL, [])


def branch(name, one, other, result, size):
    """Return an If whose bodies read values from outside."""
    bodies = [
        helper.make_graph(
            [helper.make_node(op, [one, other], [f"{result}_{op}"])],
            f"{name}_{op}",
            [],
            [tensor(f"{result}_{op}", size)],
        )
        for op in ("Add", "Sub")
    ]
    return helper.make_node(
        "If", ["condition"], [result], name, then_branch=bodies[0], else_branch=bodies[1]
    )


@pytest.mark.exhaustive
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(case=cases())
def test_copies_are_those_that_devices_imply(case, backends):
    annotated = intarsia.on_device(case.model, case.devices)
    machine = {"targets": case.targets, "labels": LABELS}
    options = {"host": "reference", "backends": backends}
    if any(len(said) > 1 for said in case.said().values()):
        with pytest.raises(PlacementError, match="contradicts"):
            intarsia.compile(annotated, machine, placement=case.policy, **options)
        return
    exe = intarsia.compile(annotated, machine, placement=case.policy, **options)
    check_annotations(case, exe)
    check_copies(case, exe, annotated)
    check_numbers(case.model, exe)
    check_again(case, exe, machine, backends)


def check_annotations(case, exe):
    """What was said holds; for the rest, the first target has it, or the fallback."""
    machine = {"targets": case.targets, "labels": LABELS}
    config = CompilationConfig.resolve(machine, host="reference")
    rest = config.targets[0] if case.policy == "greedy" else config.fallback
    asked = case.said() | {name: {end} for name, (_, end) in case.copies().items()}
    for region in exe.placement.regions:
        for node in region.nodes:
            said = set().union(*(asked[name] for name in node.origins))
            assert region.device == (said.pop() if said else MEANING[str(rest)])
            assert not said


def check_copies(case, exe, annotated):
    """A value goes from where it is made to each other memory where it is read, once."""
    machine = {"targets": case.targets, "labels": LABELS}
    loaded = load(annotated)
    resolve_copies(loaded, CompilationConfig.resolve(machine, host="reference"))
    graph = prepare(loaded).graph
    home = {node.name: r.device for r in exe.placement.regions for node in r.nodes}
    expected = set()
    for value in graph.values:
        if value.constant is None:
            made = "cpu:0" if value.producer < 0 else home[graph.nodes[value.producer].name]
            read = {home[graph.nodes[consumer].name] for consumer in value.consumers}
            read |= {"cpu:0"} if value.id in graph.outputs else set()
            expected |= {(value.name, made, device, value.nbytes) for device in read - {made}}
    copies = [(r.tensor, r.source, r.destination, r.nbytes) for r in exe.explain().copies]
    assert len(copies) == len(set(copies))
    assert set(copies) == expected


def check_numbers(model, exe):
    session = onnx.reference.ReferenceEvaluator(model)
    names = [output.name for output in model.graph.output]
    for seed in range(2):
        rng = np.random.default_rng(seed)
        feeds = {
            spec.name: np.array(seed == 0)
            if spec.dtype == "bool"
            else rng.uniform(-1, 1, spec.shape).astype(np.float32)
            for spec in exe.inputs
        }
        full = {"condition": np.array(seed == 0)} | feeds
        found = exe.run(feeds)
        for name, array in zip(names, session.run(names, full), strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def check_again(case, exe, machine, backends):
    """A model that carries its placement compiles to the same plan."""
    written = intarsia.annotate(case.model, exe)
    again = intarsia.compile(written, machine, host="reference", backends=backends)
    assert again.plan.steps == exe.plan.steps
    assert again.plan.tensors == exe.plan.tensors
    assert all(tensor.storage is not TensorStorage.SLOT for tensor in again.plan.tensors)
