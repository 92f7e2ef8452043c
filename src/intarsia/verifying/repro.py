# SPDX-License-Identifier: Apache-2.0
"""Writes the smallest model that shows a fault: a folder that can be handed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import SettingError
from intarsia.files import writing_hint
from intarsia.verifying.values import SmallestModel

if TYPE_CHECKING:
    from intarsia.verifying.reducing import ReducedModel

MODEL, INPUTS, README = "model.onnx", "inputs.npz", "README.md"


def write_repro(
    folder: Path, reduced: ReducedModel, suspect: str, against: str, trials: int, runs: int
) -> SmallestModel:
    """Write the model, its inputs and how to see the fault, and return what was written.

    Args:
        folder: Where; made if it is not there.
        reduced: The model.
        suspect: The side that is wrong.
        against: The side that is right.
        trials: How many models were tried.
        runs: How many runs it takes.

    Raises:
        SettingError: Nothing can be written there.
    """
    more = f" --runs {runs}" if runs > 1 else ""
    command = (
        f"intarsia verify {MODEL} --inputs {INPUTS} --against {against!r} --suspect {suspect!r}"
        f"{more}"
    )
    shapes = ", ".join(
        f"{name}: {np.asarray(a).dtype}{list(np.shape(a))}" for name, a in reduced.feeds.items()
    )
    text = (
        f"# {suspect}: {reduced.fault.symptom}\n\n"
        f"    {command}\n\n"
        f"{reduced.fault}.\n\n"
        f"Nodes: {', '.join(reduced.operators)} (cut from {', '.join(reduced.nodes)}).\n"
        f"Inputs: {shapes}.\n"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MODEL).write_bytes(reduced.model)
        arrays = {name: np.asarray(array) for name, array in reduced.feeds.items()}
        with (folder / INPUTS).open("wb") as opened:
            np.savez(opened, allow_pickle=False, **arrays)
        (folder / README).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"cannot write to {str(folder)!r}: {error.strerror or error}",
            hint=writing_hint(error, "give a folder that can be written: --out DIR"),
        ) from error
    return SmallestModel(
        str(folder),
        len(reduced.nodes),
        reduced.operators,
        reduced.first,
        reduced.fault,
        trials,
        command,
    )
