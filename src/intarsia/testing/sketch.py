# SPDX-License-Identifier: Apache-2.0
"""Graphs of several operators that a backend takes: written by hand, or drawn from a seed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from intarsia.arrays import Array
from intarsia.testing.case import DRAWS, EvaluatedModel, solve
from intarsia.testing.judging import NotApplicable
from intarsia.testing.subject import Subject

SHAPE = (1, 4, 6, 6)
"""Shape of every value: any operator can follow any other, and the last two axes can swap."""

INPUTS = ("x", "z")


@dataclass(slots=True)
class Sketch:
    """A graph that grows; all its values are float32 of one shape.

    Attributes:
        rng: Draws constants, and whatever else is drawn.
        nodes: So far.
        constants: So far.
        values: Names that a next node may read.
        shape: Of all values, with as many rows as columns.
    """

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: list[str] = field(default_factory=lambda: list(INPUTS))
    shape: tuple[int, ...] = SHAPE

    @property
    def channels(self) -> int:
        """The second dimension."""
        return self.shape[1]

    @property
    def size(self) -> int:
        """Rows, and columns."""
        return self.shape[-1]

    def constant(self, array: Array) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, low: float = -0.4, high: float = 0.4) -> str:
        """Add a drawn constant and return its name."""
        return self.constant(self.rng.uniform(low, high, shape).astype(np.float32))

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.split(op_type, *inputs, outputs=1, **attributes)[0]

    def split(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs and return their names."""
        position = len(self.nodes)
        names = [f"v{position}_{output}" for output in range(outputs)]
        node = helper.make_node(op_type, inputs, names, f"node{position}", **attributes)
        self.nodes.append(node)
        return names

    def finish(self, title: str, outputs: list[str]) -> EvaluatedModel:
        """Return the graph as a problem; inputs that nothing reads are left out."""
        read = {name for node in self.nodes for name in node.input}
        names = [name for name in INPUTS if name in read]
        element = onnx.TensorProto.FLOAT
        declared = [helper.make_tensor_value_info(name, element, self.shape) for name in names]
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "region", declared, infos, self.constants)
        feeds = [
            {name: self.rng.uniform(-1, 1, self.shape).astype(np.float32) for name in names}
            for _ in range(DRAWS)
        ]
        return solve(title, graph, feeds)


@dataclass(frozen=True, slots=True)
class SketchMove:
    """A way to go on from values that exist: one operator, or a few that belong together.

    Attributes:
        name: Names it.
        arity: How many values it reads, 1 or 2.
        write: Adds its nodes and returns the value that they make.
    """

    name: str
    arity: int
    write: Callable[..., str]


def _conv(s: Sketch, x: str) -> str:
    return s.op("Conv", x, _square(s, 3), s.weight(s.channels), pads=(1, 1, 1, 1))


def _square(s: Sketch, taps: int) -> str:
    """Return the weights of a convolution, so small that sums over many channels are no larger."""
    bound = 0.4 * (SHAPE[1] / s.channels) ** 0.5
    return s.weight(s.channels, s.channels, taps, taps, low=-bound, high=bound)


def _norm(s: Sketch, x: str) -> str:
    scale, bias, mean = (s.weight(s.channels) for _ in range(3))
    parts = (scale, bias, mean, s.weight(s.channels, low=0.5, high=2))
    return s.op("BatchNormalization", x, *parts)


def _halves(s: Sketch, x: str) -> str:
    low, high = s.split("Split", x, outputs=2, axis=1, num_outputs=2)
    return s.op("Concat", high, low, axis=1)


def _flat(s: Sketch, x: str) -> str:
    flat = s.op("Reshape", x, s.constant(np.array([s.channels, s.size**2], np.int64)))
    return s.op("Reshape", flat, s.constant(np.array(s.shape, np.int64)))


def _unary(op_type: str, **attributes: Any) -> SketchMove:
    return SketchMove(op_type, 1, lambda s, x: s.op(op_type, x, **attributes))


