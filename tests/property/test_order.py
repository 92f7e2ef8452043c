# SPDX-License-Identifier: Apache-2.0
"""Cutting any labelled graph: sound regions, and with two labels as few as there can be."""

from collections import deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quotients import is_acyclic_quotient, is_convex

from intarsia.graph.region import Region
from intarsia.place.decide import cut_regions


@st.composite
def labelled_graphs(draw, most_nodes, most_labels):
    """Draw edges between ascending node ids, and a label per node."""
    count = draw(st.integers(1, most_nodes))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count)) if pairs else []
    labels = draw(st.lists(st.integers(0, most_labels - 1), min_size=count, max_size=count))
    return count, edges, labels


@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(drawn=labelled_graphs(most_nodes=24, most_labels=4))
def test_regions_cover_every_node_once_and_run_in_order(drawn, make_graph):
    count, edges, labels = drawn
    graph = make_graph(count, edges)
    cut = cut_regions(graph, labels)
    order = [node for _, nodes in cut for node in nodes]
    assert sorted(order) == list(range(count))
    assert all(labels[node] == label for label, nodes in cut for node in nodes)
    place = {node: i for i, node in enumerate(order)}
    assert all(place[before] < place[after] for before, after in edges)
    regions = [Region.of(graph, nodes) for _, nodes in cut]
    assert all(is_convex(region) for region in regions)
    assert is_acyclic_quotient(graph, regions)
    assert all(one[0] != other[0] for one, other in pairwise(cut))


@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(drawn=labelled_graphs(most_nodes=9, most_labels=2))
def test_two_labels_give_the_fewest_regions(drawn, make_graph):
    count, edges, labels = drawn
    assert len(cut_regions(make_graph(count, edges), labels)) == fewest_regions(
        count, edges, labels
    )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(drawn=labelled_graphs(most_nodes=16, most_labels=3))
def test_the_cut_depends_on_nothing_but_graph_and_labels(drawn, make_graph):
    count, edges, labels = drawn
    cuts = [cut_regions(make_graph(count, edges), labels) for _ in range(2)]
    assert cuts[0] == cuts[1]


def fewest_regions(count, edges, labels):
    """Search every order of the nodes, by the set that has run and the label that ran last."""
    before = [0] * count
    for source, target in edges:
        before[target] |= 1 << source
    best = {(0, -1): 0}
    queue = deque(best)
    while queue:  # 0-1 breadth first: staying on a label is free
        state = queue.popleft()
        done, last = state
        if done == (1 << count) - 1:
            return best[state]
        for node in range(count):
            if done >> node & 1 or before[node] & ~done:
                continue
            step = int(labels[node] != last)
            reached = (done | 1 << node, labels[node])
            if best[state] + step < best.get(reached, count + 1):
                best[reached] = best[state] + step
                (queue.append if step else queue.appendleft)(reached)
    raise AssertionError("the graph has a cycle")
