# SPDX-License-Identifier: Apache-2.0
"""The `opencl` kind: a region is lowered as for `llvm`, and its kernels are written in OpenCL C.

Vectors are as wide as the device's; `max_num_threads` limits the work-items of a group. The source
is built when a region is loaded, or its binary is taken from the cache.
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
from intarsia.backends.native import native_artifact, native_groups, refuse_unknown
from intarsia.backends.native_defects import native_defects
from intarsia.backends.opencl import driver
from intarsia.backends.opencl.binaries import BinaryCache
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.execution import OpenClExecutable
from intarsia.backends.opencl.first_use import FirstUse
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
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.opencl import (
    build_options,
    emit_opencl,
    needed_extensions,
    program_source,
)
from intarsia.errors import BackendError, IntarsiaError, ReasonCode
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.ir import Function
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_ARGUMENT_BYTES = 8
"""Bytes of an argument: a buffer, the offset of a tensor in it, or a size."""

_EXTENSIONS = {"float64": "cl_khr_fp64", "float16": "cl_khr_fp16"}
"""The extension that a device needs to compute with a dtype."""


_UNUSED = ("thread_warp_size", "texture_spatial_limit")
"""Attributes that change nothing: drivers choose sub-groups, and kernels use no images."""


_GENERATORS = (
    "intarsia.backends.opencl",
    "intarsia.backends.native",
    "intarsia.codegen",
    "intarsia.native",
)


@dataclass(frozen=True)
class OpenClBackend(ConfiguredBackend):
    """Serves the kind `opencl`. Settings say which devices there are, and where code is kept."""

    name = driver.BACKEND_NAME
    kinds = ("opencl",)
    defects = native_defects("opencl")
    is_default = False

    def version(self) -> str:
        """Return the versions of pyopencl and of the platforms.

        Raises:
            BackendError: pyopencl is missing.
        """
        return driver.version(self.settings)

    def detect(self) -> Detection:
        """Return the target if there is a device, and a line for each, or why there is none."""
        try:
            devices = driver.list_devices(self.settings)
        except IntarsiaError as error:
            return Detection.failed(error)
        lines = tuple(f"opencl:{number} {entry.name}" for number, entry in enumerate(devices))
        return Detection((Target("opencl"),), devices=lines)

    def notes(self) -> Sequence[str]:
        """Return a line for each device that does not pass its self-test, and what would help."""
        failures = driver.list_failures(self.settings.cache_folder())
        lines = [f"not offered: {failure}" for failure in failures]
        return (*lines, f"for another driver: {driver.OTHER_DRIVER}") if failures else ()

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the limits that kernels are not shaped by."""
        return said_in_vain(target, _UNUSED)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every operator that lowering knows, less what the device lacks.

        Raises:
            BackendError: There is no such device.
        """
        self.limits(context)
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
        """Return the region as a program of kernels in OpenCL C with its weights packed.

        Raises:
            BackendError: A kernel needs what the device lacks.
        """
        from intarsia.codegen.dump import dump_kernels  # running a package lowers nothing
        from intarsia.codegen.lower.region import lower_region

        limits = self.limits(context)
        program = lower_region(candidate.region, limits.machine)
        entry = self._entry(context)
        for kernel in program.kernels:
            _check_arguments(kernel, entry)
        kernels = [emit_opencl(kernel, limits) for kernel in program.kernels]
        dump_kernels(
            self.settings.dump_dir,
            program,
            entry.name,
            lambda kernel: {"cl": program_source([kernels[kernel]], limits)},
        )
        source = program_source(kernels, limits)
        payload = make_payload(program, kernels, needed_extensions, source, entry.name)
        about = {ABOUT: program.summary(), SCRATCH: str(program.scratch_bytes)}
        return native_artifact(self.name, self.version(), candidate, program, payload, about)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what generates the code, and the device with its platform, units and driver.

        Raises:
            BackendError: There is no such device.
        """
        placed = context.target
        entry = driver.find_device(placed.device_id, str(placed), self.settings)
        device = f"{entry.name}, driver {entry.device.driver_version}"
        return CodeIdentity(_GENERATORS, device=device)

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
        if not isinstance(device, OpenClDevice):
            raise BackendError(
                "code for OpenCL was given another backend's device",
                backend=self.name,
                target=artifact.target,
                hint="let the backend of the kind opencl open its devices",
            )
        payload = decode(artifact)
        limits = device.entry.limits
        flags = {"cl_khr_fp64": limits.has_fp64, "cl_khr_fp16": limits.has_fp16}
        have = {name for name, is_there in flags.items() if is_there}
        check_fits(artifact, payload, have, limits.max_work_group, device)
        options = build_options(limits)
        caches, version = self.settings.cache_folder(), self.version()
        source = source_of(artifact, payload)
        first = FirstUse(source, options, payload, device, version, caches)
        # Before anything is built: a driver that died of this program once would take this process
        # too.
        first.require()
        with first.noted():
            program = BinaryCache(caches).program_of(source, options, device, version)
        return OpenClExecutable(artifact, payload, program, device, first)

    def _entry(self, context: BuildContext) -> driver.DriverDevice:
        number = context.target.device_id or 0
        return driver.find_device(number, str(context.target), self.settings)

    def most_values(self, context: BuildContext) -> int:
        """Return how many arrays a kernel may have.

        Raises:
            BackendError: There is no such device.
        """
        return self._entry(context).max_argument_bytes // (2 * _ARGUMENT_BYTES)

    def limits(self, context: BuildContext) -> DeviceLimits:
        """Return what kernels for a target are shaped by: the device's limits, and the target's.

        Raises:
            BackendError: There is no such device.
        """
        limits = self._entry(context).limits
        most = context.attrs.get("max_num_threads", limits.max_work_group)
        return replace(limits, max_work_group=min(most, limits.max_work_group))


_TOGETHER = frozenset(("Max", "Mean", "Min", "Sum"))
"""Operators whose inputs, of which there may be any number, one kernel reads."""


def _check_arguments(kernel: Function, entry: driver.DriverDevice) -> None:
    """Check that a kernel has no more arguments than a device takes.

    Raises:
        BackendError: It has.
    """
    nbytes = _ARGUMENT_BYTES * (2 * len(kernel.buffers) + len(kernel.sizes))
    if nbytes > entry.max_argument_bytes:
        raise BackendError(
            f"kernel {kernel.name} has {nbytes} bytes of arguments, and {entry.name} takes "
            f"{entry.max_argument_bytes}",
            backend=driver.BACKEND_NAME,
            hint="exclude its nodes from this target: they have too many inputs",
        )


def _refuse(backend: OpenClBackend, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse nodes that lowering does not take, and dtypes that the device cannot compute."""
    limits, most = backend.limits(context), backend.most_values(context)
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
        count = len({*node.inputs, *node.outputs})
        if node.op_type in _TOGETHER and count > most and node.id not in refusals:
            reason = f"the device takes {most} arrays at once, and it has {count}"
            refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
    return refusals


BACKEND = OpenClBackend()
