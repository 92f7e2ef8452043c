# SPDX-License-Identifier: Apache-2.0
"""From integer layers to TFLite operators: a table by ONNX operator, and what its rows do.

Images have their channels last there, so a value may exist in both orders; the second is made when
something asks for it. Codes are int8 inside; those without a sign are turned at the border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.tflite.layers import (
    Codes,
    Layer,
    NotTakenError,
    is_same,
    read_layers,
)
from intarsia.backends.tflite.network import Network, NetworkOperator, NetworkTensor, Quantity
from intarsia.graph.extract import constant_array

if TYPE_CHECKING:
    from intarsia.codegen.lower.operation import Operation
    from intarsia.graph.region import Region

_IMAGE = 4
_LAST = (0, 2, 3, 1)
_FIRST = (0, 3, 1, 2)
_PLACES = {0: 0, 1: 3, 2: 1, 3: 2}
"""Where an axis is once the channels are last."""
_INT32 = 2**31
_LOWEST, _HIGHEST = -128, 127


class NetworkDraft:
    """A network that is being written.

    Attributes:
        tensors: So far.
        operators: So far.
    """

    def __init__(self) -> None:
        self.tensors: list[NetworkTensor] = []
        self.operators: list[NetworkOperator] = []
        self._plain: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.node = ""

    def tensor(self, tensor: NetworkTensor) -> int:
        """Add a tensor and return its number."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def computed(self, shape: Sequence[int], quantity: Quantity | None, name: str = "") -> int:
        """Add a tensor of int8 that an operator makes."""
        text = name or f"{self.node}/{len(self.tensors)}"
        return self.tensor(NetworkTensor(text, tuple(shape), "int8", quantity))

    def constant(self, array: Array, quantity: Quantity | None = None) -> int:
        """Add a constant."""
        name = f"{self.node}/{len(self.tensors)}"
        data = np.ascontiguousarray(array)
        return self.tensor(NetworkTensor(name, data.shape, str(data.dtype), quantity, data))

    def operator(self, code: str, inputs: Sequence[int], output: int, **options: Any) -> int:
        """Add an operator and return its output."""
        self.operators.append(NetworkOperator(code, tuple(inputs), (output,), options, self.node))
        return output

    def has_last(self, codes: Codes) -> bool:
        """Tell whether an image is there with its channels last."""
        return codes.value.id in self._last

    def read(self, codes: Codes, *, is_last: bool = False) -> int:
        """Return the tensor of codes, with channels last where that is asked for."""
        if codes.is_constant:
            array = codes.array()
            if is_last:
                array = array.reshape((1,) * (_IMAGE - array.ndim) + array.shape).transpose(_LAST)
            return self.constant(array, codes.narrow)
        if is_last and len(codes.shape) != _IMAGE:
            raise NotTakenError(f"{codes.value.name!r} is no image: it has {len(codes.shape)} axes")
        wanted, other = (self._last, self._plain) if is_last else (self._plain, self._last)
        if codes.value.id not in wanted:
            source = other[codes.value.id]
            wanted[codes.value.id] = self.transposed(source, _LAST if is_last else _FIRST)
        return wanted[codes.value.id]

    def bind(self, codes: Codes, tensor: int, *, is_last: bool = False) -> None:
        """Say which tensor holds codes."""
        (self._last if is_last else self._plain)[codes.value.id] = tensor

    def transposed(self, source: int, order: Sequence[int]) -> int:
        """Add a tensor with its axes in another order; a view where no code moves."""
        old = self.tensors[source]
        shape = tuple(old.shape[axis] for axis in order)
        moved = [axis for axis in order if old.shape[axis] > 1]
        out = self.computed(shape, old.quantity)
        if moved == sorted(moved):
            return self.reshaped(source, out)
        return self.operator("TRANSPOSE", (source, self.numbers(order)), out)

    def reshaped(self, source: int, out: int) -> int:
        """Write the codes of a tensor into one of another shape."""
        return self.operator("RESHAPE", (source, self.numbers(self.tensors[out].shape)), out)

    def numbers(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> int:
        """Add a constant of integers, such as axes."""
        return self.constant(np.asarray(numbers, dtype=np.int32))

    def finish(
        self, layer: Layer, tensor: int, *, is_last: bool = False, is_limited: bool = False
    ) -> None:
        """Bind what a layer computed: with the scale and the limits that the result has.

        Args:
            layer: Whose.
            tensor: What was computed.
            is_last: Whether its channels are last.
            is_limited: Whether the operator has the activation in it.
        """
        quantity, computed = layer.result.narrow, self.tensors[tensor]
        assert computed.quantity is not None
        if not is_same(quantity, computed.quantity):
            tensor = self.operator("QUANTIZE", (tensor,), self.computed(computed.shape, quantity))
        activation = "NONE" if is_limited else activation_of(layer)
        if activation != "NONE":
            tensor = self.operator(activation, (tensor,), self.computed(computed.shape, quantity))
        self.bind(layer.result, tensor, is_last=is_last)


def activation_of(layer: Layer) -> str:
    """Return the activation that limits a result as a layer does.

    Raises:
        NotTakenError: TFLite has none that does.
    """
    quantity = layer.result.narrow
    low, high = layer.limits
    is_below = low <= quantity.scale * (_LOWEST - quantity.zero)
    is_above = high >= quantity.scale * (_HIGHEST - quantity.zero)
    if is_below and is_above:
        return "NONE"
    if low == 0 and is_above:
        return "RELU"
    known = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
    limits = (0.0 if low == 0 or (is_below and quantity.scale * (_LOWEST - quantity.zero) == 0)
              else low, high)  # fmt: skip
    if limits in known:
        return known[limits]
    raise NotTakenError(f"TFLite has no activation from {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """Where a window stands on an image; each pair is along rows, then columns.

    Attributes:
        kernel: Its size.
        strides: From one place to the next.
        dilations: Between two of its elements.
        pads: Rows and columns before and after the image: `((top, bottom), (left, right))`.
        is_same: Whether TFLite's `SAME` has these pads.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    is_same: bool

    @property
    def is_padded(self) -> bool:
        """Whether it reaches over an edge."""
        return any(amount > 0 for pair in self.pads for amount in pair)

    @property
    def padding(self) -> str:
        """TFLite's name of its pads, once what it has no name for is padded before."""
        return "SAME" if self.is_padded and self.is_same else "VALID"


def window_of(layer: Layer, kernel: Sequence[int]) -> ImageWindow:
    """Read the window of a layer that is a convolution or a pool.

    Raises:
        NotTakenError: It is of no image.
    """
    if len(layer.operands[0].shape) != _IMAGE:
        raise NotTakenError(f"{layer.operands[0].value.name!r} is no image")
    return read_window(layer.operation, kernel, layer.operands[0].shape, layer.result.shape)


def read_window(
    operation: Operation, kernel: Sequence[int], shape: Sequence[int], out: Sequence[int]
) -> ImageWindow:
    """Read the window of a convolution or a pool.

    Args:
        operation: Its node.
        kernel: The size of the window.
        shape: Of the image that it reads, as ONNX has it.
        out: Of the image that it makes.
    """
    strides = tuple(operation.attribute("strides", (1, 1)))
    dilations = tuple(operation.attribute("dilations", (1, 1)))
    given = tuple(operation.attribute("pads", (0, 0, 0, 0)))
    upper = operation.attribute("auto_pad", "NOTSET")
    pads, same = [], []
    for axis in (0, 1):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        size, count = shape[2 + axis], out[2 + axis]
        total = (count - 1) * strides[axis] + reach - size  # what it takes, whatever was said
        if upper == "SAME_LOWER":
            begin = max(total, 0) - max(total, 0) // 2
        elif upper == "SAME_UPPER":
            begin = max(total, 0) // 2
        else:
            begin = given[axis]
        pads.append((begin, max(total - begin, 0)))
        needed = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
        same.append(
            count == -(-size // strides[axis])
            and begin == needed // 2
            and max(total - begin, 0) == needed - needed // 2
        )
    return ImageWindow(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1]),
        all(same),
    )


def _padded(draft: NetworkDraft, tensor: int, window: ImageWindow, code: int | None = None) -> int:
    """Return an image with the pads that TFLite has no name for."""
    if not window.is_padded or window.is_same:
        return tensor
    return _pad(draft, tensor, ((0, 0), *window.pads, (0, 0)), code)


def _pad(draft: NetworkDraft, tensor: int, pads: Sequence[Sequence[int]], code: int | None) -> int:
    old = draft.tensors[tensor]
    shape = [before + size + after for size, (before, after) in zip(old.shape, pads, strict=True)]
    inputs = [tensor, draft.numbers(pads)]
    assert old.quantity is not None
    if code is None or code == old.quantity.zero:
        return draft.operator("PAD", inputs, draft.computed(shape, old.quantity))
    inputs.append(draft.constant(np.array([code], np.int8), old.quantity))
    return draft.operator("PADV2", inputs, draft.computed(shape, old.quantity))


def _image_shape(layer: Layer) -> tuple[int, ...]:
    return tuple(layer.result.shape[axis] for axis in _LAST)


def _weights(layer: Layer) -> tuple[Array, Quantity]:
    weights = layer.operands[1]
    if not weights.is_constant:
        raise NotTakenError("its weights are computed")
    quantity = weights.narrow
    if any(quantity.zeros):
        raise NotTakenError("its weights have a zero point, and those of TFLite's int8 have none")
    return weights.array(), quantity


def _bias(draft: NetworkDraft, layer: Layer, weights: Quantity, count: int) -> int:
    """Add the bias as codes of what a product of codes means."""
    units = layer.operands[0].quantity.scale * np.asarray(weights.scales, np.float64)
    if layer.bias is None:
        codes: Array = np.zeros(count, np.int64)
    else:
        held = layer.bias.value if isinstance(layer.bias, Codes) else layer.bias
        numbers = constant_array(held).reshape(-1).astype(np.float64)
        if isinstance(layer.bias, Codes):
            quantity = layer.bias.quantity
            numbers = numbers - np.asarray(quantity.zeros, np.float64)
            numbers = numbers * (np.asarray(quantity.scales, np.float64) / units)
        else:
            numbers = numbers / units
        codes = np.rint(np.broadcast_to(numbers, (count,)))
    if np.abs(codes).max(initial=0) >= _INT32:
        raise NotTakenError("its bias does not fit into 32 bits")
    product = Quantity(tuple(map(float, units)), (0,) * len(units))
    return draft.constant(codes.astype(np.int32), product)


def _convolution(draft: NetworkDraft, layer: Layer) -> None:
    weights, quantity = _weights(layer)
    if weights.ndim != _IMAGE:
        raise NotTakenError("it is no convolution of images")
    group = int(layer.operation.attribute("group", 1))
    channels, (count, inner) = layer.operands[0].shape[1], weights.shape[:2]
    is_depthwise = group == channels and inner == 1 and group > 1
    if group > 1 and not is_depthwise:
        raise NotTakenError(f"it has {group} groups of {inner} channels")
    window = window_of(layer, weights.shape[2:])
    options: dict[str, Any] = {}
    if is_depthwise:
        code, weights = "DEPTHWISE_CONV_2D", weights.transpose(1, 2, 3, 0)
        options["DepthMultiplier"] = count // channels
    else:
        code, weights = "CONV_2D", weights.transpose(_LAST)
    axis = 3 if is_depthwise else 0
    _windowed(draft, layer, window, code, (weights, replace(quantity, axis=axis)), options)


def _windowed(
    draft: NetworkDraft,
    layer: Layer,
    window: ImageWindow,
    code: str,
    weights: tuple[Array, Quantity],
    options: Mapping[str, Any],
) -> None:
    """Add a convolution with weights as TFLite has them."""
    x = _padded(draft, draft.read(layer.operands[0], is_last=True), window)
    array, quantity = weights
    if len(quantity.scales) == 1:
        quantity = replace(quantity, axis=0)
    bias = _bias(draft, layer, quantity, layer.result.shape[1])
    out = draft.computed(_image_shape(layer), layer.result.narrow)
    activation = activation_of(layer)
    draft.operator(
        code,
        (x, draft.constant(array, quantity), bias),
        out,
        Padding=window.padding,
        StrideH=window.strides[0],
        StrideW=window.strides[1],
        DilationHFactor=window.dilations[0],
        DilationWFactor=window.dilations[1],
        FusedActivationFunction=activation,
        **options,
    )
    draft.finish(layer, out, is_last=True, is_limited=True)


def _product(draft: NetworkDraft, layer: Layer) -> None:
    operation = layer.operation
    weights, quantity = _weights(layer)
    if weights.ndim != 2:  # noqa: PLR2004
        raise NotTakenError("its weights are no matrix")
    is_gemm = layer.op_type == "Gemm"
    if is_gemm and (
        operation.attribute("transA", 0)
        or operation.attribute("alpha", 1.0) != 1
        or operation.attribute("beta", 1.0) != 1
    ):
        raise NotTakenError("it is scaled, or its first operand is transposed")
    is_turned = bool(is_gemm and operation.attribute("transB", 0))
    if len(quantity.scales) > 1 and quantity.axis != (0 if is_turned else 1):
        raise NotTakenError("its weights have a scale for each row")
    array = weights if is_turned else weights.T
    quantity = replace(quantity, axis=0)
    x = draft.read(layer.operands[0])
    if draft.tensors[x].shape[-1] != array.shape[1]:
        raise NotTakenError("its operand is no matrix")
    bias = _bias(draft, layer, quantity, array.shape[0])
    out = draft.computed(layer.result.shape, layer.result.narrow)
    draft.operator(
        "FULLY_CONNECTED",
        (x, draft.constant(array, quantity), bias),
        out,
        FusedActivationFunction=activation_of(layer),
        KeepNumDims=len(layer.result.shape) > 2,  # noqa: PLR2004
    )
    draft.finish(layer, out, is_limited=True)


def _pool(
    draft: NetworkDraft, layer: Layer, code: str, window: ImageWindow, lowest: int | None
) -> None:
    x = _padded(draft, draft.read(layer.operands[0], is_last=True), window, lowest)
    out = draft.computed(_image_shape(layer), layer.operands[0].narrow)
    draft.operator(
        code,
        (x,),
        out,
        Padding=window.padding,
        StrideH=window.strides[0],
        StrideW=window.strides[1],
        FilterHeight=window.kernel[0],
        FilterWidth=window.kernel[1],
        FusedActivationFunction="NONE",
    )
    draft.finish(layer, out, is_last=True)


def _max_pool(draft: NetworkDraft, layer: Layer) -> None:
    window = window_of(layer, layer.operation.attribute("kernel_shape"))
    if window.dilations != (1, 1):
        raise NotTakenError("its window has gaps")
    if layer.operation.attribute("storage_order", 0):
        raise NotTakenError("its indices are by columns")
    _pool(draft, layer, "MAX_POOL_2D", window, _LOWEST)


def _global_max_pool(draft: NetworkDraft, layer: Layer) -> None:
    window = window_of(layer, layer.operands[0].shape[2:])
    _pool(draft, layer, "MAX_POOL_2D", window, None)


def _average_pool(draft: NetworkDraft, layer: Layer) -> None:
    operation = layer.operation
    window = window_of(layer, operation.attribute("kernel_shape"))
    if window.dilations != (1, 1):
        raise NotTakenError("its window has gaps")
    if operation.attribute("ceil_mode", 0):
        raise NotTakenError("its last windows may be cut off")
    is_counted = bool(operation.attribute("count_include_pad", 0)) or not window.is_padded
    has_one_scale = is_same(layer.operands[0].narrow, layer.result.narrow)
    if has_one_scale and (not window.is_padded or (not is_counted and window.is_same)):
        _pool(draft, layer, "AVERAGE_POOL_2D", window, None)
        return
    if not is_counted:
        raise NotTakenError("its padded windows are averaged over what is inside alone")
    # Another scale, or zeros that count: a depthwise convolution of ones rounds once.
    channels, size = layer.operands[0].shape[1], math.prod(window.kernel)
    ones = np.ones((1, *window.kernel, channels), np.int8)
    weights = (ones, Quantity((1.0 / size,), (0,)))
    _windowed(draft, layer, window, "DEPTHWISE_CONV_2D", weights, {"DepthMultiplier": 1})


def _mean(draft: NetworkDraft, layer: Layer) -> None:
    operation, rank = layer.operation, len(layer.operands[0].shape)
    if layer.op_type == "GlobalAveragePool":
        axes, keeps = tuple(range(2, rank)), True
    else:
        if operation.value(1) is not None and not operation.is_constant(1):
            raise NotTakenError("its axes are computed")
        axes = operation.axes() or tuple(range(rank))
        keeps = bool(operation.attribute("keepdims", 1))
    is_last = rank == _IMAGE and (keeps or tuple(sorted(axes)) == (2, 3))
    x = draft.read(layer.operands[0], is_last=is_last)
    is_image = is_last and keeps
    shape = _image_shape(layer) if is_image else layer.result.shape
    out = draft.computed(shape, layer.result.narrow)
    places = draft.numbers(sorted(_PLACES[axis] if is_last else axis for axis in axes))
    draft.operator("MEAN", (x, places), out, KeepDims=keeps)
    draft.finish(layer, out, is_last=is_image)


def _elementwise(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    inputs = [draft.read(operand, is_last=is_last) for operand in layer.operands]
    shape = _image_shape(layer) if is_last else layer.result.shape
    out = draft.computed(shape, layer.result.narrow)
    activation = activation_of(layer)
    draft.operator(layer.op_type.upper(), inputs, out, FusedActivationFunction=activation)
    draft.finish(layer, out, is_last=is_last, is_limited=True)


def _is_better_last(draft: NetworkDraft, layer: Layer) -> bool:
    """Tell whether all operands can have channels last, and one has already."""
    images = [one for one in layer.operands if not one.is_constant]
    return (
        len(layer.result.shape) == _IMAGE
        and all(len(one.shape) == _IMAGE for one in images)
        and any(draft.has_last(one) for one in images)
    )


def _concatenation(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    quantity, inputs = layer.result.narrow, []
    for operand in layer.operands:
        tensor = draft.read(operand, is_last=is_last)
        if not is_same(operand.narrow, quantity):
            out = draft.computed(draft.tensors[tensor].shape, quantity)
            tensor = draft.operator("QUANTIZE", (tensor,), out)
        inputs.append(tensor)
    axis = int(layer.operation.attribute("axis")) % len(layer.result.shape)
    shape = _image_shape(layer) if is_last else layer.result.shape
    draft.operator(
        "CONCATENATION",
        inputs,
        out := draft.computed(shape, quantity),
        Axis=_PLACES[axis] if is_last else axis,
        FusedActivationFunction="NONE",
    )
    draft.finish(layer, out, is_last=is_last)


def _reshape(draft: NetworkDraft, layer: Layer) -> None:
    x = draft.read(layer.operands[0])
    out = draft.computed(layer.result.shape, layer.operands[0].narrow)
    draft.finish(layer, draft.reshaped(x, out))


def _transpose(draft: NetworkDraft, layer: Layer) -> None:
    rank = len(layer.result.shape)
    order = layer.operation.attribute("perm", tuple(reversed(range(rank))))
    draft.finish(layer, draft.transposed(draft.read(layer.operands[0]), order))


def _constant(layer: Layer, position: int, what: str) -> tuple[int, ...] | None:
    operation = layer.operation
    if operation.value(position) is not None and not operation.is_constant(position):
        raise NotTakenError(f"its {what} are computed")
    return operation.numbers(position)


def _padding(draft: NetworkDraft, layer: Layer) -> None:
    operation, operand = layer.operation, layer.operands[0]
    if operation.attribute("mode", "constant") != "constant":
        raise NotTakenError("it does not pad with a constant")
    rank = len(operand.shape)
    given = _constant(layer, 1, "pads")
    axes = _constant(layer, 3, "axes") or tuple(range(rank))
    if given is None or any(amount < 0 for amount in given):
        raise NotTakenError("its pads are no input, or negative")
    by_axis = dict.fromkeys(range(rank), (0, 0))
    for place, axis in enumerate(axes):
        by_axis[axis % rank] = (given[place], given[place + len(axes)])
    code = _pad_code(layer)
    is_last = _is_better_last(draft, layer)
    x = draft.read(operand, is_last=is_last)
    pads = [by_axis[axis] for axis in (_LAST if is_last else range(rank))]
    draft.finish(layer, _pad(draft, x, pads, code), is_last=is_last)


def _pad_code(layer: Layer) -> int:
    """Return the code that is put around: of a number, or of a code as it is."""
    operation, quantity = layer.operation, layer.operands[0].narrow
    if operation.value(2) is not None and not operation.is_constant(2):
        raise NotTakenError("what it pads with is computed")
    item = 0.0 if operation.value(2) is None else float(operation.array(2).reshape(()))
    if operation.node.id == layer.nodes[-1] and len(layer.nodes) == 1:  # of codes
        return int(item) - 128 * (layer.result.value.dtype == "uint8")
    code = item / quantity.scale + quantity.zero
    if not _LOWEST <= code <= _HIGHEST or (code != round(code) and item != 0):
        raise NotTakenError(f"no code stands for what it pads with, {item:g}")
    return round(code)


def _slice(draft: NetworkDraft, layer: Layer) -> None:
    operand, rank = layer.operands[0], len(layer.result.shape)
    if layer.operation.value(1) is None:
        raise NotTakenError("its bounds are attributes: raise the operator set")
    starts, axes = _constant(layer, 1, "starts"), _constant(layer, 3, "axes")
    steps = _constant(layer, 4, "steps") or (1,)
    _constant(layer, 2, "ends")
    if starts is None or any(step != 1 for step in steps):
        raise NotTakenError("it has steps")
    begin = [0] * rank
    for start, axis in zip(starts, axes or range(len(starts)), strict=True):
        size = operand.shape[axis % rank]
        begin[axis % rank] = min(max(start + size if start < 0 else start, 0), size)
    is_last = _is_better_last(draft, layer)
    places = _LAST if is_last else tuple(range(rank))
    x = draft.read(operand, is_last=is_last)
    shape = [layer.result.shape[axis] for axis in places]
    bounds = (draft.numbers([begin[axis] for axis in places]), draft.numbers(shape))
    out = draft.computed(shape, operand.narrow)
    draft.finish(layer, draft.operator("SLICE", (x, *bounds), out), is_last=is_last)


def _resize(draft: NetworkDraft, layer: Layer) -> None:
    operation, operand = layer.operation, layer.operands[0]
    shape, out = operand.shape, layer.result.shape
    if len(shape) != _IMAGE or shape[:2] != out[:2]:
        raise NotTakenError("it resizes more than the rows and columns of an image")
    mode = operation.attribute("mode", "nearest")
    place = operation.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = operation.attribute("nearest_mode", "round_prefer_floor")
    if operation.attribute("antialias", 0) or operation.attribute("exclude_outside", 0):
        raise NotTakenError("it takes more than the nearest numbers")
    if any(new % old for old, new in zip(shape[2:], out[2:], strict=True)):
        raise NotTakenError("it does not enlarge by a whole factor")
    ways = {
        ("nearest", "asymmetric", "floor"): {},
        ("nearest", "half_pixel", "round_prefer_floor"): {"HalfPixelCenters": True},
        ("nearest", "half_pixel", "round_prefer_ceil"): {"HalfPixelCenters": True},
        ("linear", "asymmetric", ""): {},
        ("linear", "half_pixel", ""): {"HalfPixelCenters": True},
        ("linear", "align_corners", ""): {"AlignCorners": True},
    }
    options = ways.get((mode, place, rounding if mode == "nearest" else ""))
    if options is None:
        raise NotTakenError(f"TFLite has no resizing by {mode}, {place}")
    code = "RESIZE_BILINEAR" if mode == "linear" else "RESIZE_NEAREST_NEIGHBOR"
    x = draft.read(operand, is_last=True)
    made = draft.computed(_image_shape(layer), operand.narrow)
    draft.operator(code, (x, draft.numbers(out[2:])), made, **options)
    draft.finish(layer, made, is_last=True)


def _softmax(draft: NetworkDraft, layer: Layer) -> None:
    operation, rank = layer.operation, len(layer.result.shape)
    opset = min(operation.opset, operation.attribute("opset", operation.opset))
    is_new = opset >= 13  # noqa: PLR2004 - before, all axes from one on were taken together
    axis = int(operation.attribute("axis", -1 if is_new else 1)) % rank
    is_last = rank == _IMAGE and axis == 1 and is_new
    if not is_last and axis != rank - 1:
        raise NotTakenError("it is along an axis that is not the last one")
    _by_table(draft, layer, "SOFTMAX", Quantity((1 / 256,), (-128,)), is_last, Beta=1.0)


def _logistic(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    _by_table(draft, layer, "LOGISTIC", Quantity((1 / 256,), (-128,)), is_last)


def _tanh(draft: NetworkDraft, layer: Layer) -> None:
    _by_table(draft, layer, "TANH", Quantity((1 / 128,), (0,)), _is_better_last(draft, layer))


def _by_table(
    draft: NetworkDraft, layer: Layer, code: str, quantity: Quantity, is_last: bool, **options: Any
) -> None:
    """Add an operator whose result has a scale of its own."""
    x = draft.read(layer.operands[0], is_last=is_last)
    out = draft.computed(draft.tensors[x].shape, quantity)
    draft.finish(layer, draft.operator(code, (x,), out, **options), is_last=is_last)


def _leaky(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    alpha = layer.operation.attribute("alpha", 0.01)
    _by_table(draft, layer, "LEAKY_RELU", layer.result.narrow, is_last, Alpha=alpha)


def _activation(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    activation = activation_of(layer)
    if activation != "NONE":
        _by_table(
            draft,
            replace(layer, limits=(-math.inf, math.inf)),
            activation,
            layer.result.narrow,
            is_last,
        )
        return
    draft.finish(layer, draft.read(layer.operands[0], is_last=is_last), is_last=is_last)


def _requantise(draft: NetworkDraft, layer: Layer) -> None:
    is_last = _is_better_last(draft, layer)
    draft.finish(layer, draft.read(layer.operands[0], is_last=is_last), is_last=is_last)


@dataclass(frozen=True, slots=True)
class Translation:
    """What becomes of an operator.

    Attributes:
        name: For people.
        types: Operators of ONNX's main domain.
        write: Adds what computes a layer to a draft; raises a `NotTakenError` if TFLite has none.
    """

    name: str
    types: tuple[str, ...]
    write: Callable[[NetworkDraft, Layer], None]


TABLE = (
    Translation("convolution", ("Conv",), _convolution),
    Translation("product", ("Gemm", "MatMul"), _product),
    Translation("max pool", ("MaxPool",), _max_pool),
    Translation("global max pool", ("GlobalMaxPool",), _global_max_pool),
    Translation("average pool", ("AveragePool",), _average_pool),
    Translation("mean", ("GlobalAveragePool", "ReduceMean"), _mean),
    Translation("elementwise", ("Add", "Mul", "Sub"), _elementwise),
    Translation("concatenation", ("Concat",), _concatenation),
    Translation("reshape", ("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    Translation("transpose", ("Transpose",), _transpose),
    Translation("pad", ("Pad",), _padding),
    Translation("slice", ("Slice",), _slice),
    Translation("resize", ("Resize",), _resize),
    Translation("softmax", ("Softmax",), _softmax),
    Translation("sigmoid", ("Sigmoid",), _logistic),
    Translation("tanh", ("Tanh",), _tanh),
    Translation("leaky relu", ("LeakyRelu",), _leaky),
    Translation("activation", ("Clip", "Relu"), _activation),
    Translation("requantise", ("Identity",), _requantise),
)
"""The integer operators that can be written, by what they compute of numbers."""

_ROWS = {op_type: row for row in TABLE for op_type in row.types}
COMPUTED = frozenset(_ROWS) - {"Identity"}


@dataclass(frozen=True, slots=True)
class Written:
    """A region as a network.

    Attributes:
        network: The network; None if a node of the region is not in it.
        layers: Node ids of each layer, with the name of its row.
        reasons: By node id, why it is not in it.
    """

    network: Network | None
    layers: tuple[tuple[str, tuple[int, ...]], ...]
    reasons: dict[int, str]


def write_region(region: Region) -> Written:
    """Write a region as a TFLite network, or say of its nodes why they are in none.

    The network's inputs and outputs are those of the region, in their order, shape and dtype.

    Args:
        region: Integer layers with all their Q and DQ nodes, whichever way they are written.
    """
    reading = read_layers(region, COMPUTED, _why_not)
    known = reading.layers
    layers = tuple((_ROWS[one.op_type].name, one.nodes) for one in known)
    if reading.reasons or not known:
        return Written(None, layers, reading.reasons)
    draft = NetworkDraft()
    codes = {one.value.id: one for layer in known for one in (*layer.operands, layer.result)}
    inputs = [_enter(draft, codes[value]) for value in region.inputs]
    for layer in known:
        _write(draft, layer)
    outputs: list[int] = []
    for value in region.outputs:
        outputs.append(_leave(draft, codes[value], (*inputs, *outputs)))
    network = Network(tuple(draft.tensors), tuple(draft.operators), tuple(inputs), tuple(outputs))
    return Written(network, layers, {})


def _why_not(layer: Layer) -> str | None:
    """Say why a layer cannot be written: it is tried by itself."""
    draft = NetworkDraft()
    try:
        for operand in layer.operands:
            if not operand.is_constant:
                _enter(draft, operand)
        _write(draft, layer)
    except NotTakenError as error:
        return str(error)
    return None


def _write(draft: NetworkDraft, layer: Layer) -> None:
    draft.node = layer.operation.node.name
    _ROWS[layer.op_type].write(draft, layer)


def _enter(draft: NetworkDraft, codes: Codes) -> int:
    """Add an input; return its tensor."""
    tensor = NetworkTensor(codes.value.name, codes.shape, codes.value.dtype, codes.quantity)
    number = draft.tensor(tensor)
    if codes.value.dtype == "uint8":
        turned = draft.operator("QUANTIZE", (number,), draft.computed(codes.shape, codes.narrow))
        draft.bind(codes, turned)
    else:
        draft.bind(codes, number)
    return number


def _leave(draft: NetworkDraft, codes: Codes, others: Collection[int]) -> int:
    """Return the tensor of an output, which is no input and none of the other outputs."""
    made, dtype = draft.read(codes), codes.value.dtype
    if dtype == "uint8":
        out = draft.tensor(NetworkTensor(codes.value.name, codes.shape, dtype, codes.quantity))
        return draft.operator("QUANTIZE", (made,), out)
    if made in others:
        made = draft.reshaped(made, draft.computed(codes.shape, codes.narrow))
    draft.tensors[made] = replace(draft.tensors[made], name=codes.value.name)
    return made
