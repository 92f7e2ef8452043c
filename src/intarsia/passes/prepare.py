# SPDX-License-Identifier: Apache-2.0
"""The rewrites before placement, each one with a name that pipelines and `explain` print.

Rewrites never change results beyond float rounding, keep the names of inputs and outputs, and
never merge nodes that are annotated for different devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as onnx_passes

from intarsia.errors import IntarsiaError, ModelError
from intarsia.graph.bodies import settle_loops
from intarsia.graph.graph import Graph
from intarsia.graph.infer import infer_shapes
from intarsia.graph.metadata import CLAIM_KEY
from intarsia.graph.model_info import ModelInfo, read_model_info
from intarsia.graph.ops import ViewKind, operator_of
from intarsia.graph.snapshot import node_bodies, snapshot
from intarsia.graph.windows import check_windows
from intarsia.passes.activate_before_views import activate_before_views
from intarsia.passes.convolve_before_resizing import convolve_before_resizing
from intarsia.passes.convolve_tokens import convolve_tokens
from intarsia.passes.fold_constants import fold_constants, lift_constants
from intarsia.passes.inline_bodies import inline_bodies
from intarsia.passes.merge_linear import merge_linear
from intarsia.passes.provenance import device_of, hidden, makes_output, record_origins, stand_for
from intarsia.passes.separate_dequantize import separate_dequantize, separate_weights
from intarsia.passes.split_sequences import split_sequences
from intarsia.target.pipeline import STANDARD_PIPELINE, Stage, split_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_INTO = ("Conv", "ConvTranspose", "Gemm")
_FOLLOWERS = ("BatchNormalization", "Mul", "Div", "Add", "Sub")


def fuse_affine(model: ir.Model) -> None:
    """Fuse affine nodes into the node before them; the latter keeps its name."""
    present = {pair for node in model.graph if node.op_type in _INTO for pair in _pairs(node)}
    if not present:
        return
    from intarsia.passes.affine_rules import apply_rules  # its import takes longer than most passes

    pairs = [(into, last) for into in _INTO for last in _FOLLOWERS if (into, last) in present]
    with hidden(model), np.errstate(all="ignore"):
        apply_rules(model, pairs)


def _pairs(node: ir.Node) -> set[tuple[str, str]]:
    """Return a node's operator with each affine one in the chains after it.

    Of a chain, one after the other comes to stand behind the node.
    """
    pairs: set[tuple[str, str]] = set()
    results = [node.outputs[0]]
    while results:
        result = results.pop()
        for reader in result.consumers():
            operands = [value for value in reader.inputs if value is not result]
            if reader.op_type in _FOLLOWERS and all(o and o.is_initializer() for o in operands):
                pairs.add((node.op_type, reader.op_type))
                results.append(reader.outputs[0])
    return pairs


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
    staying = _kept_identities(model)
    for node in model.graph:  # what was declared of an output is said of what takes its place
        if (node.domain, node.op_type) != ("", "Identity") or node in staying:
            continue
        claim = node.outputs[0].metadata_props.get(CLAIM_KEY)
        if claim is not None and node.inputs[0] is not None:
            node.inputs[0].metadata_props.setdefault(CLAIM_KEY, claim)
    with hidden(model, lambda node: "intarsia.kept" if node in staying else None):
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
    source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op_type == "Resize" and source is not None:
        return _keeps_size(node, source)
    if view is ViewKind.NONE or source is None:
        return False
    if node.op_type == "Dropout":  # later versions have `training_mode`, which the folding reads
        used = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        return not used and version in _DROPOUTS_IN_INFERENCE
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", ())
        return bool(perm) and list(perm) == sorted(perm)
    return view is ViewKind.RESHAPED and _has_shape_of(source, result)


def _has_shape_of(first: ir.Value, second: ir.Value) -> bool:
    """Whether two values have the same shape at all sizes."""
    shape = first.shape
    is_named = shape is not None and all(isinstance(one, int) or one.value for one in shape)
    return is_named and shape == second.shape


def _keeps_size(node: ir.Node, source: ir.Value) -> bool:
    """Whether a resize is to the sizes that there are: each entry is then just where it was.

    Scales would tell less: one a little above 1 leaves the extents, and moves the entries.
    """
    sizes = node.inputs[3] if len(node.inputs) > 3 else None  # noqa: PLR2004 - x, roi, scales, sizes
    is_crop = (
        node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    )
    return sizes is not None and not is_crop and _has_shape_of(source, node.outputs[0])


def _kept_identities(model: ir.Model) -> set[ir.Node]:
    """Return those that are copies between devices, and those whose source cannot be renamed."""
    staying: set[ir.Node] = set()
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
            staying.add(node)
        else:
            roots[result] = root
    return staying


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


NamedPass: TypeAlias = "tuple[str, Callable[[ir.Model], object]]"
_DEDUPLICATED_ELEMENTS = 1024
_ON_CONSTANTS = "deduplicate-initializers"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One kind of rewrite that was applied.

    Attributes:
        name: What it is called, for example "fuse-affine".
        count: How often it was applied.
        nodes: The names of the nodes that it folded, merged into others, or removed.
    """

    name: str
    count: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A rewritten model.

    Attributes:
        graph: Its snapshot.
        info: What it says of itself.
        rewrites: What was done to it, in order.
    """

    graph: Graph
    info: ModelInfo
    rewrites: tuple[Rewrite, ...]

    @property
    def model(self) -> ir.Model:
        """It; not to be changed, as the snapshot refers to it."""
        return self.graph.model


def prepare(model: ir.Model, passes: Iterable[NamedPass] | None = None) -> PreparedModel:
    """Return a copy of a loaded model after some passes; `model` stays as it is.

    Each node of the result says in its metadata for which nodes of `model` it stands.

    Args:
        model: What `load` returned.
        passes: What to run, in order; None means those of the standard pipeline.

    Raises:
        ModelError: A pass showed that the operators' shapes do not fit together, or a window does
            not fit its input.
    """
    model = model.clone()
    record_origins(model)
    original = before = _names(model)
    absent = [value for node in model.graph for value in node.outputs if not value.name]
    done: dict[str, tuple[int, list[str]]] = {}
    for name, rewrite in standard_passes() if passes is None else passes:
        constants = len(model.graph.initializers)
        moved = _apply(name, rewrite, model)
        for value in absent:  # the libraries give it a name, and a backend would compute it
            value.name = ""
        after = _names(model)
        gone = [node for node in before if node in original and node not in after]
        merged = constants - len(model.graph.initializers) if name == _ON_CONSTANTS else 0
        count, nodes = done.get(name, (0, []))
        done[name] = (count + len(gone) + merged + moved, [*nodes, *gone])
        before = after
    rewrites = (Rewrite(name, count, tuple(nodes)) for name, (count, nodes) in done.items())
    applied = tuple(rewrite for rewrite in rewrites if rewrite.count)
    if applied:
        infer_shapes(model)
        settle_loops(model)
    graph = snapshot(model)
    check_windows(graph)
    return PreparedModel(graph, read_model_info(graph), applied)


def _apply(name: str, rewrite: Callable[[ir.Model], object], model: ir.Model) -> int:
    """Rewrite a model in place, and return how many nodes were moved, if the pass says so.

    Raises:
        ModelError: A library's pass failed: onnx checks less of a model than it relies on.
    """
    try:
        moved = rewrite(model)
    except IntarsiaError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"the model cannot be prepared: {name}: {reason}",
            hint="check that its operators' attributes fit the shapes of their inputs",
        ) from error
    return moved if isinstance(moved, int) else 0


def standard_passes() -> Iterator[NamedPass]:
    """Yield the passes before placement of the standard pipeline, in order."""
    for text in STANDARD_PIPELINE:
        stage, name = split_pass(text)
        if stage is Stage.BEFORE:
            yield name, PASSES[name]


def deduplicate_initializers(model: ir.Model) -> None:
    """Let the first of equal small initializers stand for all."""
    if any(value.is_graph_output() for value in model.graph.initializers.values()):
        return  # the library would print that it skips them
    onnx_passes.DeduplicateInitializersPass(size_limit=_DEDUPLICATED_ELEMENTS)(model)


def _names(model: ir.Model) -> dict[str, None]:
    return dict.fromkeys([node.name or "" for node in model.graph])


PASSES: Mapping[str, Callable[[ir.Model], object]] = {
    "remove-unused": remove_unused,
    "lift-constants": lift_constants,
    "fold-constants": fold_constants,
    "inline-bodies": inline_bodies,
    "split-sequences": split_sequences,
    "eliminate-identities": eliminate_identities,
    "fuse-affine": fuse_affine,
    "convolve-before-resizing": convolve_before_resizing,
    "merge-linear": merge_linear,
    "activate-before-views": activate_before_views,
    "convolve-tokens": convolve_tokens,
    "eliminate-duplicates": eliminate_duplicates,
    _ON_CONSTANTS: deduplicate_initializers,
    "separate-dequantize": separate_dequantize,
    "separate-weights": separate_weights,
}
"""Every rewrite of a whole model that we have, by name."""

ROUNDING = frozenset(("fuse-affine", "convolve-before-resizing", "merge-linear", "convolve-tokens"))
"""Those after which results are rounded otherwise: with some sizes they do what they do for all."""
