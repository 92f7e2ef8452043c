# SPDX-License-Identifier: Apache-2.0
"""A GGUF file: what it says about its model, and its tensors, as the `gguf` package reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import ModelError
from intarsia.graph.gguf.blocks import DECODERS, Floats

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderField, ReaderTensor

GGUF_MAGIC = b"GGUF"
_FLOATS = ("F32", "F16", "BF16")


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins as GGUF files do; a file that cannot be read does not."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Container:
    """A GGUF file whose tensors are mapped into memory.

    Attributes:
        path: Where it is.
        fields: What it says about its model, by key.
        tensors: By name.
    """

    path: Path
    fields: Mapping[str, ReaderField]
    tensors: Mapping[str, ReaderTensor]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Container:
        """Open a file.

        Raises:
            ModelError: The `gguf` package is missing, the file is damaged, or a tensor has a type
                that is not read.
        """
        try:
            import gguf
        except ImportError as error:
            raise ModelError(
                f"{os.fspath(path)!r} is a GGUF file, and gguf cannot be imported: {error}",
                hint="pip install 'intarsia[gguf]'",
            ) from error
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:  # of any kind where bytes are not what they should be
            raise ModelError(
                f"GGUF file {os.fspath(path)!r} is damaged, or of another version: {error}",
                hint="copy or convert the model again",
            ) from error
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        for tensor in tensors.values():
            _check_type(tensor)
        return cls(Path(path), reader.fields, tensors)

    def setting(self, key: str, default: Any = None) -> Any:
        """Return what the file says under a key.

        Raises:
            ModelError: It says nothing, and there is no default.
        """
        field = self.fields.get(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise self.error(f"says nothing under {key!r}", "convert the model again")
        return default

    def tensor(self, name: str, *shape: int) -> ReaderTensor:
        """Return a tensor of a shape, rows first.

        Raises:
            ModelError: There is none of the name, or it has another shape.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.error(f"has no tensor {name!r}", "convert the model again")
        found = tuple(tensor.shape.tolist()[::-1])
        if found != shape:
            sizes = ["x".join(map(str, one)) for one in (found, shape)]
            raise self.error(
                f"has a tensor {name!r} of {sizes[0]}, which should be {sizes[1]}",
                "convert the model again",
            )
        return tensor

    def error(self, complaint: str, hint: str) -> ModelError:
        """Return an error about the file."""
        return ModelError(f"GGUF file {str(self.path)!r} {complaint}", hint=hint)


def is_narrow(tensor: ReaderTensor) -> bool:
    """Tell whether a tensor is in blocks of narrow numbers."""
    return tensor.tensor_type.name in DECODERS


def numbers(tensor: ReaderTensor) -> Floats:
    """Return what a tensor of any type holds, rows first."""
    from gguf import quants

    result: Floats = quants.dequantize(tensor.data, tensor.tensor_type)
    return result


def _check_type(tensor: ReaderTensor) -> None:
    kind = tensor.tensor_type.name
    if kind not in (*_FLOATS, *DECODERS):
        raise ModelError(
            f"tensor {tensor.name!r} is of GGUF's type {kind}, which is not read",
            hint=f"give a file of {', '.join((*_FLOATS, *DECODERS))}, for example one that"
            " llama-quantize made as Q4_0 or Q4_K_M",
        )
