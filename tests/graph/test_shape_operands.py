# SPDX-License-Identifier: Apache-2.0
"""Shape arithmetic: small integers that end as an operand that settles a shape."""

import pytest

from intarsia.graph.indices import shape_nodes
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot


@pytest.fixture
def found(parse_model):
    def names(text):
        graph = snapshot(load(parse_model(text)))
        return {graph.nodes[node].name for node in shape_nodes(graph)}

    return names


def test_a_chain_of_integers_that_ends_in_a_shape(found):
    assert found("""
        g (float[4,6] x, int64[2] s) => (float[6,4] y) <int64[2] two = {2, 2}> {
            [double] t = Mul(s, two) [halve] u = Div(t, two) [give] y = Reshape(x, u)
        }""") == {"double", "halve"}


def test_a_shape_that_is_read_off_a_tensor_is_not_worth_moving_the_tensor(found):
    assert found("""
        g (float[4,6] x) => (float[6,4] y) <int64[2] swap = {1, 0}> {
            [shape] s = Shape(x) [turn] t = Gather(s, swap) [give] y = Reshape(x, t)
        }""") == {"turn"}


def test_an_operand_that_is_data_too_is_data(found):
    assert not found("""
        g (float[4] x, int64[1] s) => (float[4] y, int64[1] z) {
            [more] t = Add(s, s) [give] y = Reshape(x, t) [abs] z = Abs(t)
        }""")


def test_data_of_the_same_operator_is_data(found):
    assert not found("""
        g (int64[4] x, int64[1] s) => (int64[4] y) {
            [neg] p = Neg(x) [give] y = Reshape(p, s)
        }""")
    assert found("""
        g (int64[4] x, int64[1] s) => (int64[4] y) {
            [neg] p = Neg(x) [more] t = Add(s, s) [give] y = Reshape(p, t)
        }""") == {"more"}


def test_many_integers_are_data(found):
    assert not found("""
        g (int64[65] x, int64[65] s) => (int64[65] y) {
            [more] t = Add(s, s) [give] y = Slice(x, t, t)
        }""")


def test_what_a_body_reads_is_data(found):
    assert not found("""
        g (bool c, float[4] x, int64[1] s) => (float[4] y) {
            [more] t = Add(s, s)
            [if] y = If (c) <
                then_branch = a () => (float[4] p) { p = Reshape(x, t) },
                else_branch = b () => (float[4] q) { q = Neg(x) }>
        }""")
