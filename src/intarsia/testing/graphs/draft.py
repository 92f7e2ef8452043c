# SPDX-License-Identifier: Apache-2.0
"""A random graph while it is drawn: every node is evaluated as soon as it is added.

So the shape and dtype of every value are known without a shape inference of our own, and what the
reference evaluator does not take is never in a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from intarsia.arrays import Array, np_dtype
from intarsia.backends.evaluator import make_evaluator
from intarsia.graph.ops import operator_named
from intarsia.testing.graphs import numbers

FLOATS = ("float32", "float16", "float64", "bfloat16")
INTEGERS = ("int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
DTYPES = ("float32", "float16", "float64", *INTEGERS, "bool")
"""What values of graphs are made of; of bfloat16 only where a draft says so."""

MOST_ELEMENTS = 4096

_EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8)
_LONG = (16, 17, 31, 33, 64)
_MOST_DIMENSIONS = 4
_NODE_IR = 10
_EMPTY_SHARE, _LONG_SHARE = 0.02, 0.06


class Unfit(Exception):  # noqa: N818 - no error: another operator is drawn instead
    """What was drawn makes no valid node."""


Redraw = Callable[..., Array]
"""Draws an array by a generator of numbers, of the shape that there was if none is given."""


@cache
def schema_of(op_type: str, opset: int) -> Any:
    """Return the schema of an operator in an operator set, or None if it is not in it."""
    try:
        schema = onnx.defs.get_schema(op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def dtypes_of(op_type: str, opset: int, position: int) -> tuple[str, ...]:
    """Return the dtypes that an operator's input may have, of those that graphs are made of."""
    schema = schema_of(op_type, opset)
    if schema is None:
        raise Unfit(f"{op_type} is not in operator set {opset}")
    ports = schema.inputs
    port = ports[min(position, len(ports) - 1)]
    words = {"tensor(float)": "float32", "tensor(double)": "float64"}
    allowed = {words.get(text, text.removeprefix("tensor(").rstrip(")")) for text in port.types}
    return tuple(dtype for dtype in (*DTYPES, "bfloat16") if dtype in allowed)


