# SPDX-License-Identifier: Apache-2.0
"""What session options change in a model before it is compiled: sizes and initializers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import SettingError

if TYPE_CHECKING:
    import onnx

    from intarsia.session.options import SessionOptions


def input_shapes(model: Any, options: SessionOptions) -> dict[str, list[int]]:
    """Return the shapes of the inputs that overrides of free dimensions settle.

    Args:
        model: In any form that `intarsia.compile` takes.
        options: With the overrides.

    Raises:
        ModelError: The model cannot be read.
    """
    if not options.free_dimensions and not options.free_denotations:
        return {}
    shapes: dict[str, list[int]] = {}
    for value in _read(model).graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = [
            dim.dim_value
            if dim.HasField("dim_value")
            else options.free_dimensions.get(
                dim.dim_param, options.free_denotations.get(dim.denotation)
            )
            for dim in dims
        ]
        is_free = any(not dim.HasField("dim_value") for dim in dims)
        settled = [size for size in sizes if size is not None]
        if is_free and len(settled) == len(sizes):
            shapes[value.name] = settled
    return shapes


def with_initializers(model: Any, options: SessionOptions) -> Any:
    """Return a model with initializers replaced; the same one if there is nothing to replace.

    Args:
        model: In any form that `intarsia.compile` takes.
        options: With the initializers, and the files that are in memory.

    Raises:
        ModelError: The model cannot be read.
        SettingError: The model has no initializer or file of a name, or another shape or type.
    """
    if not options.initializers and not options.files_in_memory:
        return model
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    from intarsia.graph.external import check_external_data

    proto = _read(model)
    by_name = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, value in options.initializers.items():
        _replace(by_name, name, value)
    used = {
        name
        for tensor in proto.graph.initializer
        if uses_external_data(tensor)
        for name in _fill(tensor, options.files_in_memory)
    }
    unused = options.files_in_memory.keys() - used
    if unused:
        raise SettingError(f"the model has no external data in a file {min(unused)!r}")
    folder = Path(model).parent if isinstance(model, str | Path) else None
    check_external_data(proto, folder)
    if folder is not None:
        load_external_data_for_model(proto, str(folder))
    return proto


def _read(model: Any) -> onnx.ModelProto:
    """Return a copy of the model that may be changed, external data not read."""
    import onnx
    import onnx_ir as ir

    from intarsia.graph.read import read_bytes, read_file

    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    if isinstance(model, ir.Model):
        return ir.to_proto(model)
    return read_bytes(model) if isinstance(model, bytes) else read_file(model)


def _replace(by_name: Mapping[str, onnx.TensorProto], name: str, value: Any) -> None:
    """Write an array into an initializer."""
    import numpy as np
    from onnx import helper, numpy_helper

    if name not in by_name:
        raise SettingError(
            f"the model has no initializer {name!r}", hint=f"it has {', '.join(sorted(by_name))}"
        )
    try:
        tensor, array = by_name[name], np.asarray(value)
    except ValueError as error:
        raise SettingError(f"initializer {name!r} cannot be read as an array: {error}") from error
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if list(tensor.dims) != list(array.shape) or array.dtype != dtype:
        raise SettingError(
            f"initializer {name!r} is {dtype}{list(tensor.dims)}, "
            f"not {array.dtype}{list(array.shape)}"
        )
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def _fill(tensor: onnx.TensorProto, files: Mapping[str, bytes]) -> list[str]:
    """Fill an initializer from a file in memory, if one has its data; return that file's name."""
    import onnx

    fields = {entry.key: entry.value for entry in tensor.external_data}
    content = files.get(fields.get("location", ""))
    if content is None:
        return []
    start = int(fields.get("offset", 0))
    end = start + int(fields["length"]) if "length" in fields else len(content)
    if end > len(content):
        raise SettingError(
            f"{fields['location']!r} has {len(content)} bytes; initializer {tensor.name!r} ends "
            f"at {end}"
        )
    tensor.raw_data = content[start:end]
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    return [fields["location"]]
