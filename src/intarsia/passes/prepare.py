# SPDX-License-Identifier: Apache-2.0
"""The pipeline of rewrites before placement, each one with a name that `explain` can print.

Rewrites never change results beyond float rounding, keep the names of inputs and outputs, and
never merge nodes that are annotated for different devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir.passes.common as onnx_passes

from intarsia.graph.infer import infer_shapes
from intarsia.passes.eliminate_duplicates import eliminate_duplicates
from intarsia.passes.eliminate_identities import eliminate_identities
from intarsia.passes.fold_constants import fold_constants, lift_constants
from intarsia.passes.fuse_affine import fuse_affine
from intarsia.passes.provenance import record_origins

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

_MOST_FOLDS = 8
_DEDUPLICATED_ELEMENTS = 1024


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
class Prepared:
    """A rewritten model, and what was done to it, in order."""

    model: ir.Model
    rewrites: tuple[Rewrite, ...]


def prepare(model: ir.Model) -> Prepared:
    """Return a copy of a loaded model, simplified; `model` stays as it is.

    Each node of the result says in its metadata for which nodes of `model` it stands.

    Raises:
        ModelError: Folding showed that the operators' shapes do not fit together.
    """
    model = model.clone()
    record_origins(model)
    done: dict[str, list[str]] = {}
    for name, rewrite in _PIPELINE:
        done[name] = rewrite(model)
    unused = _remove_unused(model)
    duplicates = _deduplicate_initializers(model)
    infer_shapes(model)
    rewrites = [Rewrite(name, len(nodes), tuple(nodes)) for name, nodes in done.items()]
    rewrites.append(Rewrite("remove-unused", len(unused), tuple(unused)))
    rewrites.append(Rewrite("deduplicate-initializers", duplicates, ()))
    return Prepared(model, tuple(rewrite for rewrite in rewrites if rewrite.count))


def _fold(model: ir.Model) -> list[str]:
    """Fold until nothing folds: folded shapes let more shapes be inferred."""
    done: list[str] = []
    for _ in range(_MOST_FOLDS):
        folded = fold_constants(model)
        if not folded:
            break
        done += folded
        infer_shapes(model)
    return done


def _remove_unused(model: ir.Model) -> list[str]:
    before = [node.name or "" for node in model.graph]
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    after = {node.name or "" for node in model.graph}
    return [name for name in before if name not in after]


def _deduplicate_initializers(model: ir.Model) -> int:
    before = len(model.graph.initializers)
    onnx_passes.DeduplicateInitializersPass(size_limit=_DEDUPLICATED_ELEMENTS)(model)
    return before - len(model.graph.initializers)


_PIPELINE: tuple[tuple[str, Callable[[ir.Model], list[str]]], ...] = (
    ("lift-constants", lift_constants),
    ("fold-constants", _fold),
    ("eliminate-identities", eliminate_identities),
    ("fuse-affine", fuse_affine),
    ("eliminate-duplicates", eliminate_duplicates),
)
