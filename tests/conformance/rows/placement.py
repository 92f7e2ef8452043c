# SPDX-License-Identifier: Apache-2.0
"""Rows 110 to 125: placing operators on devices, on real plans whose copies are counted.

As in the original, a machine has a GPU, which is the default, and a CPU. Here the GPU is `fake`: a
device with a memory that the host cannot read. The original's parameters lie on some device; ours
come from the host and results go back there. So "a is on the GPU" is: a is copied there, once. The
copies that rows count are the others: those of values in between.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

import intarsia
from intarsia.backends.fake import FakeBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Rule
from intarsia.errors import PlacementError
from intarsia.plan import TensorStorage
from intarsia.target import DeviceType, TargetKind
from rows import row

MACHINE = "fake, reference"
TWO = "fake:0, fake:1, reference"
HEADER = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>\n'
FOUR = "float[4] a, float[4] b, float[4] c, float[4] d"
ADDS = f"""g ({FOUR}) => (float[4] y) {{
    [left] l = Add(a, b) [right] r = Add(c, d) [sub] y = Sub(l, r) }}"""
NAMES = {"cpu:0": "CPU", "ext_dev:0/fake": "GPU", "ext_dev:1/fake": "GPU1"}


@dataclass
class Result:
    """What became of a model.

    Attributes:
        nodes: By name, the device of each node.
        moved: Inputs of the model that are copied, with their destinations.
        copies: All other copies but those of results to the host: (value, from, to).
        exe: The program.
    """

    nodes: dict
    moved: list
    copies: list
    exe: object


def place(text, devices, target=MACHINE, backends=None, feeds=None, **options):
    """Compile a model, run it, compare its numbers with ONNX Runtime's, and count its copies."""
    model = text if isinstance(text, onnx.ModelProto) else onnx.parser.parse_model(HEADER + text)
    annotated = intarsia.on_device(model, devices)
    exe = intarsia.compile(annotated, target, host="reference", backends=backends, **options)
    rng = np.random.default_rng(3)
    drawn = {spec.name: rng.integers(1, 5, spec.shape).astype(spec.dtype) for spec in exe.inputs}
    feeds = drawn | (feeds or {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [spec.name for spec in exe.outputs]
    found = exe.run(feeds)
    for name, expected in zip(names, session.run(names, feeds), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)
    plan = exe.plan
    moved, copies, seen = [], [], set()
    for step in plan.copies:
        source, destination = plan.tensors[step.source], plan.tensors[step.destination]
        assert step.nbytes == destination.spec.nbytes > 0
        assert source.name == destination.name
        assert (source.name, destination.device) not in seen, "copied twice"
        seen.add((source.name, destination.device))
        ends = [
            NAMES.get(plan.devices[end.device], plan.devices[end.device])
            for end in (source, destination)
        ]
        if source.storage is TensorStorage.INPUT:
            moved.append((source.name, ends[1]))
        elif destination.storage is not TensorStorage.OUTPUT:
            copies.append((source.name, *ends))
    nodes = {
        node.name: NAMES.get(region.device, region.device)
        for region in plan.placement.regions
        for node in region.nodes
    }
    return Result(nodes, moved, copies, exe)


@row(110)
def what_is_said_in_other_words_joins(backends):
    """Two targets that were built apart are one device, and a device joins what is on it."""
    text = "g (float[4] x) => (float[4] y) { [p] a = Neg(x) [q] b = Abs(a) [r] y = Exp(b) }"
    devices = {"p": "fake -ops=Exp,Neg,Abs", "q": "ext_dev", "r": "fake  -ops=Neg,Abs,Exp"}
    target = "reference, fake -ops=Abs,Exp,Neg"
    found = place(text, devices, target, backends, pins={"q": "fake:0"})
    assert found.nodes == {"p": "GPU", "q": "GPU", "r": "GPU"}
    assert found.copies == []


@row(111)
def an_ordinal_is_a_memory(backends):
    found = place(
        "g (float[4] x) => (float[4] y) { [p] a = Neg(x) [q] b = Abs(a) [r] y = Exp(b) }",
        {"p": "fake:0", "q": "fake:1", "r": "ext_dev:1"},
        TWO,
        backends,
    )
    assert found.nodes == {"p": "GPU", "q": "GPU1", "r": "GPU1"}
    assert found.copies == [("a", "GPU", "GPU1")]


@row(111)
def a_scope_is_a_memory(backends):
    """The original's free_on_device: b and the result lie in A, the call works in B."""
    found = place(
        f"""g ({FOUR}) => (float[4] y) {{
            [make] p = Neg(b) [call] s = Sum(a, p, c) [use] y = Mul(s, d) }}""",
        {"make": "fake -memory_scope=A", "call": "fake -memory_scope=B", "use": "ext_dev/A"},
        "fake -memory_scope=A, fake -memory_scope=B, reference",
        backends,
    )
    a, b = "ext_dev:0/fake/A", "ext_dev:0/fake/B"
    assert found.nodes == {"make": a, "call": b, "use": a}
    assert found.copies == [("p", a, b), ("s", b, a)]
    assert found.moved == [("b", a), ("a", b), ("c", b), ("d", a)]


@row(112)
def without_annotations_all_is_on_the_default_device(backends):
    found = place(ADDS, {}, backends=backends)
    assert set(found.nodes.values()) == {"GPU"}
    assert found.moved == [(name, "GPU") for name in "abcd"]
    assert found.copies == []
    home = place(ADDS, {}, placement="manual", backends=backends)
    assert (set(home.nodes.values()), home.moved, home.copies) == ({"CPU"}, [], [])


@row(
    113,
    "an annotation binds its own operator and copies what that reads; what else is connected is "
    "the policy's, so that one operator kept on the host keeps no other from an accelerator",
)
def what_an_annotated_operator_reads_is_on_its_device(backends):
    found = place(ADDS, {"left": "cpu"}, backends=backends)
    assert found.nodes == {"left": "CPU", "right": "GPU", "sub": "GPU"}
    assert found.moved == [("c", "GPU"), ("d", "GPU")]
    assert found.copies == [("l", "CPU", "GPU")]


@row(113)
def two_annotated_operators_make_two_copies(backends):
    found = place(ADDS, {"left": "cpu", "right": "reference"}, backends=backends)
    assert found.nodes == {"left": "CPU", "right": "CPU", "sub": "GPU"}
    assert found.moved == []
    assert found.copies == [("l", "CPU", "GPU"), ("r", "CPU", "GPU")]


@row(114)
def a_value_is_copied_once_for_each_destination(backends):
    """The original's sharing and redundant_annotation, which copy the value for each use."""
    once = place(
        "g (float[4] a, float[4] b) => (float[4] y) { [add] s = Add(a, b) [sub] y = Sub(s, s) }",
        {"add": "cpu"},
        backends=backends,
    )
    assert (once.nodes, once.moved) == ({"add": "CPU", "sub": "GPU"}, [])
    assert once.copies == [("s", "CPU", "GPU")]
    twice = place(
        """g (float[4] x, float[4] y, float[4] z) => (float[4] o) {
            [add] s = Add(x, y) [one] p = Sub(s, z) [two] q = Mul(s, z) [end] o = Add(p, q) }""",
        {"add": "cpu"},
        backends=backends,
    )
    assert twice.moved == [("z", "GPU")]
    assert twice.copies == [("s", "CPU", "GPU")]
    both = place(
        """g (float[4] x) => (float[4] o) {
            [neg] s = Neg(x) [one] p = Exp(s) [two] q = Abs(s) [far] r = Tanh(s)
            [end] o = Sum(p, q, r) }""",
        {"neg": "cpu", "one": "fake:0", "two": "fake:0", "far": "fake:1", "end": "cpu"},
        TWO,
        backends,
    )
    assert both.copies[:2] == [("s", "CPU", "GPU"), ("s", "CPU", "GPU1")] or both.copies[:2] == [
        ("s", "CPU", "GPU1"), ("s", "CPU", "GPU"),
    ]  # fmt: skip
    assert len(both.copies) == 5


@row(115)
def conv_network(backends):
    image, weight = "float[1,2,6,6]", "float[2,2,3,3]"
    found = place(
        f"""g ({image} data1, {image} data2, {weight} weight) => ({image} y) {{
            [one] p = Conv<pads = [1,1,1,1]>(data1, weight)
            [two] q = Conv<pads = [1,1,1,1]>(data2, weight)
            [add] s = Add(p, q)
            [last] y = Conv<pads = [1,1,1,1]>(s, weight) }}""",
        {"one": "cpu", "two": "cpu", "add": "fake", "last": "cpu"},
        backends=backends,
    )
    assert found.nodes == {"one": "CPU", "two": "CPU", "add": "GPU", "last": "CPU"}
    assert found.moved == []
    assert found.copies == [("p", "CPU", "GPU"), ("q", "CPU", "GPU"), ("s", "GPU", "CPU")]


@row(115)
def propagation_network(backends):
    found = place(
        """g (float[4] x) => (float[4] y) {
            [log] p = Neg(x) [log2] q = Abs(p) [log10] r = Exp(p) [add] s = Add(q, r)
            [tan] y = Tanh(s) }""",
        {"log": "cpu", "log2": "fake", "log10": "fake", "add": "fake", "tan": "cpu"},
        backends=backends,
    )
    assert found.moved == []
    assert found.copies == [("p", "CPU", "GPU"), ("s", "GPU", "CPU")]  # the original: p twice


@row(115)
def fusible_network(backends):
    found = place(
        """g (float[4] x, float[4] y) => (float[4] z) {
            [add] p = Add(x, y) [left] q = Sqrt(p) [right] r = Log(p) [sub] s = Sub(q, r)
            [exp] z = Exp(s) }""",
        {"add": "fake", "left": "cpu", "right": "fake", "sub": "fake", "exp": "cpu"},
        backends=backends,
    )
    assert found.moved == [("x", "GPU"), ("y", "GPU")]
    assert found.copies == [("p", "GPU", "CPU"), ("q", "CPU", "GPU"), ("s", "GPU", "CPU")]


@row(115)
def unpropagatable_graph(backends):
    text = ADDS.replace("r = Add(c, d)", "r = Mul(c, d)")
    found = place(text, {"left": "cpu", "right": "fake", "sub": "cpu"}, backends=backends)
    assert found.nodes == {"left": "CPU", "right": "GPU", "sub": "CPU"}
    assert found.moved == [("c", "GPU"), ("d", "GPU")]
    assert found.copies == [("r", "GPU", "CPU")]


@row(115)
def annotated_in_part_and_whole(backends):
    text = """g (float[4] x, float[4] y, float[4] z) => (float[4] o) {
        [add] s = Add(x, y) [sub] o = Sub(s, z) }"""
    part = place(text, {"add": "fake", "sub": "cpu"}, backends=backends)
    assert part.moved == [("x", "GPU"), ("y", "GPU")]
    assert part.copies == [("s", "GPU", "CPU")]
    whole = place(text, {"*": "cpu"}, backends=backends)
    assert (set(whole.nodes.values()), whole.moved, whole.copies) == ({"CPU"}, [], [])


@row(116)
def only_the_pieces_that_are_read_are_copied(backends):
    found = place(
        """g (float[6] x) => (float[2] y) {
            [split] p, q, r = Split<num_outputs = 3>(x) [sub] y = Sub(p, r) }""",
        {"split": "cpu"},
        backends=backends,
    )
    assert found.nodes == {"split": "CPU", "sub": "GPU"}
    assert found.copies == [("p", "CPU", "GPU"), ("r", "CPU", "GPU")]
    assert {step.nbytes for step in found.exe.plan.copies} == {8}


@row(117)
def an_input_of_two_devices_is_copied_once(backends):
    found = place(
        """g (float[4] a, float[4] b, float[4] c) => (float[4] p, float[4] q) {
            [left] p = Add(a, b) [right] q = Add(b, c) }""",
        {"left": "cpu", "right": "fake"},
        backends=backends,
    )
    assert found.moved == [("b", "GPU"), ("c", "GPU")]
    assert found.copies == []


@row(118)
def an_explicit_copy_fixes_both_sides(backends):
    """The original's left_add_on_cpu_via_copy: nothing but the copy is annotated."""
    found = place(
        f"""g ({FOUR}) => (float[4] y) {{
            [left] l = Add(a, b) [copy] m = Identity(l) [right] r = Add(c, d)
            [sub] y = Sub(m, r) }}""",
        {"copy": "cpu -> fake"},
        backends=backends,
    )
    assert found.nodes == {"left": "CPU", "right": "GPU", "sub": "GPU"}
    assert found.moved == [("c", "GPU"), ("d", "GPU")]
    assert found.copies == [("l", "CPU", "GPU")]
    constant = place(
        """g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
            [copy] m = Identity(x) [add] y = Add(m, w) }""",
        {"copy": "cpu -> fake"},
        "reference, fake",
        backends,
    )
    assert (constant.nodes, constant.moved, constant.copies) == ({"add": "GPU"}, [("x", "GPU")], [])
    chain = """g (float[4] x) => (float[4] y) {
        [make] a = Neg(x) [one] b = Identity(a) [two] c = Identity(b) [use] y = Exp(c) }"""
    found = place(chain, {"one": "cpu -> fake:1", "two": "fake:1 -> fake"}, TWO, backends)
    assert found.nodes == {"make": "CPU", "use": "GPU"}
    assert found.copies == [("a", "CPU", "GPU")]  # nobody reads it on the way


@row(118)
def a_side_of_a_copy_cannot_be_elsewhere(backends):
    text = """g (float[4] x) => (float[4] y) {
        [make] a = Neg(x) [copy] b = Identity(a) [use] y = Exp(b) }"""
    for node, device in (("make", "fake"), ("use", "cpu")):
        said = refusal(text, {"copy": "cpu -> fake", node: device}, backends)
        assert f"node {node!r}: copy 'copy' (cpu -> fake) contradicts annotation {device!r}" in said
    chain = """g (float[4] x) => (float[4] y) {
        [one] b = Identity(x) [two] c = Identity(b) [use] y = Exp(c) }"""
    said = refusal(chain, {"one": "cpu -> fake", "two": "cpu -> fake"}, backends)
    assert "copy 'one' (cpu -> fake) contradicts copy 'two' (cpu -> fake)" in said
    assert "a copy is an Identity, not Neg" in refusal(text, {"make": "cpu -> fake"}, backends)


def refusal(text, devices, backends, **options):
    """Return what a `PlacementError` says; fail unless there is one."""
    try:
        place(text, devices, backends=backends, **options)
    except PlacementError as error:
        return str(error)
    raise AssertionError(f"{devices} is not refused")


@row(
    119,
    "a shape is computed on the host; an operator on another device that reads it while running "
    "gets a copy of a few bytes",
)
def shapes_are_computed_on_the_host(backends):
    known = place(
        """g (float[4,6] x) => (float[6,4] y) <int64[2] swap = {1, 0}> {
            [neg] r = Neg(x) [shape] s = Shape(x) [turn] t = Gather(s, swap)
            [give] y = Reshape(r, t) }""",
        {},
        backends=backends,
    )
    assert known.nodes == {"neg": "GPU", "give": "GPU"}  # the shape became a constant
    assert (known.moved, known.copies) == ([("x", "GPU")], [])
    read = place(
        """g (float[4,6] x, int64[2] s) => (float[6,4] y) <int64[2] two = {2, 2}> {
            [neg] r = Neg(x) [double] t = Mul(s, two) [give] y = Reshape(r, t) }""",
        {},
        backends=backends,
        feeds={"s": np.array([3, 2])},
    )
    assert read.nodes == {"neg": "GPU", "double": "CPU", "give": "GPU"}
    assert read.moved == [("x", "GPU")]
    assert read.copies == [("t", "CPU", "GPU")]
    whys = {n.name: n.why for r in read.exe.placement.regions for n in r.nodes}
    assert whys == {"neg": "priority", "double": "shape", "give": "priority"}


@row(119)
def what_is_said_of_a_shape_holds(backends):
    found = place(
        """g (float[4,6] x, int64[2] s) => (float[6,4] y) <int64[2] two = {2, 2}> {
            [double] t = Mul(s, two) [give] y = Reshape(x, t) }""",
        {"double": "fake"},
        backends=backends,
        feeds={"s": np.array([3, 2])},
    )
    assert found.nodes == {"double": "GPU", "give": "GPU"}


BRANCHES = """g (bool c, float[4] x, float[4] y) => (float[4] z) {
    [before] p = Neg(x)
    [cond] q = If (c) <
        then_branch = t () => (float[4] u) { [add] u = Add(p, y) },
        else_branch = e () => (float[4] v) { [sub] v = Sub(p, y) }>
    [after] z = Exp(q) }"""


@row(
    120,
    "the condition and what the bodies capture are copied to where the operator runs, instead of "
    "all being put on one device; an annotation in a body is of a node in it",
)
def control_flow_runs_on_one_device(backends):
    """The original's conditional puts all on the CPU; here the two sides stay on the GPU."""
    found = place(BRANCHES, {"cond": "cpu"}, backends=backends)
    assert found.nodes == {"before": "GPU", "cond": "CPU", "after": "GPU"}
    assert found.moved == [("x", "GPU")]
    assert found.copies == [("p", "GPU", "CPU"), ("q", "CPU", "GPU")]
    inside = place(annotated_inside(BRANCHES, {"add": "cpu"}), {}, backends=backends)
    assert (inside.nodes, inside.copies) == (found.nodes, found.copies)
    (why,) = {n.why for r in inside.exe.placement.regions for n in r.nodes if n.name == "cond"}
    assert why == "control flow"
    bodies = {body.name: body.plan for body in inside.exe.plan.bodies}
    (then,), (other,) = (bodies[f"{name}_branch"].placement.regions for name in ("then", "else"))
    assert (then.device, then.reason) == ("cpu:0", "annotation")
    assert other.device != "cpu:0"


@row(120)
def what_cannot_be_copied_keeps_its_readers(backends):
    """The original's adt and function_in_tuple: a tuple collapses to one device."""
    text = """g (float[4] x, float[4] y) => (float[8] z) {
        [neg] p = Neg(x) [pack] s = SequenceConstruct(p, y)
        [get] q = ConcatFromSequence<axis = 0>(s) [exp] z = Exp(q) }"""
    found = place(
        text, {"get": "cpu"}, "row-npu, reference", collect([*backends.by_name.values(), Npu()])
    )
    # the length of q is not known when compiling either
    assert found.nodes == {"neg": NPU, "pack": "CPU", "get": "CPU", "exp": "CPU"}
    assert found.copies == [("p", NPU, "CPU")]


NPU = "ext_dev:0/npu"


class Npu(FakeBackend):
    """Says that it takes everything, sequences too."""

    name = "npu"
    kinds = (TargetKind("row-npu", DeviceType.EXT_DEV),)

    def rules(self, context):
        return (Rule("all", lambda graph, context: {}),)


def annotated_inside(text, devices):
    """Return a model with annotations on nodes in bodies and functions, by name."""
    model = onnx.parser.parse_model(HEADER + text)
    graphs = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            if node.name in devices:
                node.metadata_props.add(key="intarsia.device", value=devices[node.name])
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return model


FUNCTION = """g (float[4] x, float[4] y) => (float[4] z) {
    [call] p = local.f (y, x) [end] z = Exp(p) }
<domain: "local", opset_import: ["" : 20]>
f (a, b) => (r) { [abs] t = Abs(b) [add] r = Add(a, t) }"""


@row(
    121,
    "a function is placed for each of its calls, so two calls cannot conflict; an annotation of a "
    "call is for the whole of it, and contradicts another one inside the function",
)
def parameters_of_a_function_may_differ_from_its_result(backends):
    """The original's global: b is on the CPU inside of f, its result on the GPU."""
    model = annotated_inside(FUNCTION, {"abs": "cpu"})
    found = place(model, {}, backends=backends)
    assert found.nodes == {"call/abs": "CPU", "call/add": "GPU", "end": "GPU"}
    assert found.moved == [("y", "GPU")]
    assert [(source, to) for _, source, to in found.copies] == [("CPU", "GPU")]


@row(124)
def a_planned_function_stays_as_it_is(backends):
    model = annotated_inside(FUNCTION, {"abs": "cpu"})
    first = place(model, {}, backends=backends)
    again = place(intarsia.annotate(model, first.exe), {}, backends=backends)
    assert again.exe.plan.steps == first.exe.plan.steps
    assert again.exe.plan.tensors == first.exe.plan.tensors


@row(121)
def an_annotated_call_is_on_one_device(backends):
    """The original's func_result_on_cpu."""
    found = place(FUNCTION, {"call": "cpu"}, backends=backends)
    whole = {"call/abs": "CPU", "call/add": "CPU", "end": "GPU"}
    assert (found.nodes, found.moved) == (whole, [])
    assert found.copies == [("p", "CPU", "GPU")]
    agreeing = place(
        annotated_inside(FUNCTION, {"abs": "cpu"}), {"call": "reference"}, backends=backends
    )
    assert agreeing.nodes == whole


@row(121)
def a_pin_of_a_call_is_for_the_whole(backends):
    model = annotated_inside(FUNCTION, {"abs": "cpu"})
    found = place(model, {}, backends=backends, pins={"call": "reference"})
    assert found.nodes == {"call/abs": "CPU", "call/add": "CPU", "end": "GPU"}


@row(121)
def each_call_of_a_function_has_its_own_nodes(backends):
    twice = """g (float[4] x, float[4] y) => (float[4] z) {
        [one] p = local.outer (y, x) [two] z = local.outer (x, p) }
    <domain: "local", opset_import: ["" : 20, "local" : 1]>
    outer (a, b) => (r) { [in] s = local.f (a, b) [neg] r = Neg(s) }
    <domain: "local", opset_import: ["" : 20]>
    f (a, b) => (r) { [abs] t = Abs(b) [copy] u = Identity(t) [add] r = Add(a, u) }"""
    model = annotated_inside(twice, {"copy": "cpu -> fake"})
    found = place(model, {}, backends=backends)
    assert found.nodes == {
        "one/in/abs": "CPU",
        "one/in/add": "GPU",
        "one/neg": "GPU",
        "two/in/abs": "CPU",
        "two/in/add": "GPU",
        "two/neg": "GPU",
    }
    assert [ends for _, *ends in found.copies] == [["CPU", "GPU"], ["GPU", "CPU"], ["CPU", "GPU"]]


@row(121)
def a_call_against_its_function_is_an_error_that_names_both(backends):
    said = refusal(annotated_inside(FUNCTION, {"abs": "cpu"}), {"call": "fake"}, backends)
    assert "annotation 'fake' of the call 'call' contradicts annotation 'cpu'" in said
    assert "node 'call/abs'" in said


@row(122)
def a_contradiction_inside_is_an_error_that_names_both(backends):
    said = refusal(annotated_inside(BRANCHES, {"add": "fake"}), {"cond": "cpu"}, backends)
    assert "node 'cond': annotation 'fake' of 'add' contradicts annotation 'cpu'" in said
    assert "cond -> then_branch -> add" in said
    both = annotated_inside(BRANCHES, {"add": "fake", "sub": "cpu"})
    assert place(both, {}, backends=backends).nodes["cond"] == "CPU"  # each body has its own


@row(123)
def a_long_chain_needs_no_recursion(backends):
    length = 2000  # the original: 1555
    nodes = [
        onnx.helper.make_node("Add", [f"v{i}", "v0"], [f"v{i + 1}"], f"n{i}") for i in range(length)
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])
        for name in ("v0", f"v{length}")
    ]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9
    )
    found = place(model, {"n777": "cpu"}, backends=backends)
    assert found.moved == [("v0", "GPU")]
    assert found.copies == [("v777", "GPU", "CPU"), ("v778", "CPU", "GPU")]


