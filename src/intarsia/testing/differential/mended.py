# SPDX-License-Identifier: Apache-2.0
"""Defects that were mended, each with what was computed before, to be put back.

Those that a rule of a backend refuses or states are not here: they are put back by forgetting it.

Models that showed wrong numbers first are here too, by the defect that each of them shows. Their
names are those of the collection in which the defects were found; `sight` puts each of them back by
itself, for its own operator. `tests/testing/test_wrong_numbers.py` has a model of each class.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import onnx

from intarsia.codegen import maths
from intarsia.codegen.scalar_ops import SCALAR_OPS, ScalarOp
from intarsia.graph.operator_functions import WINDOWS
from intarsia.testing.differential.judging import Judged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from intarsia.codegen.builder import Builder
    from intarsia.codegen.ir import IrValue

_CONSTANT_NUMBERS = 12
"""The operator set that brought `value_ints`."""

Back = Callable[[], AbstractContextManager[Any]]
"""Puts a defect back while the block lasts."""


@dataclass(frozen=True)
class Mended:
    """A defect of our own code, or of a library that our code keeps off.

    Attributes:
        name: What was wrong, in words.
        target: Text of the target that it showed on.
        operators: Of ONNX, one of which a graph needs.
        back: Puts it back.
        may_show: Whether it may show in a graph that has such an operator.
    """

    name: str
    target: str
    operators: frozenset[str]
    back: Back
    may_show: Callable[[Judged], bool] = lambda judged: True


def _nodes(judged: Judged, op_type: str) -> Iterator[onnx.NodeProto]:
    return (node for node in judged.model.graph.node if node.op_type == op_type)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }


def _rounds_up(op_type: str, judged: Judged) -> bool:
    return any(_attributes(node).get("ceil_mode") for node in _nodes(judged, op_type))


def _has_no_slope(judged: Judged) -> bool:
    return any(_attributes(node).get("alpha") == 0 for node in _nodes(judged, "Celu"))


def _ends_old_graph(op_type: str, judged: Judged) -> bool:
    """Tell whether a result is an output, before Constant had numbers for attributes."""
    outputs = {output.name for output in judged.model.graph.output}
    is_old = judged.model.opset_import[0].version < _CONSTANT_NUMBERS
    return is_old and any(outputs.intersection(node.output) for node in _nodes(judged, op_type))


def _is_empty(op_type: str, judged: Judged) -> bool:
    """Tell whether such an operator reads or makes a tensor without elements that is not fixed."""
    constants = {tensor.name for tensor in judged.model.graph.initializer}
    return any(
        getattr(values[name], "size", 1) == 0
        for values in (evaluation.values for evaluation in judged.evaluations)
        for node in _nodes(judged, op_type)
        for name in (*node.input, *node.output)
        if name and name not in constants
    )


def _celu(b: Builder, x: Sequence[Any], attrs: Mapping[str, Any], dtype: str) -> IrValue:
    """Emit Celu that is x where that is positive, which is not ONNX's maximum where alpha is 0."""
    alpha = float(attrs.get("alpha", 1.0))
    below = b.mul(maths.expm1(b, b.div(x[0], alpha)), alpha)
    return b.select(b.compare("gt", x[0], 0.0), x[0], below)


@contextmanager
def _without_second_quantisations() -> Iterator[None]:
    place = "intarsia.backends.onnxruntime_sessions.session_settings"
    settings = pkgutil.resolve_name(place)

    def changed(*arguments: Any) -> Any:
        options = settings(*arguments)
        options.add_session_config_entry("session.disable_double_qdq_remover", "0")
        return options

    with patch(place, changed):
        yield


@contextmanager
def _with_activations_of_bytes() -> Iterator[None]:
    with patch("intarsia.backends.onnxruntime_sessions.AS_FLOATS", "4"):
        yield


def _has_double_window(judged: Judged) -> bool:
    return any(
        attribute.name == "output_datatype" and attribute.i == onnx.TensorProto.DOUBLE
        for node in judged.model.graph.node
        if node.op_type in WINDOWS
        for attribute in node.attribute
    )


def _has_blocks(judged: Judged) -> bool:
    return any(
        attribute.name == "block_size" and attribute.i
        for node in _nodes(judged, "DequantizeLinear")
        for attribute in node.attribute
    )


