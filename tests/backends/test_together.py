# SPDX-License-Identifier: Apache-2.0
"""Distinct nodes are asked at once: one query for a model, and the answers that each gets alone."""

import subprocess
import sys

import pytest

from intarsia.backends import artifact, onnxruntime, openvino
from intarsia.compiler import resolve_targets
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import make_contexts
from intarsia.zoo import build

ODD = """
odd (float[2,8] x, string[2,8] t, int64[2,8] n, uint16[2,8] u) => (
    float[2,8] y, float[2,8] z, string[2,8] s, int64[2,8] m, float[2,8] w, float[2,8] v,
    uint16[2,8] q) {
    [relu] a = Relu(x)
    [again] b = Relu(a)
    [det] y = Celu(b)
    [same] s = Identity(t)
    [sum] m = Add(n, n)
    [einsum] z = Einsum<equation="ij->ij">(x)
    [cast] w = Cast<to=1>(n)
    [random] v = Bernoulli(x)
    [shift] q = BitShift<direction="LEFT">(u, u)
}
"""
ASKED = {
    "openvino": (openvino, "_convert"),
    "onnxruntime": (onnxruntime, "make_session"),
}


def _graph(name, parse_model):
    return snapshot(load(parse_model(ODD) if name == "odd" else build(name)))


@pytest.mark.parametrize("backend", ASKED)
@pytest.mark.parametrize("name", ["odd", "squeezenet", "random:3"])
def test_answers_are_those_that_each_node_gets_alone(
    name, backend, parse_model, backends, monkeypatch
):
    pytest.importorskip(backend)
    module, _ = ASKED[backend]
    graph = _graph(name, parse_model)
    context, *_ = _contexts(backend, backends)
    (rule,) = backends.named(backend).rules(context)
    found = rule.refuse(graph, context)
    alone = artifact.probe_nodes
    monkeypatch.setattr(module, "probe_nodes", lambda g, c, attempt, *_: alone(g, c, attempt))
    assert found == rule.refuse(graph, context)
    assert found or name != "odd"


@pytest.mark.parametrize("backend", ASKED)
def test_a_model_that_is_taken_is_one_query(backend, parse_model, backends, monkeypatch):
    pytest.importorskip(backend)
    module, name = ASKED[backend]
    asked = []
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *some: asked.append(some) or real(*some))
    graph = _graph("random:4", parse_model)
    assert len(graph.nodes) > 20
    context, *_ = _contexts(backend, backends)
    (rule,) = backends.named(backend).rules(context)
    assert not rule.refuse(graph, context)
    assert len(asked) == 1


def _contexts(backend, backends):
    config = resolve_targets(f"{backend}, reference", None, backends)
    return list(make_contexts(config, 1).values())


def test_sympy_is_imported_when_a_dimension_is_a_formula():
    code = (
        "import sys\nimport intarsia.graph.load\nimport onnx_ir as ir\n"
        "assert 'sympy.core' not in sys.modules\n"
        "dim = ir.SymbolicDim('n') + 1\n"
        "from sympy import Symbol\nimport sympy.polys\n"
        "assert isinstance((dim - 1)._expr, sympy.Expr)\n"
        "print(dim)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "n + 1"
