# SPDX-License-Identifier: Apache-2.0
"""Vision transformers of several stages, in the shape that PyTorch's exporter gives them.

They are what a plain ViT is not: tokens become images and images tokens again, attention runs in
windows or over fewer keys than queries, and convolutions stand between. As in `convnets`, each
batch norm is folded into the convolution before it; so are tables of relative positions into the
bias of a window.

Source: Touvron et al., "Training data-efficient image transformers" (DeiT), 2020; Xie et al.,
"SegFormer", 2021; Liu et al., "Swin Transformer", 2021; Mehta and Rastegari, "MobileViT", 2021;
Li et al., "EfficientFormer", 2022.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from intarsia.zoo import blocks
from intarsia.zoo.convnets import SlidingWindow
from intarsia.zoo.draft import ModelDraft, dims

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

_CLASSES = 1000
_EPSILON = 1e-6
_BRANCH = 0.3  # how large a branch is beside what it is added to
_RELU_GAIN, _SILU_GAIN = math.sqrt(2), 1.68  # keep the variance behind the activation
_BIAS = 0.02
_END = np.iinfo(np.int64).max


def _conv(
    d: ModelDraft, name: str, x: ir.Value, width: int, window: SlidingWindow, gain: float = 1.0
) -> ir.Value:
    fan_in = dims(x)[1] // window.group * window.kernel**2
    shape = (width, dims(x)[1] // window.group, window.kernel, window.kernel)
    weight = d.normal(f"{name}.weight", shape, gain / math.sqrt(fan_in), is_balanced=True)
    return d.op(
        "Conv", name, x, weight, d.normal(f"{name}.bias", (width,), _BIAS), **window.attributes()
    )


def _tokens(d: ModelDraft, x: ir.Value) -> ir.Value:
    """Write `flatten(2).transpose(1, 2)`: f32[b, c, h, w] to f32[b, h * w, c]."""
    batch, width, *_ = dims(x)
    return d.op(
        "Transpose", "tokens", blocks.reshape(d, "flatten", x, batch, width, -1), perm=(0, 2, 1)
    )


def _image(d: ModelDraft, x: ir.Value, height: int) -> ir.Value:
    """Undo `_tokens`, to an image of this height."""
    batch, count, width = dims(x)
    x = d.op("Transpose", "channels", x, perm=(0, 2, 1))
    return blocks.reshape(d, "image", x, batch, width, height, count // height)


def _joint_heads(d: ModelDraft, x: ir.Value, heads: int) -> list[ir.Value]:
    """Write query, key and value as one layer: three of f32[b, heads, n, c / heads]."""
    d, (batch, length, width) = d.at("heads"), dims(x)
    y = blocks.linear(d, "qkv", x, 3 * width)
    y = blocks.reshape(d, "split", y, batch, length, 3, heads, width // heads)
    y = d.op("Transpose", "transpose", y, perm=(2, 0, 3, 1, 4))
    parts = d.split("unbind", y, (1, 1, 1), axis=0)
    names = ("query", "key", "value")
    return [d.op("Squeeze", name, part, (0,)) for name, part in zip(names, parts, strict=True)]


def _weigh(d: ModelDraft, scores: ir.Value, value: ir.Value) -> ir.Value:
    """Write the end of eager attention, heads joined: f32[b, n, heads * c]."""
    context = d.op("MatMul", "context", d.op("Softmax", "softmax", scores, axis=-1), value)
    batch, heads, length, size = dims(context)
    return blocks.join_heads(d, context, batch, length, heads * size)


def deit_small(rng: np.random.Generator) -> ModelProto:
    """Build DeiT-S: a ViT whose three projections are one layer."""
    d, width, heads, layers = ModelDraft.start(rng, opset=20), 384, 6, 12
    x = _conv(
        d, "embeddings/patch", d.input("data", (1, 3, 224, 224)), width, SlidingWindow(16, 16, 0)
    )
    x = _tokens(d.at("embeddings"), x)
    x = d.op(
        "Concat", "embeddings/concat", d.normal("embeddings/token", (1, 1, width), 0.3), x, axis=1
    )
    x = d.op("Add", "embeddings/add", x, d.normal("embeddings/position", dims(x), 0.5))
    for i in range(layers):
        layer = d.at("encoder", i)
        y, attention = blocks.layer_norm(layer, "norm1", x, _EPSILON), layer.at("attention")
        context = blocks.attend(attention, *_joint_heads(attention, y, heads))
        y = blocks.join_heads(attention, context, *dims(x))
        x = layer.op("Add", "add1", x, blocks.linear(attention, "output", y, width, _BRANCH))
        y = blocks.layer_norm(layer, "norm2", x, _EPSILON)
        x = layer.op("Add", "add2", x, blocks.mlp(layer.at("mlp"), y, 4 * width, _BRANCH))
    head = d.at("head")
    x = blocks.layer_norm(head, "norm", x, _EPSILON)
    token = head.op("Gather", "first", x, head.constant(np.asarray(0), "first.index"), axis=1)
    return d.finish("deit_small", {"logits": blocks.gemm(head, "fc", token, _CLASSES)})


# width, heads, how many positions share a key, side of a patch and its stride
_SEGFORMER = ((32, 1, 8, 7, 4), (64, 2, 4, 3, 2), (160, 5, 2, 3, 2), (256, 8, 1, 3, 2))
_SEGMENTS, _HEAD_WIDTH = 150, 256


def segformer_b0(rng: np.random.Generator) -> ModelProto:
    """Build SegFormer-B0 as it segments scenes of 512x512 pixels into 150 kinds."""
    d, stages = ModelDraft.start(rng, opset=18), []
    x = d.input("data", (1, 3, 512, 512))
    for i, (width, heads, shared, side, stride) in enumerate(_SEGFORMER):
        stage = d.at(f"stage{i + 1}")
        x = _conv(stage, "patch", x, width, SlidingWindow(side, stride))
        height = dims(x)[2]
        x = blocks.layer_norm(stage, "norm", _tokens(stage.at("patches"), x), _EPSILON)
        for j in range(2):
            layer = stage.at("layer", j)
            y = blocks.layer_norm(layer, "norm1", x, _EPSILON)
            y = _fewer_keys(layer.at("attention"), y, heads, shared, height)
            x = layer.op("Add", "add1", y, x)
            y = blocks.layer_norm(layer, "norm2", x, _EPSILON)
            x = layer.op("Add", "add2", _mixed_mlp(layer.at("mlp"), y, height), x)
        stages.append(_image(stage, blocks.layer_norm(stage, "end", x, _EPSILON), height))
        x = stages[-1]
    return d.finish("segformer_b0", {"logits": _segments(d.at("head"), stages)})


def _fewer_keys(d: ModelDraft, x: ir.Value, heads: int, shared: int, height: int) -> ir.Value:
    """Write attention whose keys and values are of an image that a convolution made smaller."""
    width = dims(x)[-1]
    query = blocks.split_heads(d, "query", blocks.linear(d, "query", x, width, 2.0), width // heads)
    if shared > 1:
        reduction = d.at("reduction")
        small = _conv(
            reduction, "conv", _image(reduction, x, height), width, SlidingWindow(shared, shared, 0)
        )
        x = blocks.layer_norm(reduction, "norm", _tokens(reduction, small), _EPSILON)
    batch, length, _ = dims(x)
    key = blocks.linear(d, "key", x, width)
    key = blocks.reshape(d, "key/split", key, batch, length, heads, width // heads)
    key = d.op("Transpose", "key/transpose", key, perm=(0, 2, 3, 1))
    value = blocks.split_heads(d, "value", blocks.linear(d, "value", x, width), width // heads)
    scores = d.op("MatMul", "scores", query, key)
    context = _weigh(d, d.op("Div", "scale", scores, math.sqrt(width // heads)), value)
    return blocks.linear(d, "output", context, width, _BRANCH)


def _mixed_mlp(d: ModelDraft, x: ir.Value, height: int) -> ir.Value:
    """Write two layers between which each channel is filtered as an image."""
    width = dims(x)[-1]
    y = _image(d, blocks.linear(d, "up", x, 4 * width), height)
    y = _conv(d, "depthwise", y, 4 * width, SlidingWindow(3, group=4 * width))
    y = blocks.gelu(d, "gelu", _tokens(d, y))
    return blocks.linear(d, "down", y, width, _BRANCH)


def _segments(d: ModelDraft, stages: list[ir.Value]) -> ir.Value:
    """Write the head: all stages to one width and the first one's size, then two convolutions."""
    size = (1, _HEAD_WIDTH, *dims(stages[0])[2:])
    features = []
    for i, stage in enumerate(stages, 1):
        level = d.at(f"stage{i}")
        y = _image(
            level, blocks.linear(level, "fc", _tokens(level, stage), _HEAD_WIDTH), dims(stage)[2]
        )
        mode = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
        features.append(level.op("Resize", "resize", y, None, None, size, **mode))
    x = d.op("Concat", "concat", *reversed(features), axis=1)
    x = d.op("Relu", "relu", _conv(d, "fuse", x, _HEAD_WIDTH, SlidingWindow(), _RELU_GAIN))
    return _conv(d, "classifier", x, _SEGMENTS, SlidingWindow())


