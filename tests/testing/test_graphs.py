# SPDX-License-Identifier: Apache-2.0
"""Random graphs: valid, equal for equal seeds, and of everything that the reference knows."""

import inspect
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference.op_run import OpRun
from onnx.reference.ops import _op_list

from intarsia.backends import corrections
from intarsia.backends.defects import Values
from intarsia.testing.differential.rounding import EXACT, Evaluation
from intarsia.testing.graphs import (
    LEFT_OUT,
    OPERATORS,
    OPSETS,
    GraphFamily,
    draw_graph,
    drawing,
    generation,
    narrow,
)
from intarsia.testing.graphs.draft import schema_of
from intarsia.testing.graphs.drawing import RECIPES
from intarsia.testing.graphs.numbers import KINDS, draw

ROUNDS = 2
DRAWN_WITH = (*Path(drawing.__file__).parent.glob("*.py"), Path(corrections.__file__))
UNDRAWN_ATTRIBUTES = {
    "LSTM": {"activation_alpha", "activation_beta"},
    "GRU": {"activation_alpha", "activation_beta"},
    "RNN": {"activation_alpha", "activation_beta"},
    "BatchNormalization": {"momentum", "training_mode"},  # of training
    "Constant": {"sparse_value", "value_string", "value_strings"},
    "Dropout": {"seed"},
    "Cast": {"saturate"},  # of 8-bit floats
    "CastLike": {"saturate"},
    "QuantizeLinear": {"saturate", "output_dtype", "block_size"},
    "DequantizeLinear": {"block_size"},
    "Optional": {"type"},
    "StringNormalizer": {"locale"},
}
"""Attributes that no graph has: of training, of 8-bit floats, of text, of blocks."""


@pytest.fixture(scope="module")
def graphs():
    """A few graphs for each operator."""
    return [draw_graph(seed) for seed in range(ROUNDS * len(OPERATORS))]


@pytest.mark.parametrize("source", DRAWN_WITH, ids=lambda path: path.stem)
def test_whatever_graphs_are_drawn_with_makes_another_generation(source, monkeypatch):
    def changed(path):
        return original(path) + b"#" * (path == source)

    original = Path.read_bytes
    assert generation.__wrapped__() == generation()
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert generation.__wrapped__() != generation()


def test_every_operator_of_the_reference_is_drawn_or_left_out_with_a_reason():
    classes = inspect.getmembers(_op_list, lambda x: inspect.isclass(x) and issubclass(x, OpRun))
    names = {re.sub(r"_\d+$", "", name) for name, _ in classes}
    known = {name for name in names if schema_of(name, max(OPSETS)) or schema_of(name, min(OPSETS))}
    assert known - set(OPERATORS) - set(LEFT_OUT) == set()
    assert not set(OPERATORS) & set(LEFT_OUT)


def test_a_seed_has_its_operator_and_a_valid_model(graphs):
    for graph in graphs:
        assert graph.heart in {node.op_type for node in graph.model.graph.node}
        assert graph.opset in OPSETS
        onnx.checker.check_model(graph.model, full_check=True)


def test_equal_seeds_give_equal_graphs(graphs):
    for graph in graphs[::40]:
        again = draw_graph(graph.seed)
        assert again.model.SerializeToString() == graph.model.SerializeToString()
        for name, array in graph.feeds.items():
            np.testing.assert_array_equal(again.feeds[name], array)


def test_both_draws_can_be_evaluated_and_have_the_declared_types(graphs):
    for graph in graphs:
        for feeds in (graph.feeds, graph.others):
            assert {value.name for value in graph.model.graph.input} == set(feeds)
        values = Evaluation(graph.model, graph.feeds).values
        for output in graph.model.graph.output:
            value = values[output.name]
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                assert element == output.type.tensor_type.elem_type


def test_opsets_dtypes_kinds_and_forms_all_occur(graphs):
    assert {graph.opset for graph in graphs} == set(OPSETS)
    assert {graph.kind for graph in graphs} == set(KINDS)
    arrays = [array for graph in graphs for array in graph.feeds.values()]
    arrays = [array for array in arrays if isinstance(array, np.ndarray)]
    assert {"float32", "float16", "float64", "int32", "int64", "bool"} <= {
        array.dtype.name for array in arrays
    }
    assert all(values.occurs(arrays) for values in Values)
    assert {0} & {array.size for array in arrays}
    assert {0} & {array.ndim for array in arrays}
    assert min(len(graph.model.graph.node) for graph in graphs) == 1
    assert max(len(graph.model.graph.node) for graph in graphs) > 6


