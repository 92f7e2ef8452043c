# SPDX-License-Identifier: Apache-2.0
"""Kinds that nothing here generates code for, by what is declared of them: for planning alone.

A declaration is a table of TOML: operators, dtypes, rates. It comes with Intarsia
(`target/catalogue/planning.toml`) or from a file of the user's, whose tables win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from intarsia.backends.artifact import refuse
from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.registry import Backends
from intarsia.backends.tflite.layers import Layer, Reading, read_layers
from intarsia.backends.values import Detection, FusedGroup, Refusal, Rule
from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.work import region_work
from intarsia.errors import BackendError, ReasonCode, TargetError
from intarsia.target.cpu_there import RUNNER
from intarsia.target.source import read_source
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from pathlib import Path

    from intarsia.backends.device import Device, Executable, ThreadOptions
    from intarsia.backends.values import Artifact, BuildContext, Candidate
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import CompilationConfig, Target, TargetKind, VirtualDevice

EVERY = "*"
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "needs": str,
    "source": str,
    "operators": list,
    "layers": list,
    "dtypes": list,
    "operations_per_second": (int, float),
    "bytes_per_second": (int, float),
    "call_seconds": (int, float),
    "spread": (int, float),
}


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Which windows on images an operator may have; each empty for any.

    Attributes:
        kernels: Their extents along rows and along columns.
        strides: Likewise.
    """

    kernels: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a kind can do.

    Attributes:
        operators: Types of those that it takes; `*` means all.
        layers: Types of operators that it takes as integer layers: between Q and DQ nodes, or
            with scales as inputs.
        windows: By the type of an operator in a layer, its windows.
        dtypes: Of the outputs of nodes that it takes; empty means any.
        operations_per_second: At most; None means that of the device of what the kind refines.
        bytes_per_second: That cross the border of a region; None means no limit.
        call_seconds: Overhead of one call.
        spread: By which factor a time may be off.
        needs: What compiling for it needs.
        source: Where the figures are from; empty if that is not known.
        when: By `ATTRIBUTE=VALUE`, the fields that a target with that has instead.
    """

    operators: tuple[str, ...] = (EVERY,)
    layers: tuple[str, ...] = ()
    windows: tuple[tuple[str, WindowLimits], ...] = ()
    dtypes: tuple[str, ...] = ()
    operations_per_second: float | None = None
    bytes_per_second: float | None = None
    call_seconds: float = 0.0
    spread: float = 4.0
    needs: str = "a backend that generates code for it"
    source: str = ""
    when: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def of(self, target: Target) -> Declaration:
        """Return what holds for a target with its attributes."""
        declaration = self
        for condition, fields in self.when:
            name, _, value = condition.partition("=")
            if str(target.attrs.get(name)) == value:
                declaration = replace(declaration, **fields)
        return declaration


def read_declarations(path: str | Path) -> dict[str, Declaration]:
    """Read a file of declarations, a table for each kind.

    Raises:
        TargetError: It cannot be read, or a field is unknown or of the wrong type.
    """
    content = read_source(path).content
    if not isinstance(content, Mapping):
        raise TargetError(f"{path}: expects a table for each kind")
    return {kind: _read(f"{path}: {kind}", table) for kind, table in content.items()}


def _read(place: str, table: object) -> Declaration:
    if not isinstance(table, Mapping):
        raise TargetError(f"{place}: expects a table")
    inner = {name: table.get(name, {}) for name in ("when", "windows")}
    for name, value in inner.items():
        if not isinstance(value, Mapping):
            raise TargetError(f"{place}: {name}: expects a table")
    attributes = {name: value for name, value in table.items() if name not in inner}
    cases = tuple(
        (name, _fields(f"{place}: {name}", fields)) for name, fields in inner["when"].items()
    )
    windows = tuple(
        (name, _window(f"{place}: windows: {name}", fields))
        for name, fields in inner["windows"].items()
    )
    return Declaration(**_fields(place, attributes), windows=windows, when=cases)


def _window(place: str, table: object) -> WindowLimits:
    if not isinstance(table, Mapping):
        raise TargetError(f"{place}: expects a table")
    for name, sizes in table.items():
        if name not in ("kernels", "strides"):
            hint = suggest(str(name), ("kernels", "strides"), what="fields")
            raise TargetError(f"{place}: no field {name!r}", hint=hint)
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise TargetError(f"{place}: {name}: {sizes!r} is no list of integers")
    return WindowLimits(**{name: tuple(sizes) for name, sizes in table.items()})


def _fields(place: str, table: object) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise TargetError(f"{place}: expects a table")
    fields: dict[str, Any] = {}
    for name, value in table.items():
        if name not in _FIELDS:
            hint = suggest(str(name), tuple(_FIELDS), what="fields")
            raise TargetError(f"{place}: no field {name!r}", hint=hint)
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):
            raise TargetError(f"{place}: {name}: {value!r} is of the wrong type")
        if isinstance(value, int | float) and value <= 0:
            raise TargetError(f"{place}: {name}: {value!r} is not positive")
        fields[name] = tuple(value) if isinstance(value, list) else value
    return fields


@cache
def known_declarations() -> Mapping[str, Declaration]:
    """Return the declarations that come with Intarsia."""
    from pathlib import Path

    import intarsia.target

    return read_declarations(Path(intarsia.target.__file__).parent / "catalogue" / "planning.toml")


def with_declared(
    backends: Backends,
    config: CompilationConfig,
    path: str | Path | None = None,
    *,
    is_asked: bool = False,
) -> Backends:
    """Return backends that can be planned with for every kind of a machine that is declared.

    Kinds with a backend keep it, unless it would have to ask a machine that is out of reach: it
    finds nothing here, and no runner leads elsewhere. Complete kinds are taken to run every
    operator.

    Args:
        backends: Those that are installed.
        config: The machine.
        path: A file of declarations, which win over those that come with Intarsia.
        is_asked: Whether backends are asked whatever the machine, because they are to make code;
            those that need a device here do not.

    Raises:
        TargetError: The file is malformed.
    """
    declared = {**known_declarations(), **(read_declarations(path) if path else {})}
    by_name, by_kind = dict(backends.by_name), dict(backends.by_kind)
    has_runner = any(placed.target.attrs.get(RUNNER) for placed in config.targets)
    for target in (*(placed.target for placed in config.targets), config.host):
        kind = target.kind
        backend = by_kind.get(kind.name)
        makes_code = is_asked and backend is not None and backend.require_kind is None
        if backend is not None and (
            has_runner or makes_code or _is_here(backend, kind.name, kind.name in declared)
        ):
            continue
        declaration = declared.get(kind.name) or (Declaration() if kind.is_complete else None)
        if declaration is not None:
            by_kind[kind.name] = by_name[kind.name] = RegisteredBackend.of(
                DeclaredBackend(kind.name, declaration)
            )
    return replace(backends, by_name=by_name, by_kind=by_kind)


def _is_here(backend: RegisteredBackend, kind: str, is_declared: bool) -> bool:
    """Tell whether a backend compiles for a kind here."""
    if backend.require_kind is not None:
        try:
            backend.require_kind(kind)
        except BackendError:
            return False
        return True
    return not is_declared or bool(backend.detect().targets)


def _layers(declared: Declaration, region: Region) -> Reading:
    """Return the integer layers of a region that are declared."""
    if not declared.layers:
        return Reading((), {})
    windows = dict(declared.windows)

    def outside(layer: Layer) -> str | None:
        window = windows.get(layer.op_type)
        operation, shape = layer.operation, layer.operands[-1].shape
        kernel = operation.attribute("kernel_shape", shape[2:])
        strides = operation.attribute("strides", (1,) * len(kernel))
        for what, sizes, known in (
            ("windows", kernel, window and window.kernels),
            ("strides", strides, window and window.strides),
        ):
            if known and not set(sizes) <= set(known):
                found = " x ".join(map(str, sizes))
                return f"its {what} are {found}, and have to be of {', '.join(map(str, known))}"
        return None

    return read_layers(region, frozenset(declared.layers), outside)


class DeclaredBackend:
    """Answers for a kind without a code generator; it makes and loads nothing."""

    def __init__(self, kind: str, declaration: Declaration) -> None:
        self.name = kind
        self.kinds: tuple[TargetKind | str, ...] = (kind,)
        self.declaration = declaration
        if declaration.layers:  # else what runs as one is guessed from the operators
            self.groups = self._groups

    def version(self) -> str:
        """Return that there is none."""
        return "declared"

    def detect(self) -> Detection:
        """Return that it is not here."""
        return Detection(reason=f"only declared: it needs {self.declaration.needs}")

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: the operators and dtypes that are declared."""
        return (Rule("declared", self._refuse, "declared"),)

    def _refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        declared = self.declaration.of(context.target.target)
        reading = _layers(declared, graph.whole)
        taken = {node for layer in reading.layers for node in layer.nodes}
        refusals = {}
        for node in graph.nodes:
            if node.id in taken:
                continue
            dtypes = {graph.values[value].dtype for value in node.outputs}
            others = sorted(str(dtype) for dtype in dtypes if dtype not in declared.dtypes)
            if EVERY not in declared.operators and node.op_type not in declared.operators:
                code, reason = ReasonCode.UNSUPPORTED_OP, f"{self.name} declares no {node.op_type}"
                if declared.layers and node.id in reading.reasons:
                    reason += f" here: {reading.reasons[node.id]}"
            elif declared.dtypes and others:
                reason = f"{self.name} declares no {node.op_type} of {', '.join(others)}"
                code = ReasonCode.UNSUPPORTED_DTYPE
            else:
                continue
            refusals[node.id] = refuse(node, context, code, reason)
        return refusals

    def _groups(self, region: Region, context: BuildContext) -> tuple[FusedGroup, ...]:
        """Return the integer layers."""
        layers = _layers(self.declaration.of(context.target.target), region).layers
        return tuple(
            FusedGroup(layer.nodes, f"integer {layer.op_type}")
            for layer in layers
            if len(layer.nodes) > 1
        )

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return which node of a region is a part of an integer layer alone, if one is."""
        declared, region = self.declaration.of(context.target.target), candidate.region
        if not declared.layers or EVERY in declared.operators:
            return None
        for number, reason in _layers(declared, region).reasons.items():
            node = region.graph.nodes[number]
            if node.op_type not in declared.operators:
                return refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
        return None

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what the declared rates allow; without rates, what our kernels would take."""
        declared = self.declaration.of(context.target.target)
        rates = (declared.operations_per_second, declared.bytes_per_second)
        if rates == (None, None):
            return self._from_kernels(candidate, context)
        work = region_work(candidate.region)
        amounts = (work.flop, work.nbytes)
        moving = [n / rate for n, rate in zip(amounts, rates, strict=True) if rate is not None]
        cost = Cost(
            seconds=declared.call_seconds + max(moving),
            nbytes=0,
            source=CostSource.ESTIMATED,
            provenance=f"declared rates of {self.name}",
        )
        return cost.within(declared.spread)

    def _from_kernels(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what kernels of ours would take: in C, or on the CPU whose target it refines.

        A roofline beside estimates of the same core would win every comparison.
        """
        from intarsia.codegen.lower.region import refuse_node  # few plans need it
        from intarsia.native.estimates import estimate_cost

        target, region = context.target.target, candidate.region
        if not target.kind.is_complete:
            target = context.refined
        if not (target.kind.is_source or target.kind.is_native):
            return None
        if any(refuse_node(region.graph, region.graph.nodes[node]) for node in region.nodes):
            return None
        return estimate_cost(region, target, context.num_threads)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Raise a `BackendError`: no code generator for the kind is installed.

        Raises:
            BackendError: Always.
        """
        self._fail(str(candidate.target))

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Raise a `BackendError`: no code generator for the kind is installed.

        Raises:
            BackendError: Always.
        """
        self._fail(str(placed))

    def load(self, artifact: Artifact, device: Device) -> Executable:
        """Raise a `BackendError`: no code generator for the kind is installed.

        Raises:
            BackendError: Always.
        """
        self._fail(artifact.target)

    def _fail(self, target: str) -> NoReturn:
        raise BackendError(
            f"{target!r} can only be planned for: compiling needs {self.declaration.needs}",
            backend=self.name,
            target=target,
            hint="install a backend for it, or plan with `intarsia plan absent`",
        )
