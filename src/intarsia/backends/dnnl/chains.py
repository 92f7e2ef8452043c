# SPDX-License-Identifier: Apache-2.0
"""Several operators that are one function of one tensor: GELU written out, Mish, guarded softmax.

Which function a chain is, is told by computing it at some points, not by its constants alone:
exporters write one GELU (Hendrycks and Gimpel, arXiv:1606.08415) in many orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, pi, sqrt

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.dnnl.program import Post
from intarsia.backends.dnnl.words import Eltwise
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Graph
from intarsia.graph.pattern import CONSTANT, SOURCE, Match, Op, Pattern, find_patterns
from intarsia.graph.per_graph import per_graph

# The two GELUs differ by 4.4e-4 at -2.5 and 4.1e-4 at 3, far above what constants in float32 move.
_POINTS = np.array([-5.0, -2.5, -1.0, -0.25, 0.0, 0.125, 0.75, 1.5, 3.0, 6.0])


def _gelu(match: Match) -> Post | None:
    return _gelu_of(match.graph, tuple(sorted(node.id for node in match.nodes)), match.source)


@per_graph
def _gelu_of(graph: Graph, nodes: tuple[int, ...], source: int) -> Post | None:
    """Return which GELU some nodes are, or None."""
    (output,) = graph.nodes[nodes[-1]].outputs
    if graph.values[source].shape != graph.values[output].shape:
        return None
    values = _evaluate(graph, nodes, source)
    if values is None:
        return None
    exact = 0.5 * _POINTS * (1 + _erf_of(_POINTS / sqrt(2)))
    # Constants are written with six to eight digits (1.4142135, 0.7978846).
    if np.allclose(values, exact, rtol=1e-5, atol=1e-6):
        return Post(Eltwise.GELU_ERF)
    cubic = _POINTS + 0.044715 * _POINTS**3
    nearly = 0.5 * _POINTS * (1 + np.tanh(sqrt(2 / pi) * cubic))
    return Post(Eltwise.GELU_TANH) if np.allclose(values, nearly, rtol=1e-5, atol=1e-6) else None


def _guard(match: Match) -> Post | None:
    """Return `where(isnan(s), 0, s)` of a softmax: its results are not negative, so a rectifier.

    oneDNN's takes the larger of a number and 0 by an instruction that makes 0 of NaN.
    """
    graph = match.graph
    where = Operation(graph, match.nodes[0])
    producer = graph.values[match.source].producer
    if producer < 0 or graph.nodes[producer].op_type != "Softmax" or where.array(1).any():
        return None
    return Post(Eltwise.RELU) if where.inputs[2].shape == where.output.shape else None


def _gate(match: Match) -> Post:
    gate = Operation(match.graph, match.nodes[1])
    if gate.op_type == "Sigmoid":
        return Post(Eltwise.SWISH, 1.0)
    alpha, beta = gate.attribute("alpha", 0.2), gate.attribute("beta", 0.5)
    return Post(Eltwise.HARDSWISH, alpha, beta)


_CUBIC = Op("Mul", Op("Pow", SOURCE, CONSTANT), CONSTANT)
_UNITS = (
    Op("Add", Op("Erf", Op(("Div", "Mul"), SOURCE, CONSTANT)), CONSTANT),
    Op("Add", Op("Tanh", Op("Mul", Op("Add", SOURCE, _CUBIC), CONSTANT)), CONSTANT),
)

CHAINS: tuple[Pattern, ...] = (
    *(
        Pattern("gelu", order, _gelu)
        for unit in _UNITS
        for order in (  # in which `x`, one half and the rest are multiplied
            Op("Mul", SOURCE, Op("Mul", unit, CONSTANT)),
            Op("Mul", Op("Mul", SOURCE, unit), CONSTANT),
            Op("Mul", Op("Mul", SOURCE, CONSTANT), unit),
        )
    ),
    # Its Softplus by itself is off by a unit next to one, which is all there is of Mish at -10.
    Pattern(
        "mish",
        Op("Mul", SOURCE, Op("Tanh", Op("Softplus", SOURCE))),
        lambda _: Post(Eltwise.MISH),
    ),
    Pattern("guarded softmax", Op("Where", Op("IsNaN", SOURCE), CONSTANT, SOURCE), _guard),
)
"""Functions that are taken together although not all of their operators are taken alone."""

GATE = Pattern("gate", Op("Mul", SOURCE, Op(("Sigmoid", "HardSigmoid"), SOURCE)), _gate)
"""`x * sigmoid(x)`, which is one function only where it follows a primitive."""


@per_graph
def chains_of(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return the nodes of the chain that each node of a chain is of, ascending."""
    chains = (nodes for _, nodes in find_patterns(graph, CHAINS).matches)
    return {node: nodes for nodes in chains for node in nodes}


def _erf_of(x: Array) -> Array:
    return np.array([erf(number) for number in x])


def _evaluate(graph: Graph, nodes: tuple[int, ...], source: int) -> Array | None:
    """Return a chain's results at some points; None if a constant is not a number."""
    functions: dict[str, Callable[..., Array]] = {
        "Add": np.add,
        "Div": np.divide,
        "Erf": _erf_of,
        "Mul": np.multiply,
        "Pow": np.power,
        "Tanh": np.tanh,
    }
    numbers = {source: _POINTS}
    for node_id in nodes:
        operation = Operation(graph, graph.nodes[node_id])
        operands = []
        for position, value in enumerate(operation.inputs):
            if value.constant is not None:
                if any(extent != 1 for extent in value.shape or ()):
                    return None
                numbers[value.id] = operation.array(position).reshape(-1)[:1].astype(np.float64)
            operands.append(numbers[value.id])
        numbers[operation.output.id] = functions[operation.op_type](*operands)
    return numbers[graph.nodes[nodes[-1]].outputs[0]]
