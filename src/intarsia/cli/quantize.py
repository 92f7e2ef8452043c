# SPDX-License-Identifier: Apache-2.0
"""`intarsia quantize MODEL --calibrate FILE.npz`: a model in int8 or int4, and how good it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import writable
from intarsia.cli.models import model_of, progress_bar
from intarsia.cli.options import (
    Choices,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    read_shapes,
    takes_choices,
)
from intarsia.cli.output import note, show, show_json, size_text, write

if TYPE_CHECKING:
    from intarsia.quantizing.quantize import QuantizationReport


@takes_choices("shape", "external_data_root")
def quantize_command(  # noqa: PLR0913 - an option each
    model: ModelArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Model to write. Default: MODEL.int8.onnx here."
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TYPE", help="int8: weights and activations; int4: weights of MatMul."
        ),
    ] = "int8",
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibrate",
            metavar="FILE.npz",
            help="Real inputs, an array by the name of each input, of which the first axis counts "
            "samples; or a folder of such files. Every fourth sample is held out for the trial.",
        ),
    ] = None,
    validate: Annotated[
        list[Path] | None,
        typer.Option(
            "--validate",
            metavar="FILE.npz",
            help="Real inputs for the trial; all of --calibrate then serve for ranges.",
        ),
    ] = None,
    max_error: Annotated[
        float,
        typer.Option(
            "--max-error",
            metavar="SHARE",
            help="Largest relative error of an output over the trial (root of the squared "
            "differences over that of the squared values); the worst nodes stay in f32 for it.",
        ),
    ] = 0.1,
    quantizer: Annotated[
        str, typer.Option("--quantizer", metavar="NAME", help="onnxruntime or nncf.")
    ] = "onnxruntime",
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic", help="Of int8: read ranges of activations from each run."),
    ] = False,
    per_channel: Annotated[
        bool,
        typer.Option(
            "--per-channel/--per-tensor", help="Of int8: a scale for each channel of weights."
        ),
    ] = True,
    reduce_range: Annotated[
        bool,
        typer.Option(
            "--reduce-range",
            help="Of int8: weights of 7 bits, for runtimes whose sums saturate on CPUs without "
            "VNNI. Ours do not.",
        ),
    ] = False,
    ranges: Annotated[
        str,
        typer.Option(
            "--ranges",
            metavar="METHOD",
            help="Of int8 by onnxruntime: minmax, entropy or percentile.",
        ),
    ] = "minmax",
    block: Annotated[
        int, typer.Option("--block", metavar="N", help="Of int4: weights that share a scale.")
    ] = 32,
    form: Annotated[
        str,
        typer.Option(
            "--form",
            metavar="OPERATOR",
            help="Of int4 by onnxruntime: MatMulNBits, or ONNX's own DequantizeLinear (opset 21).",
        ),
    ] = "MatMulNBits",
    choices: Choices,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seeds the samples if none are given.")
    ] = 0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Quantise a model by ONNX Runtime or NNCF, check its error, and keep the worst nodes in f32.

    Exit code 1 if the bound holds only with everything in f32. What was measured is kept: after
    Ctrl-C the same command goes on.
    """
    file = writable(output or Path(f"{model.stem}.{to}.onnx"), source=model)
    from intarsia.quantizing.quantize import quantize

    with progress_bar() as progress:
        quantized = quantize(
            model_of(model, choices),
            to,
            calibrate=calibrate or None,
            validate=validate or None,
            max_error=max_error,
            quantizer=quantizer,
            dynamic=dynamic,
            per_channel=per_channel,
            reduce_range=reduce_range,
            ranges=ranges,
            block=block,
            form=form,
            shapes=read_shapes(choices.shape),
            seed=seed,
            num_threads=threads,
            progress=progress,
        )
    quantized.save(file)
    if json:
        show_json({"file": str(file), "report": quantized.report, "error": quantized.report.error})
    else:
        _show(file, quantized.report)


def _show(file: Path, report: QuantizationReport) -> None:
    from intarsia.report.quantizing import quantizing_view

    if report.is_made_up:
        note("no --calibrate given: the error is that on made-up values, and says little")
    elif not report.is_held_out:
        note("fewer than 4 samples: the error is that on the samples that ranges come from")
    show(quantizing_view(report))
    sizes = f"{size_text(report.quantized_nbytes)}, in f32 {size_text(report.nbytes)}"
    write(f"wrote {file} ({sizes})\n")
