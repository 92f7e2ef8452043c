# SPDX-License-Identifier: Apache-2.0
"""Units: a partition of the graph into convex pieces with one exit, whose quotient is acyclic."""

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quotients import is_acyclic_quotient, is_convex

from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.tuning.proposals.units import FEW_NODES, grow_groups, is_light, make_units

_HEADER = '<ir_version: 9, opset_import: ["" : 20]>\n'
_UNARY = ("Relu", "Tanh", "Abs", "Neg")
_BINARY = ("Add", "Mul", "MatMul")


@st.composite
def random_models(draw):
    """A random graph of small square matrices, some of them outputs."""
    count = draw(st.integers(1, 40))
    lines, names = [], ["x0", "x1"]
    for index in range(count):
        if draw(st.booleans()):
            lines.append(
                f"n{index} = {draw(st.sampled_from(_UNARY))}({draw(st.sampled_from(names))})"
            )
        else:
            left, right = draw(st.sampled_from(names)), draw(st.sampled_from(names))
            lines.append(f"n{index} = {draw(st.sampled_from(_BINARY))}({left}, {right})")
        names.append(f"n{index}")
    outputs = {f"n{count - 1}", *draw(st.lists(st.sampled_from(names[2:]), max_size=3))}
    signature = ", ".join(f"float[2,2] {name}" for name in sorted(outputs))
    body = "\n".join(lines)
    text = f"{_HEADER}g (float[2,2] x0, float[2,2] x1) => ({signature}) {{\n{body}\n}}"
    model = onnx.parser.parse_model(text)
    return Graph.from_model(load(model)), draw(st.randoms(use_true_random=False))


@settings(max_examples=60, deadline=None)
@given(random_models())
def test_groups_cover_the_graph_with_single_exits(drawn):
    graph, random = drawn
    targets = [tuple(sorted(random.sample(range(3), random.randint(1, 3)))) for _ in graph.nodes]
    groups = grow_groups(graph, targets)
    assert sorted(node for group in groups for node in group) == list(range(len(graph.nodes)))
    regions = [Region.of(graph, group) for group in groups]
    for group, region in zip(groups, regions, strict=True):
        assert is_convex(region)
        assert len(region.outputs) <= 1
        assert set.intersection(*(set(targets[node]) for node in group))
        assert sum(not is_light(graph.nodes[node]) for node in group) <= 1
    assert is_acyclic_quotient(graph, regions)


@settings(max_examples=40, deadline=None)
@given(random_models())
def test_units_are_numbered_topologically(drawn):
    graph, _ = drawn
    units = make_units(graph, [(0, 1)] * len(graph.nodes))
    for node, after in enumerate(graph.successors):
        for other in after:
            assert units.owner[node] <= units.owner[other]
    for position, unit in enumerate(units.units):
        assert all(units.owner[node] == position for node in unit.nodes)
    if len(graph.nodes) <= FEW_NODES:
        assert all(len(unit.nodes) == 1 for unit in units.units)


def _graph(parse_model, text):
    return Graph.from_model(load(parse_model(text)))


def test_an_epilogue_joins_its_product(parse_model):
    graph = _graph(
        parse_model,
        """
        g (float[4,4] x, float[4,4] r) => (float[4,4] y) {
            m = MatMul(x, x)
            s = Sigmoid(m)
            g = Mul(m, s)
            y = Add(g, r)
        }
        """,
    )
    assert grow_groups(graph, [(0,)] * 4) == [(0, 1, 2, 3)]


def test_a_join_takes_one_branch(parse_model):
    graph = _graph(
        parse_model,
        """
        g (float[4,4] x) => (float[4,4] y) {
            a = MatMul(x, x)
            b = MatMul(x, x)
            y = Add(a, b)
        }
        """,
    )
    assert sorted(grow_groups(graph, [(0,)] * 3)) == [(0,), (1, 2)]


def test_what_fewer_targets_take_stays_apart(parse_model):
    graph = _graph(
        parse_model,
        """
        g (float[4,4] x) => (float[4,4] y) {
            a = MatMul(x, x)
            y = Relu(a)
        }
        """,
    )
    assert grow_groups(graph, [(0, 1), (0,)]) == [(0,), (1,)]
    assert grow_groups(graph, [(0,), (0, 1)]) == [(0, 1)]