def _binary(op_type: str) -> SketchMove:
    return SketchMove(op_type, 2, lambda s, x, z: s.op(op_type, x, z))


_POOL = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}

MOVES: tuple[SketchMove, ...] = (
    *(_unary(name) for name in ("Relu", "Neg", "Sigmoid", "Tanh", "Abs", "HardSwish", "Exp")),
    *(_binary(name) for name in ("Add", "Mul", "Sub", "Max")),
    SketchMove("Add constant", 1, lambda s, x: s.op("Add", x, s.weight(s.channels, 1, 1))),
    SketchMove("Mul constant", 1, lambda s, x: s.op("Mul", s.weight(1), x)),
    SketchMove("MatMul constant", 1, lambda s, x: s.op("MatMul", x, s.weight(s.size, s.size))),
    SketchMove("MatMul", 2, lambda s, x, z: s.op("MatMul", s.op("Tanh", x), s.op("Tanh", z))),
    SketchMove("Conv", 1, _conv),
    SketchMove("Conv 1x1", 1, lambda s, x: s.op("Conv", x, _square(s, 1))),
    SketchMove(
        "Conv depthwise",
        1,
        lambda s, x: s.op(
            "Conv", x, s.weight(s.channels, 1, 3, 3), pads=(1, 1, 1, 1), group=s.channels
        ),
    ),
    SketchMove("BatchNormalization", 1, _norm),
    SketchMove(
        "LayerNormalization",
        1,
        lambda s, x: s.op(
            "LayerNormalization",
            x,
            s.weight(s.size, low=0.5, high=1),
            s.weight(s.size),
            epsilon=0.1,
        ),
    ),
    _unary("Softmax", axis=-1),
    _unary("MaxPool", **_POOL),
    _unary("AveragePool", **_POOL),
    _unary("Transpose", perm=(0, 1, 3, 2)),
    SketchMove("Split and Concat", 1, _halves),
    SketchMove("Reshape twice", 1, _flat),
)
"""What regions are made of."""

_TAKEN: weakref.WeakKeyDictionary[Subject, tuple[SketchMove, ...]] = weakref.WeakKeyDictionary()


def taken_moves(subject: Subject, arity: int | None = None) -> tuple[SketchMove, ...]:
    """Return the moves that a backend takes when each is alone; skip if there are none.

    Args:
        subject: The backend.
        arity: Only those that read so many values; None means all.
    """
    if subject not in _TAKEN:
        _TAKEN[subject] = tuple(move for move in MOVES if _is_taken(subject, move))
    moves = tuple(move for move in _TAKEN[subject] if arity in (None, move.arity))
    if not moves:
        what = "no operator" if arity is None else f"no operator of {arity} inputs"
        raise NotApplicable(f"the backend takes {what} that regions are made of")
    return moves


def _is_taken(subject: Subject, move: SketchMove) -> bool:
    sketch = Sketch(np.random.default_rng(0))
    last = move.write(sketch, *INPUTS[: move.arity])
    problem = sketch.finish(move.name, [last])
    return not subject.refusals(subject.graph(problem.model), move.name)


def random_problem(
    moves: tuple[SketchMove, ...], seed: int, shape: tuple[int, ...] = SHAPE
) -> EvaluatedModel:
    """Return a graph of 4 to 12 moves, drawn from a seed; some inner values are outputs too."""
    rng = np.random.default_rng(seed)
    sketch = Sketch(rng, shape=shape)
    for _ in range(int(rng.integers(4, 13))):
        move = moves[int(rng.integers(len(moves)))]
        read = [sketch.values[int(i)] for i in rng.integers(len(sketch.values), size=move.arity)]
        sketch.values.append(move.write(sketch, *read))
    results = sketch.values[len(INPUTS) :]
    read_ones = {name for node in sketch.nodes for name in node.input}
    outputs = [name for name in results if name not in read_ones or rng.random() < 0.2]  # noqa: PLR2004
    return sketch.finish(f"random graph {seed}", outputs)
