# SPDX-License-Identifier: Apache-2.0
"""Rows 126 to 134: what a plug-in's backend brings, partitioning, and what is reported of it."""

import logging

import numpy as np
import onnx_ir as ir
import pytest

import intarsia
from intarsia.backends.patterns import pattern_rules
from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection, Pass
from intarsia.errors import TargetError
from intarsia.graph.pattern import ANY, CONSTANT, Op, Pattern
from intarsia.target import AttrSpec, DeviceType, Target, TargetKind, register_kind
from intarsia.target.pipeline import STANDARD_PIPELINE, Stage
from rows import refused, row

ADD = "g (float[4] x, float[4] y) => (float[4] z) { [add] z = Add(x, y) }"
X = np.array([1.0, 2.0, -3.0, 50.0], np.float32)
Y = np.array([0.5, -2.0, 7.0, 8.0], np.float32)


def lower(model, context):
    """Make x - y of x + y; with an attribute a that is not zero, (x - y - a) * 2."""
    number = context.target.target.attrs["example_attribute"]
    for node in [node for node in model.graph if node.op_type == "Add"]:
        if not number:
            node.op_type = "Sub"
            continue
        difference = ir.node("Sub", node.inputs)
        offset = ir.node("Constant", [], {"value": ir.tensor(np.float32(number))})
        two = ir.node("Constant", [], {"value": ir.tensor(np.float32(2))})
        shifted = ir.node("Sub", [difference.outputs[0], offset.outputs[0]])
        model.graph.insert_before(node, [difference, offset, two, shifted])
        node.op_type = "Mul"
        node.replace_input_with(0, shifted.outputs[0])
        node.replace_input_with(1, two.outputs[0])


def has_four_elements(match):
    values = match.graph.values
    return all(values[node.outputs[0]].shape == (4,) for node in match.nodes)


class Hooked(ReferenceBackend):
    """Kind, attributes, patterns, passes and code generator in one class."""

    name = "hooked"
    kinds = (
        TargetKind(
            "hooked-kind",
            DeviceType.CPU,
            attrs=(
                AttrSpec("example_attribute", "int", default=0),
                AttrSpec("variant", "string", default="plain"),
                AttrSpec("is_quick", "bool", default=False),
            ),
            is_complete=False,
            refines=("*",),
            pipeline=(*STANDARD_PIPELINE, "region: lower-example"),
        ),
    )
    passes = (Pass(Stage.REGION, "lower-example", lower),)
    patterns = (Pattern("four-wide-add", Op("Add", ANY, ANY), has_four_elements),)

    def detect(self):
        return Detection((Target("hooked-kind"),))

    def rules(self, context):
        return pattern_rules(self.patterns)


class Library(ReferenceBackend):
    """A library of kernels under a kind that the catalogue describes; tests set the patterns."""

    name = "library"
    kinds = ("bnns",)

    def __init__(self, *patterns):
        self.patterns = patterns

    def rules(self, context):
        return pattern_rules(self.patterns)


def compile_with(backends, plug_in, model, target, **options):
    known = [found for name, found in backends.by_name.items() if name != plug_in.name]
    return intarsia.compile(model, target, backends=collect([*known, plug_in]), **options)


def whys(exe):
    return {node.name: node.why for region in exe.placement.regions for node in region.nodes}


def targets(exe):
    return {node.name: region.target for region in exe.placement.regions for node in region.nodes}


@row(126)
def one_class_brings_kind_attributes_patterns_passes_and_codegen(backends, parse_model):
    exe = compile_with(backends, Hooked(), parse_model(ADD), "hooked-kind, onnxruntime")
    assert targets(exe) == {"add": "hooked-kind"}
    assert whys(exe) == {"add": "pattern 'four-wide-add'"}
    np.testing.assert_array_equal(exe(X, Y), X - Y)
    assert Target("hooked-kind -variant=fast -is_quick").attrs["variant"] == "fast"
    assert "expects type int" in refused(Target, "hooked-kind -example_attribute=x")


@row(127)
def a_kind_is_registered_once():
    register_kind(Hooked.kinds[0])
    register_kind(Hooked.kinds[0])
    text = refused(register_kind, TargetKind("llvm", DeviceType.CPU))
    assert "'llvm' is registered already" in text


