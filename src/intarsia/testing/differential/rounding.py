# SPDX-License-Identifier: Apache-2.0
"""How far rounding alone may move each number of a graph: found by moving it.

The graph is evaluated again several times, and each time every float that an inexact node reads or
makes is moved at random by as many units in the last place as that operator, dtype and length of
accumulation are allowed. What such runs change an element by is what rounding may change it by;
what they turn over (a comparison, an index, an infinity) rounding may turn over. So cancellation,
amplification and discontinuities need no cases of their own, and where nothing is inexact nothing
may differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from intarsia.arrays import Array
from intarsia.backends.defects import Bound, Flushed, is_float
from intarsia.testing.graphs.draft import NodeRun, info

RUNS = 8
"""How many moved evaluations are looked at."""

EXACT = frozenset(
    (
        *("Abs", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
        *("BitwiseXor", "Cast", "CastLike", "Ceil", "CenterCropPad", "Clip", "Compress", "Concat"),
        *("ConcatFromSequence", "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Equal"),
        *("Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND"),
        *("GlobalMaxPool", "Greater", "GreaterOrEqual", "Hardmax", "Identity", "IsInf", "IsNaN"),
        *("Less", "LessOrEqual", "Max", "MaxPool", "MaxUnpool", "Min", "Neg", "NonZero", "Not"),
        *("OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Or", "Pad", "Range"),
        *("ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "ScatterND"),
        *("ScatterElements", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
        *("SequenceInsert", "SequenceLength", "Shape", "Sign", "Size", "Slice", "SpaceToDepth"),
        *("Split", "SplitToSequence", "Squeeze", "ThresholdedRelu", "Tile", "TopK", "Transpose"),
        *("Trilu", "Unique", "Unsqueeze", "Where", "Xor", "Upsample"),
    )
)
"""Operators whose result is one of their operands, or exact: nothing is moved."""

ARITHMETIC = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Mod", "PRelu", "LeakyRelu", "Shrink"),
        *("DequantizeLinear", "QuantizeLinear", "HardSigmoid", "HardSwish"),
    )
)
"""Operators of one or two roundings: inputs half a unit, outputs one."""

POINTWISE = frozenset(
    (
        *("Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh"),
        *("Asinh", "Acosh", "Atanh", "Erf", "Sigmoid", "Softplus", "Softsign", "Mish", "Gelu"),
        *("Elu", "Celu", "Selu", "Pow"),
    )
)
"""Approximated functions: inputs one unit, outputs four."""

_UNITS = dict.fromkeys(ARITHMETIC, (0.5, 1.0)) | dict.fromkeys(POINTWISE, (1.0, 4.0))


NORMWISE = frozenset(
    (
        *("DFT", "STFT", "Det", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow"),
        *("Resize", "GridSample", "RoiAlign", "AffineGrid"),
    )
)
"""Operators whose factors or coordinates are rounded too: outputs are moved like the largest."""

_TERMS = {"HannWindow": 0.5, "HammingWindow": 0.54, "BlackmanWindow": 0.5}
"""The largest term of sums that cancel: what they are moved like at least."""


def units_of(
    node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[float, float]:
    """Return by how many units in the last place a node's inputs and outputs may be moved.

    An accumulating operator's inputs are moved by `1 + sqrt(L) / 2` for sums of `L` terms, because
    the errors of partial sums in another order add up like a random walk; its outputs by four.

    Args:
        node: The node.
        inputs: What it reads.
        outputs: What it makes.
    """
    if node.op_type in EXACT:
        return 0.0, 0.0
    if node.op_type in _UNITS:
        return _UNITS[node.op_type]
    sizes = [np.size(value) for value in inputs if isinstance(value, np.ndarray)]
    sizes_made = [np.size(value) for value in outputs if isinstance(value, np.ndarray)]
    length = max(sizes, default=1) / max(1, min(sizes_made, default=1))
    if node.op_type in ("Conv", "ConvTranspose", "QLinearConv", "DeformConv"):
        weights = inputs[3 if node.op_type.startswith("Q") else 1]
        length = np.size(weights) / max(1, weights.shape[node.op_type != "ConvTranspose" and 0])
    elif node.op_type in ("MatMul", "Gemm", "Einsum", "QLinearMatMul"):
        length = max(
            max(value.shape, default=1) for value in inputs if isinstance(value, np.ndarray)
        )
    return 1.0 + max(1.0, length) ** 0.5 / 2, 4.0


def epsilon(dtype: np.dtype[Any]) -> float:
    """Return the unit in the last place of one."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


