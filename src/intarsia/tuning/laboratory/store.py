# SPDX-License-Identifier: Apache-2.0
"""The files that a laboratory and its workers share: the model, its values, and a mark.

Weights and values are mapped, so that every process sees one copy of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.cost.key import digest
from intarsia.graph.arena import ALIGNMENT

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


def write_model(graph: Graph, folder: Path) -> None:
    """Write a prepared model so that `open_model` makes the same graph of it elsewhere."""
    import onnx_ir as ir

    ir.save(graph.model, folder / _MODEL, external_data=_DATA, alignment=ALIGNMENT)


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


class Stage(IntEnum):
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

    def set(self, stage: Stage, probe: int = -1) -> None:
        """Say what is being done, and with which probe."""
        self._cells[:2] = (stage, probe)

    def set_growth(self, probe: int, nbytes: int) -> None:
        """Say under which probe the process has grown most, and by how much."""
        self._cells[2:] = (probe, nbytes)

    def get_growth(self) -> tuple[int, int]:
        """Return the probe under which the process had grown most, and by how many bytes."""
        return int(self._cells[2]), int(self._cells[3])

    def get(self) -> tuple[Stage, int]:
        """Return what was said last."""
        return Stage(int(self._cells[0])), int(self._cells[1])
