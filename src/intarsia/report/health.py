# SPDX-License-Identifier: Apache-2.0
"""The health of this installation: each backend, its problems, and remedies."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distributions,
    entry_points,
    requires,
    version,
)
from pathlib import PurePath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.entries import GROUP
from intarsia.backends.registry import Backends
from intarsia.cache import CacheInfo, cache_info
from intarsia.cost.machine import TESTED_SYSTEMS, ProcessorFacts, find_cpu
from intarsia.cpus import available_cpus, quota_cpus
from intarsia.errors import BackendError, TargetError
from intarsia.report.targets import COMPOSITE
from intarsia.settings import Settings
from intarsia.target import get_kind, list_kinds
from intarsia.target.labels import list_labels

_LIBRARY = re.compile(r"([\w.+-]+\.(?:so(?:\.\d+)*|dylib|dll))\b")
_MODULE = re.compile(r"No module named '([\w.]+)'")


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """Whether a backend can be used here.

    Attributes:
        name: Its name.
        kinds: The target kinds that it serves.
        is_complete: Whether one of them can run whole models.
        is_hidden: Whether it is for tests and debugging only.
        version: Of what runs the code; None if that cannot be found out.
        is_usable: Whether it found a device.
        targets: What it found, as text.
        devices: The run-time devices of those, each with its name where a backend tells it.
        reason: Why it cannot be used.
        missing: The package, library or file that it lacks, where that is known.
        fix: What to do about it.
        notes: What it says of itself: the file that is used and why, for one.
    """

    name: str
    kinds: tuple[str, ...]
    is_complete: bool
    is_hidden: bool
    version: str | None
    is_usable: bool
    targets: tuple[str, ...]
    devices: tuple[str, ...]
    reason: str = ""
    missing: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()


def check_backends(backends: Backends) -> tuple[BackendHealth, ...]:
    """Return whether each backend can be used here, those that failed to load first."""
    return (*_broken(backends), *map(backend_health, backends.by_name.values()))


def backend_health(backend: RegisteredBackend) -> BackendHealth:
    """Return whether a backend can be used here; whatever it raises is an answer."""
    kinds = backend.kind_names
    target_kinds = [get_kind(kind) for kind in kinds]
    is_complete = any(kind.is_complete for kind in target_kinds)
    is_hidden = all(kind.is_hidden for kind in target_kinds)
    number, reason, missing, fix = None, "", "", ""
    try:
        number = backend.version()
    except Exception as error:  # a plug-in may raise anything
        reason = error.message if isinstance(error, BackendError) else str(error)
        missing, fix = _missing(error)
        fix = fix or getattr(error, "hint", None) or "reinstall the package that provides it"
    detection = backend.detect()
    if not reason and not detection.targets:
        reason = detection.reason or "it found no device"
        missing, fix = _missing_in(reason)
        fix = detection.hint or fix or "see the runtime's own documentation"
    devices = detection.devices or tuple(
        dict.fromkeys(f"{target.device_type.name.lower()}:0" for target in detection.targets)
    )
    return BackendHealth(
        backend.name,
        kinds,
        is_complete,
        is_hidden,
        number,
        is_usable=not reason,
        targets=tuple(map(str, detection.targets)),
        devices=devices,
        reason=reason,
        missing=missing,
        fix=fix,
        notes=() if reason else _notes(backend),
    )


def _notes(backend: RegisteredBackend) -> tuple[str, ...]:
    try:
        return () if backend.notes is None else tuple(backend.notes())
    except Exception as error:  # a plug-in may raise anything
        return (f"it cannot describe itself: {error}",)


def _broken(backends: Backends) -> Iterator[BackendHealth]:
    owners = {
        entry.name: entry.dist.metadata["Name"] if entry.dist is not None else entry.value
        for entry in entry_points(group=GROUP)
    }
    for name, reason in backends.broken.items():
        missing, fix = _missing_in(reason)
        fix = fix or f"pip install --force-reinstall {owners.get(name, name)}, or uninstall it"
        why = f"its plug-in failed to load: {reason}"
        kinds = (name,) if name in list_kinds(True) else ()
        is_complete = any(get_kind(kind).is_complete for kind in kinds)
        yield BackendHealth(name, kinds, is_complete, False, None, False, (), (), why, missing, fix)


def _missing(error: BaseException) -> tuple[str, str]:
    """Return what an error or one of its causes says is missing, and the command for it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, FileNotFoundError) and link.filename:
            return f"file {link.filename}", ""
        missing, fix = _missing_in(getattr(link, "message", str(link)))  # without its hint
        if missing:
            hint = getattr(error, "hint", None)
            is_known = link is error or missing.startswith("package")  # the backend knows better
            return missing, (hint or fix) if is_known else fix
        link = link.__cause__
    return "", ""


