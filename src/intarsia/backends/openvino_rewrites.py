# SPDX-License-Identifier: Apache-2.0
"""What OpenVINO gets otherwise than the model has it: what it cannot convert, or misreads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.backends.openvino_defects import (
    CAUSAL_AFTER_PAST,
    COUNTED_PADS,
    GREATER_THAN_NAN,
    MULTIPLIED_BY_ZERO,
    NO_WINDOWS,
    OLD_SOFTMAX,
    SCALED_NORMS,
    SLOPE_OF_LAST_AXIS,
)
from intarsia.backends.rewriting import (
    BATCH_FIRST,
    SPACE_TO_DEPTH,
    NodeRewrite,
    RegionDraft,
    has_known_mask,
    make_masked,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from intarsia.graph.graph import Graph, Node

NEWEST_OPSET = 26
"""The newest operator set of ONNX whose operators release 2026.4 has been tried with."""
_PAD_OF_INPUTS = 11
"""The operator set from which on Pad reads its pads."""


def _make_flat(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    source = graph.values[node.inputs[0]]
    axis = node.ir.attributes.get_int("axis", 1)
    flat = draft.add("Flatten", proto.input[0], axis=axis % len(source.shape or ()))
    weights = draft.add("Softmax", flat, axis=1)
    if source.is_free:
        shape = draft.add("Shape", proto.input[0])
        draft.add("Reshape", weights, shape, result=proto.output[0])
    else:
        draft.reshape(weights, source.shape or (), result=proto.output[0])


@dataclass(frozen=True, slots=True)
class _Window:
    """The windows of a pooling along one axis.

    Attributes:
        extent: Of the input.
        count: How many windows there are.
        kernel: Elements of a window.
        reach: Elements from its first to its last one.
        stride: From one window to the next.
        begin: Pad before the input.
        end: Pad behind it.
    """

    extent: int
    count: int
    kernel: int
    reach: int
    stride: int
    begin: int
    end: int

    @property
    def padded(self) -> int:
        """The extent with its pads."""
        return self.begin + self.extent + self.end

    @property
    def is_odd(self) -> bool:
        """Whether a window is larger than all, or begins in what `ceil_mode` adds."""
        usual = -(-(self.padded - self.reach) // self.stride) + 1
        return self.reach > self.padded or usual > self.count

    def missing(self, extent: int) -> int:
        """Return what the last window lacks behind an extent whose first window begins at 0."""
        return max(0, (self.count - 1) * self.stride + self.reach - extent)


def _windows(graph: Graph, node: Node) -> list[_Window] | None:
    """Return the windows of a pooling by axis; None if they are not all known."""
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    extents = (source.extents or source.shape or ())[2:]
    counts = (result.extents or result.shape or ())[2:]
    attributes = node.ir.attributes
    is_padded_by_rule = attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    has_indices = len(node.outputs) > 1 and node.outputs[1] >= 0
    is_known = bool(extents) and all(isinstance(size, int) for size in (*extents, *counts))
    if not is_known or is_padded_by_rule or has_indices:
        return None
    rank = len(extents)
    kernel = attributes.get_ints("kernel_shape", ())
    strides = attributes.get_ints("strides", None) or (1,) * rank
    gaps = attributes.get_ints("dilations", None) or (1,) * rank
    pads = attributes.get_ints("pads", None) or (0,) * (2 * rank)
    reaches = [(size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True)]
    rows = zip(extents, counts, kernel, reaches, strides, pads[:rank], pads[rank:], strict=True)
    return [_Window(*row) for row in rows]


def _has_windows(graph: Graph, node: Node) -> bool:
    return _windows(graph, node) is not None


def _has_odd_windows(graph: Graph, node: Node) -> bool:
    return any(window.is_odd for window in _windows(graph, node) or ())


def _make_mean(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Pad first where pads count, so that what `ceil_mode` adds does not; cut what reaches out."""
    windows = _windows(graph, node)
    assert windows is not None
    source = proto.input[0]
    begins = [window.begin for window in windows]
    extents = [window.extent for window in windows]
    if node.ir.attributes.get_int("count_include_pad", 0) and any(
        window.begin or window.end for window in windows
    ):
        source = _pad(draft, source, windows)
        begins, extents = [0] * len(windows), [window.padded for window in windows]
    kernel, ends = [], []
    for window, begin, extent in zip(windows, begins, extents, strict=True):
        # A window that is alone ends with the input: what lies behind is not counted.
        is_cut = window.count == 1 and window.kernel == window.reach
        size = min(window.kernel, begin + extent) if is_cut else window.kernel
        kernel.append(size)
        ends.append(0 if is_cut else window.missing(begin + extent))
    _set(
        proto,
        kernel_shape=kernel,
        pads=[*begins, *ends],
        ceil_mode=None,
        count_include_pad=None,
        auto_pad=None,
    )
    draft.keep(proto, [source], list(proto.output))


