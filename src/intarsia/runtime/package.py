# SPDX-License-Identifier: Apache-2.0
"""The package: a zip with a JSON manifest and blobs, self-contained and opened as plain data.

`manifest.json` holds the plan, the artifacts' facts and digests of all blobs; these are stored
plainly (`archive.py`), so that they are used where they are mapped, and constants are stored once
for all regions. No pickle, no path that leaves the package. `seal.json` says who vouches for the
manifest, and so for all that it lists (`keys.py`); what nobody vouches for runs no code of its own
(`trust.py`). Reading a package runs nothing in any case.

A model with free dimensions is kept itself, and has a plan for each sizes that were compiled. Of
other models it is kept where a region is code. Formats 1 to 3 had no seal.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.cpus import available_cpus
from intarsia.decoding import decode_json
from intarsia.errors import InputError, PackageError
from intarsia.extents import read_data
from intarsia.graph.free_sizes import (
    FreeSignature,
    RawSpec,
    describe_free,
    make_signature,
    sizes_text,
)
from intarsia.graph.model_info import ModelInfo
from intarsia.keys import Keys, Seal
from intarsia.plan.identity import Identity
from intarsia.plan.placement import CONTROL_FLOW, Placement
from intarsia.plan.plan import (
    FORMAT_VERSION,
    READ_VERSIONS,
    BodyPlan,
    CopyStep,
    LateSize,
    PassRun,
    Plan,
    PlanTensor,
    RegionStep,
)
from intarsia.runtime.archive import MAGIC, Archive, open_archive, write_archive
from intarsia.runtime.buckets import Buckets, make_buckets
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.file_facts import fact_of
from intarsia.runtime.free import GenericProgram, ProgramRecipe, StoredModel
from intarsia.runtime.loader import RegionLoader, SharedConstants, run_options
from intarsia.runtime.verify import verify_plan
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.backends.device import Executable
    from intarsia.backends.registry import Backends
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.explanation import Explanation
    from intarsia.plan.tuning import TuningReport

MANIFEST = "manifest.json"
SEAL = "seal.json"
# 25 pieces for each 100 MB, so that every CPU has one: hashing is a quarter of a warm start
# (docs/decisions.md).
CHUNK_BYTES = 4 << 20
# What is read before anything has been checked is bounded: the file may be anybody's.
MAX_MANIFEST_BYTES = 256 << 20

_MAX_SEAL_BYTES = 1 << 20
_SEALED_VERSION = 4
_OLD_DIGEST_DIGITS = 32
"""Of formats that nobody could vouch for: against chance these are enough."""
_UNREADABLE = (OSError, ValueError, struct.error)
"""What opening raises of what is not a package at all."""

PACKAGE_SUFFIX = ".intarsia"
"""How the names of packages end, by custom."""


class Blob(msgspec.Struct, frozen=True):
    """An entry with its size, its CRC-32 and the SHA-256 of each chunk of `CHUNK_BYTES`."""

    name: str
    nbytes: int
    digests: tuple[str, ...]
    crc: int | None = None


class ConstantRecord(msgspec.Struct, frozen=True):
    """A constant: its name, how to read it, and the position of its blob."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blob: int


class ArtifactRecord(msgspec.Struct, frozen=True):
    """An artifact without its bytes."""

    backend: str
    version: str
    target: str
    payload: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[ConstantRecord, ...]
    metadata: dict[str, str]


class StepRecord(msgspec.Struct, frozen=True):
    """One step: exactly one of the two."""

    run: RegionStep | None = None
    copy: CopyStep | None = None