def _missing_in(text: str) -> tuple[str, str]:
    module = _MODULE.search(text)
    if module is not None:
        name = module[1].partition(".")[0]
        return f"package {name}", f"pip install {name}"
    library = _LIBRARY.search(text)
    if library is not None:
        return f"library {library[1]}", (
            f"install the system package that has {library[1]} (apt-file search {library[1]})"
        )
    return "", ""


PACKAGES = ("intarsia", "onnx", "onnx-ir", "onnxscript", "numpy")
"""Distributions whose versions every report of a problem should state."""
TESTED_PYTHONS = ("3.11",)
TESTED_ARCHITECTURES = ("x86_64",)


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """Where the number of threads comes from.

    Attributes:
        usable_cpus: CPUs that the scheduler lets this process run on.
        quota_cpus: CPUs' worth of time that the control groups grant; None without a limit.
        omp_num_threads: `OMP_NUM_THREADS`, which we do not obey; None if it is not set.
        setting: `INTARSIA_NUM_THREADS`; 0 means all usable CPUs.
        used: Threads that one run would use.
    """

    usable_cpus: int
    quota_cpus: float | None
    omp_num_threads: str | None
    setting: int
    used: int


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting, its value, and what it comes from."""

    name: str
    variable: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """One thing that is wrong or in the way, and what to do about it."""

    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that `intarsia doctor` says.

    Attributes:
        is_usable: Whether a complete backend is usable, those for tests left aside.
        versions: Of Python and of the packages that everything rests on; None if not installed.
        platform: The operating system, its release and architecture.
        cpu: The CPU.
        threads: Where the number of threads comes from.
        backends: Every backend that is installed or failed to load.
        unserved: Target kinds that no installed backend serves.
        cache: The caches.
        settings: Every setting.
        problems: What to do something about.
    """

    is_usable: bool
    versions: dict[str, str | None]
    platform: str
    cpu: ProcessorFacts
    threads: ThreadFacts
    backends: tuple[BackendHealth, ...]
    unserved: tuple[str, ...]
    cache: CacheInfo
    settings: tuple[SettingRow, ...]
    problems: tuple[HealthProblem, ...]


