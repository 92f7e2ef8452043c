# SPDX-License-Identifier: Apache-2.0
"""Patterns: which nodes a table of shapes finds."""

import pytest

from intarsia.graph.load import load
from intarsia.graph.pattern import (
    ANY,
    CONSTANT,
    SOURCE,
    Op,
    Pattern,
    Tier,
    find_patterns,
    match_region,
)
from intarsia.graph.region import Region
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


def test_a_source_is_one_value_wherever_it_stands(find):
    text = """g (float[2] x, float[2] z) => (float[2] y, float[2] w) {
        [gate] s = Sigmoid(x) [product] y = Mul(x, s)
        [other] t = Sigmoid(x) [alien] w = Mul(z, t)
    }"""
    swish = Pattern("swish", Op("Mul", SOURCE, Op("Sigmoid", SOURCE)))
    assert set(find(text, swish)[0]) == {"gate", "product"}


def test_a_source_is_not_a_constant(find):
    assert find(BIAS, Pattern("sum", Op("Add", SOURCE, ANY)))[0] == {"add": "sum"}  # `n`
    assert find(BIAS, Pattern("sum", Op("Add", SOURCE, SOURCE)))[0] == {}


RELU = Pattern("relu", Op("Relu", SOURCE))
ADD = Pattern("add", Op("Add", SOURCE, ANY))
SWISH = Pattern("swish", Op("Mul", SOURCE, Op("Sigmoid", SOURCE)))


def test_followers_become_a_part_of_what_they_follow(find):
    text = """g (float[2] x, float[2] z) => (float[2] y) {
        [neg] n = Neg(x) [add] a = Add(z, n) [gate] s = Sigmoid(a) [mul] m = Mul(a, s)
        [relu] r = Relu(m) [abs] y = Abs(r)
    }"""
    neg = Pattern("neg", Op("Neg"), followers=(RELU, SWISH, ADD))
    taken, _ = find(text, neg, Pattern("relu alone", Op("Relu")))
    assert taken == dict.fromkeys(("neg", "add", "gate", "mul", "relu"), "neg")


def test_what_others_read_has_no_follower(find):
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        [neg] n = Neg(x) [relu] y = Relu(n) [abs] z = Abs(n)
    }"""
    assert find(text, Pattern("neg", Op("Neg"), followers=(RELU,)))[0] == {"neg": "neg"}


def test_a_follower_knows_what_it_follows(find):
    text = """g (float[2] x) => (float[2] y) {
        [neg] n = Neg(x) [one] a = Relu(n) [two] b = Relu(a) [three] y = Relu(b)
    }"""
    seen = []

    def at_most_two(match):
        seen.append((match.follows.meaning, [part.meaning for part in match.follows.followers]))
        return "two are enough" if len(seen) > 2 else len(seen)

    follower = Pattern("relu", Op("Relu", SOURCE), at_most_two)
    neg = Pattern("neg", Op("Neg"), lambda match: (match.nodes[0].name,), (follower,))
    taken, declined = find(text, neg)
    assert set(taken) == {"neg", "one", "two"}
    assert declined == {"three": "relu"}
    assert seen == [(("neg",), []), (("neg",), [1]), (("neg",), [1, 2])]


@pytest.mark.parametrize(("is_reversed", "owner"), [(False, "one"), (True, "two")])
def test_a_tier_goes_by_where_matches_begin(find, is_reversed, owner):
    text = """g (float[2] x) => (float[2] y) {
        [one] n = Neg(x) [two] a = Abs(x) [add] y = Add(n, a)
    }"""
    patterns = tuple(
        Pattern(name, Op(kind), followers=(ADD, Pattern("add", Op("Add", ANY, SOURCE))))
        for name, kind in (("two", "Abs"), ("one", "Neg"))
    )
    taken, _ = find(text, Tier(patterns, is_reversed))
    assert taken == {"one": "one", "two": "two", "add": owner}
    assert find(text, *patterns)[0]["add"] == "two"  # priority, wherever they begin


def test_matches_end_at_the_border_of_their_region(parse_model):
    graph = snapshot(load(parse_model(BIAS)))
    pair = Pattern("pair", Op("Relu", Op("Add")))
    neg = Pattern("neg", Op("Neg"), followers=(ADD, RELU))

    def nodes(table, *region):
        return [match.members for match in match_region(Region.of(graph, region), table)]

    assert nodes((neg,), 0, 1, 2) == [(0, 1, 2)]
    assert nodes((neg,), 0, 1) == [(0, 1)]
    assert nodes((neg,), 0, 2) == [(0,)]
    assert nodes((pair, Pattern("relu", Op("Relu"))), 0, 2) == [(2,)]


def test_a_predicate_that_gives_a_reason_declines(parse_model):
    graph = snapshot(load(parse_model(BIAS)))
    wide = Pattern("wide", Op("Relu"), lambda match: "it is too narrow")
    matches = find_patterns(graph, (wide,))
    assert matches.taken == {}
    assert matches.declined == {2: "wide"}
    assert matches.reasons == {2: "it is too narrow"}


SQUARES = """g (float[2] x, float[2] z) => (float[2] y) {
    [same] a = Neg(x) [twice] b = Mul(a, a)
    [first] c = Neg(z) [second] d = Neg(z) [product] e = Mul(c, d) [sum] y = Add(b, e)
}"""


def test_one_object_at_two_places_may_be_one_node(find):
    negated = Op("Neg", SOURCE)
    taken, _ = find(SQUARES, Pattern("square", Op("Mul", negated, negated)))
    assert set(taken) == {"same", "twice", "first", "second", "product"}


def test_two_objects_are_two_nodes(find):
    taken, _ = find(SQUARES, Pattern("square", Op("Mul", Op("Neg", SOURCE), Op("Neg", SOURCE))))
    assert set(taken) == {"first", "second", "product"}


def test_a_node_at_two_places_comes_once(parse_model):
    graph = snapshot(load(parse_model(SQUARES)))
    negated = Op("Neg", SOURCE)
    region = Region.of(graph, range(len(graph.nodes)))
    matches = match_region(region, (Pattern("square", Op("Mul", negated, negated)),))
    names = [[node.name for node in match.nodes] for match in matches]
    assert sorted(names) == [["product", "first", "second"], ["twice", "same"]]