class PlanRecord(msgspec.Struct, frozen=True):
    """A plan whose steps say which kind they are."""

    placement: Placement
    devices: tuple[str, ...]
    tensors: tuple[PlanTensor, ...]
    steps: tuple[StepRecord, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: tuple[int, ...]
    rewrites: tuple[str, ...]
    passes: tuple[PassRun, ...] = ()
    tuning: msgspec.Raw = msgspec.Raw(b"null")
    world: Identity | None = None
    model: ModelInfo | None = None
    extents: dict[int, tuple[Any, ...]] = {}
    late: tuple[LateSize, ...] = ()
    wiring: msgspec.Raw = msgspec.Raw(b"null")


class ProgramRecord(msgspec.Struct, frozen=True):
    """A plan, its artifacts, and the constants that are outputs of the model."""

    plan: PlanRecord
    artifacts: tuple[ArtifactRecord, ...]
    constants: tuple[ConstantRecord, ...]
    bodies: tuple[BodyRecord, ...] = ()


class BodyRecord(msgspec.Struct, frozen=True):
    """The program of a body of an If, Loop or Scan, with its region and its attribute."""

    region: int
    name: str
    program: ProgramRecord


class GenericRecord(msgspec.Struct, frozen=True):
    """Where the manifest's own program is for all sizes: for which, and which it has now."""

    bounds: dict[str, tuple[int, int | None]]
    nominal: dict[str, int]
    multiples: dict[str, int] = {}


class FreeSizesRecord(msgspec.Struct, frozen=True):
    """Of a model with free dimensions, what it takes, and what makes programs for other sizes.

    Attributes:
        inputs: As the model has them.
        outputs: Likewise.
        bounds: The smallest and largest size of each free dimension, by name.
        info: What the model says of itself.
        targets: Texts of the targets.
        programs: Those for other sizes than the manifest's own.
        model: The position of the blob with the model's ONNX; None if it is not in the package.
        tensors: What is left out of that.
        recipe: What else was asked for when it was compiled; as `model`.
        generic: If the manifest's own program is for all sizes, for which.
        plans: Which plan is for which sizes, if that was measured; older versions ignore it.
        buckets: By free dimension, what inputs are padded up to.
        pads: By input, what with.
    """

    inputs: tuple[RawSpec, ...]
    outputs: tuple[RawSpec, ...]
    bounds: dict[str, tuple[int, int | None]]
    info: ModelInfo
    targets: tuple[str, ...]
    programs: tuple[ProgramRecord, ...]
    model: int | None
    tensors: tuple[ConstantRecord, ...]
    recipe: ProgramRecipe | None
    generic: GenericRecord | None = None
    plans: msgspec.Raw = msgspec.Raw(b"null")
    buckets: dict[str, tuple[int, ...]] = {}
    pads: dict[str, bool | int | float] = {}


class SourceRecord(msgspec.Struct, frozen=True):
    """The model of which the regions are compiled again: as in `FreeSizesRecord`."""

    model: int
    tensors: tuple[ConstantRecord, ...]
    recipe: ProgramRecipe


class Manifest(msgspec.Struct, frozen=True):
    """What `manifest.json` holds."""

    format_version: int
    intarsia_version: str
    plan: PlanRecord
    artifacts: tuple[ArtifactRecord, ...]
    constants: tuple[ConstantRecord, ...]
    blobs: tuple[Blob, ...]
    free: FreeSizesRecord | None = None
    bodies: tuple[BodyRecord, ...] = ()
    source: SourceRecord | None = None


@dataclass(slots=True)
class _BlobTable:
    """Blobs to be written, each content once."""

    blobs: list[Blob] = field(default_factory=list)
    contents: list[memoryview] = field(default_factory=list)
    _positions: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, name: str, content: memoryview) -> int:
        digests = tuple(_digest(chunk) for chunk in _chunks(content))
        position = self._positions.setdefault((str(len(content)), *digests), len(self.blobs))
        if position == len(self.blobs):
            self.blobs.append(Blob(name, len(content), digests, zlib.crc32(content)))
            self.contents.append(content)
        return position

    def add_constant(self, constant: ArtifactConstant) -> ConstantRecord:
        data = constant.data
        if data.dtype == object:
            raise PackageError(
                f"constant {constant.name!r} holds text, which a package cannot store separately",
                hint="keep the model as ONNX and compile it where it runs",
            )
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        blob = self.add(f"constants/{len(self.blobs)}", flat)
        return ConstantRecord(constant.name, data.dtype.name, data.shape, blob)


def is_package(path: str | Path) -> bool:
    """Tell by its name or first bytes whether a file is meant to be a package."""
    path = Path(path)
    if path.suffix == PACKAGE_SUFFIX:
        return True
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # the reader of models says what is wrong


