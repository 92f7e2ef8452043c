# SPDX-License-Identifier: Apache-2.0
"""The `webgpu` kind: a region is lowered as for `llvm`, and its kernels are written in WGSL.

`max_num_threads` and `max_shared_memory_per_block` limit a group. Pipelines are built when a region
is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.artifact import refuse
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.device import Device, ThreadOptions
from intarsia.backends.device_payload import check_fits, decode, make_payload, source_of
from intarsia.backends.native import damaged, native_artifact, native_groups, refuse_unknown
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
from intarsia.backends.webgpu import driver
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.execution import WebGpuExecutable
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.wgsl import (
    FEATURES,
    emit_wgsl,
    join_modules,
    needed_features,
    split_modules,
)
from intarsia.errors import BackendError, IntarsiaError, ReasonCode
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.lower.program import Program
    from intarsia.graph.graph import Graph, Value
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_USED = frozenset(("backend", "max_memory", "max_num_threads", "max_shared_memory_per_block"))
"""Attributes that change what is compiled or where it runs; what else a device has, it says
itself."""

_GENERATORS = (
    "intarsia.backends.webgpu",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)


@dataclass(frozen=True)
class WebGpuBackend(ConfiguredBackend):
    """Serves the kind `webgpu`, and `vulkan` and `metal` as the devices of that interface."""

    name = driver.BACKEND_NAME
    kinds = driver.KINDS
    defects = native_defects("webgpu")
    is_default = False

    def version(self) -> str:
        """Return the version of wgpu.

        Raises:
            BackendError: It is missing.
        """
        return driver.version()

    def detect(self) -> Detection:
        """Return the kinds that have a device, and a line for each device, or why there is none."""
        try:
            adapters = driver.list_adapters(self.settings)
        except IntarsiaError as error:
            return Detection.failed(error)
        interfaces = {entry.backend for entry in adapters}
        kinds = [kind for kind in self.kinds if kind == self.name or kind in interfaces]
        lines = tuple(f"webgpu:{entry.number} {entry.name}" for entry in adapters)
        return Detection(tuple(map(Target, kinds)), devices=lines)

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

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows, less what the device lacks.

        Raises:
            BackendError: There is no such device.
        """
        self.adapter(context)
        return (Rule("native", partial(_refuse, self)),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what lowering takes node by node it takes together."""
        return None

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each kernel.

        Raises:
            BackendError: There is no such device.
        """
        return native_groups(region, self.limits(context).unit)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as a program of kernels in WGSL with its weights packed.

        Raises:
            BackendError: A kernel needs what the device lacks.
        """
        from intarsia.codegen.dump import dump_kernels  # running a package lowers nothing
        from intarsia.codegen.lower.region import lower_region

        limits, entry = self.limits(context), self.adapter(context)
        program = lower_region(candidate.region, limits.machine)
        _check_bindings(program, entry)
        kernels = [emit_wgsl(kernel, limits) for kernel in program.kernels]
        dump_kernels(
            self.settings.dump_dir,
            program,
            entry.name,
            lambda kernel: {"wgsl": kernels[kernel].source},
        )
        source = join_modules([kernel.source for kernel in kernels])
        payload = make_payload(program, kernels, needed_features, source, entry.name)
        about = {ABOUT: program.summary(), SCRATCH: str(program.scratch_bytes)}
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code, and the device with its driver and interface.

        Raises:
            BackendError: There is no such device.
        """
        return CodeIdentity(_GENERATORS, device=", ".join(self.adapter(context).key))

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
            PackageError: The artifact is damaged.
        """
        if not isinstance(device, WebGpuDevice):
            raise BackendError(
                "code for WebGPU was given another backend's device",
                backend=self.name,
                target=artifact.target,
                hint="let the backend of the kind webgpu open its devices",
            )
        payload = decode(artifact)
        entry = device.entry
        check_fits(artifact, payload, entry.features, entry.limits.max_work_group, device)
        modules = split_modules(source_of(artifact, payload))
        if len(modules) != len(payload.kernels):
            raise damaged(artifact, "its source")
        return WebGpuExecutable(artifact, payload, modules, device)

    def adapter(self, context: BuildContext) -> driver.Adapter:
        """Return the device of a target.

        Raises:
            BackendError: There is no such device.
        """
        return driver.find_adapter(context.target, self.settings)

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


def _check_bindings(program: Program, entry: driver.Adapter) -> None:
    """Check that no kernel has more buffers than a device binds, or larger ones.

    Raises:
        BackendError: One has.
    """
    most = entry.most["max-storage-buffers-per-shader-stage"]
    for kernel in program.kernels:
        if len(kernel.buffers) > most:
            raise BackendError(
                f"kernel {kernel.name} has {len(kernel.buffers)} buffers, and {entry.name} binds "
                f"{most}",
                backend=driver.BACKEND_NAME,
                hint="exclude its nodes from this target: they have too many inputs",
            )


def _refuse(backend: WebGpuBackend, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse nodes that lowering does not take, and what the device cannot keep or compute."""
    entry = backend.adapter(context)
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


BACKEND = WebGpuBackend()
