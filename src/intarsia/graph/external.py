# SPDX-License-Identifier: Apache-2.0
"""Check that a model's external data lies where it may and is all there.

It may lie in the model's folder, and in one more if the user says so (`ModelFile`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath

import onnx
import onnx_ir as ir
from onnx.external_data_helper import ExternalDataInfo

from intarsia.errors import ModelError
from intarsia.files import ModelFile
from intarsia.graph.tensors import all_tensors


def check_external_data(
    proto: onnx.ModelProto, folder: Path | None, root: Path | None = None
) -> dict[str, Path]:
    """Check every external tensor of the model, without reading its data.

    Args:
        proto: The model.
        folder: The model file's folder; None if the model came without one.
        root: A folder outside of which, and of the model's own, nothing may lie; None means the
            model's own alone.

    Returns:
        By what the model says, the real path of each file.

    Raises:
        ModelError: A path leaves the folders, or is absolute without a root, a file is missing or
            too short, there is no folder to look in, or a tensor of the model's own has too few
            bytes for its shape.
    """
    files: dict[str, Path] = {}
    for tensor in all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            info = ExternalDataInfo(tensor)
            files[info.location] = _check(tensor, info, folder, root)
        else:
            _check_inline(tensor)
    return files


def root_of(model: object) -> Path | None:
    """Return the folder in which external data of a model may lie beside its own; or None.

    Raises:
        ModelError: There is no such folder.
    """
    if not isinstance(model, ModelFile):
        return None
    if not model.data_root.is_dir():
        raise ModelError(
            f"there is no folder {str(model.data_root)!r} for external data",
            hint="give the folder in which the data lies: --external-data-root DIR",
        )
    return model.data_root.resolve()


def read_in(proto: onnx.ModelProto, files: Mapping[str, Path]) -> None:
    """Read external data into a model, in place.

    Args:
        proto: The model.
        files: What `check_external_data` returned.
    """
    for tensor in all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        info = ExternalDataInfo(tensor)
        with files[info.location].open("rb") as opened:
            opened.seek(info.offset or 0)
            tensor.raw_data = opened.read(-1 if info.length is None else info.length)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT


def set_location(tensor: onnx.TensorProto, path: Path) -> None:
    """Have a tensor say the real path of its data."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = str(path)


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


def _check(
    tensor: onnx.TensorProto, info: ExternalDataInfo, folder: Path | None, root: Path | None
) -> Path:
    subject = f"tensor {tensor.name!r} keeps its data in {info.location!r}"
    if folder is None:
        raise ModelError(
            f"{subject}, but the model came without a folder",
            hint="load it from its path, or load the data first with onnx.load",
        )
    path = _resolve(info.location, folder, root, subject)
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
    return path


def _resolve(location: str, folder: Path, root: Path | None, subject: str) -> Path:
    """Return the real path of a location, which must not leave the folder, nor the root.

    With a root, data is looked for where the model says, then under the root.
    """
    if root is not None and location:
        base = folder.resolve()
        places = [(base / location).resolve(), (root / location).resolve()]
        allowed = [
            place for place in places if place.is_relative_to(base) or place.is_relative_to(root)
        ]
        found = next((place for place in allowed if place.is_file()), None)
        if found is not None or allowed:
            return found or allowed[0]
        raise ModelError(
            f"{subject}, which leaves the model's folder {str(base)!r} and {str(root)!r}",
            # Not the folder's name: the model chose it.
            hint="if you trust this model, name the folder in which it lies: "
            "--external-data-root DIR",
        )
    hint = (
        "external data must lie in the model's folder, under a relative path; where you vouch for "
        "another folder, name it: --external-data-root DIR"
    )
    if Path(location).is_absolute() or PureWindowsPath(location).drive or not location:
        raise ModelError(f"{subject}, which is not a relative path", hint=hint)
    base = folder.resolve()
    path = (base / location).resolve()
    if ".." in Path(location).parts or not path.is_relative_to(base):
        raise ModelError(f"{subject}, which leaves the model's folder {str(base)!r}", hint=hint)
    return path
