# SPDX-License-Identifier: Apache-2.0
"""What `--emit` writes instead of a package."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from intarsia.cli.attributes import read_attributes
from intarsia.cli.files import writable_folder
from intarsia.cli.options import Choices, read_shapes
from intarsia.cli.output import show_json, size_text, write
from intarsia.errors import SettingError


class Emit(StrEnum):
    """What `intarsia compile` writes."""

    PACKAGE = "package"
    C = "c"
    SHARED = "shared"


_ALLOWED = ("--target", "--target-attr", "--shape")
"""Options that mean something without a plan."""


def write_program(
    model: Path, emit: Emit, folder: Path | None, choices: Choices, *, json: bool
) -> None:
    """Write a model as C or as a shared library, and say which files that made.

    Raises:
        SettingError: An option is given that a program of one region has no use for.
        IntarsiaError: As `intarsia.export.export_c` and `export_shared`.
    """
    from intarsia.backends.registry import load_backends
    from intarsia.compiler import resolve_targets
    from intarsia.export import export_c, export_shared

    idle = [option for option in choices.given if option not in _ALLOWED]
    if idle:
        raise SettingError(
            f"{idle[0]} has no meaning with --emit {emit}: the whole model is one region",
            hint="leave it out, or write a package",
        )
    writable_folder(folder or Path())
    backends = load_backends()
    export = export_c if emit is Emit.C else export_shared
    files = export(
        model,
        folder or Path(),
        resolve_targets(
            choices.target or "llvm", None, backends, read_attributes(choices.target_attr)
        ),
        shapes=read_shapes(choices.shape),
        backends=backends,
    )
    sizes = [(str(file), file.stat().st_size) for file in files]
    if json:
        show_json({"files": [{"file": file, "nbytes": nbytes} for file, nbytes in sizes]})
        return
    for file, nbytes in sizes:
        write(f"wrote {file} ({size_text(nbytes)})\n")
