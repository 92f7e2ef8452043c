# SPDX-License-Identifier: Apache-2.0
"""Activations move before the reshapes and transposes that stand between them and a product.

What each element becomes does not depend on where it lies, so both orders give the same numbers to
the bit; but an activation that stands behind its product is computed as the product is written.
Exporters put views in between: GPT-2's Conv1D is a Gemm between two Reshapes, and SegFormer's
depthwise convolution turns tokens into an image and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.graph.ops import Family, ViewKind, operator_of
from intarsia.passes.provenance import device_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

# fmt: off
_ACTIVATIONS = frozenset((
    "Celu", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu",
    "Selu", "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu",
))
# fmt: on
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


def activate_before_views(model: ir.Model) -> int:
    """Move activations before views where nothing else reads what the view is of; say how many."""
    count = 0
    for node in reversed(list(model.graph)):  # of two views in a row, the last one first
        if _is_view(node) and _is_of_product(node.inputs[0]):
            nodes = find_activation(node)
            result = only_exit(node, nodes)
            if result is not None:
                _move_behind(model.graph, node, nodes, result)
                count += 1
    return count


def _is_view(node: ir.Node) -> bool:
    """Whether a node only renames or permutes what nothing else reads."""
    is_view = operator_of(node).view is ViewKind.RESHAPED or node.op_type == "Transpose"
    source, result = (node.inputs[0] if node.inputs else None), node.outputs[0]
    return (
        is_view
        and not node.domain
        and len(node.outputs) == 1
        and not result.is_graph_output()
        and source is not None
        and source.shape is not None
        and source.dtype == result.dtype
        and len(source.uses()) == 1
        and not source.is_graph_output()
    )


def _is_of_product(value: ir.Value | None) -> bool:
    """Whether a value is a product, up to constants that are added and views."""
    node = None if value is None else value.producer()
    while node is not None and not node.domain and node.op_type not in _PRODUCTS:
        computed = [v for v in node.inputs if v is not None and not v.is_initializer()]
        is_passing = operator_of(node).family is Family.ELEMENTWISE or _is_view(node)
        if not is_passing or len(computed) != 1:
            return False
        node = computed[0].producer()
    return node is not None and not node.domain


def find_activation(view: ir.Node) -> list[ir.Node]:
    """Return the nodes that compute elements from those of a view, and from nothing else."""
    source = view.inputs[0]
    rank = len(source.shape or ()) if source is not None else 0
    made = {view.outputs[0]}
    nodes: list[ir.Node] = []
    waiting = list(_readers(view.outputs[0]))
    while waiting:
        node = waiting.pop(0)
        operands = [value for value in node.inputs if value is not None]
        is_inner = (
            node not in nodes
            and operator_of(node).family is Family.ELEMENTWISE
            and not node.domain
            and len(node.outputs) == 1
            and node.outputs[0].dtype == view.outputs[0].dtype
            and device_of(node) == device_of(view)
            and all(value in made or _is_number(value, rank) for value in operands)
        )
        if is_inner:
            nodes.append(node)
            made.add(node.outputs[0])
            waiting += _readers(node.outputs[0])
    return nodes


def _readers(value: ir.Value) -> Iterable[ir.Node]:
    return (use.node for use in value.uses())


def _is_number(value: ir.Value, rank: int) -> bool:
    """Whether a value is one constant number, which broadcasts over tensors of a rank."""
    shape = value.shape
    is_constant = value.is_initializer() and not value.is_graph_input()
    return is_constant and shape is not None and len(shape) <= rank and set(shape) <= {1}


def only_exit(view: ir.Node, nodes: list[ir.Node]) -> ir.Value | None:
    """Return the value that others read of what is computed, if it is one, and an activation."""
    inner = set(nodes)
    exits = [
        value
        for value in (view.outputs[0], *(node.outputs[0] for node in nodes))
        if value.is_graph_output() or any(node not in inner for node in _readers(value))
    ]
    is_activation = any(node.op_type in _ACTIVATIONS for node in nodes)
    if len(exits) != 1 or exits[0] in view.outputs or exits[0].is_graph_output():
        return None
    return exits[0] if is_activation else None


def _move_behind(graph: ir.Graph, view: ir.Node, nodes: list[ir.Node], result: ir.Value) -> None:
    """Let the nodes read what the view reads, and the view what they compute.

    The name of the result stays that of the same numbers in the same shape.
    """
    source, viewed = view.inputs[0], view.outputs[0]
    assert source is not None
    last = result.producer()
    assert last is not None
    result.replace_all_uses_with(viewed)
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is viewed:
                node.replace_input_with(index, source)
        node.outputs[0].shape = source.shape
    view.replace_input_with(0, result)
    graph.remove(view)
    graph.insert_after(last, view)
    viewed.name, result.name = result.name, f"{result.name}.before"
