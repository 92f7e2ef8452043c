# SPDX-License-Identifier: Apache-2.0
"""What the inputs and outputs of a graph are that `torch.compile` gives: a module for exporting it.

Parameters are inputs of such a graph, and so are sizes and plain numbers of the Python program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from intarsia.errors import ModelError

_STATIC = "_dynamo_static_input_type"
"""Key of what PyTorch notes on a graph's input that is a parameter or a buffer."""

_VALUE = "example_value"


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """What each input of a graph is, by its position.

    Attributes:
        names: Of all.
        static: Parameters and buffers.
        numbers: Integers and floats of the Python program: constants of a program.
        sizes: Sizes of tensors, with the tensor and the dimension that tell each.
        tensors: What is fed.
        dynamic: Of each of `tensors`, the dimensions that have no fixed size.
    """

    names: tuple[str, ...]
    static: tuple[int, ...]
    numbers: tuple[int, ...]
    sizes: Mapping[int, tuple[int, int]]
    tensors: tuple[int, ...]
    dynamic: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: GraphModule) -> GraphInputs:
        """Return those of a graph."""
        nodes = graph.graph.find_nodes(op="placeholder")
        values = [node.meta.get(_VALUE) for node in nodes]
        static, numbers, symbols, tensors = [], [], [], []
        for position, (node, value) in enumerate(zip(nodes, values, strict=True)):
            if isinstance(value, torch.SymInt):
                symbols.append(position)
            elif _STATIC in node.meta.get("tensor_dict", {}):
                static.append(position)
            elif not isinstance(value, torch.Tensor) or _is_number(node, value):
                numbers.append(position)
            else:
                tensors.append(position)
        told = {
            str(size): (position, dim)
            for position in reversed(tensors)
            for dim, size in enumerate(values[position].shape)
            if isinstance(size, torch.SymInt)
        }
        sizes = {i: told[str(values[i])] for i in symbols if str(values[i]) in told}
        numbers += [i for i in symbols if i not in sizes]
        dynamic = (
            tuple(dim for dim, size in enumerate(values[i].shape) if _is_free(size))
            for i in tensors
        )
        names = tuple(node.name for node in nodes)
        return cls(
            names, tuple(static), tuple(sorted(numbers)), sizes, tuple(tensors), tuple(dynamic)
        )


def _is_free(size: int | torch.SymInt) -> bool:
    """Tell whether a dimension has no fixed size; that of a symbol may have been settled."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def _is_number(node: Node, value: torch.Tensor) -> bool:
    """Tell whether an input is a float of Python, which PyTorch gives as a tensor."""
    users = list(node.users)
    is_read = all(user.op == "call_method" and user.target == "item" for user in users)
    return value.dim() == 0 and bool(users) and is_read


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """An output of a graph.

    Attributes:
        source: The position of the input that it is; None if it is computed.
        value: What it always is, if it is neither.
        is_computed: Whether a program gives it.
        is_size: Whether it is an integer of Python.
    """

    source: int | None = None
    value: Any = None
    is_computed: bool = False
    is_size: bool = False


def list_outputs(graph: GraphModule, names: Sequence[str]) -> tuple[GraphOutput, ...]:
    """Return what each output of a graph is.

    Args:
        graph: Whose outputs are in one tuple or list.
        names: Of its inputs.

    Raises:
        ModelError: They are in another structure.
    """
    (node,) = graph.graph.find_nodes(op="output")
    returned = node.args[0]
    if not isinstance(returned, tuple | list):
        raise ModelError(f"the graph returns {type(returned).__name__}, not a tuple")
    outputs = []
    for one in returned:
        if not isinstance(one, Node):
            outputs.append(GraphOutput(value=one))
        elif one.op == "placeholder":
            outputs.append(GraphOutput(source=list(names).index(one.name)))
        else:
            is_size = isinstance(one.meta.get(_VALUE), torch.SymInt)
            outputs.append(GraphOutput(is_computed=True, is_size=is_size))
    return tuple(outputs)


class BoundGraph(torch.nn.Module):  # type: ignore[misc]
    """A graph as a module of its tensors alone: parameters are its own, over the same memory.

    Args:
        graph: The graph.
        inputs: What its inputs are.
        outputs: What its outputs are.
        args: What it is called with.
    """

    def __init__(
        self,
        graph: GraphModule,
        inputs: GraphInputs,
        outputs: Sequence[GraphOutput],
        args: Sequence[Any],
    ) -> None:
        super().__init__()
        self.graph = graph
        self._inputs = inputs
        self._outputs = tuple(outputs)
        self._numbers = {i: number_of(args[i]) for i in inputs.numbers}
        for position in inputs.static:
            tensor, name = args[position], inputs.names[position]
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Return what is computed of the tensors, in the order of the outputs."""
        inputs, args = self._inputs, dict[int, Any]()
        args.update(zip(inputs.tensors, tensors, strict=True))
        args.update((i, getattr(self, inputs.names[i])) for i in inputs.static)
        args.update((i, args[tensor].shape[dim]) for i, (tensor, dim) in inputs.sizes.items())
        for position, number in self._numbers.items():
            is_tensor = isinstance(number, float)
            args[position] = torch.tensor(number, dtype=torch.float64) if is_tensor else number
        returned = self.graph(*(args[i] for i in range(len(inputs.names))))
        pairs = zip(returned, self._outputs, strict=True)
        return tuple(one for one, output in pairs if output.is_computed)


def number_of(value: Any) -> int | float | bool:
    """Return a number of Python, also of a tensor that holds one."""
    number: int | float | bool = value.item() if isinstance(value, torch.Tensor) else value
    return number
