# SPDX-License-Identifier: Apache-2.0
"""Opens packages. Light: nothing that compiles is imported before a program has to be made."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.garbage import fewer_collections, give_memory_back
from intarsia.runtime.loading import load as load_package

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import Program, ProgramSource, StoredModel
    from intarsia.runtime.loader import SharedConstants
    from intarsia.runtime.package import FreePart, Package

__all__ = ["load"]

logger = logging.getLogger("intarsia")


def load(
    path: str | Path,
    *,
    num_threads: int | None = None,
    backends: Backends | None = None,
    frozen: bool = False,
    max_shapes: int | None = None,
    trust: bool = False,
    require_signature: bool = False,
    isolate: Collection[str] = (),
) -> Program:
    """Load a package that `save` wrote.

    Code of a package runs if it was written here, if a key that the user trusts signed it, or if
    the user says so. Else it is compiled again from the model that the package has, with a warning.

    Args:
        path: The file.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means those that the package needs.
        frozen: Of a model with free dimensions, whether nothing is compiled for other sizes than
            those in the package.
        max_shapes: Most programs of such a model; None means the setting.
        trust: Whether its code runs whoever wrote it, and its targets may name files and commands.
        require_signature: Whether it is an error, rather than a warning, that it was neither
            written here nor signed by a trusted key.
        isolate: Backends whose regions run in processes of their own (docs/isolation.md).

    Raises:
        PackageError: The file is not a package, is damaged, or is of a newer format; or it may
            neither run as it is nor be compiled again.
        BackendError: A backend that the package needs is missing, or refused it.
    """
    with fewer_collections():
        program = load_package(
            path,
            num_threads=num_threads,
            backends=backends,
            max_shapes=max_shapes,
            find_source=None if frozen else _find_source,
            rebuild=None if frozen else _rebuild,
            trust=trust,
            require_signature=require_signature,
            isolate=isolate,
        )
    give_memory_back()
    return program


def _rebuild(
    name: str,
    package: Package,
    code: str,
    num_threads: int,
    max_shapes: int,
    backends: Backends | None,
) -> Program:
    """Compile a package's model, with a warning: nobody vouches for its code."""
    from intarsia.compiler import rebuild
    from intarsia.runtime.trust import refuse_code

    stored = package.source if package.free is None else package.free.model
    if stored is None:
        raise refuse_code(name, package, code, "it has no model to compile")
    program = rebuild(package, stored, num_threads, max_shapes, backends)
    logger.warning(
        "nobody vouches for %r, so that its code is not run: regions %s were compiled again from "
        "its model (--trust runs them as they are)",
        name,
        code,
    )
    return program


def _find_source(
    free: FreePart, num_threads: int, backends: Backends | None, shared: SharedConstants
) -> ProgramSource | None:
    """Return what makes more programs of a package's model; None if the model is not there."""
    if free.model is None:
        return None
    return _LateSource(replace(free, programs=()), free.model, num_threads, backends, shared)


class _LateSource:
    """Makes programs of a package's model; the compiler is imported for the first one."""

    def __init__(
        self,
        free: FreePart,
        model: StoredModel,
        num_threads: int,
        backends: Backends | None,
        shared: SharedConstants,
    ) -> None:
        self._free, self._model = free, model
        self._arguments = (free, num_threads, backends, shared)

    @cached_property
    def _source(self) -> ProgramSource:
        from intarsia.compiler import source_of

        return source_of(*self._arguments)

    def make(
        self, shapes: Mapping[str, tuple[int, ...]], generic: PlanExecutable | None
    ) -> PlanExecutable:
        """Return a new program, given the shape of each input that is a tensor, by name."""
        return self._source.make(shapes, generic)

    def stored(self) -> StoredModel:
        """Return what makes programs elsewhere."""
        return self._model

    def plans(self) -> PlansBySizes | None:
        """Return which plan is for which sizes, if that was measured."""
        return self._free.plans
