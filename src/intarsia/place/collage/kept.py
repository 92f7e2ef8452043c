# SPDX-License-Identifier: Apache-2.0
"""Programs of accepted plans, kept among the caches: the same request later costs one look-up.

Tuning that finds an accepted plan would still read the model, ask every backend what it takes and
compile the plan. Nothing of that changes while the model, what was said about it, the machine and
all code are the same; so the program is kept as a package under a digest of these. It is used only
while the cost database still has the verdict that it carries out, and after every byte was checked.

Light: a start that finds its program imports neither onnx nor a search.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import msgspec

from intarsia.backends.artifact import shared_sizes
from intarsia.backends.sources import code_version
from intarsia.cache import make_cache_folder, write_entry
from intarsia.codegen.entries import prune
from intarsia.codegen.sources import source_digest
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import digest
from intarsia.cost.records import Verdict, VerdictKey
from intarsia.cost.storage import has_database
from intarsia.errors import CostDatabaseError, IntarsiaError, PackageError, SettingError
from intarsia.place.capability import make_contexts
from intarsia.runtime.package import PACKAGE_SUFFIX, load_regions, read_package, save_package
from intarsia.settings import Settings, available_cpus
from intarsia.target.tags import given_names

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.plan.placement import Placement
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.package import Package
    from intarsia.target import CompilationConfig

logger = logging.getLogger(__name__)

FOLDER_NAME = "programs"
"""Inside the folder of all caches."""

LIMIT_BYTES = 4 << 30
"""Of all programs together; beyond it those go that were not used for longest."""

_MOST_PART = 4
"""A program that takes more than this part of the limit, or of the free disk, is not kept."""

_CHUNK_BYTES = 8 << 20

_SOURCES = tuple(
    f"intarsia.{name}"
    for name in ("backends", "codegen", "graph", "passes", "place", "plan", "runtime", "target")
)
"""What decides how a plan becomes a program."""

_LIBRARIES = ("ml_dtypes", "numpy", "onnx", "onnx_ir")
"""What reads and rewrites models beside our sources."""

_EXTERNAL_KEY = b"location"
"""Every reference to a file beside the model has this key, in any encoding."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A program that was kept, read and checked; nothing is loaded yet.

    Attributes:
        file: The package.
        package: What is in it; its report says that the plan was accepted before.
    """

    file: Path
    package: Package

    def load(self, backends: Backends, num_threads: int) -> PlanExecutable:
        """Return the program.

        Raises:
            BackendError: A backend refused its artifact.
        """
        _warn_of_shortfall(self.package.plan.placement)
        return load_regions(self.package, backends, num_threads)

    def copy(self, path: Path) -> bool:
        """Write the package to a file, which appears whole or not at all.

        Returns:
            Whether it is written: another process may have removed what was kept.

        Raises:
            PackageError: It cannot be written.
        """
        is_copied = copy_package(self.file, path)
        if is_copied:
            _warn_of_shortfall(self.package.plan.placement)
        return is_copied


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the program of one request is kept.

    Attributes:
        folder: The folder of all caches.
        name: Digest of the request.
        name_now: Returns the same for the request as it is then: files may have changed.
    """

    folder: Path
    name: str
    name_now: Callable[[], str | None] = field(compare=False, repr=False)

    @property
    def file(self) -> Path:
        """The package."""
        return self.folder / FOLDER_NAME / f"{self.name}{PACKAGE_SUFFIX}"

    @property
    def record(self) -> Path:
        """The file that says which verdict the package carries out."""
        return self.file.with_suffix(".json")

    def find(self, costs: str | None = None) -> Kept | None:
        """Return the program of the plan that is accepted now; None if it was not kept.

        What is damaged is removed.

        Args:
            costs: The database; None means what the settings say.
        """
        verdict = self._verdict(costs)
        if verdict is None:
            return None
        try:
            package = read_package(self.file)
        except PackageError as error:
            logger.info("a kept program is made anew: %s", error.message)
            self._remove()
            return None
        plan = package.plan
        if plan.tuning is None or _regions(plan.placement) != _accepted_regions(verdict):
            return None
        for path in (self.file, self.record):  # what was used last is removed last
            _silently_touch(path)
        reused = replace(plan, tuning=replace(plan.tuning, is_reused=True))
        return Kept(self.file, replace(package, plan=reused))

    def _verdict(self, costs: str | None) -> Verdict | None:
        try:
            key = msgspec.json.decode(self.record.read_bytes(), type=VerdictKey)
        except (OSError, msgspec.DecodeError):
            return None
        if not self.file.is_file() or not has_database(costs):
            return None
        from intarsia.cost.database import CostDatabase

        try:
            with CostDatabase.open(costs, create=False) as database:
                return database.verdict(key)
        except CostDatabaseError:  # who needs it says what is wrong with it
            return None

    def keep(self, executable: PlanExecutable, key: VerdictKey, verdict: Verdict) -> bool:
        """Keep the program of an accepted plan, if there is room; return whether it is kept.

        Args:
            executable: What was built of the plan, or in its stead.
            key: What the plan was accepted under.
            verdict: The plan.
        """
        plan = executable.plan
        if plan.tuning is None or _regions(plan.placement) != _accepted_regions(verdict):
            return False
        nbytes = sum(shared_sizes(executable.artifacts))
        try:
            make_cache_folder(self.folder)
            self.file.parent.mkdir(exist_ok=True)
            if _MOST_PART * nbytes > min(LIMIT_BYTES, shutil.disk_usage(self.folder).free):
                logger.info("the program of the accepted plan is not kept: %d bytes", nbytes)
                return False
            if self.name_now() != self.name:  # what was read may be another model
                logger.info("the program of the accepted plan is not kept: what it is of changed")
                return False
            self.record.unlink(missing_ok=True)  # of a program that is about to be another
            save_package(executable, self.file)
            write_entry(self.record, msgspec.json.encode(key))
            prune(self.file.parent, LIMIT_BYTES)
        except (OSError, PackageError, SettingError) as error:
            logger.info("the program of the accepted plan is not kept: %s", error)
            return False
        return self.file.is_file()

    def _remove(self) -> None:
        try:
            self.record.unlink(missing_ok=True)
            self.file.unlink(missing_ok=True)
        except OSError:
            logger.debug("a damaged program cannot be removed")


