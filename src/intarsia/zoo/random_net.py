# SPDX-License-Identifier: Apache-2.0
"""Random convolutional networks: odd widths and sizes, every kind of convolution and pooling.

They are for finding what a backend gets wrong, so they mix what published networks rarely combine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.zoo.convnets import SlidingWindow, conv, gemm
from intarsia.zoo.draft import ModelDraft, dims

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir
    from onnx import ModelProto

_OPSET = 20  # from 19 on, the last window of an average in ceil mode is defined everywhere
_WIDTHS = (12, 20, 28, 36, 52, 72, 100, 200)
_SIZES = ((97, 131), (65, 64), (113, 77), (53, 89), (128, 31))
_BLOCKS = (8, 17)
_SMALLEST = 12  # extent below which nothing makes an image smaller

Block = tuple[str, "Callable[[_Dice, ModelDraft, ir.Value], ir.Value]"]


class _Dice:
    """Draws the structure of one network."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[int(self._rng.integers(len(options)))]

    def width(self) -> int:
        return int(self.one_of(_WIDTHS))


def random_net(structure: int, rng: np.random.Generator) -> ModelProto:
    """Build a random convolutional network.

    Args:
        structure: Decides every operator and every extent.
        rng: Draws every weight.
    """
    dice, d = _Dice(structure), ModelDraft.start(rng, _OPSET)
    x = d.input("data", (1, 3, *dice.one_of(_SIZES)))
    x = _activated(dice, d.at("stem"), conv(d, "stem/conv", x, dice.width(), SlidingWindow(3)))
    for i in range(dice.one_of(range(*_BLOCKS))):
        is_small = min(dims(x)[2:]) < _SMALLEST
        name, block = dice.one_of(_KEEPING if is_small else _KEEPING + _SHRINKING)
        x = block(dice, d.at(f"block{i}_{name}"), x)
    head = d.at("head")
    x = head.op("Flatten", "flatten", head.op("GlobalAveragePool", "pool", x), axis=1)
    return d.finish(f"random:{structure}", {"logits": gemm(head, "fc", x, dice.width() + 5)})


def _activated(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    """Write one of the activations."""
    kind = dice.one_of(("Relu", "Clip", "Sigmoid", "HardSwish", "silu", "none"))
    if kind == "none":
        return x
    if kind == "silu":
        return d.op("Mul", "mul", x, d.op("Sigmoid", "sigmoid", x))
    limits = (0.0, 6.0) if kind == "Clip" else ()
    return d.op(kind, kind.lower(), x, *limits)


def _normed(dice: _Dice, d: ModelDraft, x: ir.Value, width: int, window: SlidingWindow) -> ir.Value:
    """Write a convolution and what follows it: a batch norm or none, an activation or none."""
    if dice.one_of((True, False)):
        return _activated(dice, d, conv(d, "conv", x, width, window))
    x = conv(d, "conv", x, width, window, bias=False)
    names = ("scale", "bias", "mean", "var")
    norm = d.op("BatchNormalization", "bn", x, *(d.blank(f"bn.{name}", (width,)) for name in names))
    return _activated(dice, d, norm)


def _plain(kernel: int) -> Callable[[_Dice, ModelDraft, ir.Value], ir.Value]:
    return lambda dice, d, x: _normed(dice, d, x, dice.width(), SlidingWindow(kernel))


def _strided(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    return _normed(dice, d, x, dice.width(), SlidingWindow(dice.one_of((1, 3, 5)), 2))


def _valid(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    return _normed(dice, d, x, dice.width(), SlidingWindow(dice.one_of((2, 3, 4)), pad=0))


def _dilated(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    return _normed(dice, d, x, dice.width(), SlidingWindow(3, dilation=dice.one_of((2, 3))))


def _grouped(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    return _normed(
        dice, d, x, dice.width(), SlidingWindow(dice.one_of((1, 3)), group=dice.one_of((2, 4)))
    )


def _depthwise(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    width = dims(x)[1]
    window = SlidingWindow(dice.one_of((3, 5)), group=width)
    return _normed(dice, d, x, width * dice.one_of((1, 1, 2)), window)


def _residual(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    y = _normed(dice, d.at("first"), x, dice.width(), SlidingWindow(3))
    y = _normed(dice, d.at("second"), y, dims(x)[1], SlidingWindow(dice.one_of((1, 3))))
    return d.op("Add", "add", x, y)


def _branches(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    parts = [
        _normed(dice, d.at(f"branch{i}"), x, dice.width(), SlidingWindow(kernel))
        for i, kernel in enumerate((1, 3, 5)[: dice.one_of((2, 3))])
    ]
    return d.op("Concat", "concat", *parts, axis=1)


def _gated(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    gate = conv(d, "conv", d.op("GlobalAveragePool", "pool", x), dims(x)[1])
    return d.op("Mul", "mul", x, d.op("Sigmoid", "sigmoid", gate))


def _same_pool(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    kind = dice.one_of(("MaxPool", "AveragePool"))
    return d.op(kind, "pool", x, kernel_shape=(3, 3), pads=(1,) * 4)


def _max_pool(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    size = dice.one_of((2, 3))
    window = {"kernel_shape": (size, size), "strides": (2, 2)}
    return d.op("MaxPool", "pool", x, ceil_mode=dice.one_of((0, 1)), **window)


def _average_pool(dice: _Dice, d: ModelDraft, x: ir.Value) -> ir.Value:
    window = {"kernel_shape": (3, 3), "strides": (2, 2)}
    if dice.one_of((True, False)):
        return d.op("AveragePool", "pool", x, ceil_mode=1, **window)
    count = dice.one_of((0, 1))
    return d.op("AveragePool", "pool", x, pads=(1,) * 4, count_include_pad=count, **window)


_KEEPING: tuple[Block, ...] = (
    ("conv1x1", _plain(1)),
    ("conv3x3", _plain(3)),
    ("conv5x5", _plain(5)),
    ("dilated", _dilated),
    ("grouped", _grouped),
    ("depthwise", _depthwise),
    ("residual", _residual),
    ("branches", _branches),
    ("gated", _gated),
    ("pool", _same_pool),
)
_SHRINKING: tuple[Block, ...] = (
    ("strided", _strided),
    ("valid", _valid),
    ("max_pool", _max_pool),
    ("average_pool", _average_pool),
)
