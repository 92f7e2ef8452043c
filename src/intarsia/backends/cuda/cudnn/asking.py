# SPDX-License-Identifier: Apache-2.0
"""What cuDNN has no engine for: it is asked for each match of a graph, and each question once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from intarsia.backends.cuda.cudnn import library
from intarsia.backends.cuda.cudnn.descriptors import device_properties, engines
from intarsia.backends.cuda.cudnn.drafts import graph_of
from intarsia.backends.cuda.cudnn.graphs import DnnGraph, EngineRules
from intarsia.backends.cuda.cudnn.table import TABLE
from intarsia.backends.cuda.library_program import RegionTensors
from intarsia.graph.graph import Graph
from intarsia.graph.pattern import match_region
from intarsia.graph.per_graph import per_graph
from intarsia.graph.region import Region


@per_graph
def problems(graph: Graph, rules: EngineRules, device: int) -> Mapping[int, str]:
    """Return why cuDNN does not compute nodes that the table takes, by their ids.

    Args:
        graph: Where they are.
        rules: Which engines may compute them.
        device: The number of the device, as the driver counts.
    """
    region = Region.of(graph, range(len(graph.nodes)))
    found: dict[int, str] = {}
    for match in match_region(region, TABLE):
        drawn = _without_places(graph_of(match, RegionTensors(region)))
        problem = _problem(msgspec.msgpack.encode(drawn), rules, device)
        if problem:
            found |= dict.fromkeys(match.members, problem)
    return found


def _without_places(graph: DnnGraph) -> DnnGraph:
    """Return a graph without what engines do not depend on: its name, and where its tensors lie."""
    tensors = [
        msgspec.structs.replace(
            one, tensor=min(one.tensor, 0), number=None if one.number is None else 1.0
        )
        for one in graph.tensors
    ]
    drawn: DnnGraph = msgspec.structs.replace(graph, node="", tensors=tensors)
    return drawn


@cache
def _problem(graph: bytes, rules: EngineRules, device: int) -> str:
    """Return why cuDNN does not compute a graph on a device; nothing if it does."""
    dnn = library.library()
    drawn = msgspec.msgpack.decode(graph, type=DnnGraph)
    try:
        found = next(engines(dnn, drawn, rules, device_properties(dnn, device)), [])
    except library.CudnnError as error:
        return f"cuDNN does not take it: {error}"
    how = "" if rules == EngineRules() else " that the target's attributes allow"
    return "" if found else f"cuDNN has no engine for it on this device{how}"