def program_slot(
    model: Any,
    config: CompilationConfig,
    backends: Backends,
    *,
    said: Sequence[Any],
    num_threads: int,
    objective: str,
) -> Slot | None:
    """Return where the program of a request is kept; None if it cannot be told from others.

    It is told by all that decides it: the bytes of the model and of the files that it names, what
    was said of it and what the user's names mean, the machine, the versions and sources of all
    code, and the settings that count.
    Models in memory as objects are not kept, nor are programs of backends that are not ours.

    Args:
        model: A path, or the bytes of a file.
        config: The machine.
        backends: Serve its targets.
        said: Shapes, pins, exclusions, layers; plain values.
        num_threads: Threads that one run may use.
        objective: What is minimised.
    """
    settings = Settings.from_environment()
    if settings.dump_dir or not isinstance(model, str | os.PathLike | bytes):
        return None
    request = (_plain(said), str(num_threads), objective)

    def name_now() -> str | None:
        return _name_of(model, config, backends, num_threads, request)

    name = name_now()
    return None if name is None else Slot(settings.cache_folder(), name, name_now)


def _name_of(
    model: str | os.PathLike[str] | bytes,
    config: CompilationConfig,
    backends: Backends,
    num_threads: int,
    request: Sequence[str],
) -> str | None:
    """Return the digest of a request; None if something of it cannot be told."""
    try:
        contexts = make_contexts(config, num_threads)
        served = [
            (backends.for_target(placed.target), context)
            for placed, context in contexts.items()
            if placed.target is not None
        ]
        if not all(type(backend).__module__.startswith("intarsia.") for backend, _ in served):
            return None
        versions = [code_version(backend, context) for backend, context in served]
        content = _bytes_digest(model) if isinstance(model, bytes) else _file_digest(Path(model))
        names = _plain([given_names()])
    except (IntarsiaError, OSError, ValueError):  # who needs it says what is wrong with it
        return None
    parts = (
        *("program", content, repr(config.to_json()), *request, names),
        *(this_machine().digest, *versions, f"intarsia {version('intarsia')}"),
        source_digest(_SOURCES),
        *(f"{name} {version(name)}" for name in _LIBRARIES),
        *_settings_that_count(Settings.from_environment()),
    )
    return digest(parts)


def copy_package(source: Path, path: Path) -> bool:
    """Copy a package; the file appears whole or not at all.

    Returns:
        Whether it is written: the source may be gone.

    Raises:
        PackageError: It cannot be written.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}.partial")
    try:
        shutil.copyfile(source, draft)
        draft.replace(path)
    except OSError as error:
        if not source.exists():
            return False
        raise PackageError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return True


def _warn_of_shortfall(placement: Placement) -> None:
    if placement.shortfall is not None:
        logging.getLogger("intarsia").warning(placement.shortfall)


def _regions(placement: Placement) -> Counter[tuple[str, frozenset[str]]]:
    return Counter(
        (region.target, frozenset(node.name for node in region.nodes))
        for region in placement.regions
    )


def _accepted_regions(verdict: Verdict) -> Counter[tuple[str, frozenset[str]]]:
    return Counter((region.target, frozenset(region.nodes)) for region in verdict.regions)


def _settings_that_count(settings: Settings) -> Iterator[str]:
    for spec in fields(settings):
        if spec.metadata["in_cache_keys"] and spec.name != "num_threads":  # that is a part already
            yield f"{spec.name}={getattr(settings, spec.name)!r}"


def _plain(said: Sequence[Any]) -> str:
    """Return what was said as text that is equal for equal values; order counts, as with pins."""
    items = [list(one.items()) if isinstance(one, Mapping) else one for one in said]
    return msgspec.json.encode([one or None for one in items], enc_hook=str).decode()


def _file_digest(path: Path) -> str:
    """Return a digest of a model file and of the files that it names."""
    content = _mapped(path)
    others = _other_files(path) if content.find(_EXTERNAL_KEY) >= 0 else []
    return digest((_bytes_digest(content), *(_bytes_digest(_mapped(one)) for one in others)))


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
