# SPDX-License-Identifier: Apache-2.0
"""Files that commands are given: looked at before any work is done that would be lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

from intarsia.errors import SettingError
from intarsia.files import is_special

STANDARD = "-"
"""The file name by which other programs mean standard input or output."""


def readable_model(file: Path) -> Path:
    """Return the file of a model.

    Raises:
        SettingError: It is standard input, or a pipe.
    """
    if str(file) == STANDARD or is_special(file):
        source = "standard input" if str(file) == STANDARD else "a pipe"
        raise SettingError(
            f"a model cannot be read from {source}",
            hint="write it to a file first (cat > model.onnx), and give that",
        )
    return file


def writable(file: Path, *, is_made: bool = False, source: Path | None = None) -> Path:
    """Check that a file can be written, and return it.

    Args:
        file: Its name.
        is_made: Whether folders that are missing will be made.
        source: The model that it is made of, which it must not take the place of.

    Raises:
        SettingError: It is standard output, a device, a folder or the model, or its folder is
            missing or not writable.
    """
    _refuse_standard(file)
    folder = file.parent
    if is_special(file):
        raise SettingError(
            f"cannot write {str(file)!r}: it is not a regular file", hint="give the name of a file"
        )
    if source is not None and file.exists() and source.exists() and file.samefile(source):
        raise SettingError(f"{str(file)!r} is the model itself", hint="give another name")
    if file.is_dir():
        raise SettingError(f"cannot write {str(file)!r}: it is a folder", hint=f"give {file}/NAME")
    if is_made:
        _try_to_write(_nearest(folder), file)
    elif not folder.exists():
        raise SettingError(
            f"cannot write {str(file)!r}: there is no folder {str(folder)!r}",
            hint=f"make it first: mkdir -p {folder}",
        )
    else:
        _try_to_write(folder, file)
    return file


def writable_folder(folder: Path) -> Path:
    """Check that a folder can be written or made, and return it.

    Raises:
        SettingError: It is standard output, or it cannot be made or written.
    """
    _refuse_standard(folder)
    _try_to_write(_nearest(folder), folder)
    return folder


def writable_plot(file: Path) -> Path:
    """Check that a figure can be drawn into a file, and return it.

    Raises:
        SettingError: As `writable`, its suffix is none of a figure, or matplotlib is not here.
    """
    from intarsia.report.plots import check_plot  # most commands draw nothing

    check_plot(file)
    return writable(file)


def _nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one around it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _refuse_standard(file: Path) -> None:
    if str(file) == STANDARD:
        raise SettingError("nothing is written to standard output", hint="give the name of a file")


def _try_to_write(folder: Path, file: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}",
            hint="choose a writable folder",
        ) from error
