# SPDX-License-Identifier: Apache-2.0
"""The library's sources, which the user names, and what this machine's compiler makes of them.

Built here, the library runs regions on this machine, and is asked for the sizes of its buffers:
also for other CPUs, for which it has functions of their own.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.backends.native_remote import cpu_flags, find_linker
from intarsia.errors import BackendError, TargetError
from intarsia.files import whole_file
from intarsia.hashing import digest
from intarsia.native.agent import agent_sources
from intarsia.native.linking import BinaryKind, Linker
from intarsia.native.machine import NativeCpu

if TYPE_CHECKING:
    from intarsia.target import Target

HEADER = "arm_nnfunctions.h"
PATH = "cmsis_nn_path"
REGION = "region"
"""Of a region alone, the stem of its functions."""
_WHERE = "https://github.com/ARM-software/CMSIS-NN"
_HERE = NativeCpu("", "", "")

_FLOATS = re.compile(r"_(f16|f32|flt)(_|$)")
OPTIONS = ("-std=gnu99", "-ffunction-sections", "-fno-math-errno")
"""How sources of the library, and what calls it, are compiled for this machine."""


@dataclass(frozen=True)
class Library:
    """A tree of the library's sources.

    Attributes:
        folder: With `Include` and `Source`.
        caches: The folder of all caches.
    """

    folder: Path
    caches: Path = field(compare=False)

    @classmethod
    def of(cls, target: Target, caches: Path) -> Library:
        """Return the tree that a target names.

        Raises:
            TargetError: It names none, or what is there is no such tree.
        """
        given = target.attrs.get(PATH)
        if not given:
            raise TargetError(
                f"{PATH}: the sources of CMSIS-NN are needed, and it does not say where they are",
                target=str(target),
                hint=f"get them from {_WHERE}, and add -{PATH}=FOLDER to the target",
            )
        folder = Path(given).expanduser()
        if not (folder / "Include" / HEADER).is_file() or not (folder / "Source").is_dir():
            raise TargetError(
                f"{PATH}: {given!r} has no Include/{HEADER} with a folder Source beside it",
                target=str(target),
                hint=f"name the root of a copy of {_WHERE}",
            )
        return cls(folder.resolve(), caches)

    @property
    def include(self) -> Path:
        """The folder of its headers."""
        return self.folder / "Include"

    @cached_property
    def sources(self) -> tuple[Path, ...]:
        """Its sources, without those of floats: these are built only where they are asked for."""
        found = (self.folder / "Source").rglob("*.c")
        return tuple(sorted(path for path in found if not _FLOATS.search(path.stem)))

    @cached_property
    def digest(self) -> str:
        """What tells this tree from others: sources and headers."""
        digest = hashlib.sha256()
        for path in (*self.sources, *sorted(self.include.rglob("*.h"))):
            digest.update(f"{path.relative_to(self.folder)}\n".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def shared(self, source: str) -> bytes:
        """Return a source that calls the library as a shared library for this machine.

        Raises:
            BackendError: There is no compiler, or it failed.
        """
        # A build id would make two libraries of the same sources differ.
        flags = ("-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,--build-id=none")
        options = (*OPTIONS, "-I", str(self.include), *flags)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            region, made = folder / "region.c", folder / "region.so"
            region.write_text(source)
            self._linker().link(BinaryKind.SHARED, made, [region, self._object()], options=options)
            return made.read_bytes()

    def executable(self, source: str, cpu: NativeCpu) -> bytes:
        """Return the agent with a region that calls the library, as a program for another machine.

        Args:
            source: C with the function `region_call` that the agent calls.
            cpu: Of the machine.

        Raises:
            BackendError: Nothing here compiles for it, or the compiler failed.
        """
        compiler, linker = (find_linker(each, self.caches) for each in (cpu, NativeCpu(cpu.triple)))
        options = (*OPTIONS, *cpu_flags(compiler, cpu), "-I", str(self.include))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            texts = {"region.c": source, **agent_sources((REGION,))}
            for file, text in texts.items():
                (folder / file).write_text(text)
            region, made = folder / "region.o", folder / "made"
            compiler.link(BinaryKind.OBJECT, region, [folder / "region.c"], options=options)
            files = [*(folder / file for file in agent_sources(())), region, self._object(cpu)]
            flags = ("-std=gnu99", "-static", "-Wl,--gc-sections")
            linker.link(BinaryKind.EXECUTABLE, made, files, options=flags, libraries=("m",))
            return made.read_bytes()

    def buffer_bytes(self, function: str, *arguments: Sequence[int] | int, variant: str) -> int:
        """Return how many bytes of scratch memory a function wants.

        Args:
            function: Such as `arm_convolve_wrapper_s8`.
            arguments: Of the function that tells: structures by their members, all int32.
            variant: Of which build of the library: `_mve`, `_dsp`, or empty for this machine's.
        """
        name = f"{function}_get_buffer_size{variant}"
        try:
            ask = getattr(self._loaded, name)
        except AttributeError:
            raise BackendError(
                f"the library in {str(self.folder)!r} has no function {name}",
                hint=f"get a newer copy from {_WHERE}",
            ) from None
        passed = [
            item if isinstance(item, int) else ctypes.byref((ctypes.c_int32 * len(item))(*item))
            for item in arguments
        ]
        return max(0, int(ask(*passed)))

    @cached_property
    def _loaded(self) -> ctypes.CDLL:
        place = self._cached("sizes.so")
        if not place.exists():
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "library.so"
                self._linker().link(BinaryKind.SHARED, made, [self._object()])
                with whole_file(place) as file:
                    file.write_bytes(made.read_bytes())
        return ctypes.CDLL(str(place))

    def _linker(self) -> Linker:
        return Linker.find(_HERE, self.caches)

    def _cached(self, name: str) -> Path:
        return self.caches / "cmsis-nn" / f"{self.digest}-{name}"

    def _object(self, cpu: NativeCpu | None = None) -> Path:
        """Return all of the library as one object for this machine, or another, built once."""
        linker = self._linker() if cpu is None else find_linker(cpu, self.caches)
        flags = () if cpu is None else (*linker.c, *cpu_flags(linker, cpu))
        place = self._cached(f"{digest(flags)[:16]}-library.o" if flags else "library.o")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "library.o"
                told = () if cpu is None else cpu_flags(linker, cpu)
                options = (*OPTIONS, *told, "-w", "-I", str(self.include))
                linker.link(BinaryKind.OBJECT, made, self.sources, options=options)
                with whole_file(place) as file:
                    file.write_bytes(made.read_bytes())
        return place
