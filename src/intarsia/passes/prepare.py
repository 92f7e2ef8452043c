# SPDX-License-Identifier: Apache-2.0
"""The rewrites before placement, each one with a name that pipelines and `explain` print.

Rewrites never change results beyond float rounding, keep the names of inputs and outputs, and
never merge nodes that are annotated for different devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from onnx_ir.passes.common import DeduplicateInitializersPass

from intarsia.errors import IntarsiaError, ModelError
from intarsia.graph.infer import infer_shapes
from intarsia.passes.clean_up import (
    eliminate_duplicates,
    eliminate_identities,
    remove_unused,
)
from intarsia.passes.fold_constants import fold_constants, lift_constants
from intarsia.passes.fuse_affine import fuse_affine
from intarsia.passes.provenance import record_origins
from intarsia.target.pipeline import STANDARD_PIPELINE, Stage, split_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import onnx_ir as ir

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
class Prepared:
    """A rewritten model, and what was done to it, in order."""

    model: ir.Model
    rewrites: tuple[Rewrite, ...]


def prepare(model: ir.Model, passes: Iterable[NamedPass] | None = None) -> Prepared:
    """Return a copy of a loaded model after some passes; `model` stays as it is.

    Each node of the result says in its metadata for which nodes of `model` it stands.

    Args:
        model: What `load` returned.
        passes: What to run, in order; None means those of the standard pipeline.

    Raises:
        ModelError: A pass showed that the operators' shapes do not fit together.
    """
    model = model.clone()
    record_origins(model)
    original = before = _names(model)
    absent = [value for node in model.graph for value in node.outputs if not value.name]
    done: dict[str, tuple[int, list[str]]] = {}
    for name, rewrite in standard_passes() if passes is None else passes:
        constants = len(model.graph.initializers)
        _apply(name, rewrite, model)
        for value in absent:  # the libraries give it a name, and a backend would compute it
            value.name = ""
        after = _names(model)
        gone = [node for node in before if node in original and node not in after]
        merged = constants - len(model.graph.initializers) if name == _ON_CONSTANTS else 0
        count, nodes = done.get(name, (0, []))
        done[name] = (count + len(gone) + merged, [*nodes, *gone])
        before = after
    rewrites = (Rewrite(name, count, tuple(nodes)) for name, (count, nodes) in done.items())
    applied = tuple(rewrite for rewrite in rewrites if rewrite.count)
    if applied:
        infer_shapes(model)
    return Prepared(model, applied)


def _apply(name: str, rewrite: Callable[[ir.Model], object], model: ir.Model) -> None:
    """Rewrite a model in place.

    Raises:
        ModelError: A library's pass failed: onnx checks less of a model than it relies on.
    """
    try:
        rewrite(model)
    except IntarsiaError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"the model cannot be prepared: {name}: {reason}",
            hint="check that its operators' attributes fit the shapes of their inputs",
        ) from error


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
    DeduplicateInitializersPass(size_limit=_DEDUPLICATED_ELEMENTS)(model)


def _names(model: ir.Model) -> dict[str, None]:
    return dict.fromkeys([node.name or "" for node in model.graph])


PASSES: Mapping[str, Callable[[ir.Model], object]] = {
    "remove-unused": remove_unused,
    "lift-constants": lift_constants,
    "fold-constants": fold_constants,
    "eliminate-identities": eliminate_identities,
    "fuse-affine": fuse_affine,
    "eliminate-duplicates": eliminate_duplicates,
    _ON_CONSTANTS: deduplicate_initializers,
}
"""Every rewrite of a whole model that we have, by name."""
