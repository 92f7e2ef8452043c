# SPDX-License-Identifier: Apache-2.0
"""Write on nodes, inputs and outputs the device that the user wants them on."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.check import nearest
from intarsia.graph.inline import calls_of, inline_functions
from intarsia.graph.load import ModelLike, name_nodes, parse
from intarsia.graph.metadata import DEVICE_KEY, ORIGIN_KEY, name_matches
from intarsia.target import Target, VirtualDevice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir


def on_device(model: ModelLike, devices: Mapping[str, str | Target | VirtualDevice]) -> ir.Model:
    """Return a copy of the model with annotated nodes, inputs and outputs.

    An input that is on a device is given in its memory, and an output taken from there: a run takes
    and returns such values (`intarsia.DeviceArray`).

    A node inside a body of an If, Loop or Scan is annotated like any other; where the plan cannot
    run the operator itself, the annotation holds for all of it. A pattern that means no node but
    one inside a function, by `CALL/NODE`, gives a model in which functions stand in the place of
    their calls.

    Args:
        model: Any form that `load` takes.
        devices: From a pattern of node names (`*`, `?`, `[...]`; case matters), or from
            `input:NAME`, `output:NAME` or the name of an input or output that no node has, to a
            target, a device with or without one, or the text of a device, target or label. For an
            Identity, `SOURCE -> DESTINATION` makes it an explicit copy: what makes its input is on
            the one, what reads its output on the other.

    Raises:
        ModelError: The model cannot be read or is invalid.
        PlacementError: A pattern matches no node, or two say different things of one node, or
            what is said is neither text nor a target or device.
    """
    annotated = parse(model)
    nodes = [(node.name or "", node) for node in annotated.graph.all_nodes()]
    patterns = [each for each in devices if find_border(annotated, each) is None]
    if not all(any(name_matches(name, each) for name, _ in nodes) for each in patterns):
        nodes = _inlined(annotated)
    written: dict[str, tuple[str, str]] = {}
    for pattern, said in devices.items():
        device = _text_of(said)
        if device is None:
            raise PlacementError(
                f"the device for {pattern!r} is {said!r}, neither text nor a target or device",
                hint="write a label, a device or a target, such as 'opencl:1'",
            )
        border = find_border(annotated, pattern)
        if border is not None:
            border[1].metadata_props[f"{DEVICE_KEY}.{border[0]}"] = device
            continue
        matches = [node for name, node in nodes if name_matches(name, pattern)]
        if not matches:
            names = [name for name, _ in nodes]
            raise PlacementError(
                f"the pattern {pattern!r} for {device!r} matches no node{nearest(pattern, names)}",
                hint="patterns are compared with node names; * stands for any text",
            )
        for node in matches:
            other = written.setdefault(node.name or "", (device, pattern))
            if other[0] != device:
                raise PlacementError(
                    f"node {node.name!r}: {pattern!r} says {device!r}, {other[1]!r} {other[0]!r}",
                    node=node.name,
                    hint="narrow one of the two patterns",
                )
            node.metadata_props[DEVICE_KEY] = device
    return annotated


def _text_of(said: object) -> str | None:
    """Return the text of a device, target or label; None of what is not such a thing.

    A virtual device without a target means every target on it; one that says nothing is none.
    """
    if isinstance(said, VirtualDevice) and said.target is None:
        return None if said.device_type is None else said.short_text
    return str(said) if isinstance(said, str | Target | VirtualDevice) else None


def find_border(model: ir.Model, name: str) -> tuple[str, ir.Value] | None:
    """Return the input or output that a name means, and which of the two it is.

    Args:
        model: Where it may be.
        name: `input:NAME`, `output:NAME`, or a name that no node has.

    Raises:
        PlacementError: There is no input or output of that name.
    """
    graph = model.graph
    sides = {"input": graph.inputs, "output": graph.outputs}
    what, colon, rest = name.partition(":")
    if colon and what in sides and not any(node.name == name for node in graph):
        for value in sides[what]:
            if value.name == rest:
                return what, value
        names = [value.name or "" for value in sides[what]]
        raise PlacementError(
            f"the model has no {what} {rest!r}{nearest(rest, names)}",
            hint=f"it has {', '.join(names)}",
        )
    if any(node.name == name for node in graph):
        return None
    return next(
        ((what, value) for what, some in sides.items() for value in some if value.name == name),
        None,
    )


def _inlined(model: ir.Model) -> list[tuple[str, ir.Node]]:
    """Put functions in the place of their calls; return the names that nodes can be called by."""
    if inline_functions(model):
        name_nodes(model.graph)
    for node in model.graph:
        node.metadata_props.pop(ORIGIN_KEY, None)  # this is the user's model now
    return [
        (name, node)
        for node in model.graph.all_nodes()
        for name in (node.name or "", *(call.name for call in calls_of(node)))
    ]


def nearest_names(pattern: str, names: Iterable[str]) -> str:
    """Return a hint with the names that are most like a pattern."""
    candidates = [name for name in dict.fromkeys(names) if name]
    close = (
        difflib.get_close_matches(pattern.rstrip("*"), candidates, n=3, cutoff=0.3)
        or candidates[:3]
    )
    return f"names here are like {', '.join(map(repr, close))}" if close else "it has no nodes"
