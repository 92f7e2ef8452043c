# SPDX-License-Identifier: Apache-2.0
"""The passes that the targets of a machine bring: merged into one order, run, and recorded.

`merge_pipelines` is both what is printed and what is run. Passes on a region are not merged: a
region gets those of its own target.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from intarsia.backends.values import Candidate, Piece
from intarsia.errors import BackendError, IntarsiaError, InternalError, ModelError
from intarsia.graph.infer import adopt_types, infer_shapes
from intarsia.graph.region import Region
from intarsia.graph.untyped import tied_nodes
from intarsia.place.capability import calling
from intarsia.plan.plan import PassRun
from intarsia.target.pipeline import Stage, split_pass
from intarsia.target.text import suggest

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.registry import Backends
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.target import CompilationConfig, PlacedTarget

logger = logging.getLogger("intarsia")

MERGE_REGIONS = f"{Stage.AFTER}: merge-regions"


@dataclass(frozen=True, slots=True)
class ScheduledPass:
    """A pass with the target that brought it.

    Attributes:
        stage: When it runs.
        name: As the kind's pipeline calls it.
        owner: Name of the backend whose own pass it is; empty for ours.
        target: The first target, in the user's order, that brought it.
    """

    stage: Stage
    name: str
    owner: str
    target: PlacedTarget

    @property
    def text(self) -> str:
        """As the kind's pipeline writes it."""
        return f"{self.stage}: {self.name}"


def merge_pipelines(config: CompilationConfig, backends: Backends) -> tuple[ScheduledPass, ...]:
    """Return every pass of a machine's targets, in the order in which they run.

    Per stage, the first target's passes come as its kind lists them. Of each later target, those
    that are not there yet are put right after the pass that stands before them in its own list, or
    to the front. So where two targets disagree about an order, the earlier one wins.
    """
    entries = [entry for placed in config.targets for entry in _brought(placed, backends)]
    return (
        *_merge_stage([entry for entry in entries if entry.stage is Stage.BEFORE]),
        *_merge_stage([entry for entry in entries if entry.stage is Stage.AFTER]),
        *(entry for entry in entries if entry.stage is Stage.REGION),
    )


def _brought(placed: PlacedTarget, backends: Backends) -> Iterator[ScheduledPass]:
    kind = placed.target.kind
    backend = backends.by_kind.get(kind.name)
    own = {(one.stage, one.name) for one in (() if backend is None else backend.passes)}
    for stage, name in map(split_pass, kind.pipeline):
        owner = backend.name if backend is not None and (stage, name) in own else ""
        yield ScheduledPass(stage, name, owner, placed)


