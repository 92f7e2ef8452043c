# SPDX-License-Identifier: Apache-2.0
"""The `opencl` kind: a region is lowered as for `llvm`, and its kernels are written in OpenCL C.

Vectors are as wide as the device's; `max_num_threads` limits the work-items of a group. The source
is built when a region is loaded, or its binary is taken from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.artifact import refuse
from intarsia.backends.device import Device, ThreadOptions
from intarsia.backends.device_backend import DeviceBackend, DeviceLanguage, own_view
from intarsia.backends.device_payload import check_fits, decode, source_of
from intarsia.backends.native import refuse_unknown
from intarsia.backends.native_defects import native_defects
from intarsia.backends.opencl import driver
from intarsia.backends.opencl.binaries import BinaryCache
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.execution import OpenClExecutable
from intarsia.backends.opencl.first_use import first_use
from intarsia.backends.queues import said_in_vain
from intarsia.backends.values import Artifact, Refusal
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.opencl import (
    build_options,
    emit_opencl,
    needed_extensions,
    program_source,
)
from intarsia.errors import ReasonCode
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.target import VirtualDevice

_EXTENSIONS = {"float64": "cl_khr_fp64", "float16": "cl_khr_fp16"}
"""The extension that a device needs to compute with a dtype."""


_UNUSED = ("thread_warp_size", "texture_spatial_limit")
"""Attributes that change nothing: drivers choose sub-groups, and kernels use no images."""


@dataclass(frozen=True)
class OpenClBackend(DeviceBackend):
    """Serves the kind `opencl`. Settings say which devices there are, and where code is kept."""

    name = driver.BACKEND_NAME
    package = "intarsia.backends.opencl"
    kinds = ("opencl",)
    defects = native_defects("opencl")

    def version(self) -> str:
        """Return the versions of pyopencl and of the platforms.

        Raises:
            BackendError: pyopencl is missing.
        """
        return driver.version(self.settings)

    def found(self) -> tuple[Sequence[Target], Sequence[driver.DriverDevice]]:
        """Return the target and the devices.

        Raises:
            BackendError: There is none.
            SettingError: The setting names a device that is not there.
        """
        devices = driver.list_devices(self.settings)
        return (Target("opencl"),), devices

    def notes(self) -> Sequence[str]:
        """Return a line for each device that does not pass its self-test, and what would help."""
        failures = driver.list_failures(self.settings.cache_folder())
        lines = [f"not offered: {failure}" for failure in failures]
        return (*lines, f"for another driver: {driver.OTHER_DRIVER}") if failures else ()

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the limits that kernels are not shaped by."""
        return said_in_vain(target, _UNUSED)

    def limits(self, context: BuildContext) -> DeviceLimits:
        """Return what kernels for a target are shaped by: the device's limits, and the target's.

        Raises:
            BackendError: There is no such device.
        """
        limits = self._entry(context).limits
        most = context.attrs.get("max_num_threads", limits.max_work_group)
        return replace(limits, max_work_group=min(most, limits.max_work_group))

    def language(self, context: BuildContext) -> DeviceLanguage:
        """Return OpenCL C for the device of a target.

        Raises:
            BackendError: There is no such device.
        """
        limits = self.limits(context)
        return DeviceLanguage(
            self._entry(context).name,
            "cl",
            lambda kernel: emit_opencl(kernel, limits),
            lambda kernels: program_source(kernels, limits),
            needed_extensions,
        )

    def device_key(self, context: BuildContext) -> str:
        """Return the device with its platform, units and driver.

        Raises:
            BackendError: There is no such device.
        """
        entry = self._entry(context)
        return f"{entry.name}, driver {entry.device.driver_version}"

    def refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Refuse nodes that lowering does not take, and dtypes that the device cannot compute."""
        limits = self.limits(context)
        have = {"float64": limits.has_fp64, "float16": limits.has_fp16}
        refusals = dict(refuse_unknown(graph, context))
        for node in graph.nodes:
            values = (graph.values[i] for i in (*node.inputs, *node.outputs) if i >= 0)
            lacking = [value.dtype for value in values if not have.get(value.dtype, True)]
            if lacking and node.id not in refusals:
                refusals[node.id] = refuse(
                    node,
                    context,
                    ReasonCode.UNSUPPORTED_DTYPE,
                    f"the device lacks {_EXTENSIONS[lacking[0]]} for {lacking[0]}",
                )
        return refusals

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Open a device, with a context of its own.

        Raises:
            BackendError: There is no such device.
        """
        number = placed.device_id or 0
        return OpenClDevice(number, driver.find_device(number, str(placed), self.settings), options)

    def load(self, artifact: Artifact, device: Device) -> OpenClExecutable:
        """Build the kernels, or take their binary from the cache; put the weights on the device.

        Raises:
            BackendError: The device lacks what the code needs, or the driver does not build it, or
                dies of it.
            PackageError: The artifact is damaged.
        """
        device = own_view(device, OpenClDevice, "OpenCL", artifact.target, self.name)
        payload = decode(artifact)
        limits = device.entry.limits
        flags = {"cl_khr_fp64": limits.has_fp64, "cl_khr_fp16": limits.has_fp16}
        have = {name for name, is_there in flags.items() if is_there}
        check_fits(artifact, payload, have, limits, device)
        options = build_options(limits)
        caches, version = self.settings.cache_folder(), self.version()
        source = source_of(artifact, payload)
        first = first_use(source, options, payload, device, version, caches)
        # Before anything is built: a driver that died of this program once would take this process
        # too.
        first.require()
        with first.noted():
            program = BinaryCache(caches).program_of(source, options, device, version)
        return OpenClExecutable(artifact, payload, program, device, first)

    def _entry(self, context: BuildContext) -> driver.DriverDevice:
        number = context.target.device_id or 0
        return driver.find_device(number, str(context.target), self.settings)


BACKEND = OpenClBackend()
