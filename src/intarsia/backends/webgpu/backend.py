# SPDX-License-Identifier: Apache-2.0
"""The `webgpu` kind: a region is lowered as for `llvm`, and its kernels are written in WGSL.

`max_num_threads` and `max_shared_memory_per_block` limit a group. Pipelines are built when a region
is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.artifact import damaged, refuse
from intarsia.backends.device import Device, ThreadOptions
from intarsia.backends.device_backend import DeviceBackend, DeviceLanguage, own_view
from intarsia.backends.device_payload import check_fits, decode, source_of
from intarsia.backends.native import refuse_unknown
from intarsia.backends.native_defects import native_defects
from intarsia.backends.queues import said_in_vain
from intarsia.backends.values import Artifact, Refusal
from intarsia.backends.webgpu import driver
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.execution import WebGpuExecutable
from intarsia.backends.webgpu.first_use import first_use
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.wgsl import (
    FEATURES,
    emit_wgsl,
    join_modules,
    needed_features,
    split_modules,
)
from intarsia.errors import ReasonCode
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph, Value
    from intarsia.target import VirtualDevice

_USED = frozenset(("backend", "max_memory", "max_num_threads", "max_shared_memory_per_block"))
"""Attributes that change what is compiled or where it runs; what else a device has, it says
itself."""


@dataclass(frozen=True)
class WebGpuBackend(DeviceBackend):
    """Serves the kind `webgpu`, and `vulkan` and `metal` as the devices of that interface."""

    name = driver.BACKEND_NAME
    package = "intarsia.backends.webgpu"
    kinds = driver.KINDS
    defects = native_defects("webgpu")

    def version(self) -> str:
        """Return the version of wgpu.

        Raises:
            BackendError: It is missing.
        """
        return driver.version()

    def found(self) -> tuple[Sequence[Target], Sequence[driver.Adapter]]:
        """Return the kinds that have a device, and the devices.

        Raises:
            BackendError: There is none.
        """
        adapters = driver.list_adapters(self.settings)
        interfaces = {entry.backend for entry in adapters}
        kinds = [kind for kind in self.kinds if kind == self.name or kind in interfaces]
        return [Target(kind) for kind in kinds], adapters

    def require_kind(self, kind: str) -> None:
        """Check that a kind has a device.

        Raises:
            BackendError: There is none, or none passes its self-test.
        """
        driver.list_devices(kind, self.settings)

    def notes(self) -> Sequence[str]:
        """Return a line for each device: its limits, or why it is not offered."""
        tried = driver.tried_devices(self.settings.cache_folder())
        failed = [f"not offered: {name}: {problem}" for name, problem in tried.failed]
        found = [
            f"webgpu:{entry.number}: {driver.say_limits(entry)}"
            for entry in driver.list_adapters(self.settings)
        ]
        return [*found, *failed]

    def check_target(self, target: Target) -> Sequence[str]:
        """Return what is said of the device, which changes nothing."""
        if target.kind.name not in self.kinds:  # a partial kind on the same device
            return ()
        return said_in_vain(target, [name for name in target.attrs if name not in _USED])

    def limits(self, context: BuildContext) -> DeviceLimits:
        """Return what kernels for a target are shaped by: the device's limits, and the target's.

        Raises:
            BackendError: There is no such device.
        """
        limits, attrs = self.adapter(context).limits, context.attrs
        most = attrs.get("max_num_threads", limits.max_work_group)
        local = attrs.get("max_shared_memory_per_block", limits.local_bytes)
        return replace(
            limits,
            max_work_group=min(most, limits.max_work_group),
            local_bytes=min(local, limits.local_bytes),
        )

    def language(self, context: BuildContext) -> DeviceLanguage:
        """Return WGSL for the device of a target.

        Raises:
            BackendError: There is no such device.
        """
        limits = self.limits(context)
        return DeviceLanguage(
            self.adapter(context).name,
            "wgsl",
            lambda kernel: emit_wgsl(kernel, limits),
            lambda kernels: join_modules([kernel.source for kernel in kernels]),
            needed_features,
        )

    def device_key(self, context: BuildContext) -> str:
        """Return the device with its driver and interface.

        Raises:
            BackendError: There is no such device.
        """
        return ", ".join(self.adapter(context).key)

    def refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Refuse nodes that lowering does not take, and what the device cannot keep or compute."""
        entry = self.adapter(context)
        refusals = dict(refuse_unknown(graph, context))
        most = entry.most["max-storage-buffer-binding-size"]

        def lacking(value: Value) -> tuple[ReasonCode, str] | None:
            feature = FEATURES.get(value.dtype)
            if feature and feature not in entry.features:
                problem = f"the device lacks {feature} for {value.dtype}"
                return ReasonCode.UNSUPPORTED_DTYPE, problem
            if value.nbytes > most:
                problem = f"{value.name!r} has {value.nbytes} bytes, and the device binds {most}"
                return ReasonCode.UNSUPPORTED_OP, problem
            return None

        for node in graph.nodes:
            if node.id in refusals:
                continue
            values = [graph.values[i] for i in (*node.inputs, *node.outputs) if i >= 0]
            problem = next((problem for value in values if (problem := lacking(value))), None)
            if problem is None and node.op_type == "Mod" and values[0].dtype == "float64":
                problem = ReasonCode.UNSUPPORTED_DTYPE, "WGSL has no exact remainder of float64"
            if problem is not None:
                refusals[node.id] = refuse(node, context, *problem)
        return refusals

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Open a device.

        Raises:
            BackendError: There is no such device.
        """
        entry = driver.find_adapter(placed, self.settings)
        return WebGpuDevice(entry.number, entry, options)

    def load(self, artifact: Artifact, device: Device) -> WebGpuExecutable:
        """Build the kernels, and put the weights on the device.

        Raises:
            BackendError: The device lacks what the code needs, or the driver does not build it.
            ExecutionError: The driver dies of it.
            PackageError: The artifact is damaged.
        """
        device = own_view(device, WebGpuDevice, "WebGPU", artifact.target, self.name)
        payload = decode(artifact)
        entry = device.entry
        check_fits(artifact, payload, entry.features, entry.limits, device)
        modules = split_modules(source_of(artifact, payload))
        if len(modules) != len(payload.kernels):
            raise damaged(artifact, "its source")
        first = first_use(modules, payload, device, self.settings.cache_folder())
        # Before anything is built: a driver that died of this program once would take this process
        # too.
        first.require()
        with first.noted():
            return WebGpuExecutable(artifact, payload, modules, device, first)

    def adapter(self, context: BuildContext) -> driver.Adapter:
        """Return the device of a target.

        Raises:
            BackendError: There is no such device.
        """
        return driver.find_adapter(context.target, self.settings)


BACKEND = WebGpuBackend()
