# SPDX-License-Identifier: Apache-2.0
"""Write on nodes the device that the user wants them on."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.check import nearest
from intarsia.graph.load import ModelLike, parse
from intarsia.graph.snapshot import DEVICE_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir


def on_device(model: ModelLike, devices: Mapping[str, str]) -> ir.Model:
    """Return a copy of the model with annotated nodes.

    Nodes inside the bodies of If, Loop and Scan run with the node that they belong to, and cannot
    be annotated.

    Args:
        model: Any form that `load` takes.
        devices: From a pattern of node names (`*`, `?`, `[...]`; case matters) to the text of a
            device, target or label. Of several patterns that match a node the last one counts.

    Raises:
        ModelError: The model cannot be read or is invalid.
        PlacementError: A pattern matches no node.
    """
    annotated = parse(model)
    nodes = [(node.name or "", node) for node in annotated.graph]
    for pattern, device in devices.items():
        matches = [node for name, node in nodes if fnmatchcase(name, pattern)]
        if not matches:
            names = [name for name, _ in nodes]
            raise PlacementError(
                f"the pattern {pattern!r} for {device!r} matches no node{nearest(pattern, names)}",
                hint="patterns are compared with node names; * stands for any text",
            )
        for node in matches:
            node.metadata_props[DEVICE_KEY] = device
    return annotated