def diagnose(backends: Backends, settings: Settings) -> Diagnosis:
    """Look at the installation and the machine; nothing is changed but the caches: self-tests.

    Args:
        backends: The backends, those that failed to load among them.
        settings: Those of this process.
    """
    health = check_backends(backends)
    threads = _threads(settings)
    cache = cache_info(settings.cache_folder())
    is_usable = any(row.is_usable and row.is_complete and not row.is_hidden for row in health)
    served = frozenset(kind for row in health for kind in row.kinds)
    return Diagnosis(
        is_usable=is_usable,
        versions={"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=find_cpu(),
        threads=threads,
        backends=health,
        unserved=tuple(kind for kind in list_kinds() if kind not in served and kind != COMPOSITE),
        cache=cache,
        settings=tuple(_settings(settings)),
        problems=(
            *_backend_problems(health, is_usable=is_usable),
            *(HealthProblem(clash.problem, clash.fix) for clash in find_clashes()),
            *thread_problems(threads),
            *_cache_problems(cache),
            *_target_file_problems(),
            *platform_problems(platform.system(), platform.machine(), platform.python_version()),
        ),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _threads(settings: Settings) -> ThreadFacts:
    quota = quota_cpus()
    return ThreadFacts(
        available_cpus(),
        None if quota == float("inf") else quota,
        os.environ.get("OMP_NUM_THREADS"),  # noqa: TID251 - shown, not obeyed
        settings.num_threads,
        settings.threads(),
    )


def thread_problems(threads: ThreadFacts) -> Iterator[HealthProblem]:
    """Yield what makes runs slower than they need be."""
    if threads.used > threads.usable_cpus:
        yield HealthProblem(
            f"{threads.used} threads would share {threads.usable_cpus} CPUs",
            "unset INTARSIA_NUM_THREADS",
        )
    elif threads.quota_cpus is not None and threads.quota_cpus < threads.used:
        yield HealthProblem(
            f"{threads.used} threads would share the time of {threads.quota_cpus:g} CPUs "
            "(control group limit)",
            f"set INTARSIA_NUM_THREADS={max(1, int(threads.quota_cpus))}",
        )
    if threads.omp_num_threads not in (None, str(threads.used)):
        yield HealthProblem(
            f"OMP_NUM_THREADS={threads.omp_num_threads} is ignored: "
            f"a run would use {threads.used} threads",
            f"set INTARSIA_NUM_THREADS={threads.omp_num_threads}, or unset OMP_NUM_THREADS",
        )


def _settings(settings: Settings) -> Iterator[SettingRow]:
    for spec in fields(settings):
        variable = spec.metadata["variable"]
        is_set = bool(os.environ.get(variable, "").strip())  # noqa: TID251 - where it comes from
        value, source = getattr(settings, spec.name), variable if is_set else "default"
        if spec.name == "cache_dir" and not is_set:
            value = settings.cache_folder()
            if os.environ.get("XDG_CACHE_HOME"):  # noqa: TID251 - where it comes from
                source = "XDG_CACHE_HOME"
        text = os.pathsep.join(value) if isinstance(value, tuple) else str(value)
        yield SettingRow(spec.name, variable, text, source)


def _backend_problems(
    health: tuple[BackendHealth, ...], *, is_usable: bool
) -> Iterator[HealthProblem]:
    for row in health:
        if not row.is_usable:
            lack = f" (missing: {row.missing})" if row.missing else ""
            yield HealthProblem(f"backend {row.name} cannot be used: {row.reason}{lack}", row.fix)
    if not is_usable:
        yield HealthProblem(
            "no backend here can run a whole model", "pip install 'intarsia[onnxruntime]'"
        )


def _cache_problems(cache: CacheInfo) -> Iterator[HealthProblem]:
    if not cache.is_writable:
        yield HealthProblem(
            f"the cache folder {cache.folder} cannot be written: {cache.obstacle}; "
            "nothing is kept, and everything is compiled and tried again each time",
            "set INTARSIA_CACHE_DIR to a folder of yours",
        )


def _target_file_problems() -> Iterator[HealthProblem]:
    try:
        list_labels()
    except TargetError as error:
        yield HealthProblem(error.message, error.hint or "correct the file, or leave it out")


def platform_problems(system: str, architecture: str, python: str) -> Iterator[HealthProblem]:
    """Yield what is not covered by our tests."""
    fix = "run the tests (make test) before you rely on it; see docs/platforms.md"
    short = ".".join(python.split(".")[:2])
    if system not in TESTED_SYSTEMS:
        name = {"Darwin": "macOS"}.get(system, system)
        yield HealthProblem(f"untested platform: {name}", fix)
    elif architecture not in TESTED_ARCHITECTURES:
        yield HealthProblem(f"untested platform: {system} on {architecture}", fix)
    if short not in TESTED_PYTHONS:
        yield HealthProblem(f"untested version of Python: {short}", fix)


@dataclass(frozen=True, slots=True)
class Clash:
    """Distributions that do not fit together, and what to do about it."""

    problem: str
    fix: str


@cache
def _runtimes() -> frozenset[str]:
    """Return the distributions that Intarsia's backends need, with names as Python imports them.

    Each may come from several distributions, as `onnxruntime-gpu`, which overwrite one another.
    """
    extras = [{"extra": entry.name} for entry in entry_points(group=GROUP)]
    optional = [
        each for each in map(Requirement, requires("intarsia") or ()) if "extra" in str(each.marker)
    ]
    return frozenset(
        canonicalize_name(each.name)
        for each in optional
        if each.marker is not None and any(map(each.marker.evaluate, extras))
    )


def find_clashes(path: Sequence[str] | None = None) -> tuple[Clash, ...]:
    """Return what does not fit together among the installed distributions.

    Args:
        path: Folders to look in; None means those that Python imports from.
    """
    found = distributions() if path is None else distributions(path=list(path))
    installed = [_Installed.read(dist) for dist in found]
    relevant = [dist for dist in installed if _is_relevant(dist.name)]
    return (*_doubles(relevant), *_overlaps(relevant), *_unmet(relevant, installed))


@dataclass(frozen=True, slots=True)
class _Installed:
    """An installed distribution; a `Distribution` parses its metadata anew for each question."""

    name: str
    version: str
    dist: Distribution

    @classmethod
    def read(cls, dist: Distribution) -> _Installed:
        metadata = dist.metadata
        return cls(canonicalize_name(metadata["Name"] or ""), metadata["Version"], dist)


def _is_relevant(name: str) -> bool:
    runtimes = _runtimes()
    return name in (*PACKAGES, *runtimes) or name.startswith(
        tuple(f"{runtime}-" for runtime in runtimes)
    )


def _doubles(dists: Iterable[_Installed]) -> list[Clash]:
    versions: dict[str, dict[str, None]] = {}
    for dist in dists:
        versions.setdefault(dist.name, {})[dist.version] = None
    return [
        Clash(
            f"{name} is installed {len(several)} times: {', '.join(several)}",
            f"pip uninstall -y {name} until it is gone, then pip install {name}",
        )
        for name, several in versions.items()
        if len(several) > 1
    ]


def _overlaps(dists: Iterable[_Installed]) -> list[Clash]:
    """Return the runtimes whose files two distributions claim."""
    runtimes = _runtimes()
    owners: dict[str, dict[str, set[PurePath]]] = {}
    for dist in dists:
        for file in dist.dist.files or ():
            if file.parts[0] in runtimes:
                files = owners.setdefault(file.parts[0], {}).setdefault(dist.name, set())
                files.add(PurePath(file))
    clashes = []
    for runtime, by_name in sorted(owners.items()):
        names = [
            name
            for name, files in sorted(by_name.items())
            if any(other != name and files & theirs for other, theirs in by_name.items())
        ]
        if names:
            clashes.append(
                Clash(
                    f"{' and '.join(names)} overwrite one another's files in {runtime}/",
                    f"pip uninstall -y {' '.join(names)}, then pip install only one of them",
                )
            )
    return clashes


def _unmet(dists: Iterable[_Installed], installed: Iterable[_Installed]) -> list[Clash]:
    """Return the requirements that no installed version meets."""
    versions = {dist.name: dist.version for dist in installed}
    clashes = []
    for dist in dists:
        for text in dist.dist.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:  # a stranger's metadata may say anything
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = versions.get(canonicalize_name(requirement.name))
            if version is not None and requirement.specifier.contains(version, prereleases=True):
                continue
            needs = f"{dist.name} {dist.version} needs {requirement.name}{requirement.specifier}"
            state = f"{version} is installed" if version else "it is not installed"
            clashes.append(
                Clash(
                    f"{needs}, and {state}",
                    f"pip install '{requirement.name}{requirement.specifier}'",
                )
            )
    return clashes
