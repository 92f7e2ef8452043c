# SPDX-License-Identifier: Apache-2.0
"""How much of the host's memory a program needs, and the first plan that needs no more than that.

Counted are weights as the code reads them, the arena and the borders of a run, and the workspace
inside regions. Native code says what workspace it needs. Of a library it is estimated: what its
region computes and nobody else reads, alive at the same time. What a library allocates beside that
(a second copy of weights as its kernels want them, its own code) is not known and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.arrays import np_dtype
from intarsia.backends.values import SCRATCH
from intarsia.errors import IntarsiaError, PlacementError
from intarsia.graph.arena import assign_offsets
from intarsia.graph.region import Region
from intarsia.plan.plan import HOST

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.runtime.executor import PlanExecutable

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a program needs of the host's memory, in bytes.

    Attributes:
        targets: Text of the targets that run there.
        constant_bytes: Of weights; all runs share them.
        tensor_bytes: Of one run, between regions and at the model's border.
        workspace_bytes: Of one run, inside regions, which take turns with it.
    """

    targets: str
    constant_bytes: int
    tensor_bytes: int
    workspace_bytes: int

    @property
    def run_bytes(self) -> int:
        """Of one run alone."""
        return self.tensor_bytes + self.workspace_bytes

    @property
    def total_bytes(self) -> int:
        """Of the weights and one run."""
        return self.constant_bytes + self.run_bytes

    def runs_within(self, limit: int) -> int:
        """Return how many runs may go on at once within so many bytes."""
        left = limit - self.constant_bytes
        return left // self.run_bytes if self.run_bytes else int(left >= 0)

    def __str__(self) -> str:
        return (
            f"{self.targets or 'nothing'}: {mebibytes(self.total_bytes)} "
            f"({mebibytes(self.constant_bytes)} weights, {mebibytes(self.tensor_bytes)} tensors, "
            f"{mebibytes(self.workspace_bytes)} workspace)"
        )


def mebibytes(nbytes: int) -> str:
    """Return a size as messages have it, rounded up: `12.3 MiB`."""
    return f"{math.ceil(10 * nbytes / MEBIBYTE) / 10:.1f} MiB"


def memory_need(program: PlanExecutable, graph: Graph) -> MemoryNeed:
    """Return what a program needs of the host's memory.

    Args:
        program: It, loaded.
        graph: The prepared model that it was made of.
    """
    host = program.explain().devices[HOST]
    workspace = host.scratch_bytes
    names = {node.name: node.id for node in graph.nodes}
    for position in host.regions:
        artifact, executable = program.artifacts[position], program.executables[position]
        nodes = [node.name for node in program.placement.regions[position].nodes]
        is_known = SCRATCH in artifact.metadata or executable.scratch_bytes > 0
        if not is_known and all(name in names for name in nodes):
            region = Region.of(graph, (names[name] for name in nodes))
            workspace = max(workspace, inner_bytes(region))
    weights, inner = _bodies_need(program)
    targets = ", ".join(host.targets)
    constant_bytes = host.constant_bytes + weights
    return MemoryNeed(targets, constant_bytes, host.tensor_bytes, workspace + inner)


def _bodies_need(program: PlanExecutable) -> tuple[int, int]:
    """Return the bytes of the weights of bodies of If, Loop and Scan, and of a run of them.

    That is memory of their own, beside the run's. Weights that are outside too count twice.
    """
    weights = run = 0
    for body in program.bodies:
        host = body.explain().devices[HOST]
        inner_weights, inner_run = _bodies_need(body)
        weights += host.constant_bytes + inner_weights
        run += host.tensor_bytes + host.scratch_bytes + inner_run
    return weights, run


def inner_bytes(region: Region) -> int:
    """Return the most bytes that are alive at once of what a region alone makes and reads."""
    graph, inside = region.graph, set(region.nodes)
    steps = {node: step for step, node in enumerate(region.nodes)}
    leaving = set(region.outputs)
    lives = []
    for node in region.nodes:
        for position in graph.nodes[node].outputs:
            if position < 0 or position in leaving:
                continue
            value = graph.values[position]
            if value.shape is None or value.dtype in ("", "string"):
                continue
            readers = [steps[one] for one in value.consumers if one in inside]
            nbytes = math.prod(value.shape) * np_dtype(value.dtype).itemsize
            lives.append((steps[node], max(readers, default=steps[node]), nbytes))
    return assign_offsets(lives)[1]


def weight_bytes(graph: Graph) -> int:
    """Return the bytes of a model's weights, each once.

    Less than that no plan needs, where no target stores them narrower.
    """
    seen: dict[int, int] = {}
    for value in graph.values:
        if value.constant is not None and value.consumers:
            seen[id(value.constant)] = value.constant.nbytes
    return sum(seen.values())


def check_weights(graph: Graph, limit: int) -> None:
    """Refuse a model whose weights alone are more than the limit, before anything is compiled.

    Raises:
        PlacementError: They are.
    """
    weights = weight_bytes(graph)
    if weights > limit:
        raise PlacementError(
            f"{mebibytes(limit)} of memory are too few: the weights alone take "
            f"{mebibytes(weights)}",
            hint="allow more memory, or make the weights smaller: intarsia quantize",
        )


def first_that_fits(
    build: Callable[[str | None], tuple[PlanExecutable, Graph]],
    alternatives: Sequence[str],
    limit: int,
    shapes: int = 1,
) -> tuple[PlanExecutable, MemoryNeed]:
    """Return the first of several programs that needs no more memory than the limit.

    No more runs go on at once than there is memory for; others wait.

    Args:
        build: Makes the program that was asked for (None), or that of one target alone.
        alternatives: These targets, in the user's order.
        limit: In bytes.
        shapes: How many programs share the limit, one for each sizes of free dimensions.

    Raises:
        PlacementError: None does; it has what each would need.
        IntarsiaError: The program that was asked for cannot be built.
    """
    needs: dict[str, str] = {}
    for need, program in _needs(build, alternatives, needs):
        # Each has weights of its own where their packing depends on the size.
        runs = need.runs_within(limit // shapes)
        if runs >= 1:
            program.limit_runs(runs)
            return program, need
    tried = "; ".join(dict.fromkeys(needs.values()))
    of_shapes = f" for each of {shapes} sizes" if shapes > 1 else ""
    raise PlacementError(
        f"{mebibytes(limit)} of memory are too few{of_shapes}: {tried}",
        hint="allow more memory, or fewer or smaller sizes",
    )


def _needs(
    build: Callable[[str | None], tuple[PlanExecutable, Graph]],
    alternatives: Sequence[str],
    needs: dict[str, str],
) -> Iterator[tuple[MemoryNeed, PlanExecutable]]:
    """Yield what programs need, and each program; what was found goes into `needs`."""
    program, graph = build(None)
    need = memory_need(program, graph)
    needs[""] = str(need)
    yield need, program
    for target in alternatives:
        try:
            program, graph = build(target)
        except IntarsiaError as error:
            needs[target] = f"{target}: {error.message}"
            continue
        need = memory_need(program, graph)
        needs[target] = str(need)
        yield need, program
