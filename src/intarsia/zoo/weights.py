# SPDX-License-Identifier: Apache-2.0
"""Random weights under which a deep network still computes something.

Drawn blindly, the weights of a deep network let its activations vanish, explode, or become the same
for every input. Here the mean and variance of every channel are carried through the network in
closed form, as if activations were independent Gaussians and the image standard normal, and each
layer is drawn so that it centres and normalises what it receives.

Source: He et al., "Delving Deep into Rectifiers", 2015 (the spread of a weight); Mishkin and Matas,
"All You Need Is a Good Init", 2016 (unit variance layer by layer, there measured from data).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from intarsia.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onnx import NodeProto

_JITTER = 0.1  # spread of scales around 1 and of biases around 0
_CENTRED = 4  # channels that a filter must read for its weights to be orthogonal to their means
_GROUPED_RANK = 5  # batch, groups, channels of a group, height, width
_POINTS, _MASSES = np.polynomial.hermite_e.hermegauss(32)
_MASSES = _MASSES / _MASSES.sum()

Array = npt.NDArray[np.generic]
Vector = npt.NDArray[np.float64]
Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of each channel of one value; both of one shape, of rank 1 or 2."""

    mean: Vector
    var: Vector

    def map(self, function: Callable[[Vector], Vector]) -> Moments:
        """Apply to each vector a function that moves, repeats or drops channels."""
        return Moments(function(self.mean), function(self.var))

    def through(self, function: Callable[[Vector], Vector]) -> Moments:
        """Return the moments of a function of a Gaussian with these moments."""
        values = function(self.mean[:, None] + np.sqrt(self.var)[:, None] * _POINTS)
        mean = values @ _MASSES
        return Moments(mean, values**2 @ _MASSES - mean**2)


def fill(
    nodes: Sequence[NodeProto],
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Array],
    rng: np.random.Generator,
    gain: float = 1.0,
) -> Weights:
    """Draw every parameter of a network.

    Args:
        nodes: The network, in topological order; its one image input is `data`, of 3 channels.
        shapes: The shape of every parameter, by name.
        constants: The values that are given and not drawn, such as the shapes for a Reshape.
        rng: Where the numbers come from.
        gain: The standard deviation that the last Conv or Gemm is to give.

    Returns:
        Float32 arrays by parameter name, in the order of first use.

    Raises:
        InternalError: If an operator is met whose moments are not known here.
    """
    end = 1 + max(i for i, node in enumerate(nodes) if any(key in shapes for key in node.input))
    last = [node.input[1] for node in nodes if node.op_type in ("Conv", "Gemm")][-1]
    filler = _Filler(shapes, constants, rng, last, gain)
    filler.moments["data"] = Moments(np.zeros(3), np.ones(3))
    for node in nodes[:end]:
        rule = _RULES.get(node.op_type)
        if rule is None:
            msg = f"the zoo has no moments for {node.op_type}"
            raise InternalError(msg, node=node.name)
        filler.moments[node.output[0]] = rule(filler, node)
    return filler.weights


@dataclass(slots=True)
class _Filler:
    """The walk's state: the weights drawn so far, and the moments of computed values."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Array]
    rng: np.random.Generator
    last: str
    gain: float
    weights: Weights = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    sigmoids: dict[str, str] = field(default_factory=dict)

    def of(self, node: NodeProto, index: int = 0) -> Moments:
        return self.moments[node.input[index]]

    def store(self, name: str, values: Vector) -> Vector:
        """Keep a parameter as float32 and return what was kept."""
        self.weights[name] = values.reshape(self.shapes[name]).astype(np.float32)
        return self.weights[name].astype(np.float64)

    def draw(self, name: str, centre: float | Vector) -> Vector:
        """Draw a vector close to `centre`."""
        size = self.shapes[name]
        return self.store(name, centre + _JITTER * self.rng.standard_normal(size))


def _attribute(node: NodeProto, name: str, default: object) -> Any:
    values = (helper.get_attribute_value(a) for a in node.attribute if a.name == name)
    return next(values, default)


def _affine(filler: _Filler, node: NodeProto) -> Moments:
    """Draw a Conv or a Gemm (`transB`) that gives about unit variance and no mean.

    At every kernel position the weights are orthogonal to the means of the input's channels. What
    all inputs have in common is thus removed by the weights and not by a bias, which also holds at
    the borders, where padding takes part of the kernel away. A filter that reads too few channels
    for that, a depthwise one above all, leaves a mean to its bias, or to the batch norm after it.
    """
    name, groups = node.input[1], _attribute(node, "group", 1)
    out, channels, *window = filler.shapes[name]
    x = filler.of(node).map(lambda v: v.reshape(groups, channels).astype(np.float32))
    size = (groups, out // groups, channels, math.prod(window))
    kernel = filler.rng.standard_normal(size, dtype=np.float32)
    norm = (x.mean**2).sum(axis=1)[:, None, None]
    if channels >= _CENTRED and norm.any():
        common = np.einsum("goiw,gi->gow", kernel, x.mean) / np.where(norm > 0, norm, 1)
        kernel -= x.mean[:, None, :, None] * common[:, :, None, :]
    mean = np.einsum("goiw,gi->go", kernel, x.mean).ravel().astype(np.float64)
    var = np.einsum("goiw,goiw,gi->go", kernel, kernel, x.var).ravel().astype(np.float64)
    factor = (filler.gain if name == filler.last else 1.0) / math.sqrt(var.mean())
    kernel *= np.float32(factor)
    filler.weights[name] = kernel.reshape(filler.shapes[name])
    mean *= factor
    for key in node.input[2:]:  # a bias, or none
        mean = mean + filler.draw(key, -mean)
    return Moments(mean, var * factor**2)


def _batch_norm(filler: _Filler, node: NodeProto) -> Moments:
    """Draw a batch norm whose running statistics are those of what it receives."""
    x = filler.of(node)
    scale, bias = filler.draw(node.input[1], 1.0), filler.draw(node.input[2], 0.0)
    filler.store(node.input[3], x.mean)
    filler.store(node.input[4], x.var)
    return Moments(bias, scale**2)


def _unsqueeze(filler: _Filler, node: NodeProto) -> Moments:
    """Draw a constant that a Mul or an Add will use."""
    # A constant comes before its use; its name, which `naming` gave, tells what it is for.
    values = filler.draw(node.input[0], 1.0 if "scale" in node.name else 0.0)
    return Moments(values, np.zeros_like(values))


def _mul(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of x * sigmoid(x), or of a product of independent factors."""
    if filler.sigmoids.get(node.input[1]) == node.input[0]:
        return filler.of(node).through(lambda x: x / (1 + np.exp(-x)))
    x, y = filler.of(node), filler.of(node, 1)
    mean = x.mean * y.mean
    return Moments(mean, (x.var + x.mean**2) * (y.var + y.mean**2) - mean**2)