def save_package(
    executable: PlanExecutable, path: str | Path, source: StoredModel | None = None
) -> None:
    """Write a package; the file appears whole or not at all.

    Args:
        executable: The program.
        path: File to write.
        source: What its regions are compiled of where nobody vouches for their code; None leaves
            it out.

    Raises:
        PackageError: The file cannot be written.
    """
    table = _BlobTable()
    program = _program_record(executable, table)
    record = None
    if source is not None:
        model = table.add("model.onnx", memoryview(source.payload))
        tensors = tuple(map(table.add_constant, source.tensors))
        record = SourceRecord(model, tensors, source.recipe)
    _write(path, table, program, source=record)


def save_free_package(
    signature: FreeSignature,
    targets: tuple[str, ...],
    programs: Sequence[PlanExecutable],
    model: StoredModel | None,
    path: str | Path,
    generic: GenericProgram | None = None,
    plans: PlansBySizes | None = None,
    buckets: Buckets | None = None,
) -> None:
    """Write a package of a model with free dimensions; it appears whole or not at all.

    Args:
        signature: What the model takes and returns.
        targets: Texts of the targets.
        programs: For some sizes; at least one if there is none for all.
        model: What makes others; None leaves it out, and the package has what it has.
        path: File to write.
        generic: The program for all sizes, if there is one; it, or else the first of the others, is
            what `explain` is of.
        plans: Which plan is for which sizes, if that was measured.
        buckets: What inputs are padded up to, if they are.

    Raises:
        PackageError: The file cannot be written.
    """
    table = _BlobTable()
    first, *others = (
        _program_record(program, table, f"{index}/")
        for index, program in enumerate(
            programs if generic is None else (generic.program, *programs)
        )
    )
    free = FreeSizesRecord(
        tuple(spec.raw for spec in signature.inputs),
        tuple(spec.raw for spec in signature.outputs),
        signature.bounds,
        signature.info,
        targets,
        tuple(others),
        None if model is None else table.add("model.onnx", memoryview(model.payload)),
        () if model is None else tuple(map(table.add_constant, model.tensors)),
        None if model is None else model.recipe,
        None
        if generic is None
        else GenericRecord(dict(generic.bounds), dict(generic.nominal), dict(generic.multiples)),
        msgspec.Raw(msgspec.json.encode(plans)),
        {} if buckets is None else dict(buckets.sizes),
        {} if buckets is None else dict(buckets.pads),
    )
    _write(path, table, first, free)


def _program_record(
    executable: PlanExecutable, table: _BlobTable, folder: str = ""
) -> ProgramRecord:
    artifacts = tuple(
        ArtifactRecord(
            artifact.backend,
            artifact.version,
            artifact.target,
            table.add(f"regions/{folder}{index}.onnx", memoryview(artifact.payload)),
            artifact.inputs,
            artifact.outputs,
            tuple(table.add_constant(constant) for constant in artifact.constants),
            dict(artifact.metadata),
        )
        for index, artifact in enumerate(executable.artifacts)
    )
    constants = tuple(
        table.add_constant(ArtifactConstant(name, data))
        for name, data in executable.constants.items()
    )
    bodies = tuple(
        BodyRecord(
            body.region,
            body.name,
            _program_record(program, table, f"{folder}{body.region}/{body.name}/"),
        )
        for body, program in zip(executable.plan.bodies, executable.bodies, strict=True)
    )
    return ProgramRecord(_plan_record(executable.plan), artifacts, constants, bodies)


def _write(
    path: str | Path,
    table: _BlobTable,
    program: ProgramRecord,
    free: FreeSizesRecord | None = None,
    source: SourceRecord | None = None,
) -> None:
    from importlib.metadata import version

    manifest = Manifest(
        FORMAT_VERSION,
        version("intarsia"),
        program.plan,
        program.artifacts,
        program.constants,
        tuple(table.blobs),
        free,
        program.bodies,
        source,
    )
    text = msgspec.json.encode(manifest)
    seal = Keys(Settings.from_environment().keys_folder()).seal(text)
    entries = zip((blob.name for blob in table.blobs), table.contents, strict=True)
    write_archive(path, _with_seal(text, entries, seal))


def _with_seal(
    manifest: bytes, blobs: Iterable[tuple[str, memoryview]], seal: Seal
) -> list[tuple[str, memoryview]]:
    """Return all entries of a package."""
    return [
        (MANIFEST, memoryview(manifest)),
        *blobs,
        (SEAL, memoryview(msgspec.json.encode(seal))),
    ]


