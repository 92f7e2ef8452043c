# SPDX-License-Identifier: Apache-2.0
"""The model of a benchmark: a file with static shapes that every runtime reads, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from intarsia.arrays import Array
from intarsia.backends.values import TensorSpec
from intarsia.errors import ModelError
from intarsia.runtime.feeds import check_feeds, sample_feeds

if TYPE_CHECKING:
    from intarsia.graph.load import Shapes


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A file and its inputs.

    Attributes:
        name: For people.
        path: The file that every runtime reads.
        feeds: An array per input, by name.
        batch: The first dimension of the inputs, if it was set.
        sizes: Those of its free dimensions that were given, if it has them still.
    """

    name: str
    path: str
    feeds: Mapping[str, Array]
    batch: int | None = None
    sizes: Mapping[str, int] | None = None


def make_bench_model(
    path: Path,
    folder: Path,
    *,
    shapes: Shapes | None = None,
    sizes: Mapping[str, int] | None = None,
    batch: int | None = None,
    feeds: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> BenchModel:
    """Return a model to measure; where shapes or the batch are set, as a new file.

    Args:
        path: The user's model.
        folder: Where a new file goes.
        shapes: What is said of free dimensions; others get nominal sizes.
        sizes: In place of shapes and a batch: the model is measured as it is, its free dimensions
            free, with inputs of these sizes; those that are missing are nominal.
        batch: The first dimension of every input.
        feeds: Inputs by name; those that are missing are made up (`sample_feeds`).
        seed: For inputs that are made up.

    Raises:
        ModelError: The model is malformed, or cannot have this batch or these sizes.
        InputError: A feed has a wrong name, dtype or shape.
    """
    from intarsia.graph.legal import legal_inputs
    from intarsia.graph.load import load, settle_shapes
    from intarsia.graph.snapshot import snapshot

    model_path = path
    settled = settle_shapes(path, sizes or shapes)
    if sizes is None and (batch is not None or settled):
        proto = onnx.load(str(path))
        _set_shapes(proto, settled, batch)
        model_path = folder / f"{path.stem}.onnx"
        onnx.save(proto, str(model_path))
    graph = snapshot(load(model_path, settled if sizes else None))
    values = (graph.values[position] for position in graph.inputs)
    specs = [TensorSpec(value.name, value.dtype, value.shape) for value in values]
    given = feeds or {}
    missing = [spec for spec in specs if spec.name not in given]
    checked = check_feeds(specs, {**sample_feeds(missing, seed, legal_inputs(graph)), **given})
    arrays = dict(zip((spec.name for spec in specs), checked, strict=True))
    return BenchModel(path.stem, str(model_path), arrays, batch, sizes)


def _set_shapes(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], batch: int | None
) -> None:
    """Set the inputs' dimensions in the file itself, so that peers read the same shapes."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    before: int | None = None
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in constants or not dims:
            continue
        wanted = list(shapes.get(value.name, ()))
        for dim, size in zip(dims, wanted, strict=False):
            dim.dim_value = size
        if batch is not None:
            before = dims[0].dim_value or before
            dims[0].dim_value = batch
    if batch is not None:
        _rebatch_reshapes(proto, before or 1, batch)
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(
            f"the model cannot have batch {batch}: {str(error).splitlines()[0]}",
            hint="export it with the batch that you want",
        ) from error
    proto.CopyFrom(inferred)


def _rebatch_reshapes(proto: onnx.ModelProto, before: int, batch: int) -> None:
    """Change the leading batch in the constant shapes of Reshape nodes."""
    shapes = {node.input[1] for node in proto.graph.node if node.op_type == "Reshape"}
    for tensor in proto.graph.initializer:
        if tensor.name in shapes and tensor.data_type == onnx.TensorProto.INT64:
            dims = numpy_helper.to_array(tensor).copy()
            if dims.size > 1 and dims[0] == before:
                dims[0] = batch
                tensor.CopyFrom(numpy_helper.from_array(dims.astype(np.int64), tensor.name))
