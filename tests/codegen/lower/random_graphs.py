# SPDX-License-Identifier: Apache-2.0
"""Small random models of what lowering handles with most freedom: layouts, views, groups."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

EXTENTS = (1, 2, 3, 5, 7)
CHANNELS = (1, 3, 8, 16, 17, 20, 32)
UNARY = ("Relu", "Sigmoid", "Neg", "Tanh", "Abs", "Identity")
INT_UNARY = ("Neg", "Abs", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max")


@dataclass
class Sketch:
    """A model that is being drawn."""

    draw: object
    seed: int
    dtype: np.dtype
    channels: tuple[int, ...] = CHANNELS
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def between(self, low, high):
        return self.draw(st.integers(low, high))

    def input(self, shape):
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.shapes[name] = tuple(shape)
        return name

    def weights(self, shape, scale=1.0):
        numbers = self.rng.standard_normal(shape)
        numbers *= scale if self.dtype.kind == "f" else 3
        return self.constant(np.asarray(numbers, self.dtype))

    def constant(self, array):
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type, inputs, shape, **attributes):
        return self.add_many(op_type, inputs, [shape], **attributes)[0]

    def add_many(self, op_type, inputs, shapes, **attributes):
        number = len(self.nodes)
        names = [f"v{number}_{i}" if i else f"v{number}" for i in range(len(shapes))]
        node = helper.make_node(op_type, inputs, names, name=f"n{number}", **attributes)
        self.nodes.append(node)
        for name, shape in zip(names, shapes, strict=True):
            self.shapes[name] = tuple(int(extent) for extent in shape)
        return names

    def _info(self, name):
        element = helper.np_dtype_to_tensor_dtype(self.dtype)
        return helper.make_tensor_value_info(name, element, self.shapes[name])

    def model(self, outputs):
        return helper.make_model(
            helper.make_graph(
                self.nodes,
                "random",
                [self._info(name) for name in self.inputs],
                [self._info(name) for name in outputs],
                self.initializers,
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=9,
        )


def _conv(s, x):
    batch, channels, *spatial = s.shapes[x]
    outputs = s.pick(s.channels)
    groups = 1
    if s.between(0, 3) == 0:
        groups = s.pick([g for g in (2, 4, channels) if channels % g == 0] or [1])
        outputs = channels if s.between(0, 1) or outputs % groups else outputs
    kernel = [s.between(1, 3) for _ in spatial]
    strides = [s.between(1, 2) for _ in spatial]
    pads = [s.between(0, 2) for _ in range(2 * len(spatial))]
    out = []
    for dim, extent in enumerate(spatial):
        room = extent + pads[dim] + pads[dim + len(spatial)] - kernel[dim]
        if room < 0:
            return None
        out.append(room // strides[dim] + 1)
    fan = channels // groups * int(np.prod(kernel))
    inputs = [x, s.weights((outputs, channels // groups, *kernel), fan**-0.5)]
    if s.between(0, 1):
        inputs.append(s.weights((outputs,)))
    return s.add(
        *("Conv", inputs, (batch, outputs, *out)),
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        group=groups,
    )


def _pool(s, x):
    batch, channels, *spatial = s.shapes[x]
    kernel = [s.between(1, 3) for _ in spatial]
    strides = [s.between(1, 2) for _ in spatial]
    pads = [min(s.between(0, 1), k - 1) for k in (*kernel, *kernel)]
    out = []
    for dim, extent in enumerate(spatial):
        room = extent + pads[dim] + pads[dim + len(spatial)] - kernel[dim]
        if room < 0:
            return None
        out.append(room // strides[dim] + 1)
    shape = (batch, channels, *out)
    kind = s.pick(("MaxPool", "AveragePool", "GlobalAveragePool"))
    if kind.startswith("Global"):
        return s.add(kind, [x], (batch, channels, *[1] * len(spatial)))
    return s.add(kind, [x], shape, kernel_shape=kernel, strides=strides, pads=pads)


def _unary(s, x):
    return s.add(s.pick(UNARY if s.dtype.kind == "f" else INT_UNARY), [x], s.shapes[x])


def _binary(s, x):
    """Add something of the same shape, or something that is broadcast."""
    shape = s.shapes[x]
    same = [name for name, other in s.shapes.items() if _fits(other, shape)]
    if same and s.between(0, 3):
        pair = [x, s.pick(same)]
    else:
        rank = s.between(0, len(shape))
        other = [e if s.between(0, 1) else 1 for e in shape[len(shape) - rank :]]
        pair = [x, s.weights(other) if s.between(0, 1) else s.input(other)]
    if s.between(0, 1):
        pair.reverse()
    return s.add(s.pick(BINARY), pair, shape)


def _fits(other, shape):
    padded = (1,) * (len(shape) - len(other)) + other
    return len(padded) == len(shape) and all(
        a in (1, b) for a, b in zip(padded, shape, strict=True)
    )


def _concat(s, x):
    shape = s.shapes[x]
    axis = s.between(0, len(shape) - 1)
    others = [
        name
        for name, other in s.shapes.items()
        if len(other) == len(shape)
        and all(i == axis or a == b for i, (a, b) in enumerate(zip(other, shape, strict=True)))
    ]
    parts = [x, *(s.pick(others) for _ in range(s.between(1, 2)))]
    parts = s.draw(st.permutations(parts))
    size = sum(s.shapes[part][axis] for part in parts)
    if size > 64:
        return None
    signed = axis - len(shape) if s.between(0, 1) else axis
    return s.add("Concat", parts, (*shape[:axis], size, *shape[axis + 1 :]), axis=signed)


def _slice(s, x):
    shape = s.shapes[x]
    axes = [axis for axis in range(len(shape)) if s.between(0, 1)] or [0]
    starts, ends, steps, out = [], [], [], list(shape)
    for axis in axes:
        step = s.pick((1, 1, 1, 2, -1, -2))
        start = s.between(-shape[axis] - 1, shape[axis])
        end = s.pick((start + s.between(1, shape[axis]), 2**31 - 1, -(2**31)))
        entries = range(shape[axis])[slice(start, end, step)]
        if not len(entries):
            start, end, step, entries = 0, shape[axis], 1, range(shape[axis])
        starts.append(start)
        ends.append(end)
        steps.append(step)
        out[axis] = len(entries)
    inputs = [x, *(s.constant(np.array(v, np.int64)) for v in (starts, ends, axes, steps))]
    return s.add("Slice", inputs, out)


def _split(s, x):
    shape = s.shapes[x]
    axis = s.pick([i for i, extent in enumerate(shape) if extent > 1] or [None])
    if axis is None:
        return None
    cut = s.between(1, shape[axis] - 1)
    if shape[axis] > 16 and s.between(0, 1):
        cut = 16
    sizes = [cut, shape[axis] - cut]
    shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return s.add_many("Split", [x, s.constant(np.array(sizes, np.int64))], shapes, axis=axis)[
        s.between(0, 1)
    ]


def _transpose(s, x):
    order = s.draw(st.permutations(range(len(s.shapes[x]))))
    return s.add("Transpose", [x], [s.shapes[x][i] for i in order], perm=order)


def _expand(s, x):
    shape = [e if e != 1 else s.pick((1, 2, 3)) for e in s.shapes[x]]
    shape = [s.pick((1, 2))] * s.between(0, 1) + shape
    if len(shape) > 5 or np.prod(shape) > 4096:
        return None
    return s.add("Expand", [x, s.constant(np.array(shape, np.int64))], shape)


def _reshape(s, x):
    shape = list(s.shapes[x])
    if len(shape) > 1 and s.between(0, 1):
        at = s.between(0, len(shape) - 2)
        new = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    elif len(shape) < 5:
        at = s.between(0, len(shape))
        new = [*shape[:at], 1, *shape[at:]]
    else:
        new = [int(np.prod(shape))]
    if s.between(0, 3) == 0 and len(new) < 5:
        new = [*new, 1]
    return s.add("Reshape", [x, s.constant(np.array(new, np.int64))], new)


def _matmul(s, x):
    *batch, m, k = s.shapes[x]
    n = s.pick((1, 3, 16, 20))
    if s.between(0, 2):
        return s.add("MatMul", [x, s.weights((k, n), k**-0.5)], (*batch, m, n))
    others = [
        name
        for name, o in s.shapes.items()
        if len(o) == len(batch) + 2 and o[-2] == k and list(o[:-2]) == batch
    ]
    if others:
        other = s.pick(others)
        return s.add("MatMul", [x, other], (*batch, m, s.shapes[other][-1]))
    if s.between(0, 1):
        turned = s.add(
            "Transpose", [x], (*batch, k, m), perm=[*range(len(batch)), len(batch) + 1, len(batch)]
        )
        return s.add("MatMul", [x, turned], (*batch, m, m))
    return s.add("MatMul", [x, s.input((*batch, k, n))], (*batch, m, n))


def _conv_transpose(s, x):
    batch, channels, *spatial = s.shapes[x]
    outputs = s.pick(s.channels)
    kernel = [s.between(1, 3) for _ in spatial]
    strides = [s.between(1, 2) for _ in spatial]
    pads = [min(s.between(0, 1), k - 1) for k in (*kernel, *kernel)]
    rank = len(spatial)
    out = [
        strides[i] * (spatial[i] - 1) + kernel[i] - pads[i] - pads[i + rank] for i in range(rank)
    ]
    if min(out) < 1:
        return None
    inputs = [x, s.weights((channels, outputs, *kernel), channels**-0.5)]
    shape = (batch, outputs, *out)
    return s.add("ConvTranspose", inputs, shape, kernel_shape=kernel, strides=strides, pads=pads)


def _reduce(s, x):
    shape = s.shapes[x]
    axes = sorted({s.between(0, len(shape) - 1) for _ in range(s.between(1, 3))})
    keeps = s.between(0, 1)
    out = [1 if i in axes else e for i, e in enumerate(shape) if keeps or i not in axes]
    kind = s.pick(("ReduceMean", "ReduceMax", "ReduceL2")) if s.dtype.kind == "f" else "ReduceMax"
    return s.add(kind, [x], out, axes=axes, keepdims=keeps)


def _softmax(s, x):
    return s.add("Softmax", [x], s.shapes[x], axis=s.between(-1, len(s.shapes[x]) - 1))


def _normalise(s, x):
    shape = s.shapes[x]
    scale, bias = s.weights((shape[-1],)), s.weights((shape[-1],))
    return s.add("LayerNormalization", [x, scale, bias], shape)


def _batch_norm(s, x):
    channels = s.shapes[x][1]
    parameters = [s.weights((channels,)) for _ in range(3)]
    variance = s.constant(s.rng.uniform(0.5, 2, channels).astype(np.float32))
    return s.add("BatchNormalization", [x, *parameters, variance], s.shapes[x])


def _pad(s, x):
    shape = s.shapes[x]
    pads = [s.between(0, 2) for _ in range(2 * len(shape))]
    out = [e + pads[i] + pads[i + len(shape)] for i, e in enumerate(shape)]
    return s.add("Pad", [x, s.constant(np.array(pads, np.int64))], out)


def _gather(s, x):
    shape = s.shapes[x]
    axis = s.between(0, len(shape) - 1)
    indices = [s.between(-shape[axis], shape[axis] - 1) for _ in range(s.between(1, 3))]
    out = (*shape[:axis], len(indices), *shape[axis + 1 :])
    return s.add("Gather", [x, s.constant(np.array(indices, np.int64))], out, axis=axis)


def _resize(s, x):
    shape = s.shapes[x]
    out = [*shape[:2], *(2 * extent for extent in shape[2:])]
    sizes = s.constant(np.array(out, np.int64))
    return s.add(
        *("Resize", [x, "", "", sizes], out),
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


def _where(s, x):
    condition = f"c{len(s.nodes)}"
    zero = s.constant(np.zeros((), s.dtype))
    s.nodes.append(helper.make_node("Greater", [x, zero], [condition], name=condition))
    return s.add("Where", [condition, x, s.weights(s.shapes[x][-1:])], s.shapes[x])


_ANY = (_unary, _binary, _binary, _reshape)
_RANKED = (
    _reduce,
    _pad,
    _gather,
    _where,
    _transpose,
    _concat,
    _concat,
    _slice,
    _split,
    _expand,
)


@st.composite
def models(draw, max_nodes=10, dtype="float32", channels=CHANNELS):
    """Draw a model of tensors of one dtype; every value without a reader is an output."""
    s = Sketch(draw, draw(st.integers(0, 1000)), np.dtype(dtype), channels)
    rank = draw(st.sampled_from((4, 4, 4, 3, 5, 2)))
    batch = draw(st.sampled_from((1, 1, 2)))
    extents = [s.pick(EXTENTS) for _ in range(rank - 2)]
    for _ in range(s.between(1, 2)):
        s.input((batch, s.pick(s.channels), *extents))
    for _ in range(s.between(2, max_nodes)):
        recent = list(s.shapes)[-5:]
        x = s.pick(recent)
        shape = s.shapes[x]
        makers = list(_ANY)
        if shape:
            makers += _RANKED
        if shape and s.dtype == np.float32:
            makers += (_softmax, _normalise)
        if len(shape) in (3, 4, 5) and shape[1] <= 64 and s.dtype == np.float32:
            makers += [_conv] * 7 + [_pool, _pool, _conv_transpose, _batch_norm, _resize]
        if len(shape) >= 2:
            makers.append(_matmul)
        if np.prod(shape) > 20000:
            continue
        s.pick(makers)(s, x)
    if not s.nodes:
        _unary(s, s.inputs[0])
    read = {name for node in s.nodes for name in node.input}
    made = [name for node in s.nodes for name in node.output if name in s.shapes]
    outputs = [name for name in made if name not in read]
    outputs += [name for name in made if name in read and s.between(0, 7) == 0]
    return s.model(outputs)