def sign_package(path: str | Path, keys: Keys) -> None:
    """Sign a package by the user's own key; whoever trusts the key runs its code.

    Raises:
        PackageError: It is not a package, is damaged, of an older format, or cannot be written.
        SettingError: There is no key, or `cryptography` is missing.
    """
    path = Path(path)
    opened = _open(path, None)
    if opened.manifest.format_version < _SEALED_VERSION:
        raise PackageError(
            f"{str(path)!r} has package format {opened.manifest.format_version}, which has no "
            "place for signatures",
            hint="compile the model again",
        )
    own = keys.sign(opened.text)
    kept = (one for one in opened.seal.signatures if one.key != own.key)
    seal = Seal(opened.seal.here, (*kept, own))
    names = (blob.name for blob in opened.manifest.blobs)
    entries = zip(names, opened.contents, strict=True)
    write_archive(path, _with_seal(opened.text, entries, seal))


@dataclass(frozen=True, slots=True)
class Package:
    """A package that has been read and checked; nothing is loaded yet.

    Attributes:
        plan: What it runs.
        artifacts: One per region; their constants view the mapped file.
        constants: By name, the constants that are outputs of the model.
        free: What a model with free dimensions has beside this one program.
        version: Of the package's format.
        bodies: For each of the plan's bodies, its program.
        source: What its regions are compiled of again; None if that is not in the package.
        signer: Who vouches for it, in words; empty if nobody whom the user trusts does.
    """

    plan: Plan
    artifacts: tuple[Artifact, ...]
    constants: dict[str, Array]
    free: FreePart | None = None
    version: int = FORMAT_VERSION
    bodies: tuple[Package, ...] = ()
    source: StoredModel | None = None
    signer: str = ""

    @property
    def programs(self) -> tuple[Package, ...]:
        """All programs, this one first."""
        return (self, *(() if self.free is None else self.free.programs))

    @property
    def regions(self) -> tuple[tuple[str, Artifact, str], ...]:
        """The number of each region, its artifact and its device; then those of its bodies."""
        pairs = zip(self.artifacts, self.plan.placement.regions, strict=True)
        own = ((str(number), one, region.device) for number, (one, region) in enumerate(pairs))
        inner = (
            (f"{plan.region}/{plan.name}/{number}", artifact, device)
            for plan, body in zip(self.plan.bodies, self.bodies, strict=True)
            for number, artifact, device in body.regions
        )
        return (*own, *inner)

    @property
    def all_regions(self) -> tuple[tuple[str, Artifact, str], ...]:
        """Those of all programs."""
        return tuple(region for program in self.programs for region in program.regions)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of its plan, then those of its bodies'."""
        return (*self.plan.devices, *(text for body in self.bodies for text in body.devices))

    def explain(self) -> Explanation:
        """Return what runs where and why in this program; no backend is needed."""
        from intarsia.plan.explanation import explain_plan

        bodies = [body.explain() for body in self.bodies]
        explanation = explain_plan(self.plan, self.artifacts, bodies=bodies)
        free = self.free
        if free is None:
            return explanation
        is_generic = free.generic is not None
        return explanation.with_free(free.text, free.plans, free.sizes[0], is_generic=is_generic)

    def explain_at(self, sizes: Mapping[str, int]) -> Explanation:
        """Return what runs where and why at some sizes; no backend is needed.

        Where there is no program for these, it is of the one that has the same plan, else of the
        one for all sizes.

        Args:
            sizes: By free dimension; those that are missing are nominal.

        Raises:
            InputError: There is no such dimension, or a size is out of bounds.
            PackageError: The model has no free dimensions, or nothing is known of these sizes.
        """
        free = self.free
        if free is None:
            raise PackageError("the package's model has no free dimensions", hint="give no sizes")
        full = free.signature.nominal_sizes(sizes)
        free.signature.shapes_at(full)
        is_generic = free.generic is not None
        own = list(zip(self.programs, free.sizes, strict=True))[is_generic:]
        found, why = full, ""
        if full not in [those for _, those in own] and free.plans is not None:
            choice = free.plans.choose(full)
            found = free.plans.points[choice.point].sizes
            why = f"{sizes_text(full)} has the plan of {choice.why}"
        program = next((one for one, those in own if those == found), None)
        if program is None and not is_generic:
            raise PackageError(
                f"there is no program for {sizes_text(full)}, nor a plan",
                hint=f"there are programs for {'; '.join(sizes_text(those) for _, those in own)}",
            )
        if program is None:
            why = why or f"{sizes_text(full)} has no plan of its own"
            explanation = self.explain()
            return replace(
                explanation,
                free=f"{why}; its program is made when it comes often; {explanation.free}",
            )
        others = [those for _, those in own]
        text = describe_free(free.signature, found, others, is_generic=is_generic)
        explanation = program.explain().with_free(text, free.plans, found, is_generic=False)
        return replace(explanation, free="; ".join(filter(None, (why, explanation.free))))


@dataclass(frozen=True, slots=True)
class FreePart:
    """What a package of a model with free dimensions has beside its first program.

    Attributes:
        signature: What the model takes and returns.
        targets: Texts of the targets.
        programs: The other programs.
        model: What makes programs for other sizes; None if it is not in the package.
        text: One line on the dimensions and the sizes that there are programs for.
        generic: If the package's first program is for all sizes, for which.
        plans: Which plan is for which sizes, if that was measured.
        sizes: Of each program, the package's first among them.
        buckets: What inputs are padded up to, if they are.
    """

    signature: FreeSignature
    targets: tuple[str, ...]
    programs: tuple[Package, ...]
    model: StoredModel | None
    text: str
    generic: GenericRecord | None = None
    plans: PlansBySizes | None = None
    sizes: tuple[Mapping[str, int], ...] = ()
    buckets: Buckets | None = None


def read_package(path: str | Path, settings: Settings | None = None) -> Package:
    """Read a package and check all of it; no backend is needed.

    Args:
        path: The file.
        settings: Say where keys are, and where it is remembered that the digests of a file's
            bytes are right; None means those of the environment, and computes digests in any case.

    Raises:
        PackageError: The file is not a package, damaged, of another format version, or unsafe.
    """
    path = Path(path)
    opened = _open(path, settings)
    manifest, contents = opened.manifest, opened.contents
    own = ProgramRecord(manifest.plan, manifest.artifacts, manifest.constants, manifest.bodies)
    folder = (settings or Settings.from_environment()).keys_folder()
    package = replace(
        _package(path, own, contents),
        version=manifest.format_version,
        source=_stored(manifest.source, contents),
        signer=Keys(folder).signer(opened.text, opened.seal),
    )
    free = manifest.free
    if free is None:
        return package
    try:
        signature = make_signature(free.inputs, free.outputs, free.bounds, free.info)
    except (ArithmeticError, ValueError, RecursionError) as error:
        raise PackageError(f"{str(path)!r}: the free dimensions are malformed: {error}") from error
    kept = None
    if free.model is not None and free.recipe is not None:
        kept = SourceRecord(free.model, free.tensors, free.recipe)
    model = _stored(kept, contents)
    others = tuple(_package(path, record, contents) for record in free.programs)
    sizes = [_find_sizes(path, signature, program.plan) for program in (package, *others)]
    own_sizes = sizes if free.generic is None else sizes[1:]
    text = describe_free(signature, sizes[0], own_sizes, is_generic=free.generic is not None)
    if free.generic is not None:
        _check_extents(path, package.plan, free.generic)
    plans = _read_plans(path, signature, free.plans)
    buckets = None
    if free.buckets:
        try:
            buckets = make_buckets(free.buckets, free.pads, signature)
        except InputError as error:
            raise PackageError(f"{str(path)!r}: its buckets: {error.message}") from error
        text = f"{text}; {buckets}"
    part = FreePart(
        signature,
        free.targets,
        others,
        model,
        text,
        free.generic,
        plans,
        tuple(sizes),
        buckets,
    )
    return replace(package, free=part)


def _stored(record: SourceRecord | None, contents: Sequence[memoryview]) -> StoredModel | None:
    if record is None:
        return None
    tensors = tuple(map(partial(_constant, contents=contents), record.tensors))
    return StoredModel(bytes(_blob(record.model, contents)), tensors, record.recipe)


