# SPDX-License-Identifier: Apache-2.0
"""The passes that the targets of a machine bring: merged into one order, run, and recorded.

`merge_pipelines` is both what is printed and what is run. Passes on a region are not merged: a
region gets those of its own target.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from intarsia.backends.calling import calling
from intarsia.backends.values import Candidate
from intarsia.errors import BackendError, ModelError
from intarsia.graph.infer import infer_shapes
from intarsia.graph.region import Region
from intarsia.plan.plan import PassRun
from intarsia.target.pipeline import Stage, split_pass
from intarsia.target.text import suggest

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.registry import Backends
    from intarsia.backends.values import BuildContext
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

    @property
    def ran(self) -> PassRun:
        """The record that it has run."""
        return PassRun(self.text, str(self.target))


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
        functions: By pass, what runs; regions are merged by placement itself.
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
        functions = {
            entry: _find_function(entry, backends)
            for entry in passes
            if entry.text != MERGE_REGIONS
        }
        return cls(passes, contexts, functions)

    def before(
        self, ran: list[PassRun], without: Collection[str] = ()
    ) -> list[tuple[str, Callable[[ir.Model], None]]]:
        """Return the passes before placement, by name, ready to be run on a model.

        Args:
            ran: Each adds itself when it has run.
            without: Names of passes of ours that do not run.

        Raises (when they run):
            BackendError: A backend's pass failed, or broke the model.
        """

        def run(entry: ScheduledPass, model: ir.Model) -> None:
            self._rewrite(entry, model)
            ran.append(entry.ran)

        entries = self.of_stage(Stage.BEFORE)
        entries = [entry for entry in entries if entry.owner or entry.name not in without]
        return [(entry.name, partial(run, entry)) for entry in entries]

    def rewrite(self, candidate: Candidate) -> tuple[Candidate, tuple[PassRun, ...]]:
        """Run the passes of a candidate's target on its region.

        Returns:
            The candidate as it was if the target brings none; else one whose region is the whole
            of a graph of its own, with the same inputs and outputs.

        Raises:
            BackendError: A pass failed, or broke the region.
        """
        entries = [
            entry for entry in self.of_stage(Stage.REGION) if entry.target == candidate.target
        ]
        if not entries:
            return candidate, ()
        from intarsia.graph.extract import region_model
        from intarsia.graph.snapshot import snapshot

        model = region_model(candidate.region)
        for entry in entries:
            self._rewrite(entry, model)
        graph = snapshot(model)
        rewritten = graph.whole
        if _ends(rewritten) != _ends(candidate.region):
            raise broken_by(entries[-1], "an input is not read any more, or an output not computed")
        return replace(candidate, region=rewritten), tuple(entry.ran for entry in entries)

    def of_stage(self, stage: Stage) -> list[ScheduledPass]:
        """Return the passes of a stage, in the order in which they run."""
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
            raise broken_by(entry, error.message) from error
        if _border(model) != border:
            raise broken_by(entry, "inputs or outputs have other names, types, shapes or order")


def _find_function(entry: ScheduledPass, backends: Backends) -> Callable[..., Any]:
    from intarsia.passes.prepare import PASSES

    if entry.owner:
        own = backends.named(entry.owner).passes
        return next(one.run for one in own if (one.stage, one.name) == (entry.stage, entry.name))
    if entry.stage is Stage.BEFORE and entry.name in PASSES:
        function = PASSES[entry.name]
        return lambda model, context: function(model)
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


def _settle(model: ir.Model) -> None:
    """Fill in what the passes after a plug-in's rely on, and check what it has made."""
    import onnx_ir as ir

    from intarsia.graph.infer import check_model, skeleton
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


def broken_by(entry: ScheduledPass, problem: str) -> BackendError:
    """Return the error that says what a backend's pass did to the model."""
    return BackendError(
        f"pass {entry.name!r} of backend {entry.owner!r} broke the model: {problem}",
        backend=entry.owner,
        target=str(entry.target),
        hint=f"leave {entry.target} out, and report it to the backend's author",
    )
