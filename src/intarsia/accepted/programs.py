# SPDX-License-Identifier: Apache-2.0
"""Programs that were compiled, kept among the caches: the same request later costs one look-up.

Compiling would read the model, ask every backend what it takes and compile the plan. Nothing of
that changes while the model, what was said about it, the machine and all code are the same; so the
program is kept as a package under a digest of these. Where the cost database decides which plan is
meant, it is used only while the database still says so; and always after every byte was checked,
once for as long as nobody writes to the file.

Light: a start that finds its program imports neither onnx nor a search.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intarsia.accepted.installed import installation_digest, is_ours, recall, remember
from intarsia.backends.artifact import shared_sizes
from intarsia.cache import make_cache_folder, write_entry
from intarsia.cost.records import PlanVerdict, VerdictKey
from intarsia.cost.storage import has_database
from intarsia.cpus import available_cpus
from intarsia.decoding import decode_json
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    IntarsiaError,
    PackageError,
    ReasonCode,
    SettingError,
)
from intarsia.files import whole_file, writing_hint
from intarsia.hashing import digest
from intarsia.native.entries import prune
from intarsia.place.machine import Machine
from intarsia.place.request import BY_COST, Request
from intarsia.plan.lock import placed_regions
from intarsia.runtime.file_facts import fact_of
from intarsia.runtime.free import GenericProgram
from intarsia.runtime.loader import SharedConstants
from intarsia.runtime.package import (
    PACKAGE_SUFFIX,
    FreePart,
    load_regions,
    read_package,
    save_free_package,
    save_package,
)
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.target.tags import given_names

if TYPE_CHECKING:
    from intarsia.accepted.choices import Accepted
    from intarsia.graph.free_sizes import FreeSignature
    from intarsia.plan.plan import Plan
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.package import Package

logger = logging.getLogger(__name__)

FOLDER_NAME = "programs"
"""Inside the folder of all caches."""

LIMIT_BYTES = 4 << 30
"""Limit of all kept programs together; beyond it, the least recently used ones are removed."""

_MOST_PART = 4
"""A program that takes more than this part of the limit, or of the free disk, is not kept."""

_CHUNK_BYTES = 8 << 20

_EXTERNAL_KEY = b"location"
"""Every reference to a file beside the model has this key, in any encoding."""

Warned = tuple[tuple[str, str], ...]
"""A warning that was logged: the logger's name and the message."""


class _Record(msgspec.Struct, frozen=True):
    """What is stored with a kept package.

    Attributes:
        key: What the database was asked for; None: there was none, or it does not matter.
        warnings: Of compiling; they are given again.
        is_generic: Whether it is a program for all sizes, which does not depend on costs.
    """

    key: VerdictKey | None = None
    warnings: Warned = ()
    is_generic: bool = False