@dataclass(slots=True, eq=False)
class Draft:
    """A graph that grows.

    Attributes:
        rng: Draws everything.
        opset: Version of the operator set.
        dtype: The element type that most values have.
        kind: The kind of numbers that most inputs hold.
        feeds: Arrays of the inputs so far, by name.
        dtypes: Those that values may have.
        redraws: How another array is drawn, for inputs that may hold others; of another shape where
            one is given.
        constants: Arrays of the initializers so far, by name.
        values: What every name holds.
        loose: Names whose shape depends on numbers.
        nodes: So far.
        serial: How many operands were named so far.
    """

    rng: np.random.Generator
    opset: int
    dtype: str = "float32"
    kind: str = "plain"
    feeds: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = DTYPES
    redraws: dict[str, Redraw] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    serial: int = 0

    # ---- drawing

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of these."""
        if not options:
            raise Unfit("nothing to choose from")
        return options[int(self.rng.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        if high < low:
            raise Unfit("an empty range")
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float = 0.5) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Return these attributes, each left out now and then, so that defaults are used too."""
        return {name: value for name, value in attributes.items() if self.chance(0.8)}

    def extent(self) -> int:
        """Return the size of a dimension."""
        if self.chance(_EMPTY_SHARE):
            return 0
        return int(self.pick(_LONG if self.chance(_LONG_SHARE) else _EXTENTS))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """Return a shape of `low` to `high` dimensions with a bounded number of elements."""
        shape = [self.extent() for _ in range(self.between(low, high))]
        while np.prod(shape) > MOST_ELEMENTS:
            shape[shape.index(max(shape))] = 2
        return tuple(shape)

    def axis(self, rank: int) -> int:
        """Return an axis, counted from the front or from the back."""
        axis = self.between(0, rank - 1)
        return axis - rank if self.chance(0.4) else axis

    def axes(self, rank: int, fewest: int = 0) -> list[int]:
        """Return different axes, counted from either end."""
        count = self.between(min(fewest, rank), rank)
        chosen = self.rng.permutation(rank)[:count]
        return [int(axis) - (rank if self.chance(0.3) else 0) for axis in chosen]

    # ---- operands

    def fed(self, array: Any, redraw: Redraw | None = None) -> str:
        """Add an input and return its name; without `redraw` it holds these numbers always.

        One of bfloat16 is cast from float32: runtimes cannot be fed with what numpy lacks.
        """
        if np.asarray(array).dtype == np_dtype("bfloat16"):
            wide = None if redraw is None else partial(_drawn_wide, redraw)
            return self.op("Cast", [self.fed(array.astype("f4"), wide)], to=_BFLOAT16)[0]
        name = self._name("x")
        self.feeds[name] = self.values[name] = array
        if redraw is not None:
            self.redraws[name] = redraw
        return name

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """Add an initializer and return its name."""
        name = self._name("c")
        own = None if dtype is None else np_dtype(dtype)
        self.constants[name] = self.values[name] = np.asarray(array, own)
        return name

    def fixed(self, array: Any, dtype: str = "int64", constant: float = 0.8) -> str:
        """Add shapes, axes or indices: mostly a constant, else an input that never changes."""
        array = np.asarray(array, np_dtype(dtype))
        return self.constant(array) if self.chance(constant) else self.fed(array)

    def new(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        low: float | None = None,
        high: float | None = None,
        constant: float = 0.25,
        kind: str | None = None,
    ) -> str:
        """Add an operand of drawn numbers, evenly between bounds if given, and return its name."""
        own, shape = np_dtype(dtype), tuple(int(extent) for extent in shape)
        if np.prod(shape) > 4 * MOST_ELEMENTS:
            raise Unfit("too large")
        kind = kind or (self.kind if self.chance(0.75) else "plain")

        def redraw(rng: np.random.Generator, shape: tuple[int, ...] = shape) -> Array:
            if low is None:
                return numbers.draw(rng, kind, own, shape)
            if own.kind in "iu":
                return rng.integers(int(low), int(high or 0), shape, own, endpoint=True)
            return np.asarray(rng.uniform(low, high or 0, shape)).astype(own)

        array = redraw(self.rng)
        return self.constant(array) if self.chance(constant) else self.fed(array, redraw)

    def weight(self, dtype: str, shape: Sequence[int], fan: float = 1.0) -> str:
        """Add weights, mostly constant, so small that sums of `fan` of them are near one."""
        own = np_dtype(dtype)
        if dtype not in FLOATS or self.chance(0.1):
            return self.new(dtype, shape, constant=0.8)
        numbers_ = self.rng.standard_normal(tuple(shape)) / max(fan, 1.0) ** 0.5
        array = np.asarray(numbers_).astype(own)
        return self.constant(array) if self.chance(0.8) else self.fed(array)

    def take(
        self,
        op_type: str,
        position: int = 0,
        *,
        rank: tuple[int, int] = (0, 4),
        shape: Callable[[], Sequence[int]] | None = None,
        fits: Callable[[Array], bool] = lambda array: True,
        dtypes: Iterable[str] | None = None,
    ) -> str:
        """Return a value that an operator may read: one that is there, or a new operand.

        Args:
            op_type: The operator, whose schema says which dtypes it takes.
            position: Of the input.
            rank: Fewest and most dimensions.
            shape: Draws a new operand's shape; None means any of these ranks.
            fits: What else must hold.
            dtypes: Only these.
        """
        allowed = [
            dtype
            for dtype in dtypes_of(op_type, self.opset, position)
            if dtype in self.dtypes and (dtypes is None or dtype in dtypes)
        ]
        made = [
            name
            for name, value in self.values.items()
            if isinstance(value, np.ndarray)
            and name not in self.constants
            and value.dtype.name in allowed
            and rank[0] <= value.ndim <= rank[1]
            and fits(value)
        ]
        if made and self.chance(0.85):
            return str(made[-1] if self.chance(0.6) else self.pick(made))
        dtype = self.dtype if self.dtype in allowed and self.chance(0.8) else self.pick(allowed)
        for _ in range(20):
            name = self.new(dtype, shape() if shape is not None else self.shape(*rank))
            if fits(self.values[name]):
                return name
            self._drop(name)
        raise Unfit(f"no operand fits {op_type}")

    def broadcast(self, x: str, dtype: str, constant: float = 0.4) -> str:
        """Return an operand that broadcasts with another: there already, or new."""
        shape = self.values[x].shape
        peers = [
            name
            for name, value in self.values.items()
            if isinstance(value, np.ndarray) and value.dtype == dtype and _meets(shape, value.shape)
        ]
        if peers and self.chance(0.4):
            return str(self.pick(peers))
        own = [1 if self.chance(0.3) else extent for extent in shape]
        own = own[self.between(0, len(own)) :] if self.chance(0.4) else own
        if self.chance(0.1) and len(own) == len(shape) < _MOST_DIMENSIONS:
            own = [self.pick((1, 2, 3)), *own]
        return self.new(dtype, own, constant=constant)

    def array(self, name: str) -> Array:
        """Return what a name holds."""
        return np.asarray(self.values[name])

    def dtype_of(self, name: str) -> str:
        """Return the dtype of a value."""
        return str(self.values[name].dtype.name)

    # ---- nodes

    def has(self, op_type: str, attribute: str) -> bool:
        """Whether an operator has an attribute in this operator set."""
        return attribute in schema_of(op_type, self.opset).attributes

    def op(
        self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """Add a node, evaluate it and return the names of its outputs.

        Attributes that the operator does not have in this operator set are left out; None too.

        Raises:
            Unfit: The operator is not in this operator set, or the evaluator does not take this.
        """
        schema = schema_of(op_type, self.opset)
        if schema is None:
            raise Unfit(f"{op_type} is not in operator set {self.opset}")
        kept = {
            name: value
            for name, value in attributes.items()
            if value is not None and not _is_empty(value) and name in schema.attributes
        }
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        position = len(self.nodes)
        names = [f"v{position}_{output}" for output in range(outputs)]
        node = helper.make_node(op_type, inputs, names, f"n{position}_{op_type}", **kept)
        for name, value in zip(names, self._evaluate(node), strict=True):
            self.values[name] = value
        if self.loose.intersection(inputs) or operator_named(op_type).finds_entries:
            self.loose.update(names)
        self.nodes.append(node)
        return names

    def _evaluate(self, node: onnx.NodeProto) -> list[Any]:
        try:
            made = NodeRun(node, self.opset, self.values)(self.values)
        except Exception as error:
            raise Unfit(f"{node.op_type}: {error}") from error
        for value in made:
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                if getattr(part, "size", 0) > 4 * MOST_ELEMENTS:
                    raise Unfit("too large")
        return made

    def _name(self, letter: str) -> str:
        self.serial += 1
        return f"{letter}{self.serial}"

    def _drop(self, name: str) -> None:
        for place in (self.feeds, self.redraws, self.constants, self.values):
            place.pop(name, None)


_BFLOAT16 = onnx.TensorProto.BFLOAT16


def _drawn_wide(redraw: Redraw, *drawn: Any) -> Array:
    return np.asarray(redraw(*drawn), np.float32)


_KNOWN_SINCE = {"DequantizeLinear": 19}
"""Operators of which the evaluator lacks older versions, which mean the same."""


class NodeRun:
    """One node, ready to be evaluated by the reference.

    Args:
        node: The node.
        opset: Version of the operator set.
        values: What every name holds; functions are expanded for these types.
    """

    def __init__(self, node: onnx.NodeProto, opset: int, values: Mapping[str, Any]) -> None:
        self.node = _with_defaults(node, opset)
        self.opset = opset
        model = self.alone(values)
        model.opset_import[0].version = max(opset, _KNOWN_SINCE.get(node.op_type, 0))
        self._session = make_evaluator(model)

    def alone(self, values: Mapping[str, Any]) -> onnx.ModelProto:
        """Return the node as a model that reads what these names hold."""
        inputs = [info(name, values[name]) for name in dict.fromkeys(self.node.input) if name]
        made = [onnx.ValueInfoProto(name=name) for name in self.node.output if name]
        graph = helper.make_graph([self.node], "node", inputs, made)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=_NODE_IR)

    def __call__(self, values: Any) -> list[Any]:
        """Return the outputs, given what every name holds (bodies read from the outer graph)."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self._session.run(None, dict(values))
        if self.node.op_type == "OptionalGetElement":  # the evaluator keeps an optional as a list
            made = [value[0] if isinstance(value, list) else value for value in made]
        return [value if isinstance(value, list) else np.asarray(value) for value in made]


def _with_defaults(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """Return a node with its default floats, which are float32; the evaluator's are float64."""
    schema = schema_of(node.op_type, opset)
    if schema is None or schema.has_function or schema.has_context_dependent_function:
        return node
    given = {attribute.name for attribute in node.attribute}
    kind = onnx.defs.OpSchema.AttrType.FLOAT
    defaults = [
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.type == kind and name not in given and attribute.default_value.name
    ]
    if not defaults:
        return node
    full = onnx.NodeProto()
    full.CopyFrom(node)
    full.attribute.extend(defaults)
    return full


def _is_empty(value: Any) -> bool:
    return isinstance(value, list | tuple) and not value


def tensor(array: Any, name: str) -> onnx.TensorProto:
    """Return an initializer."""
    return numpy_helper.from_array(np.asarray(array), name)


def info(name: str, value: Any, *, loose: bool = False) -> onnx.ValueInfoProto:
    """Return the declaration of what a name holds; `loose` leaves its dimensions open."""
    if isinstance(value, list):
        part: Array = np.asarray(value[0]) if value else np.zeros((), np.float32)
        return helper.make_tensor_sequence_value_info(name, _element(part), None)
    array = np.asarray(value)
    shape = [f"{name}_{i}" for i in range(array.ndim)] if loose else array.shape
    return helper.make_tensor_value_info(name, _element(array), shape)


def _element(array: Array) -> int:
    if array.dtype.kind in "OUS":
        return int(onnx.TensorProto.STRING)
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _meets(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(shape, other)) <= 5  # noqa: PLR2004
    except ValueError:
        return False
