# SPDX-License-Identifier: Apache-2.0
"""Check that a model's external data lies beside the model and is all there."""

from __future__ import annotations

import math
from pathlib import Path, PureWindowsPath

import onnx
import onnx_ir as ir
from onnx.external_data_helper import ExternalDataInfo

from intarsia.errors import ModelError
from intarsia.graph.tensors import all_tensors


def check_external_data(proto: onnx.ModelProto, folder: Path | None) -> None:
    """Check every external tensor of the model, without reading its data.

    Args:
        proto: The model.
        folder: The model file's folder; None if the model came without one.

    Raises:
        ModelError: A path is absolute or leaves the folder, a file is missing or too short, there
            is no folder to look in, or a tensor of the model's own has too few bytes for its shape.
    """
    for tensor in all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check(tensor, folder)
        else:
            _check_inline(tensor)


def _check_inline(tensor: onnx.TensorProto) -> None:
    """Check that a tensor of the model's own may have as many elements as it says.

    However they are written, a byte holds at most four: of two bits.

    Raises:
        ModelError: There are not bytes enough.
    """
    elements = math.prod(tensor.dims)
    nbytes = tensor.ByteSize()
    if any(dim < 0 for dim in tensor.dims) or elements > 4 * nbytes:
        raise ModelError(
            f"tensor {tensor.name!r} has the shape {list(tensor.dims)}, and {nbytes} bytes in all",
            hint="the model is damaged: export it again",
        )


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return the bytes that the tensor's data takes in a file; None for strings.

    Raises:
        ModelError: There is no such element type.
    """
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        raise ModelError(
            f"tensor {tensor.name!r} has the unknown element type {tensor.data_type}",
            hint="install a newer onnx and onnx-ir, or export the model again",
        ) from None
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    return (elements * dtype.bitwidth + 7) // 8


def _check(tensor: onnx.TensorProto, folder: Path | None) -> None:
    info = ExternalDataInfo(tensor)
    subject = f"tensor {tensor.name!r} keeps its data in {info.location!r}"
    if folder is None:
        raise ModelError(
            f"{subject}, but the model came without a folder",
            hint="load it from its path, or load the data first with onnx.load",
        )
    path = _resolve(info.location, folder, subject)
    if not path.is_file():
        raise ModelError(
            f"{subject}, and {str(path)!r} does not exist",
            hint="copy the data file beside the model, under the name that it was exported with",
        )
    needed = tensor_bytes(tensor)
    offset, size = info.offset or 0, path.stat().st_size
    stored = info.length if info.length is not None else max(size - offset, 0)
    if (needed is not None and stored < needed) or offset + stored > size:
        end = offset + max(stored, needed or 0)
        raise ModelError(
            f"{subject}, but {str(path)!r} is truncated: {end} bytes are needed, it has {size}",
            hint="copy or export the data file again",
        )


def _resolve(location: str, folder: Path, subject: str) -> Path:
    """Return the real path of a location, which must not leave the folder."""
    hint = "external data must lie in the model's folder, under a relative path"
    if Path(location).is_absolute() or PureWindowsPath(location).drive or not location:
        raise ModelError(f"{subject}, which is not a relative path", hint=hint)
    base = folder.resolve()
    path = (base / location).resolve()
    if ".." in Path(location).parts or not path.is_relative_to(base):
        raise ModelError(f"{subject}, which leaves the model's folder {str(base)!r}", hint=hint)
    return path