_OPENVINO = "openvino, onnxruntime"

MENDED = (
    *(
        Mended(
            f"{op_type}: a window in the padding counts with ceil_mode",
            "llvm",
            frozenset((op_type,)),
            partial(
                patch, "intarsia.graph.infer.drop_empty_windows", lambda proto, inferred: False
            ),
            partial(_rounds_up, op_type),
        )
        for op_type in ("AveragePool", "MaxPool")
    ),
    *(
        Mended(
            f"{op_type}: folded to a Constant that old operator sets do not have",
            "onnxruntime",
            frozenset((op_type,)),
            partial(patch, "intarsia.passes.folding._as_tensor", lambda node: None),
            partial(_ends_old_graph, op_type),
        )
        for op_type in ("Shape", "Size")
    ),
    *(
        Mended(
            f"{op_type}: OpenVINO is offered empty tensors",
            _OPENVINO,
            frozenset((op_type,)),
            partial(patch, "intarsia.backends.openvino_limits.is_empty", lambda value: False),
            partial(_is_empty, op_type),
        )
        for op_type in ("Conv", "ReduceMin", "Transpose")
    ),
    Mended(
        "Celu: with alpha of 0 positive numbers are kept",
        "llvm",
        frozenset(("Celu",)),
        partial(patch.dict, SCALAR_OPS, Celu=ScalarOp(_celu, SCALAR_OPS["Celu"].dtypes)),
        _has_no_slope,
    ),
    Mended(
        "ReduceLogSumExp: an infinite maximum is subtracted",
        "llvm",
        frozenset(("ReduceLogSumExp",)),
        partial(
            patch,
            "intarsia.codegen.kernels.reduce.ReductionKernel._finite",
            lambda self, peak: peak,
        ),
    ),
    Mended(
        "QuantizeLinear: one of two quantisations in a row is left out",
        "onnxruntime",
        frozenset(("QuantizeLinear",)),
        _without_second_quantisations,
    ),
    Mended(
        "MatMul: behind weights in blocks, activations become int8",
        "onnxruntime",
        frozenset(("MatMul",)),
        _with_activations_of_bytes,
        _has_blocks,
    ),
    Mended(
        "windows: what is wanted in float64 is computed in float32",
        "llvm",
        frozenset(WINDOWS),
        partial(patch, "intarsia.graph.operator_functions.WINDOWS", ()),
        _has_double_window,
    ),
)
"""Mended defects, each with the former computation that brings it back."""


@dataclass(frozen=True, slots=True, order=True)
class Shown:
    """What a reproducer shows.

    Attributes:
        backend: Whose defect it is; empty for one that was mended and needs no rule.
        op_type: The operator that comes out wrong.
        says: Words of the backend's rule, or behind the operator of the mended defect's name.
    """

    backend: str
    op_type: str
    says: str


_NAN = "NaN becomes a number"
_PASSED = "NaN is passed over"
_SUMS = "which sums overflow depends on the order of summing"
_EMPTY = "OpenVINO is offered empty tensors"
_WINDOW = "a window in the padding counts with ceil_mode"
_OLD = "folded to a Constant that old operator sets do not have"
_ROW = "NaN stays in its place of the row, where ONNX spreads it"
_TURNS = "the turns cannot be counted: it is NaN"
_BY_ZERO = "it multiplies by 0 and 1, so that an infinity becomes NaN"
_NEARLY_ZERO = "it subtracts the zero point after scaling, so that 0 becomes nearly 0"
_TINY = "subnormal numbers of float32 that are known when compiling become 0"
_POINTS = "1x1 with strides and pads takes the wrong elements of quantised tensors"

_WRONG = "openvino_wrong_numbers/"
_POOLS = "ceil_mode_window_in_padding/"
_SHAPES = "shape_size_old_opset_rejected/"

