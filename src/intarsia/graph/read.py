# SPDX-License-Identifier: Apache-2.0
"""Read a `ModelProto` from a file or from bytes, or say in one line why that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from intarsia.errors import ModelError
from intarsia.graph.gguf.container import GGUF_MAGIC

if TYPE_CHECKING:
    import os

_HINT = "give an ONNX model: a .onnx file, its bytes, an onnx.ModelProto or an onnx_ir.Model"
_IR_VERSION_TAG = b"\x08"
_ZIP = b"PK\x03\x04"


def read_file(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model file; external data stays where it is.

    Raises:
        ModelError: There is no such file, it cannot be read, or it is not an ONNX model.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ModelError(
            f"model file {str(file)!r} does not exist", hint=_near(file) or "check the path"
        ) from None
    except OSError as error:
        raise ModelError(
            f"model file {str(file)!r} cannot be read: {error.strerror}",
            hint="give the path of a .onnx file that you may read",
        ) from None
    return read_bytes(data, f"file {str(file)!r}")


def _near(file: Path) -> str:
    """Return a hint with files of nearly this name in its folder, or nothing."""
    from difflib import get_close_matches  # only a wrong name pays for it

    try:
        names = [other.name for other in file.parent.iterdir()]
    except OSError:
        return ""
    near = get_close_matches(file.name, names, n=2, cutoff=0.7)
    words = " or ".join(repr(str(file.parent / name)) for name in near)
    return f"did you mean {words}?" if near else ""


def read_bytes(data: bytes, source: str = "the bytes") -> onnx.ModelProto:
    """Parse a serialized model.

    Args:
        data: What a .onnx file holds.
        source: What the message calls it.

    Raises:
        ModelError: The bytes are not an ONNX model, or it is cut short.
    """
    if data.startswith(_ZIP):
        raise ModelError(
            f"{source} is an archive, not an ONNX model",
            hint="if it is a package, give it to `load` or `intarsia run`",
        )
    if data.startswith(GGUF_MAGIC):
        raise ModelError(
            f"{source} is a GGUF file, not an ONNX model",
            hint="give its path to `compile` or `intarsia compile`, which read it",
        )
    if not data:
        raise ModelError(f"{source} is empty, not an ONNX model", hint=_HINT)
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        if data.startswith(_IR_VERSION_TAG):
            raise ModelError(
                f"{source} begins like an ONNX model but is truncated or damaged"
                f" ({len(data)} bytes)",
                hint="copy or export the model again",
            ) from None
        raise ModelError(f"{source} is not an ONNX model", hint=_HINT) from None
    if not proto.HasField("graph"):
        what = "has no graph: it is truncated, or" if data[:1] == _IR_VERSION_TAG else "is"
        raise ModelError(f"{source} {what} not an ONNX model", hint=_HINT)
    return proto