_SWIN = ((96, 3, 2), (192, 6, 2), (384, 12, 6), (768, 24, 2))  # width, heads, layers
_WINDOW, _SHIFT = 7, 3


def swin_tiny(rng: np.random.Generator) -> ModelProto:
    """Build Swin-T: attention in windows of 7x7 tokens, which every second layer shifts."""
    d = ModelDraft.start(rng, opset=18)
    x = _conv(
        d,
        "embeddings/patch",
        d.input("data", (1, 3, 224, 224)),
        _SWIN[0][0],
        SlidingWindow(4, 4, 0),
    )
    side = dims(x)[2]
    x = blocks.layer_norm(d, "embeddings/norm", _tokens(d.at("embeddings"), x), 1e-5)
    for i, (_, heads, count) in enumerate(_SWIN):
        stage = d.at(f"stage{i + 1}")
        if i:
            x, side = _merged(stage.at("merge"), x, side), side // 2
        for j in range(count):
            shift = _SHIFT if j % 2 and side > _WINDOW else 0
            x = _swin_layer(stage.at("layer", j), x, heads, side, shift)
    head = d.at("head")
    x = head.op("Transpose", "channels", blocks.layer_norm(head, "norm", x, 1e-5), perm=(0, 2, 1))
    x = head.op("ReduceMean", "pool", x, (-1,), keepdims=1)
    x = blocks.reshape(head, "flatten", x, *dims(x)[:2])
    return d.finish("swin_tiny", {"logits": blocks.gemm(head, "fc", x, _CLASSES)})


