"""Runs convolution kernels on NCHW arrays and compares with the ONNX reference evaluator."""

import dataclasses
import math

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from intarsia.codegen.body import NOTHING, Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import conv, conv_plain, convolution, depthwise
from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.kernels.window import Window

RESIDUAL_RELU = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,))
SENTINEL = np.float32(-77)


@dataclasses.dataclass
class Case:
    """A convolution as ONNX has it."""

    channels: tuple[int, int] = (16, 16)
    size: tuple[int, ...] = (6, 6)
    kernel: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] | None = None
    dilations: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    groups: int = 1
    batch: int = 1
    bias: bool = True
    residual: bool = False
    output_padding: tuple[int, ...] | None = None

    def __post_init__(self):
        rank = len(self.size)
        self.strides = self.strides or (1,) * rank
        self.dilations = self.dilations or (1,) * rank
        self.pads = self.pads or (0,) * (2 * rank)
        self.output_padding = self.output_padding or (0,) * rank

    @property
    def out(self):
        rank = len(self.size)
        return tuple(
            (size + self.pads[i] + self.pads[rank + i] - (k - 1) * d - 1) // s + 1
            for i, (size, k, s, d) in enumerate(
                zip(self.size, self.kernel, self.strides, self.dilations, strict=True)
            )
        )

    @property
    def transposed_out(self):
        rank = len(self.size)
        return tuple(
            (size - 1) * s + more + (k - 1) * d + 1 - self.pads[i] - self.pads[rank + i]
            for i, (size, k, s, d, more) in enumerate(
                zip(
                    *(self.size, self.kernel, self.strides, self.dilations, self.output_padding),
                    strict=True,
                )
            )
        )


