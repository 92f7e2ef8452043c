# SPDX-License-Identifier: Apache-2.0
"""Every tensor that a serialized model holds, wherever it stands; imports `onnx` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx

CONSTANTS_LOCATION = "constants"
"""The `location` of the tensors that `extract(..., constants="external")` leaves out."""


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: of bodies, functions, sparse values and training too."""
    graphs = [proto.graph]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    attributes = [a for function in proto.functions for a in function.attribute_proto]
    attributes += [a for f in proto.functions for node in f.node for a in node.attribute]
    while graphs or attributes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            yield from _dense_parts(graph.sparse_initializer)
            attributes += [a for node in graph.node for a in node.attribute]
            continue
        attribute = attributes.pop()
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _dense_parts([attribute.sparse_tensor])
        yield from _dense_parts(attribute.sparse_tensors)
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs += attribute.graphs


def _dense_parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices
