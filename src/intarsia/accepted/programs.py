# SPDX-License-Identifier: Apache-2.0
"""Programs that were compiled, kept among the caches: the same request later costs one look-up.

Compiling would read the model, ask every backend what it takes and compile the plan. Nothing of
that changes while the model, what was said about it, the machine and all code are the same; so the
program is kept as a package under a digest of these. Where the cost database decides which plan is
meant, it is used only while the database still says so; and always after every byte was checked.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from intarsia.accepted.installed import installation_digest, is_ours, recall, remember
from intarsia.backends.artifact import shared_sizes
from intarsia.cache import make_cache_folder, write_entry
from intarsia.cost.key import digest
from intarsia.cost.records import PlanVerdict, VerdictKey
from intarsia.cost.storage import has_database
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    IntarsiaError,
    PackageError,
    ReasonCode,
    SettingError,
    TargetError,
)
from intarsia.files import whole_file
from intarsia.native.entries import prune
from intarsia.place.machine import Machine
from intarsia.place.request import BY_COST, Request
from intarsia.runtime.package import PACKAGE_SUFFIX, load_regions, read_package, save_package
from intarsia.settings import Settings, available_cpus
from intarsia.target import CompilationConfig
from intarsia.target.tags import given_names

if TYPE_CHECKING:
    from intarsia.plan.placement import Placement
    from intarsia.plan.plan import Plan
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.package import Package

logger = logging.getLogger(__name__)

FOLDER_NAME = "programs"
"""Inside the folder of all caches."""

LIMIT_BYTES = 4 << 30
"""Of all programs together; beyond it those go that were not used for longest."""

_MOST_PART = 4
"""A program that takes more than this part of the limit, or of the free disk, is not kept."""

_CHUNK_BYTES = 8 << 20

_SETTLED_SECONDS = 2.0
"""A file that was written to no later than this before it was read would show another change."""

_EXTERNAL_KEY = b"location"
"""Every reference to a file beside the model has this key, in any encoding."""

FoundT = TypeVar("FoundT")

Warned = tuple[tuple[str, str], ...]
"""What was warned of: the logger's name and the message."""