def test_every_attribute_is_drawn():
    """Operators that are drawn in one way stand for each other."""
    missing = defaultdict(set)
    for name in OPERATORS:
        newest = schema_of(name, max(OPSETS)) or schema_of(name, min(OPSETS))
        missing[RECIPES[name]] |= set(newest.attributes) - UNDRAWN_ATTRIBUTES.get(name, set())
    for turn in range(40):
        for heart, name in enumerate(OPERATORS):
            if missing[RECIPES[name]]:
                for node in draw_graph(heart + turn * len(OPERATORS)).model.graph.node:
                    attributes = {attribute.name for attribute in node.attribute}
                    missing[RECIPES[node.op_type]] -= attributes
    assert {recipe.__name__: rest for recipe, rest in missing.items() if rest} == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_numbers_are_of_their_dtype_and_told_apart(kind, dtype):
    array = draw(np.random.default_rng(0), kind, np.dtype(dtype), (64, 8))
    assert array.dtype == dtype
    told = {"specials": Values.NAN, "infinities": Values.INFINITE, "huge": Values.HUGE}
    told |= {"tiny": Values.SUBNORMAL, "zeros": Values.NEGATIVE_ZERO}
    if kind in told:
        assert told[kind].occurs([array])
    else:
        assert np.isfinite(array).all()


def test_exact_operators_are_operators():
    assert set(OPERATORS) >= EXACT


@pytest.fixture(scope="module")
def narrow_graphs():
    """A few graphs of each form of narrow types."""
    return [draw_graph(GraphFamily.NARROW.seeds[i]) for i in range(8 * len(narrow.FORMS))]


def test_each_family_has_seeds_of_its_own():
    assert [GraphFamily.of(seed) for seed in (0, 999_999, 1_000_000, 2_000_000)] == [
        *(GraphFamily.PLAIN, GraphFamily.PLAIN, GraphFamily.NARROW, GraphFamily.FREE)
    ]
    assert all(
        GraphFamily.of(seed) is family for family in GraphFamily for seed in family.seeds[:: 10**5]
    )


def test_narrow_types_all_occur(narrow_graphs):
    assert {graph.heart for graph in narrow_graphs} == set(narrow.FORMS)
    types = set()
    for graph in narrow_graphs:
        onnx.checker.check_model(graph.model, full_check=True)
        values = Evaluation(graph.model, graph.feeds).values.values()
        types |= {array.dtype.name for array in values if isinstance(array, np.ndarray)}
    assert {"int4", "uint4", "int8", "uint8", "float16", "bfloat16"} <= types
    named = {node.op_type for graph in narrow_graphs for node in graph.model.graph.node}
    assert {"QLinearConv", "QLinearMatMul", "DynamicQuantizeLinear", "MatMulInteger"} <= named
    blocks = [graph for graph in narrow_graphs if graph.heart == "blocks"]
    assert any(
        attribute.name == "block_size"
        for graph in blocks
        for node in graph.model.graph.node
        for attribute in node.attribute
    )


def test_what_numpy_lacks_is_no_input_and_no_output(narrow_graphs):
    numpy_s = set(map(onnx.helper.np_dtype_to_tensor_dtype, map(np.dtype, "fdeilBbHhIL?")))
    for graph in narrow_graphs:
        for value in (*graph.model.graph.input, *graph.model.graph.output):
            assert value.type.tensor_type.elem_type in numpy_s


def test_a_graph_with_free_sizes_is_computed_at_several():
    narrow_types = 0
    for seed in GraphFamily.FREE.seeds[:24]:
        graph = draw_graph(seed)
        free = {
            (value.name, axis): dim.dim_param
            for value in graph.model.graph.input
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if dim.dim_param
        }
        assert free
        narrow_types += graph.heart in narrow.FORMS
        for feeds in graph.draws:
            by_name = {name: set() for name in free.values()}
            for (name, axis), symbol in free.items():
                by_name[symbol].add(np.shape(feeds[name])[axis])
            assert all(len(found) == 1 for found in by_name.values())
            for value in graph.model.graph.input:
                fixed = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
                shape = np.shape(feeds[value.name])
                assert [s for s, f in zip(shape, fixed, strict=True) if f] == [
                    f for f in fixed if f
                ]
            Evaluation(graph.model, feeds)
        assert len(graph.draws) == 3
    assert narrow_types > 2


def test_graphs_with_free_sizes_have_more_than_one():
    graphs = [draw_graph(seed) for seed in GraphFamily.FREE.seeds[:24]]
    shapes = [{tuple(map(np.shape, feeds.values())) for feeds in graph.draws} for graph in graphs]
    assert sum(len(found) > 1 for found in shapes) >= 22
