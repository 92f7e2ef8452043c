# SPDX-License-Identifier: Apache-2.0
"""Checks: what a backend must have answers; artifacts refer to constants; devices keep data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.backend import Backend
from intarsia.backends.device import Device, Executable, ThreadOptions, queue_of
from intarsia.backends.values import Artifact, Candidate, Detection, Rule, TensorSpec
from intarsia.cost.cost import Cost
from intarsia.errors import TargetError
from intarsia.graph.arena import ALIGNMENT
from intarsia.target import Target, TargetKind, get_kind
from intarsia.testing.case import OperatorCase, case, fed, problem_of, weight
from intarsia.testing.cases import CASES
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


def contract_trials() -> Iterator[Trial]:
    """Yield what is tried."""
    for name, act in (
        ("members", has_members),
        ("name", has_a_name),
        ("kinds", serves_known_kinds),
        ("version", tells_its_version),
        ("detect", detects),
    ):
        yield Trial("contract", name, act, needs_runtime=False)
    for name, act in (
        ("rules", has_rules),
        ("device", opens_a_device),
        ("yields", says_when_it_yields),
        ("takes_something", takes_something),
        ("executable", makes_executables),
    ):
        yield Trial("contract", name, act)


OF_THE_BACKEND = ("members", "name", "kinds", "version", "detect", "yields")
"""Trials that say nothing of the target's machine."""


def has_members(subject: Subject) -> None:
    """Require every member of `Backend`."""
    _require(subject.backend, Backend, "the backend")


def has_a_name(subject: Subject) -> None:
    """Require a name that stays, and that text forms can hold."""
    name, again = subject.backend.name, subject.backend.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConformanceError(f"name is {name!r}: use lower-case letters, digits, _ . and -")
    if name != again:
        raise ConformanceError(f"name changes from {name!r} to {again!r}")


def serves_known_kinds(subject: Subject) -> None:
    """Require kinds that the catalogue has, or that the backend brings."""
    kinds = subject.backend.kinds
    if not isinstance(kinds, tuple) or not kinds:
        raise ConformanceError(f"kinds is {kinds!r}, not a tuple of kinds or of their names")
    for kind in kinds:
        if not isinstance(kind, str | TargetKind):
            raise ConformanceError(f"kinds holds {kind!r}, neither a TargetKind nor a name")
        try:
            target_kind = get_kind(kind) if isinstance(kind, str) else kind
        except TargetError as error:
            raise ConformanceError(f"kinds: {error.message}") from error
        with subject.calling("Target", f"kind {target_kind.name!r}"):
            _ = subject.backends  # registers the kinds that it brings
            Target(target_kind.name)
    _ = subject.placed  # the target asked for is one of them


def tells_its_version(subject: Subject) -> None:
    """Require a text that stays the same, or a `BackendError` if the runtime is missing."""
    try:
        subject.need_runtime()
        version, again = subject.backend.version(), subject.backend.version()
    except NotApplicable:
        raise
    except Exception as error:
        raise ConformanceError(
            f"version() raised {type(error).__name__}: {error}; raise a BackendError"
        ) from error
    if not isinstance(version, str) or not version or version != again:
        raise ConformanceError(f"version() is {version!r}, then {again!r}: not one text")


def detects(subject: Subject) -> None:
    """Require targets of kinds that it serves, or a reason."""
    with subject.calling("detect", "detect() must not raise"):
        _ = subject.backends  # registers the kinds that it brings
        detection = subject.backend.detect()
    if not isinstance(detection, Detection):
        raise ConformanceError(f"detect() returned {detection!r}, which is not a Detection")
    if not detection.targets and not detection.reason:
        raise ConformanceError("detect() found nothing and gives no reason")
    for target in detection.targets:
        if not isinstance(target, Target) or target.kind.name not in subject.kinds:
            raise ConformanceError(
                f"detect() found '{target}', of a kind that is not in kinds: "
                f"{', '.join(subject.kinds)}"
            )


def has_rules(subject: Subject) -> None:
    """Require rules with names that stay, whose answers stay."""
    graph = subject.graph(problem_of(CASES[0], "float32").model)
    with subject.calling("rules", "contract"):
        rules, again = (subject.backend.rules(subject.context) for _ in range(2))
    if not isinstance(rules, Sequence) or not all(isinstance(rule, Rule) for rule in rules):
        raise ConformanceError(f"rules() returned {rules!r}, which is not a sequence of Rule")
    names = [rule.name for rule in rules]
    if names != [rule.name for rule in again] or len(set(names)) < len(names):
        raise ConformanceError(f"the names of the rules are not stable and distinct: {names}")
    if subject.refusals(graph, "rules") != subject.refusals(graph, "rules, asked again"):
        raise ConformanceError("the rules refuse differently when they are asked again")


