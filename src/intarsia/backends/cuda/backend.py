# SPDX-License-Identifier: Apache-2.0
"""The kinds `cuda` and `nvptx`: a region is lowered as for `llvm`, and its kernels become PTX.

`arch` (`mcpu` of `nvptx`) says what PTX is made for; without it, the device does. The driver makes
machine code of PTX when a region is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.backends.cuda import driver
from intarsia.backends.cuda.device import CudaView
from intarsia.backends.cuda.execution import CudaExecutable
from intarsia.backends.device import Device, ThreadOptions
from intarsia.backends.device_backend import DeviceBackend, DeviceLanguage, own_view
from intarsia.backends.device_payload import check_fits, decode, source_of
from intarsia.backends.native_defects import native_defects
from intarsia.backends.queues import said_in_vain
from intarsia.backends.values import Artifact
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.errors import BackendError
from intarsia.native.ptx import capability_of, compile_ptx, gpu_limits, ptx_arch
from intarsia.native.ptxas import KernelResources, assemble
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.target import VirtualDevice

_UNUSED = ("thread_warp_size",)
"""Attributes that change nothing: every GPU has warps of 32 threads."""
_CPU_UNUSED = ("mcpu",)
"""And of `cuda`: kernels have no part that is a CPU's."""


@dataclass(frozen=True)
class CudaBackend(DeviceBackend):
    """Serves the kinds `cuda` and `nvptx`, which differ in how a target is written."""

    name = driver.BACKEND_NAME
    package = "intarsia.backends.cuda"
    kinds = ("cuda", "nvptx")
    defects = native_defects("cuda")

    def version(self) -> str:
        """Return the versions of cuda-bindings and of NVIDIA's driver.

        Raises:
            BackendError: One is missing.
        """
        return driver.version()

    def found(self) -> tuple[Sequence[Target], Sequence[driver.CudaDevice]]:
        """Return the target for the first GPU, and the GPUs.

        Raises:
            BackendError: There is none.
            TargetError: The first is too old.
        """
        devices = driver.list_devices(self.settings)
        return (Target(f"cuda -arch={ptx_arch(devices[0].capability)}"),), devices

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

    def kernel_needs(self, artifact: Artifact) -> Sequence[KernelResources]:
        """Return what the kernels of an artifact need of a GPU.

        Raises:
            BackendError: There is no `ptxas`.
            PackageError: The artifact is damaged.
        """
        return assemble(source_of(artifact, decode(artifact)))

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the limits that kernels are not shaped by."""
        is_cuda = target.kind.name == "cuda"
        return said_in_vain(target, (*_UNUSED, *(_CPU_UNUSED if is_cuda else ())))

    def limits(self, context: BuildContext) -> DeviceLimits:
        """Return what kernels for a target are shaped by: what it says, and its architecture.

        Raises:
            BackendError: There is no such device, or it is older than the target says.
        """
        return gpu_limits(context.target.target, self.arch(context))

    def language(self, context: BuildContext) -> DeviceLanguage:
        """Return PTX for the architecture of a target.

        Raises:
            BackendError: There is no such device, or it is older than the target says.
        """
        arch, limits = self.arch(context), self.limits(context)
        return DeviceLanguage(
            arch,
            "ptx",
            lambda kernel: emit_nvptx(kernel, limits),
            lambda kernels: compile_ptx(kernels, arch),
            lambda _: (),
            kernel_suffix="ll",
        )

    def device_key(self, context: BuildContext) -> str:
        """Return the device with its driver.

        Raises:
            BackendError: There is no such device.
        """
        return self._entry(context).key

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
        device = own_view(device, CudaView, "CUDA", artifact.target, self.name)
        payload = decode(artifact)
        most = device.entry.most
        limits = DeviceLimits(max_work_group=most["threads"], local_bytes=most["shared"])
        check_fits(artifact, payload, (), limits, device)
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