def _pad(draft: RegionDraft, source: str, windows: Sequence[_Window]) -> str:
    begins = [0, 0, *(window.begin for window in windows)]
    ends = [0, 0, *(window.end for window in windows)]
    if draft.opset < _PAD_OF_INPUTS:
        return draft.add("Pad", source, pads=[*begins, *ends])
    return draft.add("Pad", source, draft.constant([*begins, *ends]))


def _make_padded(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Say what `ceil_mode` adds by pads, which are nothing to the largest and to a sum."""
    windows = _windows(graph, node)
    assert windows is not None
    ends = [window.missing(window.begin + window.extent) for window in windows]
    pads = [*(window.begin for window in windows), *ends]
    _set(proto, pads=pads, ceil_mode=None, auto_pad=None)
    draft.keep(proto, list(proto.input), list(proto.output))


def _set(proto: onnx.NodeProto, **attributes: Any) -> None:
    """Set attributes of a node; those that are None go."""
    from onnx import helper

    others = [item for item in proto.attribute if item.name not in attributes]
    del proto.attribute[:]
    proto.attribute.extend(others)
    proto.attribute.extend(
        helper.make_attribute(name, value)
        for name, value in attributes.items()
        if value is not None
    )


def _make_full_slope(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    slope, shape = (graph.values[value].shape or () for value in node.inputs[1::-1])
    full = draft.reshape(proto.input[1], (1,) * (len(shape) - 1) + slope)
    draft.keep(proto, [proto.input[0], full], list(proto.output))


_TURNED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def _make_turned(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    first, second = proto.input
    draft.add(_TURNED[node.op_type], second, first, result=proto.output[0])


def _make_selected(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Select by a condition rather than multiply by 0 and 1."""
    dtype, attributes = graph.values[node.inputs[0]].dtype, node.ir.attributes
    zero, x = draft.constant(0, dtype), proto.input[0]
    if node.op_type == "ThresholdedRelu":
        bound = draft.constant(attributes.get_float("alpha", 1.0), dtype)
        draft.add("Where", draft.add("Less", bound, x), x, zero, result=proto.output[0])
        return
    lambd, bias = attributes.get_float("lambd", 0.5), attributes.get_float("bias", 0.0)
    shift = draft.constant(bias, dtype)
    above = draft.add("Less", draft.constant(lambd, dtype), x)
    below = draft.add("Less", x, draft.constant(-lambd, dtype))
    middle = draft.add("Where", above, draft.add("Sub", x, shift), zero)
    draft.add("Where", below, draft.add("Add", x, shift), middle, result=proto.output[0])


def _always(graph: Graph, node: Node) -> bool:
    return True


REWRITES = (
    BATCH_FIRST,
    SPACE_TO_DEPTH,
    NodeRewrite.of_rule(NO_WINDOWS, has_known_mask, make_masked),
    NodeRewrite.of_rule(CAUSAL_AFTER_PAST, has_known_mask, make_masked),
    NodeRewrite.of_rule(OLD_SOFTMAX, _always, _make_flat),
    NodeRewrite.of_rule(COUNTED_PADS, _has_windows, _make_mean),
    NodeRewrite(
        frozenset(("AveragePool",)),
        "it refuses windows larger than the input, and counts those of padding alone",
        _has_odd_windows,
        _make_mean,
    ),
    NodeRewrite(
        frozenset(("MaxPool",)),
        "it refuses windows larger than the input, and counts those of padding alone",
        _has_odd_windows,
        _make_padded,
    ),
    NodeRewrite.of_rule(SCALED_NORMS, _has_windows, _make_padded),
    NodeRewrite.of_rule(SLOPE_OF_LAST_AXIS, _always, _make_full_slope),
    NodeRewrite.of_rule(GREATER_THAN_NAN, _always, _make_turned),
    NodeRewrite.of_rule(MULTIPLIED_BY_ZERO, _always, _make_selected),
)
"""What is said otherwise for OpenVINO."""
