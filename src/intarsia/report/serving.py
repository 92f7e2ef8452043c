# SPDX-License-Identifier: Apache-2.0
"""What a server would serve, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from intarsia.report.tables import make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.serving.values import IndexEntry, ModelMetadata, TensorMetadata


def served_table(
    entries: Iterable[IndexEntry], loaded: Mapping[str, ModelMetadata]
) -> RenderableType:
    """Return a row per model.

    Args:
        entries: The models of the repository.
        loaded: Those that are loaded, by name.
    """
    rows = []
    for entry in entries:
        metadata = loaded.get(entry.name)
        ends = ((), ()) if metadata is None else (metadata.inputs, metadata.outputs)
        state = entry.reason or entry.state.value.lower()
        rows.append((entry.name, state, *("\n".join(map(_text, specs)) for specs in ends)))
    return make_table("models", ("name", "state", "inputs", "outputs"), rows)


def _text(spec: TensorMetadata) -> str:
    dims = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{spec.name}: {spec.datatype}[{dims}]"
