# SPDX-License-Identifier: Apache-2.0
"""The kinds `cuda` and `nvptx`: a region is lowered as for `llvm`, and its kernels become PTX.

`arch` (`mcpu` of `nvptx`) says what PTX is made for; without it, the device does. The driver makes
machine code of PTX when a region is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.cuda import driver
from intarsia.backends.cuda.device import CudaView
from intarsia.backends.cuda.execution import CudaExecutable
from intarsia.backends.device import Device, ThreadOptions
from intarsia.backends.device_payload import check_fits, decode, make_payload, source_of
from intarsia.backends.native import native_artifact, native_groups, refuse_unknown
from intarsia.backends.native_defects import native_defects
from intarsia.backends.queues import said_in_vain
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
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.errors import BackendError, IntarsiaError
from intarsia.native.ptx import capability_of, compile_ptx, gpu_limits, ptx_arch
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_UNUSED = ("thread_warp_size",)
"""Attributes that change nothing: every GPU has warps of 32 threads."""
_CPU_UNUSED = ("mcpu",)
"""And of `cuda`: kernels have no part that is a CPU's."""

_GENERATORS = (
    "intarsia.backends.cuda",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)


@dataclass(frozen=True)
class CudaBackend(ConfiguredBackend):
    """Serves the kinds `cuda` and `nvptx`, which differ in how a target is written."""

    name = driver.BACKEND_NAME
    kinds = ("cuda", "nvptx")
    defects = native_defects("cuda")
    is_default = False

    def version(self) -> str:
        """Return the versions of cuda-bindings and of NVIDIA's driver.

        Raises:
            BackendError: One is missing.
        """
        return driver.version()

    def detect(self) -> Detection:
        """Return the target if there is a GPU, and a line for each, or why there is none."""
        try:
            devices = driver.list_devices(self.settings)
            first = Target(f"cuda -arch={ptx_arch(devices[0].capability)}")
        except IntarsiaError as error:
            return Detection.failed(error)
        lines = tuple(f"cuda:{number} {entry.name}" for number, entry in enumerate(devices))
        return Detection((first,), devices=lines)

    def require_kind(self, kind: str) -> None:
        """Check that there is a GPU.

        Raises:
            BackendError: There is none, none passes its self-test, or something is missing.
        """
        driver.list_devices(self.settings)

    def notes(self) -> Sequence[str]:
        """Return a line for each GPU that does not pass its self-test."""
        tried = driver.tried_devices(self.settings.cache_folder())
        return [f"not offered: {name}: {problem}" for name, problem in tried.failed]

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the limits that kernels are not shaped by."""
        is_cuda = target.kind.name == "cuda"
        return said_in_vain(target, (*_UNUSED, *(_CPU_UNUSED if is_cuda else ())))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows.

        Raises:
            BackendError: There is no such device, or it is older than the target says.
        """
        self.arch(context)
        return (Rule("native", refuse_unknown),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what lowering takes node by node it takes together."""
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each kernel."""
        return native_groups(region, gpu_limits(context.target.target).unit)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of kernels in PTX with its weights packed.

        Raises:
            BackendError: There is no such device, or a kernel is too large for CUDA.
        """
        from intarsia.codegen.dump import dump_kernels  # running a package lowers nothing
        from intarsia.codegen.lower.region import lower_region

        arch, limits = self.arch(context), gpu_limits(context.target.target)
        program = lower_region(candidate.region, limits.machine)
        kernels = [emit_nvptx(kernel, limits) for kernel in program.kernels]
        dump_kernels(
            self.settings.dump_dir,
            program,
            arch,
            lambda number: {
                "ll": kernels[number].source,
                "ptx": compile_ptx([kernels[number]], arch),
            },
        )
        ptx = compile_ptx(kernels, arch)
        payload = make_payload(program, kernels, lambda _: (), ptx, arch)
        about = {ABOUT: program.summary(), SCRATCH: str(program.scratch_bytes)}
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code, and the device with its driver.

        Raises:
            BackendError: There is no such device.
        """
        return CodeIdentity(_GENERATORS, device=self._entry(context).key)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Open a device.

        Raises:
            BackendError: There is no such device.
        """
        number = placed.device_id or 0
        return CudaView(number, driver.find_device(number, str(placed), self.settings), options)

    def load(self, artifact: Artifact, device: Device) -> CudaExecutable:
        """Have the driver make machine code, and put the weights on the device.

        Raises:
            BackendError: The device is too old for the code, or the driver does not take it.
            PackageError: The artifact is damaged.
        """
        if not isinstance(device, CudaView):
            raise BackendError(
                "code for CUDA was given another backend's device",
                backend=self.name,
                target=artifact.target,
                hint="let the backend of the kind cuda open its devices",
            )
        payload = decode(artifact)
        check_fits(artifact, payload, (), device.entry.most["threads"], device)
        return CudaExecutable(artifact, payload, source_of(artifact, payload), device)

    def _entry(self, context: BuildContext) -> driver.CudaDevice:
        number = context.target.device_id or 0
        return driver.find_device(number, str(context.target), self.settings)

    def arch(self, context: BuildContext) -> str:
        """Return the architecture that PTX for a target is made for.

        Raises:
            BackendError: There is no such device, or it is older than the target says.
        """
        entry, said = self._entry(context), capability_of(context.target.target)
        if said is not None and said > entry.capability:
            raise BackendError(
                f"the device is {entry.name}, and the target says sm_{said}",
                backend=self.name,
                target=str(context.target),
                hint=f"say sm_{entry.capability} or less, or leave it out",
            )
        return ptx_arch(said or entry.capability)


BACKEND = CudaBackend()
