# SPDX-License-Identifier: Apache-2.0
"""A model for a package: its ONNX without big tensors, and these beside it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from intarsia.arrays import Array
from intarsia.errors import PackageError
from intarsia.graph.snapshot import dtype_name
from intarsia.graph.tensors import CONSTANTS_LOCATION, all_tensors

_BIG_BYTES = 1024


def split_model(model: ir.Model) -> tuple[bytes, dict[str, Array]]:
    """Return a model's ONNX, in which big initializers are left out, and these by name.

    Args:
        model: What `parse` returned; its big initializers lose their data.
    """
    arrays: dict[str, Array] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _BIG_BYTES:
            continue
        array = tensor.numpy()
        if dtype_name(tensor.dtype) != array.dtype.name:  # of text, or packed in halves of bytes
            continue
        arrays[name] = array
        value.const_value = ir.ExternalTensor(
            CONSTANTS_LOCATION,
            0,
            array.nbytes,
            tensor.dtype,
            shape=ir.Shape(array.shape),
            name=name,
        )
    return ir.to_proto(model).SerializeToString(), arrays


def join_model(payload: bytes, arrays: Mapping[str, Array]) -> ir.Model:
    """Return the model that `split_model` was given.

    Raises:
        PackageError: It is not ONNX, or a tensor refers to something else than these arrays.
    """
    try:
        proto = onnx.load_from_string(payload)
    except Exception as error:  # protobuf's own
        raise PackageError(f"the model in the package is not ONNX: {error}") from error
    for tensor in all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        if places != [CONSTANTS_LOCATION] or tensor.name not in arrays:
            raise PackageError(
                f"tensor {tensor.name!r} of the model refers to external data: {places}",
                hint="do not use this package; compile the model again",
            )
    model = ir.from_proto(proto)
    for name, array in arrays.items():
        value = model.graph.initializers.get(name)
        if value is None:
            raise PackageError(f"the model in the package has no tensor {name!r}")
        value.const_value = ir.Tensor(array, name=name)
    return model
