# SPDX-License-Identifier: Apache-2.0
"""`intarsia compile MODEL`: compile a model and write a package, or what `--emit` names instead."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import writable, writable_folder
from intarsia.cli.models import compile_file, make_request, model_of
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    Choices,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    takes_choices,
)
from intarsia.cli.output import show, show_json, size_text, write
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.codegen.emit.c_memory import Footprint
    from intarsia.native.ptxas import KernelResources


class Emit(StrEnum):
    """What `intarsia compile` writes."""

    PACKAGE = "package"
    C = "c"
    OBJECT = "object"
    SHARED = "shared"
    EXECUTABLE = "executable"
    PTX = "ptx"


_EMITTED = {
    ".c": Emit.C,
    ".o": Emit.OBJECT,
    ".so": Emit.SHARED,
    ".dylib": Emit.SHARED,
    ".dll": Emit.SHARED,
    ".exe": Emit.EXECUTABLE,
    ".ptx": Emit.PTX,
}
"""By the suffix that nobody gives to a package, what to emit instead."""

_ALLOWED = (
    *("--target", "--target-attr", "--shape", "--no-cache", "--no-probe", "--placement"),
    "--external-data-root",
)
"""Options that mean something for a program that needs no Python."""


@takes_choices(
    *(*MACHINE, *NODES, *BUCKETS, "placement", "strict", "frozen", "no_cache", "no_probe"),
    *("max_memory", "careful"),
)
def compile_command(
    model: ModelArgument,
    *,
    choices: Choices,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Package to write, or folder of what --emit writes. Default: MODEL.intarsia here.",
        ),
    ] = None,
    emit: Annotated[
        Emit,
        typer.Option(
            "--emit",
            help="What to write: a package; C99 source; for the machine of the target, an "
            "object, a shared library or a program, with a header; or the kernels as PTX.",
        ),
    ] = Emit.PACKAGE,
    no_model: Annotated[
        bool,
        typer.Option(
            "--no-model",
            help="Leave the model out of a package with code: it then runs only where somebody "
            "vouches for it.",
        ),
    ] = False,
    threads: ThreadsOption = None,
    annotate: Annotated[
        Path | None,
        typer.Option("--annotate", metavar="OUT.onnx", help="Also write the model, annotated."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compile an ONNX model and write a package, or a program that needs no Python."""
    from intarsia.runtime.package import PACKAGE_SUFFIX

    if no_model and emit is not Emit.PACKAGE:
        raise SettingError("--no-model is for packages", hint="leave it out")
    if emit is Emit.PACKAGE and output is not None and output.suffix in _EMITTED:
        raise SettingError(
            f"{str(output)!r} would be a package: what {output.suffix} says is written with --emit",
            hint=f"--emit {_EMITTED[output.suffix]} -o FOLDER, or name it "
            f"{output.with_suffix(PACKAGE_SUFFIX).name}",
        )
    if emit is not Emit.PACKAGE:
        _write_program(model, emit, output, choices, threads, json=json)
        return
    file = writable(output or Path(f"{model.stem}{PACKAGE_SUFFIX}"), source=model)
    if annotate is not None:
        writable(annotate, is_made=True)
    compiled = compile_file(model, choices, threads)
    compiled.save(file, has_model=not no_model)
    executable = compiled.program
    if annotate is not None:
        from intarsia.place.annotated_model import annotate as write_back
        from intarsia.place.annotated_model import save_annotated

        save_annotated(write_back(model_of(model, choices), executable), annotate)
    nbytes = file.stat().st_size
    explanation = executable.explain()
    if json:
        show_json(
            {
                "file": str(file),
                "nbytes": nbytes,
                "annotated": None if annotate is None else str(annotate),
                "explanation": explanation,
            }
        )
        return
    from intarsia.report.tables import placement_table

    show(placement_table(explanation.placement))
    write(f"{explanation.summary}\nwrote {file} ({size_text(nbytes)})\n")
    if annotate is not None:
        write(f"wrote {annotate}\n")


def _write_program(
    model: Path,
    emit: Emit,
    folder: Path | None,
    choices: Choices,
    threads: int | None,
    *,
    json: bool,
) -> None:
    """Write a model as C or as machine code, and say which files that made.

    Raises:
        SettingError: An option is given that a program of one region has no use for.
        IntarsiaError: As `intarsia.export.write_program`.
    """
    from intarsia.export import DEFAULT_TARGET, Product, write_program

    idle = [option for option in choices.given if option not in _ALLOWED]
    if idle:
        raise SettingError(
            f"{idle[0]} has no meaning with --emit {emit}: the whole model is one program",
            hint="leave it out, or write a package",
        )
    writable_folder(folder or Path())
    request = make_request(model, choices, threads or 1, target=choices.target or DEFAULT_TARGET)
    needs: list[Footprint] = []
    files = write_program(request, folder or Path(), Product(emit), tell=needs.append)
    sizes = [(str(file), file.stat().st_size) for file in files]
    if json:
        listed = [{"file": file, "nbytes": nbytes} for file, nbytes in sizes]
        kernels = _resources(files[0].read_text()) if emit is Emit.PTX else ()
        memory, counted = {"memory": needs[0]} if needs else {}, {"kernels": kernels}
        show_json({"files": listed, **memory, **(counted if kernels else {})})
        return
    for file, nbytes in sizes:
        write(f"wrote {file} ({size_text(nbytes)})\n")
    for need in needs:
        write(f"{need}\n")
    if emit is Emit.PTX:
        for kernel in _resources(files[0].read_text()):
            write(f"{kernel}\n")


def _resources(ptx: str) -> Sequence[KernelResources]:
    """Return what kernels need of a GPU, if there is an assembler that counts it."""
    from intarsia.native.ptxas import assemble, find_ptxas

    return () if find_ptxas() is None else assemble(ptx)
