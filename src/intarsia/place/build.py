# SPDX-License-Identifier: Apache-2.0
"""From a setting and a choice to a program: drafts the plan, compiles and loads its regions.

A region that fails is blamed on its nodes; where nothing else was asked for, the model is placed
anew without them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from intarsia.backends.borders import check_border
from intarsia.backends.calling import calling, failure_code
from intarsia.backends.device import Executable, ThreadOptions
from intarsia.backends.values import Artifact, Candidate, Refusal
from intarsia.errors import (
    ExecutionError,
    IntarsiaError,
    InternalError,
    ReasonCode,
    SettingError,
    TrialError,
    UnsupportedError,
)
from intarsia.graph.region import Region
from intarsia.place.assign import Policy
from intarsia.place.bodies import control_artifact
from intarsia.place.decide import Decision, PlanChoice, RegionTrial, decide
from intarsia.place.request import Progress, quiet
from intarsia.place.schedule import (
    AssignedRegion,
    PlanDraft,
    border_text,
    candidate_of,
    make_draft,
)
from intarsia.place.setting import Bodies, Capability, Setting
from intarsia.plan.devices import domain_text
from intarsia.plan.lock import check_bodies, check_layouts
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.plan.plan import BodyPlan, PassRun
from intarsia.runtime.control_flow import ControlExecutable
from intarsia.runtime.executor import PlanExecutable, bodies_of
from intarsia.runtime.loader import RegionLoader, SharedConstants, run_options

if TYPE_CHECKING:
    from intarsia.plan.placement import Placement
    from intarsia.target import PlacedTarget

logger = logging.getLogger("intarsia")

Revise: TypeAlias = Callable[[Setting, Decision, "RegionBuilder"], Decision]
"""Maps a decision to the one that is built instead."""

_Key: TypeAlias = tuple[ThreadOptions, str, int, str]
"""How the code may use the machine, the target's text, the region's bits, and its border."""

_Built: TypeAlias = tuple[Artifact, Executable, tuple[PassRun, ...]]
"""A region compiled and loaded, and the passes that ran on it."""


def build_program(
    setting: Setting,
    choice: PlanChoice,
    *,
    strict: bool = False,
    tell: Progress = quiet,
    revise: Revise | None = None,
    shared: SharedConstants | None = None,
    is_body: bool = False,
) -> PlanExecutable:
    """Place a model as was chosen and compile its regions; what fails goes elsewhere.

    If a region of a plan that was found by cost cannot be compiled any more, the model is placed
    greedily, with a warning.

    Args:
        setting: The model and the machine.
        choice: Which plan is meant.
        strict: Whether it is an error if a node falls back or a backend fails.
        tell: Told about the stages as they go.
        revise: May decide otherwise.
        shared: The constants that it shares with other programs of the same model.
        is_body: Whether it is a body, which takes turns with the runtimes around it.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: A node has no target; or, if `strict`, one fell back; or a locked plan
            cannot be built.
        LockError: A locked plan's values would lie otherwise.
        BackendError: If `strict`, or of a locked plan, a backend failed.
    """
    lock = choice.lock
    if choice.calls is not None:
        bodies = {node: one for node, one in setting.bodies.items() if node in choice.steps}
        setting = replace(setting, bodies=bodies).with_hosts()
    is_frozen = lock is not None
    inner = PlanChoice(Policy.GREEDY if choice.policy is Policy.COLLAGE else choice.policy)
    if setting.bodies and shared is None:  # what is outside and inside has the same constants
        shared = SharedConstants()
    is_strict = strict or is_frozen
    builder = RegionBuilder(
        setting, is_strict, tell, choice.store, is_frozen, shared, inner, choice.trial
    )
    while True:
        decision = decide(setting, choice)
        if revise is not None:
            decision = revise(setting, decision, builder)
        draft = make_draft(setting, decision, is_frozen=is_frozen)
        draft = replace(draft, is_shared=draft.is_shared or is_body)
        placement = draft.plan.placement
        if lock is not None:
            check_layouts(lock, draft.plan.layouts)
        elif strict and choice.calls is None and placement.shortfall is not None:
            raise _strict_error(placement)
        failed = builder.build(draft)
        if failed is None:
            break
        first = next(iter(failed[1].values()))
        if lock is not None:
            raise _frozen_error(first, tuple(failed[1].values()))
        if choice.calls is not None:
            logger.warning("the tuned plan cannot be built, so placement is greedy: %s", first)
            choice = PlanChoice()
        setting = setting.without(*failed)
    if choice.report is not None and placement.shortfall is not None:
        logger.warning(placement.shortfall)
    plan = replace(
        draft.plan,
        tuning=choice.report,
        identity=setting.identity(),
        model=setting.info,
    )
    program = builder.finish(replace(draft, plan=plan), (*setting.passes, *decision.passes))
    if lock is not None:
        check_bodies(lock, program.plan)
    return program


def _strict_error(placement: Placement) -> UnsupportedError:
    first = next(item for item in placement.refusals if item.code is not ReasonCode.USER)
    return UnsupportedError(
        f"strict: {placement.shortfall}; first: {first}",
        refusals=placement.refusals,
        node=first.node,
        target=first.target,
        hint="turn strict off, or pin the nodes that may fall back",
    )


def _frozen_error(first: Refusal, refusals: tuple[Refusal, ...]) -> UnsupportedError:
    return UnsupportedError(
        f"the locked plan cannot be built: {first}",
        refusals=refusals,
        node=first.node,
        target=first.target,
        hint="compile without --frozen, and lock the new plan",
    )


def _say_mistake(refused: Mapping[int, Refusal]) -> None:
    """Warn of a mistake of our own, once for a region: what it costs must not go unseen."""
    mistakes = [one for one in refused.values() if one.code is ReasonCode.INTERNAL_ERROR]
    if mistakes:
        more = f" and of {len(mistakes) - 1} more" if len(mistakes) > 1 else ""
        logger.warning(
            "internal error, please report it: %s (%s)%s goes elsewhere than %s: %s",
            mistakes[0].node,
            mistakes[0].op_type,
            more,
            mistakes[0].target,
            mistakes[0].reason,
        )


class RegionStore(Protocol):
    """Keeps artifacts of one model's regions."""

    def read(self, target: str, bits: int, border: str) -> Artifact | None:
        """Return the artifact of a region for a target with these layouts, if it was kept."""

    def write(
        self, target: str, bits: int, border: str, artifact: Artifact, seconds: float
    ) -> None:
        """Keep what took so many seconds to compile, if it is worth it."""