@dataclass(frozen=True, slots=True)
class KeptGeneric:
    """The program for all sizes of a model with free dimensions, as it was kept.

    Attributes:
        part: What is stored with it; no model.
        generic: It.
        shared: Its constants, for programs of the same model.
    """

    part: FreePart
    generic: GenericProgram
    shared: SharedConstants


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found of a request: its program; or else what is to make it, and where it is kept.

    Attributes:
        request: What was asked for.
        program: It was compiled before.
        file: The package that has the program, or will; None if it is not kept.
        known_machine: What it is for; None if that was not needed.
        free: Of a model with free dimensions, the program for all sizes, if that was compiled.
    """

    request: Request
    program: PlanExecutable | None
    file: Path | None
    known_machine: Machine | None = None
    free: KeptGeneric | None = None

    @property
    def machine(self) -> Machine:
        """The machine, where no program was found."""
        assert self.known_machine is not None
        return self.known_machine


def look_up(request: Request, shared: SharedConstants | None = None) -> Lookup:
    """Look for the program of a request: as things were when it was made, then as they are.

    What tells it from others is all that decides it: the bytes of the model and of the files that
    it names, what was said of it and what the user's names mean, the machine, the versions and
    sources of all code, and the settings that count. Models in memory as objects are not kept, nor
    are programs of backends that are not ours.

    Args:
        request: What is asked for.
        shared: The constants that its program shares with other programs of the same model.

    Raises:
        TargetError: The description of the machine is wrong, or nothing was found.
    """
    is_readable = isinstance(request.model, str | os.PathLike | bytes)
    if not (request.is_kept and is_readable) or request.settings.dump_dir:
        return Lookup(request, None, None, request.find_machine())
    config, memory, recalled = None, None, None
    if request.backends is None:
        with suppress(IntarsiaError):  # a backend may bring the kind; else it is said below
            config = request.given_config()
            memory = _memory_key(request, config)
            recalled = _file_of(request, recall(memory, request.settings))
    found = _load(request, recalled, shared)
    if found is not None:
        return _found(request, found, recalled)
    machine = request.find_machine(config)
    here = installation_digest(machine, request.threads)
    is_known = config is not None or all(map(is_ours, machine.backends.by_name.values()))
    if memory is not None and here is not None and is_known:
        remember(memory, here, request.settings)
    file = _file_of(request, here)
    found = None if file == recalled else _load(request, file, shared)
    return _found(request, found, file, machine)


def _found(
    request: Request,
    found: PlanExecutable | KeptGeneric | None,
    file: Path | None,
    machine: Machine | None = None,
) -> Lookup:
    if isinstance(found, KeptGeneric):
        return Lookup(request, None, file, machine, found)
    return Lookup(request, found, file, machine)


def keep(
    looked_up: Lookup,
    program: PlanExecutable,
    accepted: Accepted,
    warnings: Warned | None = None,
) -> Path | None:
    """Keep a program, if there is room; return where it is kept.

    Args:
        looked_up: What was found of its request.
        program: What was built of the plan, or in its stead.
        accepted: What its plan was looked for under, and which one was accepted.
        warnings: What was warned of while it was compiled; None means its shortfall alone.
    """
    placement = program.placement
    if not _carries_out(program.plan, accepted.verdict):
        return None
    if warnings is None:
        warnings = () if placement.shortfall is None else (("intarsia", placement.shortfall),)
    return _keep(
        looked_up,
        program,
        _Record(accepted.key, warnings),
        lambda file: save_package(program, file),
    )


def keep_generic(
    looked_up: Lookup,
    signature: FreeSignature,
    targets: tuple[str, ...],
    generic: GenericProgram,
    warnings: Warned,
) -> None:
    """Keep the program for all sizes of a model with free dimensions, if there is room.

    The model is not stored with it: its file is there, or the program is not looked for. Nor are
    programs for some sizes, which depend on costs.

    Args:
        looked_up: What was found of its request.
        signature: What the model takes and returns.
        targets: Texts of the targets.
        generic: The program.
        warnings: What was warned of while it was compiled.
    """

    def save(file: Path) -> None:
        save_free_package(signature, targets, (), None, file, generic)

    _keep(looked_up, generic.program, _Record(warnings=warnings, is_generic=True), save)


def _keep(
    looked_up: Lookup, program: PlanExecutable, record: _Record, save: Callable[[Path], None]
) -> Path | None:
    """Keep a program, if there is room; return where it is kept.

    Args:
        looked_up: What was found of its request.
        program: It.
        record: What is stored with it.
        save: Writes the package.
    """
    request, file = looked_up.request, looked_up.file
    passing = {
        ReasonCode.COMPILE_FAILED,
        ReasonCode.INTERNAL_ERROR,
        ReasonCode.CRASHED,
        ReasonCode.TIMEOUT,
    }
    has_failed = any(refusal.code in passing for refusal in program.placement.refusals)
    if file is None or has_failed:  # what failed may not do so again
        return None
    folder, nbytes = request.settings.cache_folder(), sum(shared_sizes(program.artifacts))
    try:
        make_cache_folder(folder)
        file.parent.mkdir(exist_ok=True)
        if _MOST_PART * nbytes > min(LIMIT_BYTES, shutil.disk_usage(folder).free):
            logger.info("the program is not kept: %d bytes", nbytes)
            return None
        if _file_of(request, installation_digest(looked_up.machine, request.threads)) != file:
            logger.info("the program is not kept: its model file has changed meanwhile")
            return None
        _record_of(file).unlink(missing_ok=True)  # of a program that is about to be another
        save(file)
        write_entry(_record_of(file), msgspec.json.encode(record))
        prune(file.parent, LIMIT_BYTES)
    except (OSError, PackageError, SettingError) as error:
        logger.info("the program is not kept: %s", error)
        return None
    return file if file.is_file() else None


def _load(
    request: Request, file: Path | None, shared: SharedConstants | None
) -> PlanExecutable | KeptGeneric | None:
    """Return a program that was kept, if it is what is asked for and can be loaded.

    What was warned of when it was compiled is warned of again. What is damaged is removed.
    """
    if file is None or request.is_resumed or not file.is_file():
        return None
    try:
        contents = _read(request, file)
        if contents is None:
            return None
        package, warnings = contents
        backends = request.backends
        if backends is None:
            from intarsia.runtime.loading import backends_for

            backends = backends_for(package, request.settings)
        backends = backends.with_settings(request.settings)
        free = package.free
        if free is not None and shared is None:
            shared = SharedConstants()
        program = load_regions(package, backends, request.threads, shared)
    except (BackendError, PackageError) as error:  # a driver may be gone since
        logger.info("a kept program is compiled again: %s", error.message)
        _remove(file)
        return None
    for name, message in warnings:
        logging.getLogger(name).warning("%s", message)
    logger.info("the program was compiled before: %s", file)
    if free is None or free.generic is None or shared is None:
        return program
    kept = free.generic
    generic = GenericProgram(program, kept.bounds, kept.nominal, kept.multiples)
    return KeptGeneric(free, generic, shared)


def _read(request: Request, file: Path) -> tuple[Package, Warned] | None:
    """Return a program that was kept, and its warnings; None if another plan is meant now.

    Raises:
        PackageError: It is damaged.
    """
    is_accepted = request.placement == "collage"
    try:
        record = decode_json(_record_of(file).read_bytes(), _Record)
        verdict = None
        is_by_cost = request.way == BY_COST and not record.is_generic
        if is_by_cost and has_database(request.costs, request.settings):
            if record.key is None:  # there is a database now, and it is not known what to ask for
                return None
            from intarsia.cost.direct import find_verdict

            verdict = find_verdict(record.key, request.costs, request.settings)
        if is_accepted and verdict is None:
            return None
        package = read_package(file, request.settings)
    except (OSError, msgspec.MsgspecError, CostDatabaseError):  # who needs costs says what is wrong
        return None
    if not _carries_out(package.plan, verdict):
        return None
    for path in (file, _record_of(file)):  # what was used last is removed last
        _silently_touch(path)
    if is_accepted and package.plan.tuning is not None:
        report = replace(package.plan.tuning, is_reused=True)
        package = replace(package, plan=replace(package.plan, tuning=report))
    return package, record.warnings


def _memory_key(request: Request, config: CompilationConfig | None) -> str:
    """Return the key under which a machine is stored; None means the machine that is found here.

    Under it `recall` finds the digest of all that is installed without asking any backend; what is
    remembered may at worst name a program that nobody kept.

    Raises:
        IntarsiaError: A name of the user's is wrong.
    """
    names, threads = _plain([given_names()]), str(request.threads)
    if config is None:
        return digest(("detected", str(request.host), _plain([request.attributes]), names, threads))
    text = _plain([config.to_json(), config.reasons.is_detected])
    return digest(("given", text, names, threads))


def _file_of(request: Request, here: str | None) -> Path | None:
    """Return where the program of a request is kept; None if something of it cannot be told.

    Args:
        request: What is asked for.
        here: Digest of its machine and of all code that serves it; None if that cannot be told.
    """
    if here is None:
        return None
    parts = (
        _plain((request.shapes, request.pins, request.exclude, request.layers)),
        str(request.threads),
        request.objective,
        request.way,
        str(request.strict),
        str(request.probe),
        *(() if request.regions is None else (str(request.regions),)),
        *request.sums,
        # What was tuned was tried, and is found by whoever asks for the plan that was accepted.
        *(("careful",) if request.careful and request.placement != "collage" else ()),
    )
    folder, file = request.settings.cache_folder() / FOLDER_NAME, None
    try:
        names = _plain([given_names()])
        for content in _contents(request.model, request.settings):
            name = digest(("program", content, *parts, names, here))
            file = folder / f"{name}{PACKAGE_SUFFIX}"
            if file.is_file():
                break
    except (IntarsiaError, OSError, ValueError):  # where it is needed, the error says what is wrong
        return None
    return file


def _record_of(package: Path) -> Path:
    return package.with_suffix(".json")


def _remove(package: Path) -> None:
    try:
        _record_of(package).unlink(missing_ok=True)
        package.unlink(missing_ok=True)
    except OSError:
        logger.debug("a kept program cannot be removed")


class _Listener(logging.Handler):
    """Collects what threads warn of that ask for it; being a handler, it hides nothing.

    It stays once it is there: a list of handlers that changes while another thread goes through it
    would lose warnings.
    """

    def emit(self, record: logging.LogRecord) -> None:
        for messages in _heard():
            messages.append((record.name, record.getMessage()))
        is_alone = all(each is self for each in _handlers(logging.getLogger(record.name)))
        if is_alone and logging.lastResort is not None:  # which writes where no handler is
            logging.lastResort.handle(record)


_listener = _Listener(logging.WARNING)
_thread = threading.local()


def _heard() -> list[list[tuple[str, str]]]:
    """Return what this thread was told, once for each caller that listens."""
    by_caller: list[list[tuple[str, str]]] = vars(_thread).setdefault("by_caller", [])
    return by_caller


def _handlers(source: logging.Logger | None) -> Iterator[logging.Handler]:
    """Yield the handlers that are given what a logger is told."""
    while source is not None:
        yield from source.handlers
        source = source.parent if source.propagate else None


@contextmanager
def listening() -> Iterator[list[tuple[str, str]]]:
    """Collect what is warned of in this thread meanwhile: the logger's name and the message."""
    logging.getLogger("intarsia").addHandler(_listener)  # which does nothing if it is there
    messages: list[tuple[str, str]] = []
    _heard().append(messages)
    try:
        yield messages
    finally:
        _heard().pop()


