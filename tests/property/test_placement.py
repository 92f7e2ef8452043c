# SPDX-License-Identifier: Apache-2.0
"""Whatever the graph, the machine, the pins and the exclusions: right numbers, sound plans."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.quotients import is_acyclic_quotient, is_convex

import intarsia
from intarsia.errors import PlacementError, UnsupportedError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.passes.prepare import prepare
from intarsia.place.annotations import annotate_pins
from intarsia.plan import CopyStep, TensorStorage
from intarsia.target import CompilationConfig

UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity")
BINARY = ("Add", "Sub", "Mul")
OTHER = ("MatMul", "Reshape", "Concat", "Split")
OPERATORS = (*UNARY, *BINARY, *OTHER)
SHAPES = ((2, 3), (3, 2), (6,), (4,), (1, 3))


class GraphBuilder:
    """Writes a random graph, one node at a time."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes = []
        self.constants = []
        self.shapes = {}  # of every value that a node may read, in order
        self.inputs = []
        for i in range(draw(st.integers(1, 3))):
            self.inputs.append(f"x{i}")
            self.shapes[f"x{i}"] = draw(st.sampled_from(SHAPES))
        if draw(st.booleans()):
            self.constant(draw(st.sampled_from(SHAPES)))

    def constant(self, shape, array=None):
        name = f"c{len(self.constants)}"
        if array is None:
            size = int(np.prod(shape))
            array = (np.arange(size, dtype=np.float32).reshape(shape) % 5 - 2) / 4
            self.shapes[name] = tuple(shape)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def value(self, fits=lambda shape: True):
        """Draw a value that fits, or return None."""
        found = [name for name, shape in self.shapes.items() if fits(shape)]
        return self.draw(st.sampled_from(found)) if found else None

    def add(self, op, inputs, shapes, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}", **attributes))
        self.shapes.update(zip(names, shapes, strict=True))

    def grow(self):
        op = self.draw(st.sampled_from(OPERATORS))
        name = self.value()
        shape = self.shapes[name]
        if op in BINARY:
            other = self.value(lambda found: found == shape)
            self.add(op, [name, other], [shape])
        elif op == "MatMul" and len(shape) == 2:
            other = self.value(lambda found: len(found) == 2 and found[0] == shape[1])
            other = other or self.constant((shape[1], 2))
            self.add(op, [name, other], [(shape[0], self.shapes[other][1])])
        elif op == "Reshape":
            flat = (int(np.prod(shape)),)
            new = flat if len(shape) == 2 else (1, *flat)
            self.add(op, [name, self.constant(None, np.array(new, np.int64))], [new])
        elif op == "Concat" and np.prod(shape) < 30:
            other = self.value(lambda found: found[1:] == shape[1:] and len(found) == len(shape))
            self.add(op, [name, other], [(shape[0] + self.shapes[other][0], *shape[1:])], axis=0)
        elif op == "Split" and shape[0] % 2 == 0:
            half = (shape[0] // 2, *shape[1:])
            self.add(op, [name], [half, half], axis=0, num_outputs=2)
        else:
            self.add(self.draw(st.sampled_from(UNARY)), [name], [shape])

    def model(self):
        made = [name for node in self.nodes for name in node.output]
        outputs = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
        if self.draw(st.integers(0, 7)) == 0:  # an input or a constant is an output
            outputs.append(self.draw(st.sampled_from([n for n in self.shapes if n not in made])))
        graph = helper.make_graph(
            self.nodes,
            "random",
            [self.typed(name) for name in self.inputs],
            [self.typed(name) for name in outputs],
            self.constants,
        )
        return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])

    def typed(self, name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])


@dataclass
class Case:
    """One thing to compile."""

    model: onnx.ModelProto
    declared: dict[str, tuple[str, ...]]  # by the target's short name, the operators it takes
    targets: str
    pins: dict[str, str]
    exclude: list[str]

    def operator(self, name):
        return next(node.op_type for node in self.model.graph.node if node.name == name)

    def is_excluded(self, target, name):
        return any(
            text in (f"{target}:{self.operator(name)}", f"{target}:{name}") for text in self.exclude
        )

    def must_refuse(self):
        """Whether some pin is impossible, unless its node is folded away."""
        return any(
            self.operator(name) not in self.declared[target] or self.is_excluded(target, name)
            for name, target in self.pins.items()
        )


