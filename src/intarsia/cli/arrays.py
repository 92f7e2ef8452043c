# SPDX-License-Identifier: Apache-2.0
"""Reads and writes `.npy` files, and reads `.npz` files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from intarsia.errors import InputError, SettingError
from intarsia.files import whole_file, writing_hint


def read_arrays(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the array of each file, by the name of the input.

    Raises:
        InputError: A file is missing, or is no `.npy` file of plain data.
    """
    return {name: _read(name, file) for name, file in files.items()}


def _read(name: str, file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            return np.lib.format.read_array(opened, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(
            f"input {name!r}: there is no file {str(file)!r}", hint="check the path"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"input {name!r}: {str(file)!r} is not a .npy file: {reason}",
            hint="write it with numpy.save(FILE, array, allow_pickle=False)",
        ) from None


def read_archive(file: Path) -> dict[str, Any]:
    """Return the arrays of an `.npz` file, by name.

    Raises:
        InputError: It is missing, or no `.npz` file of plain data.
    """
    try:
        with np.load(file, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {str(file)!r}", hint="check the path") from None
    except (OSError, ValueError, EOFError, AttributeError, BadZipFile) as error:
        raise InputError(
            f"{str(file)!r} is not an .npz file: {error}",
            hint="write it with numpy.savez(FILE, NAME=array)",
        ) from None


def write_arrays(outputs: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Write each output that has a file.

    Raises:
        SettingError: A file cannot be written.
        InputError: An output is not a tensor.
    """
    for name, file in files.items():
        value = outputs[name]
        if not isinstance(value, np.ndarray | np.generic):
            raise InputError(
                f"output {name!r} is a {type(value).__name__}, which no .npy file can hold",
                hint="leave it out of --output",
            )
        array = np.asarray(value, dtype=str) if value.dtype == object else np.asarray(value)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as draft, draft.open("wb") as opened:
                np.save(opened, array, allow_pickle=False)
        except OSError as error:
            raise SettingError(
                f"cannot write {str(file)!r}: {error.strerror or error}",
                hint=writing_hint(error),
            ) from error
