# SPDX-License-Identifier: Apache-2.0
"""Types as ONNX Runtime infers them, and libraries of custom operators."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import BackendError
from intarsia.settings import expanded

if TYPE_CHECKING:
    import onnx

_OUTER = re.compile(r"(tensor|sparse_tensor|seq|optional)\((.*)\)")


def read_type(text: str, shape: Sequence[int | str | None]) -> onnx.TypeProto | None:
    """Return a type of ONNX Runtime's as one of ONNX; None for those that we do not need.

    Args:
        text: Such as `tensor(float)` or `seq(tensor(int64))`.
        shape: Of a tensor. An empty one is not told apart from one that is not known, and so is
            taken for the latter.
    """
    import onnx

    matched = _OUTER.fullmatch(text)
    if matched is None:
        return None
    outer, inner = matched.groups()
    type_proto = onnx.TypeProto()
    if outer != "tensor":
        element = read_type(inner, ())
        if element is None or outer == "sparse_tensor":
            return None
        part = type_proto.sequence_type if outer == "seq" else type_proto.optional_type
        part.elem_type.CopyFrom(element)
        return type_proto
    if inner.upper() not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 - no mapping
        return None
    type_proto.tensor_type.elem_type = onnx.TensorProto.DataType.Value(inner.upper())
    for dim in shape:
        added = type_proto.tensor_type.shape.dim.add()
        if isinstance(dim, int) and dim >= 0:
            added.dim_value = dim
    return type_proto


def libraries_text(files: Iterable[str]) -> str:
    """Return libraries with digests of their contents as text that an artifact keeps.

    Raises:
        BackendError: One cannot be read.
    """
    paths = [str(expanded(file).absolute()) for file in files]
    return json.dumps({path: _digest_now(path) for path in paths}) if paths else ""


def check_libraries(text: str) -> list[str]:
    """Return the files of `libraries_text`, if they are what they were.

    Raises:
        BackendError: One is not there any more, or another.
    """
    digests: dict[str, str] = json.loads(text) if text else {}
    for path, digest in digests.items():
        if _digest_now(path) != digest:
            raise BackendError(
                f"the library of custom operators {path!r} is not the one that was compiled with",
                backend="onnxruntime",
                hint="compile the model again",
            )
    return list(digests)


def _digest_now(path: str) -> str:
    try:
        # Time and size are keys of the cache: a library that was built again is read again.
        changed = Path(path).stat()
        return _digest(path, changed.st_mtime_ns, changed.st_size)
    except OSError as error:
        raise BackendError(
            f"cannot read the library of custom operators {path!r}: {error.strerror or error}",
            backend="onnxruntime",
            hint="give the path of its file: onnxruntime -custom_ops=PATH",
        ) from error


@cache
def _digest(path: str, changed: int, size: int) -> str:
    """Return a digest of a file as it was when it had that time and size: parts of the key."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
