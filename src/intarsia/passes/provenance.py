# SPDX-License-Identifier: Apache-2.0
"""What rewrites owe to the nodes that they merge: their origins and their annotations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from intarsia.graph.snapshot import DEVICE_KEY, ORIGIN_KEY

if TYPE_CHECKING:
    import onnx_ir as ir


def record_origins(model: ir.Model) -> None:
    """Write on each node of the graph that it stands for itself, unless something is there."""
    for node in model.graph:
        node.metadata_props.setdefault(ORIGIN_KEY, json.dumps([node.name or ""]))


def can_merge(first: ir.Node, second: ir.Node) -> bool:
    """Whether the annotations of two nodes allow one node in their place."""
    devices = device_of(first), device_of(second)
    return None in devices or devices[0] == devices[1]


def device_of(node: ir.Node) -> str | None:
    """Return the node's annotation."""
    return node.metadata_props.get(DEVICE_KEY)


def absorb(kept: ir.Node, gone: ir.Node) -> None:
    """Let a node stand for another one too: for its origins and for its annotation."""
    origins = _origins(kept)
    origins += [name for name in _origins(gone) if name not in origins]
    kept.metadata_props[ORIGIN_KEY] = json.dumps(origins)
    device = device_of(gone)
    if device is not None:
        kept.metadata_props.setdefault(DEVICE_KEY, device)


def replace_output(graph: ir.Graph, gone: ir.Value, kept: ir.Value, *, rename: bool) -> None:
    """Let all readers of a value, and the graph's outputs, have another one.

    Args:
        graph: The graph whose outputs may name the value.
        gone: The only output in use of a node, which is removed here.
        kept: The value that takes its place.
        rename: Whether `kept` takes over the name.
    """
    producer = gone.producer()
    gone.replace_all_uses_with(kept, replace_graph_outputs=True)
    if producer is not None:
        graph.remove(producer, safe=True)
    if rename:
        name, gone.name = gone.name, None
        kept.name = name


def _origins(node: ir.Node) -> list[str]:
    text = node.metadata_props.get(ORIGIN_KEY)
    return list(json.loads(text)) if text else [node.name or ""]
