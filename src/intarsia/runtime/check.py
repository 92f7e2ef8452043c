# SPDX-License-Identifier: Apache-2.0
"""Whether a package works on this machine: read, compared with what is here, and really loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.backends.artifact import first_line, shared_sizes
from intarsia.backends.remote import Away
from intarsia.errors import IntarsiaError, PackageError
from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict, check_runners
from intarsia.plan.identity import Identity, compare_identities, identity_here
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.runtime.loader import RegionLoader, run_options
from intarsia.runtime.package import read_package
from intarsia.runtime.trust import ADVICE, describe_code

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.runtime.package import Package


def check_package(
    path: str | Path,
    backends: Backends,
    num_threads: int | None = None,
    *,
    trust: bool = False,
) -> CheckReport:
    """Say whether a package works here, and what has changed since it was made.

    Nothing is run, but every region is loaded, on its device: only that shows that it can be.

    Args:
        path: The file.
        backends: Those that are installed.
        num_threads: Threads that one run may use; None means the setting.
        trust: Whether its code is loaded whoever wrote it.

    Raises:
        PackageError: There is no such file.
    """
    if not Path(path).is_file():
        raise PackageError(f"there is no file {str(path)!r}")
    threads = backends.settings.threads(num_threads)
    try:
        package = read_package(path)
    except PackageError as error:
        problem = CheckFinding("file", CheckVerdict.INCOMPATIBLE, error.message, error.hint or "")
        return CheckReport.of(str(path), [problem])
    findings = (
        *_contents(package),
        *_environment(package, backends, threads),
        *_free(package),
        *_regions(package, backends, threads, trust=trust),
    )
    return CheckReport.of(str(path), findings)


def _contents(package: Package) -> Iterator[CheckFinding]:
    artifacts = [artifact for _, artifact, _ in package.all_regions]
    nbytes = sum(len(artifact.payload) for artifact in artifacts)
    constants = shared_sizes(artifacts)
    yield CheckFinding("format", CheckVerdict.OK, f"package format {package.version}")
    if package.signer:
        yield CheckFinding("origin", CheckVerdict.OK, f"vouched for by {package.signer}")
    yield CheckFinding(
        "file",
        CheckVerdict.OK,
        f"all checksums are right; regions: {len(artifacts)}, {nbytes} bytes; "
        f"constants: {len(constants)}, {sum(constants)} bytes",
    )
    yield CheckFinding(
        "plan", CheckVerdict.OK, f"its steps fit together: {len(package.plan.steps)}"
    )


def _free(package: Package) -> Iterator[CheckFinding]:
    """Say for which sizes of free dimensions there are programs."""
    if package.free is not None:
        yield CheckFinding("free dimensions", CheckVerdict.OK, package.free.text)
        for line in () if package.free.plans is None else package.free.plans.lines:
            yield CheckFinding("plans by sizes", CheckVerdict.OK, line)


def _environment(package: Package, backends: Backends, threads: int) -> Iterator[CheckFinding]:
    """Compare the environment of a package with this one, if the package records it."""
    then = package.plan.identity
    if then is None:
        yield CheckFinding(
            "environment", CheckVerdict.OK, "an older version made it and did not record one"
        )
        return
    versions = {}
    for name in then.versions.keys() & backends.by_name.keys():
        try:
            versions[name] = backends.by_name[name].version()
        except Exception as error:  # a plug-in may raise anything
            versions[name] = f"none ({first_line(error)})"
    here = identity_here(then.targets, versions, threads)
    now = replace(
        here,
        model=then.model,
        versions={name: here.versions.get(name, "none") for name in then.versions},
        constraints=then.constraints,
        devices=then.devices,
    )
    yield from _changes(then, now, is_measured=package.plan.tuning is not None)


def _changes(then: Identity, now: Identity, *, is_measured: bool) -> Iterator[CheckFinding]:
    changes = compare_identities(then, now)
    for change in changes:
        text = f"{change.before or 'none'} -> {change.now or 'none'}"
        hint = "its costs were measured there: run `intarsia tune` here" if is_measured else ""
        yield CheckFinding(change.what, CheckVerdict.CHANGED, text, hint)
    if not changes:
        yield CheckFinding(
            "environment", CheckVerdict.OK, "versions, machine and threads have not changed"
        )


def _regions(
    package: Package, backends: Backends, threads: int, *, trust: bool
) -> Iterator[CheckFinding]:
    """Load every region; the first that fails on a backend and device stands for the others."""
    names = sorted({artifact.backend for _, artifact, _ in package.all_regions})
    used = [backends.by_name[name] for name in names if name in backends.by_name]
    loader = RegionLoader(backends, run_options(threads, used, is_shared=package.plan.is_mixed))
    loaded: dict[tuple[str, str], int] = {}
    failed: set[tuple[str, str]] = set()
    runners: list[str] = []
    regions = package.all_regions
    if not package.signer and not trust:
        code = describe_code((artifact for _, artifact, _ in regions), backends)
        regions = tuple(one for one in regions if not describe_code([one[1]], backends))
        if code:
            yield CheckFinding(
                "code",
                CheckVerdict.CHANGED,
                f"nobody vouches for it: regions {code} are compiled again when it is loaded",
                ADVICE,
            )
    for number, artifact, device in regions:
        place = (artifact.backend, device)
        if place in failed or artifact.backend == CONTROL_FLOW:
            continue
        try:
            executable = loader.load(artifact, device)
        except IntarsiaError as error:
            failed.add(place)
            where = f"region {number} on {artifact.target}, {device}"
            yield CheckFinding(where, CheckVerdict.INCOMPATIBLE, error.message, error.hint or "")
            continue
        loaded[place] = loaded.get(place, 0) + 1
        if isinstance(executable, Away):
            runners.append(executable.runner)
    for (backend, device), count in loaded.items():
        if (backend, device) not in failed:
            yield CheckFinding(backend, CheckVerdict.OK, f"regions loaded on {device}: {count}")
    yield from check_runners(runners)
