# SPDX-License-Identifier: Apache-2.0
"""Windows as ONNX describes them: kernel, strides, dilations, pads, `auto_pad`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.codegen.kernels.window import Window
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.views import Pads


@dataclass(frozen=True, slots=True)
class WindowAttributes:
    """A window over the spatial dimensions, everything explicit."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads

    def at(self, out: tuple[int, ...]) -> Window:
        """Return the window at so many positions."""
        return Window(out, self.kernel, self.strides, self.dilations)


def read_conv_window(operation: Operation) -> WindowAttributes:
    """Return the window of a convolution, which has the taps of its weights."""
    return read_window(operation, operation.shape(1)[2:])


def read_window(operation: Operation, kernel: Sequence[int]) -> WindowAttributes:
    """Return the window of a convolution or pooling operator (ONNX operators, Conv)."""
    rank = len(kernel)
    strides = tuple(operation.attribute("strides") or (1,) * rank)
    dilations = tuple(operation.attribute("dilations") or (1,) * rank)
    numbers = tuple(operation.attribute("pads") or (0,) * 2 * rank)
    pads: Pads = tuple(zip(numbers[:rank], numbers[rank:], strict=True))
    auto = operation.attribute("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = ((0, 0),) * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        same = []
        sizes = zip(operation.shape()[2:], kernel, strides, dilations, strict=True)
        for extent, taps, stride, dilation in sizes:
            out = -(-extent // stride)
            total = max(0, (out - 1) * stride + (taps - 1) * dilation + 1 - extent)
            less, more = total // 2, total - total // 2
            same.append((less, more) if auto == "SAME_UPPER" else (more, less))
        pads = tuple(same)
    return WindowAttributes(tuple(kernel), strides, dilations, pads)