def _read_plans(path: Path, signature: FreeSignature, text: msgspec.Raw) -> PlansBySizes | None:
    """Return which plan is for which sizes; nothing if that was not measured.

    Raises:
        PackageError: The plans are not of the model's dimensions.
    """
    if bytes(text) == b"null":
        return None
    from intarsia.plan.by_sizes import from_json

    plans = from_json(bytes(text).decode())
    names = {symbol.name for symbol in signature.symbols}
    if plans is None or any(point.sizes.keys() != names for point in plans.points):
        raise PackageError(
            f"{str(path)!r}: the plans by sizes are inconsistent", hint="compile the model again"
        )
    return plans


def _check_extents(path: Path, plan: Plan, generic: GenericRecord) -> None:
    """Check that the expressions of a plan for all sizes give the shapes that it has.

    Raises:
        PackageError: They do not.
    """
    try:
        nominal = plan.at(generic.nominal)
        is_right = [one.shape for one in nominal.tensors] == [one.shape for one in plan.tensors]
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, RecursionError):
        is_right = False
    if not is_right:
        raise PackageError(
            f"{str(path)!r}: the free dimensions of a plan are not those of its tensors",
            hint="compile the model again",
        )


def _package(path: Path, record: ProgramRecord, contents: Sequence[memoryview]) -> Package:
    """Return a program of a package.

    Raises:
        PackageError: Its plan is inconsistent.
    """
    bodies = tuple(_package(path, body.program, contents) for body in record.bodies)
    plans = (
        BodyPlan(body.region, body.name, package.plan)
        for body, package in zip(record.bodies, bodies, strict=True)
    )
    plan = replace(_plan(record.plan), bodies=tuple(plans))
    artifacts = tuple(_artifact(artifact, contents) for artifact in record.artifacts)
    constants = {one.name: _constant(one, contents).data for one in record.constants}
    try:
        verify_plan(plan, artifacts, constants)
    except ValueError as error:
        raise PackageError(
            f"{str(path)!r}: the plan is inconsistent: {error}", hint="compile the model again"
        ) from error
    return Package(plan, artifacts, constants, bodies=bodies)


def _find_sizes(path: Path, signature: FreeSignature, plan: Plan) -> dict[str, int]:
    """Return the sizes that a plan is for.

    Raises:
        PackageError: It is not.
    """
    specs = [plan.tensors[position].spec for position in plan.inputs]
    shapes = {spec.name: spec.shape for spec in specs if spec.shape is not None}
    if [spec.name for spec in specs] != [spec.name for spec in signature.inputs]:
        problem = "it has other inputs"
    elif any(spec.is_free and spec.name not in shapes for spec in signature.inputs):
        problem = "it has an input without a shape"
    else:
        try:
            return signature.find_sizes(shapes)
        except InputError as error:
            problem = error.message
    raise PackageError(
        f"{str(path)!r}: a plan does not fit the model: {problem}", hint="compile the model again"
    )


def load_regions(
    package: Package,
    backends: Backends,
    num_threads: int,
    shared: SharedConstants | None = None,
) -> PlanExecutable:
    """Load the regions of a package.

    Args:
        package: Read and checked.
        backends: Load the artifacts.
        num_threads: Threads that one run may use.
        shared: The constants that it shares with other programs of the same model.

    Raises:
        PackageError: An artifact is damaged.
        BackendError: A backend is missing, or refused its artifact.
    """
    names = sorted({artifact.backend for _, artifact, _ in package.regions})
    used = [backends.by_name[name] for name in names if name in backends.by_name]
    if package.bodies and shared is None:  # what is outside and inside has the same constants
        shared = SharedConstants()
    is_mixed = package.plan.is_mixed
    options = run_options(num_threads, used, is_shared=is_mixed)
    loader = inner = RegionLoader(backends, options, shared)
    if package.bodies and not is_mixed:  # bodies take turns with what is around them
        options = run_options(num_threads, used, is_shared=True)
        inner = RegionLoader(backends, options, shared)
    return _load(package, loader, inner)