@row(124)
def a_planned_model_stays_as_it_is(backends):
    devices = {"left": "cpu", "sub": "fake:1"}
    first = place(ADDS, devices, TWO, backends)
    written = intarsia.annotate(onnx.parser.parse_model(HEADER + ADDS), first.exe)
    for policy in ("greedy", "manual"):
        again = place(written, {}, TWO, backends, placement=policy)
        assert (again.nodes, again.moved, again.copies) == (first.nodes, first.moved, first.copies)
        assert again.exe.plan.steps == first.exe.plan.steps
        assert again.exe.plan.tensors == first.exe.plan.tensors


@row(125)
def a_copy_to_the_same_memory_is_none(backends):
    text = """g (float[4] x) => (float[4] y) {
        [make] a = Neg(x) [copy] b = Identity(a) [use] y = Exp(b) }"""
    explicit = place(text, {"copy": "fake -> fake:0"}, backends=backends)
    assert explicit.nodes == {"make": "GPU", "use": "GPU"}
    assert (explicit.moved, explicit.copies) == ([("x", "GPU")], [])
    target = "onnxruntime, reference"  # two targets, one memory
    across = place(text, {"make": "onnxruntime", "use": "reference"}, target, backends)
    assert (across.exe.plan.copies, len(across.exe.placement.regions)) == ((), 2)
