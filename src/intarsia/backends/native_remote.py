# SPDX-License-Identifier: Apache-2.0
"""Native code on another machine: its kernels linked with the agent, its calls sent as data.

One executable holds all kernels of a region, for all sizes: the list of calls, which `program.c`
walks over, is an input that the agent keeps, and so are the weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.native_calls import call_chunks
from intarsia.codegen.emit.c_threads import pool_source
from intarsia.codegen.storage import StorageKind
from intarsia.graph.arena import ALIGNMENT
from intarsia.hashing import digest
from intarsia.native.agent import Agent, agent_sources
from intarsia.native.entries import Entries
from intarsia.native.linking import BinaryKind, Linker, has_system_compiler
from intarsia.native.machine import NativeCpu, generator_version, triple_words
from intarsia.native.native_target import is_platform_here
from intarsia.target.cpu import host_triple
from intarsia.target.cpu_tables import find_family

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.device import Buffer
    from intarsia.backends.native import Calls
    from intarsia.backends.native_calls import SizedCalls
    from intarsia.backends.remote import RemoteRegion
    from intarsia.backends.values import ArtifactConstant
    from intarsia.native.agent import Kept

_PROGRAM = Path(__file__).parent.parent / "native" / "program.c"
_NAME = "program"

KIND = "programs"
"""The folder of linked programs inside the cache folder."""

_LIMIT_BYTES = 256 << 20

_STATIC = ("-std=c99", "-static")

_NUMBERS = {str(kind): number for number, kind in enumerate(StorageKind)}
"""Kinds of storages as `program.c` numbers them."""

_TABLE = """\
#include <stdint.h>

typedef void (*program_kernel)(const uint64_t *arguments, int64_t begin, int64_t end);

{declared}
extern const program_kernel program_kernels[];
const program_kernel program_kernels[] = {{{names}}};
"""

_PARALLEL = """\
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>

{parallel}
typedef void (*program_kernel)(const uint64_t *arguments, int64_t begin, int64_t end);

void program_parallel(
    program_kernel kernel, const uint64_t *arguments, int64_t turns, int64_t chunks);

