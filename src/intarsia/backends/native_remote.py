# SPDX-License-Identifier: Apache-2.0
"""Native code on another machine: its kernels linked with the agent, its calls sent as data.

One executable holds all kernels of a region, for all sizes: the list of calls, which `program.c`
walks over, is an input that the agent keeps, and so are the weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
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
from intarsia.native.linking import Form, Linker, has_system_compiler
from intarsia.native.machine import NativeCpu, generator_version, triple_words
from intarsia.native.native_target import is_platform_here
from intarsia.target.cpu import host_triple

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

_NUMBERS = {str(kind): number for number, kind in enumerate(StorageKind)}
"""Kinds of storages as `program.c` numbers them."""

_TABLE = """\
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>

{parallel}
typedef void (*program_kernel)(const uint64_t *arguments, int64_t begin, int64_t end);

{declared}
extern const program_kernel program_kernels[];
const program_kernel program_kernels[] = {{{names}}};

void program_parallel(
    program_kernel kernel, const uint64_t *arguments, int64_t turns, int64_t chunks)
{{
    parallel(kernel, arguments, turns, chunks);
}}
"""

_ALONE = """\
#define parallel(kernel, arguments, turns, chunks) ((void)(chunks), kernel(arguments, 0, turns))
"""


def link_program(objects: Mapping[str, bytes], cpu: NativeCpu, threads: int, caches: Path) -> bytes:
    """Return kernels and the agent as one static executable, from the cache if it is there.

    Args:
        objects: Object files of kernels, by name, in the order of their numbers.
        cpu: What they are for.
        threads: That share the turns of a kernel there.
        caches: The folder of all caches.

    Raises:
        BackendError: Nothing here links for that machine.
    """
    sources = {**agent_sources((_NAME,)), "program.c": _PROGRAM.read_text()}
    names = ", ".join(objects)
    declared = "".join(
        f"void {name}(const uint64_t *arguments, int64_t begin, int64_t end);\n" for name in objects
    )
    parallel = _ALONE if threads == 1 else pool_source(threads)
    table = _TABLE.format(declared=declared, names=names, parallel=parallel)
    sources["program_kernels.c"] = table
    entries = Entries(caches, KIND, ".bin", _LIMIT_BYTES)
    linker = _find_linker(cpu.triple, caches)

    def link() -> bytes:
        with tempfile.TemporaryDirectory(prefix="intarsia-") as work:
            folder = Path(work)
            for name, text in sources.items():
                (folder / name).write_text(text)
            for name, code in objects.items():
                (folder / f"{name}.o").write_bytes(code)
            files = [*sources, *(f"{name}.o" for name in objects)]
            output = folder / "linked"
            linker.link(
                Form.EXECUTABLE,
                output,
                files,
                options=("-std=c99", "-static"),
                libraries=("m",) if threads == 1 else ("m", "pthread"),
                folder=folder,
            )
            return output.read_bytes()

    machine = (cpu.triple, cpu.name, cpu.features, generator_version(), *linker.c)
    codes = [digest((name, code.hex())) for name, code in objects.items()]
    return entries.find_or_make((*machine, *sources.values(), *codes), link)


def _find_linker(triple: str, caches: Path) -> Linker:
    """Return what makes programs that need no library there; the agent is for any CPU there.

    Raises:
        BackendError: Nothing here does.
    """
    architecture, system, environment = triple_words(triple or host_triple())
    if is_platform_here(triple) and has_system_compiler():
        return Linker.find(NativeCpu(), caches)
    if system == "linux":  # the wheel links no other C library for Linux in
        suffix = environment.removeprefix("gnu").removeprefix("musl")
        triple = f"{architecture}-linux-musl{suffix}"
    return Linker.find(NativeCpu(triple), caches)


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