def copy_package(source: Path, path: Path) -> bool:
    """Copy a package; the file appears whole or not at all.

    Returns:
        Whether it is written: the source may be gone.

    Raises:
        PackageError: It cannot be written.
    """
    try:
        with whole_file(path) as draft:
            shutil.copyfile(source, draft)
    except OSError as error:
        if not source.exists():
            return False
        raise PackageError(
            f"cannot write {str(path)!r}: {error.strerror or error}", hint=writing_hint(error)
        ) from error
    return True


def _carries_out(plan: Plan, verdict: PlanVerdict | None) -> bool:
    """Tell whether a plan is the accepted one, or does not depend on costs if none was accepted."""
    if verdict is None or plan.tuning is None:
        return verdict is None and plan.tuning is None
    carried, accepted = (
        Counter((region.target, frozenset(region.nodes)) for region in regions)
        for regions in (placed_regions(plan), verdict.regions)
    )
    return carried == accepted


def _plain(said: Sequence[Any]) -> str:
    """Return options as text that is equal for equal values; order counts, as with pins."""
    items = [list(one.items()) if isinstance(one, Mapping) else one for one in said]
    return msgspec.json.encode([one or None for one in items], enc_hook=str).decode()


def _contents(model: bytes | str | os.PathLike[str], settings: Settings) -> Iterator[str]:
    """Yield the digest of a model alone and, if it names other files, of it and of these.

    Nothing is kept for the first of two. So where something is kept, nobody need look through the
    model for names, which takes as long as its digest.
    """
    if isinstance(model, bytes):
        yield _bytes_digest(model)
        return
    path = Path(model)

    def content(of: Path) -> str:
        return _of_file(of, "content", _bytes_digest, settings)

    yield digest([content(path)])
    if _of_file(path, "external", _names_others, settings):
        others = _other_files(model)
        if others:
            yield digest(map(content, [path, *others]))


