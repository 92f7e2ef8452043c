# SPDX-License-Identifier: Apache-2.0
"""What partial backends of NVIDIA's libraries share, on the device that `cuda` opens.

A table of patterns says what a library computes; which way it computes that is chosen where a
region is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from intarsia.backends.artifact import pack_payload, tensor_spec
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.cuda import driver
from intarsia.backends.cuda.backend import BACKEND as CUDA
from intarsia.backends.cuda.device import CudaView
from intarsia.backends.device_backend import own_view
from intarsia.backends.patterns import pattern_groups, pattern_rules
from intarsia.backends.values import (
    SCRATCH,
    Artifact,
    ArtifactConstant,
    Candidate,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.errors import BackendError, IntarsiaError
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.device import Device, Executable, ThreadOptions
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.pattern import Match, Table
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_GENERATORS = (
    "intarsia.backends.cuda",
    "intarsia.codegen.lower.operation",
    "intarsia.codegen.lower.windows",
)


class CudaLibraryBackend(ConfiguredBackend, ABC):
    """Serves the kind of its name.

    Attributes:
        name: As for every backend.
        title: Of the library, for people.
        kinds: Its kind.
        is_default: It has to be named.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    is_default: ClassVar[bool] = False

    @abstractmethod
    def library_version(self) -> str:
        """Return the version of the library.

        Raises:
            BackendError: It is not installed.
        """

    @abstractmethod
    def table(self) -> Table:
        """Return what the library computes, as patterns."""

    @abstractmethod
    def write(self, region: Region, context: BuildContext) -> tuple[Any, Mapping[str, Array]]:
        """Return a region as the library's program, which has `scratch_bytes`, and its constants.

        Raises:
            BackendError: A node is of no pattern.
        """

    @abstractmethod
    def executable(self, artifact: Artifact, view: CudaView) -> Executable:
        """Return a program that is loaded.

        Raises:
            BackendError: The library does not take a part of it.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """

    def refuse_on_device(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Return what the library does not compute on this device, whatever pattern it is of."""
        return {}

    def version(self) -> str:
        """Return the versions of the library and of NVIDIA's driver.

        Raises:
            BackendError: One is missing.
        """
        return f"{self.title} {self.library_version()}, {driver.version()}"

    def detect(self) -> Detection:
        """Return the first GPU, or why none can be used."""
        try:
            self.require_kind(self.name)
            targets, _ = CUDA.with_settings(self.settings).found()
        except IntarsiaError as error:
            return Detection.failed(error)
        arch = targets[0].attrs["arch"]
        return Detection((Target(f"{self.name} -base='cuda -arch={arch}'"),))

    def require_kind(self, kind: str) -> None:
        """Check that the library is there, and a GPU.

        Raises:
            BackendError: One is missing.
        """
        self.library_version()
        driver.list_devices(self.settings)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return a rule for each pattern.

        Raises:
            BackendError: The library or a GPU is missing.
        """
        self.require_kind(self.name)
        return pattern_rules(self.table(), self.refuse_on_device)

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each match."""
        return pattern_groups(self.table(), region)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what the table has, it has in every region."""
        return None

    def device(self, context: BuildContext) -> driver.CudaDevice:
        """Return the device of a target.

        Raises:
            BackendError: There is no such device.
        """
        number = context.target.device_id or 0
        return driver.find_device(number, str(context.target), self.settings)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return the modules that decide what the library is given, and the device."""
        return CodeIdentity(_GENERATORS, device=self.device(context).key)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return a region as the library's program.

        Raises:
            BackendError: A node is of no pattern.
        """
        program, constants = self.write(candidate.region, context)
        region, values = candidate.region, candidate.region.graph.values
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=pack_payload(program),
            inputs=tuple(tensor_spec(values[one]) for one in region.inputs),
            outputs=tuple(tensor_spec(values[one]) for one in region.outputs),
            constants=tuple(ArtifactConstant(name, array) for name, array in constants.items()),
            metadata={SCRATCH: str(program.scratch_bytes)},
        )

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Open a device, as `cuda` does.

        Raises:
            BackendError: There is no such device.
        """
        return CUDA.with_settings(self.settings).open(placed, options)

    def load(self, artifact: Artifact, device: Device) -> Executable:
        """Put the weights on the device, and choose algorithms there.

        Raises:
            BackendError: The library does not take a part of it.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """
        view = own_view(device, CudaView, self.title, artifact.target, driver.BACKEND_NAME)
        return self.executable(artifact, view)


def region_matches(region: Region, table: Table, backend: str, what: str) -> list[Match]:
    """Return the matches of a table that are a region, in the order in which they run.

    Args:
        region: The region.
        table: The library's.
        backend: Its name.
        what: The library computes, for the message.

    Raises:
        BackendError: A node is in none.
    """
    from intarsia.graph.pattern import match_region  # running a package reads no graph

    matches = sorted(match_region(region, tuple(table)), key=lambda match: match.members[-1])
    taken = {node for match in matches for node in match.members}
    for node in region.nodes:
        if node not in taken:
            name = region.graph.nodes[node].name
            raise BackendError(f"{name!r} is no {what}", backend=backend, node=name)
    return matches
