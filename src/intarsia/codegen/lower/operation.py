# SPDX-License-Identifier: Apache-2.0
"""One ONNX node as lowering sees it: plain attributes, static shapes, constants as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Graph, Node, Value

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Operation:
    """A node with its graph, or several nodes that spell one operator.

    Attributes:
        graph: Where it is from.
        node: The node; of several the one whose result is theirs, with the operator and the inputs
            of what they spell.
        spelling: The several nodes.
        meant: Attributes of what they spell.
    """

    graph: Graph
    node: Node
    spelling: tuple[Node, ...] = ()
    meant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it stands for."""
        return self.spelling or (self.node,)

    @property
    def op_type(self) -> str:
        """The operator; of another domain than ONNX's main one with the domain before it."""
        node = self.node
        return f"{node.domain}.{node.op_type}" if node.domain else node.op_type

    @cached_property
    def opset(self) -> int:
        """The version of ONNX's main operator set."""
        return int(self.graph.model.opset_imports.get("", 1))

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes by name, as numbers, texts, tuples of them, or arrays."""
        if self.spelling:
            return dict(self.meant)
        return {name: _plain(item) for name, item in self.node.ir.attributes.items()}

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default if it is absent.

        Both are float32 in ONNX; what is spelled may have more digits.
        """
        value = self.attributes.get(name, default)
        is_single = isinstance(value, float) and not self.spelling
        return float(np.float32(value)) if is_single else value

    def value(self, position: int) -> Value | None:
        """Return an input, or None if it is absent."""
        inputs = self.node.inputs
        if position >= len(inputs) or inputs[position] < 0:
            return None
        return self.graph.values[inputs[position]]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs that are there."""
        return tuple(self.graph.values[i] for i in self.node.inputs if i >= 0)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs that are there."""
        return tuple(self.graph.values[i] for i in self.node.outputs if i >= 0)

    @property
    def output(self) -> Value:
        """The first output."""
        return self.graph.values[self.node.outputs[0]]

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        value = self.value(position)
        assert value is not None
        assert value.shape is not None
        return value.shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        shape = self.output.shape
        assert shape is not None
        return shape

    def is_constant(self, position: int) -> bool:
        """Tell whether an input is there and known when compiling."""
        value = self.value(position)
        return value is not None and value.constant is not None

    def why_computed(self, names: Mapping[int, str]) -> str | None:
        """Say which of some inputs is there and not known when compiling; None if none is.

        Args:
            names: What to say of each, by its position: `axes are`.
        """
        for position, name in names.items():
            if self.value(position) is not None and not self.is_constant(position):
                return f"its {name} not constant"
        return None

    def array(self, position: int) -> Array:
        """Return the data of a constant input."""
        value = self.value(position)
        assert value is not None, f"{self.node.name} has no input {position}"
        return constant_array(value)

    def numbers(self, position: int) -> tuple[int, ...] | None:
        """Return a constant input as integers, or None if it is absent."""
        if self.value(position) is None:
            return None
        return tuple(int(item) for item in self.array(position).reshape(-1))

    def axes(self, name: str = "axes", position: int = 1) -> tuple[int, ...] | None:
        """Return axes, which older operators have as attribute and newer ones as input."""
        from_attribute = self.attribute(name)
        numbers = tuple(from_attribute) if from_attribute is not None else self.numbers(position)
        if numbers is None:
            return None
        rank = len(self.shape())
        return tuple(axis % rank if rank else 0 for axis in numbers)


def _plain(attribute: Any) -> Any:
    value = attribute.value
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "numpy"):
        return value.numpy()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
    return value
