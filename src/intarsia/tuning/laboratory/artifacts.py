# SPDX-License-Identifier: Apache-2.0
"""Artifacts that took long to compile, kept in files: they outlive the worker that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from intarsia.arrays import np_dtype
from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.cost.key import digest
from intarsia.graph.arena import ALIGNMENT

LEAST_SECONDS = 0.3
"""Reading an artifact of a large model takes as long as compiling a small one."""


@dataclass(frozen=True, slots=True)
class _StoredConstant:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _StoredArtifact:
    backend: str
    version: str
    target: str
    payload: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[_StoredConstant, ...]
    metadata: Mapping[str, str]


class ArtifactStore:
    """Artifacts in a folder, by what they were made of.

    Args:
        folder: Private to one model and machine.
        least_seconds: What compiles faster is not kept.
    """

    def __init__(self, folder: Path, least_seconds: float = LEAST_SECONDS) -> None:
        self._folder = folder
        self._least_seconds = least_seconds

    def read(self, target: str, bits: int, border: str) -> Artifact | None:
        """Return the artifact of a region, its constants mapped; None if there is none.

        Args:
            target: Text of the target.
            bits: The region's.
            border: The layouts of its border; empty for plain ones.
        """
        file = self._file(target, bits, border)
        try:
            stored = msgspec.msgpack.decode(file.read_bytes(), type=_StoredArtifact)
        except FileNotFoundError:
            return None
        pages = np.memmap(file.with_suffix(".constants"), np.uint8, "r")
        constants = []
        for one in stored.constants:
            dtype = np_dtype(one.dtype)
            nbytes = int(np.prod(one.shape, dtype=np.int64)) * dtype.itemsize
            data = np.asarray(pages)[one.offset : one.offset + nbytes].view(dtype)
            constants.append(ArtifactConstant(one.name, data.reshape(one.shape)))
        return Artifact(
            *(stored.backend, stored.version, stored.target, stored.payload),
            *(stored.inputs, stored.outputs, tuple(constants), stored.metadata),
        )

    def write(
        self, target: str, bits: int, border: str, artifact: Artifact, seconds: float
    ) -> None:
        """Keep an artifact, if it is worth it.

        Args:
            target: Text of the target.
            bits: The region's.
            border: The layouts of its border; empty for plain ones.
            artifact: What compiling gave.
            seconds: What compiling took.
        """
        has_text = any(constant.data.dtype == object for constant in artifact.constants)
        if seconds < self._least_seconds or has_text:
            return
        file = self._file(target, bits, border)
        constants, offset = [], 0
        with file.with_suffix(".constants").open("wb") as pages:
            for constant in artifact.constants:
                data = np.asarray(constant.data, order="C")
                pages.write(bytes(offset - pages.tell()))
                pages.write(data.reshape(-1).view(np.uint8).data)
                constants.append(
                    _StoredConstant(constant.name, data.dtype.name, data.shape, offset)
                )
                offset = -(-pages.tell() // ALIGNMENT) * ALIGNMENT
            pages.write(bytes(1))  # an empty file cannot be mapped
        stored = _StoredArtifact(
            *(artifact.backend, artifact.version, artifact.target, artifact.payload),
            *(artifact.inputs, artifact.outputs, tuple(constants), dict(artifact.metadata)),
        )
        draft = file.with_suffix(".draft")
        draft.write_bytes(msgspec.msgpack.encode(stored))
        draft.rename(file)  # a worker may be killed at any time

    def _file(self, target: str, bits: int, border: str) -> Path:
        return self._folder / f"{digest((target, hex(bits), border))}.artifact"
