# SPDX-License-Identifier: Apache-2.0
"""The pipeline of rewrites before placement, each one with a name that `explain` can print.

Rewrites never change results beyond float rounding, keep the names of inputs and outputs, and
never merge nodes that are annotated for different devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx_ir.passes.common import DeduplicateInitializersPass

from intarsia.graph.infer import infer_shapes
from intarsia.passes.clean_up import (
    eliminate_duplicates,
    eliminate_identities,
    remove_unused,
)
from intarsia.passes.fold_constants import fold_constants, lift_constants
from intarsia.passes.fuse_affine import fuse_affine
from intarsia.passes.provenance import record_origins

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir


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
    original = before = _names(model)
    absent = [value for node in model.graph for value in node.outputs if not value.name]
    done: dict[str, list[str]] = {}
    for name, rewrite in _PIPELINE:
        rewrite(model)
        for value in absent:  # the libraries give it a name, and a backend would compute it
            value.name = ""
        after = _names(model)
        gone = [node for node in before if node in original and node not in after]
        done[name] = [*done.get(name, ()), *gone]
        before = after
    duplicates = _deduplicate_initializers(model)
    rewrites = [Rewrite(name, len(nodes), tuple(nodes)) for name, nodes in done.items()]
    rewrites.append(Rewrite("deduplicate-initializers", duplicates, ()))
    applied = tuple(rewrite for rewrite in rewrites if rewrite.count)
    if applied:
        infer_shapes(model)
    return Prepared(model, applied)


def _names(model: ir.Model) -> dict[str, None]:
    return dict.fromkeys([node.name or "" for node in model.graph])


def _deduplicate_initializers(model: ir.Model) -> int:
    before = len(model.graph.initializers)
    if any(value.is_graph_output() for value in model.graph.initializers.values()):
        return 0  # the library would print that it skips them
    DeduplicateInitializersPass(size_limit=_DEDUPLICATED_ELEMENTS)(model)
    return before - len(model.graph.initializers)


_PIPELINE: tuple[tuple[str, Callable[[ir.Model], None]], ...] = (
    ("remove-unused", remove_unused),
    ("lift-constants", lift_constants),
    ("fold-constants", fold_constants),
    ("eliminate-identities", eliminate_identities),
    ("fuse-affine", fuse_affine),
    ("eliminate-duplicates", eliminate_duplicates),
    ("remove-unused", remove_unused),
)