def _swin_layer(d: ModelDraft, x: ir.Value, heads: int, side: int, shift: int) -> ir.Value:
    width, count = dims(x)[-1], side // _WINDOW
    y = blocks.layer_norm(d, "norm1", x, 1e-5)
    y = _rolled(d.at("shift"), blocks.reshape(d, "image", y, 1, side, side, width), shift)
    y = blocks.reshape(d, "windows/split", y, 1, count, _WINDOW, count, _WINDOW, width)
    y = d.op("Transpose", "windows/transpose", y, perm=(0, 1, 3, 2, 4, 5))
    y = blocks.reshape(d, "windows/rows", y, -1, _WINDOW**2, width)
    y = _window_attention(d.at("attention"), y, heads, side, shift)
    y = blocks.reshape(d, "merge/split", y, 1, count, count, _WINDOW, _WINDOW, width)
    y = d.op("Transpose", "merge/transpose", y, perm=(0, 1, 3, 2, 4, 5))
    y = _rolled(d.at("back"), blocks.reshape(d, "merge/image", y, 1, side, side, width), -shift)
    x = d.op("Add", "add1", x, blocks.reshape(d, "tokens", y, *dims(x)))
    y = blocks.mlp(d.at("mlp"), blocks.layer_norm(d, "norm2", x, 1e-5), 4 * width, _BRANCH)
    return d.op("Add", "add2", x, y)


