# SPDX-License-Identifier: Apache-2.0
"""Passes that a backend brings with its kinds, and what they are given.

A kind names them in its `pipeline`. During each, `Target.current()` is the complete target that
the context's target refines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from intarsia.target.pipeline import Stage

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.candidate import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.target import PlacedTarget


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes that run together on one target; in the end, a region.

    Attributes:
        target: The placed target.
        nodes: Node ids, ascending.
    """

    target: PlacedTarget
    nodes: tuple[int, ...]


ModelPass: TypeAlias = "Callable[[ir.Model, BuildContext], object]"
"""Before placement: rewrites the whole model in place, for all targets. On a region: rewrites the
region's own model in place. Inputs and outputs keep their names and their order."""

PiecesPass: TypeAlias = "Callable[[Graph, Sequence[Piece], BuildContext], Sequence[Piece]]"
"""After placement: merges, splits or reorders pieces. They are in the order in which they run, at
first one per node; every node stays on its target."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of a backend's own.

    Attributes:
        stage: When it runs.
        name: As pipelines call it; no pass of ours has this name.
        run: A `ModelPass`, or after placement a `PiecesPass`.
    """

    stage: Stage
    name: str
    run: ModelPass | PiecesPass


@runtime_checkable
class HasPasses(Protocol):
    """What a backend may have beside: the passes that the pipelines of its kinds name."""

    passes: tuple[Pass, ...]


def own_passes(backend: object) -> tuple[Pass, ...]:
    """Return the passes that a backend brings."""
    return tuple(backend.passes) if isinstance(backend, HasPasses) else ()