def random_arrays(case, weights_shape, out, seed=0):
    """Input, weights, bias and residual, in float32."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((case.batch, case.channels[0], *case.size)).astype("float32")
    w = rng.standard_normal(weights_shape).astype("float32")
    bias = rng.standard_normal(case.channels[1]).astype("float32") if case.bias else None
    shape = (case.batch, case.channels[1], *out)
    residual = rng.standard_normal(shape).astype("float32") if case.residual else None
    return x, w, bias, residual


def reference(case, x, w, bias, residual, op_type="Conv"):
    """What the ONNX reference evaluator makes of it in float64.

    Its ConvTranspose is wrong for groups and dilations; ONNX Runtime computes that, in float32.
    """
    names = ["x", "w", "b"][: 2 + (bias is not None)]
    attributes = {
        "group": case.groups,
        "strides": case.strides,
        "dilations": case.dilations,
        "pads": case.pads,
        "kernel_shape": case.kernel,
    }
    if op_type == "ConvTranspose":
        attributes["output_padding"] = case.output_padding
    node = helper.make_node(op_type, names, ["y"], **attributes)
    is_transposed = op_type == "ConvTranspose"
    number = onnx.TensorProto.FLOAT if is_transposed else onnx.TensorProto.DOUBLE
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info(name, number, None) for name in names],
        [helper.make_tensor_value_info("y", number, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = dict(zip(names, (x, w, bias), strict=False))
    if is_transposed:
        providers = ["CPUExecutionProvider"]
        (y,) = InferenceSession(model.SerializeToString(), providers=providers).run(None, feeds)
    else:
        feeds = {name: array.astype("float64") for name, array in feeds.items()}
        (y,) = ReferenceEvaluator(model).run(None, feeds)
    return y if residual is None else np.maximum(y + residual, 0)


def block(array, lanes):
    """NCHW as [N][C/L][H][W][L]; what pads the last block of channels is NaN."""
    channels = array.shape[1]
    fill = np.full((len(array), -channels % lanes, *array.shape[2:]), np.nan, array.dtype)
    whole = np.concatenate([array, fill], 1)
    split = whole.reshape(len(whole), -1, lanes, *array.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def unblock(blocked, channels):
    whole = np.moveaxis(blocked, -1, 2)
    return whole.reshape(len(whole), -1, *whole.shape[3:])[:, :channels]


def pad_zeros(case, x):
    rank = len(case.size)
    return np.pad(x, [(0, 0), (0, 0), *zip(case.pads[:rank], case.pads[rank:], strict=True)])


def layout_of(array):
    return Layout("float32", row_major(array.shape), 64)


def arrange(kind, array, lanes, x_block=0):
    """An NCHW array as a kernel of a kind wants it; `x_block` 1 means plain for a direct one."""
    if kind is ConvKind.PLAIN:
        return array
    return array[..., None] if x_block == 1 else block(array, lanes)


def describe(kind, case, window, x, y, *, unit, x_block=0, **options):
    """The description of a kernel, and the functions that build it and pack its weights."""
    shared = {"bias": case.bias, "unit": unit, **options}
    if kind is ConvKind.DEPTHWISE:
        channels, _ = case.channels
        extents = (case.batch, channels, channels, channels)
        return depthwise.Depthwise(*extents, window, x, y, **shared), depthwise
    if kind is ConvKind.PLAIN:
        spec = conv_plain.PlainConv(case.batch, case.groups, *case.channels, window, x, y, **shared)
        return spec, conv_plain
    block_size = x_block or unit.lanes()
    extents = (case.batch, case.groups, *case.channels)
    spec = conv.Conv(*extents, window, x, y, x_block=block_size, **shared)
    return spec, conv


def check_conv(
    run_kernel,
    case,
    unit,
    kind=None,
    *,
    x_block=0,
    schedule=None,
    border=0,
    is_packed=True,
    **options,
):
    """Run a convolution and compare; `border` entries around the output must stay.

    Weights that are not packed lie with their dimensions in reverse, as no model has them.
    """
    lanes = unit.lanes()
    kind = kind or convolution.choose(case.groups, *case.channels, unit)
    weights_shape = (case.channels[1], case.channels[0] // case.groups, *case.kernel)
    x, w, bias, residual = random_arrays(case, weights_shape, case.out)
    want = reference(case, x, w, bias, residual)
    window = Window(case.out, case.kernel, case.strides, case.dilations)
    xs = arrange(kind, pad_zeros(case, x), lanes, x_block)
    ends = [(0, 0), (0, 0)] + [(border, border)] * window.rank
    whole = np.pad(np.zeros((case.batch, case.channels[1], *case.out), "float32"), ends)
    whole = np.full_like(arrange(kind, whole, lanes), SENTINEL)
    strides = row_major(whole.shape)
    skipped = sum(border * stride for stride in strides[2 : 2 + window.rank])
    memory = whole.reshape(-1)[skipped:]
    epilogue, extra = NOTHING, []
    if case.residual:
        other = arrange(kind, residual, lanes)
        epilogue, extra = Fused(RESIDUAL_RELU, (layout_of(other),)), [other]
    how = {"epilogue": epilogue, "x_block": x_block, "schedule": schedule}
    x_layout, y_layout = layout_of(xs), Layout("float32", strides)
    spec, family = describe(kind, case, window, x_layout, y_layout, unit=unit, **how)
    biases = []
    if case.bias:
        biases = [bias if kind is ConvKind.PLAIN else convolution.pack_bias(lanes, bias)]
    weights = family.pack(spec, w) if is_packed else w
    if not is_packed:
        grouped = w.reshape(case.groups, -1, *w.shape[1:])
        weights = np.ascontiguousarray(grouped.T)
        spec = dataclasses.replace(spec, weights=row_major(weights.shape)[::-1])
    arrays = [xs, weights, *biases, memory, *extra]
    out = run_kernel(family.build(spec), arrays, **options)[2 + len(biases)]
    whole.reshape(-1)[skipped:] = out
    inner = (slice(None), slice(None), *(slice(border, border + n) for n in case.out))
    inside = whole[inner]
    got = inside if kind is ConvKind.PLAIN else unblock(inside, case.channels[1])
    assert family.flops(spec) == 2 * math.prod(want.shape) * math.prod(w.shape[1:])
    compare(got, want, math.prod(w.shape[1:]))
    touched = np.zeros(whole.shape, bool)
    touched[inner] = True
    assert (whole[~touched] == SENTINEL).all()


def compare(got, want, terms):
    """Compare sums of so many products of normal numbers."""
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-6 * math.sqrt(terms + 1))
