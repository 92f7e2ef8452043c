# SPDX-License-Identifier: Apache-2.0
"""What partial backends of libraries for the CPU share whose package is one of Python.

A table says by operator how a node is written for the library; the library is asked for each
distinct node. Attribute: `num_threads`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.backends.artifact import Verdict, probe_nodes, tensor_spec
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.defects import KnownDefect, refuse_defects
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.values import (
    Artifact,
    ArtifactConstant,
    Candidate,
    CodeIdentity,
    Detection,
    Refusal,
    Rule,
)
from intarsia.errors import BackendError, ExecutionError, ReasonCode
from intarsia.process.selftest import is_inside
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.runtimes import PythonRuntime
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

SHARED = ("intarsia.backends.library_backend", "intarsia.backends.float_operators")
"""Modules that decide, for all of them, what a library is given."""
_THREADS = "num_threads"


@dataclass(frozen=True)
class LibraryBackend(ConfiguredBackend, ABC):
    """Serves one kind, of the backend's name. Settings say where verdicts on self-tests are kept.

    Attributes:
        runtime: The library.
        modules: Ours that decide what it is given.
        defects: What the library is known to get wrong.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    runtime: ClassVar[PythonRuntime]
    modules: ClassVar[tuple[str, ...]]
    defects: ClassVar[tuple[KnownDefect, ...]]
    is_default: ClassVar[bool] = False

    @abstractmethod
    def problem(self, region: Region) -> str | None:
        """Return why the library does not take a region; None if it does.

        Raises:
            BackendError: It is not in the table, or the library refused it.
            ExecutionError: It failed there.
        """

    @abstractmethod
    def write(self, region: Region) -> tuple[bytes, Mapping[str, Array]]:
        """Return a region as the library reads it, and its constants by name.

        Raises:
            BackendError: It is not in the table.
        """

    def version(self) -> str:
        """Return the library's version.

        Raises:
            BackendError: It is not installed.
        """
        installed = self.runtime.installed_version(self.settings.cache_folder())
        return installed or str(self.runtime.module().__version__)

    def detect(self) -> Detection:
        """Return the CPU, or why the library cannot be used."""
        try:
            if is_inside() or not self.runtime.require(self.settings.cache_folder()):
                self.runtime.module()
        except BackendError as error:
            return Detection.failed(error)
        return Detection((Target(self.name),), rank=4)

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return the modules that decide what the library is given."""
        return CodeIdentity(self.modules)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: what the table has and the library takes."""
        return (Rule("table", self._refuse),)

    def _refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        self.runtime.require(self.settings.cache_folder())

        def attempt(region: Region) -> Verdict:
            try:
                problem = self.problem(region)
            except (BackendError, ExecutionError) as error:
                problem = error.message
            return (ReasonCode.UNSUPPORTED_OP, problem) if problem else None

        refusals = probe_nodes(graph, context, attempt)
        return {**refusals, **refuse_defects(graph, context, self.defects, self.version())}

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: whether the library takes a whole region is known when it is loaded."""
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return a region as the library reads it.

        Raises:
            BackendError: A node is not in the table.
        """
        region, values = candidate.region, candidate.region.graph.values
        payload, constants = self.write(region)
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=payload,
            inputs=tuple(tensor_spec(values[one]) for one in region.inputs),
            outputs=tuple(tensor_spec(values[one]) for one in region.outputs),
            constants=tuple(
                ArtifactConstant(name, array, is_packed=True) for name, array in constants.items()
            ),
            metadata={_THREADS: str(context.attrs.get(_THREADS) or 0)},
        )

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def ready(self, artifact: Artifact, device: Device) -> int:
        """Return the threads of a region that is loaded, once the library has been tried.

        Raises:
            BackendError: It has not passed its self-test.
        """
        self.runtime.require(self.settings.cache_folder())
        return int(artifact.metadata[_THREADS]) or device.options.num_threads
