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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from intarsia.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onnx import NodeProto

_JITTER = 0.1  # spread of scales around 1 and of biases around 0

Vector = npt.NDArray[np.float64]
Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of each channel of one value."""

    mean: Vector
    var: Vector


def fill(
    nodes: Sequence[NodeProto],
    shapes: Mapping[str, tuple[int, ...]],
    rng: np.random.Generator,
    gain: float = 1.0,
) -> Weights:
    """Draw every parameter of a network.

    Args:
        nodes: The network, in topological order; its one image input is `data`, of 3 channels.
        shapes: The shape of every parameter, by name.
        rng: Where the numbers come from.
        gain: The standard deviation that the last Conv or Gemm is to give.

    Returns:
        Float32 arrays by parameter name, in the order of first use.

    Raises:
        InternalError: If an operator is met whose moments are not known here.
    """
    last = [node.input[1] for node in nodes if node.op_type in ("Conv", "Gemm")][-1]
    filler = _Filler(shapes, rng, last, gain)
    filler.moments["data"] = Moments(np.zeros(3), np.ones(3))
    for node in nodes:
        rule = _RULES.get(node.op_type)
        if rule is None:
            msg = f"the zoo has no moments for {node.op_type}"
            raise InternalError(msg, node=node.name)
        filler.moments[node.output[0]] = rule(filler, node)
    return filler.weights


@dataclass(slots=True)
class _Filler:
    """The walk's state: what is drawn, and the moments of what is computed."""

    shapes: Mapping[str, tuple[int, ...]]
    rng: np.random.Generator
    last: str
    gain: float
    weights: Weights = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)

    def of(self, node: NodeProto, index: int = 0) -> Moments:
        return self.moments[node.input[index]]

    def store(self, name: str, values: Vector) -> Vector:
        """Keep a parameter as float32 and return what was kept."""
        self.weights[name] = values.reshape(self.shapes[name]).astype(np.float32)
        return self.weights[name].astype(np.float64)

    def draw(self, name: str, centre: float) -> Vector:
        """Draw a vector close to `centre`."""
        size = self.shapes[name]
        return self.store(name, centre + _JITTER * self.rng.standard_normal(size))


def _affine(filler: _Filler, node: NodeProto) -> Moments:
    """Draw a Conv or a Gemm (`transB`) that gives about unit variance and no mean.

    At every kernel position the weights are orthogonal to the means of the input's channels. What
    all inputs have in common is thus removed by the weights and not by a bias, which also holds at
    the borders, where padding takes part of the kernel away.
    """
    x, name = filler.of(node), node.input[1]
    out, channels, *window = filler.shapes[name]
    kernel = filler.rng.standard_normal((out, channels, math.prod(window)))
    mean = x.mean[:, None]
    if mean.any():
        kernel -= mean * ((mean * kernel).sum(axis=1, keepdims=True) / (mean**2).sum())
    var = ((kernel**2).sum(axis=2) * x.var).sum(axis=1)
    gain = filler.gain if name == filler.last else 1.0
    factor = gain / math.sqrt(var.mean())
    filler.store(name, kernel * factor)
    biases = [filler.draw(key, 0.0) for key in node.input[2:]]  # one or none
    return Moments(biases[0] if biases else np.zeros(out), var * factor**2)


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
    x, scale = filler.of(node), filler.of(node, 1).mean
    return Moments(x.mean * scale, x.var * scale**2)


def _sum(filler: _Filler, node: NodeProto) -> Moments:
    terms = [filler.moments[name] for name in node.input]
    mean = np.sum([term.mean for term in terms], axis=0)
    return Moments(mean, np.sum([term.var for term in terms], axis=0))


def _concat(filler: _Filler, node: NodeProto) -> Moments:
    parts = [filler.moments[name] for name in node.input]
    mean = np.concatenate([part.mean for part in parts])
    return Moments(mean, np.concatenate([part.var for part in parts]))


def _relu(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of a rectified Gaussian."""
    x = filler.of(node)
    std = np.sqrt(x.var)
    ratio = x.mean / std
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(r / math.sqrt(2))) for r in ratio])
    mean = x.mean * below + std * density
    return Moments(mean, (x.mean**2 + x.var) * below + x.mean * std * density - mean**2)


def _max_pool(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of the greatest of 3x3 rectified standard Gaussians, rescaled."""
    x = filler.of(node)
    return Moments(x.mean + 1.86 * np.sqrt(x.var), 1.05 * x.var)


def _average_pool(filler: _Filler, node: NodeProto) -> Moments:
    """Return the moments of a mean; a global one has the 7x7 positions usual in classifiers."""
    x = filler.of(node)
    window = next((a.ints for a in node.attribute if a.name == "kernel_shape"), (7, 7))
    return Moments(x.mean, x.var / math.prod(window))


def _same(filler: _Filler, node: NodeProto) -> Moments:
    return filler.of(node)


_RULES: Mapping[str, Callable[[_Filler, NodeProto], Moments]] = {
    "Add": _sum,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Conv": _affine,
    "Dropout": _same,
    "Gemm": _affine,
    "GlobalAveragePool": _average_pool,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Relu": _relu,
    "Reshape": _same,
    "Softmax": _same,
    "Sum": _sum,
    "Unsqueeze": _unsqueeze,
}
