# SPDX-License-Identifier: Apache-2.0
"""Remove nodes that are idle, equal or unused, by passes of onnx-ir."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import onnx_ir.passes.common as onnx_passes

from intarsia.graph.ops import ViewKind, operator_of
from intarsia.graph.snapshot import node_bodies
from intarsia.passes.provenance import device_of, hidden, makes_output, stand_for

if TYPE_CHECKING:
    from collections.abc import Callable

_DOMAINS = ("", "ai.onnx.ml")
_DROPOUTS_IN_INFERENCE = range(7, 12)
_HASHABLE = frozenset(
    ir.AttributeType[name]
    for name in ("FLOAT", "FLOATS", "INT", "INTS", "STRING", "STRINGS", "TENSOR")
)


def remove_unused(model: ir.Model) -> None:
    """Remove nodes, initializers and functions that no output depends on."""
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]


def eliminate_identities(model: ir.Model) -> None:
    """Remove Identity, and Dropout, reshapes and transposes that change nothing.

    A node annotated for another device than its producer stays: it may stand there as a copy.
    """
    version = model.opset_imports.get("", 0)
    for node in model.graph:
        if not node.domain and _is_idle(node, version):
            node.op_type = "Identity"
            node.attributes.clear()
            node.resize_inputs(1)
            node.resize_outputs(1)
    kept = _kept_identities(model)
    with hidden(model, lambda node: "intarsia.kept" if node in kept else None):
        onnx_passes.IdentityEliminationPass()(model)


def eliminate_duplicates(model: ir.Model) -> None:
    """Let the first of equal nodes stand for all; equal includes the annotation.

    Operators of other domains, functions, random operators, nodes with bodies and nodes that make
    graph outputs are left alone.
    """
    nodes = list(model.graph)
    uses = {node: [use for value in node.outputs for use in value.uses()][:1] for node in nodes}
    with hidden(model, _likeness(model)):
        onnx_passes.CommonSubexpressionEliminationPass()(model)
    gone = [node for node in nodes if node.graph is None and uses[node]]
    twins: dict[ir.Node, ir.Node] = {}
    for node in reversed(gone):  # a reader may be gone as well, and has its twin by now
        ((reader, slot),) = uses[node]
        value = twins.get(reader, reader).inputs[slot]
        twins[node] = value.producer()  # type: ignore[union-attr, assignment]
    for node in gone:
        stand_for(twins[node], [twins[node], node])


def _is_idle(node: ir.Node, version: int) -> bool:
    """Whether a node that onnxscript's folding does not look at returns its input as it is."""
    view = operator_of(node).view
    if view is ViewKind.NONE or node.inputs[0] is None:
        return False
    source, result = node.inputs[0], node.outputs[0]
    if node.op_type == "Dropout":  # later versions have `training_mode`, which the folding reads
        used = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        return not used and version in _DROPOUTS_IN_INFERENCE
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", ())
        return bool(perm) and list(perm) == sorted(perm)
    known = source.shape is not None and source.shape.is_static()
    return known and view is ViewKind.RESHAPED and source.shape == result.shape


def _kept_identities(model: ir.Model) -> set[ir.Node]:
    """Return those that are copies between devices, and those whose source cannot be renamed."""
    kept: set[ir.Node] = set()
    roots: dict[ir.Value, ir.Value] = {}
    renamed: set[ir.Value] = set()
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if (node.domain, node.op_type) != ("", "Identity") or source is None:
            continue
        root = roots.get(source, source)
        producer = root.producer()
        device, result = device_of(node), node.outputs[0]
        stays = device is not None and (producer is None or device_of(producer) != device)
        if result.is_graph_output():
            stays = stays or producer is None or root.is_graph_output() or root in renamed
            renamed.update(() if stays else (root,))
        if stays:
            kept.add(node)
        else:
            roots[result] = root
    return kept


def _likeness(model: ir.Model) -> Callable[[ir.Node], str | None]:
    """Return what gives a domain of its own to each device, and to each node that stays."""

    def domain_of(node: ir.Node) -> str | None:
        may_merge = (
            node.domain in _DOMAINS
            and not operator_of(node).is_random
            and node.op_identifier() not in model.functions
            and not makes_output(node)
            and not node_bodies(node)
            and all(value.name for value in node.outputs)
            and all(attribute.type in _HASHABLE for attribute in node.attributes.values())
        )
        device = device_of(node)
        if not may_merge:
            return f"intarsia.single.{node.name}"
        return None if device is None else f"intarsia.on.{device}.{node.domain}"

    return domain_of
