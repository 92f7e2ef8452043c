# SPDX-License-Identifier: Apache-2.0
"""From a package to a program; only what it needs is imported, as a start is mostly imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import PackageError
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.runtime.free import FreeExecutable, GenericProgram
from intarsia.runtime.loader import SharedConstants
from intarsia.runtime.package import load_regions, read_package
from intarsia.runtime.trust import check_targets, describe_code, refuse_code
from intarsia.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from intarsia.runtime.free import Program, ProgramSource
    from intarsia.runtime.package import FreePart, Package

    FindSource: TypeAlias = Callable[
        [FreePart, int, Backends | None, SharedConstants], ProgramSource | None
    ]
    """From what a package has, threads, given backends and shared constants to what compiles."""

    Rebuild: TypeAlias = Callable[[str, Package, str, int, int, Backends | None], Program]
    """From a file's name, its package, what of it is code, threads, most programs and given
    backends to what was compiled of its model."""


def load(  # noqa: PLR0913 - as `intarsia.load`
    path: str | Path,
    *,
    num_threads: int | None = None,
    backends: Backends | None = None,
    max_shapes: int | None = None,
    find_source: FindSource | None = None,
    rebuild: Rebuild | None = None,
    trust: bool = False,
    require_signature: bool = False,
    isolate: Collection[str] = (),
) -> Program:
    """Load a package that `save` wrote.

    Args:
        path: The file.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means those that the package needs.
        max_shapes: Most programs of a model with free dimensions; None means the setting.
        find_source: Returns what makes more of them; None means that none are made.
        rebuild: Compiles a package's model where nobody vouches for its code; None means that this
            is an error.
        trust: Whether its code runs whoever wrote it.
        require_signature: Whether a package is an error for which nobody vouches.
        isolate: Backends whose regions run in processes of their own.

    Raises:
        PackageError: The file is not a package, is damaged, or is of a newer format; or nobody
            vouches for what would have to run.
        BackendError: A backend that the package needs is missing, or refused it.
    """
    settings = Settings.from_environment()
    threads = settings.threads(num_threads)
    most = settings.max_shapes if max_shapes is None else max_shapes
    package = read_package(path, settings)
    if isolate:
        from intarsia.backends.isolated import isolated  # few programs ask for it

        all_of_them = load_backends(settings) if backends is None else backends
        backends = isolated(all_of_them.with_settings(settings), isolate)
    used = backends_for(package, settings) if backends is None else backends
    used = used.with_settings(settings)
    if not trust and not package.signer:
        if require_signature:
            raise PackageError(
                f"{str(path)!r} was not written here, and no key that you trust signed it",
                hint="`intarsia keys trust NAME KEY` trusts its signer",
            )
        code = describe_code((one for _, one, _ in package.all_regions), used)
        if code:
            if rebuild is None:
                raise refuse_code(str(path), package, code, "nothing is to be compiled")
            return rebuild(str(path), package, code, threads, most, backends)
        if package.free is not None and package.free.model is not None:
            from intarsia.target import CompilationConfig  # a start of what is trusted needs none

            check_targets(CompilationConfig.resolve(package.free.model.recipe.target))
    if package.free is None:
        program = load_regions(package, used, threads)
        program.source = lambda _: package.source
        return program
    shared = SharedConstants()
    free = package.free
    programs = [load_regions(one, used, threads, shared) for one in reversed(package.programs)]
    generic = None
    if free.generic is not None:
        kept = free.generic
        generic = GenericProgram(programs.pop(), kept.bounds, kept.nominal, kept.multiples)
    return FreeExecutable(
        free.signature,
        None if find_source is None else find_source(free, threads, backends, shared),
        targets=free.targets,
        max_shapes=most,
        programs=programs,
        generic=generic,
        plans=free.plans,
        buckets=free.buckets,
    )


def backends_for(package: Package, settings: Settings) -> Backends:
    """Return those whose code is in a package, or all: devices may be opened by others.

    Args:
        package: What is to be loaded.
        settings: What they follow.
    """
    names = {artifact.backend for _, artifact, _ in package.all_regions} - {CONTROL_FLOW}
    host = domain_text(HOST_DOMAIN)
    if all(text == host for each in package.programs for text in each.devices):
        needed = load_backends(settings, names)
        if names <= needed.by_name.keys():
            return needed
    return load_backends(settings)
