# SPDX-License-Identifier: Apache-2.0
"""The files that a laboratory and its workers share: the model, its values, a mark, artifacts.

Weights and values are mapped, so that every process sees one copy of them. Artifacts that took long
to compile outlive the worker that made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.graph.arena import ALIGNMENT
from intarsia.hashing import digest

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Value


_MODEL, _DATA, _VALUES, _MARK = "model.onnx", "model.data", "values.bin", "mark.bin"


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Where a value of the reference run lies.

    Attributes:
        value: Its id in the graph.
        dtype: Element type, by its numpy or ml_dtypes name.
        shape: Dimensions, as they came out.
        offset: Bytes from the start of the file.
    """

    value: int
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np_dtype(self.dtype).itemsize


def write_model(graph: Graph, folder: Path) -> str:
    """Write a prepared model so that `open_model` makes the same graph; return its digest."""
    import onnx_ir as ir

    ir.save(graph.model, folder / _MODEL, external_data=_DATA, alignment=ALIGNMENT)
    return graph_digest(graph)


def open_model(folder: Path) -> Graph:
    """Return the graph of the model in a folder; its weights stay in their file."""
    import onnx_ir as ir

    from intarsia.graph.snapshot import snapshot

    return snapshot(ir.load(folder / _MODEL))


def graph_digest(graph: Graph) -> str:
    """Return a hash of what node and value ids mean in a graph."""
    nodes = (
        f"{node.name} {node.op_type} {node.inputs} {node.captured} {node.outputs}"
        for node in graph.nodes
    )
    values = (f"{value.name} {value.dtype} {value.shape}" for value in graph.values)
    return digest((*nodes, *values, f"{graph.inputs} {graph.outputs}"))


def lay_out(values: Iterable[Value]) -> tuple[StoredValue, ...]:
    """Return a place for each value of a known shape, one after another."""
    stored, offset = [], 0
    for value in values:
        if value.is_static and value.dtype != "string" and value.shape is not None:
            stored.append(StoredValue(value.id, value.dtype, value.shape, offset))
            offset += -(-max(1, stored[-1].nbytes) // ALIGNMENT) * ALIGNMENT
    return tuple(stored)


def map_values(
    folder: Path, stored: Iterable[StoredValue], *, is_new: bool = False
) -> dict[int, Array]:
    """Return the arrays of stored values, by value id.

    Args:
        folder: Where the file is, or is to be.
        stored: What lies where.
        is_new: Whether to make the file, and let the arrays be written.
    """
    every = tuple(stored)
    size = max((one.offset + one.nbytes for one in every), default=0) + ALIGNMENT
    file = folder / _VALUES
    pages = np.memmap(file, np.uint8, "w+" if is_new else "r", shape=(size,))
    return {
        one.value: np.asarray(pages)[one.offset : one.offset + one.nbytes]
        .view(np_dtype(one.dtype))
        .reshape(one.shape)
        for one in every
    }


class WorkerStage(IntEnum):
    """What a worker is doing."""

    IDLE = 0
    COMPILE = 1
    RUN = 2
    MEASURE = 3


class Mark:
    """What a worker is doing with which probe; it outlives the worker.

    Args:
        folder: Where the file is.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / _MARK
        self._cells = np.memmap(file, np.int64, "r+" if file.exists() else "w+", shape=(4,))

    def set(self, stage: WorkerStage, probe: int = -1) -> None:
        """Say what is being done, and with which probe."""
        self._cells[:2] = (stage, probe)

    def set_growth(self, probe: int, nbytes: int) -> None:
        """Say under which probe the process has grown most, and by how much."""
        self._cells[2:] = (probe, nbytes)

    def get_growth(self) -> tuple[int, int]:
        """Return the probe under which the process had grown most, and by how many bytes."""
        return int(self._cells[2]), int(self._cells[3])

    def get(self) -> tuple[WorkerStage, int]:
        """Return the stage and the probe that the worker reported last."""
        return WorkerStage(int(self._cells[0])), int(self._cells[1])


LEAST_KEPT_SECONDS = 0.3
"""Reading an artifact of a large model takes as long as compiling a small one."""


@dataclass(frozen=True, slots=True)
class _StoredConstant:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


_DECODER = msgspec.msgpack.Decoder(tuple[Artifact, list[_StoredConstant]])


class ArtifactStore:
    """Artifacts in a folder, by what they were made of.

    Args:
        folder: Private to one model and machine.
        least_seconds: What compiles faster is not kept.
    """

    def __init__(self, folder: Path, least_seconds: float = LEAST_KEPT_SECONDS) -> None:
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
            artifact, places = _DECODER.decode(file.read_bytes())
        except FileNotFoundError:
            return None
        pages = np.memmap(file.with_suffix(".constants"), np.uint8, "r")
        constants = []
        for one in places:
            dtype = np_dtype(one.dtype)
            nbytes = int(np.prod(one.shape, dtype=np.int64)) * dtype.itemsize
            data = np.asarray(pages)[one.offset : one.offset + nbytes].view(dtype)
            constants.append(ArtifactConstant(one.name, data.reshape(one.shape)))
        return replace(artifact, constants=tuple(constants))

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
        places, offset = [], 0
        with file.with_suffix(".constants").open("wb") as pages:
            for constant in artifact.constants:
                data = np.asarray(constant.data, order="C")
                pages.write(bytes(offset - pages.tell()))
                pages.write(data.reshape(-1).view(np.uint8).data)
                places.append(_StoredConstant(constant.name, data.dtype.name, data.shape, offset))
                offset = -(-pages.tell() // ALIGNMENT) * ALIGNMENT
            pages.write(bytes(1))  # an empty file cannot be mapped
        stored = replace(artifact, constants=(), metadata=dict(artifact.metadata)), places
        draft = file.with_suffix(".draft")
        draft.write_bytes(msgspec.msgpack.encode(stored))
        draft.rename(file)  # a worker may be killed at any time

    def _file(self, target: str, bits: int, border: str) -> Path:
        return self._folder / f"{digest((target, hex(bits), border))}.artifact"