@row(
    127,
    note="A float is refused by a TargetError, which is a ValueError and not a TypeError: all that "
    "is wrong with a target is one class. A default of None is legal: it means that there is none.",
)
def attributes_must_not_clash_and_are_no_floats():
    clash = refused(TargetKind, "other", DeviceType.CPU, attrs=(AttrSpec("model", "int"),))
    assert "'model' clashes" in clash
    with pytest.raises(ValueError, match=r"'float' is not an attribute type") as caught:
        AttrSpec("alpha", "float", default=0.5)
    assert isinstance(caught.value, TargetError)
    assert "expects type int" in refused(AttrSpec, "alpha", "int", default=0.5)
    kind = TargetKind("nothing", DeviceType.CPU, attrs=(AttrSpec("alpha", "int", default=None),))
    assert kind.attrs["alpha"].default is None


@row(128)
def default_and_override_of_an_attribute_reach_the_hook(backends, parse_model):
    model = parse_model(ADD)
    plain = compile_with(backends, Hooked(), model, "hooked-kind, onnxruntime")
    np.testing.assert_array_equal(plain(X, Y), X - Y)
    text = "hooked-kind -example_attribute=42, onnxruntime"
    np.testing.assert_array_equal(
        compile_with(backends, Hooked(), model, text)(X, Y), (X - Y - 42) * 2
    )


@row(
    129,
    note="Who gives no target at all gets what backends detect, with the defaults of their kinds, "
    "and their hooks run. A node annotated for a target that the list lacks is an error that names "
    "it, where TVM would run the hook: it would otherwise run on a machine that was not asked for.",
)
def a_hook_runs_with_the_defaults_if_no_target_is_given(backends, parse_model):
    exe = compile_with(backends, Hooked(), parse_model(ADD), None)
    assert targets(exe) == {"add": "hooked-kind"}
    np.testing.assert_array_equal(exe(X, Y), X - Y)
    annotated = intarsia.on_device(parse_model(ADD), {"add": "hooked-kind"})
    with pytest.raises(TargetError, match="'hooked-kind' means none of the targets"):
        compile_with(backends, Hooked(), annotated, "onnxruntime")


@row(130)
def the_order_of_the_patterns_is_their_priority(backends, parse_model):
    model = parse_model(
        """g (float[4] x) => (float[4] y, float[4] z) <float[4] c = {1, 2, 3, 4}> {
            [mul] a = Mul(c, x) [add] b = Add(a, x) [relu] y = Relu(b) [neg] n = Neg(x)
            [late] z = Add(n, n)
        }"""
    )
    fused = Pattern("mul-add", Op("Add", Op("Mul", ANY, CONSTANT), ANY))
    single = Pattern("add", Op("Add"))
    first = compile_with(backends, Library(fused, single), model, "bnns, onnxruntime")
    assert whys(first) == {
        "mul": "pattern 'mul-add'",
        "add": "pattern 'mul-add'",
        "relu": "fallback",
        "neg": "fallback",
        "late": "pattern 'add'",
    }
    second = compile_with(backends, Library(single, fused), model, "bnns, onnxruntime")
    assert whys(second)["add"] == "pattern 'add'"
    assert targets(second)["mul"] == "onnxruntime"
    expected = X * [1, 2, 3, 4] + X
    for exe in (first, second):
        np.testing.assert_allclose(exe(X)[0], np.maximum(expected, 0))


@row(130)
def a_predicate_that_says_no_leaves_the_node_to_the_next_target(backends, parse_model):
    model = parse_model("g (float[4] x) => (float[4] y) { [one] a = Relu(x) [two] y = Relu(a) }")
    pattern = Pattern("relu", Op("Relu"), lambda match: match.nodes[0].name == "two")
    exe = compile_with(backends, Library(pattern), model, "bnns, fake -ops=Relu, onnxruntime")
    assert targets(exe) == {"one": "fake -ops=Relu", "two": "bnns"}
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.target) == ("one", "bnns")
    assert refusal.reason == "pattern 'relu' matches, but its predicate rejects it"


DIAMOND = """g (float[2,3] x) => (float[2,3] y) {
    [a] p = Relu(x) [b] q = Sigmoid(p) [c] r = Relu(q) [d] s = Add(p, r) [e] y = Neg(s)
}"""


