# SPDX-License-Identifier: Apache-2.0
"""The backend contract: the required members (`Backend`) and the optional ones.

A backend is one value, registered under the entry-point group `intarsia.backends`. Nothing is
inherited. `RegisteredBackend` declares every member once; the registry reads them into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from intarsia.settings import DEFAULTS

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from intarsia.arrays import Array
    from intarsia.backends.defects import KnownDefect
    from intarsia.backends.device import Baseline, Device, Executable, ThreadOptions
    from intarsia.backends.values import (
        Artifact,
        BuildContext,
        Candidate,
        CodeIdentity,
        Detection,
        FusedGroup,
        ListStates,
        Pass,
        Refusal,
        Rule,
    )
    from intarsia.codegen.lower.program import Program
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.ptxas import KernelResources
    from intarsia.settings import Settings
    from intarsia.target import Target, TargetKind, VirtualDevice


@runtime_checkable
class Backend(Protocol):
    """What every backend answers. Serves one or more target kinds."""

    name: str
    kinds: tuple[TargetKind | str, ...]

    def version(self) -> str:
        """Return the version of what runs the code.

        Raises:
            BackendError: The runtime is not installed.
        """

    def detect(self) -> Detection:
        """Return the targets found on this machine, or why there are none. Never raises."""

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return how to propose regions for the context's target, best first."""

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing if the candidate can be compiled as far as one can tell."""

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Compile a region.

        Raises:
            BackendError: The runtime refused it.
        """

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Open the device of a placed target; where no region runs on it, there is no target."""

    def load(self, artifact: Artifact, device: Device) -> Executable:
        """Load what `compile` made, here or in another process.

        Raises:
            BackendError: The artifact does not fit this machine or version.
        """


@dataclass(frozen=True)
class ConfiguredBackend:
    """What our own backends share that follow settings; a plug-in may have it too.

    Attributes:
        settings: What is followed: files, folders of caches, devices.
    """

    settings: Settings = DEFAULTS

    def with_settings(self, settings: Settings) -> Self:
        """Return the backend as settings have it."""
        return replace(self, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBackend:
    """A backend as the registry has read it: a field for each member.

    Members without a default are those of `Backend`; the others may be absent, and are then None
    or what they have as default.

    Attributes:
        value: What the entry point names.
    """

    value: Backend
    name: str
    kinds: tuple[TargetKind | str, ...]
    version: Callable[[], str]
    detect: Callable[[], Detection]
    rules: Callable[[BuildContext], Sequence[Rule]]
    check: Callable[[Candidate, BuildContext], Refusal | None]
    compile: Callable[[Candidate, BuildContext], Artifact]
    open: Callable[[VirtualDevice, ThreadOptions], Device]
    load: Callable[[Artifact, Device], Executable]

    with_settings: Callable[[Settings], Backend] | None = None
    """Returns the backend as settings have it, which is equal to itself if they are the same. It is
    called before anything else by whatever loads backends, or is given some."""

    estimate: Callable[[Candidate, BuildContext], Cost | None] | None = None
    """Returns what one run costs, or nothing when there is no telling. Without it costs are
    measured."""

    states: ListStates | None = None
    """Returns states of a candidate's border that `compile` honours, best first.

    The plain border is always taken and is not listed. The first border that is listed has every
    tensor in the layout that the region would like best. `compile` honours every mix in which each
    tensor is plain or in the layout that some listed border has for it: a plan takes for each what
    all of its readers list too. A border tensor in a shared blocked layout has the shape of the
    dense array that it is: `[N, C/16, H, W, 16]` in `nchw16c`.

    The answer follows from the region, the target and the context alone. It is asked for often, so
    nothing is compiled for it.
    """

    groups: Callable[[Region, BuildContext], Sequence[FusedGroup]] | None = None
    """Returns what would run as one kernel or primitive if a region were compiled.

    Groups share no node; a node in none runs by itself. Nothing is compiled. The region is all
    nodes that the target takes; it need not be convex. Placement by cost makes a candidate of each
    group, keeps together what all that list it keep together, and cuts no group of which `check`
    refuses the pieces. What a backend without it fuses is guessed from the operators.
    """

    c_program: Callable[[Region, BuildContext], Program] | None = None
    """Returns a region as C functions that call a library, and the memory between them, for a
    program in C (`--emit c`). Without it such a program has none of its regions."""

    linked_program: Callable[[Region, BuildContext], Program] | None = None
    """Returns a region as C functions that call a library, and what these are linked with
    (`Linkage`), for a program of machine code (`--emit executable`, `shared` and `object`). Without
    it such a program has none of its regions."""

    yields: Callable[[Graph], str | None] | None = None
    """Returns why another target had better go first on this model, because it runs such models
    faster as a whole; None if none had. It is asked only where no order was given and nothing was
    measured."""

    passes: Sequence[Pass] = ()
    """The passes that the pipelines of its kinds name."""

    infer_types: Callable[[ir.Model, BuildContext], Mapping[str, onnx.TypeProto]] | None = None
    """Returns types of values, by name, that operators make which only this backend knows; what it
    cannot tell is left out. The model is not to be changed. It raises a `BackendError` if it does
    not take the model, or is not installed."""

    is_data: Callable[[Artifact], bool] | None = None
    """Tells whether an artifact is nothing but data: ONNX, or calls that `load` checks, so that
    whatever is in it, only this backend's own code runs, and no file or command that it names is
    used. Then it is loaded from packages of strangers; without it what this backend compiles is
    code, and is compiled again there."""

    takes_free: bool = False
    """Whether it takes regions whose values have free dimensions (`Value.extents`): what `load`
    returns then runs at all sizes as it is, with buffers of the shapes of a run, unless it has
    `at`. Without it such nodes are not offered to it."""

    takes_late: bool = False
    """Whether it takes nodes whose values have sizes that the data decides (`Value.extents`, with
    `Value.shape` None) as it takes those with free dimensions: what `load` returns then has `at`,
    which is given these sizes as soon as they are known, and is bound to dense tensors. Without it
    such a value is one of unknown shape, which is handed over in a `ValueSlot`."""

    require_kind: Callable[[str], object] | None = None
    """Raises a `BackendError` if one of its kinds, given by name, cannot be compiled for here.
    Without it all of them can wherever `version` answers."""

    identity: Callable[[BuildContext], CodeIdentity] | None = None
    """Returns what decides beside the version which code a target runs: costs, accepted plans and
    kept programs are filed under it. It raises a `BackendError` if there is no such device."""

    check_target: Callable[[Target], Sequence[str]] | None = None
    """Checks a target before a model is compiled for it here, and returns the names of attributes
    that it has and that change nothing. Without it all attributes of the kind's own are taken to be
    carried out. It raises a `TargetError` if an attribute is unknown to what makes the code, means
    another machine, or contradicts another; the message starts with its name."""

    is_default: bool = True
    """Whether it is asked what it detects where no target is given."""

    self_test: Callable[[], object] | None = None
    """Raises, or dies, if the foreign code that a plug-in loads cannot be relied upon. It is called
    in a process of its own before the plug-in is loaded anywhere else, once for each version and
    CPU (`intarsia.process.selftest`). Without it, its first use is tried: a few operators are
    compiled, loaded and run."""

    notes: Callable[[], Sequence[str]] | None = None
    """Returns lines about itself for `doctor`, one for each fact, such as the file that is used and
    why."""

    kernel_needs: Callable[[Artifact], Sequence[KernelResources]] | None = None
    """Returns what the kernels of an artifact need of its device, as an assembler counts it: asked
    for explanations alone. It raises a `BackendError` if there is no such assembler here."""

    own_threads: str = ""
    """Why it cannot keep to the threads of its device; the conformance kit does not try it then."""

    gomp_parallel: Callable[[], int] | None = None
    """Returns the address of the `GOMP_parallel` of its OpenMP runtime, whose threads others may
    share; 0 if it has none."""

    baseline: Callable[[bytes | str, Mapping[str, Array], int], Baseline] | None = None
    """Returns the untouched model in this runtime's own plain API, for comparisons.

    It is given a serialized `ModelProto` without external data, or a path; an array per input, by
    name, which is read in place where that is possible; and the threads that one run may use. It
    raises a `BackendError` if the runtime is not installed, or refused the model.
    """

    defects: Sequence[KnownDefect] = ()
    """What its library is known to compute otherwise than ONNX, one rule for each cause."""

    @classmethod
    def of(cls, backend: Backend | RegisteredBackend) -> RegisteredBackend:
        """Read the members of a backend; one that is registered already is returned as it is."""
        if isinstance(backend, RegisteredBackend):
            return backend
        present: dict[str, Any] = {
            member: getattr(backend, member) for member in MEMBERS if hasattr(backend, member)
        }
        return cls(value=backend, **present)

    def configured(self, settings: Settings) -> RegisteredBackend:
        """Return the backend as settings have it."""
        value = self.value if self.with_settings is None else self.with_settings(settings)
        return self if value == self.value else RegisteredBackend.of(value)

    @property
    def kind_names(self) -> tuple[str, ...]:
        """The names of the kinds that it serves."""
        return tuple(kind if isinstance(kind, str) else kind.name for kind in self.kinds)


MEMBERS = {
    member.name: member.default is MISSING
    for member in fields(RegisteredBackend)
    if member.name != "value"
}
"""The members of a backend by name: whether each is required."""