def _load(package: Package, loader: RegionLoader, inner: RegionLoader) -> PlanExecutable:
    """Load the regions of a program, and the programs of its bodies.

    Args:
        package: Read and checked.
        loader: For its regions.
        inner: For those of its bodies.
    """
    plan = package.plan
    programs: dict[int, dict[str, PlanExecutable]] = {}
    for body, one in zip(plan.bodies, package.bodies, strict=True):
        programs.setdefault(body.region, {})[body.name] = _load(one, inner, inner)
    artifacts = [loader.with_shared(artifact) for artifact in package.artifacts]
    executables = [
        _control(artifact, programs.get(number, {}))
        if artifact.backend == CONTROL_FLOW
        else loader.load(artifact, region.device)
        for number, (artifact, region) in enumerate(
            zip(artifacts, plan.placement.regions, strict=True)
        )
    ]
    devices = [loader.device(text) for text in plan.devices]
    return PlanExecutable(plan, artifacts, executables, devices, package.constants)


def _control(artifact: Artifact, bodies: Mapping[str, PlanExecutable]) -> Executable:
    from intarsia.runtime.control_flow import ControlExecutable  # few programs have any

    return ControlExecutable(artifact, bodies)


def _plan_record(plan: Plan) -> PlanRecord:
    steps = tuple(
        StepRecord(copy=step) if isinstance(step, CopyStep) else StepRecord(run=step)
        for step in plan.steps
    )
    return PlanRecord(
        plan.placement,
        plan.devices,
        plan.tensors,
        steps,
        plan.inputs,
        plan.outputs,
        plan.arena_bytes,
        plan.rewrites,
        plan.passes,
        msgspec.Raw(msgspec.json.encode(plan.tuning)),
        plan.identity,
        plan.model,
        dict(plan.extents),
        plan.late,
        msgspec.Raw(plan.wiring or b"null"),
    )


def _tuning(report: msgspec.Raw) -> TuningReport | None:
    """Return how a plan was found; few were found by cost."""
    if bytes(report) == b"null":
        return None
    from intarsia.plan.tuning import TuningReport

    try:
        return decode_json(report, TuningReport)
    except msgspec.DecodeError as error:
        raise PackageError(f"the package's report on tuning is malformed: {error}") from error


