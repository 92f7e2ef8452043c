# SPDX-License-Identifier: Apache-2.0
"""What the backends share that compile regions for devices with queues.

A region is lowered as for `llvm`, and its kernels are written in the language of the device. What a
language is, is a value (`DeviceLanguage`); a backend says which one a target has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.device_list import NamedDevice, numbered
from intarsia.backends.device_payload import make_payload
from intarsia.backends.native import native_artifact, native_groups, refuse_unknown
from intarsia.backends.queues import QueueView
from intarsia.backends.values import (
    ABOUT,
    SCRATCH,
    Artifact,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.codegen.emit.device_family import DeviceKernel, DeviceLimits
from intarsia.errors import BackendError, IntarsiaError

if TYPE_CHECKING:
    from intarsia.backends.device import Device
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.ir import Function
    from intarsia.codegen.lower.program import Program
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import Target

_GENERATORS = (
    "intarsia.backends.device_backend",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)


View = TypeVar("View", bound=QueueView)


@dataclass(frozen=True, slots=True)
class DeviceLanguage:
    """The language of a device, and how kernels are written in it.

    Attributes:
        device: What the code is for, for people.
        suffix: Of files of it.
        emit: Returns a kernel.
        join: Returns kernels as one source.
        needed: Tells which extensions of the language a kernel needs.
        kernel_suffix: Of files of a kernel's own text, where that is another language.
    """

    device: str
    suffix: str
    emit: Callable[[Function], DeviceKernel]
    join: Callable[[Sequence[DeviceKernel]], str]
    needed: Callable[[Function], Sequence[str]]
    kernel_suffix: str = ""


class DeviceBackend(ConfiguredBackend, ABC):
    """A backend of devices with queues, less what only its runtime can tell.

    Attributes:
        name: As for every backend.
        package: Where its own code is.
        is_default: Devices have to be named.
    """

    name: str
    package: str
    is_default = False

    # What a runtime tells

    @abstractmethod
    def version(self) -> str:
        """Return the version of what runs the code."""

    @abstractmethod
    def found(self) -> tuple[Sequence[Target], Sequence[NamedDevice]]:
        """Return the targets that have a device, and the devices in their order.

        Raises:
            IntarsiaError: There is none.
        """

    @abstractmethod
    def limits(self, context: BuildContext) -> DeviceLimits:
        """Return what kernels for a target are shaped by: the device's limits, and the target's.

        Raises:
            BackendError: There is no such device.
        """

    @abstractmethod
    def language(self, context: BuildContext) -> DeviceLanguage:
        """Return the language of a target.

        Raises:
            BackendError: There is no such device.
        """

    @abstractmethod
    def device_key(self, context: BuildContext) -> str:
        """Return what code for a target depends on beside our sources: device and driver.

        Raises:
            BackendError: There is no such device.
        """

    # What follows from it

    def detect(self) -> Detection:
        """Return the targets that have a device, and a line for each, or why there is none."""
        try:
            targets, devices = self.found()
        except IntarsiaError as error:
            return Detection.failed(error)
        return Detection(tuple(targets), devices=numbered(self.name, devices))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows, less what the device lacks.

        Raises:
            BackendError: There is no such device.
        """
        self.language(context)
        return (Rule("native", self.refuse),)

    def refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Refuse nodes that lowering does not take."""
        return refuse_unknown(graph, context)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what lowering takes node by node it takes together."""
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each kernel.

        Raises:
            BackendError: There is no such device.
        """
        limits = self.limits(context)
        return native_groups(region, limits.unit, limits.most_buffers)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of kernels in the device's language, weights packed.

        Raises:
            BackendError: A kernel needs what the device lacks, or there is no such device.
        """
        from intarsia.codegen.dump import dump_kernels  # running a package lowers nothing
        from intarsia.codegen.lower.region import lower_region

        limits, language = self.limits(context), self.language(context)
        program = lower_region(candidate.region, limits.machine, most_buffers=limits.most_buffers)
        _check_buffers(program, limits, language, self.name)
        kernels = [language.emit(kernel) for kernel in program.kernels]

        def texts(number: int) -> Mapping[str, str]:
            kernel = kernels[number]
            own = {language.kernel_suffix: kernel.source} if language.kernel_suffix else {}
            return {**own, language.suffix: language.join([kernel])}

        dump_kernels(self.settings.dump_dir, program, language.device, texts)
        source = language.join(kernels)
        payload = make_payload(program, kernels, language.needed, source, language.device)
        about = {ABOUT: program.summary(), SCRATCH: str(program.scratch_bytes)}
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code, and the device with its driver.

        Raises:
            BackendError: There is no such device.
        """
        return CodeIdentity((self.package, *_GENERATORS), device=self.device_key(context))


def _check_buffers(
    program: Program, limits: DeviceLimits, language: DeviceLanguage, backend: str
) -> None:
    """Check that no kernel has more buffers than the device takes.

    Raises:
        BackendError: One has.
    """
    most = limits.most_buffers
    for kernel in program.kernels:
        if most is not None and len(kernel.buffers) > most:
            raise BackendError(
                f"kernel {kernel.name} has {len(kernel.buffers)} buffers, and {language.device} "
                f"takes {most}",
                backend=backend,
                hint="exclude its nodes from this target: they have too many inputs",
            )


def own_view(device: Device, kind: type[View], title: str, target: str, backend: str) -> View:
    """Return a device as the backend's own.

    Args:
        device: Where an artifact is to be loaded.
        kind: The backend's class.
        title: Of the runtime.
        target: Of the artifact.
        backend: Its name.

    Raises:
        BackendError: Another backend has opened it.
    """
    if not isinstance(device, kind):
        raise BackendError(
            f"code for {title} was given another backend's device",
            backend=backend,
            target=target,
            hint=f"let the backend of the kind {backend} open its devices",
        )
    return device