class _Record(msgspec.Struct, frozen=True):
    """What is kept beside a package.

    Attributes:
        key: What the database was asked for; None: there was none, or it does not matter.
        warnings: Of compiling; they are given again.
    """

    key: VerdictKey | None = None
    warnings: Warned = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A program that was kept, read and checked; nothing is loaded yet.

    Attributes:
        file: The package.
        package: What is in it.
        warnings: What was warned of when it was compiled.
    """

    file: Path
    package: Package
    warnings: Warned = ()

    def load(self, request: Request) -> PlanExecutable:
        """Return the program, and warn again of what was warned of when it was compiled.

        Args:
            request: What is asked for: its backends load the regions, or those that are needed.

        Raises:
            BackendError: A backend refused its artifact, or is not there.
        """
        backends = request.backends
        if backends is None:
            from intarsia.runtime.loading import backends_for

            backends = backends_for(self.package, request.settings)
        backends = backends.with_settings(request.settings)
        executable = load_regions(self.package, backends, request.threads)
        for name, message in self.warnings:
            logging.getLogger(name).warning("%s", message)
        return executable

    def copy(self, path: Path) -> bool:
        """Write the package to a file, which appears whole or not at all.

        Returns:
            Whether it is written: another process may have removed what was kept.

        Raises:
            PackageError: It cannot be written.
        """
        return copy_package(self.file, path)

    def remove(self) -> None:
        """Remove the program, if it is still there."""
        _remove(self.file)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the program of one request is kept.

    Attributes:
        settings: Say where the caches and the cost database are.
        name: Digest of the request.
        name_now: Returns the same for the request as it is then: files may have changed.
        is_by_cost: Whether the cost database decides which plan is meant.
    """

    settings: Settings = field(repr=False)
    name: str
    name_now: Callable[[], str | None] = field(compare=False, repr=False)
    is_by_cost: bool = True

    @property
    def folder(self) -> Path:
        """The folder of all caches."""
        return self.settings.cache_folder()

    @property
    def file(self) -> Path:
        """The package."""
        return _package(self.folder, self.name)

    @property
    def record(self) -> Path:
        """The file that says what the package carries out."""
        return _record_of(self.file)

    def find(self, costs: str | None = None, *, is_accepted: bool = False) -> Kept | None:
        """Return the program of the plan that is meant now; None if it was not kept.

        What is damaged is removed.

        Args:
            costs: The database; None means what the settings say.
            is_accepted: Whether only the program of an accepted plan will do.
        """
        try:
            record = msgspec.json.decode(self.record.read_bytes(), type=_Record)
            if not self.file.is_file():
                return None
            verdict = self._verdict(record.key, costs)
            if is_accepted and verdict is None:
                return None
            package = read_package(self.file)
        except (OSError, msgspec.MsgspecError, CostDatabaseError, _UnknownError):
            return None
        except PackageError as error:
            logger.info("a kept program is compiled again: %s", error.message)
            _remove(self.file)
            return None
        if not _carries_out(package.plan, verdict):
            return None
        for path in (self.file, self.record):  # what was used last is removed last
            _silently_touch(path)
        if is_accepted and package.plan.tuning is not None:
            report = replace(package.plan.tuning, is_reused=True)
            package = replace(package, plan=replace(package.plan, tuning=report))
        return Kept(self.file, package, record.warnings)

    def _verdict(self, key: VerdictKey | None, costs: str | None) -> PlanVerdict | None:
        """Return the plan that is accepted for a key.

        Raises:
            CostDatabaseError: Who needs the database says what is wrong with it.
            _UnknownError: There is a database now, and nobody knows what to ask it for.
        """
        if not (self.is_by_cost and has_database(costs, self.settings)):
            return None
        if key is None:
            raise _UnknownError
        from intarsia.cost.direct import find_verdict

        return find_verdict(key, costs, self.settings)

    def keep(
        self,
        executable: PlanExecutable,
        key: VerdictKey | None,
        verdict: PlanVerdict | None,
        warnings: Warned | None = None,
    ) -> bool:
        """Keep a program, if there is room; return whether it is kept.

        Args:
            executable: What was built of the plan, or in its stead.
            key: What the plan was looked for under; None without a database.
            verdict: The plan that was accepted; None if none was.
            warnings: What was warned of while it was compiled; None means its shortfall alone.
        """
        plan = executable.plan
        if not _carries_out(plan, verdict) or _has_failed(plan.placement):
            return False
        if warnings is None:
            shortfall = plan.placement.shortfall
            warnings = (("intarsia", shortfall),) if shortfall is not None else ()
        nbytes = sum(shared_sizes(executable.artifacts))
        try:
            make_cache_folder(self.folder)
            self.file.parent.mkdir(exist_ok=True)
            if _MOST_PART * nbytes > min(LIMIT_BYTES, shutil.disk_usage(self.folder).free):
                logger.info("the program is not kept: %d bytes", nbytes)
                return False
            if self.name_now() != self.name:  # what was read may be another model
                logger.info("the program is not kept: its model file has changed meanwhile")
                return False
            self.record.unlink(missing_ok=True)  # of a program that is about to be another
            save_package(executable, self.file)
            write_entry(self.record, msgspec.json.encode(_Record(key, warnings)))
            prune(self.file.parent, LIMIT_BYTES)
        except (OSError, PackageError, SettingError) as error:
            logger.info("the program is not kept: %s", error)
            return False
        return self.file.is_file()


