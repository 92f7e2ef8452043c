# SPDX-License-Identifier: Apache-2.0
"""All that a user asked for, as one value. Light: nothing of a model is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from intarsia.backends.registry import load_backends
from intarsia.errors import PlacementError, SettingError
from intarsia.place.machine import Machine, resolve_targets
from intarsia.settings import Settings
from intarsia.target import CompilationConfig

if TYPE_CHECKING:
    from pathlib import Path

    from intarsia.backends.registry import Backends
    from intarsia.cost.records import Assigned
    from intarsia.plan.lock import Lock
    from intarsia.target.priority import Overrides

Exclusions: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[str]
"""By target text, operators or node patterns; or `TARGET:OPERATOR-OR-PATTERN` each."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""

PLACEMENTS = ("auto", "greedy", "manual", "collage")
"""Values of `placement`; `auto` is collage where a plan was accepted before, else greedy."""

BY_COST = "cost"
"""How a plan is found: as the cost database says, if it says anything."""


def quiet(stage: str, done: int, total: int) -> None:
    """Tell nobody about progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that a user asked for, built once by the entry point that was used.

    Attributes:
        model: A path, the bytes of a `ModelProto`, a `ModelProto`, or an `onnx_ir.Model`.
        target: The machine, in any form; None means the locked plan's, or what is found here.
        host: The target that runs the plan itself; None means what the targets say.
        attributes: For all targets of certain kinds, by kind.
        shapes: Of inputs whose dimensions the model leaves free, by name; or by free dimension, its
            size, or its bounds as text: `1..8`.
        sizes: Those of free dimensions that a program is made for at once, each by name.
        buckets: Sizes of free dimensions that inputs are padded up to, by name.
        pad_values: What they are padded with, by input; 0 where it is not said.
        max_shapes: Most programs of a model with free dimensions; None means the setting.
        is_fixed: Whether no program may be made for other sizes than those.
        pins: From a glob over node names to the target that must run them.
        exclude: What must not run where.
        layers: From a layer's name in ONNX Runtime's `layer_ann` to the target of its nodes.
        placement: One of `PLACEMENTS`.
        strict: Whether what fails or falls back is an error.
        num_threads: Threads that one run may use; None means the setting, else the locked plan's,
            else `default_threads`.
        default_threads: Threads that suit the objective; None means all CPUs.
        backends: The backends to use; None means all that are installed.
        lock: The plan to carry out, or nothing.
        regions: By names, the plan that was measured at other sizes of free dimensions: what is
            meant where none was accepted for these; None if there is none.
        is_rebuilt: Whether `regions` are meant whatever was measured here: they are a package's.
        sums: What the program for all sizes says of the order of its sums (`SUMS` of artifacts).
        is_rewritten: Whether the model was rewritten for all sizes, and is not to be for these.
        objective: What accepted plans are filed under: what is minimised, with its limit.
        costs: The cost database; None means the setting.
        may_measure: Whether a plan may be measured where none was accepted.
        is_resumed: Whether to go on measuring although a plan was accepted before.
        cache: Whether the program is looked for and kept; None means the setting.
        probe: Whether what the default order chose may be timed; None means the setting.
        isolate: Backends whose regions run in processes of their own; then no program is kept.
        is_here: Whether the machine is this one; of others the targets may say what they like.
        is_made: For a machine that is not here, whether code is made for it, and not only a plan.
        declared: For a machine that is not here, a file that says what kinds without a backend can
            do, beside those that come with Intarsia.
        max_memory: Bytes of the host's memory that the program may need; None means no limit. Then
            no program is kept among the caches, and nothing runs while it is compiled.
        sharing: How many programs share that, one for each sizes of free dimensions.
        careful: Whether each region is compiled and run for the first time in a worker.
        settings: Those of the environment.

    Raises:
        SettingError: Two parts contradict one another, or one is unknown.
        PlacementError: Pins are not a mapping.
    """

    model: Any
    target: Any = None
    host: Any = None
    attributes: Overrides | None = None
    shapes: Mapping[str, Sequence[int] | int | str] | None = None
    sizes: Sequence[Mapping[str, int]] = ()
    buckets: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    pad_values: Mapping[str, bool | int | float] = field(default_factory=dict)
    max_shapes: int | None = None
    is_fixed: bool = False
    pins: Mapping[str, str] | None = None
    exclude: Exclusions = ()
    layers: Mapping[str, str] | None = None
    placement: str = "auto"
    strict: bool = False
    num_threads: int | None = None
    default_threads: int | None = None
    backends: Backends | None = None
    lock: Lock | None = None
    regions: tuple[Assigned, ...] | None = None
    is_rebuilt: bool = False
    sums: tuple[str, ...] = ()
    is_rewritten: bool = False
    objective: str = "latency"
    costs: str | None = None
    may_measure: bool = True
    is_resumed: bool = False
    cache: bool | None = None
    probe: bool | None = None
    isolate: Collection[str] = ()
    is_here: bool = True
    is_made: bool = False
    declared: Path | None = None
    max_memory: int | None = None
    sharing: int = 1
    careful: bool = False
    settings: Settings = field(default_factory=Settings.from_environment)

    def __post_init__(self) -> None:
        if self.lock is not None and self.placement != "auto":
            raise SettingError(
                f"placement {self.placement!r} contradicts a frozen plan", hint="give one of them"
            )
        if self.placement not in PLACEMENTS:
            raise SettingError(
                f"placement {self.placement!r} is unknown",
                hint=f"use one of {', '.join(PLACEMENTS)}",
            )
        if not isinstance(self.pins or {}, Mapping):
            raise PlacementError(
                f"pins are a mapping from pattern to target, not a {type(self.pins).__name__}",
                hint='write pins={"layer4/*": "onnxruntime"}',
            )
        if self.pad_values and not self.buckets:
            raise SettingError(
                "values to pad with are given, and no buckets to pad to",
                hint="write for example --bucket seq=64,128",
            )
        if self.max_shapes is not None and self.max_shapes < 1:
            raise SettingError(
                f"max_shapes={self.max_shapes} keeps no program", hint="give 1 or more"
            )

        if self.max_memory is not None:
            self._check_max_memory(self.max_memory)

    def _check_max_memory(self, limit: int) -> None:
        if limit < 1:
            raise SettingError(f"max_memory={limit} is no memory", hint="give bytes, 1 or more")
        if self.placement == "collage":
            raise SettingError(
                "max_memory contradicts placement 'collage': measuring loads plans of any size",
                hint="for a plan of little memory: intarsia tune --objective memory",
            )
        if self.buckets:
            raise SettingError(
                "max_memory contradicts buckets, each of which keeps a program",
                hint="leave the buckets out",
            )

    @property
    def given_machine(self) -> Any:
        """The machine, in any form: what was given, else the locked plan's."""
        if self.target is None and self.lock is not None:
            return self.lock.identity.targets
        return self.target

    @property
    def threads(self) -> int:
        """Threads that one run may use.

        Raises:
            SettingError: What was given is not a number of threads.
        """
        if self.num_threads is not None:
            return self.settings.threads(self.num_threads)
        default = self.default_threads if self.lock is None else self.lock.identity.threads
        return self.settings.num_threads or default or self.settings.threads()

    @property
    def way(self) -> str:
        """How the plan is found: `BY_COST`, a policy, or the text of a lock file."""
        if self.lock is not None:
            return str(self.lock)
        return self.placement if self.placement in ("greedy", "manual") else BY_COST

    @property
    def is_kept(self) -> bool:
        """Whether its program is looked for among those that were compiled, and kept there."""
        if self.max_memory is not None:
            return False
        return self.settings.programs if self.cache is None else self.cache

    @property
    def may_run(self) -> bool:
        """Whether a program may run while it is compiled."""
        if self.max_memory is not None:
            return False
        return self.settings.probe if self.probe is None else self.probe

    def given_config(self) -> CompilationConfig | None:
        """Return the canonical form of the machine that was given; None if none was.

        Raises:
            TargetError: The description is wrong, or of a kind that only a backend knows.
        """
        given = self.given_machine
        if given is None:
            return None
        return CompilationConfig.resolve(given, host=self.host, overrides=self.attributes)

    def find_machine(self, config: CompilationConfig | None = None) -> Machine:
        """Return the machine that is meant, and its backends.

        Args:
            config: Its canonical form, if it is known already.

        Raises:
            TargetError: The description is wrong, or nothing was detected.
        """
        if self.backends is None:
            backends = load_backends(self.settings)
        else:
            backends = self.backends.with_settings(self.settings)
        if self.isolate:
            from intarsia.backends.isolated import isolated  # few requests ask for it

            backends = isolated(backends, self.isolate)
        if config is None:
            given = self.given_machine
            config = resolve_targets(given, self.host, backends, self.attributes)
        if not self.is_here:
            from intarsia.backends.declared import with_declared

            backends = with_declared(backends, config, self.declared, is_asked=self.is_made)
        return Machine(config, backends)
