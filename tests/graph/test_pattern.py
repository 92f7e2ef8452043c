# SPDX-License-Identifier: Apache-2.0
"""Patterns: which nodes a table of shapes finds."""

import pytest

from intarsia.graph.load import load
from intarsia.graph.pattern import ANY, CONSTANT, Op, Pattern, find_patterns
from intarsia.graph.snapshot import snapshot


@pytest.fixture
def find(parse_model):
    """A function that returns, by the names of nodes, what patterns find in the text of a graph."""

    def run(text, *patterns):
        graph = snapshot(load(parse_model(text)))
        found = find_patterns(graph, patterns)
        names = {node.id: node.name for node in graph.nodes}
        return (
            {names[node]: pattern for node, pattern in found.taken.items()},
            {names[node]: pattern for node, pattern in found.declined.items()},
        )

    return run


BIAS = """g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
    [neg] n = Neg(x) [add] a = Add(c, n) [relu] y = Relu(a)
}"""


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (Op("Relu"), {"relu"}),
        (Op("Relu", Op("Add")), {"relu", "add"}),
        (Op("Relu", Op("Add", Op("Neg"), CONSTANT)), {"relu", "add", "neg"}),  # either order
        (Op("Relu", Op("Add", ANY, Op("Neg", ANY))), {"relu", "add", "neg"}),
        (Op(("Abs", "Neg")), {"neg"}),
        (Op("Relu", Op("Neg")), set()),
        (Op("Relu", CONSTANT), set()),
        (Op("Add", CONSTANT, CONSTANT), set()),
        (Op("Neg", ANY, ANY), set()),
        (Op("Relu", domain="other"), set()),
    ],
)
def test_a_shape_finds_its_nodes(find, shape, names):
    taken, declined = find(BIAS, Pattern("shape", shape))
    assert set(taken) == names
    assert declined == {}


def test_operands_of_what_is_not_commutative_stay_in_order(find):
    text = "g (float[2] x) => (float[2] y) { [neg] n = Neg(x) [sub] y = Sub(x, n) }"
    assert find(text, Pattern("left", Op("Sub", Op("Neg"), ANY)))[0] == {}
    assert set(find(text, Pattern("right", Op("Sub", ANY, Op("Neg"))))[0]) == {"sub", "neg"}


@pytest.mark.parametrize(
    "text",
    [
        """g (float[2] x) => (float[2] y, float[2] z) {
            [a] p = Neg(x) [b] y = Relu(p) [c] z = Abs(p)
        }""",
        "g (float[2] x) => (float[2] p, float[2] y) { [a] p = Neg(x) [b] y = Relu(p) }",
    ],
)
def test_what_is_made_inside_is_read_by_the_match_alone(find, text):
    assert find(text, Pattern("pair", Op("Relu", Op("Neg"))))[0] == {}


def test_one_node_is_not_taken_for_two(find):
    text = "g (float[2] x) => (float[2] y) { [a] p = Neg(x) [b] y = Add(p, p) }"
    assert find(text, Pattern("two", Op("Add", Op("Neg"), Op("Neg"))))[0] == {}
    assert set(find(text, Pattern("one", Op("Add", Op("Neg"), ANY)))[0]) == {"a", "b"}


def test_earlier_patterns_win_and_matches_do_not_overlap(find):
    text = "g (float[2] x) => (float[2] y) { [a] p = Neg(x) [b] q = Neg(p) [c] y = Neg(q) }"
    pair, single = Pattern("pair", Op("Neg", Op("Neg"))), Pattern("single", Op("Neg"))
    assert find(text, pair, single)[0] == {"a": "pair", "b": "pair", "c": "single"}
    assert find(text, single, pair)[0] == {"a": "single", "b": "single", "c": "single"}


def test_a_predicate_that_says_no_leaves_the_nodes_to_later_patterns(find):
    seen = []

    def declines(match):
        seen.append([node.name for node in match.nodes])
        return False

    pair = Pattern("pair", Op("Relu", Op("Add", ANY, ANY)), declines)
    taken, declined = find(BIAS, pair, Pattern("relu", Op("Relu")))
    assert taken == {"relu": "relu"}
    assert declined == {"add": "pair"}
    assert seen == [["relu", "add"]]
