# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs that are given and taken in a device's memory, not in the host's.

They are named as `input:NAME` and `output:NAME`; an input also by its name alone, and so is an
output, unless a node has that name: then the node is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.annotate import find_border
from intarsia.graph.metadata import DEVICE_KEY
from intarsia.place.devices import find_targets, is_copyable
from intarsia.plan.devices import HOST_DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph, Value
    from intarsia.target import CompilationConfig, PlacedTarget
    from intarsia.target.placed import MemoryDomain

Said = Mapping[tuple[str, str], tuple[str, str]]
"""By `input` or `output` and a name: the text of a device, and who said it."""


def take_borders(model: ir.Model, pins: Mapping[str, str]) -> tuple[dict[str, str], Said]:
    """Return the pins that are of nodes, and what pins and annotations say of inputs and outputs.

    Args:
        model: As it was loaded; what it says may not outlive its preparation.
        pins: From a name or a pattern to the text of a target.

    Raises:
        PlacementError: A pin contradicts an annotation, or names no input or output.
    """
    said: dict[tuple[str, str], tuple[str, str]] = {}
    for what, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            text = value.metadata_props.get(f"{DEVICE_KEY}.{what}")
            if text is not None:
                said[what, value.name or ""] = (text, f"annotation {text!r} of {what}")
    of_nodes = {}
    for pattern, text in pins.items():
        found = find_border(model, pattern)
        if found is None:
            of_nodes[pattern] = text
            continue
        key, words = (found[0], found[1].name or ""), f"pin '{pattern}={text}'"
        before = said.setdefault(key, (text, words))
        if before[0] != text:
            raise PlacementError(
                f"{key[0]} {key[1]!r}: {words} contradicts {before[1]}",
                target=text,
                hint="remove one of the two",
            )
    return of_nodes, said


def place_borders(
    graph: Graph,
    said: Said,
    config: CompilationConfig,
    domains: Mapping[PlacedTarget, MemoryDomain],
) -> dict[int, MemoryDomain]:
    """Return by value id the memory of each input and output that is not the host's.

    Args:
        graph: The prepared model.
        said: What `take_borders` found.
        config: The machine.
        domains: The memory of each target.

    Raises:
        PlacementError: A value cannot be on a device, or is both an input and an output and is
            to be in two memories.
        TargetError: What was said is no target or device of the machine.
    """
    found: dict[int, MemoryDomain] = {}
    sides = {"input": graph.inputs, "output": graph.outputs}
    ids = {(what, graph.values[i].name): i for what, some in sides.items() for i in some}
    for key, (text, words) in said.items():
        what, name = key
        meant = find_targets(config, text, f"{what} {name!r}")
        domain = domains[meant[0]]
        if domain == HOST_DOMAIN:
            continue
        value = graph.values[ids[key]]
        problem = _problem(value)
        if problem:
            raise PlacementError(
                f"{what} {name!r} cannot be on {text}: {problem} ({words})",
                target=text,
                hint="leave it in the host's memory",
            )
        if found.setdefault(value.id, domain) != domain:
            raise PlacementError(
                f"{name!r} is an input and an output, and is to be in two memories ({words})",
                target=text,
                hint="say the same of both, or put an Identity between them",
            )
    return found


def _problem(value: Value) -> str:
    """Return why a value cannot be in a device's memory; empty if it can."""
    if value.constant is not None:
        return "it is a constant of the program"
    return "" if is_copyable(value) else "only dense tensors of known size can be copied"