def _merge_stage(entries: Sequence[ScheduledPass]) -> list[ScheduledPass]:
    merged: list[ScheduledPass] = []
    keys: list[tuple[str, str, int]] = []  # the n-th pass of a name is another than the first
    place, target, seen = 0, None, Counter[str]()
    for entry in entries:
        if entry.target != target:
            place, target, seen = 0, entry.target, Counter()
        seen[entry.name] += 1
        key = (entry.owner, entry.name, seen[entry.name])
        if key in keys:
            place = max(place, keys.index(key) + 1)
            continue
        merged.insert(place, entry)
        keys.insert(place, key)
        place += 1
    return merged


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The passes of a machine, ready to run.

    Attributes:
        passes: In the order in which they run.
        contexts: By placed target, what its backend is given.
        functions: By pass, what runs.
    """

    passes: tuple[ScheduledPass, ...]
    contexts: Mapping[PlacedTarget, BuildContext]
    functions: Mapping[ScheduledPass, Callable[..., Any]]

    @classmethod
    def of(
        cls,
        config: CompilationConfig,
        contexts: Mapping[PlacedTarget, BuildContext],
        backends: Backends,
    ) -> Pipeline:
        """Merge the pipelines of a machine's targets, and find what they name.

        Raises:
            BackendError: A kind names a pass that is neither ours nor its backend's.
        """
        hosts = (placed for placed in contexts if placed not in config.targets)
        of_hosts = (entry for placed in hosts for entry in _brought(placed, backends))
        passes = (
            *merge_pipelines(config, backends),
            *(entry for entry in of_hosts if entry.stage is Stage.REGION),
        )
        functions = {entry: _find_function(entry, backends) for entry in passes}
        return cls(passes, contexts, functions)

    def prepare(
        self, model: ir.Model, backends: Backends
    ) -> tuple[Graph, tuple[str, ...], tuple[PassRun, ...]]:
        """Run the passes before placement on a copy of a model.

        Args:
            model: Loaded; types that it leaves open are filled in.
            backends: Serve the targets.

        Returns:
            What is placed, what was done to it as `name xCOUNT`, and the passes that did it.

        Raises:
            BackendError: A backend's pass failed, or broke the model.
            ModelError: Folding showed that the model's shapes do not fit together.
        """
        from intarsia.graph.snapshot import snapshot
        from intarsia.passes.prepare import prepare

        runs: list[PassRun] = []

        def call(entry: ScheduledPass, model: ir.Model) -> None:
            self._rewrite(entry, model)
            runs.append(_ran(entry))

        passes = [(entry.name, partial(call, entry)) for entry in self._of(Stage.BEFORE)]
        fill_types(model, self.contexts, backends)
        prepared = prepare(model, passes)
        rewrites = tuple(f"{rewrite.name} x{rewrite.count}" for rewrite in prepared.rewrites)
        return snapshot(prepared.model), rewrites, tuple(runs)

    def arrange(
        self,
        graph: Graph,
        choices: Sequence[PlacedTarget],
        pieces: Sequence[Piece] | None = None,
    ) -> tuple[tuple[Piece, ...], tuple[PassRun, ...]]:
        """Run the passes after placement, which make regions of single nodes.

        Args:
            graph: What is placed.
            choices: By node id, its target.
            pieces: Regions that a search has formed, in an order in which they can run: what they
                begin with instead of single nodes. `merge-regions` is then left out.

        Raises:
            BackendError: A backend's pass failed, or its pieces cannot run as they are.
        """
        runs: list[PassRun] = []
        is_formed = pieces is not None
        if pieces is None:
            pieces = tuple(Piece(choices[node.id], (node.id,)) for node in graph.nodes)
        for entry in self._of(Stage.AFTER):
            if is_formed and entry.text == MERGE_REGIONS:
                continue
            context = self.contexts[entry.target]
            with calling(entry.owner, context, f"in its pass {entry.name!r}"):
                pieces = tuple(self.functions[entry](graph, pieces, context))
            problem = _pieces_problem(graph, pieces, choices) if entry.owner else ""
            if problem:
                raise _broken(entry, problem)
            runs.append(_ran(entry))
        return tuple(pieces), tuple(runs)

    def rewrite(self, candidate: Candidate) -> tuple[Candidate, tuple[PassRun, ...]]:
        """Run the passes of a candidate's target on its region.

        Returns:
            The candidate as it was if the target brings none; else one whose region is the whole
            of a graph of its own, with the same inputs and outputs.

        Raises:
            BackendError: A pass failed, or broke the region.
        """
        entries = [entry for entry in self._of(Stage.REGION) if entry.target == candidate.target]
        if not entries:
            return candidate, ()
        from intarsia.graph.extract import region_model
        from intarsia.graph.snapshot import snapshot

        model = region_model(candidate.region)
        for entry in entries:
            self._rewrite(entry, model)
        graph = snapshot(model)
        rewritten = Region.of(graph, range(len(graph.nodes)))
        if _ends(rewritten) != _ends(candidate.region):
            raise _broken(entries[-1], "an input is not read any more, or an output not computed")
        return replace(candidate, region=rewritten), tuple(map(_ran, entries))

    def _of(self, stage: Stage) -> list[ScheduledPass]:
        return [entry for entry in self.passes if entry.stage is stage]

    def _rewrite(self, entry: ScheduledPass, model: ir.Model) -> None:
        context = self.contexts[entry.target]
        if not entry.owner:
            self.functions[entry](model, context)
            return
        border = _border(model)
        with calling(entry.owner, context, f"in its pass {entry.name!r}"):
            self.functions[entry](model, context)
        try:
            _settle(model)
        except ModelError as error:
            raise _broken(entry, error.message) from error
        if _border(model) != border:
            raise _broken(entry, "inputs or outputs have other names, types, shapes or order")


def _find_function(entry: ScheduledPass, backends: Backends) -> Callable[..., Any]:
    from intarsia.passes.prepare import PASSES

    if entry.owner:
        own = backends.named(entry.owner).passes
        return next(one.run for one in own if (one.stage, one.name) == (entry.stage, entry.name))
    if entry.stage is Stage.BEFORE and entry.name in PASSES:
        function = PASSES[entry.name]
        return lambda model, context: function(model)
    if entry.text == MERGE_REGIONS:
        return merge_regions
    kind = entry.target.target.kind.name
    backend = backends.for_target(entry.target.target)
    known = (
        *(f"{Stage.BEFORE}: {name}" for name in PASSES),
        MERGE_REGIONS,
        *(f"{own.stage}: {own.name}" for own in backend.passes),
    )
    raise BackendError(
        f"kind {kind!r} names a pass that neither Intarsia nor its backend {backend.name!r} have: "
        f"{entry.text!r}",
        backend=backend.name,
        target=str(entry.target),
        hint=suggest(entry.text, known, what="passes"),
    )


def merge_regions(graph: Graph, pieces: Sequence[Piece], context: BuildContext) -> list[Piece]:
    """Return the fewest pieces with the same targets."""
    del context
    targets = list(dict.fromkeys(piece.target for piece in pieces))
    choices = [0] * len(graph.nodes)
    for piece in pieces:
        for node in piece.nodes:
            choices[node] = targets.index(piece.target)
    return [Piece(targets[i], tuple(nodes)) for i, nodes in cut_regions(graph, choices)]


def _pieces_problem(graph: Graph, pieces: Sequence[Piece], choices: Sequence[PlacedTarget]) -> str:
    done: set[int] = set()
    for piece in pieces:
        for node in piece.nodes:
            if node in done or not 0 <= node < len(graph.nodes):
                return f"node {node} is in two pieces, or not in the graph"
            if choices[node] != piece.target:
                return f"it moved node {graph.nodes[node].name!r} to another target"
        done.update(piece.nodes)
        if not piece.nodes or not all(done.issuperset(graph.predecessors[n]) for n in piece.nodes):
            return "a piece is empty, or comes before what it reads"
    return "" if len(done) == len(graph.nodes) else "it left nodes out"


def _settle(model: ir.Model) -> None:
    """Fill in what the passes after a plug-in's rely on, and check what it has made."""
    import onnx_ir as ir

    from intarsia.graph.infer import check_model, infer_shapes, skeleton
    from intarsia.graph.load import name_nodes
    from intarsia.graph.order import sort_nodes
    from intarsia.passes.provenance import record_origins

    sort_nodes(model.graph)
    name_nodes(model.graph)
    record_origins(model)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.shape = ir.Shape(value.const_value.shape.numpy())
            value.dtype = value.const_value.dtype
    proto = skeleton(model)
    check_model(proto)
    infer_shapes(model, proto)