class Evaluation:
    """A graph, evaluated node by node by the reference.

    Args:
        model: The model, without functions of its own.
        feeds: An array per input, by name.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
        opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
        self.outputs = [output.name for output in model.graph.output]
        self._start = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        } | dict(feeds)
        self._constants = {tensor.name for tensor in model.graph.initializer}
        self.values = dict(self._start)
        self._runs: list[NodeRun] = []
        for node in model.graph.node:
            run = NodeRun(node, opset, self.values)
            self._runs.append(run)
            self.values.update(zip(node.output, run(self.values), strict=True))

    def alone(self, operators: Collection[str]) -> Iterator[onnx.ModelProto]:
        """Yield nodes as models with the shapes of what the reference computes.

        Args:
            operators: Of which to yield the nodes.
        """
        for run in self._runs:
            if run.node.op_type in operators:
                model = run.alone(self.values)
                del model.graph.output[:]
                names = filter(None, run.node.output)
                model.graph.output.extend(info(name, self.values[name]) for name in names)
                yield model

    def by_nodes(
        self,
        peer: Callable[[onnx.ModelProto, Mapping[str, Any]], Mapping[str, Any]],
        excluded: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return every value as a peer computes it node by node, or the reference if it refuses.

        What a peer makes in another shape than the reference makes of the same numbers is wrong,
        and later nodes may not fit it: the reference's counts then. Where rounding decides about a
        shape, and a later node does not fit, the values are the reference's own.

        Args:
            peer: Runs a model on feeds; raises for what it does not take.
            excluded: Names of the first outputs of nodes that it must not be asked for.
        """
        values = dict(self._start)
        for run in self._runs:
            try:
                outputs = dict(zip(run.node.output, run(values), strict=True))
            except Exception:
                return dict(self.values)
            if run.node.output[0] not in excluded:
                feeds = {name: values[name] for name in dict.fromkeys(run.node.input) if name}
                with contextlib.suppress(Exception):
                    answers = peer(run.alone(values), feeds)
                    if all(
                        _has_shapes_of(outputs[name], answer) for name, answer in answers.items()
                    ):
                        outputs |= answers
            values.update(outputs)
        return values

    def flushed(self, nodes: Mapping[str, Flushed], *, makes_zeros: bool) -> dict[str, Any]:
        """Return every value of a run in which some nodes take subnormal float32 numbers for zeros.

        Args:
            nodes: By the name of a node's first output, which of the numbers that it reads.
            makes_zeros: Whether their results are flushed too.
        """
        values = dict(self._start)
        rooted = self._constants.copy()
        for run in self._runs:
            names = {name for name in run.node.input if name}
            flushes = nodes.get(run.node.output[0])
            taken = names if flushes is Flushed.ALL else names & rooted
            own = {name: _flush(values[name]) for name in taken if flushes is not None}
            outputs = run({**values, **own})
            if flushes is not None and makes_zeros:
                outputs = [_flush(value) for value in outputs]
            values.update(zip(run.node.output, outputs, strict=True))
            if names <= rooted:
                rooted.update(run.node.output)
        return values

    def all_moved(
        self, bounds: Mapping[str, Sequence[Bound]] = MappingProxyType({})
    ) -> list[dict[str, Any]]:
        """Return `RUNS` runs in which floats are moved.

        A run in which rounding decides about a shape, and a later node does not fit, is left out.

        Args:
            bounds: As in `moved`.
        """
        runs = []
        for seed in range(RUNS):
            with contextlib.suppress(Exception):
                runs.append(self.moved(seed, bounds))
        return runs

    def moved(
        self, seed: int, bounds: Mapping[str, Sequence[Bound]] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return every value of a run in which floats are moved.

        Args:
            seed: Which of the runs.
            bounds: By a node's first output, how far its results may be moved beside.
        """
        rng = np.random.default_rng(seed)
        values = dict(self._start)
        for run in self._runs:
            node = run.node
            names = [name for name in node.input if name]
            outputs = [self.values[name] for name in node.output if name]
            inner, outer = units_of(node, [values[name] for name in names], outputs)
            if inner:
                own = {
                    name: _move(rng, values[name], inner)
                    for position, name in enumerate(node.input)
                    if name and not _is_scale(node, position)
                }
                results = run({**values, **own})
            else:
                results = run(values)
            least = _TERMS.get(node.op_type, 0.0 if node.op_type in NORMWISE else None)
            values.update(
                (name, _move(rng, value, outer, least) if outer else value)
                for name, value in zip(node.output, results, strict=True)
            )
            for bound in bounds.get(node.output[0], ()):
                first = values[node.output[0]]
                far = bound([values[name] for name in names], first)
                values[node.output[0]] = _shift(rng, first, far)
        return values


def _has_shapes_of(reference: Any, answer: Any) -> bool:
    """Tell whether a tensor, or each of a sequence, has the shape of another."""
    if isinstance(reference, list) and isinstance(answer, list):
        return len(reference) == len(answer) and all(map(_has_shapes_of, reference, answer))
    return isinstance(reference, list) == isinstance(answer, list) and (
        np.shape(reference) == np.shape(answer)
    )


def _flush(value: Any) -> Any:
    """Return float32 numbers with zeros for subnormal ones."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    least = np.finfo(np.float32).smallest_normal
    return np.where(np.abs(value) < least, np.copysign(np.float32(0), value), value)


def _shift(rng: np.random.Generator, numbers: Array, far: Array | float) -> Array:
    """Return finite numbers shifted at random by up to a bound, whole ones by whole steps."""
    with np.errstate(all="ignore"):
        if is_float(numbers):
            shifted = numbers + rng.uniform(-1, 1, numbers.shape) * far
            is_moved = np.isfinite(numbers.astype(np.float64)) & np.isfinite(shifted)
            return np.asarray(np.where(is_moved, shifted, numbers).astype(numbers.dtype))
        limits = np.iinfo(numbers.dtype)
        shifted = numbers + np.rint(rng.choice((-1, 0, 1), numbers.shape) * far)
        return np.asarray(np.clip(shifted, limits.min, limits.max).astype(numbers.dtype))


def _is_scale(node: onnx.NodeProto, position: int) -> bool:
    """Tell whether an input holds scales, which are not moved because they decide a shape."""
    return node.op_type == "Resize" and position == min(2, len(node.input) - 1)


def _move(rng: np.random.Generator, value: Any, units: float, least: float | None = None) -> Any:
    """Return floats, each moved at random by so many units of its own, or of the largest.

    Args:
        rng: Draws the moves.
        value: Anything else than floats is left as it is.
        units: How many at most.
        least: What the largest is taken to be at least; None for units of each number's own.
    """
    if not isinstance(value, np.ndarray) or not is_float(value) or not value.size:
        return value
    with np.errstate(all="ignore"):
        wide = value.astype(np.float64)
        finite = np.isfinite(wide)
        sizes = np.abs(wide)
        if least is not None:
            sizes = np.max(sizes, where=finite, initial=least)
        shift = rng.uniform(-units, units, value.shape) * epsilon(value.dtype) * sizes
        moved: Array = np.asarray(np.where(finite, wide + shift, wide)).astype(value.dtype)
    return moved