class _UnknownError(Exception):
    """It cannot be told which plan is meant."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found of a request: its program; or else what is to make it, and where it is kept.

    Attributes:
        program: It was compiled before.
        slot: Where the program is, or will be kept; None if it is not kept.
        known_machine: What it is for; None if that was not needed.
    """

    program: PlanExecutable | None
    slot: Slot | None
    known_machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The machine, where no program was found."""
        assert self.known_machine is not None
        return self.known_machine


def look_up(request: Request) -> Lookup:
    """Look for the program of a request: as things were when it was made, then as they are.

    Raises:
        TargetError: The description of the machine is wrong, or nothing was found.
    """
    if not request.is_kept:
        return Lookup(None, None, request.find_machine())
    config, recalled = None, None
    if request.backends is None:
        try:
            config = request.given_config()
            recalled = recalled_slot(request, config)
        except TargetError:  # backends may bring the kind
            recalled = None
        program = None if recalled is None else _load(request, recalled)
        if program is not None:
            return Lookup(program, recalled)
    machine = request.find_machine(config)
    slot = program_slot(request, machine)
    program = None if slot is None or slot == recalled else _load(request, slot)
    return Lookup(program, slot, machine)


def _load(request: Request, slot: Slot) -> PlanExecutable | None:
    """Return the program in a slot, if it is what is asked for and can be loaded."""
    if request.is_resumed:
        return None
    kept = slot.find(request.costs, is_accepted=request.placement == "collage")
    if kept is None:
        return None
    try:
        program = kept.load(request)
    except (BackendError, PackageError) as error:  # a driver may be gone since
        logger.info("a kept program is compiled again: %s", error.message)
        kept.remove()
        return None
    logger.info("the program was compiled before: %s", kept.file)
    return program


def recalled_slot(request: Request, config: CompilationConfig | None) -> Slot | None:
    """Return where the program of a request is kept, if nothing changed since one was made.

    No backend is asked and no library loaded; what is remembered may at worst name a slot that
    nobody uses.

    Args:
        request: What is asked for.
        config: The machine; None means what is found here.
    """
    key = _memory_key(request, config)
    here = None if key is None else recall(key, request.settings)
    return None if here is None else _slot(request, lambda: here)


def program_slot(request: Request, machine: Machine) -> Slot | None:
    """Return where the program of a request is kept; None if it cannot be told from others.

    It is told by all that decides it: the bytes of the model and of the files that it names, what
    was said of it and what the user's names mean, the machine, the versions and sources of all
    code, and the settings that count.
    Models in memory as objects are not kept, nor are programs of backends that are not ours.
    """

    def here_now() -> str | None:
        return installation_digest(machine.config, machine.backends, request.threads)

    slot = _slot(request, here_now)
    if slot is not None and request.backends is None:
        is_given = request.given_machine is not None
        key = _memory_key(request, machine.config if is_given else None)
        here = here_now()
        is_known = is_given or all(map(is_ours, machine.backends.by_name.values()))
        if key is not None and here is not None and is_known:
            remember(key, here, request.settings)
    return slot


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

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard = _Heard()

    def emit(self, record: logging.LogRecord) -> None:
        for messages in self.heard.by_caller:
            messages.append((record.name, record.getMessage()))
        is_alone = all(each is self for each in _handlers(logging.getLogger(record.name)))
        if is_alone and logging.lastResort is not None:  # which writes where no handler is
            logging.lastResort.handle(record)


class _Heard(threading.local):
    """What this thread was told, once for each caller that listens."""

    def __init__(self) -> None:
        self.by_caller: list[list[tuple[str, str]]] = []


_listener = _Listener()


def _handlers(source: logging.Logger | None) -> Iterator[logging.Handler]:
    """Yield the handlers that are given what a logger is told."""
    while source is not None:
        yield from source.handlers
        source = source.parent if source.propagate else None


@contextmanager
def listening() -> Iterator[list[tuple[str, str]]]:
    """Collect what is warned of in this thread meanwhile: the logger's name and the message."""
    logging.getLogger("intarsia").addHandler(_listener)  # which does nothing if it is there
    found: list[tuple[str, str]] = []
    _listener.heard.by_caller.append(found)
    try:
        yield found
    finally:
        _listener.heard.by_caller.pop()


def _slot(request: Request, here_now: Callable[[], str | None]) -> Slot | None:
    settings = request.settings
    if settings.dump_dir or not isinstance(request.model, str | os.PathLike | bytes):
        return None

    def name_now() -> str | None:
        return _name_of(request, here_now(), settings.cache_folder())

    name = name_now()
    is_by_cost = request.way == BY_COST
    return None if name is None else Slot(settings, name, name_now, is_by_cost)


def _name_of(request: Request, here: str | None, folder: Path) -> str | None:
    """Return the digest of a request; None if something of it cannot be told."""
    if here is None:
        return None
    parts = (
        _plain((request.shapes, request.pins, request.exclude, request.layers)),
        str(request.threads),
        request.objective,
        request.way,
        str(request.strict),
        str(request.probe),
    )
    name = None
    try:
        names = _plain([given_names()])
        for content in _contents(request.model):
            name = digest(("program", content, *parts, names, here))
            if _package(folder, name).is_file():
                break
    except (IntarsiaError, OSError, ValueError):  # where it is needed, the error says what is wrong
        return None
    return name


def _package(folder: Path, name: str) -> Path:
    return folder / FOLDER_NAME / f"{name}{PACKAGE_SUFFIX}"