def _plan(record: PlanRecord) -> Plan:
    steps = [step.run or step.copy for step in record.steps]
    if any(step is None for step in steps):
        raise PackageError("the package's plan has a step that is neither a region nor a copy")
    return Plan(
        record.placement,
        record.devices,
        record.tensors,
        tuple(step for step in steps if step is not None),
        record.inputs,
        record.outputs,
        record.arena_bytes,
        record.rewrites,
        record.passes,
        _tuning(record.tuning),
        record.world,
        record.model,
        extents={i: tuple(map(read_data, one)) for i, one in record.extents.items()},
        late=record.late,
        wiring=b"" if bytes(record.wiring) == b"null" else bytes(record.wiring),
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """The contents of a file: the manifest, its text, the blobs, and who vouches for the text."""

    manifest: Manifest
    text: bytes
    contents: list[memoryview]
    seal: Seal


def _open(path: Path, settings: Settings | None) -> _Opened:
    try:
        archive = open_archive(path)
        if next(iter(archive.contents)) != MANIFEST:
            raise PackageError(f"{str(path)!r} is a zip file, but not a package")
        if len(archive.contents[MANIFEST]) > MAX_MANIFEST_BYTES:
            raise PackageError(f"{str(path)!r}: the manifest is larger than {MAX_MANIFEST_BYTES}")
        text = archive.small(MANIFEST)
        seal = _decode_seal(path, archive)
    except FileNotFoundError as error:
        raise PackageError(f"there is no file {str(path)!r}", hint="check the path") from error
    except _UNREADABLE as error:
        if path.suffix == ".onnx":
            message, hint = (
                "is a model, not a package",
                "give it to `compile`, which returns the same",
            )
        else:
            message = f"is not a package, or is damaged: {error}"
            hint = "make it again with `intarsia compile MODEL -t TARGET -o FILE`"
        raise PackageError(f"{str(path)!r} {message}", hint=hint) from error
    manifest = _decode_manifest(path, text)
    is_sealed = manifest.format_version >= _SEALED_VERSION
    listed = [MANIFEST, *(blob.name for blob in manifest.blobs), *([SEAL] if is_sealed else ())]
    if listed != list(archive.contents):
        odd = sorted({*listed} ^ {*archive.contents}) or ["its order"]
        raise PackageError(f"{str(path)!r}: entry {odd[0]!r} and the manifest do not agree")
    contents = [archive.contents[blob.name] for blob in manifest.blobs]
    for blob, content in zip(manifest.blobs, contents, strict=True):
        if blob.nbytes != len(content):
            raise PackageError(
                f"{str(path)!r}: entry {blob.name!r} has {len(content)} bytes, and the manifest "
                f"says {blob.nbytes}"
            )
        if is_sealed and blob.crc != archive.crcs[blob.name]:
            raise PackageError(f"{str(path)!r}: the checksum of {blob.name!r} is another")

    def check() -> str:
        digits = None if is_sealed else _OLD_DIGEST_DIGITS
        _check_digests(path, manifest.blobs, contents, digits)
        return "sound"

    if settings is None:
        check()
    else:
        fact_of(archive.status, "package", check, settings)
    return _Opened(manifest, text, contents, seal)


def _decode_seal(path: Path, archive: Archive) -> Seal:
    """Return who vouches for a package; nobody if its format has no place for that."""
    if SEAL not in archive.contents:
        return Seal()
    if len(archive.contents[SEAL]) > _MAX_SEAL_BYTES:
        raise PackageError(f"{str(path)!r}: its seal is larger than {_MAX_SEAL_BYTES} bytes")
    text = archive.small(SEAL)
    try:
        seal = decode_json(text, Seal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackageError(f"{str(path)!r}: its seal is malformed: {error}") from error
    if msgspec.json.encode(seal) != text:  # nothing else is said in it
        raise PackageError(f"{str(path)!r}: its seal is not written as seals are")
    return seal


def _decode_manifest(path: Path, text: bytes) -> Manifest:
    try:
        # The number alone first: a manifest of another format need not have our fields.
        version = decode_json(text, dict[str, msgspec.Raw]).get("format_version")
        format_version = decode_json(version, int) if version is not None else None
        if format_version not in READ_VERSIONS:
            raise PackageError(
                f"{str(path)!r} has package format {format_version}; "
                f"this version reads {' and '.join(map(str, READ_VERSIONS))}",
                hint="use the version of intarsia that wrote it, or compile the model again",
            )
        return decode_json(text, Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackageError(f"{str(path)!r}: the manifest is malformed: {error}") from error


def _check_digests(
    path: Path, blobs: Sequence[Blob], contents: Sequence[memoryview], digits: int | None
) -> None:
    from concurrent.futures import ThreadPoolExecutor  # a file is checked once

    with ThreadPoolExecutor(max_workers=available_cpus()) as pool:
        for blob, content in zip(blobs, contents, strict=True):
            # Threads, not processes: hashlib lets go of the interpreter's lock for what is longer
            # than 2 KiB.
            found = [digest[:digits] for digest in pool.map(_digest, _chunks(content))]
            if found != list(blob.digests):
                raise PackageError(
                    f"{str(path)!r} is damaged: the bytes of {blob.name!r} are not those that "
                    "were written",
                    hint="copy the file again, or compile the model again",
                )


def _chunks(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


def _digest(chunk: memoryview) -> str:
    return hashlib.sha256(chunk).hexdigest()


def _blob(position: int, contents: Sequence[memoryview]) -> memoryview:
    if not 0 <= position < len(contents):
        raise PackageError(f"the package refers to blob {position}, which it does not have")
    return contents[position]


def _constant(record: ConstantRecord, contents: Sequence[memoryview]) -> ArtifactConstant:
    content = _blob(record.blob, contents)
    try:
        dtype = np_dtype(record.dtype)
        data: Array = np.frombuffer(content, dtype).reshape(record.shape)
    except (TypeError, ValueError, AttributeError) as error:
        raise PackageError(f"constant {record.name!r} does not fit its bytes: {error}") from error
    if data.shape != record.shape:  # a dimension of -1
        raise PackageError(f"constant {record.name!r} has no fixed shape")
    return ArtifactConstant(record.name, data)


def _artifact(record: ArtifactRecord, contents: Sequence[memoryview]) -> Artifact:
    return Artifact(
        record.backend,
        record.version,
        record.target,
        bytes(_blob(record.payload, contents)),
        record.inputs,
        record.outputs,
        tuple(map(partial(_constant, contents=contents), record.constants)),
        record.metadata,
    )
