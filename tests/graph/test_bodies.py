# SPDX-License-Identifier: Apache-2.0
"""Bodies as models of their own, and the shapes that loops keep."""

import onnx_ir as ir
import pytest

from intarsia.errors import ModelError
from intarsia.graph.bodies import body_model, is_control_flow, outer_values, trip_count
from intarsia.graph.load import load

LOOP = """g (float[2,3] x) => (float[2,3] y, float[n,3,2] all)
        <int64 m = {COUNT}, bool yes = {1}, float[3] w = {1, 2, 3}> {
    p = Neg(x)
    s, all = Loop(m, yes, x) <body = b
            (int64 i, bool on, float[?, ?] v) => (bool go, float[?, ?] u, float[?, ?] t) {
        CONDITION h = Add(v, p) u = Mul(h, w) t = Transpose(u) }>
    y = Exp(s) }"""


def loop_of(parse_model, text):
    model = load(parse_model(text))
    return model, next(node for node in model.graph if is_control_flow(node))


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("go = Identity(on)", 4),
        ("go = Constant<value = bool {1}>()", 4),
        ("z = ReduceSum<keepdims = 0>(v) go = Greater(z, z)", None),
        ("go = Not(on)", None),
    ],
)
def test_what_a_loop_carries_keeps_its_shape(condition, count, parse_model):
    text = LOOP.replace("COUNT", "4").replace("CONDITION", condition).replace("[?, ?]", "[a, b]")
    model, loop = loop_of(parse_model, text)
    assert trip_count(loop) == count
    carried, stacked = loop.outputs
    assert carried.shape == ir.Shape([2, 3])
    assert list(stacked.shape)[1:] == [3, 2]
    assert (stacked.shape[0] == count) is (count is not None)
    assert model.graph.outputs[0].shape == ir.Shape([2, 3])


def test_a_negative_count_is_none(parse_model):
    text = LOOP.replace("COUNT", "-4").replace("CONDITION", "go = Identity(on)")
    _, loop = loop_of(parse_model, text.replace("[?, ?]", "[a, b]"))
    assert trip_count(loop) == 0
    assert loop.outputs[1].shape == ir.Shape([0, 3, 2])


def test_what_grows_keeps_nothing(parse_model):
    text = """g (float[3] x, int64 m) => (float[k] y, float[3] z) <bool yes = {1}> {
        y, z = Loop(m, yes, x, x) <body = b
            (int64 i, bool on, float[k] v, float[3] s) => (bool on, float[j] u, float[3] t) {
            u = Concat<axis = 0>(v, v) t = Neg(s) }> }"""
    _, loop = loop_of(parse_model, text)
    assert not loop.outputs[0].shape.is_static()
    assert loop.outputs[1].shape == ir.Shape([3])


IF = """g (bool c, float[2] x, float[2] y) => (float[2] z) <float[2] w = {1, 2}> {
    p = Neg(x)
    z = If(c) <
        then_branch = t () => (float[2] a) { a = If(c) <
            then_branch = tt () => (float[2] b) { b = Mul(p, w) },
            else_branch = te () => (float[2] d) { d = Add(p, x) }> },
        else_branch = e () => (float[2] f) { f = Sub(y, x) }> }"""


def test_a_body_has_the_values_from_outside_as_inputs(parse_model):
    model, node = loop_of(parse_model, IF)
    assert {value.name for value in outer_values(node)} == {"c", "p", "w", "x", "y"}
    then = body_model(model, node, "then_branch").graph
    assert {value.name for value in then.inputs} == {"c", "p", "x"}
    assert list(then.initializers) == ["w"]
    assert then.initializers["w"].const_value is model.graph.initializers["w"].const_value
    assert [value.shape for value in then.inputs if value.name != "c"] == [ir.Shape([2])] * 2
    other = body_model(model, node, "else_branch").graph
    assert {value.name for value in other.inputs} == {"y", "x"}
    assert [each.op_type for each in other] == ["Sub"]
    assert {value.name for value in outer_values(node)} == {"c", "p", "w", "x", "y"}  # untouched


def test_a_name_of_two_values_is_an_error(parse_model):
    model, node = loop_of(parse_model, IF)
    inner = node.attributes["else_branch"].as_graph()
    inner[0].outputs[0].name = "x"
    with pytest.raises(ModelError, match=r"'x', which else_branch of .* has the name of a value"):
        body_model(model, node, "else_branch")