def _of_file(path: Path, fact: str, derive: Callable[[mmap.mmap], str], settings: Settings) -> str:
    """Return the result of reading a file; it is read again only if it may have changed."""

    def read() -> str:
        with path.open("rb") as opened:
            return derive(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))

    return fact_of(path.stat(), fact, read, settings)


def _names_others(content: mmap.mmap) -> str:
    from intarsia.graph.gguf.container import GGUF_MAGIC

    if content[: len(GGUF_MAGIC)] == GGUF_MAGIC:
        return ""  # whole; "location" is a word of its vocabulary
    return "names others" if content.find(_EXTERNAL_KEY) >= 0 else ""


def _other_files(model: str | os.PathLike[str]) -> list[Path]:
    """Return the files that hold a model's tensors, beside it or where its user says."""
    from intarsia.graph.external import check_external_data, root_of
    from intarsia.graph.read import read_file

    files = check_external_data(read_file(model), Path(model).parent, root_of(model))
    # By the names that the model has for them, as often as it has: links may change places.
    return [files[location] for location in sorted(files)]


def _bytes_digest(content: bytes | mmap.mmap) -> str:
    """Return a digest of the digests of the chunks of some bytes: several at the same time.

    SHA-256, for which CPUs have instructions.
    """
    from concurrent.futures import ThreadPoolExecutor  # a file is hashed once

    view = memoryview(content)
    chunks = [view[at : at + _CHUNK_BYTES] for at in range(0, len(view), _CHUNK_BYTES)]
    with ThreadPoolExecutor(max_workers=available_cpus()) as pool:
        return digest((str(len(view)), *pool.map(_chunk_digest, chunks)))


def _chunk_digest(chunk: memoryview) -> str:
    return hashlib.sha256(chunk).hexdigest()


_DAY_SECONDS = 86_400


def _silently_touch(path: Path) -> None:
    """Note that a file is used, to the day: what is known of it goes by its times."""
    try:
        if time.time() - path.stat().st_mtime > _DAY_SECONDS:
            path.touch()
    except OSError:
        logger.debug("a kept program is gone")