def says_when_it_yields(subject: Subject) -> None:
    """Require of `yields` a reason or None, and the same answer again."""
    yields = subject.registered.yields
    if yields is None:
        raise NotApplicable("the backend has no `yields`")
    graph = subject.graph(problem_of(CASES[0], "float32").model)
    with subject.calling("yields", "contract"):
        why, again = (yields(graph) for _ in range(2))
    if why is not None and (not isinstance(why, str) or not why):
        raise ConformanceError(f"yields() returned {why!r}: say why in words, or return None")
    if why != again:
        raise ConformanceError(f"yields() returned {why!r}, then {again!r}")


def opens_a_device(subject: Subject) -> None:
    """Require that `open` returns a device with the options that it was given."""
    options = ThreadOptions(num_threads=2, is_shared=True)
    with subject.calling("open", str(subject.placed)):
        device = subject.backend.open(subject.placed, options)
    _require(device, Device, "what open() returned")
    if device.options != options:
        raise ConformanceError(f"the device has options {device.options}, not {options}")


def takes_something(subject: Subject) -> None:
    """Require that some case of the table is not refused: else the kit has shown nothing."""
    for operator_case in CASES:
        for dtype in operator_case.dtypes:
            graph = subject.graph(problem_of(operator_case, dtype).model)
            if not subject.refusals(graph, str(operator_case)):
                return
    raise ConformanceError("the rules refuse every case of the table, so that nothing was tried")


def makes_executables(subject: Subject) -> None:
    """Require `check` and `estimate` to answer, and `load` to return an `Executable`."""
    for operator_case in CASES:
        graph = subject.graph(problem_of(operator_case, operator_case.dtypes[0]).model)
        if subject.refusals(graph, str(operator_case)):
            continue
        loaded = subject.build(graph.whole, str(operator_case))
        _require(loaded.executable, Executable, "what load() returned")
        estimate, cost = subject.registered.estimate, None
        if estimate is not None:
            with subject.calling("estimate", str(operator_case)):
                cost = estimate(Candidate.plain(graph.whole, subject.placed), subject.context)
        if cost is not None and not isinstance(cost, Cost):
            raise ConformanceError(f"estimate() returned {cost!r}, neither a Cost nor None")
        return
    raise NotApplicable("the rules refuse every case of the table")


def _require(value: Any, protocol: type, what: str) -> None:
    members = sorted({*protocol.__annotations__, *vars(protocol)})
    public = (name for name in members if not name.startswith("_"))
    missing = [name for name in public if not hasattr(value, name)]
    if missing:
        raise ConformanceError(f"{what} lacks {', '.join(missing)} of {protocol.__name__}")


WEIGHTY: tuple[OperatorCase, ...] = (
    case("MatMul", "weights", fed(4, 256), weight(256, 256)),
    case("Gemm", "weights", fed(4, 256), weight(256, 256)),
    case("Conv", "weights", fed(1, 64, 6, 6), weight(64, 64, 3, 3)),
    case("Add", "weights", fed(256, 256), weight(256, 256)),
    case("Mul", "weights", fed(256, 256), weight(256, 256)),
)
"""One constant of some 256 KiB each."""

SHARE = 4
"""A payload has to be smaller than the weights by this factor."""


def artifact_trials() -> Iterator[Trial]:
    """Yield one trial per kind of weights, and one for the bytes."""
    for weighty in WEIGHTY:
        yield Trial("artifacts", f"constants_of_{weighty.op_type}", partial(refer, weighty=weighty))
    yield Trial("artifacts", "deterministic", repeat)


def refer(subject: Subject, weighty: OperatorCase) -> None:
    """Compile an operator with large weights and look at its payload."""
    problem = problem_of(weighty, "float32")
    region = subject.take(subject.graph(problem.model), problem.title)
    artifact = subject.compile(region, problem.title)
    weights = sum(region.graph.values[i].nbytes for i in region.constants)
    if len(artifact.payload) * SHARE > weights:
        raise ConformanceError(
            f"{problem.title}: the payload has {len(artifact.payload)} bytes for {weights} bytes "
            f"of weights: refer to them by Artifact.constants, so that packages and regions share "
            f"one copy"
        )
    referred = sum(constant.data.nbytes for constant in artifact.constants)
    if referred < weights:
        raise ConformanceError(
            f"{problem.title}: {weights} bytes of weights, of which the artifact refers to "
            f"{referred}: it cannot be loaded in another process"
        )


def repeat(subject: Subject) -> None:
    """Compile one region twice, from two graphs of one model."""
    problem = random_problem(taken_moves(subject), seed=1)
    first, second = (
        subject.compile(subject.take(subject.graph(problem.model), problem.title), problem.title)
        for _ in range(2)
    )
    for name in ("payload", "inputs", "outputs", "metadata", "target", "version"):
        if getattr(first, name) != getattr(second, name):
            raise ConformanceError(f"compiling {problem.title} twice gives two values of {name}")
    if _constants(first) != _constants(second):
        raise ConformanceError(f"compiling {problem.title} twice gives two sets of constants")


