# SPDX-License-Identifier: Apache-2.0
"""Where nodes run, as a layer of colours over the graph that Model Explorer shows.

Source:
    Model Explorer (ai-edge-model-explorer 0.1.34), "Custom node data": a `GraphNodeData` as JSON,
    which is laid over the graph that is open. Its adapter of ONNX (model-explorer-onnx 0.4.2)
    gives a node its name as id, and `<node_N>`, N being its position, where it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from intarsia.graph.load import ModelLike
from intarsia.place.annotated_model import node_names
from intarsia.plan.placement import Placement

if TYPE_CHECKING:
    import onnx

# Okabe and Ito, "Color Universal Design" (2008): apart for every eye; made lighter, for black text.
COLOURS = ("#8ecaf0", "#f5b971", "#7fd3b5", "#f2e68c", "#c9a6d9", "#e89a7a", "#9fb4d8", "#c3c9a4")
SEVERAL, NOWHERE = "#d0d0d0", "#f0f0f0"
"""Colours of nodes that are on several targets, and of those that no region has."""

ABSENT = "no part of the program: computed while compiling, or needed by nothing"


def placement_overlay(
    placement: Placement, ids: Mapping[str, str] | None = None, name: str = "intarsia"
) -> dict[str, Any]:
    """Return where each node of the user's model runs, as a value of JSON.

    Args:
        placement: It.
        ids: Of all nodes of the user's model, by the names that loading gives them; None where the
            model is not here: then an id is a name, and nodes without a region are left out.
        name: What the layer is called.
    """
    found: dict[str, dict[str, None]] = {}
    for region in placement.regions:
        for node in region.nodes:
            for origin in node.origins:
                found.setdefault(origin, {})[region.runs_on] = None
    texts = dict.fromkeys(region.runs_on for region in placement.regions)
    colours = {text: COLOURS[i % len(COLOURS)] for i, text in enumerate(texts)}
    results: dict[str, dict[str, str]] = {}
    for origin in found if ids is None else ids:
        targets = tuple(found.get(origin, ()))
        key = origin if ids is None else ids[origin]
        if not targets:
            results[key] = {"value": ABSENT, "bgColor": NOWHERE}
        else:
            colour = colours[targets[0]] if len(targets) == 1 else SEVERAL
            results[key] = {"value": " and ".join(targets), "bgColor": colour}
    return {
        "name": name,
        "results": results,
        "showExpandedSummaryOnGroupNode": True,
        "showLabelCountColumnsInChildrenStatsTable": True,
    }


def explorer_ids(model: ModelLike, nodes: Iterable[onnx.NodeProto]) -> dict[str, str]:
    """Return Model Explorer's id of each node of a model, by the name that loading gives it.

    Args:
        model: It.
        nodes: The nodes of its graph, as they are in the file.
    """
    names = node_names(model)
    return {
        names[first]: node.name or f"<node_{position}>"
        for position, node in enumerate(nodes)
        if (first := next((output for output in node.output if output), "")) in names
    }
