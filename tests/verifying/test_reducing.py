# SPDX-License-Identifier: Apache-2.0
"""The smallest model that shows a fault: fewer nodes, smaller shapes, and how it is written."""

import numpy as np
import onnx
import pytest

from intarsia.backends.registry import load_backends
from intarsia.errors import BackendError, InputError
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.process.workers import CallOutcome
from intarsia.settings import Settings
from intarsia.verifying import sides
from intarsia.verifying.bisecting import bisect
from intarsia.verifying.reducing import Reducer
from intarsia.verifying.references import evaluate_all
from intarsia.verifying.sides import SideTrial, check_side, try_model, warm
from intarsia.verifying.values import Fault, Symptom


@pytest.fixture
def model(parse_model):
    text = "".join(
        f"[n{i}] v{i + 1} = {op}({'v' + str(i)}{', x' if op in ('Add', 'Mul') else ''})"
        for i, op in enumerate(["Relu", "Add", "Tanh", "Softmax", "Mul", "Sin", "Add", "Exp"])
    )
    return parse_model(f"g (float[6,8] x) => (float[6,8] y) {{ v0 = Neg(x) {text} y = Abs(v8) }}")


@pytest.fixture
def here(monkeypatch):
    """A trial in this process: what a worker does, without one."""

    def call(self, function, *arguments, arrays=None, limits=None):
        if function.endswith("warm"):
            return CallOutcome(value=warm(*arguments))
        return CallOutcome(value=try_model(*arguments, arrays=arrays))

    monkeypatch.setattr(sides.Worker, "call", call)
    monkeypatch.setattr(sides.Worker, "pid", property(lambda self: 1 if sides._loaded else None))


@pytest.mark.parametrize(
    ("fault", "operators", "first"),
    [
        ("-fault=wrong -fault-ops=Softmax", ("Softmax",), "n3"),
        ("-fault=nan -fault-ops=Mul+Sin", ("Mul", "Sin"), "n5"),
        ("-fault=layout -fault-ops=Tanh+Softmax+Mul", ("Tanh", "Softmax", "Mul"), "n4"),
        ("-fault=run -fault-ops=Exp", ("Exp",), "n7"),
    ],
)
def test_the_first_node_and_the_fewest_that_show_it(model, here, tmp_path, fault, operators, first):
    suspect = f"ours: fake {fault}"
    found = bisect(model, suspect, out=tmp_path / "small")
    assert (found.node, found.smallest.operators) == (first, operators)
    small = onnx.load(tmp_path / "small" / "model.onnx")
    assert [node.op_type for node in small.graph.node] == list(operators)
    with np.load(tmp_path / "small" / "inputs.npz") as opened:
        feeds = {name: opened[name] for name in opened.files}
    least = 4 if "layout" in fault else 1  # a row or a column lies alike in both orders
    assert max(array.size for array in feeds.values()) <= 4 * least
    assert found.smallest.command in (tmp_path / "small" / "README.md").read_text()
    again = bisect(small, suspect, feeds=feeds, out=tmp_path / "again")
    assert again.fault.symptom is found.fault.symptom


@pytest.mark.parametrize(
    ("fault", "operators", "most"),
    [
        ("-fault=wrong -fault-ops=Softmax", ("Softmax",), 12),
        ("-fault=wrong -fault-ops=Mul+Sin", ("Mul", "Sin"), 24),
        ("-fault=layout -fault-ops=Tanh+Softmax+Mul", ("Tanh", "Softmax", "Mul"), 40),
    ],
)
def test_few_nodes_are_tried_first_where_a_region_is_at_fault(model, here, fault, operators, most):
    graph = Graph.from_model(load(model))
    values = evaluate_all(graph, {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)})
    trial = SideTrial(f"ours: fake {fault}")
    reduced = Reducer(graph, values, trial.judge, is_direct=True).reduce()
    assert reduced.operators == operators
    assert trial.trials <= most


def test_sides_that_agree_have_no_first_node(model, here, tmp_path):
    found = bisect(model, "openvino", "onnxruntime", out=tmp_path / "small")
    assert (found.fault, found.node, found.smallest) == (None, "", None)
    assert not (tmp_path / "small").exists()


def test_a_defect_of_a_library_is_found_as_it_is(parse_model, here, tmp_path):
    """OpenVINO leaves `antialias` out: by its own API, which is not placed around."""
    model = parse_model(
        "g (float[1,1,8,8] x) => (float[1,1,4,4] z) <float[4] scales = {1.0, 1.0, 0.5, 0.5}> {"
        ' a = Relu(x) b = Add(a, x) y = Resize<mode="linear", antialias=1>(b, , scales)'
        " z = Tanh(y) }"
    )
    found = bisect(model, "openvino", "onnxruntime", out=tmp_path)
    assert (found.operator, found.smallest.operators) == ("Resize", ("Resize",))
    assert found.fault.worst.ulps > 1000


def test_a_fault_that_ends_the_process_is_reduced(model):
    graph = Graph.from_model(load(model))
    values = evaluate_all(graph, {"x": np.ones((6, 8), np.float32)})

    def judge(payload, feeds):
        names = [node.op_type for node in onnx.load_from_string(payload).graph.node]
        assert len(feeds) <= 2
        crashes = "Tanh" in names and "Sin" in names  # not one beside the other
        return Fault(Symptom.CRASHED, "gone") if crashes else None

    reduced = Reducer(graph, values, judge).reduce()
    assert reduced.operators == ("Tanh", "Sin")
    assert Reducer(graph, values, lambda *_: None).reduce() is None


def test_a_worker_that_died_is_a_fault_and_names_it(monkeypatch):
    calls = []

    def call(self, function, *arguments, **more):
        calls.append(function)
        if function.endswith("warm"):
            return CallOutcome()
        return CallOutcome(reason=sides.ReasonCode.TIMEOUT, message="")

    monkeypatch.setattr(sides.Worker, "call", call)
    trial = SideTrial("ours: llvm")
    assert trial.judge(b"", {}).symptom is Symptom.HUNG
    assert [name.rpartition(":")[2] for name in calls] == ["warm", "try_model"]


def test_names_of_sides():
    backends = load_backends(Settings.from_environment())
    assert check_side("reference", backends) == "reference"
    assert check_side("openvino", backends) == "openvino"
    assert check_side("ours:openvino", backends) == "ours: openvino"
    assert check_side("dnnl, llvm", backends) == "ours: dnnl, llvm"
    with pytest.raises(InputError):
        check_side("", backends)
    with pytest.raises((BackendError, ValueError)):
        check_side("unheard-of", backends)