def _sum(filler: _Filler, node: NodeProto) -> Moments:
    terms = [filler.moments[name] for name in node.input]
    mean = np.sum([term.mean for term in terms], axis=0)
    return Moments(mean, np.sum([term.var for term in terms], axis=0))


def _concat(filler: _Filler, node: NodeProto) -> Moments:
    parts = [filler.moments[name] for name in node.input]
    mean = np.concatenate([part.mean for part in parts])
    return Moments(mean, np.concatenate([part.var for part in parts]))


def _clip(filler: _Filler, node: NodeProto) -> Moments:
    low, high = (filler.constants[name].item() for name in node.input[1:3])
    return filler.of(node).through(lambda x: np.clip(x, low, high))


def _relu(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of a rectified Gaussian."""
    x = filler.of(node)
    std = np.sqrt(x.var)
    ratio = x.mean / std
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(r / math.sqrt(2))) for r in ratio])
    mean = x.mean * below + std * density
    return Moments(mean, (x.mean**2 + x.var) * below + x.mean * std * density - mean**2)


def _sigmoid(filler: _Filler, node: NodeProto) -> Moments:
    filler.sigmoids[node.output[0]] = node.input[0]
    return filler.of(node).through(lambda x: 1 / (1 + np.exp(-x)))


def _hard_swish(filler: _Filler, node: NodeProto) -> Moments:
    return filler.of(node).through(lambda x: x * np.clip(x / 6 + 0.5, 0, 1))


def _local_response(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of a value divided by what its neighbours are on average."""
    x = filler.of(node)
    alpha, beta, bias = (_attribute(node, name, 0.0) for name in ("alpha", "beta", "bias"))
    factor = float(bias + alpha * (x.mean**2 + x.var).mean()) ** -beta
    return Moments(x.mean * factor, x.var * factor**2)


def _max_pool(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of the greatest of 3x3 rectified standard Gaussians, rescaled."""
    x = filler.of(node)
    return Moments(x.mean + 1.86 * np.sqrt(x.var), 1.05 * x.var)


def _average_pool(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of a mean; a global one has the 7x7 positions usual in classifiers."""
    x = filler.of(node)
    return Moments(x.mean, x.var / math.prod(_attribute(node, "kernel_shape", (7, 7))))


def _reshape(filler: _Filler, node: NodeProto) -> Moments:
    """Follow channels into groups and back, or into the columns of a matrix."""
    shape, x = filler.constants[node.input[1]], filler.of(node)
    if shape.size == _GROUPED_RANK:
        return x.map(lambda v: v.reshape(shape[1:3]))
    flat = x.map(np.ravel)
    return flat.map(lambda v: np.repeat(v, int(shape[1]) // v.size))


def _same(filler: _Filler, node: NodeProto) -> Moments:
    return filler.of(node)


_RULES: Mapping[str, Callable[[_Filler, NodeProto], Moments]] = {
    "Add": _sum,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _affine,
    "Dropout": _same,
    "Flatten": _same,
    "Gemm": _affine,
    "GlobalAveragePool": _average_pool,
    "HardSwish": _hard_swish,
    "LRN": _local_response,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "ReduceMean": _average_pool,
    "Relu": _relu,
    "Reshape": _reshape,
    "Resize": _same,
    "Sigmoid": _sigmoid,
    "Sum": _sum,
    "Transpose": lambda filler, node: filler.of(node).map(np.transpose),
    "Unsqueeze": _unsqueeze,
}
