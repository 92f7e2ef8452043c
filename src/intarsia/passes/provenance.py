# SPDX-License-Identifier: Apache-2.0
"""What rewrites owe to the nodes that they touch: origins, annotations, and keeping off others.

Library passes know nothing of annotations. So whatever one must not touch stands under a domain
that it does not know for as long as it runs: all bodies and functions, and what it must keep.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from intarsia.graph.metadata import DEVICE_KEY, ORIGIN_KEY
from intarsia.graph.snapshot import node_bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx_ir as ir


def record_origins(model: ir.Model) -> None:
    """Write on each node of the graph that it stands for itself, unless something is there."""
    for node in model.graph:
        node.metadata_props.setdefault(ORIGIN_KEY, json.dumps([node.name or ""]))


def device_of(node: ir.Node) -> str | None:
    """Return the node's annotation."""
    return node.metadata_props.get(DEVICE_KEY)


def makes_output(node: ir.Node) -> bool:
    """Whether a value that the node makes is an output of its graph."""
    return any(value.is_graph_output() for value in node.outputs)


def stand_for(node: ir.Node, merged: Sequence[ir.Node]) -> None:
    """Transfer the origins of other nodes, and the annotation among them, to one node."""
    origins = [name for other in merged for name in json.loads(other.metadata_props[ORIGIN_KEY])]
    node.metadata_props[ORIGIN_KEY] = json.dumps(list(dict.fromkeys(origins)))
    device = next((device for other in merged if (device := device_of(other)) is not None), None)
    if device is not None:
        node.metadata_props[DEVICE_KEY] = device


@contextmanager
def hidden(
    model: ir.Model, domain_of: Callable[[ir.Node], str | None] = lambda _: None
) -> Iterator[None]:
    """Keep a pass off bodies, functions, and the nodes for which a domain is returned.

    Args:
        model: What the pass will change.
        domain_of: Returns the domain under which a node of the graph hides, if it shall.
    """
    bodies = [body for node in model.graph for body in node_bodies(node)]
    domains = [(node, "intarsia.inner") for body in bodies for node in body.all_nodes()]
    for function in model.functions.values():
        domains += [(node, "intarsia.inner") for node in function.all_nodes()]
    domains += [(node, domain) for node in model.graph if (domain := domain_of(node))]
    former = [(node, node.domain) for node, _ in domains]
    for node, domain in domains:
        node.domain = domain
    try:
        yield
    finally:
        for node, domain in former:
            node.domain = domain
