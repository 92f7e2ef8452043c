# SPDX-License-Identifier: Apache-2.0
"""Regions, convexity, quotients, and the snapshot that they are made of."""

import subprocess
import sys

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.quotients import is_acyclic_quotient, is_convex, order_quotient

from intarsia.errors import InternalError
from intarsia.graph.extract import extract
from intarsia.graph.graph import Graph
from intarsia.graph.hashes import shape_hash
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot

DIAMOND = """<ir_version: 10, opset_import: ["" : 21]>
diamond (float[4] x, float[4] y) => (float[4] out, float[4] side)
<float[4] w = {1, 2, 3, 4}>
{
    [top] a = Add(x, w)
    [left] b = Relu(a)
    [right] c = Mul(a, y)
    [bottom] out = Add(b, c)
    [aside] side = Neg(b)
}"""


def diamond() -> Graph:
    return snapshot(load(onnx.parser.parse_model(DIAMOND)))


def test_snapshot_numbers_inputs_first_then_constants_then_results():
    graph = diamond()
    assert [value.name for value in graph.values] == ["x", "y", "w", "a", "b", "c", "out", "side"]
    assert graph.inputs == (0, 1)
    assert graph.outputs == (6, 7)
    assert graph.values[2].constant is not None
    assert graph.values[3].shape == (4,)
    assert graph.values[3].dtype == "float32"
    assert graph.values[3].nbytes == 16
    assert graph.values[3].consumers == (1, 2)
    assert graph.predecessors == ((), (0,), (0,), (1, 2), (1,))
    assert graph.successors == ((1, 2), (3, 4), (3,), (), ())
    assert graph.node_named("right").inputs == (3, 1)
    assert graph.value_named("c").producer == 2


def test_graph_prints_one_line_per_node():
    text = str(diamond())
    assert text.splitlines() == [
        "graph diamond(%x:float32[4], %y:float32[4]) -> (%out:float32[4], %side:float32[4])",
        "  0: %a:float32[4] = Add(%x, const %w:float32[4])  # top",
        "  1: %b:float32[4] = Relu(%a)  # left",
        "  2: %c:float32[4] = Mul(%a, %y)  # right",
        "  3: %out:float32[4] = Add(%b, %c)  # bottom",
        "  4: %side:float32[4] = Neg(%b)  # aside",
    ]


def test_region_derives_its_border():
    graph = diamond()
    region = Region.of(graph, [2, 0])
    assert region.nodes == (0, 2)
    assert region.inputs == (0, 1)
    assert region.constants == (2,)
    assert region.outputs == (3, 5)
    assert 2 in region
    assert 1 not in region
    assert "2" not in region
    assert str(region) == "2 nodes [0,2]"


def test_whole_graph_lists_inputs_and_outputs_in_model_order():
    graph = diamond()
    assert graph.whole.inputs == graph.inputs
    assert graph.whole.outputs == graph.outputs
    assert len(graph.whole) == 5


def test_regions_are_sets():
    graph = diamond()
    first, second = Region.of(graph, [0, 1]), Region.of(graph, [1, 2])
    assert (first | second).nodes == (0, 1, 2)
    assert (first & second).nodes == (1,)
    assert (first - second).nodes == (0,)
    assert first <= graph.whole
    assert not Region.of(graph, [])
    assert is_convex(Region.of(graph, []))
    assert hash(first) == hash(Region.of(graph, (1, 0)))
    assert first == Region.of(graph, (1, 0))
    with pytest.raises(InternalError, match="two graphs"):
        first | diamond().whole
    with pytest.raises(InternalError, match="not in"):
        Region.of(graph, [5])


def test_a_path_through_the_outside_makes_a_region_not_convex():
    graph = diamond()
    assert not is_convex(Region.of(graph, [0, 1, 3]))
    assert not is_convex(Region.of(graph, [0, 3]))
    assert is_convex(Region.of(graph, [0, 1, 2]))
    assert is_convex(Region.of(graph, [1, 2]))


CROSS = """<ir_version: 10, opset_import: ["" : 21]>
cross (float[4] x, float[4] y) => (float[4] d, float[4] c)
{
    [n0] a = Relu(x)
    [n1] b = Neg(y)
    [n2] c = Abs(a)
    [n3] d = Exp(b)
    [n4] e = Add(c, d)
}"""


def test_convex_regions_may_still_depend_on_each_other_in_a_circle():
    graph = snapshot(load(onnx.parser.parse_model(CROSS)))
    first, second = Region.of(graph, [0, 3]), Region.of(graph, [1, 2])
    assert is_convex(first)
    assert is_convex(second)
    assert not is_acyclic_quotient(graph, [first, second])
    with pytest.raises(InternalError, match="cycle"):
        order_quotient(graph, [first, second])
    with pytest.raises(InternalError, match="'n0' lies in two"):
        is_acyclic_quotient(graph, [first, first])


def test_quotient_order_is_by_smallest_node_and_counts_uncovered_nodes():
    graph = snapshot(load(onnx.parser.parse_model(CROSS)))
    regions = [Region.of(graph, [4]), Region.of(graph, [1, 3]), Region.of(graph, [0])]
    assert order_quotient(graph, regions) == (2, 1, 0)
    graph = diamond()
    assert not is_acyclic_quotient(graph, [Region.of(graph, [0, 3])])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_quotients_agree_with_their_definition(data):
    count = data.draw(st.integers(1, 9))
    nodes = []
    for index in range(count):
        reads = data.draw(st.lists(st.integers(-1, index - 1), min_size=2, max_size=2))
        names = [f"v{read}" if read >= 0 else "x" for read in reads]
        nodes.append(helper.make_node("Add", names, [f"v{index}"]))
    info = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [2]) for i in range(count)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    proto = helper.make_graph(nodes, "random", [x], info)
    opsets = [helper.make_opsetid("", 21)]
    graph = snapshot(load(helper.make_model(proto, opset_imports=opsets, ir_version=10)))
    owner = [data.draw(st.integers(0, 2)) for _ in range(count)]
    regions = [Region.of(graph, [n for n in range(count) if owner[n] == part]) for part in range(3)]
    edges = {(owner[n], owner[m]) for n in range(count) for m in graph.successors[n]}
    edges = {(a, b) for a, b in edges if a != b}
    closed = set(edges)
    for _ in range(3):
        closed |= {(a, d) for a, b in closed for c, d in edges if b == c}
    assert is_acyclic_quotient(graph, regions) == all(a != b for a, b in closed)
    if is_acyclic_quotient(graph, regions):
        place = {part: at for at, part in enumerate(order_quotient(graph, regions))}
        assert all(place[a] < place[b] for a, b in edges)


def _chain(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [2]) for i in (0, count)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _fan(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"v{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(count)], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(nodes, "fan", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [_chain, _fan])
def test_a_hundred_thousand_nodes_need_no_recursion(make):
    graph = snapshot(ir.from_proto(make(100_000)))
    count = len(graph.nodes)
    assert graph.whole.nodes == tuple(range(count))
    assert is_convex(graph.whole)
    parts = [Region.of(graph, range(i, min(i + 100, count))) for i in range(0, count, 100)]
    assert order_quotient(graph, parts) == tuple(range(len(parts)))
    assert len(shape_hash(graph.whole)) == 32
    assert extract(graph.whole).inputs == graph.inputs


def test_graph_and_region_import_neither_onnx_nor_onnx_ir():
    code = (
        "import sys, intarsia.graph.graph, intarsia.graph.region;"
        "sys.exit(any(name in sys.modules for name in ('onnx', 'onnx_ir', 'onnxscript')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
