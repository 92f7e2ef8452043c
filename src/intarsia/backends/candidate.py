# SPDX-License-Identifier: Apache-2.0
"""A piece of the model offered to a backend, and what it gets beside it.

`Candidate` lives here, below `plan`, because the backend contract speaks of it; `plan` exports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.graph.state import PLAIN, TensorState

if TYPE_CHECKING:
    from intarsia.graph.region import Region
    from intarsia.target import CompilationConfig, PlacedTarget, Target


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region with the target that may run it and the states of its border tensors.

    Attributes:
        region: A convex set of nodes.
        target: The placed target.
        inputs: A state per input of the region, in the order of `region.inputs`.
        outputs: A state per output of the region, in the order of `region.outputs`.
        options: Choices of the proposing rule that the backend understands.
    """

    region: Region
    target: PlacedTarget
    inputs: tuple[TensorState, ...]
    outputs: tuple[TensorState, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def plain(cls, region: Region, target: PlacedTarget) -> Candidate:
        """Return the candidate whose border tensors are all row-major on the target's device."""

        def state(value_id: int) -> TensorState:
            return TensorState(target.memory_domain, PLAIN, region.graph.values[value_id].dtype)

        return cls(
            region,
            target,
            tuple(state(value_id) for value_id in region.inputs),
            tuple(state(value_id) for value_id in region.outputs),
        )


def _quiet(stage: str, done: int, total: int) -> None:
    """Say nothing."""
    del stage, done, total


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a backend gets beside a candidate.

    Attributes:
        target: The placed target that the backend serves.
        refined: The complete target that a partial target refines on its device; a complete
            target refines itself.
        config: The whole machine.
        num_threads: Threads that one run may use, at least 1.
        tell: Told of progress inside a region: what is done, how much of it, and of how much.
        is_frozen: Whether nothing that was measured on this machine may change what is made.
    """

    target: PlacedTarget
    refined: Target
    config: CompilationConfig
    num_threads: int
    tell: Callable[[str, int, int], None] = field(default=_quiet, compare=False)
    is_frozen: bool = False

    @property
    def host(self) -> Target:
        """The target that runs shapes, control flow and the plan itself."""
        return self.config.host
