# SPDX-License-Identifier: Apache-2.0
"""`intarsia compile MODEL`: compile a model and write a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.emit import Emit, write_program
from intarsia.cli.files import readable_model, writable
from intarsia.cli.models import compile_file
from intarsia.cli.options import (
    Choices,
    ExcludeOption,
    FrozenOption,
    HostOption,
    JsonOption,
    LayerOption,
    NoCacheOption,
    NoProbeOption,
    PinOption,
    PlacementOption,
    ShapeOption,
    StrictOption,
    TargetAttrOption,
    TargetFileOption,
    TargetOption,
    ThreadsOption,
)
from intarsia.cli.output import show, show_json, size_text, write


def compile_command(  # noqa: PLR0913 - an option each
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="The ONNX model.", show_default=False, callback=readable_model
        ),
    ],
    *,
    target: TargetOption = None,
    target_file: TargetFileOption = None,
    target_attr: TargetAttrOption = None,
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
            help="What to write: a package, C99 source, or a shared library and its header.",
        ),
    ] = Emit.PACKAGE,
    host: HostOption = None,
    shape: ShapeOption = None,
    pin: PinOption = None,
    exclude: ExcludeOption = None,
    layer: LayerOption = None,
    placement: PlacementOption = "auto",
    strict: StrictOption = False,
    frozen: FrozenOption = None,
    threads: ThreadsOption = None,
    annotate: Annotated[
        Path | None,
        typer.Option("--annotate", metavar="OUT.onnx", help="Also write the model, annotated."),
    ] = None,
    no_cache: NoCacheOption = False,
    no_probe: NoProbeOption = False,
    json: JsonOption = False,
) -> None:
    """Compile an ONNX model and write a package, or a program that needs no Python."""
    from intarsia.runtime.package import PACKAGE_SUFFIX

    if emit is not Emit.PACKAGE:
        choices = Choices(target, host, shape, pin, exclude, placement, strict, layer, target_attr)
        write_program(model, emit, output, choices, json=json)
        return
    file = writable(output or Path(f"{model.stem}{PACKAGE_SUFFIX}"), source=model)
    if annotate is not None:
        writable(annotate, is_made=True)
    choices = Choices(
        *(target, host, shape, pin, exclude, placement, strict, layer, target_attr, frozen),
        no_cache=no_cache,
        no_probe=no_probe,
    )
    executable = compile_file(model, choices, threads)
    executable.save(file)
    if annotate is not None:
        from intarsia.place.foreign import annotate as write_back
        from intarsia.place.foreign import save_annotated

        save_annotated(write_back(model, executable), annotate)
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
