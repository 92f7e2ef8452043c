# SPDX-License-Identifier: Apache-2.0
"""What cuDNN is to compute, as data: graphs of its operations on tensors with strides."""

from __future__ import annotations

import msgspec

from intarsia.backends.cuda.library_program import LibraryTensor


class DnnTensor(msgspec.Struct, frozen=True):
    """A tensor of a graph."""

    dtype: str
    """By numpy's name."""
    dims: list[int]
    strides: list[int]
    """In elements."""
    tensor: int = -1
    """The number of the program's tensor; -1 for what is never in memory, and for `number`."""
    number: float | None = None
    """One number, which the host gives."""


class DnnOperation(msgspec.Struct, frozen=True):
    """An operation of a graph."""

    kind: str
    """`convolution`, `transposed convolution`, `pointwise`, `product`, `pooling`, `norm` or
    `attention`."""
    tensors: dict[str, int]
    """Numbers of the graph's tensors, by the letters that cuDNN has for them."""
    mode: str = ""
    """Of pointwise operations, pooling and norms, as cuDNN names it."""
    before: list[int] = []
    """Padding before the first entry of each spatial dimension."""
    after: list[int] = []
    """And behind the last one."""
    strides: list[int] = []
    """Of the window."""
    dilations: list[int] = []
    window: list[int] = []


class DnnGraph(msgspec.Struct, frozen=True):
    """Operations that cuDNN computes by one engine."""

    node: str
    """The name of the node whose operation is the first."""
    tensors: list[DnnTensor]
    operations: list[DnnOperation]


class EngineRules(msgspec.Struct, frozen=True):
    """Which of cuDNN's engines may compute a graph."""

    math_type: str = "default"
    """`default`, `tensor_op`, `tensor_op_allow_conversion` or `fma`."""
    conv_algorithm: str = ""
    is_deterministic: bool = False
    workspace_bytes: int = -1
    """The most that an engine may have of memory of its own; -1 for any."""


class DnnProgram(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    tensors: list[LibraryTensor]
    graphs: list[DnnGraph]
    scratch_bytes: int
    """Of what is kept between graphs."""
    rules: EngineRules


def dense_strides(dims: list[int]) -> list[int]:
    """Return the strides of a dense tensor whose last dimension is together."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * dims[axis]
    return strides


def span(tensor: DnnTensor) -> int:
    """Return how many elements lie between a tensor's first and its last one, both included."""
    pairs = zip(tensor.dims, tensor.strides, strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs)
