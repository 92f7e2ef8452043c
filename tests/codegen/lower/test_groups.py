# SPDX-License-Identifier: Apache-2.0
"""Which operators become one kernel."""

import pytest
from hypothesis import HealthCheck, given, settings
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import small_model

from intarsia.codegen.lower.groups import make_groups
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.operators import find
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


def groups_of(model):
    graph = snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    operations = [Operation(graph, graph.nodes[node]) for node in region.nodes]
    found = make_groups(
        graph,
        operations,
        frozenset(region.outputs),
        lambda operation: find(operation).has_epilogue,
        is_elementwise,
    )
    return graph, region, found


def operators_of(model):
    return [" ".join(member.op_type for member in group.members) for group in groups_of(model)[2]]


CASES = {
    "a chain joins the convolution": (
        "y: a = Conv(x, w) b = Mul(a, a) c = Add(b, b) y = Relu(c)",
        ["Conv Mul Add Relu"],
    ),
    "a residual addition joins the later producer": (
        "y: a = Conv(x, w) b = Relu(a) c = Conv(b, w2) d = Add(c, a) y = Relu(d)",
        ["Conv", "Relu", "Conv Add Relu"],
    ),
    "whichever side it is on": (
        "y: a = Conv(x, w) b = Conv(x, w2) y = Add(b, a)",
        ["Conv", "Conv Add"],
    ),
    "a diamond joins when all of it is there": (
        "y: a = Conv(x, w) b = Sigmoid(a) y = Mul(a, b)",
        ["Conv Sigmoid Mul"],
    ),
    "a wide diamond too": (
        "y: a = Conv(x, w) b = Sigmoid(a) c = Tanh(a) d = Add(b, c) y = Mul(d, a)",
        ["Conv Sigmoid Tanh Add Mul"],
    ),
    "what leaves the region is not swallowed": (
        "y, a: a = Conv(x, w) y = Relu(a)",
        ["Conv", "Relu"],
    ),
    "what two read is not swallowed": (
        "y, z: a = Conv(x, w) y = Relu(a) z = Neg(a)",
        ["Conv", "Relu", "Neg"],
    ),
    "an output in the middle of a chain ends it": (
        "y, b: a = Conv(x, w) b = Relu(a) y = Neg(b)",
        ["Conv Relu", "Neg"],
    ),
    "a value that is read twice by one operator": (
        "y: a = Conv(x, w) y = Mul(a, a)",
        ["Conv Mul"],
    ),
    "nothing joins what only moves": (
        "y: a = Transpose<perm = [0, 2, 3, 1]>(x) y = Relu(a)",
        ["Transpose", "Relu"],
    ),
    "what grows by a broadcast is a kernel of its own": (
        "y: p = GlobalAveragePool(x) s = Sigmoid(p) y = Mul(x, s)",
        ["GlobalAveragePool Sigmoid", "Mul"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_groups(case):
    text, wanted = CASES[case]
    outputs, body = text.split(": ", 1)
    weights = dict.fromkeys(("w", "w2"), (8, 8, 1, 1))
    assert operators_of(small_model(outputs, body, {"x": (1, 8, 5, 5)}, weights)) == wanted


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_every_node_is_in_one_group_and_groups_can_run_in_order(model):
    graph, region, groups = groups_of(model)
    members = [member.node.id for group in groups for member in group.members]
    assert sorted(members) == list(region.nodes)
    known = {*region.inputs, *(value.id for value in graph.values if value.constant is not None)}
    for group in groups:
        for member in group.members:
            assert all(value in known for value in member.node.inputs if value >= 0)
            known.update(value for value in member.node.outputs if value >= 0)
        inside = {value for member in group.members[:-1] for value in member.node.outputs}
        own = {member.node.id for member in group.members}
        for value in inside:  # nobody else sees it
            assert value not in region.outputs
            assert own.issuperset(graph.values[value].consumers)
