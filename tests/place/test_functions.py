# SPDX-License-Identifier: Apache-2.0
"""Functions of the model are placed node by node; what is said of a call holds for all of it."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia.errors import PlacementError
from intarsia.report.nodes import find_nodes

HEADER = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>\n'
MODEL = """
g (float[4] x, float[4] y, bool c) => (float[4] z) {
    [one] p = local.outer (y, x)
    [two] q = local.outer <alpha = 0.5> (x, p)
    [cond] r = If (c) <
        then_branch = yes () => (float[4] s) { [inside] s = local.f (q, q) },
        else_branch = no () => (float[4] t) { t = Neg(q) }>
    [branch] s = local.h (c, r)
    [last] z = Exp(s) }
<domain: "local", opset_import: ["" : 20, "local" : 1]>
outer <alpha: float = 0.25> (a, b) => (r) {
    [in] s = local.f (a, b)
    r = Elu <alpha: float = @alpha> (s) }
<domain: "local", opset_import: ["" : 20]>
f (a, b) => (r) { [abs] t = Abs(b) [add] r = Sub(a, t) }
<domain: "local", opset_import: ["" : 20]>
h (c, a) => (r) { [choose] r = If (c) <
    then_branch = yes () => (s) { s = Neg(a) }, else_branch = no () => (s) { s = Abs(a) }> }
<domain: "local", opset_import: ["" : 20]>
idle (a) => (r) { r = Neg(a) }"""
ONE = ["one/in/abs", "one/in/add", "one/Elu"]
TWO = ["two/in/abs", "two/in/add", "two/Elu"]
FEEDS = {
    "x": np.array([1, -2, 3, -4], np.float32),
    "y": np.array([-0.5, 0.6, -0.7, 0.8], np.float32),
    "c": np.array(True),
}


@pytest.fixture(scope="module")
def model():
    found = onnx.parser.parse_model(HEADER + MODEL)
    onnx.checker.check_model(found, full_check=True)
    return found


def targets_of(exe):
    return {node.name: r.runs_on.split()[0] for r in exe.placement.regions for node in r.nodes}


@pytest.mark.parametrize("target", ["llvm", "onnxruntime", "openvino, llvm", "fake"])
def test_the_nodes_of_functions_are_placed_and_compute_the_same(target, model, backends):
    exe = intarsia.compile(model, target, backends=backends)
    assert set(targets_of(exe)) == {*ONE, *TWO, "cond", "branch/choose", "last"}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for condition in (True, False):
        feeds = {**FEEDS, "c": np.array(condition)}
        expected = session.run(None, feeds)[0]
        np.testing.assert_allclose(exe.run(feeds)["z"], expected, rtol=1e-5)


def test_a_node_of_a_function_is_found_by_its_call(model, backends):
    exe = intarsia.compile(model, "llvm", backends=backends)
    assert [view.name for view in find_nodes(exe.placement, "two")] == TWO
    assert [view.origins for view in find_nodes(exe.placement, "one/Elu")] == [("one",)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("one", ONE),
        ("two/in", TWO[:2]),
        ("two/in/abs", TWO[:1]),
        ("*/Elu", [ONE[2], TWO[2]]),
    ],
)
def test_a_call_and_a_node_inside_can_be_pinned_and_annotated(pattern, names, model, backends):
    machine = "llvm, onnxruntime, reference"
    exe = intarsia.compile(model, machine, pins={pattern: "reference"}, backends=backends)
    assert [name for name, target in targets_of(exe).items() if target == "reference"] == names
    annotated = intarsia.on_device(model, {pattern: "reference"})
    same = intarsia.compile(annotated, machine, backends=backends)
    assert targets_of(same) == targets_of(exe)
    np.testing.assert_allclose(same.run(FEEDS)["z"], exe.run(FEEDS)["z"], rtol=1e-5)


def test_an_exclusion_by_the_name_of_a_function_holds_inside(model, backends):
    exe = intarsia.compile(model, "llvm, onnxruntime", exclude="llvm:outer", backends=backends)
    found = targets_of(exe)
    assert {found[name] for name in (*ONE, *TWO)} == {"onnxruntime"}
    assert found["last"] == "llvm"


def test_a_call_and_a_node_inside_that_contradict_are_an_error(model, backends):
    annotated = intarsia.on_device(model, {"two": "llvm"})
    with pytest.raises(PlacementError, match="pin 'two/Elu=reference' contradicts"):
        intarsia.compile(
            annotated, "llvm, reference", pins={"two/Elu": "reference"}, backends=backends
        )


def test_layers_of_a_call_are_those_of_its_nodes(model, backends):
    layered = onnx.ModelProto()
    layered.CopyFrom(model)
    layered.graph.node[1].metadata_props.add(key="layer_ann", value="block1")
    exe = intarsia.compile(
        layered, "llvm, onnxruntime", layers={"block": "onnxruntime"}, backends=backends
    )
    found = targets_of(exe)
    assert {found[name] for name in TWO} == {"onnxruntime"}
    assert {found[name] for name in ONE} == {"llvm"}


def test_where_nodes_of_functions_are_can_be_written_onto_the_users_model(model, backends):
    machine = "llvm, onnxruntime"
    exe = intarsia.compile(model, machine, pins={"two": "onnxruntime"}, backends=backends)
    again = intarsia.compile(intarsia.annotate(model, exe), machine, backends=backends)
    assert targets_of(again) == targets_of(exe)


def test_deep_and_wide_models_of_functions_are_inlined(backends):
    depth, width = 10, 40
    inner = "\n".join(
        f'<domain: "local", opset_import: ["" : 20, "local" : 1]> '
        f"f{i} (a) => (r) {{ s = local.f{i - 1}(a) r = Neg(s) }}"
        for i in range(1, depth)
    )
    calls = " ".join(f"v{i + 1} = local.f{depth - 1}(v{i})" for i in range(width))
    text = f"""g (float[2] v0) => (float[2] v{width}) {{ {calls} }}
    <domain: "local", opset_import: ["" : 20]> f0 (a) => (r) {{ r = Abs(a) }}
    {inner}"""
    exe = intarsia.compile(onnx.parser.parse_model(HEADER + text), "llvm", backends=backends)
    found = exe.run({"v0": np.array([-1, 2], np.float32)})[f"v{width}"]
    np.testing.assert_array_equal(found, [-1, -2])  # an odd number of Neg after the last Abs


LEFT_OUT = """
g (float[4] x) => (float[4] z) {{ [call] {outputs} = local.outer(x) z = Add(y, x) }}
<domain: "local", opset_import: ["" : 20, "local" : 1]>
outer (a) => (p, q, r) {{ p, "", s = local.f(a) q = Exp(a) r = Neg(s) }}
<domain: "local", opset_import: ["" : 20]>
f (a) => (p, q, r) {{ p = Relu(a) q = Exp(a) r = Abs(a) }}"""


@pytest.mark.parametrize("outputs", ["y", 'y, ""', '"", y', '"", "", y', 'y, "", u', 'y, "", ""'])
def test_a_call_may_leave_out_outputs(outputs, backends):
    model = onnx.parser.parse_model(HEADER + LEFT_OUT.format(outputs=outputs))
    x = FEEDS["x"]
    y = (np.maximum(x, 0), np.exp(x), -np.abs(x))[outputs.split(", ").index("y")]
    exe = intarsia.compile(model, "llvm", backends=backends)
    np.testing.assert_allclose(exe.run({"x": x})["z"], y + x, rtol=1e-6)