REPRODUCERS: Mapping[Shown, tuple[str, ...]] = MappingProxyType(
    {
        Shown("dnnl", "Clip", _NAN): ("numbers/dnnl-Clip-123",),
        Shown("dnnl", "HardSigmoid", _NAN): ("numbers/dnnl-HardSigmoid-2056",),
        Shown("dnnl", "Max", _NAN): ("numbers/dnnl-Max-896",),
        Shown("dnnl", "Exp", "NaN becomes infinity"): ("numbers/dnnl-Exp-201655",),
        Shown("dnnl", "Sigmoid", "NaN may become 0"): ("numbers/dnnl-Sigmoid-1426",),
        Shown("dnnl", "QuantizeLinear", "NaN becomes the largest integer or the smallest"): (
            "numbers/dnnl-QuantizeLinear-37",
        ),
        Shown("llvm", "Cos", _TURNS): ("numbers/llvm-Cos-204902",),
        Shown("llvm", "Sin", _TURNS): ("numbers/llvm-Sin-2987",),
        Shown(
            "llvm",
            "GroupNormalization",
            "it computes in float64, where ONNX's stash_type says float32: more exact",
        ): ("numbers/llvm-GroupNormalization-2265",),
        Shown("", "Celu", "with alpha of 0 positive numbers are kept"): (
            "numbers/llvm-Celu-204052",
        ),
        Shown("", "QuantizeLinear", "one of two quantisations in a row is left out"): (
            "numbers/onnxruntime-DequantizeLinear-1556",
        ),
        Shown(
            "onnxruntime",
            "QuantizeLinear",
            "behind quantised tensors it is one operator, which rounds the bias too: two quanta",
        ): ("numbers/onnxruntime-QuantizeLinear-1066",),
        Shown("openvino", "Clip", _NAN): ("numbers/openvino-Clip-1393",),
        Shown("openvino", "Relu", _NAN): ("numbers/openvino-Relu-1947", f"{_WRONG}relu_nan"),
        Shown("openvino", "ConvTranspose", _SUMS): ("numbers/openvino-ConvTranspose-100254",),
        Shown("openvino", "Gemm", _SUMS): ("numbers/openvino-Gemm-1337",),
        Shown("openvino", "MatMul", _SUMS): ("numbers/openvino-MatMul-1869",),
        Shown("openvino", "Div", _TINY): ("numbers/openvino-Div-103465",),
        Shown("openvino", "Less", _TINY): ("numbers/openvino-Less-105806",),
        Shown("openvino", "Mul", _TINY): ("numbers/openvino-Mul-2488",),
        Shown(
            "openvino",
            "GroupNormalization",
            "what overflows on the way depends on the order of computing",
        ): ("numbers/openvino-GroupNormalization-101449",),
        Shown("openvino", "Hardmax", "of halves it takes another one than the first largest"): (
            "numbers/openvino-Hardmax-307",
            f"{_WRONG}hardmax_ties_f16",
        ),
        Shown("openvino", "LogSoftmax", _ROW): ("numbers/openvino-LogSoftmax-2213",),
        Shown("openvino", "Softmax", _ROW): (f"{_WRONG}softmax_nan",),
        Shown("openvino", "MaxPool", _PASSED): ("numbers/openvino-MaxPool-194",),
        Shown("openvino", "Pad", "it pads with 0, whatever value is fed"): (
            "numbers/openvino-Pad-100603",
            f"{_WRONG}pad_fed_value",
        ),
        Shown("openvino", "Shrink", _BY_ZERO): ("numbers/openvino-Shrink-554",),
        Shown("openvino", "ThresholdedRelu", _BY_ZERO): (
            "numbers/openvino-ThresholdedRelu-2046",
            f"{_WRONG}thresholdedrelu_inf",
        ),
        Shown("openvino", "DequantizeLinear", _NEARLY_ZERO): (
            "numbers/openvino_llvm-Div-2003",
            f"{_WRONG}batchnorm_like_div_by_zero",
        ),
        Shown(
            "openvino",
            "DequantizeLinear",
            "it subtracts the zero point after scaling, which rounds at the size of the zero point",
        ): (f"{_WRONG}dequantize_zero_point",),
        Shown(
            "openvino",
            "PRelu",
            "it takes one slope for each element of the last axis for one for each channel",
        ): (f"{_WRONG}prelu_slope_last_axis",),
        Shown("openvino", "HardSigmoid", "it takes an attribute that is 0 to be absent"): (
            f"{_WRONG}hardsigmoid_beta_0",
        ),
        Shown("openvino", "Conv", _POINTS): (
            *(f"{_WRONG}dequantize_conv1x1_s{name}" for name in ("22_p1000", "22_p1100")),
            *(f"{_WRONG}dequantize_conv1x1_s{name}" for name in ("22_p1111", "23_p1000")),
            *(f"{_WRONG}qdq_conv1x1_s{name}" for name in ("22_p1000", "22_p1100")),
            *(f"{_WRONG}qdq_conv1x1_s{name}" for name in ("22_p1111", "23_p1000")),
        ),
        Shown("openvino", "Greater", "it is true of NaN"): (f"{_WRONG}greater_nan",),
        Shown(
            "openvino",
            "Mod",
            "it divides and multiplies, which leaves no digit of a large quotient",
        ): (f"{_WRONG}mod_fmod_large",),
        Shown("openvino", "LpNormalization", "it adds an epsilon to the norm"): (
            f"{_WRONG}lpnorm_small",
        ),
        Shown("openvino", "Resize", "it leaves antialias and exclude_outside out"): (
            f"{_WRONG}resize_antialias_half_pixel",
            f"{_WRONG}resize_antialias_align_corners",
            f"{_WRONG}resize_antialias_asymmetric",
        ),
        Shown(
            "openvino",
            "Reshape",
            "it makes one reduction that keeps its axes of a reduction and a view, in another "
            "shape",
        ): (f"{_WRONG}reducemean_flatten",),
        Shown("", "Conv", _EMPTY): (f"{_WRONG}conv_zero_size_garbage",),
        Shown("", "ReduceMin", _EMPTY): (f"{_WRONG}reducemin_empty",),
        Shown("", "Transpose", _EMPTY): (f"{_WRONG}transpose_zero_size",),
        Shown(
            "openvino",
            "Conv",
            "of constants alone it computes once, and what reads that in each run may write into "
            "it",
        ): ("openvino_const_conv_fed_bias_accumulates/m",),
        Shown(
            "openvino", "Conv", "one channel to one column with strides (1, s) comes out wrong"
        ): (
            "openvino_conv_one_channel_width_one_wrong/m0",
            "openvino_conv_one_channel_width_one_wrong/m1",
        ),
        Shown("", "AveragePool", _WINDOW): (
            *(f"{_POOLS}AveragePool{opset}" for opset in (10, 13, 19)),
        ),
        Shown("", "MaxPool", _WINDOW): (*(f"{_POOLS}MaxPool{opset}" for opset in (10, 13, 19)),),
        Shown("", "Shape", _OLD): (f"{_SHAPES}shape_out",),
        Shown("", "Size", _OLD): (f"{_SHAPES}size_out",),
    }
)
"""By what they show. Of `numbers/`, two are rounding, which rules do not state (`Mod` behind a
convolution on `llvm` and `dnnl, llvm`, `ReduceLogSumExp` of one near 1 on `openvino`)."""