@dataclass(slots=True)
class RegionBuilder:
    """Compiles and loads regions; what is done stays done while others are placed anew.

    Attributes:
        setting: The model and the machine.
        strict: Whether a backend that fails is an error.
        tell: Told about progress: a stage, how many of its steps are done, and how many there are.
        store: Keeps artifacts that take long to compile; None keeps none.
        is_frozen: Whether nothing that was measured here may change what is compiled.
        shared: The constants that the program shares with others; None means that it is alone.
        inner: How the bodies of If, Loop and Scan are placed.
        trial: Tries regions elsewhere before they are compiled here; None tries nothing.
    """

    setting: Setting
    strict: bool
    tell: Callable[[str, int, int], None]
    store: RegionStore | None = None
    is_frozen: bool = False
    shared: SharedConstants | None = None
    inner: PlanChoice = field(default_factory=PlanChoice)
    trial: RegionTrial | None = None
    _done: dict[_Key, _Built] = field(default_factory=dict)
    _loaders: dict[ThreadOptions, RegionLoader] = field(default_factory=dict)

    def build(self, draft: PlanDraft) -> tuple[PlacedTarget | None, dict[int, Refusal]] | None:
        """Compile and load every region.

        Returns:
            Nothing; or, of the first region that fails, its target and a refusal for each node at
            fault. A node whose bodies fail has no target.

        Raises:
            BackendError: One failed, and `strict` is set.
        """
        total = len(draft.regions)
        for index, assigned in enumerate(draft.regions):
            self.tell("compile", index, total)
            capability = assigned.capability
            key = self._key(draft, assigned)
            if key in self._done:
                continue
            if assigned.bodies is not None:
                refused = self._build_bodies(key, assigned, assigned.bodies)
                if refused:
                    return None, refused
                continue
            device = domain_text(assigned.domain)
            candidate = candidate_of(assigned, draft.layouts)
            refusal = self._refusal(capability, candidate)
            if refusal is not None:
                return capability.target, self._refused(candidate, refusal)
            try:
                self._done[key] = self._compile(draft, capability, candidate, device)
            except (InternalError, SettingError):  # neither is of the region
                raise
            except IntarsiaError as error:
                if self.strict:
                    raise
                logger.info("%s failed on a region: %s", capability.target, error.message)
                refused = self._blame(draft, assigned, error)
                _say_mistake(refused)
                return capability.target, refused
        self.tell("compile", total, total)
        return None

    def _build_bodies(
        self, key: _Key, assigned: AssignedRegion, bodies: Bodies
    ) -> dict[int, Refusal]:
        """Build the programs of a node that the plan runs itself; return why it cannot, if so.

        Raises:
            IntarsiaError: One cannot be built, and the user said that it is to be.
        """
        target = str(assigned.capability.target)
        (position,) = assigned.region.nodes
        node = self.setting.graph.nodes[position]
        try:
            programs = {
                name: build_program(
                    setting, self.inner, strict=self.strict, shared=self.shared, is_body=True
                )
                for name, setting in bodies.settings.items()
            }
        except (InternalError, SettingError):
            raise
        except IntarsiaError as error:
            if self.strict or bodies.is_pinned:
                raise
            logger.info("%s is not a step of the plan: %s", node.name, error.message)
            code = ReasonCode.COMPILE_FAILED
            return {position: Refusal(node.name, node.op_type, target, code, error.message)}
        artifact = control_artifact(assigned.region, target)
        self._done[key] = artifact, ControlExecutable(artifact, programs), ()
        return {}

    def _compile(
        self, draft: PlanDraft, capability: Capability, wanted: Candidate, device: str
    ) -> _Built:
        candidate, runs = self.setting.pipeline.rewrite(wanted)
        backend = capability.backend
        refused = None if self.trial is None else self.trial.refusal(capability, wanted.region)
        if refused is not None:
            error = TrialError(
                f"tried in a process of its own: {refused[1]}",
                backend=backend.name,
                target=str(capability.target),
                hint="`intarsia cache clear` forgets the verdict",
            )
            error.code = refused[0]
            raise error
        kept = str(capability.target), wanted.region.bits, border_text(wanted)
        artifact = None if self.store is None else self.store.read(*kept)
        with calling(backend.name, capability.context, "on a region"):
            if artifact is None:
                start = time.perf_counter()
                context = replace(capability.context, tell=self.tell, is_frozen=self.is_frozen)
                artifact = backend.compile(candidate, context)
                if kept[2]:
                    check_border(artifact, candidate)
                if self.store is not None:
                    seconds = time.perf_counter() - start
                    self.store.write(*kept, artifact, seconds)
            loader = self.loader(draft)
            artifact = loader.with_shared(artifact)
            return artifact, loader.load(artifact, device), runs

    def _refusal(self, capability: Capability, candidate: Candidate) -> Refusal | None:
        with calling(capability.backend.name, capability.context, "on a region"):
            return capability.backend.check(candidate, capability.context)

    def _refused(self, candidate: Candidate, refusal: Refusal) -> dict[int, Refusal]:
        """Return a refusal for the node that the backend names, or for all of the region."""
        nodes = [self.setting.graph.nodes[node_id] for node_id in candidate.region.nodes]
        meant = [node for node in nodes if node.name == refusal.node] or nodes
        target = str(candidate.target)
        return {
            node.id: replace(refusal, node=node.name, op_type=node.op_type, target=target)
            for node in meant
        }

    def _blame(
        self, draft: PlanDraft, assigned: AssignedRegion, error: IntarsiaError
    ) -> dict[int, Refusal]:
        """Return refusals for the nodes that fail alone; if none does, for what the error names.

        If it names none, for all.

        Nodes that a value of unknown type ties together are tried together.
        """
        from intarsia.graph.hashes import shape_hash

        capability = assigned.capability
        failures: dict[str, IntarsiaError | None] = {}
        refused: dict[int, IntarsiaError] = {}
        nodes = assigned.region.nodes
        tied = {node: unit for unit in self.setting.graph.tied for node in unit}
        units = dict.fromkeys(tied.get(node, (node,)) for node in nodes)
        for unit in units if len(units) > 1 else ():
            single = Region.of(self.setting.graph, unit)
            key = shape_hash(single)
            if key not in failures:
                failures[key] = self._try_alone(draft, assigned, single)
            failure = failures[key]
            if failure is not None:
                refused |= dict.fromkeys(unit, failure)
        if not refused:  # a failure of several together: the one that is named is to go
            named = [node for node in nodes if self.setting.graph.nodes[node].name == error.node]
            if not named and isinstance(error, ExecutionError):  # parts might end processes too
                named = list(nodes)
            if not named:
                named, error = self._find_last(draft, assigned, list(units), error)
            refused = dict.fromkeys(named, error)
        return {
            node_id: Refusal(
                self.setting.graph.nodes[node_id].name,
                self.setting.graph.nodes[node_id].op_type,
                str(capability.target),
                failure_code(failure),
                failure.message,
            )
            for node_id, failure in refused.items()
        }

    def _try_alone(
        self, draft: PlanDraft, assigned: AssignedRegion, region: Region
    ) -> IntarsiaError | None:
        """Return why a part of a region fails; None if it does not."""
        try:
            alone = Candidate.plain(region, assigned.capability.target)
            self._compile(draft, assigned.capability, alone, domain_text(assigned.domain))
        except IntarsiaError as failure:
            return failure
        return None

    def _find_last(
        self,
        draft: PlanDraft,
        assigned: AssignedRegion,
        units: Sequence[tuple[int, ...]],
        error: IntarsiaError,
    ) -> tuple[list[int], IntarsiaError]:
        """Return the last nodes of the shortest beginning of a region that fails, and why it does.

        Without them what is before and what is behind can stay. Each node alone does not fail, so
        that some beginning does not, and a longer one does.

        Args:
            draft: What is built.
            assigned: The region that failed.
            units: The region's nodes in order, those together that are tried together.
            error: Why all of it fails.
        """
        passes, fails = min(1, len(units) - 1), len(units)
        while fails - passes > 1:
            middle = (passes + fails) // 2
            part = Region.of(self.setting.graph, [node for unit in units[:middle] for node in unit])
            failure = self._try_alone(draft, assigned, part)
            if failure is None:
                passes = middle
            else:
                fails, error = middle, failure
        return list(units[fails - 1]), error

    def keep(self, drafts: Sequence[PlanDraft]) -> None:
        """Forget every region that none of these drafts has."""
        kept = {self._key(draft, assigned) for draft in drafts for assigned in draft.regions}
        for key in self._done.keys() - kept:
            del self._done[key]

    def loader(self, draft: PlanDraft) -> RegionLoader:
        """Return what loads the regions of a draft, with the devices that it has opened."""
        options = self._options(draft)
        if options not in self._loaders:
            self._loaders[options] = RegionLoader(self.setting.backends, options, self.shared)
        return self._loaders[options]

    def _options(self, draft: PlanDraft) -> ThreadOptions:
        """Return how a draft's code may use the machine.

        A part of a model that is measured as among several runtimes may meet all of the machine's.
        """
        is_part = draft.is_shared and not draft.plan.is_mixed
        used = {one.capability.target: one.capability for one in draft.regions if not one.bodies}
        capabilities = self.setting.capabilities if is_part else used.values()
        backends = [capability.backend for capability in capabilities]
        return run_options(self.setting.num_threads, backends, is_shared=draft.is_shared)

    def _key(self, draft: PlanDraft, assigned: AssignedRegion) -> _Key:
        border = border_text(candidate_of(assigned, draft.layouts))
        target = str(assigned.capability.target) if assigned.bodies is None else CONTROL_FLOW
        return self._options(draft), target, assigned.region.bits, border

    def finish(self, draft: PlanDraft, passes: Sequence[PassRun]) -> PlanExecutable:
        """Return the program of a draft whose regions are all built.

        Args:
            draft: What `build` built.
            passes: Those that ran before any region was compiled.
        """
        from intarsia.graph.extract import constant_array

        keys = [self._key(draft, assigned) for assigned in draft.regions]
        loader = self.loader(draft)
        devices = [loader.device(text) for text in draft.plan.devices]
        constants = {
            value.name: constant_array(value)
            for value in (self.setting.graph.values[i] for i in self.setting.graph.outputs)
            if value.constant is not None
        }
        on_regions = (
            replace(run, region=region)
            for region, key in enumerate(keys)
            for run in self._done[key][2]
        )
        bodies = tuple(
            BodyPlan(region, name, program.plan)
            for region, key in enumerate(keys)
            for name, program in bodies_of(self._done[key][1]).items()
        )
        return PlanExecutable(
            replace(draft.plan, passes=(*passes, *on_regions), bodies=bodies),
            [self._done[key][0] for key in keys],
            [self._done[key][1] for key in keys],
            devices,
            constants,
        )