def _border(model: ir.Model) -> list[tuple[object, ...]]:
    values = (*model.graph.inputs, None, *model.graph.outputs)
    return [() if v is None else (v.name, v.dtype, str(v.shape)) for v in values]


def _ends(region: Region) -> tuple[list[str], list[str]]:
    values = region.graph.values
    return [values[i].name for i in region.inputs], [values[i].name for i in region.outputs]


def _ran(entry: ScheduledPass) -> PassRun:
    return PassRun(entry.text, str(entry.target))


def _broken(entry: ScheduledPass, problem: str) -> BackendError:
    return BackendError(
        f"pass {entry.name!r} of backend {entry.owner!r} broke the model: {problem}",
        backend=entry.owner,
        target=str(entry.target),
        hint=f"leave {entry.target} out, and report it to the backend's author",
    )


def cut_regions(graph: Graph, choices: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return regions in the order in which they run, as (choice, ascending node ids).

    Each region takes every node of its target whose inputs are there, so for two targets the
    number of regions is the least possible for the target that starts; each start is tried.
    With more targets, the one that can take the most nodes comes next. Linear in the graph for
    each start.

    Args:
        graph: The nodes and their order.
        choices: By node id, the position of its target.
    """
    units, before, after = _units(graph)
    of_units = [choices[nodes[0]] for nodes in units]
    starts = sorted({choice for choice, those in zip(of_units, before, strict=True) if not those})
    cuts = (_Cutter(of_units, before, after).cut(start) for start in starts)
    return [
        (choice, sorted(node for unit in found for node in units[unit]))
        for choice, found in min(cuts, key=len, default=[])
    ]


_Neighbours: TypeAlias = Sequence[Sequence[int]]


def _units(graph: Graph) -> tuple[_Neighbours, _Neighbours, _Neighbours]:
    """Return the nodes of each unit that no cut may part, and the units before and after it."""
    tied = tied_nodes(graph)
    if not tied:
        return [(node.id,) for node in graph.nodes], graph.predecessors, graph.successors
    rest = {node.id for node in graph.nodes}.difference(*tied)
    units = sorted([*tied, *((node,) for node in rest)])
    owner = {node: unit for unit, nodes in enumerate(units) for node in nodes}

    def around(edges: _Neighbours) -> _Neighbours:
        return [
            sorted({owner[other] for node in nodes for other in edges[node]} - {unit})
            for unit, nodes in enumerate(units)
        ]

    return units, around(graph.predecessors), around(graph.successors)


class _Cutter:
    """The state of one sweep over the units of a graph."""

    def __init__(self, choices: Sequence[int], before: _Neighbours, after: _Neighbours) -> None:
        self.successors = after
        self.choices = choices
        self.waiting = [len(those) for those in before]
        self.ready: dict[int, list[int]] = {choice: [] for choice in sorted(set(choices))}
        for node, count in enumerate(self.waiting):
            if count == 0:
                self.ready[choices[node]].append(node)

    def cut(self, start: int) -> list[tuple[int, list[int]]]:
        regions = []
        choice: int | None = start
        while choice is not None:
            nodes = self.reachable(choice)
            regions.append((choice, sorted(nodes)))
            self.take(choice, nodes)
            choice = self.next_choice()
        return regions

    def next_choice(self) -> int | None:
        ready = [choice for choice, nodes in self.ready.items() if nodes]
        if len(ready) == 1:
            return ready[0]
        sizes = {choice: len(self.reachable(choice)) for choice in ready}
        return max(ready, key=sizes.__getitem__, default=None)

    def reachable(self, choice: int) -> list[int]:
        """Return the nodes that this target could run now, without changing anything."""
        nodes = list(self.ready[choice])
        waiting: dict[int, int] = {}
        for node in nodes:  # grows while it is walked
            for successor in self.successors[node]:
                if self.choices[successor] == choice:
                    left = waiting.get(successor, self.waiting[successor]) - 1
                    waiting[successor] = left
                    if left == 0:
                        nodes.append(successor)
        return nodes

    def take(self, choice: int, nodes: Sequence[int]) -> None:
        self.ready[choice] = []
        for node in nodes:
            for successor in self.successors[node]:
                self.waiting[successor] -= 1
                if self.waiting[successor] == 0 and self.choices[successor] != choice:
                    self.ready[self.choices[successor]].append(successor)


def fill_types(
    model: ir.Model, contexts: Mapping[PlacedTarget, BuildContext], backends: Backends
) -> None:
    """Ask the backends of a machine, in order, for the types that the model leaves open.

    What none of them knows stays open: no region begins or ends there.

    Args:
        model: Loaded; ours to change.
        contexts: By target, what its backend is given.
        backends: Serve the targets.
    """
    for placed, context in contexts.items():
        if not _has_open(model):
            return
        backend = backends.for_target(placed.target)
        if backend.infer_types is None:
            continue
        try:
            with calling(backend.name, context, "when asked for types"):
                found = backend.infer_types(model, context)
        except InternalError:
            raise
        except IntarsiaError as error:
            logger.info("%s reports no types: %s", placed, error.message)
            continue
        adopt_types(model, found)
        infer_shapes(model)


def _has_open(model: ir.Model) -> bool:
    return any(value.name and value.type is None for node in model.graph for value in node.outputs)
