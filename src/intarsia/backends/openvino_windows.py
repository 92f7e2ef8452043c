# SPDX-License-Identifier: Apache-2.0
"""Whether the windows of a region fit sizes that OpenVINO is told only while running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from intarsia.errors import ExecutionError

_SLIDING = frozenset(
    {
        "AvgPool",
        "Convolution",
        "ConvolutionBackpropData",
        "DeformableConvolution",
        "GroupConvolution",
        "GroupConvolutionBackpropData",
        "MaxPool",
    }
)
"""Types of operators with windows."""


class FreeWindows:
    """Whether the windows of a region fit sizes that are known only while running.

    OpenVINO does not ask then: where a window is larger than what it slides over, the result is
    empty, and some later call, of another model even, ends the process (2026.4). What it says when
    it is told the sizes before is the answer; a pool of an empty batch is one of those.

    Args:
        read: Returns the region as an OpenVINO model.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._fitting: set[tuple[tuple[int, ...], ...]] = set()

    @cached_property
    def _model(self) -> Any:
        """The model, if it has windows that slide along free dimensions."""
        model = self._read()
        for node in model.get_ops():
            if node.get_type_name() in _SLIDING:
                shape = node.get_input_partial_shape(0)
                if shape.rank.is_dynamic or any(dim.is_dynamic for dim in list(shape)[2:]):
                    return model
        return None

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse sizes that a window does not fit.

        Args:
            shapes: Of the inputs, by name.

        Raises:
            ExecutionError: One does not.
        """
        with self._lock:
            sizes = tuple(shapes.values())
            if sizes in self._fitting or self._model is None:
                return
            problem = self._problem(shapes)
            if problem:
                raise ExecutionError(
                    f"a window does not fit these sizes: {problem}",
                    backend="openvino",
                    hint="feed larger inputs",
                )
            self._fitting.add(sizes)

    def _problem(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return what OpenVINO says of sizes; nothing if they fit."""
        sizes = {
            port: list(shapes[next(name for name in port.get_names() if name in shapes)])
            for port in self._model.inputs
        }
        try:
            self._model.reshape(sizes)
        except RuntimeError as error:  # what shape inference has against them
            return _last_line(error)
        return ""


def _last_line(error: Exception) -> str:
    """Return the end of OpenVINO's message, where what is wrong with a shape stands."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), "").strip()
