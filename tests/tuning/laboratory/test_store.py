# SPDX-License-Identifier: Apache-2.0
"""The files between a laboratory and its workers: ids mean the same on both sides."""

import numpy as np
import pytest

from intarsia.graph.hashes import content_hash
from intarsia.tuning.laboratory.store import (
    Mark,
    WorkerStage,
    graph_digest,
    lay_out,
    map_values,
    open_model,
    write_model,
)
from intarsia.zoo import build

MODELS = {
    "constants": """
        net (float[2,4] x) => (float[2,2] y, float[1] c)
        <float[4,2] w = {1,2,3,4,5,6,7,8}, float[1] c = {3}> { y = MatMul(x, w) }""",
    "absent outputs": """
        net (float[1,4] x) => (float[1,2] values)
        <int64[1] k = {2}> { values, ignored = TopK(x, k) }""",
    "bodies": """
        net (bool[1] b, float[2] x) => (float[2] y) {
            y = If (b) <then_branch = t () => (float[2] p) { p = Neg(x) },
                        else_branch = e () => (float[2] q) { q = Abs(x) }>
        }""",
    "text": """
        net (string[3] x) => (string[3] y) { y = Identity(x) }""",
}


def graph_of(name, parse_model, setting_of):
    model = parse_model(MODELS[name]) if name in MODELS else build(name)
    return setting_of(model, "reference").graph


@pytest.mark.parametrize("name", [*MODELS, "random:1", "random:2", "squeezenet"])
def test_a_model_is_the_same_graph_on_the_other_side(name, parse_model, setting_of, tmp_path):
    graph = graph_of(name, parse_model, setting_of)
    write_model(graph, tmp_path)
    opened = open_model(tmp_path)
    assert graph_digest(opened) == graph_digest(graph)
    assert content_hash(opened.whole) == content_hash(graph.whole)


def test_another_model_has_another_digest(parse_model, setting_of):
    graphs = [graph_of(name, parse_model, setting_of) for name in MODELS]
    assert len({graph_digest(graph) for graph in graphs}) == len(graphs)
    first = graphs[0]
    assert graph_digest(first.with_ends(first.inputs, ())) != graph_digest(first)


def test_values_written_are_values_read(parse_model, setting_of, tmp_path):
    graph = graph_of("random:1", parse_model, setting_of)
    stored = lay_out(graph.values)
    random = np.random.default_rng(0)
    written = {}
    for value, array in map_values(tmp_path, stored, is_new=True).items():
        array[...] = written[value] = random.integers(0, 9, array.shape).astype(array.dtype)
    read = map_values(tmp_path, stored)
    assert read.keys() == written.keys() == {v.id for v in graph.values if v.is_static}
    for value, array in read.items():
        np.testing.assert_array_equal(array, written[value])
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_a_mark_outlives_who_set_it(tmp_path):
    Mark(tmp_path).set(WorkerStage.RUN, 7)
    assert Mark(tmp_path).get() == (WorkerStage.RUN, 7)