void program_parallel(
    program_kernel kernel, const uint64_t *arguments, int64_t turns, int64_t chunks)
{{
    parallel(kernel, arguments, turns, chunks);
}}
"""

_ALONE = """\
#define parallel(kernel, arguments, turns, chunks) ((void)(chunks), kernel(arguments, 0, turns))
"""


def link_program(
    names: Sequence[str], objects: Mapping[str, bytes], triple: str, threads: int, caches: Path
) -> bytes:
    """Return kernels and the agent as one static executable, from the cache if it is there.

    Args:
        names: The functions of kernels, in the order of their numbers.
        objects: Object files that have them, by name.
        triple: Of the machine.
        threads: That share the turns of a kernel there.
        caches: The folder of all caches.

    Raises:
        BackendError: Nothing here links for that machine.
    """
    declared = "".join(
        f"void {name}(const uint64_t *arguments, int64_t begin, int64_t end);\n" for name in names
    )
    parallel = _ALONE if threads == 1 else pool_source(threads)
    table = _TABLE.format(declared=declared, names=", ".join(names))
    texts = {
        **agent_sources((_NAME,)),
        "program.c": _PROGRAM.read_text(),
        "program_parallel.c": _PARALLEL.format(parallel=parallel),
    }
    libraries = ("m",) if threads == 1 else ("m", "pthread")
    linker = find_linker(NativeCpu(triple), caches)
    # What all programs share is compiled once.
    shared = {f"{name}.o": _compiled(name, text, linker, caches) for name, text in texts.items()}
    return _made(
        BinaryKind.EXECUTABLE,
        {"program_kernels.c": table},
        {**objects, **shared},
        linker,
        _STATIC,
        libraries,
        caches,
    )


def compile_c(
    texts: Mapping[str, str],
    cpu: NativeCpu,
    caches: Path,
    options: Sequence[str] = (),
) -> bytes:
    """Return sources in C as one object for a CPU, from the cache if it is there.

    Args:
        texts: The sources, by the names of their files.
        cpu: What they are compiled for.
        caches: The folder of all caches.
        options: Of the compiler.

    Raises:
        BackendError: Nothing here compiles for that machine, or the compiler failed.
    """
    linker = find_linker(cpu, caches)
    flags = (*options, *cpu_flags(linker, cpu))
    return _made(BinaryKind.OBJECT, texts, {}, linker, flags, (), caches)


def cpu_flags(linker: Linker, cpu: NativeCpu) -> list[str]:
    """Return how the system's compiler is told the CPU; the wheel's has been told."""
    if linker.zig_cache is not None:
        return []
    if find_family(cpu.triple or host_triple(), None) != "x86":
        return [f"-mcpu={cpu.name}"] if cpu.name else []
    features = filter(None, cpu.features.split(","))
    flags = (f"-m{'' if each[0] == '+' else 'no-'}{each[1:]}" for each in features)
    return [*([f"-march={cpu.name}"] if cpu.name else []), *flags]


def _compiled(name: str, text: str, linker: Linker, caches: Path) -> bytes:
    """Return a source of C as an object of static programs, from the cache if it is there."""

    def make() -> bytes:
        with tempfile.TemporaryDirectory(prefix="intarsia-") as work:
            folder = Path(work)
            (folder / name).write_text(text)
            options = ("-O2", *_STATIC, "-c", name, "-o", "made")
            linker.run((*linker.c, *options), f"compile {name}", folder)
            return (folder / "made").read_bytes()

    key = (generator_version(), *linker.c, *_STATIC, name, text)
    return Entries(caches, KIND, ".bin", _LIMIT_BYTES).find_or_make(key, make)


def _made(
    form: BinaryKind,
    texts: Mapping[str, str],
    objects: Mapping[str, bytes],
    linker: Linker,
    options: Sequence[str],
    libraries: Sequence[str],
    caches: Path,
) -> bytes:
    """Return what a linker makes of sources and objects, from the cache if it is there."""
    files = {**{name: text.encode() for name, text in texts.items()}, **objects}

    def make() -> bytes:
        with tempfile.TemporaryDirectory(prefix="intarsia-") as work:
            folder = Path(work)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            made = folder / "made"
            linker.link(
                form, made, list(files), options=options, libraries=libraries, folder=folder
            )
            return made.read_bytes()

    codes = [digest((name, code.hex())) for name, code in files.items()]
    key = (generator_version(), form.value, *linker.c, *options, *libraries, *codes)
    return Entries(caches, KIND, ".bin", _LIMIT_BYTES).find_or_make(key, make)


def find_linker(cpu: NativeCpu, caches: Path) -> Linker:
    """Return what makes programs that need no library on the machine of a CPU.

    Raises:
        BackendError: Nothing here does.
    """
    if is_platform_here(cpu.triple) and has_system_compiler():
        return Linker.find(NativeCpu(), caches)
    architecture, system, environment = triple_words(cpu.triple or host_triple())
    if system == "linux":  # the wheel links no other C library for Linux in
        suffix = environment.removeprefix("gnu").removeprefix("musl")
        cpu = replace(cpu, triple=f"{architecture}-linux-musl{suffix}")
    return Linker.find(cpu, caches)


class RemoteProgram:
    """The calls of a program on another machine, and what all of them share there.

    Args:
        region: The program that holds the kernels.
        constants: The weights, which are sent once.
        works: For each kernel, the work that decides whether several threads pay off.
        threads: Of the program.
    """

    def __init__(
        self,
        region: RemoteRegion,
        constants: Sequence[ArtifactConstant],
        works: Sequence[int],
        threads: int,
    ) -> None:
        self.region = region
        self._works = works
        self._threads = threads
        arrays = [constant.data.reshape(-1).view(np.uint8) for constant in constants]
        self._starts, size = [], 0
        for array in arrays:
            self._starts.append(size)
            size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        weights = np.zeros(size, np.uint8)
        for start, array in zip(self._starts, arrays, strict=True):
            weights[start : start + array.nbytes] = array
        self._weights = self._agent.keep(weights)
        self._lists: dict[bytes, Kept] = {}

    @property
    def _agent(self) -> Agent:
        return self.region.agent

    def run(
        self,
        calls: Kept,
        sized: SizedCalls,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        told: tuple[Array, Array],
    ) -> None:
        """Run the calls there, once.

        Args:
            calls: The list of them.
            sized: What they are at their sizes.
            inputs: Of the region.
            outputs: Of the region.
            told: Where faults, and sizes that are found, are put.

        Raises:
            LinkError: The way to the machine failed.
            ExecutionError: It failed there.
        """
        self.region.run(
            (calls, self._weights, *inputs), (int(sized.scratch_bytes), *told, *outputs)
        )

    def list_calls(self, payload: Calls, sized: SizedCalls) -> Kept:
        """Return the list of a program's calls at some sizes, as the agent keeps it."""
        kinds = [_NUMBERS[kind] for kind, _, _ in payload.storages]
        starts = [
            self._starts[index] if kind == StorageKind.CONSTANT else start
            for (kind, index, _), start in zip(payload.storages, sized.starts.tolist(), strict=True)
        ]
        counts = np.diff(sized.words.ends, prepend=0)
        kernels = [call.kernel for call in payload.calls]
        faults, found = sized.new_faults().nbytes, 8 * len(sized.found)
        chunks = call_chunks(payload.calls, self._works, sized.turns, self._threads)
        head = np.array([faults, found, len(kinds), len(kernels)])
        parts = (
            head,
            np.array([kinds, starts]).T,
            np.array([kernels, sized.turns, counts, chunks]).T,
            np.array([sized.words.storages, sized.words.offsets]).T,
        )
        text = b"".join(np.ascontiguousarray(part, np.dtype("<i8")).tobytes() for part in parts)
        if text not in self._lists:
            self._lists[text] = self._agent.keep(np.frombuffer(text, np.uint8))
        return self._lists[text]
