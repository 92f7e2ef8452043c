# SPDX-License-Identifier: Apache-2.0
"""Where the library and a C++ compiler for it are, and what is built of them, once."""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from intarsia.errors import BackendError
from intarsia.native.entries import Entries

DEFAULT_ROOT = "/usr"
"""Where packages of Debian have the library."""

ROOT_HINT = (
    "install it (Debian: libarm-compute-dev), or unpack that package and say where: "
    "INTARSIA_ACL_ROOT, or -acl_root"
)
_ARCH = "aarch64"
_MULTIARCH = "aarch64-linux-gnu"
_COMPILERS = ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-g++-12")
_LIBRARIES = ("arm_compute-static", "arm_compute_core-static")
_CXX_FLAGS = ("-std=c++14", "-O1", "-fPIC", "-ffunction-sections", "-fdata-sections", "-w")
_C_FLAGS = ("-xc", "-std=c99", "-O1")
_SECONDS = 600
_LIMIT_BYTES = 256 << 20
_KIND = "acl"
_VERSION = re.compile(rb"arm_compute_version=v([\w.]+)")
_SUPPORT = ("intarsia_acl.cpp", "intarsia_acl_settle.cpp")
_HELPER = ("validate.cpp", "intarsia_acl_settle.cpp")


@dataclass(frozen=True, slots=True)
class AclLibrary:
    """An installed library.

    Attributes:
        include: The folder of its headers.
        folder: The folder of its static libraries.
        version: Its release.
    """

    include: Path
    folder: Path
    version: str


@cache
def find_library(root: str) -> AclLibrary:
    """Return the library below a folder.

    Args:
        root: What holds `include` and `lib`, with or without Debian's folder of the architecture,
            or `usr` with these.

    Raises:
        BackendError: There is none.
    """
    top = Path(root).resolve()  # compilers run in folders of their own
    for base in (top, top / "usr"):
        for inner in ("", _MULTIARCH):
            include, folder = base / "include" / inner, base / "lib" / inner
            archives = [folder / f"lib{name}.a" for name in _LIBRARIES]
            if (include / "arm_compute").is_dir() and all(map(Path.is_file, archives)):
                return AclLibrary(include, folder, _read_version(archives[-1]))
    raise BackendError(
        f"there is no Arm Compute Library for {_ARCH} below {root!r}",
        backend="arm_acl",
        hint=ROOT_HINT,
    )


def _read_version(archive: Path) -> str:
    found = _VERSION.search(archive.read_bytes())
    return found[1].decode() if found else "unknown"


def find_compiler(named: str) -> tuple[str, ...]:
    """Return the command of a C++ compiler for aarch64.

    Args:
        named: A command, or nothing to look for one.

    Raises:
        BackendError: There is none.
    """
    if named:
        words = tuple(shlex.split(named))
        if words and shutil.which(words[0]):
            return words
        raise BackendError(
            f"there is no C++ compiler {named!r}", backend="arm_acl", hint="correct -cxx"
        )
    candidates = (*_COMPILERS, "g++") if platform.machine() == _ARCH else _COMPILERS
    for name in candidates:
        if shutil.which(name):
            return (name,)
    raise BackendError(
        f"there is no C++ compiler for {_ARCH}: none of {', '.join(candidates)}",
        backend="arm_acl",
        hint="install one (Debian: g++-12-aarch64-linux-gnu), or name it: -cxx",
    )


@cache
def _digest(library: AclLibrary, compiler: tuple[str, ...]) -> str:
    """Return what tells a library and a compiler from others, our own sources among it."""
    hasher = hashlib.sha256(_run([*compiler, "--version"], None).encode())
    for name in _LIBRARIES:
        hasher.update((library.folder / f"lib{name}.a").read_bytes())
    for name, text in sorted(_sources().items()):
        hasher.update(f"{name}\0{text}\0".encode())
    return hasher.hexdigest()


