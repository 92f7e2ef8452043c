# SPDX-License-Identifier: Apache-2.0
"""Make a `Graph` from an `onnx_ir` model that `load` has checked and sorted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import onnx_ir as ir

from intarsia.errors import InternalError, ModelError
from intarsia.extents import evaluate_all, is_free, late_symbols
from intarsia.graph.graph import ABSENT, Graph, Node, Value
from intarsia.graph.metadata import DEVICE_KEY, ORIGIN_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from intarsia.graph.infer_free import FreeShapes


def snapshot(
    model: ir.Model, free: FreeShapes | None = None, nominal: Mapping[str, int] | None = None
) -> Graph:
    """Make the snapshot of a model whose nodes are in topological order.

    Graph inputs get the first ids, then the constants, then the outputs of the nodes.

    Args:
        model: What `load` returned, or what passes made of it.
        free: The shapes of a model for all sizes, if it has free dimensions or sizes that the data
            decides.
        nominal: The sizes of its free dimensions for which `Value.shape` is.

    Raises:
        ModelError: A result would have a negative extent: inputs are too small for the model.
        InternalError: A node stands before one that it reads from, or reads an unknown value.
    """
    graph = model.graph
    inputs = [value for value in graph.inputs if value.const_value is None]
    values = [*inputs, *graph.initializers.values()]
    producers = [-1] * len(values)
    ids = {value: position for position, value in enumerate(values)}
    consumers: list[list[int]] = [[] for _ in values]
    nodes: list[Node] = []
    for position, source in enumerate(graph):
        node = _node(position, source, ids, values)
        nodes.append(node)
        for value in sorted({*node.reads}):
            consumers[value].append(position)
        producers += [position] * (len(values) - len(producers))
        consumers += [[] for _ in range(len(values) - len(consumers))]
    if len(ids) != len(values):
        raise InternalError("a value was numbered twice")
    return Graph(
        name=graph.name or "",
        nodes=tuple(nodes),
        values=tuple(
            _possible(
                _free(_value(position, value, producers[position], tuple(readers)), free, nominal),
                nodes,
            )
            for position, (value, readers) in enumerate(zip(values, consumers, strict=True))
        ),
        inputs=tuple(range(len(inputs))),
        outputs=tuple(_known(value, ids, "the graph's outputs") for value in graph.outputs),
        model=model,
        predecessors=_predecessors(nodes, producers),
        successors=_successors(nodes, consumers),
    )


def _free(value: Value, free: FreeShapes | None, nominal: Mapping[str, int] | None) -> Value:
    """Return a value with what is known of it for all sizes."""
    if free is None:
        return value
    extents, entries = free.extents.get(value.ir), free.entries.get(value.ir)
    if value.constant is None and extents is not None and value.is_tensor:
        if late_symbols(extents):
            value = replace(value, shape=None, extents=extents)
        elif nominal is not None:
            shape = evaluate_all(extents, nominal)
            value = replace(value, shape=shape, extents=extents if is_free(extents) else None)
    if entries is None or (nominal is None and not is_free(entries)):
        return value
    return replace(value, entries=entries)


def _node(position: int, source: ir.Node, ids: dict[ir.Value, int], values: list[ir.Value]) -> Node:
    name = source.name or ""
    inputs = tuple(
        ABSENT if value is None else _known(value, ids, f"node {name!r}") for value in source.inputs
    )
    captured = tuple(sorted({ids[value] for value in captured_values(source) if value in ids}))
    outputs = []
    for value in source.outputs:
        if value.name:
            ids[value] = len(values)
            values.append(value)
            outputs.append(ids[value])
        else:
            outputs.append(ABSENT)
    origins = source.metadata_props.get(ORIGIN_KEY)
    return Node(
        id=position,
        name=name,
        op_type=source.op_type,
        domain=source.domain,
        inputs=inputs,
        captured=captured,
        outputs=tuple(outputs),
        origins=tuple(json.loads(origins)) if origins else (name,),
        device=source.metadata_props.get(DEVICE_KEY),
        ir=source,
    )


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return the values that the bodies of a node read, their own values included.

    In order of first use, at any depth; without bodies it is an empty list.
    """
    captured: dict[ir.Value, None] = {}
    bodies = node_bodies(node)
    while bodies:
        body = bodies.pop()
        for inner in body:
            captured.update((value, None) for value in inner.inputs if value is not None)
            bodies += node_bodies(inner)
        captured.update((value, None) for value in body.outputs)
    return list(captured)


def node_bodies(node: ir.Node) -> list[ir.Graph]:
    """Return the bodies that a node has as attributes (If, Loop, Scan, SequenceMap)."""
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies += attribute.as_graphs()
    return bodies


def _known(value: ir.Value, ids: dict[ir.Value, int], reader: str) -> int:
    if value not in ids:
        raise InternalError(
            f"{reader} reads {value.name!r}, which nothing before it makes",
            hint="pass the model through intarsia.graph.load first",
        )
    return ids[value]


def _possible(value: Value, nodes: list[Node]) -> Value:
    """Return a value whose extents can be.

    Raises:
        ModelError: One is negative.
    """
    if value.shape and min(value.shape) < 0:
        maker = f"node {nodes[value.producer].name!r}" if value.producer >= 0 else "the model"
        raise ModelError(
            f"{maker} would make {value.name!r} of shape {list(value.shape)}: the inputs are too "
            "small for this model",
            node=nodes[value.producer].name if value.producer >= 0 else None,
            hint="give larger shapes, as in --shape x=1x3x224x224",
        )
    return value


def _value(position: int, source: ir.Value, producer: int, consumers: tuple[int, ...]) -> Value:
    is_tensor = source.type is None or isinstance(source.type, ir.TensorType)
    shape: tuple[int, ...] | None = None
    if is_tensor and source.shape is not None and source.shape.is_static():
        shape = tuple(int(dim) for dim in source.shape)  # type: ignore[arg-type]
    constant = source.const_value if producer < 0 else None
    if constant is not None:
        shape = tuple(int(dim) for dim in constant.shape)  # type: ignore[arg-type]
    dtype = source.dtype if constant is None else constant.dtype
    return Value(
        id=position,
        name=source.name or "",
        dtype=dtype_name(dtype) if is_tensor and dtype is not None else "",
        shape=shape,
        producer=producer,
        consumers=consumers,
        constant=constant,
        is_tensor=is_tensor,
        ir=source,
    )


@cache
def dtype_name(dtype: ir.DataType) -> str:
    """Return the numpy or ml_dtypes name of an ONNX element type; "" for undefined."""
    if dtype == ir.DataType.UNDEFINED:
        return ""
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def _predecessors(nodes: list[Node], producers: list[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(sorted({producers[value] for value in node.reads if producers[value] >= 0}))
        for node in nodes
    )


def _successors(nodes: list[Node], consumers: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(
            sorted({reader for value in node.outputs if value >= 0 for reader in consumers[value]})
        )
        for node in nodes
    )
