# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks, in the shape that PyTorch's exporter gives them.

The exporter folds each batch norm into the convolution before it, so none is left.

Source: He et al., "Deep residual learning", 2016; Sandler et al., "MobileNetV2", 2018; Redmon et
al., "You Only Look Once", 2015; Wang et al., "CSPNet", 2019; Liu et al., "Path Aggregation
Network", 2018. The detector has the sizes of the smallest YOLOv5 of Jocher, 2020.

A light model, of those that the onnx package carries for its own tests (`backend/test/data/light`),
has a published network's structure with each weight written as `ConstantOfShape`. Here the
structure is kept, nodes and values get readable names, and every weight is drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from intarsia.errors import ModelError
from intarsia.zoo.draft import ModelDraft, dims
from intarsia.zoo.naming import Rules, node_name
from intarsia.zoo.weights import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir
    from onnx import ModelProto

_CLASSES = 1000
# expansion, width, blocks, stride of the first
_MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

_RESNET18 = (64, 128, 256, 512)  # width of a stage of two blocks

_SIDE, _BOXES, _KINDS = 320, 3, 80
_FIELDS = 5 + _KINDS  # centre, size, objectness, classes
_BACKBONE = ((32, 1), (64, 2), (128, 3), (256, 1))  # width of a stage and its bottlenecks
_ANCHORS = (  # width and height of each box, in pixels, by level
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """How a convolution moves over an image; without `pad` it pads half of its window."""

    kernel: int = 1
    stride: int = 1
    pad: int | None = None
    group: int = 1
    dilation: int = 1

    def attributes(self) -> dict[str, int | tuple[int, ...]]:
        """Return the attributes of a Conv."""
        pad = self.dilation * (self.kernel - 1) // 2 if self.pad is None else self.pad
        return {
            "group": self.group,
            "kernel_shape": (self.kernel, self.kernel),
            "strides": (self.stride, self.stride),
            "pads": (pad, pad, pad, pad),
            "dilations": (self.dilation, self.dilation),
        }


_POINT = SlidingWindow()


def conv(
    d: ModelDraft,
    name: str,
    x: ir.Value,
    width: int,
    window: SlidingWindow = _POINT,
    *,
    bias: bool = True,
) -> ir.Value:
    """Write a convolution to `width` channels whose weights are drawn later."""
    shape = (width, dims(x)[1] // window.group, window.kernel, window.kernel)
    weights = [d.blank(f"{name}.weight", shape)]
    if bias:
        weights.append(d.blank(f"{name}.bias", (width,)))
    return d.op("Conv", name, x, *weights, **window.attributes())


def gemm(d: ModelDraft, name: str, x: ir.Value, width: int) -> ir.Value:
    """Write a linear layer of a matrix whose weights are drawn later."""
    weight = d.blank(f"{name}.weight", (width, dims(x)[1]))
    return d.op("Gemm", name, x, weight, d.blank(f"{name}.bias", (width,)), transB=1)


def mobilenet_v2(rng: np.random.Generator) -> ModelProto:
    """Build MobileNetV2: inverted residuals with depthwise convolutions."""
    d = ModelDraft.start(rng, opset=18)
    x = _clipped(d.at("stem"), d.input("data", (1, 3, 224, 224)), 32, SlidingWindow(3, 2))
    for i, (expansion, width, count, stride) in enumerate(_MOBILENET, 1):
        for j in range(count):
            x = _inverted(d.at(f"stage{i}", j), x, expansion, width, 1 if j else stride)
    head = d.at("head")
    x = _clipped(head, x, 1280)
    x = head.op("ReduceMean", "pool", x, (-1, -2), keepdims=1)
    x = head.op("Reshape", "flatten", x, dims(x)[:2])
    return d.finish("mobilenet_v2", {"logits": gemm(head, "fc", x, _CLASSES)}, gain=0.5)


def _clipped(d: ModelDraft, x: ir.Value, width: int, window: SlidingWindow = _POINT) -> ir.Value:
    return d.op("Clip", "clip", conv(d, "conv", x, width, window), 0.0, 6.0)


def _inverted(d: ModelDraft, x: ir.Value, expansion: int, width: int, stride: int) -> ir.Value:
    """Write a block: widen, filter each channel, narrow, and add what came in where it fits."""
    inner = expansion * dims(x)[1]
    y = x if expansion == 1 else _clipped(d.at("expand"), x, inner)
    y = _clipped(d.at("depthwise"), y, inner, SlidingWindow(3, stride, group=inner))
    y = conv(d.at("project"), "conv", y, width)
    return d.op("Add", "add", x, y) if dims(y) == dims(x) else y


def resnet18(rng: np.random.Generator) -> ModelProto:
    """Build ResNet-18: residual blocks of two 3x3 convolutions."""
    d = ModelDraft.start(rng, opset=18)
    stem = d.at("stem")
    x = conv(stem, "conv", d.input("data", (1, 3, 224, 224)), _RESNET18[0], SlidingWindow(7, 2))
    x = stem.op("Relu", "relu", x)
    x = stem.op("MaxPool", "pool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4)
    for i, width in enumerate(_RESNET18, 1):
        for j in range(2):
            x = _residual(d.at(f"layer{i}", j), x, width, 2 if i > 1 and j == 0 else 1)
    head = d.at("head")
    x = head.op("GlobalAveragePool", "pool", x)
    x = head.op("Flatten", "flatten", x, axis=1)
    return d.finish("resnet18", {"logits": gemm(head, "fc", x, _CLASSES)})


def _residual(d: ModelDraft, x: ir.Value, width: int, stride: int) -> ir.Value:
    """Write a basic block: two 3x3 convolutions, and the input added to what they give."""
    y = d.op("Relu", "relu1", conv(d, "conv1", x, width, SlidingWindow(3, stride)))
    y = conv(d, "conv2", y, width, SlidingWindow(3))
    if dims(x) != dims(y):
        x = conv(d.at("downsample"), "conv", x, width, SlidingWindow(1, stride))
    return d.op("Relu", "relu2", d.op("Add", "add", y, x))


def detector(rng: np.random.Generator) -> ModelProto:
    """Build a single-shot detector: f32[1, boxes, 85] of centres, sizes and scores in pixels."""
    d = ModelDraft.start(rng, opset=18)
    levels = _neck(d.at("neck"), _backbone(d.at("backbone"), d.input("data", (1, 3, _SIDE, _SIDE))))
    raw = [
        conv(d.at("head", f"p{i}"), "conv", x, _BOXES * _FIELDS) for i, x in enumerate(levels, 3)
    ]
    boxes = [
        _boxes(d.at("head", f"p{i}"), x, np.asarray(anchors, np.float32))
        for i, (x, anchors) in enumerate(zip(raw, _ANCHORS, strict=True), 3)
    ]
    return d.finish("detector", {"boxes": d.op("Concat", "head/concat", *boxes, axis=1)})


def _silu(d: ModelDraft, x: ir.Value, width: int, window: SlidingWindow = _POINT) -> ir.Value:
    y = conv(d, "conv", x, width, window)
    return d.op("Mul", "mul", y, d.op("Sigmoid", "sigmoid", y))


def _cross_stage(d: ModelDraft, x: ir.Value, width: int, count: int, *, residual: bool) -> ir.Value:
    """Write a cross-stage partial block: bottlenecks on one half of the channels."""
    y = _silu(d.at("main"), x, width // 2)
    for i in range(count):
        z = _silu(d.at(i, "reduce"), y, width // 2)
        z = _silu(d.at(i, "filter"), z, width // 2, SlidingWindow(3))
        y = d.at(i).op("Add", "add", y, z) if residual else z
    side = _silu(d.at("side"), x, width // 2)
    return _silu(d.at("merge"), d.op("Concat", "concat", y, side, axis=1), width)


def _backbone(d: ModelDraft, x: ir.Value) -> list[ir.Value]:
    """Write the backbone; return its values at strides 8, 16 and 32."""
    x = _silu(d.at("stem"), x, _BACKBONE[0][0] // 2, SlidingWindow(6, 2, pad=2))
    levels: list[ir.Value] = []
    for i, (width, count) in enumerate(_BACKBONE, 2):
        x = _silu(d.at(f"p{i}", "down"), x, width, SlidingWindow(3, 2))
        x = _cross_stage(d.at(f"p{i}", "csp"), x, width, count, residual=True)
        levels.append(x)
    return [*levels[1:-1], _pyramid(d.at("sppf"), x)]


def _pyramid(d: ModelDraft, x: ir.Value) -> ir.Value:
    """Write spatial pyramid pooling: three poolings in a row, all kept."""
    width = dims(x)[1]
    pools = [_silu(d.at("reduce"), x, width // 2)]
    for i in range(1, 4):
        pool = d.op("MaxPool", f"pool{i}", pools[-1], kernel_shape=(5, 5), pads=(2,) * 4)
        pools.append(pool)
    return _silu(d.at("merge"), d.op("Concat", "concat", *pools, axis=1), width)


def _neck(d: ModelDraft, levels: list[ir.Value]) -> list[ir.Value]:
    """Write the way up, then the way down, that mix three levels."""
    mixed, reduced = levels[-1], []
    for i, level in ((4, levels[1]), (3, levels[0])):
        up, width = d.at(f"up{i}"), dims(level)[1]
        mixed = _silu(up.at("reduce"), mixed, width)
        reduced.append(mixed)
        y = up.op("Concat", "concat", _twice(up, mixed), level, axis=1)
        mixed = _cross_stage(up.at("csp"), y, width, 1, residual=False)
    outputs = [mixed]
    for i, level in ((4, reduced[1]), (5, reduced[0])):
        down, width = d.at(f"down{i}"), dims(level)[1]
        y = _silu(down.at("conv"), outputs[-1], width, SlidingWindow(3, 2))
        y = down.op("Concat", "concat", y, level, axis=1)
        outputs.append(_cross_stage(down.at("csp"), y, 2 * width, 1, residual=False))
    return outputs


def _twice(d: ModelDraft, x: ir.Value) -> ir.Value:
    scales = d.constant(np.asarray([1, 1, 2, 2], np.float32))
    mode = {"mode": "nearest", "nearest_mode": "floor"}
    asymmetric = "asymmetric"
    return d.op(
        "Resize", "resize", x, None, scales, coordinate_transformation_mode=asymmetric, **mode
    )


def _boxes(d: ModelDraft, x: ir.Value, anchors: np.typing.NDArray[np.float32]) -> ir.Value:
    """Turn one level's numbers into boxes in pixels: f32[1, 3 * h * w, 85]."""
    side = dims(x)[-1]
    x = d.op("Reshape", "split", x, (1, _BOXES, _FIELDS, side, side))
    x = d.op("Sigmoid", "sigmoid", d.op("Transpose", "transpose", x, perm=(0, 1, 3, 4, 2)))
    centre, size, score = d.split("fields", x, (2, 2, _FIELDS - 4), axis=4)
    rows, columns = np.mgrid[:side, :side].astype(np.float32)
    grid = d.constant(np.stack([columns, rows], axis=-1)[None, None] - 0.5, "grid")
    centre = d.op("Add", "cell", d.op("Mul", "centre", centre, 2.0), grid)
    centre = d.op("Mul", "stride", centre, float(_SIDE // side))
    size = d.op("Pow", "square", d.op("Mul", "size", size, 2.0), 2.0)
    size = d.op("Mul", "anchor", size, d.constant(anchors[None, :, None, None], "anchors"))
    x = d.op("Concat", "concat", centre, size, score, axis=4)
    return d.op("Reshape", "join", x, (1, -1, _FIELDS))


Array = npt.NDArray[np.generic]

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_IR_VERSION = 8  # version 3, that of the files, wants each initializer listed as an input too
_ROLES: Mapping[str, tuple[str, ...]] = {
    "BatchNormalization": ("", "scale", "bias", "mean", "var"),
    "Conv": ("", "weight", "bias"),
    "Gemm": ("", "weight", "bias"),
    "Reshape": ("", "shape"),
    "Unsqueeze": ("value",),
}


def from_light(
    name: str, rules: Rules, output: str, gain: float, rng: np.random.Generator
) -> ModelProto:
    """Build a network from the light model of this name.

    Args:
        name: What follows `light_` in the file's name.
        rules: How its nodes are to be called.
        output: How its one output is to be called.
        gain: The standard deviation that its last Conv or Gemm is to give.
        rng: Draws every weight.

    Raises:
        ModelError: If the installed onnx package lacks the light model.
    """
    source = _load(name)
    kept_nodes = [node for node in source.graph.node if node.op_type != "ConstantOfShape"]
    shapes, constants = _parameters(source.graph, kept_nodes)
    kept_nodes = _without_weight_reshapes(kept_nodes, shapes, constants)
    (image,) = (value for value in source.graph.input if value.name in kept_nodes[0].input[:1])
    names = {image.name: "data"}
    nodes = _renamed(kept_nodes, rules, names, shapes)
    nodes[-1].output[0] = output
    shapes = {names[key]: shape for key, shape in shapes.items()}
    constants = {names[key]: value for key, value in constants.items()}
    weights = {**fill(nodes, shapes, constants, rng, gain), **constants}
    graph = helper.make_graph(
        nodes,
        name,
        [_typed("data", image)],
        [_typed(output, source.graph.output[0])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(
        graph,
        ir_version=_IR_VERSION,
        opset_imports=source.opset_import,
        producer_name="intarsia.zoo",
    )


def _load(name: str) -> ModelProto:
    """Read one light model."""
    path = _FOLDER / f"light_{name}.onnx"
    if not path.is_file():
        msg = f"the installed onnx package has no light model of {name}"
        raise ModelError(
            msg,
            hint="reinstall onnx from its own wheel; some distributions leave its test data out",
        )
    return onnx.load(path)


def _parameters(
    graph: GraphProto, nodes: Sequence[NodeProto]
) -> tuple[dict[str, tuple[int, ...]], dict[str, Array]]:
    """Return the shape of each weight, and the value of each integer constant, that is used."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {
        node.output[0]: tuple(int(extent) for extent in values[node.input[0]])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    shapes |= {key: value.shape for key, value in values.items() if value.dtype == np.float32}
    used = dict.fromkeys(name for node in nodes for name in node.input)
    return (
        {name: shapes[name] for name in used if name in shapes},
        {name: values[name] for name in used if name in values and name not in shapes},
    )


def _without_weight_reshapes(
    nodes: Sequence[NodeProto],
    shapes: dict[str, tuple[int, ...]],
    constants: dict[str, Array],
) -> list[NodeProto]:
    """Give each weight that only a Reshape reads its final shape, and drop that Reshape.

    Args:
        nodes: The source's nodes.
        shapes: The shape of each weight; changed here.
        constants: The integer constants; the shapes that are no longer read leave.
    """
    remaining: list[NodeProto] = []
    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] in shapes:
            del shapes[node.input[0]]
            shapes[node.output[0]] = tuple(int(n) for n in constants.pop(node.input[1]))
        else:
            remaining.append(node)
    return remaining


def _renamed(
    nodes: Iterable[NodeProto],
    rules: Rules,
    names: dict[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[NodeProto]:
    """Return the nodes with readable names for themselves and for every value.

    Args:
        nodes: The source's nodes, in topological order.
        rules: How its nodes are to be called.
        names: Source names of the values so far and what they are called; extended here.
        shapes: The source names of weights, and their shapes.
    """
    renamed: list[NodeProto] = []
    for node in nodes:
        new = [(i, key) for i, key in enumerate(node.input) if key not in names]
        weights = [key for _, key in new if key in shapes]
        name = node_name(rules, node.op_type, weights[0] if weights else renamed[-1].name)
        names |= {key: f"{name}.{_ROLES[node.op_type][i]}" for i, key in new}
        names[node.output[0]] = name
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = name
        copy.input[:] = [names[key] for key in node.input]
        copy.output[:] = [name]  # drops the mask of a Dropout, which nothing reads
        renamed.append(copy)
    return renamed


def _typed(name: str, value: ValueInfoProto) -> ValueInfoProto:
    """Return a graph input or output under another name."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy
