# SPDX-License-Identifier: Apache-2.0
"""`intarsia verify FILE`: whether a program computes what its model says, and where it does not.

`intarsia reduce MODEL`: the smallest model that still shows a fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.files import readable_model, writable_folder
from intarsia.cli.models import installed_backends, make_request, model_of
from intarsia.cli.options import (
    MACHINE,
    NODES,
    Choices,
    FileArgument,
    InputOption,
    IsolateOption,
    JsonOption,
    ThreadsOption,
    TrustOption,
    read_files,
    read_shapes,
    takes_choices,
)
from intarsia.cli.output import note, show, show_json, write
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.verifying.values import Bisection, SmallestModel, Verification

NpzOption = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="All inputs, as numpy.savez writes them."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", help="Seeds the inputs if none is given.")
]
SuspectOption = Annotated[
    str | None,
    typer.Option(
        "--suspect",
        metavar="SIDE",
        help="What is doubted: a target of ours, or a library by its own API.",
    ),
]
AgainstOption = Annotated[
    str, typer.Option("--against", metavar="SIDE", help="What is right: likewise, or reference.")
]
LimitOption = Annotated[
    float,
    typer.Option(
        "--limit",
        metavar="SECONDS",
        min=0.1,
        help="A call of a region, or a model, that takes longer hangs.",
    ),
]
ReduceOption = Annotated[
    float,
    typer.Option(
        "--reduce-for", metavar="SECONDS", min=0.0, help="How long to make the model smaller."
    ),
]


@takes_choices(*MACHINE, *NODES, "placement")
def verify_command(  # noqa: PLR0913 - an option each
    file: FileArgument,
    *,
    against: AgainstOption = "reference",
    suspect: SuspectOption = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="MODEL", help="Of a package: the model that it was compiled from."
        ),
    ] = None,
    inputs: InputOption = None,
    inputs_file: NpzOption = None,
    seed: SeedOption = 0,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            metavar="N",
            min=1,
            help="Monitored runs; by default 3, and 1 with --suspect.",
        ),
    ] = None,
    limit: LimitOption = 600.0,
    reduce_for: ReduceOption = 600.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where the smallest model goes."),
    ] = None,
    trust: TrustOption = False,
    isolate: IsolateOption = None,
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a program, and compare what each region makes of its inputs with the ONNX reference.

    Exit code 1 if anything is wrong: numbers, shapes, NaN, time, memory, a crash, a hang. With
    --out, the smallest model that shows the first fault is written. With --suspect, nothing is
    placed: the model runs on two sides as it is, and the first node is looked for at which they
    part.
    """
    feeds = _read_inputs(inputs, inputs_file)
    if out is not None:
        writable_folder(out)
    if suspect is not None:
        found = _bisect(
            *(file, suspect, against, feeds, choices, out or Path("smallest")),
            threads=threads or 1,
            runs=runs or 1,
            seed=seed,
            seconds=reduce_for,
            side_seconds=min(limit, 60.0),
        )
        _show_bisection(found, as_json=json)
        raise typer.Exit(0 if found.fault is None else 1)
    if against != "reference":
        raise SettingError(
            "--against names one of two sides, and there is no other",
            hint="name what is doubted too: --suspect openvino",
        )
    from intarsia.verifying.verify import RUNS, VerifyOptions, verify

    options = VerifyOptions(
        runs=runs or RUNS,
        run_seconds=limit,
        side_seconds=min(limit, 60.0),
        reduce_seconds=reduce_for,
        out=out,
        seed=seed,
        trust=trust,
        isolate=tuple(isolate or ()),
    )
    verification = verify(
        file,
        _request(file, model, choices, threads),
        feeds=feeds,
        options=options,
        threads=threads,
    )
    _show_verification(verification, as_json=json)
    if not verification.agrees:
        raise typer.Exit(1)


@takes_choices("shape", "external_data_root")
def reduce_command(  # noqa: PLR0913 - an option each
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX model.", show_default=False, callback=readable_model
        ),
    ],
    *,
    suspect: SuspectOption = None,
    against: AgainstOption = "reference",
    inputs: InputOption = None,
    inputs_file: NpzOption = None,
    seed: SeedOption = 0,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, help="Runs of each model.")
    ] = 1,
    limit: LimitOption = 60.0,
    reduce_for: ReduceOption = 600.0,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where the smallest model goes.")
    ] = Path("smallest"),
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Cut a model that shows a fault to the fewest nodes and the smallest shapes that still do.

    It is what `verify --suspect` does; here a model that shows none is bad input (exit code 2).
    """
    if suspect is None:
        raise SettingError(
            "nothing is doubted", hint="name what fails: --suspect openvino, --suspect 'llvm'"
        )
    feeds = _read_inputs(inputs, inputs_file)
    writable_folder(out)
    found = _bisect(
        *(model, suspect, against, feeds, choices, out),
        threads=threads or 1,
        runs=runs,
        seed=seed,
        seconds=reduce_for,
        side_seconds=limit,
    )
    if found.fault is None:
        raise SettingError(
            f"{found.suspect} does nothing that {found.against} does not do",
            hint="give the inputs that show it: --inputs FILE.npz, and more --runs",
        )
    _show_bisection(found, as_json=json)


def _request(file: Path, model: Path | None, choices: Choices, threads: int | None) -> Any:
    """Return what is asked for; None of a package, which knows it."""
    from intarsia.runtime.package import is_package

    if is_package(file):
        if model is None:
            from intarsia.cli.models import refuse_choices

            refuse_choices(file, choices)
            return None
        return make_request(model, choices, threads)
    if model is not None:
        raise SettingError(
            f"--model is for packages, and {str(file)!r} is a model", hint="leave it out"
        )
    return make_request(file, choices, threads)


def _read_inputs(inputs: list[str] | None, file: Path | None) -> dict[str, Any] | None:
    from intarsia.cli.arrays import read_archive, read_arrays

    files = read_files("--input", inputs)
    if not files and file is None:
        return None
    return {**({} if file is None else read_archive(file)), **read_arrays(files)}


def _bisect(
    model: Path,
    suspect: str,
    against: str,
    feeds: dict[str, Any] | None,
    choices: Choices,
    out: Path,
    **more: Any,
) -> Bisection:
    from intarsia.verifying.bisecting import bisect
    from intarsia.verifying.sides import check_side

    backends = installed_backends()
    if feeds is None:
        note(f"no --input given: made-up values from seed {more['seed']}")
    return bisect(
        model_of(model, choices),
        check_side(suspect, backends),
        check_side(against, backends),
        feeds=feeds,
        shapes=read_shapes(choices.shape) or None,
        out=out,
        **more,
    )


def _show_bisection(found: Bisection, *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    if found.fault is None:
        write(f"{found.suspect} agrees with {found.against}\n")
        return
    write(f"{found.suspect} parts from {found.against} at {found.node!r} ({found.operator})\n")
    write(f"{found.fault}\n")
    if found.smallest is not None:
        _show_smallest(found.smallest)


def _show_smallest(smallest: SmallestModel) -> None:
    nodes = "1 node" if smallest.nodes == 1 else f"{smallest.nodes} nodes"
    write(f"smallest model: {nodes} ({', '.join(smallest.operators)}) in {smallest.folder}\n")
    write(f"  {smallest.command}\n")


def _show_verification(found: Verification, *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    from intarsia.report.tables import make_table

    rows = (
        (
            row.region,
            row.target,
            row.operators,
            row.unchecked or f"{row.error:.3g}",
            "" if row.worst is None else str(row.worst),
        )
        for row in found.regions
    )
    columns = ("region", "target", "operators", "error of what is tolerated", "worst element")
    show(make_table("regions against the reference", columns, rows))
    for fault in found.faults:
        write(f"{fault}\n")
    if found.smallest is not None:
        _show_smallest(found.smallest)
    elif found.note:
        write(f"{found.note}\n")
    verdict = "agrees with the reference" if found.agrees else "does not do what the model says"
    write(f"{found.file}: {verdict}\n")
