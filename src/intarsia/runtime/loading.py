# SPDX-License-Identifier: Apache-2.0
"""From a package to a program; only what it needs is imported, as a start is mostly imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.backends.registry import Backends, load_backends
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.runtime.package import load_regions, read_package
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.package import Package


def load(
    path: str | Path, *, num_threads: int | None = None, backends: Backends | None = None
) -> PlanExecutable:
    """Load a package that `save` wrote.

    Args:
        path: The file.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means those that the package needs.

    Raises:
        PackageError: The file is not a package, is damaged, or is of a newer format.
        BackendError: A backend that the package needs is missing, or refused it.
    """
    settings = Settings.from_environment()
    threads = settings.threads(num_threads)
    package = read_package(path)
    if backends is None:
        backends = backends_for(package, settings)
    return load_regions(package, backends.with_settings(settings), threads)


def backends_for(package: Package, settings: Settings) -> Backends:
    """Return those whose code is in a package, or all: devices may be opened by others.

    Args:
        package: What is to be loaded.
        settings: What they follow.
    """
    names = {artifact.backend for artifact in package.artifacts}
    host = domain_text(HOST_DOMAIN)
    if all(text == host for text in package.plan.devices):
        needed = load_backends(settings, names)
        if names <= needed.by_name.keys():
            return needed
    return load_backends(settings)
