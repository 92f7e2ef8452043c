# SPDX-License-Identifier: Apache-2.0
"""The `cmsis-nn` kind: a partial backend of the library's int8 kernels.

A region becomes C that calls the library. On this machine the C and the library's sources, which
the user names (`-cmsis_nn_path=`), are compiled into a shared library and run; for a
microcontroller the same C becomes a part of one program (`--emit c`). If what it refines has a
runner, the same C and an agent become a program for the machine there.
"""

from __future__ import annotations

import _ctypes
import ctypes
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import refuse, unpack_payload
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.cmsis_nn.library import PATH, Library
from intarsia.backends.device import Buffer, Device, HostDevice, Step, ThreadOptions
from intarsia.backends.native import native_artifact
from intarsia.backends.remote import RemoteExecutable
from intarsia.backends.values import (
    ABOUT,
    Artifact,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.errors import BackendError, ExecutionError, ReasonCode, TargetError
from intarsia.process.runner import parse_runner
from intarsia.target import Target
from intarsia.target.cpu_there import RUNNER

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.lower.program import Program
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_GENERATORS = (
    "intarsia.backends.cmsis_nn.layers",
    "intarsia.backends.cmsis_nn.lowering",
    "intarsia.backends.tflite.layers",
    "intarsia.codegen.fixed_point",
)
_VARIANTS = (("mve", "_mve"), ("dsp", "_dsp"))
"""Features of CPUs of which the library has builds of their own, the better first."""
_OF_BOARDS = ("mcpu", "mattr")
"""Attributes that change nothing on this machine, for which the library is compiled as it is."""


class _Payload(msgspec.Struct, frozen=True):
    """What an artifact holds.

    Attributes:
        library: A shared library for this machine, or a program for that of the runner.
        scratch_bytes: Of the arena.
        runner: The way to the machine; empty means this one.
    """

    library: bytes
    scratch_bytes: int
    runner: str = ""


@dataclass(frozen=True)
class CmsisNnBackend(ConfiguredBackend):
    """Serves the kind `cmsis-nn`. Settings say where caches are."""

    name = "cmsis-nn"
    kinds = ("cmsis-nn",)
    is_default = False

    def version(self) -> str:
        """Return which API the generated code is written for."""
        return "7.0"

    def detect(self) -> Detection:
        """Return that nothing is found: the library is sources, and the user has them."""
        return Detection(
            reason="its sources are where the user says",
            hint=f"name them in a target: cmsis-nn -{PATH}=FOLDER, llvm",
        )

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what decides which code runs: our sources, and the library's."""
        try:
            digest = self._library(context.target.target).digest
        except TargetError:
            digest = ""
        return CodeIdentity(generators=_GENERATORS, device=f"sources {digest}" if digest else "")

    def check_target(self, target: Target) -> Sequence[str]:
        """Check that a target says where the library is; return what has no effect here.

        Raises:
            TargetError: It does not, or the library is not there.
        """
        self._library(target)
        return tuple(name for name in _OF_BOARDS if name in target.attrs)

    def rules(self, context: BuildContext) -> tuple[Rule, ...]:
        """Return the one rule: integer layers that the library computes.

        Raises:
            TargetError: Its CPU is not that of the target that takes the rest.
        """
        _board_of(context)
        return (Rule("layers", _refuse_nodes, "an integer layer of the library"),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return why a region is not made of whole layers, or None."""
        region = candidate.region
        for number, reason in _reasons(region).items():
            node = region.graph.nodes[number]
            return refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
        return None

    def groups(self, region: Region, context: BuildContext) -> tuple[FusedGroup, ...]:
        """Return the nodes of each layer: one call of the library."""
        from intarsia.backends.cmsis_nn.layers import COMPUTED, refuse_layer
        from intarsia.backends.tflite.layers import read_layers

        taken: set[int] = set()
        groups = []
        for layer in read_layers(region, COMPUTED, refuse_layer).layers:
            nodes = tuple(node for node in layer.nodes if node not in taken)
            taken.update(nodes)
            if len(nodes) > 1:
                groups.append(FusedGroup(nodes, layer.op_type))
        return tuple(groups)

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what the library's loops take on a Cortex-M; here they are measured."""
        from intarsia.backends.cmsis_nn.costs import region_cycles
        from intarsia.native.estimates import SPREAD, core_cost

        board = _board_of(context)
        if board.features.arch != "arm":
            return None
        return core_cost(
            board, lambda core: region_cycles(candidate.region, core, _variant(board)), SPREAD
        )

    def c_program(self, region: Region, context: BuildContext) -> Program:
        """Return a region as C functions that call the library, for a program in C.

        Raises:
            TargetError: The target does not say where the library is, or no target which CPU it is
                for.
            BackendError: Some node is in no layer that the library computes.
        """
        from intarsia.backends.cmsis_nn.lowering import lower_region

        board = _board_of(context)
        return lower_region(region, self._library(board), _variant(board))

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return a region as a shared library for this machine, or a program for that of a runner.

        Raises:
            TargetError: No program can be carried to the machine of the runner.
            BackendError: There is no C compiler, or it failed.
        """
        from intarsia.backends.cmsis_nn.host import write_called, write_source
        from intarsia.backends.cmsis_nn.lowering import lower_region
        from intarsia.native.native_target import cpu_behind_runner

        region, library = candidate.region, self._library(context.target.target)
        runner = str(context.refined.attrs.get(RUNNER) or "")
        if runner:
            cpu, board = cpu_behind_runner(context.refined), _board_of(context)
            program = lower_region(
                region, library, _variant(board) if board.features.arch == "arm" else ""
            )
            code = library.executable(write_called(program, len(region.inputs)), cpu)
        else:
            program = lower_region(region, library, "")
            code = library.shared(write_source(program))
        payload = _Payload(code, int(program.scratch_bytes), runner)
        about = {ABOUT: program.summary()}
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> CmsisNnExecutable | RemoteExecutable:
        """Load the shared library of a region, or bring its program to its machine.

        Raises:
            PackageError: The artifact is damaged.
        """
        payload = unpack_payload(artifact, _Payload)
        if payload.runner:
            return RemoteExecutable(
                payload.library,
                parse_runner(payload.runner),
                artifact.target,
                constants=[constant.data for constant in artifact.constants],
                seconds=self.settings.call_seconds,
            )
        return CmsisNnExecutable(artifact, payload.scratch_bytes, _load(payload.library))

    def _library(self, target: Target) -> Library:
        given = target.attrs.get(PATH)
        caches = self.settings.cache_folder()
        return _known(str(given), str(caches)) if given else Library.of(target, caches)


@lru_cache(maxsize=8)
def _known(folder: str, caches: str) -> Library:
    target = Target({"kind": "cmsis-nn", PATH: folder})
    return Library.of(target, Path(caches))


def _board_of(context: BuildContext) -> Target:
    """Return the target with the CPU of the program: its own, or of the target that it refines.

    Raises:
        TargetError: These are two.
    """
    target, refined = context.target.target, context.refined
    own, rest = (each.attrs.get("mcpu") for each in (target, refined))
    if own and rest and own != rest:
        raise TargetError(
            f"mcpu: {own} is not the CPU of {refined.kind.name!r} behind it, {rest}: both are one "
            "program",
            target=str(target),
            hint=f"leave it out, or say -mcpu={rest}",
        )
    given = {name: refined.attrs[name] for name in _OF_BOARDS if name in refined.attrs}
    return Target({"kind": target.kind.name, **given, **dict(target.attrs)})


def _variant(target: Target) -> str:
    """Return which build of the library a CPU has.

    Raises:
        TargetError: The target does not say which CPU it is for.
    """
    features = target.features.isa
    if features is None:  # buffers of another build's sizes would be overrun
        raise TargetError(
            "mcpu: the sizes of the library's buffers depend on the CPU, and the target names none",
            target=str(target),
            hint="give the target behind it an -mcpu=, such as c -mcpu=cortex-m55",
        )
    return next((suffix for feature, suffix in _VARIANTS if feature in features), "")


def _reasons(region: Region) -> Mapping[int, str]:
    from intarsia.backends.cmsis_nn.layers import COMPUTED, refuse_layer
    from intarsia.backends.tflite.layers import read_layers

    return read_layers(region, COMPUTED, refuse_layer).reasons


def _refuse_nodes(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    from intarsia.graph.region import Region

    reasons = _reasons(Region.of(graph, range(len(graph.nodes))))
    return {
        number: refuse(graph.nodes[number], context, ReasonCode.UNSUPPORTED_OP, reason)
        for number, reason in reasons.items()
    }


def _load(code: bytes) -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        try:
            handle = _ctypes.dlopen(file.name, ctypes.DEFAULT_MODE)
        except OSError as error:
            raise BackendError(
                f"a region's library cannot be loaded here: {error}",
                hint="compile the model on this machine",
            ) from error
    # Its functions hold the library, so that it goes with the last step; ctypes never closes one.
    library = ctypes.CDLL(file.name, handle=handle)
    closing = weakref.finalize(library, _ctypes.dlclose, handle)
    closing.atexit = False  # other threads may still run it then
    return library


class CmsisNnExecutable:
    """A loaded region.

    Args:
        artifact: With its constants.
        scratch_bytes: Of the arena.
        library: With the function of the region.
    """

    survives_fork = True

    def __init__(self, artifact: Artifact, scratch_bytes: int, library: ctypes.CDLL) -> None:
        self.scratch_bytes = scratch_bytes
        self._target = artifact.target
        self._library = library
        self._constants = [np.ascontiguousarray(each.data) for each in artifact.constants]

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region on these arrays."""
        held = (tuple(inputs), tuple(outputs), self._constants, scratch)
        sides = [_pointers(side) for side in (inputs, outputs, self._constants)]
        arena = 0 if scratch is None else scratch.ctypes.data
        run = self._library.region_run

        def step() -> None:
            assert held
            status = run(*sides, ctypes.c_void_p(arena))
            if status:
                raise ExecutionError(
                    f"a function of CMSIS-NN failed with {status}", target=self._target
                )

        return step


def _pointers(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))


BACKEND = CmsisNnBackend()