def _rolled(d: ModelDraft, x: ir.Value, shift: int) -> ir.Value:
    """Write `roll(x, (-shift, -shift), (1, 2))`: for each axis its end before its beginning."""
    for axis in (1, 2) if shift else ():
        first = d.op("Slice", f"first{axis}", x, (shift,), (_END,), (axis,))
        second = d.op("Slice", f"second{axis}", x, (0,), (shift,), (axis,))
        x = d.op("Concat", f"roll{axis}", first, second, axis=axis)
    return x


def _window_attention(d: ModelDraft, x: ir.Value, heads: int, side: int, shift: int) -> ir.Value:
    """Write attention in windows: f32[windows, 49, c], with a bias for each pair of positions."""
    windows, length, width = dims(x)
    query, key, value = _joint_heads(d, x, heads)
    query = d.op("Mul", "scale", query, (width // heads) ** -0.5)
    key = d.op("Transpose", "key_transpose", key, perm=(0, 1, 3, 2))
    bias = d.normal("positions", (1, heads, length, length), 0.5)
    scores = d.op("Add", "bias", d.op("MatMul", "scores", query, key), bias)
    if shift:
        mask = d.constant(_shift_mask(side, shift), "mask")
        scores = blocks.reshape(d, "by_window", scores, 1, windows, heads, length, length)
        scores = blocks.reshape(
            d, "by_head", d.op("Add", "add", scores, mask), -1, *dims(scores)[2:]
        )
    return blocks.linear(d, "output", _weigh(d, scores, value), width, _BRANCH)


def _shift_mask(side: int, shift: int) -> np.typing.NDArray[np.float32]:
    """Return what keeps apart what only a shift made neighbours: f32[1, windows, 1, 49, 49]."""
    band = np.zeros(side, np.int64)
    band[-_WINDOW:-shift], band[-shift:] = 1, 2
    count = side // _WINDOW
    image = (3 * band[:, None] + band).reshape(count, _WINDOW, count, _WINDOW)
    parts = image.transpose(0, 2, 1, 3).reshape(count**2, _WINDOW**2)
    is_apart = parts[:, None, :] != parts[:, :, None]
    return np.where(is_apart, np.float32(-100), np.float32(0))[None, :, None]


def _merged(d: ModelDraft, x: ir.Value, side: int) -> ir.Value:
    """Write the merge of four neighbours: half the side, twice the width."""
    width = dims(x)[-1]
    image, parts = blocks.reshape(d, "image", x, 1, side, side, width), []
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        part = d.op("Slice", f"row{row}{column}", image, (row,), (_END,), (1,), (2,))
        parts.append(d.op("Slice", f"part{row}{column}", part, (column,), (_END,), (2,), (2,)))
    x = d.op("Concat", "concat", *parts, axis=-1)
    x = blocks.layer_norm(d, "norm", blocks.reshape(d, "tokens", x, 1, -1, 4 * width), 1e-5)
    return blocks.linear(d, "fc", x, 2 * width, bias=False)


# width, stride of the first block, inverted residuals, width and layers of a transformer
_MOBILEVIT = (
    (32, 1, 1, 0, 0),
    (64, 2, 3, 0, 0),
    (96, 2, 1, 144, 2),
    (128, 2, 1, 192, 4),
    (160, 2, 1, 240, 3),
)
_MOBILEVIT_HEADS, _PATCH = 4, 2


def mobilevit_small(rng: np.random.Generator) -> ModelProto:
    """Build MobileViT-S: inverted residuals, and transformers over every fourth pixel."""
    d = ModelDraft.start(rng, opset=18)
    x = _silu_conv(d.at("stem"), d.input("data", (1, 3, 256, 256)), 16, SlidingWindow(3, 2))
    for i, (width, stride, count, inner, layers) in enumerate(_MOBILEVIT, 1):
        for j in range(count):
            x = _silu_inverted(d.at(f"stage{i}", j), x, width, 1 if j else stride)
        if layers:
            x = _mobilevit_block(d.at(f"stage{i}", "transformer"), x, inner, layers)
    head = d.at("head")
    x = _silu_conv(head, x, 640, SlidingWindow())
    x = head.op("ReduceMean", "pool", x, (-1, -2), keepdims=1)
    x = blocks.reshape(head, "flatten", x, *dims(x)[:2])
    return d.finish("mobilevit_small", {"logits": blocks.gemm(head, "fc", x, _CLASSES)})


def _silu(d: ModelDraft, name: str, x: ir.Value) -> ir.Value:
    return d.op("Mul", name, x, d.op("Sigmoid", f"{name}/sigmoid", x))


def _silu_conv(d: ModelDraft, x: ir.Value, width: int, window: SlidingWindow) -> ir.Value:
    return _silu(d, "silu", _conv(d, "conv", x, width, window, _SILU_GAIN))


def _silu_inverted(d: ModelDraft, x: ir.Value, width: int, stride: int) -> ir.Value:
    inner = 4 * dims(x)[1]
    y = _silu_conv(d.at("expand"), x, inner, SlidingWindow())
    y = _silu_conv(d.at("depthwise"), y, inner, SlidingWindow(3, stride, group=inner))
    y = _conv(d, "project/conv", y, width, SlidingWindow())
    return d.op("Add", "add", y, x) if dims(y) == dims(x) else y


def _mobilevit_block(d: ModelDraft, x: ir.Value, inner: int, layers: int) -> ir.Value:
    """Write local filters, attention among pixels of one place of their 2x2 patch, and a merge."""
    width, start = dims(x)[1], x
    x = _silu_conv(d.at("local"), x, width, SlidingWindow(3))
    x = _conv(d, "project_in/conv", x, inner, SlidingWindow())
    _, _, height, across = dims(x)
    rows, columns = height // _PATCH, across // _PATCH
    x = blocks.reshape(d, "unfold/rows", x, inner * rows, _PATCH, columns, _PATCH)
    x = d.op("Transpose", "unfold/patches", x, perm=(0, 2, 1, 3))
    x = blocks.reshape(d, "unfold/split", x, 1, inner, rows * columns, _PATCH**2)
    x = d.op("Transpose", "unfold/transpose", x, perm=(0, 3, 2, 1))
    x = blocks.reshape(d, "unfold/tokens", x, _PATCH**2, rows * columns, inner)
    for i in range(layers):
        layer = d.at("layer", i)
        y, attention = blocks.layer_norm(layer, "norm1", x, 1e-5), layer.at("attention")
        context = blocks.attend(attention, *_joint_heads(attention, y, _MOBILEVIT_HEADS))
        y = blocks.join_heads(attention, context, *dims(x))
        x = layer.op("Add", "add1", x, blocks.linear(attention, "output", y, inner, _BRANCH))
        y, mlp = blocks.layer_norm(layer, "norm2", x, 1e-5), layer.at("mlp")
        y = blocks.mlp(mlp, y, 2 * inner, _BRANCH, activation=_silu)
        x = layer.op("Add", "add2", x, y)
    x = blocks.layer_norm(d, "norm", x, 1e-5)
    x = blocks.reshape(d, "fold/split", x, 1, _PATCH**2, rows * columns, inner)
    x = d.op("Transpose", "fold/transpose", x, perm=(0, 3, 2, 1))
    x = blocks.reshape(d, "fold/patches", x, inner * rows, columns, _PATCH, _PATCH)
    x = d.op("Transpose", "fold/rows", x, perm=(0, 2, 1, 3))
    x = blocks.reshape(d, "fold/image", x, 1, inner, height, across)
    x = _silu_conv(d.at("project_out"), x, width, SlidingWindow())
    x = d.op("Concat", "concat", start, x, axis=1)
    return _silu_conv(d.at("fusion"), x, width, SlidingWindow(3))


_EFFICIENTFORMER = ((48, 3), (96, 2), (224, 6), (448, 4))  # width, blocks
_KEY, _VALUE, _HEADS = 32, 128, 8


def efficientformer_l1(rng: np.random.Generator) -> ModelProto:
    """Build EfficientFormer-L1: pooling mixes tokens, and in the last block attention does."""
    d = ModelDraft.start(rng, opset=20)
    x = d.input("data", (1, 3, 224, 224))
    for i, width in ((1, 24), (2, 48)):
        x = d.op(
            "Relu",
            f"stem/relu{i}",
            _conv(d, f"stem/conv{i}", x, width, SlidingWindow(3, 2), _RELU_GAIN),
        )
    for i, (width, count) in enumerate(_EFFICIENTFORMER, 1):
        stage, is_last = d.at(f"stage{i}"), i == len(_EFFICIENTFORMER)
        if i > 1:
            x = _conv(stage, "downsample/conv", x, width, SlidingWindow(3, 2))
        for j in range(count - is_last):
            x = _pooling_block(stage.at(j), x)
    x = _attention_block(d.at("stage4", 3), _tokens(d.at("stage4", "flat"), x))
    head = d.at("head")
    x = head.op("ReduceMean", "pool", blocks.layer_norm(head, "norm", x, 1e-5), (1,), keepdims=0)
    ends = [blocks.gemm(head, name, x, _CLASSES) for name in ("fc", "distilled")]
    mean = head.op("Div", "mean", head.op("Add", "add", *ends), 2.0)
    return d.finish("efficientformer_l1", {"logits": mean})


def _scaled(d: ModelDraft, name: str, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Write the scale of a branch, a number for each channel."""
    return d.op("Mul", name, x, d.normal(f"{name}.weight", shape, _BRANCH))


def _pooling_block(d: ModelDraft, x: ir.Value) -> ir.Value:
    width, side = dims(x)[1], SlidingWindow(3).attributes()
    window = {key: side[key] for key in ("kernel_shape", "strides", "pads")}
    pooled = d.op("AveragePool", "mixer/pool", x, **window, count_include_pad=0)
    y = d.op("Sub", "mixer/sub", pooled, x)
    x = d.op("Add", "add1", x, _scaled(d, "scale1", y, (width, 1, 1)))
    y = d.op(
        "Gelu", "mlp/gelu", _conv(d, "mlp/up", x, 4 * width, SlidingWindow()), approximate="none"
    )
    y = _conv(d, "mlp/down", y, width, SlidingWindow(), _RELU_GAIN)
    return d.op("Add", "add2", x, _scaled(d, "scale2", y, (width, 1, 1)))


def _attention_block(d: ModelDraft, x: ir.Value) -> ir.Value:
    (_, length, width), attention = dims(x), d.at("attention")
    y = blocks.linear(
        attention, "qkv", blocks.layer_norm(d, "norm1", x, 1e-5), _HEADS * (2 * _KEY + _VALUE)
    )
    y = blocks.split_heads(attention, "heads", y, 2 * _KEY + _VALUE)
    query, key, value = attention.split("split", y, (_KEY, _KEY, _VALUE), axis=3)
    key = attention.op("Transpose", "key_transpose", key, perm=(0, 1, 3, 2))
    scores = attention.op("Mul", "scale", attention.op("MatMul", "scores", query, key), _KEY**-0.5)
    bias = attention.normal("positions", (_HEADS, length, length), 0.5)
    context = _weigh(attention, attention.op("Add", "bias", scores, bias), value)
    y = _scaled(d, "scale1", blocks.linear(attention, "output", context, width), (width,))
    x = d.op("Add", "add1", x, y)
    y = blocks.mlp(d.at("mlp"), blocks.layer_norm(d, "norm2", x, 1e-5), 4 * width, _BRANCH)
    return d.op("Add", "add2", x, _scaled(d, "scale2", y, (width,)))