@row(131)
def partitions_are_convex_and_make_no_cycle(backends, parse_model, random_feeds, evaluate):
    model = parse_model(DIAMOND)
    text = "fake -ops=Relu,Add, onnxruntime"
    exe = intarsia.compile(model, text, backends=backends)
    assert [[node.name for node in region.nodes] for region in exe.placement.regions] == [
        ["a"],
        ["b"],
        ["c", "d"],
        ["e"],
    ]
    reads = {node.name: set(node.input) for node in model.graph.node}
    makes = {node.name: set(node.output) for node in model.graph.node}
    known = {"x"}
    for region in exe.placement.regions:
        inside = set().union(*(makes[node.name] for node in region.nodes))
        assert set().union(*(reads[node.name] for node in region.nodes)) <= known | inside
        known |= inside
    feeds = random_feeds(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-6)


@row(132)
def regions_have_a_target_and_a_device_between_which_is_copied(backends, parse_model):
    exe = intarsia.compile(
        parse_model(DIAMOND), "fake:1 -ops=Relu,Add, onnxruntime", backends=backends
    )
    assert [(region.target, region.device) for region in exe.placement.regions] == [
        ("fake:1 -ops=Add,Relu", "ext_dev:1/fake"),
        ("onnxruntime", "cpu:0"),
        ("fake:1 -ops=Add,Relu", "ext_dev:1/fake"),
        ("onnxruntime", "cpu:0"),
    ]
    copies = exe.explain().copies
    assert [(copy.tensor, copy.source, copy.destination) for copy in copies] == [
        ("x", "cpu:0", "ext_dev:1/fake"),
        ("p", "ext_dev:1/fake", "cpu:0"),
        ("q", "cpu:0", "ext_dev:1/fake"),
        ("s", "ext_dev:1/fake", "cpu:0"),
    ]


@row(133)
def partitioning_is_greedy_and_deterministic_or_by_cost(backends, parse_model, tmp_path):
    model = parse_model(DIAMOND)
    text = "fake -ops=Relu, fake:1 -ops=Relu,Sigmoid, onnxruntime"
    plans = [
        intarsia.compile(model, text, placement="greedy", backends=backends).plan for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert plans[0].placement.policy == "greedy"
    assert plans[0].placement.coverage() == {
        "fake -ops=Relu": 2,
        "fake:1 -ops=Relu,Sigmoid": 1,
        "onnxruntime": 2,
    }
    model = parse_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    for offload, host, chosen in ((0.002, 0.001, "fake:1"), (0.001, 0.002, "fake:0")):
        first, second = f"fake -ops=Relu -cost=Relu:{offload}", f"fake:1 -cost=Relu:{host}"
        costs = str(tmp_path / f"{chosen[-1]}.sqlite")
        exe = intarsia.tune(model, f"{first}, {second}", budget=600, costs=costs, num_threads=1)
        (region,) = exe.placement.regions
        assert region.device.startswith(f"ext_dev:{chosen[-1]}")
        report = exe.explain().tuning
        assert report.seconds == pytest.approx(0.001)
        seconds = sorted(plan.seconds for plan in report.finalists)
        assert seconds == pytest.approx([0.001, 0.002])


@row(134)
def a_report_explains_every_node_and_every_copy(backends, parse_model, caplog):
    model = intarsia.on_device(
        parse_model(
            """g (float[4] x) => (float[4] y) {
                [a] p = Relu(x) [b] q = Neg(p) [c] r = Relu(q) [d] y = Abs(r)
            }"""
        ),
        {"a": "fake"},
    )
    library = Library(Pattern("negation", Op("Neg")))
    with caplog.at_level(logging.ERROR, "intarsia"):
        exe = compile_with(
            backends, library, model, "bnns, fake -ops=Relu, onnxruntime", pins={"c": "onnxruntime"}
        )
    report = exe.explain()
    rows = [
        (node.name, region.target, region.device, node.why)
        for region in report.placement.regions
        for node in region.nodes
    ]
    assert rows == [
        ("a", "fake -ops=Relu", "ext_dev:0/fake", "annotation"),
        ("b", "bnns", "cpu:0", "pattern 'negation'"),
        ("c", "onnxruntime", "cpu:0", "pin 'c=onnxruntime'"),
        ("d", "onnxruntime", "cpu:0", "fallback"),
    ]
    assert [(c.tensor, c.source, c.destination, c.nbytes) for c in report.copies] == [
        ("x", "cpu:0", "ext_dev:0/fake", 16),
        ("p", "ext_dev:0/fake", "cpu:0", 16),
    ]
    text = str(report)
    assert "p: ext_dev:0/fake -> cpu:0, 16 B" in text
    assert "pattern 'negation'" in text