def _memory_key(request: Request, config: CompilationConfig | None) -> str | None:
    """Return what is remembered of a machine that was given, or is to be found here."""
    try:
        names = _plain([given_names()])
    except IntarsiaError:
        return None
    threads = str(request.threads)
    if config is None:
        return digest(("detected", str(request.host), _plain([request.attributes]), names, threads))
    text = _plain([config.to_json(), config.reasons.is_detected])
    return digest(("given", text, names, threads))


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
        raise PackageError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return True


def _carries_out(plan: Plan, verdict: PlanVerdict | None) -> bool:
    """Tell whether a plan is the accepted one, or none was accepted and it follows no cost."""
    if verdict is None or plan.tuning is None:
        return verdict is None and plan.tuning is None
    return _regions(plan.placement) == _accepted_regions(verdict)


def _has_failed(placement: Placement) -> bool:
    """Tell whether something failed that may not fail again."""
    codes = {ReasonCode.COMPILE_FAILED, ReasonCode.CRASHED, ReasonCode.TIMEOUT}
    return any(refusal.code in codes for refusal in placement.refusals)


def _regions(placement: Placement) -> Counter[tuple[str, frozenset[str]]]:
    return Counter(
        (region.target, frozenset(node.name for node in region.nodes))
        for region in placement.regions
    )


def _accepted_regions(verdict: PlanVerdict) -> Counter[tuple[str, frozenset[str]]]:
    return Counter((region.target, frozenset(region.nodes)) for region in verdict.regions)


def _plain(said: Sequence[Any]) -> str:
    """Return what was said as text that is equal for equal values; order counts, as with pins."""
    items = [list(one.items()) if isinstance(one, Mapping) else one for one in said]
    return msgspec.json.encode([one or None for one in items], enc_hook=str).decode()


def _contents(model: bytes | str | os.PathLike[str]) -> Iterator[str]:
    """Yield the digest of a model alone and, if it names other files, of it and of these.

    Nothing is kept for the first of two. So where something is kept, nobody need look through the
    model for names, which takes as long as its digest.
    """
    if isinstance(model, bytes):
        yield _bytes_digest(model)
        return
    path = Path(model)
    own = _of_file(path, _bytes_digest, _digests)
    yield digest([own])
    others = _other_files(path) if _of_file(path, _names_others, _naming) else []
    if others:
        yield digest([own, *(_of_file(each, _bytes_digest, _digests) for each in others)])


_Status: TypeAlias = tuple[int, ...]
"""Of a file, all that changes when it is written to."""

_digests: dict[_Status, str] = {}
_naming: dict[_Status, bool] = {}
"""Which files may name others."""


def _of_file(
    path: Path, find: Callable[[mmap.mmap], FoundT], known: dict[_Status, FoundT]
) -> FoundT:
    """Return what follows from a file's bytes; it is read again only if it may have changed."""
    status = path.stat()
    written = (status.st_mtime_ns, status.st_ctime_ns)
    key = (status.st_dev, status.st_ino, status.st_size, *written)
    if key in known:
        return known[key]
    is_settled = time.time() - max(written) / 1e9 > _SETTLED_SECONDS
    found = find(_mapped(path))
    if is_settled:
        known[key] = found
    return found


def _names_others(content: mmap.mmap) -> bool:
    return content.find(_EXTERNAL_KEY) >= 0


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _other_files(path: Path) -> list[Path]:
    """Return the files beside a model that hold its tensors."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo

    from intarsia.graph.external import check_external_data
    from intarsia.graph.read import read_file
    from intarsia.graph.tensors import all_tensors

    proto = read_file(path)
    check_external_data(proto, path.parent)  # none leaves the folder
    return sorted(
        {
            path.parent / ExternalDataInfo(tensor).location
            for tensor in all_tensors(proto)
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        }
    )


def _bytes_digest(content: bytes | mmap.mmap) -> str:
    """Return a digest of the digests of the chunks of some bytes: several at the same time.

    SHA-256, for which CPUs have instructions.
    """
    view = memoryview(content)
    chunks = [view[at : at + _CHUNK_BYTES] for at in range(0, len(view), _CHUNK_BYTES)]
    with ThreadPoolExecutor(max_workers=available_cpus()) as pool:
        return digest((str(len(view)), *pool.map(_chunk_digest, chunks)))


def _chunk_digest(chunk: memoryview) -> str:
    return hashlib.sha256(chunk).hexdigest()


def _silently_touch(path: Path) -> None:
    try:
        path.touch()
    except OSError:
        logger.debug("a kept program is gone")
