# SPDX-License-Identifier: Apache-2.0
"""OpenCL's drivers: which libraries there are, and which devices of theirs pass a self-test.

A driver is loaded by the loader inside pyopencl when platforms are first asked for, all of them at
once. So each is tried alone in a process of its own, and this process's loader is shown only those
of which a device has passed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import site
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from intarsia.backends.opencl import pocl
from intarsia.codegen.sources import source_digest
from intarsia.process import selftest
from intarsia.settings import driver_variables

_VENDORS = "/etc/OpenCL/vendors"
_INTEL = "libintelocl.so"
"""Of the wheel `intel-opencl-rt`, which puts it below the prefix and leaves it at that."""

_LOADED = "/etc/ld.so.cache"
"""A file that changes when a library is installed that is named without its folder."""

_CHOICES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "PYOPENCL_HOME")
"""Variables that tell OpenCL's loaders which drivers to use."""

_GENERATORS = ("intarsia.codegen.emit", "intarsia.backends.opencl")
_TRIAL = Path(__file__).parents[2] / "testing" / "selftest.py"


@dataclass(frozen=True, slots=True)
class Vendor:
    """What one driver's self-test has found.

    Attributes:
        library: Its file, or the name by which the system's linker finds it; empty means all that
            the loader finds by itself.
        passed: Names of the devices that work.
        failed: Names of the devices that do not, each with the reason; the driver's own name if it
            does not get so far as to name one.
    """

    library: str
    passed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


@cache
def vendors(caches: Path) -> tuple[Vendor, ...]:
    """Return all drivers with what their self-tests have found; what is new is tried now."""
    return tuple(judge_vendor(library, caches) for library in find_libraries())


def offered_libraries(caches: Path) -> tuple[str, ...]:
    """Return the drivers that this process may load; in a self-test, the one that is tried."""
    if selftest.is_inside():
        return tuple(_named()) or ("",)
    return tuple(vendor.library for vendor in vendors(caches) if vendor.passed)


def find_libraries() -> tuple[str, ...]:
    """Return the drivers that there are: those that are named, else the system's and of wheels."""
    if platform.system() != "Linux":
        return ("",)
    named = tuple(_named())
    libraries = named or (*_installed(), *_of_wheels())
    # A name without a folder is for the system's linker to find.
    usable = (library for library in libraries if "/" not in library or Path(library).exists())
    return tuple(dict.fromkeys(usable)) or ("",)


def _named() -> Iterator[str]:
    """Yield the drivers that the loader's own variables name."""
    yield from filter(None, os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep))  # noqa: TID251 - the loader's
    place = os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH")  # noqa: TID251
    if place and not Path(place).is_dir() and not place.endswith(".icd"):
        yield place
    elif place:
        yield from _listed(Path(place))


def _installed() -> Iterator[str]:
    for folder in (_VENDORS, f"{sys.prefix}{_VENDORS}"):  # of the system, of conda
        yield from _listed(Path(folder))


def _of_wheels() -> Iterator[str]:
    spec = find_spec("pyopencl")
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        libraries = Path(package, ".libs")
        yield from (str(libraries / name) for name in _listed(libraries))
    for prefix in (sys.prefix, site.getuserbase()):
        yield str(Path(prefix, "lib", _INTEL))


def _listed(place: Path) -> Iterator[str]:
    """Yield the libraries that an `.icd` file, or each one in a folder, names in its first line."""
    for file in sorted(place.glob("*.icd")) if place.is_dir() else (place,):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield from filter(None, file.read_text(encoding="utf-8").strip().splitlines()[:1])


@contextmanager
def visible(libraries: Sequence[str]) -> Iterator[dict[str, str]]:
    """Show the loader nothing but some drivers, inside the block.

    Args:
        libraries: The drivers; one that is empty shows all that there are.

    Yields:
        The variables that do it, for other processes.
    """
    if "" in libraries:
        yield {}
        return
    before = {name: os.environ.get(name) for name in _CHOICES}  # noqa: TID251 - the loader's own
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        for number, library in enumerate(libraries):
            Path(folder, f"{number}.icd").write_text(f"{library}\n", encoding="utf-8")
        # The loader in pyopencl's wheel looks into `PYOPENCL_HOME` too, which `import pyopencl`
        # sets to the package: there lies the `.icd` of the wheel of PoCL.
        chosen = dict.fromkeys(_CHOICES, "") | {"OCL_ICD_VENDORS": folder, "PYOPENCL_HOME": folder}
        _set({name: text or None for name, text in chosen.items()})
        try:
            yield chosen
        finally:
            _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, text in variables.items():
        if text is None:
            os.environ.pop(name, None)  # noqa: TID251 - the loader's own
        else:
            os.environ[name] = text  # noqa: TID251


def judge_vendor(library: str, caches: Path) -> Vendor:
    """Return what a driver's self-test has found; devices after one that dies are tried again."""
    from importlib.metadata import version

    variables = [
        variable for variable in driver_variables() if variable.partition("=")[0] not in _CHOICES
    ]
    identity = (
        # A verdict holds as long as all of these: the driver's file, the trial, pyopencl, the code
        # that we emit, and variables that drivers read.
        *selftest.file_facts(library if "/" in library else _LOADED, _TRIAL),
        *(version("pyopencl"), source_digest(_GENERATORS), *variables),
    )
    with visible([library]) as shown:
        test = selftest.SelfTest(
            f"the OpenCL driver {library}".strip(),
            identity=(library, *identity),
            environment={**shown, "INTARSIA_OPENCL_DEVICES": ""},
            mend=partial(pocl.empty, caches),
        )
        tried = selftest.try_devices(test, "intarsia.backends.opencl.backend:BACKEND", caches)
    # One that has no name for a device died when it was loaded, or left.
    name = Path(library).name or "OpenCL"
    failed = [(name if one == test.name else one, problem) for one, problem in tried.failed]
    return Vendor(library, tried.passed, tuple(failed))
