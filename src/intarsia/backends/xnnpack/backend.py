# SPDX-License-Identifier: Apache-2.0
"""The `xnnpack` kind: a partial backend of XNNPACK's float32 operators, through LiteRT.

A region is one TFLite network, which LiteRT hands to XNNPACK as a whole; what XNNPACK leaves to
LiteRT's own kernels is refused. Attribute: `num_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.device import Buffer, Device, Step
from intarsia.backends.library_backend import SHARED, LibraryBackend
from intarsia.backends.runtimes import PythonRuntime
from intarsia.backends.tflite.network import join
from intarsia.backends.tflite.printing import without_lines
from intarsia.backends.values import Artifact
from intarsia.backends.xnnpack.defects import DEFECTS
from intarsia.errors import BackendError, ExecutionError

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.tflite.network import SplitNetwork
    from intarsia.graph.region import Region

RUNTIME = PythonRuntime(
    "LiteRT with XNNPACK", "ai_edge_litert", "*.so", "xnnpack", "xnnpack.backend"
)
_INTERPRETERS = count()
_LEAST_BYTES = 1024
"""Smaller constants stand in the flat buffer itself."""


def make_interpreter(content: bytes, num_threads: int) -> Any:
    """Return an interpreter of a network, with its tensors in place.

    Raises:
        BackendError: LiteRT is not installed, or refused the network.
    """
    RUNTIME.module()
    from ai_edge_litert.interpreter import Interpreter

    # XNNPACK is named once in a process.
    is_first = next(_INTERPRETERS) == 0
    try:
        with without_lines("INFO: ") if is_first else nullcontext():
            interpreter = Interpreter(model_content=content, num_threads=num_threads)
            interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise BackendError(f"LiteRT refused a network: {error}", backend="xnnpack") from error
    return interpreter


def find_leftover(interpreter: Any) -> str | None:
    """Return what XNNPACK leaves of a network to LiteRT's own kernels; None if it takes all.

    It takes all if one delegate reads nothing that is computed but the network's inputs, and makes
    its outputs.
    """
    operators = interpreter._get_ops_details()  # noqa: SLF001 - nothing public tells
    *others, last = operators
    computed = {number for one in others for number in one["outputs"]}
    computed -= {detail["index"] for detail in interpreter.get_input_details()}
    outputs = {detail["index"] for detail in interpreter.get_output_details()}
    is_whole = last["op_name"] == "DELEGATE" and outputs <= set(last["outputs"])
    names = sorted({operator["op_name"] for operator in others})
    if not is_whole or "DELEGATE" in names or computed & set(last["inputs"]):
        return f"XNNPACK does not take all of {', '.join(names) or last['op_name']}"
    return None


def _split(region: Region) -> SplitNetwork:
    """Return a region as a network; what reads operators is not imported to run a program.

    Raises:
        BackendError: It is none.
    """
    from intarsia.backends.tflite.layers import NotTakenError
    from intarsia.backends.tflite.network import split_network
    from intarsia.backends.xnnpack.lowering import lower_region

    try:
        return split_network(lower_region(region), _LEAST_BYTES)
    except NotTakenError as error:
        raise BackendError(str(error), backend="xnnpack") from error


class XnnpackBackend(LibraryBackend):
    """Serves the kind `xnnpack`."""

    name = "xnnpack"
    kinds = ("xnnpack",)
    runtime = RUNTIME
    defects = DEFECTS
    modules = ("intarsia.backends.tflite", "intarsia.backends.xnnpack", *SHARED)

    def problem(self, region: Region) -> str | None:
        """Return what XNNPACK leaves of a region to LiteRT's own kernels.

        Raises:
            BackendError: It is not in the table, or LiteRT refused it.
        """
        return find_leftover(make_interpreter(_split(region).whole, 1))

    def write(self, region: Region) -> tuple[bytes, Mapping[str, Array]]:
        """Return a region as a flat buffer whose large constants are read from behind it.

        Raises:
            BackendError: A node is not in the table.
        """
        split = _split(region)
        return split.head, split.constants

    def load(self, artifact: Artifact, device: Device) -> XnnpackExecutable:
        """Return a network.

        Raises:
            BackendError: XNNPACK does not take all of it.
        """
        return XnnpackExecutable(artifact, self.ready(artifact, device))


class XnnpackExecutable:
    """A network; each binding has its own interpreter, with weights as XNNPACK packs them.

    Args:
        artifact: What was compiled.
        num_threads: Of a run.

    Raises:
        BackendError: XNNPACK does not take all of it.
    """

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, num_threads: int) -> None:
        self._content = join(artifact.payload, [constant.data for constant in artifact.constants])
        self._num_threads = num_threads
        self._target = artifact.target
        self._first: Any = make_interpreter(self._content, num_threads)
        problem = find_leftover(self._first)
        if problem is not None:
            raise RUNTIME.error(f"would run a part of a region itself: {problem}", artifact)

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that copies these arrays in, runs the network, and copies out."""
        interpreter, self._first = self._first, None
        if interpreter is None:
            interpreter = make_interpreter(self._content, self._num_threads)
        fed = [one["index"] for one in interpreter.get_input_details()]
        made = [interpreter.tensor(one["index"]) for one in interpreter.get_output_details()]

        def step() -> None:
            try:
                for index, array in zip(fed, inputs, strict=True):
                    interpreter.set_tensor(index, array)
                interpreter.invoke()
            except (RuntimeError, ValueError) as error:
                raise ExecutionError(
                    f"XNNPACK failed: {error}", backend="xnnpack", target=self._target
                ) from error
            for view, array in zip(made, outputs, strict=True):
                np.copyto(array, view())  # kept, a view would keep the next run from starting

        return step


BACKEND = XnnpackBackend()
