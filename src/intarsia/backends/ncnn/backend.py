# SPDX-License-Identifier: Apache-2.0
"""The `ncnn` kind: a partial backend of ncnn's float32 layers, for one image at a time.

A region is one network: its layers as text, its weights behind it. Attribute: `num_threads`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.backends.device import Buffer, Device, Step
from intarsia.backends.library_backend import SHARED, LibraryBackend
from intarsia.backends.ncnn.defects import DEFECTS
from intarsia.backends.runtimes import PythonRuntime
from intarsia.backends.values import Artifact
from intarsia.errors import BackendError, ExecutionError, PackageError

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.graph.region import Region

RUNTIME = PythonRuntime("ncnn", "ncnn", "*.so", module_name="ncnn.backend")
_OFF = (
    *("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed"),
    *("use_bf16_storage", "use_int8_inference", "use_vulkan_compute"),
    *("use_winograd63_convolution", "use_winograd43_convolution"),
)
"""Options that round: numbers of 16 bits, and sums of tiles that are too large for float32."""


class NcnnPayload(msgspec.Struct, frozen=True):
    """A network without its weights.

    Attributes:
        text: Its layers.
        inputs: Names of tensors, and their shapes there.
        outputs: Names of tensors.
    """

    text: str
    inputs: list[tuple[str, tuple[int, ...]]]
    outputs: list[str]


def make_net(text: str, weights: Iterable[Array], num_threads: int) -> Any:
    """Return a network.

    Raises:
        BackendError: ncnn is not installed, or refused it.
    """
    net = RUNTIME.module().Net()
    for name in _OFF:
        setattr(net.opt, name, False)
    net.opt.num_threads = num_threads
    with tempfile.NamedTemporaryFile() as file:  # from memory it would be read later, too
        for array in weights:
            file.write(array.tobytes())
        file.flush()
        if net.load_param_mem(text) or net.load_model(file.name):
            raise BackendError("ncnn refused a network", backend="ncnn")
    return net


def run_net(net: Any, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    """Return what a network makes; the arrays are ncnn's own.

    Raises:
        ExecutionError: It failed.
    """
    mat = RUNTIME.module().Mat
    extractor = net.create_extractor()
    for name, array in inputs.items():
        # A copy: a layer that works in place asks who else has its operand, and the caller's array
        # cannot tell.
        extractor.input(name, mat(array).clone())
    made = []
    for name in outputs:
        status, result = extractor.extract(name)
        if status:
            raise ExecutionError(f"ncnn failed to compute {name}", backend="ncnn")
        made.append(np.asarray(result))
    return made


def _lower(
    region: Region,
) -> tuple[NcnnPayload, tuple[Array, ...], list[tuple[int, ...]]]:
    """Return a region as a network, its weights, and the shapes of its results there.

    What reads operators is not imported to run a program.

    Raises:
        BackendError: It is none.
    """
    from intarsia.backends.ncnn.lowering import lower_region, shape_there
    from intarsia.backends.tflite.layers import NotTakenError

    values = region.graph.values
    try:
        network = lower_region(region)
        fed, made = (
            [shape_there(values[one].shape or ()) for one in numbers]
            for numbers in (region.inputs, region.outputs)
        )
    except NotTakenError as error:
        raise BackendError(str(error), backend="ncnn") from error
    pairs = list(zip(network.inputs, fed, strict=True))
    return NcnnPayload(network.text, pairs, list(network.outputs)), network.weights, made


class NcnnBackend(LibraryBackend):
    """Serves the kind `ncnn`."""

    name = "ncnn"
    kinds = ("ncnn",)
    runtime = RUNTIME
    defects = DEFECTS
    modules = ("intarsia.backends.tflite", "intarsia.backends.ncnn", *SHARED)

    def problem(self, region: Region) -> str | None:
        """Return what is wrong with the shapes that ncnn makes.

        Raises:
            BackendError: It is not in the table, or ncnn does not take it.
            ExecutionError: It does not run there.
        """
        payload, weights, shapes = _lower(region)
        feeds = {name: np.zeros(shape, np.float32) for name, shape in payload.inputs}
        made = run_net(make_net(payload.text, weights, 1), feeds, payload.outputs)
        for array, shape in zip(made, shapes, strict=True):
            if array.shape != shape:
                return f"ncnn makes {array.shape} where {shape} is asked for"
        return None

    def write(self, region: Region) -> tuple[bytes, Mapping[str, Array]]:
        """Return a region as the text of a network, with weights as ncnn reads them.

        Raises:
            BackendError: A node is not in the table.
        """
        payload, weights, _ = _lower(region)
        named = {f"weights {number}": array for number, array in enumerate(weights)}
        return msgspec.json.encode(payload), named

    def load(self, artifact: Artifact, device: Device) -> NcnnExecutable:
        """Return a network.

        Raises:
            BackendError: ncnn refused it.
            PackageError: The artifact is damaged.
        """
        return NcnnExecutable(artifact, self.ready(artifact, device))


class NcnnExecutable:
    """A network, which threads share.

    Args:
        artifact: What was compiled.
        num_threads: Of a run.

    Raises:
        BackendError: ncnn refused it.
        PackageError: The artifact is damaged.
    """

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, num_threads: int) -> None:
        try:
            self._payload = msgspec.json.decode(artifact.payload, type=NcnnPayload)
        except msgspec.MsgspecError as error:
            raise PackageError(f"a region of ncnn is damaged: {error}") from error
        weights = (np.asarray(constant.data) for constant in artifact.constants)
        self._net = make_net(self._payload.text, weights, num_threads)

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the network on these arrays and copies its results."""
        net, payload = self._net, self._payload
        feeds = {
            name: array.reshape(shape)
            for (name, shape), array in zip(payload.inputs, inputs, strict=True)
        }

        def step() -> None:
            made = run_net(net, feeds, payload.outputs)
            for source, array in zip(made, outputs, strict=True):
                np.copyto(array, source.reshape(array.shape))

        return step


BACKEND = NcnnBackend()
