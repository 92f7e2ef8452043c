# SPDX-License-Identifier: Apache-2.0
"""What backends say that they run as one, and what becomes of it: units, groups, refusals."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.opencl import first_device
from tests.quotients import is_acyclic_quotient, is_convex

from intarsia.backends.dnnl.program import decode
from intarsia.backends.fake import FakeBackend
from intarsia.backends.native import read_payload
from intarsia.backends.native_region import NativePayload
from intarsia.backends.patterns import pattern_groups
from intarsia.backends.registry import load_backends
from intarsia.backends.values import Candidate, FusedGroup
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.graph.pattern import Op, Pattern
from intarsia.graph.region import Region
from intarsia.search.solve import solve
from intarsia.settings import Settings
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import TargetModel
from intarsia.tuning.proposals.space import MOST_GROUP_UNITS, ask_fusions, check_groups, make_space
from intarsia.tuning.proposals.units import (
    FEW_NODES,
    MOST_NODES,
    Fusions,
    grow_groups,
    make_units,
)

_WEIGHTS = ", ".join(str((7 * i) % 11 - 5) for i in range(144))

NETWORK = f"""
net (float[1,4,8,8] x, float[4,4] m) => (float[1,4] y)
<float[4,4,3,3] w = {{{_WEIGHTS}}}, float[4,4,3,3] v = {{{_WEIGHTS}}}> {{
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, v)
    d = Add(c, b)
    e = Sigmoid(d)
    f = Mul(d, e)
    g = GlobalAveragePool(f)
    h = Flatten(g)
    i = MatMul(h, m)
    j = Relu(i)
    y = Softmax(j)
}}
"""

GELU = """
net (float[8,16] x, float[16,16] w) => (float[8,16] y)
<float half = {0.5}, float one = {1.0}, float root = {1.4142135}> {
    [product] p = MatMul(x, w)
    [unit] d = Div(p, root)
    [erf] e = Erf(d)
    [shift] s = Add(e, one)
    [gate] m = Mul(p, s)
    [half] h = Mul(m, half)
    [last] y = Tanh(h)
}
"""


def _whole(setting, position):
    """The backend, context, and region of all that a target takes."""
    capability = setting.capabilities[position]
    nodes = [node.id for node in setting.graph.nodes if node.id not in capability.refusals]
    return capability.backend, capability.context, Region.of(setting.graph, nodes)


def _compiled(setting, position):
    """Names of the nodes of each primitive or kernel of a compiled region."""
    backend, context, region = _whole(setting, position)
    artifact = backend.compile(Candidate.plain(region, context.target), context)
    if backend.name == "dnnl":
        return [call.nodes for call in decode(artifact).calls]
    return [call.nodes for call in read_payload(artifact, NativePayload).calls]


@pytest.mark.parametrize("target", ["llvm", "dnnl, onnxruntime"])
def test_backends_compile_what_they_say(target, parse_model, setting_of):
    setting = setting_of(parse_model(NETWORK), target)
    backend, context, region = _whole(setting, 0)
    assert backend.groups is not None
    names = {node.id: node.name for node in setting.graph.nodes}
    said = {frozenset(names[n] for n in group.nodes) for group in backend.groups(region, context)}
    made = {frozenset(nodes) for nodes in _compiled(setting, 0) if len(set(nodes)) > 1}
    assert said == made
    assert len(said) >= 3


def test_opencl_says_what_llvm_says(parse_model, setting_of):
    first_device()
    setting = setting_of(parse_model(NETWORK), "opencl, llvm")
    found = [
        {group.nodes for group in backend.groups(region, context)}
        for backend, context, region in (_whole(setting, 0), _whole(setting, 1))
    ]
    assert found[0] == found[1]
    assert found[0]


def test_a_chain_is_taken_whole_or_not_at_all(parse_model, setting_of):
    setting = setting_of(parse_model(GELU), "dnnl, openvino, onnxruntime")
    space = make_space(setting)
    assert len(space.units.units) == len(setting.graph.nodes)
    chain = next(group.units for group in space.groups if group.position == 0)
    names = {setting.graph.nodes[n].name for n in space.units.nodes_of(chain)}
    assert names >= {"unit", "erf", "shift", "gate", "half"}
    erf = next(n.id for n in setting.graph.nodes if n.op_type == "Erf")
    assert (0, space.units.owner[erf]) in space.refused
    marginals = dict.fromkeys(range(len(space.units.units)), 1e-6)
    dear = dict.fromkeys(marginals, 1e-3)
    models = {
        0: TargetModel(1e-7, 1e-12, marginals, frozenset(marginals)),
        1: TargetModel(1e-7, 1e-12, dear, frozenset(marginals)),
    }
    refused = frozenset((position, (unit,)) for position, unit in space.refused)
    facts = Facts(models, {}, refused, lambda position, nbytes: 0.0, lambda unit: 0)
    solution = solve(formulate(space, facts))
    own = next(piece for piece in solution.chosen if erf in space.units.nodes_of(piece.ops))
    assert own.backend == 0
    assert set(own.ops) == set(chain)
    none = Facts(models, {}, refused | {(0, chain)}, lambda at, nbytes: 0.0, lambda unit: 0)
    for piece in solve(formulate(space, none)).chosen:
        assert piece.backend == 1 or erf not in space.units.nodes_of(piece.ops)


def _quantised(depth):
    """Convolutions between integers, one after another."""
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes, values = [], []
    for name, array in (("s", np.float32(0.1)), ("z", np.int8(0)), ("u", np.uint8(0))):
        values.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    rng = np.random.default_rng(0)
    last = "x"
    for i in range(depth):
        weight = rng.integers(-100, 100, (16, 16, 3, 3)).astype(np.int8)
        values.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
        nodes += [
            make("DequantizeLinear", [last, "s", "u"], [f"a{i}"], f"in{i}"),
            make("DequantizeLinear", [f"w{i}", "s", "z"], [f"b{i}"], f"weight{i}"),
            make("Conv", [f"a{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            make("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
            make("QuantizeLinear", [f"r{i}", "s", "u"], [f"q{i}"], f"out{i}"),
        ]
        last = f"q{i}"
    uint8, shape = onnx.TensorProto.UINT8, [1, 16, 8, 8]
    graph = onnx.helper.make_graph(
        nodes, "quantised", [info("x", uint8, shape)], [info(last, uint8, shape)], values
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_a_convolution_of_integers_is_one_unit(setting_of):
    depth = 6
    setting = setting_of(_quantised(depth), "dnnl, onnxruntime")
    assert len(setting.graph.nodes) > FEW_NODES
    space = make_space(setting)
    blind = make_units(setting.graph, space.targets)
    assert len(blind.units) >= 3 * depth
    assert len(space.units.units) == depth
    for unit in space.units.units:
        operators = [setting.graph.nodes[node].op_type for node in unit.nodes]
        assert {"DequantizeLinear", "Conv", "Relu", "QuantizeLinear"} <= set(operators)
    few = make_space(setting_of(_quantised(2), "dnnl, onnxruntime"))
    said = [group for group in few.groups if group.is_declared]
    assert [len(group.units) for group in said] == [len(few.units.units) // 2] * 2


def test_a_layer_of_codes_that_are_read_twice_is_one_unit(setting_of):
    """A residual sum reads the same codes: neither a DequantizeLinear nor a layer is alone."""
    model = _quantised(6)
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    model.graph.node.extend(
        [
            make("Add", ["a4", "a5"], ["sum"], "sum"),
            make("QuantizeLinear", ["sum", "s", "u"], ["codes"], "last"),
        ]
    )
    shape = [1, 16, 8, 8]
    model.graph.output.append(info("codes", onnx.TensorProto.UINT8, shape))
    setting = setting_of(model, "llvm, dnnl, onnxruntime")
    names = [node.name for node in setting.graph.nodes]
    units = [{names[node] for node in unit.nodes} for unit in make_space(setting).units.units]
    layers = [{f"{part}{i}" for part in ("in", "weight", "conv", "relu", "out")} for i in range(6)]
    assert all(layer in units for layer in layers), units
    assert {"in4/2", "in5/2", "sum", "last"} in units


def test_a_softmax_that_runs_by_itself_is_a_unit(parse_model, setting_of):
    lines = [
        f"a{i} = MatMul(x{i}, x{i}) b{i} = Add(a{i}, a{i}) "
        f"c{i} = Softmax(b{i}) x{i + 1} = Tanh(c{i})"
        for i in range(7)
    ]
    text = f"net (float[8,8] x0) => (float[8,8] x7) {{ {' '.join(lines)} }}"
    setting = setting_of(parse_model(text), "llvm, openvino")
    space = make_space(setting)
    operators = [
        [setting.graph.nodes[node].op_type for node in unit.nodes] for unit in space.units.units
    ]
    assert operators == [["MatMul", "Add"], ["Softmax", "Tanh"]] * 7
    silent = make_space(setting_of(parse_model(text), "openvino, onnxruntime"))
    assert len(silent.units.units) == 7


def test_matches_of_a_table_are_groups(parse_model):
    graph = _graph(
        parse_model,
        """
        g (float[2] x) => (float[2] y, float[2] p) {
            [a] p = Neg(x)
            [b] q = Neg(p)
            [c] r = Relu(q)
            [d] s = Neg(r)
            [e] y = Relu(s)
        }
        """,
    )
    table = (Pattern("pair", Op("Relu", Op("Neg"))), Pattern("one", Op("Neg")))
    everything = Region.of(graph, range(5))
    assert pattern_groups(table, everything) == (
        FusedGroup((1, 2), "pair"),
        FusedGroup((3, 4), "pair"),
    )
    assert pattern_groups(table, Region.of(graph, (0, 1, 3, 4))) == (FusedGroup((3, 4), "pair"),)


def _graph(parse_model, text):
    return Graph.from_model(load(parse_model(text)))


def test_groups_that_cannot_be_candidates_are_told(parse_model):
    links = " ".join(f"x{i + 1} = Relu(x{i})" for i in range(30))
    graph = _graph(parse_model, f"g (float[2] x0) => (float[2] x5, float[2] x30) {{ {links} }}")
    groups = [
        FusedGroup((0, 1), "good"),
        FusedGroup((1, 2), "shares a node"),
        FusedGroup((3, 4, 5), "has an output of the model inside"),
        FusedGroup((6, 29), "is not a chain"),
        FusedGroup((7, 30), "is not its own"),
        FusedGroup((8,), "is one node"),
    ]
    found, problems = check_groups(graph, groups, range(30))
    assert found == ((0, 1),)
    assert problems == {
        "they share nodes": 1,
        "more than one of their nodes is read outside": 2,
        "the target may not have all of their nodes": 1,
    }
    long = [FusedGroup(tuple(range(5, 5 + MOST_NODES + 1)), "long")]
    assert check_groups(graph, long, range(30)) == (
        (),
        {f"they have more than {MOST_NODES} nodes": 1},
    )


def test_a_cap_that_binds_is_reported(parse_model, setting_of):
    links = " ".join(f"x{i + 1} = Relu(x{i})" for i in range(20))
    model = parse_model(f"g (float[2] x0) => (float[2] x20) {{ {links} }}")
    operators = "+".join(["Relu"] * (MOST_GROUP_UNITS + 1))
    space = make_space(setting_of(model, f"fake:0 -groups={operators}, fake:1"))
    assert not any(group.position == 0 for group in space.groups)
    assert any(f"more than {MOST_GROUP_UNITS} units" in line for line in space.caps)
    assert "fake" in space.caps[0]


def test_a_backend_that_fails_to_say_is_guessed_at(parse_model, setting_of, monkeypatch):
    def fail(self, region, context):
        raise ValueError("out of order")

    monkeypatch.setattr(FakeBackend, "groups", fail)
    setting = setting_of(
        parse_model(NETWORK), "fake", known=load_backends(Settings.from_environment())
    )
    fusions = ask_fusions(setting, [(0,)] * len(setting.graph.nodes))
    assert fusions.groups == {}
    assert "what it fuses is not known" in fusions.left_out[0]
    assert "out of order" in fusions.left_out[0]
    assert make_space(setting).groups  # the guess


def test_what_is_no_list_of_groups_is_left_out(parse_model, setting_of, monkeypatch):
    monkeypatch.setattr(FakeBackend, "groups", lambda self, region, context: [(0, 1)])
    setting = setting_of(
        parse_model(GELU), "fake -groups=Add+Mul", known=load_backends(Settings.from_environment())
    )
    fusions = ask_fusions(setting, [(0,)] * len(setting.graph.nodes))
    assert fusions.groups == {}
    assert "AttributeError" in fusions.left_out[0]


def test_who_fails_when_asked_about_a_piece_does_not_take_it(parse_model, setting_of, monkeypatch):
    def check(self, candidate, context):
        raise ValueError("out of order")

    monkeypatch.setattr(FakeBackend, "check", check)
    known = load_backends(Settings.from_environment())
    setting = setting_of(parse_model(GELU), "fake -groups=Add+Mul, reference", known=known)
    space = make_space(setting)
    (group,) = (group for group in space.groups if group.is_declared)
    assert space.refused == {(group.position, unit) for unit in group.units}


def test_units_are_what_all_run_as_one(parse_model, setting_of):
    body = " ".join(
        f"a{i} = MatMul(x{i}, x{i}) m{i} = ReduceMax<keepdims=1>(a{i}, axis) "
        f"x{i + 1} = Div(m{i}, m{i})"
        for i in range(9)
    )
    model = parse_model(
        f"net (float[1,1] x0) => (float[1,1] x9) <int64[1] axis = {{1}}> {{ {body} }}"
    )
    pair = "-groups=MatMul+ReduceMax"
    both = make_space(setting_of(model, f"fake:0 {pair}, fake:1 {pair}"))
    assert len(both.units.units) == 9
    none = make_space(setting_of(model, "fake:0 -groups=Div+MatMul, fake:1 -groups=Div+MatMul"))
    assert len(none.units.units) == 18


_UNARY = ("Relu", "Tanh", "Softmax", "Abs")


@st.composite
def told_models(draw):
    """A random graph, and for two targets random pairs of neighbours that run as one."""
    count = draw(st.integers(26, 40))
    lines, names = [], ["x0", "x1"]
    for index in range(count):
        if draw(st.booleans()):
            operator, operands = draw(st.sampled_from(_UNARY)), [draw(st.sampled_from(names))]
        else:
            operator = draw(st.sampled_from(("Add", "MatMul")))
            operands = [draw(st.sampled_from(names)) for _ in "ab"]
        lines.append(f"n{index} = {operator}({', '.join(operands)})")
        names.append(f"n{index}")
    header = '<ir_version: 9, opset_import: ["" : 20]>\n'
    body = "\n".join(lines)
    model = onnx.parser.parse_model(
        f"{header}g (float[2,2] x0, float[2,2] x1) => (float[2,2] n{count - 1}) {{\n{body}\n}}"
    )
    graph = Graph.from_model(load(model))
    random = draw(st.randoms(use_true_random=False))
    pairs = [
        FusedGroup((node, after[0]), "")
        for node, after in enumerate(graph.successors)
        if len(after) == 1
    ]
    said = {
        position: check_groups(
            graph, random.sample(pairs, len(pairs) // 2), range(len(graph.nodes))
        )[0]
        for position in (0, 1)
    }
    return graph, said


@settings(max_examples=40, deadline=None)
@given(told_models())
def test_units_keep_what_all_keep_together(drawn):
    graph, said = drawn
    fusions = Fusions(said)
    groups = grow_groups(graph, [(0, 1, 2)] * len(graph.nodes), fusions=fusions)
    assert sorted(node for group in groups for node in group) == list(range(len(graph.nodes)))
    regions = [Region.of(graph, group) for group in groups]
    assert all(is_convex(region) and len(region.outputs) <= 1 for region in regions)
    assert is_acyclic_quotient(graph, regions)
    owner = {node: position for position, group in enumerate(groups) for node in group}
    agreed = set(said[0]) & set(said[1])
    for pair in agreed:
        heavy = [node for node in pair if graph.nodes[node].op_type == "MatMul"]
        assert len({owner[node] for node in pair}) == 1 or len(heavy) == 2
    for node in graph.nodes:
        if node.op_type != "Softmax":
            continue
        for before in graph.predecessors[node.id]:
            if owner[before] == owner[node.id]:
                pair = (before, node.id)
                is_one = any(fusions.is_one(position, pair) for position in said)
                assert is_one
