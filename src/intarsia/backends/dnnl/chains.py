# SPDX-License-Identifier: Apache-2.0
"""Several operators that are one function of one tensor: GELU written out, and guarded softmax.

Which function a chain is, is told by computing it at some points, not by its constants alone:
exporters write one GELU (Hendrycks and Gimpel, arXiv:1606.08415) in many orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.dnnl.program import Post
from intarsia.backends.dnnl.words import Eltwise
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Graph
from intarsia.graph.pattern import ANY, CONSTANT, Match, Op, Pattern, find_matches
from intarsia.graph.per_graph import per_graph

# The two GELUs differ by 4.4e-4 at -2.5 and 4.1e-4 at 3, far above what constants in float32 move.
_POINTS = np.array([-5.0, -2.5, -1.0, -0.25, 0.0, 0.125, 0.75, 1.5, 3.0, 6.0])


@dataclass(frozen=True, slots=True)
class FunctionChain:
    """Nodes that are one function of one tensor.

    Attributes:
        source: The value that is the operand.
        output: The value that is the result.
        nodes: The nodes, ascending.
        post: The function.
    """

    source: int
    output: int
    nodes: tuple[int, ...]
    post: Post


def _erf(x: Op | str) -> Op:
    return Op("Add", Op("Erf", Op(("Div", "Mul"), x, CONSTANT)), CONSTANT)


def _tanh(x: Op | str) -> Op:
    cubic = Op("Mul", Op("Pow", x, CONSTANT), CONSTANT)
    return Op("Add", Op("Tanh", Op("Mul", Op("Add", x, cubic), CONSTANT)), CONSTANT)


def _orders(name: str, unit: Op) -> tuple[Pattern, ...]:
    """Return the orders in which `x`, one half and the rest are multiplied."""
    half = Op("Mul", ANY, CONSTANT)
    return (
        Pattern(name, Op("Mul", ANY, Op("Mul", unit, CONSTANT))),
        Pattern(name, Op("Mul", Op("Mul", ANY, unit), CONSTANT)),
        Pattern(name, Op("Mul", half, unit)),
    )


_GELUS = (*_orders("gelu", _erf(ANY)), *_orders("gelu", _tanh(ANY)))
_GUARD = Pattern("guarded softmax", Op("Where", Op("IsNaN", ANY), CONSTANT, ANY))


@per_graph
def chains_of(graph: Graph) -> Mapping[int, FunctionChain]:
    """Return the chains of a graph by each of their nodes."""
    chains: dict[int, FunctionChain] = {}
    for pattern in (*_GELUS, _GUARD):
        for match in find_matches(graph, pattern):
            chain = (_guard if pattern is _GUARD else _gelu)(match)
            if chain is not None and not any(node in chains for node in chain.nodes):
                chains.update(dict.fromkeys(chain.nodes, chain))
    return chains


def _chain(match: Match, post: Post) -> FunctionChain | None:
    """Return a match as a chain if it reads one tensor beside constants."""
    graph = match.graph
    results = {output for node in match.nodes for output in node.outputs}
    read = {value for node in match.nodes for value in node.inputs}
    outside = [i for i in read - results if i >= 0 and graph.values[i].constant is None]
    output = match.nodes[0].outputs[0]
    if len(outside) != 1 or graph.values[outside[0]].shape != graph.values[output].shape:
        return None
    nodes = tuple(sorted(node.id for node in match.nodes))
    return FunctionChain(outside[0], output, nodes, post)


def _guard(match: Match) -> FunctionChain | None:
    """Return `where(isnan(s), 0, s)` of a softmax: its results are not negative, so a rectifier.

    oneDNN's takes the larger of a number and 0 by an instruction that makes 0 of NaN.
    """
    graph = match.graph
    chain = _chain(match, Post(Eltwise.RELU))
    where = Operation(graph, match.nodes[0])
    if chain is None or where.node.inputs[2] != chain.source:
        return None
    producer = graph.values[chain.source].producer
    if producer < 0 or graph.nodes[producer].op_type != "Softmax" or where.array(1).any():
        return None
    return chain


def _gelu(match: Match) -> FunctionChain | None:
    chain = _chain(match, Post(Eltwise.GELU_ERF))
    if chain is None:
        return None
    values = _evaluate(match, chain)
    if values is None:
        return None
    exact = 0.5 * _POINTS * (1 + _erf_of(_POINTS / sqrt(2)))
    # Constants are written with six to eight digits (1.4142135, 0.7978846).
    if np.allclose(values, exact, rtol=1e-5, atol=1e-6):
        return chain
    cubic = _POINTS + 0.044715 * _POINTS**3
    nearly = 0.5 * _POINTS * (1 + np.tanh(sqrt(2 / pi) * cubic))
    if np.allclose(values, nearly, rtol=1e-5, atol=1e-6):
        return FunctionChain(chain.source, chain.output, chain.nodes, Post(Eltwise.GELU_TANH))
    return None


def _erf_of(x: Array) -> Array:
    return np.array([erf(number) for number in x])


def _evaluate(match: Match, chain: FunctionChain) -> Array | None:
    """Return a chain's results at some points; None if a constant is not a number."""
    graph = match.graph
    functions: dict[str, Callable[..., Array]] = {
        "Add": np.add,
        "Div": np.divide,
        "Erf": _erf_of,
        "Mul": np.multiply,
        "Pow": np.power,
        "Tanh": np.tanh,
    }
    numbers = {chain.source: _POINTS}
    for node_id in chain.nodes:
        operation = Operation(graph, graph.nodes[node_id])
        operands = []
        for position, value in enumerate(operation.inputs):
            if value.constant is not None:
                if any(extent != 1 for extent in value.shape or ()):
                    return None
                numbers[value.id] = operation.array(position).reshape(-1)[:1].astype(np.float64)
            operands.append(numbers[value.id])
        numbers[operation.output.id] = functions[operation.op_type](*operands)
    return numbers[chain.output]