UNSEEN = MappingProxyType(
    {
        f"{_WRONG}convtranspose_output_shape": "OpenVINO 2026.4 is right",
        f"{_WRONG}topk_ties_indices": "OpenVINO 2026.4 is right",
        f"{_WRONG}topk_ties_large": "OpenVINO 2026.4 is right",
        "numbers/dnnl-Log-203458": "oneDNN is asked for no logarithm",
        f"{_WRONG}less_nan": "it was right",
        f"{_WRONG}dequantize_conv1x1_s22_p0000": "it was right",
        f"{_WRONG}qdq_conv1x1_s22_p0000": "it was right",
        f"{_POOLS}AveragePool22": "its shape was right",
        f"{_POOLS}MaxPool22": "its shape was right",
        "numbers/llvm-Mod-2181": "it is rounding",
        "numbers/dnnl_llvm-Mod-2181": "it is rounding",
        "numbers/openvino-ReduceLogSumExp-24": "it is rounding",
        **dict.fromkeys(
            (f"{_SHAPES}{name}" for name in ("shape_both", "size_used", "view")),
            "what is folded inside of a graph is not a Constant any more",
        ),
        "identity_elimination_foreign/m": "random graphs are valid models",
        "range_hangs_compile/m": "random graphs are small",
        "output_too_large_foreign": "random graphs are small",
        "damaged_cost_db_foreign/m": "it is about a file",
    }
)
"""Reproducers that show no wrong numbers of a random graph, and why."""
