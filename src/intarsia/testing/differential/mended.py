# SPDX-License-Identifier: Apache-2.0
"""Defects that were mended, each with what was computed before, to be put back.

Those that a rule of a backend refuses or states are not here: they are put back by forgetting it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import onnx

from intarsia.codegen import maths
from intarsia.codegen.scalar_ops import SCALAR_OPS, ScalarOp
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
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


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
    place = "intarsia.backends.onnxruntime._settings"
    settings = pkgutil.resolve_name(place)

    def changed(*arguments: Any) -> Any:
        options = settings(*arguments)
        options.add_session_config_entry("session.disable_double_qdq_remover", "0")
        return options

    with patch(place, changed):
        yield


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
            "intarsia.codegen.kernels.reduce._ReductionKernel._finite",
            lambda self, peak: peak,
        ),
    ),
    Mended(
        "QuantizeLinear: one of two quantisations in a row is left out",
        "onnxruntime",
        frozenset(("QuantizeLinear",)),
        _without_second_quantisations,
    ),
)
"""Each with its old computation."""