@cache
def _sources() -> Mapping[str, str]:
    folder = files("intarsia.backends.arm_acl") / "source"
    return {
        item.name: item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith((".hpp", ".cpp"))
    }


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A library with a compiler, and a folder for what they make.

    Attributes:
        library: The library.
        compiler: The compiler's command.
        caches: The folder of all caches; None keeps nothing.
    """

    library: AclLibrary
    compiler: tuple[str, ...]
    caches: Path | None = None

    @property
    def digest(self) -> str:
        """What tells it from others."""
        return _digest(self.library, self.compiler)

    def helper(self) -> bytes:
        """Return the program that asks functions what they take.

        Raises:
            BackendError: It does not build.
        """
        return self._kept("helper", lambda: self._link(list(map(self._object, _HELPER))))

    def objects(self, name: str, source: str) -> tuple[bytes, ...]:
        """Return a C++ source and what it calls of ours as objects, to be linked with the library.

        Args:
            name: Of its file.
            source: Its text.

        Raises:
            BackendError: They do not build.
        """
        return (self._object(name, source), *map(self._object, _SUPPORT))

    @property
    def archives(self) -> tuple[Path, ...]:
        """The library's files, in the order in which they are linked."""
        return tuple(self.library.folder / f"lib{name}.a" for name in _LIBRARIES)

    def executable(self, sources: Mapping[str, str]) -> bytes:
        """Return a program of C++ and C sources, the library in it.

        Args:
            sources: Texts by the names of their files; headers of ours can be included.

        Raises:
            BackendError: It does not build.
        """

        def build() -> bytes:
            objects = [self._object(name, text) for name, text in sorted(sources.items())]
            return self._link([*objects, *map(self._object, _SUPPORT)])

        texts = (f"{name}\0{text}" for name, text in sorted(sources.items()))
        return self._kept("executable", build, *texts)

    def _kept(self, what: str, build: Callable[[], bytes], *parts: str) -> bytes:
        entries = Entries(self.caches, _KIND, ".bin", _LIMIT_BYTES)
        return entries.find_or_make((what, self.digest, *parts), build)

    def _object(self, name: str, text: str = "") -> bytes:
        """Return a source file, compiled; headers of ours lie beside it."""
        sources = {**_sources(), **({name: text} if text else {})}
        is_cpp = name.endswith(".cpp")
        flags = _CXX_FLAGS if is_cpp else _C_FLAGS

        def build() -> bytes:
            with tempfile.TemporaryDirectory(prefix="intarsia-acl-") as folder:
                for other, content in sources.items():
                    (Path(folder) / other).write_text(content, encoding="utf-8")
                paths = [f"-I{self.library.include}", "-I."]
                _run([*self.compiler, *flags, *paths, "-c", name, "-o", "out.o"], folder)
                return (Path(folder) / "out.o").read_bytes()

        return self._kept("object", build, name, text, *flags)

    def _link(self, objects: Sequence[bytes]) -> bytes:
        with tempfile.TemporaryDirectory(prefix="intarsia-acl-") as folder:
            names = [f"{number}.o" for number in range(len(objects))]
            for name, content in zip(names, objects, strict=True):
                (Path(folder) / name).write_bytes(content)
            libraries = [f"-l{name}" for name in _LIBRARIES]
            # Linked whole, so that it runs where nothing is installed.
            flags = ["-static", "-s", "-Wl,--gc-sections", "-Wl,--build-id=none"]
            command = [*self.compiler, *flags, *names, f"-L{self.library.folder}", *libraries]
            _run([*command, "-pthread", "-o", "out"], folder)
            return (Path(folder) / "out").read_bytes()


def _run(command: Sequence[str], folder: str | None) -> str:
    """Run a compiler and return what it wrote.

    Raises:
        BackendError: It failed.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]} did not run: {error}", backend="arm_acl") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        said = lines[0] if lines else done.stderr.strip()[-500:]
        raise BackendError(
            f"{command[0]} failed: {said}",
            backend="arm_acl",
            hint="is -acl_root a library of the release that docs/machines.md names?",
        )
    return done.stdout
