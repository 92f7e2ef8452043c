# SPDX-License-Identifier: Apache-2.0
"""The rules of `fuse_affine`, made of onnxscript's rules for batch norms.

Those serve Mul, Div, Add and Sub with a constant per channel too, each read as a batch norm of mean
0 and variance 1: the library's own rules for these take scalars only, and only Mul and Add
together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleSet
from onnxscript.rewriter.rules.common._fuse_batchnorm import (
    FuseBatchNormIntoConv,
    FuseBatchNormIntoConvTranspose,
    FuseBatchNormIntoGemm,
)

from intarsia.passes.provenance import device_of, stand_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

_INTO = (FuseBatchNormIntoConv, FuseBatchNormIntoConvTranspose, FuseBatchNormIntoGemm)
_BATCH_NORM_INFERS_SINCE = 7
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def apply_rules(model: ir.Model, pairs: Collection[tuple[str, str]]) -> None:
    """Fuse in a model, in place.

    Args:
        model: What to change.
        pairs: Operators that are to take in the operators after them.
    """
    rules = []
    for into in _INTO:
        for follower in (last for first, last in pairs if first == into.op_type):
            if follower == "BatchNormalization":
                rules.append(type("Norm", (_Guarded, into), {})().rule())
                continue
            rule = type(follower, (_PerChannel, into), {"follower": follower})().rule()
            rules += rule.commute() if follower in ("Add", "Mul") else [rule]
    RewriteRuleSet(rules).apply_to_model(model)


class _Guarded:
    """Annotations, training, mixed types and names that are taken, which the rules overlook."""

    def check(self, context: Any, x: Any, inbound_out: Any, batchnorm_out: Any) -> Any:
        first, last = self.merged = (inbound_out.producer(), batchnorm_out.producer())
        self.initializers = context.model.graph.initializers
        constants = [*first.inputs[1:], *(value for value in last.inputs if value != inbound_out)]
        if any(value is None or value.dtype != x.dtype for value in constants):
            return MatchResult().fail("a constant is absent or of another type")
        if x.dtype in _HALVES:  # backends multiply in float32, where nothing is lost
            return MatchResult().fail("weights of halves would be rounded a second time")
        if len({device_of(node) for node in self.merged} - {None}) > 1:
            return MatchResult().fail("annotated for two devices")
        if last.op_type != "BatchNormalization":  # the rule would look at its second input
            return super().check(context, x, inbound_out, inbound_out)  # type: ignore[misc]
        if not _infers(context.model, last):
            return MatchResult().fail("it trains, or is older than inference")
        return super().check(context, x, inbound_out, batchnorm_out)  # type: ignore[misc]

    def rewrite(self, op: Any, **values: Any) -> Any:
        result = super().rewrite(op, **values)  # type: ignore[misc]
        node = result.producer()
        if not all(self._fits(value) for value in node.inputs[1:]):
            node.resize_inputs(0)  # else it would go on reading
            return None
        node.name = self.merged[0].name
        stand_for(node, self.merged)
        return result

    def _fits(self, value: Any) -> bool:
        """Whether a new constant is finite, and nothing else reads what it replaces by its name."""
        taken = self.initializers.get(value.name)
        readers = () if taken is None else taken.consumers()
        is_free = all(reader in self.merged for reader in readers)
        return is_free and bool(np.isfinite(value.const_value.numpy()).all())


class _PerChannel(_Guarded):
    """A rule for batch norms that takes a binary operator with a constant operand instead."""

    follower: str
    op_type: str

    def pattern(self, op: Any, x: Any, operand: Any) -> Any:
        inbound = getattr(op, self.op_type)(x, _allow_other_inputs=True, _outputs=["inbound_out"])
        return getattr(op, self.follower)(inbound, operand, _outputs=["batchnorm_out"])

    def check(self, context: Any, *, operand: Any, **values: Any) -> Any:  # type: ignore[override]
        shape = values["inbound_out"].shape
        if shape is None or not isinstance(shape[1], int) or not operand.is_initializer():
            return MatchResult().fail("not a constant, or of unknown channels")
        dims = (*(1,) * (len(shape) - len(operand.shape)), *operand.shape)
        per_channel = len(dims) == len(shape) and dims[1] in (1, shape[1])
        if not per_channel or math.prod(dims) != dims[1]:
            return MatchResult().fail("not one number per channel")
        return super().check(context, **values)

    def rewrite(self, op: Any, *, operand: Any, **values: Any) -> Any:  # type: ignore[override]
        numbers = operand.const_value.numpy().reshape(-1)
        numbers = np.broadcast_to(numbers, values["inbound_out"].shape[1:2])
        values["batchnorm_out"] = _as_batch_norm(self.follower, numbers)
        return super().rewrite(op, **values)


def _as_batch_norm(operator: str, operand: NDArray[Any]) -> ir.Value:
    ones, zeros = np.ones_like(operand), np.zeros_like(operand)
    scale, shift = {
        "Mul": (operand, zeros),
        "Div": (ones / operand, zeros),
        "Add": (ones, operand),
        "Sub": (ones, -operand),
    }[operator]
    constants = [ir.Value(const_value=ir.Tensor(array)) for array in (scale, shift, zeros, ones)]
    epsilon = ir.AttrFloat32("epsilon", 0.0)
    return ir.Node("", "BatchNormalization", [None, *constants], [epsilon]).outputs[0]


def _infers(model: ir.Model, node: ir.Node) -> bool:
    trains = node.attributes.get_int("training_mode", 0)
    is_plain = node.attributes.get_int("spatial", 1) and len(node.outputs) == 1
    recent = model.opset_imports.get("", 0) >= _BATCH_NORM_INFERS_SINCE
    return bool(recent and is_plain and not trains)
