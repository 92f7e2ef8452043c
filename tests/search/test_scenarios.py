# SPDX-License-Identifier: Apache-2.0
"""The partitions that TVM's Collage tests expect, with its mock costs: cost times 0.9 per operator.

apache/tvm v0.11, tests/python/relay/collage/test_collage_partitioner.py.
"""

from itertools import combinations

import pytest
from tests.search.brute import graph_problem

from intarsia.search.problem import Label
from intarsia.search.solve import solve

NATIVE, EXTERNAL = 0, 1


def connected(inputs, ops):
    inside, reached = set(ops), {ops[0]}
    while fresh := {
        b for a in reached for b in inside - reached if a in inputs[b] or b in inputs[a]
    }:
        reached |= fresh
    return reached == inside


def fused(inputs, ops, depth, cost, backend):
    """Every connected union of up to `depth` of these operators."""
    return tuple(
        Label(union, backend, backend, sum(cost * 0.9**place for place in range(size)), backend)
        for size in range(2, depth + 1)
        for union in combinations(ops, size)
        if connected(inputs, union)
    )


def partition(
    inputs, native, external, *, unsupported=(), native_depth=1, external_depth=1, hosts=()
):
    """Return the calls of the best plan as (backend, operators)."""
    count = len(inputs)
    supported = [op for op in range(count) if op not in unsupported]
    costs = [
        [0.0 if op in hosts else native, external if op in supported else None]
        for op in range(count)
    ]
    labels = fused(inputs, range(count), native_depth, native, NATIVE)
    labels += fused(inputs, supported, external_depth, external, EXTERNAL)
    problem = graph_problem(inputs, costs, transition=0.0, call_seconds=(1e-6, 1e-6), labels=labels)
    return [(call.backend, call.ops) for call in solve(problem).calls]


def test_a_single_operator_stays_native():
    assert partition([[]], 1, 2) == [(NATIVE, (0,))]


def test_a_single_operator_goes_out():
    assert partition([[]], 2, 1) == [(EXTERNAL, (0,))]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_diamond_keeps_a_valid_topology(depth):
    found = partition([[], [0], [1], [1, 2]], 2, 1, unsupported=(1,), external_depth=depth)
    assert found == [(EXTERNAL, (0,)), (NATIVE, (1,)), (EXTERNAL, (2, 3))]


@pytest.mark.parametrize(("depth", "native"), [(1, 0), (2, 2), (3, 3)])
def test_native_fuses_up_to_its_depth(depth, native):
    found = partition([[], [0], [1]], 100, 99, native_depth=depth)
    assert sum(len(ops) for backend, ops in found if backend == NATIVE) == native


@pytest.mark.parametrize(("depth", "external"), [(1, 0), (2, 2), (3, 3)])
def test_the_external_compiler_fuses_up_to_its_depth(depth, external):
    found = partition([[], [0], [1]], 99, 100, external_depth=depth)
    assert sum(len(ops) for backend, ops in found if backend == EXTERNAL) == external


def test_outputs_of_one_backend_are_one_call():
    assert sorted(partition([[], [], []], 2, 1, unsupported=(2,))) == [
        (NATIVE, (2,)),
        (EXTERNAL, (0, 1)),
    ]


def test_a_tuple_on_the_host_separates_two_calls():
    found = partition([[], [], [0, 1], [2]], 2, 1, unsupported=(2,), hosts=(2,))
    assert found == [(EXTERNAL, (0, 1)), (NATIVE, (2,)), (EXTERNAL, (3,))]


def test_fusion_outweighs_dearer_operators():
    inputs = [[], [0], [], [2], [1, 3], [4], [5]]
    found = partition(inputs, 5, 6, unsupported=(2, 6), external_depth=5)
    assert found == [(NATIVE, (2,)), (EXTERNAL, (0, 1, 3, 4, 5)), (NATIVE, (6,))]


def test_a_double_residual_splits_around_what_is_not_supported():
    inputs = [[], [0], [0, 1], [1, 2]]
    found = partition(inputs, 2, 1, unsupported=(1,), external_depth=3)
    assert found == [(EXTERNAL, (0,)), (NATIVE, (1,)), (EXTERNAL, (2, 3))]


def test_everything_fuses_where_all_support_it():
    inputs = [[], [], [0, 1], [0, 2]]
    found = partition(inputs, 2, 1, native_depth=4, external_depth=4)
    assert found == [(EXTERNAL, (0, 1, 2, 3))]
