# SPDX-License-Identifier: Apache-2.0
"""The kind `cublas`: a partial backend of matrix products, on the device that `cuda` opens.

Attributes: `math_mode`, `disallow_reduced_precision_reduction`, `workspace_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.artifact import pack_payload, tensor_spec, unpack_payload
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.cuda import driver
from intarsia.backends.cuda.backend import BACKEND as CUDA
from intarsia.backends.cuda.cublas.library import BACKEND_NAME, library
from intarsia.backends.cuda.cublas.products import LtPlace, LtProduct, LtProgram, ProductTensor
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
from intarsia.graph.arena import ALIGNMENT
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.cuda.cublas.execution import CublasExecutable
    from intarsia.backends.device import Device, ThreadOptions
    from intarsia.backends.values import BuildContext
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_GENERATORS = ("intarsia.backends.cuda", "intarsia.codegen.lower.operation")
_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS's manual recommends for the newest GPUs."""


@dataclass(frozen=True)
class CublasBackend(ConfiguredBackend):
    """Serves the kind `cublas`."""

    name = BACKEND_NAME
    kinds = (BACKEND_NAME,)
    is_default = False

    def version(self) -> str:
        """Return the versions of cuBLASLt and of NVIDIA's driver.

        Raises:
            BackendError: One is missing.
        """
        return f"cuBLASLt {library().version()}, {driver.version()}"

    def detect(self) -> Detection:
        """Return the first GPU, or why none can be used."""
        try:
            self.require_kind(self.name)
            targets, _ = CUDA.with_settings(self.settings).found()
        except IntarsiaError as error:
            return Detection.failed(error)
        arch = targets[0].attrs["arch"]
        return Detection((Target(f"{self.name} -from_device='cuda -arch={arch}'"),))

    def require_kind(self, kind: str) -> None:
        """Check that the library is there, and a GPU.

        Raises:
            BackendError: One is missing.
        """
        library()
        driver.list_devices(self.settings)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return a rule for each pattern.

        Raises:
            BackendError: The library or a GPU is missing.
        """
        from intarsia.backends.cuda.cublas.table import TABLE  # running a package reads no graph

        self.require_kind(self.name)
        return pattern_rules(TABLE)

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the nodes of each product."""
        from intarsia.backends.cuda.cublas.table import TABLE

        return pattern_groups(TABLE, region)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: what the table has, it has in every region."""
        return None

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return the modules that decide what the library is given, and the device."""
        number = context.target.device_id or 0
        device = driver.find_device(number, str(context.target), self.settings)
        return CodeIdentity(_GENERATORS, device=device.key)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return a region as products.

        Raises:
            BackendError: A node is none.
        """
        program, constants = program_of(candidate.region, context)
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

    def load(self, artifact: Artifact, device: Device) -> CublasExecutable:
        """Put the weights on the device, and choose algorithms there.

        Raises:
            BackendError: The library has no algorithm for a product.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """
        from intarsia.backends.cuda.cublas.execution import CublasExecutable

        view = own_view(device, CudaView, "cuBLASLt", artifact.target, driver.BACKEND_NAME)
        return CublasExecutable(artifact, unpack_payload(artifact, LtProgram), view)


def program_of(region: Region, context: BuildContext) -> tuple[LtProgram, dict[str, Array]]:
    """Return a region as products, and its constants by name.

    Raises:
        BackendError: A node is no product, nor of one.
    """
    from intarsia.backends.cuda.cublas.table import TABLE, drafted
    from intarsia.graph.extract import constant_array
    from intarsia.graph.pattern import match_region

    matches = sorted(match_region(region, TABLE), key=lambda match: match.members[-1])
    taken = {node for match in matches for node in match.members}
    for node in region.nodes:
        if node not in taken:
            name = region.graph.nodes[node].name
            raise BackendError(
                f"{name!r} is no product of cuBLASLt's", backend=BACKEND_NAME, node=name
            )
    values, tensors, numbers = region.graph.values, list[ProductTensor](), dict[int, int]()
    constants: dict[str, Array] = {}
    scratch_bytes = 0

    def number(value: int) -> int:
        nonlocal scratch_bytes
        if value in numbers:
            return numbers[value]
        if value in region.inputs:
            tensor = ProductTensor(LtPlace.INPUT, region.inputs.index(value))
        elif value in region.outputs:
            tensor = ProductTensor(LtPlace.OUTPUT, region.outputs.index(value))
        elif values[value].constant is not None:
            tensor = ProductTensor(LtPlace.CONSTANT, len(constants))
            constants[values[value].name] = constant_array(values[value])
        else:
            tensor = ProductTensor(LtPlace.SCRATCH, scratch_bytes)
            nbytes = tensor_spec(values[value]).nbytes
            scratch_bytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        numbers[value] = len(tensors)
        tensors.append(tensor)
        return numbers[value]

    products = [_numbered(drafted(match), number) for match in matches]
    attrs = context.attrs
    size = attrs.get("workspace_size")
    return (
        LtProgram(
            tensors,
            products,
            scratch_bytes,
            str(attrs.get("math_mode") or "default"),
            bool(attrs.get("disallow_reduced_precision_reduction")),
            _WORKSPACE_BYTES if size is None else int(size),
        ),
        constants,
    )


def _numbered(product: LtProduct, number: Callable[[int], int]) -> LtProduct:
    """Return a product whose tensors are numbers of a program's."""
    bias = -1 if product.bias < 0 else number(product.bias)
    left, right = number(product.left), number(product.right)
    changed: LtProduct = msgspec.structs.replace(
        product, left=left, right=right, bias=bias, result=number(product.result)
    )
    return changed


BACKEND = CublasBackend()