def _constants(artifact: Artifact) -> list[tuple[str, str, bytes]]:
    return [
        (constant.name, str(constant.data.dtype), np.ascontiguousarray(constant.data).tobytes())
        for constant in artifact.constants
    ]


DTYPES = (
    *("float32", "float16", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8"),
)
SHAPES: tuple[tuple[int, ...], ...] = ((3, 5, 7), (1,), (), (0, 4))


def device_trials() -> Iterator[Trial]:
    """Yield one round trip per dtype, and what concerns blocks."""
    for dtype in DTYPES:
        yield Trial("devices", f"round_trip-{dtype}", partial(round_trip, dtype=dtype))
    yield Trial("devices", "two_tensors_in_one_block", share_a_block)
    yield Trial("devices", "buffers", look_at_buffers)
    yield Trial("devices", "queues", use_queues)


def round_trip(subject: Subject, dtype: str) -> None:
    """Write and read tensors of one dtype."""
    device = _open(subject)
    rng = np.random.default_rng(9)
    for shape in SHAPES:
        spec = TensorSpec("t", dtype, shape)
        title = f"a round trip of {spec}"
        with subject.calling("the device", title):
            buffer = device.tensor(device.allocate(spec.nbytes), 0, spec)
            written = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(np_dtype(dtype))
            device.write(written, buffer)
            fetched = _fetch(device, buffer, spec)
        _same(fetched, written, title)


def share_a_block(subject: Subject) -> None:
    """Write two tensors that lie in one block, as in a plan's arena."""
    device = _open(subject)
    spec = TensorSpec("t", "float32", (3, 5))
    with subject.calling("the device", "two tensors in one block"):
        block = device.allocate(2 * ALIGNMENT)
        buffers = [device.tensor(block, offset, spec) for offset in (0, ALIGNMENT)]
        arrays = [np.full((3, 5), value, np.float32) for value in (1, 2)]
        for array, buffer in zip(arrays, buffers, strict=True):
            device.write(array, buffer)
        fetched = [_fetch(device, buffer, spec) for buffer in buffers]
        again = _fetch(device, device.tensor(block, ALIGNMENT, spec), spec)
    for array, wanted in zip((*fetched, again), (*arrays, arrays[1]), strict=True):
        _same(array, wanted, "two tensors in one block")


def look_at_buffers(subject: Subject) -> None:
    """Require aligned arrays on the host, and handles that the host cannot read elsewhere."""
    device = _open(subject)
    spec = TensorSpec("t", "float32", (3, 5))
    with subject.calling("the device", "buffers"):
        buffer = device.tensor(device.allocate(spec.nbytes), 0, spec)
    if subject.is_host:
        if not isinstance(buffer, np.ndarray):
            raise ConformanceError(f"a buffer in host memory is {buffer!r}, not a numpy array")
        if buffer.ctypes.data % ALIGNMENT:
            raise ConformanceError(f"a block of host memory is not aligned to {ALIGNMENT} bytes")
        return
    for name in ("__array__", "__array_interface__", "__buffer__"):
        if hasattr(buffer, name):
            raise ConformanceError(f"a buffer of the device has {name}: the host could read it")
    try:
        memoryview(buffer)
    except TypeError:
        return
    raise ConformanceError("a buffer of the device has the buffer protocol: the host could read it")


def use_queues(subject: Subject) -> None:
    """Queue copies on two queues of a device, and wait for the last of each only."""
    device = queue_of(_open(subject))
    if device is None:
        raise NotApplicable("the device has no queue")
    spec, title = TensorSpec("t", "float32", (64, 64)), "two queues"
    copies, waits = {}, []
    with subject.calling("the device", title):
        views = [device.open_queue() for _ in range(2)]
        for number, view in enumerate(views):
            buffer = view.tensor(view.allocate(spec.nbytes), 0, spec)
            for value in range(3):
                written = np.full(spec.shape or (), 10 * number + value, np.float32)
                copies[number, value] = (np.zeros_like(written), written)
                view.start_write(written, buffer)
                waits.append(view.start_read(buffer, copies[number, value][0]))
            waits[-1]()
        for view in views:
            view.synchronize()
        for wait in waits:
            wait()  # again, or late
    for array, written in copies.values():
        _same(array, written, title)


def _open(subject: Subject) -> Device:
    with subject.calling("open", str(subject.placed)):
        return subject.backend.open(subject.placed, ThreadOptions(num_threads=1))


def _fetch(device: Device, buffer: object, spec: TensorSpec) -> Array:
    array = np.zeros(spec.shape or (), np_dtype(spec.dtype))
    device.read(buffer, array)
    return array


def _same(fetched: Array, written: Array, title: str) -> None:
    if fetched.tobytes() != written.tobytes():
        raise ConformanceError(f"{title}: read {fetched.tolist()}, written {written.tolist()}")