@st.composite
def cases(draw):
    builder = GraphBuilder(draw)
    for _ in range(draw(st.integers(2, 14))):
        builder.grow()
    declared = {"reference": OPERATORS}
    texts = {"reference": "reference"}
    for ordinal in range(draw(st.integers(1, 3))):
        name = f"fake:{ordinal}"
        operators = draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=8, unique=True))
        declared[name] = tuple(operators)
        texts[name] = f"{name} -ops={','.join(operators)}"
    order = draw(st.permutations(list(texts)))
    model = builder.model()
    names = [node.name for node in model.graph.node]
    case = Case(model, declared, ", ".join(texts[name] for name in order), {}, [])
    may_be_impossible = draw(st.integers(0, 9)) == 0
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        legal = [target for target in order if case.operator(name) in declared[target]]
        case.pins[name] = draw(st.sampled_from(order if may_be_impossible else legal))
    for _ in range(draw(st.integers(0, 2))):
        subject = draw(st.sampled_from(names))
        subject = case.operator(subject) if draw(st.booleans()) else subject
        case.exclude.append(f"{draw(st.sampled_from(order))}:{subject}")
    return case


@pytest.mark.exhaustive
@settings(
    max_examples=600,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(), seed=st.integers(0, 3))
def test_any_placement_computes_what_the_model_says(case, seed, backends):
    options = {"exclude": case.exclude, "pins": case.pins, "host": "reference"}
    try:
        exe = intarsia.compile(
            case.model, case.targets, num_threads=1, backends=backends, **options
        )
    except PlacementError:
        assert case.must_refuse()
        return
    except UnsupportedError:
        assert any(text.startswith("reference:") for text in case.exclude)
        return
    check_constraints(case, exe)
    check_regions(case, exe)
    check_plan(exe.plan)
    session = onnx.reference.ReferenceEvaluator(case.model)
    names = [output.name for output in case.model.graph.output]
    for run in range(2):  # the second meets what the first left in the arena
        rng = np.random.default_rng((seed, run))
        feeds = {
            spec.name: rng.uniform(-1, 1, spec.shape).astype(np.float32) for spec in exe.inputs
        }
        expected = dict(zip(names, session.run(names, feeds), strict=True))
        actual = exe.run(feeds)
        assert list(actual) == names
        for name in names:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-5)


def check_constraints(case, exe):
    """Every pin is obeyed, and no node is where it is refused or excluded."""
    config = CompilationConfig.resolve(case.targets, host="reference")
    meant = {name: str(config.find(name)) for name in case.declared}
    by_text = {text: name for name, text in meant.items()}
    for region in exe.placement.regions:
        target = by_text[region.target]
        for node in region.nodes:
            assert node.op_type in case.declared[target]
            for name in node.origins or (node.name,):
                assert target == case.pins.get(name, target)
            words = {node.op_type, node.name, *node.origins}
            assert not any(f"{target}:{word}" in case.exclude for word in words)


def check_regions(case, exe):
    """Every prepared node is in one region; each is convex; they can run one after another."""
    loaded = load(case.model)
    config = CompilationConfig.resolve(case.targets, host="reference")
    annotate_pins(loaded, case.pins, config)
    graph = prepare(loaded).graph
    placed = [[node.name for node in region.nodes] for region in exe.placement.regions]
    assert sorted(name for names in placed for name in names) == sorted(
        node.name for node in graph.nodes
    )
    regions = [Region.of(graph, [graph.node_named(name).id for name in names]) for names in placed]
    assert all(is_convex(region) for region in regions)
    assert is_acyclic_quotient(graph, regions)


def check_plan(plan):
    """Nothing is read before it is written or after it is overwritten, nor copied twice."""
    assert len({(tensor.name, tensor.device) for tensor in plan.tensors}) == len(plan.tensors)
    written = {*plan.inputs}
    written |= {
        i for i, tensor in enumerate(plan.tensors) if tensor.storage is TensorStorage.CONSTANT
    }
    lives = {}
    for when, step in enumerate(plan.steps):
        is_copy = isinstance(step, CopyStep)
        reads = (step.source,) if is_copy else step.inputs
        writes = (step.destination,) if is_copy else step.outputs
        if is_copy:
            assert plan.tensors[step.source].device != plan.tensors[step.destination].device
        assert written.issuperset(reads)
        assert written.isdisjoint(writes)
        written.update(writes)
        for position in (*reads, *writes):
            lives[position] = (lives.get(position, (when, when))[0], when)
    assert written.issuperset(plan.outputs)
    for position in plan.outputs:
        lives[position] = (lives.get(position, (0, 0))[0], len(plan.steps))
    arena = [
        (plan.tensors[position], life)
        for position, life in lives.items()
        if plan.tensors[position].storage is TensorStorage.ARENA
    ]
    for i, (one, (first, last)) in enumerate(arena):
        assert one.offset % 64 == 0
        assert one.offset + one.spec.nbytes <= plan.arena_bytes[one.device]
        for other, (start, stop) in arena[:i]:
            if one.device == other.device and first <= stop and start <= last:
                ends = (one.offset + one.spec.nbytes, other.offset + other.spec.nbytes)
                assert ends[0] <= other.offset or ends[1] <= one.offset
