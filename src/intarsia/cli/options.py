# SPDX-License-Identifier: Apache-2.0
"""The options that several commands share, and how their texts are read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from intarsia.cli.completion import complete_target, complete_target_attr
from intarsia.cli.files import readable_model
from intarsia.errors import PlacementError, SettingError

if TYPE_CHECKING:
    from intarsia.tuning.objectives.objective import Objective

TargetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="TEXT",
        help="The machine: targets in order of priority, a tag, JSON, or a .toml or .json file. "
        "Default: what is found here.",
        autocompletion=complete_target,
    ),
]


def _add_target_files(paths: list[Path] | None) -> list[Path] | None:
    if paths:
        from intarsia.target import add_target_file

        add_target_file(*paths)
    return paths


TargetFileOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--target-file",
        metavar="FILE",
        callback=_add_target_files,
        is_eager=True,
        help="A file of tags and labels, in addition to INTARSIA_TARGETS and intarsia.toml.",
    ),
]
TargetAttrOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--target-attr",
        metavar="KIND:ATTR=VALUE",
        help="An attribute for every target of a kind; --target-KIND-ATTR=VALUE is the same.",
        autocompletion=complete_target_attr,
    ),
]
HostOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--host",
        "--target-host",
        metavar="TEXT",
        help="Target that runs the plan itself.",
        autocompletion=complete_target,
    ),
]
ShapeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1x3x224x224",
        help="Shape of an input that the model leaves free; or of a free dimension, its size "
        "(seq=128), or its bounds (batch=1..8).",
    ),
]
SizesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="NAME=16,128",
        help="Sizes of a free dimension to compile for at once; of several, each with each. "
        "Default: 1 for a batch, else 128, where some are needed.",
    ),
]
BucketOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--bucket",
        metavar="NAME=64,128",
        help="Sizes of a free dimension that inputs are padded up to: only where the model is "
        "right with padded inputs.",
    ),
]
PadValueOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pad-value", metavar="INPUT=VALUE", help="What an input is padded with. Default: 0."
    ),
]
PinOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="PATTERN=TARGET", help="Nodes that must run on a target."),
]
ExcludeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="TARGET:OPERATOR", help="Operator or nodes that a target must not run."
    ),
]
LayerOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        metavar="NAME=TARGET",
        help="Target of nodes whose layer_ann begins with NAME (=NAME: equals NAME).",
    ),
]
PlacementOption: TypeAlias = Annotated[
    str, typer.Option("--placement", metavar="POLICY", help="auto, greedy, collage or manual.")
]
FrozenOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--frozen",
        metavar="FILE",
        help="Compile exactly the plan of this lock file, or fail and say what has changed.",
    ),
]
StrictOption: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Fail if a node falls back or a backend fails.")
]
NoCacheOption: TypeAlias = Annotated[
    bool,
    typer.Option("--no-cache", help="Do not use the cache of compiled programs."),
]
NoProbeOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-probe",
        help="Time nothing: neither the choice of the default order nor the nodes on reference.",
    ),
]
DataRootOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--external-data-root",
        metavar="DIR",
        help="Folder in which the model's external data may lie beside the model's own; you vouch "
        "for it.",
    ),
]
IsolateOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--isolate", metavar="BACKEND", help="Run its regions in a process of their own."),
]
CarefulOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--careful/--no-careful",
        help="Compile and run each region for the first time in a worker: a library that aborts "
        "costs its region a place. Remembered.",
    ),
]
MaxMemoryOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Memory that weights, tensors and workspace may take, as 512MiB: the first plan that "
        "fits, or an error with figures.",
    ),
]
InputOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="NAME=FILE.npy", help="The values of an input. Default: made up."
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Run a package's own code, and reach its machine, in any case."),
]
SignatureOption = Annotated[
    bool,
    typer.Option(
        "--require-signature",
        help="Refuse a package that was not written here and that no trusted key signed.",
    ),
]
ThreadsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", help="Threads of one run. Default: all CPUs."),
]
SlowdownOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--slowdown",
        metavar="FACTOR",
        help="With --objective memory: how many times as long as the fastest plan a plan may "
        "take; none: any. Default: 2.",
    ),
]
ObjectiveOption: TypeAlias = Annotated[
    str, typer.Option("--objective", metavar="WHAT", help="latency, throughput or memory.")
]
BudgetOption: TypeAlias = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="How long to measure: 90s, 5min.")
]
ModelArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="The ONNX model.", show_default=False, callback=readable_model
    ),
]
PlotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.png|FILE.svg",
        help="Also draw medians and intervals (extra `plot`).",
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HtmlOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write a report to look at in a browser."),
]
FileArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A package, or an ONNX model.",
        show_default=False,
        callback=readable_model,
    ),
]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chose about compiling; what is in a target file is known by now."""

    target: str | None = None
    target_file: Sequence[Path] | None = None
    host: str | None = None
    shape: Sequence[str] | None = None
    pin: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    placement: str = "auto"
    strict: bool = False
    layer: Sequence[str] | None = None
    target_attr: Sequence[str] | None = None
    frozen: Path | None = None
    no_cache: bool = False
    no_probe: bool = False
    sizes: Sequence[str] | None = None
    bucket: Sequence[str] | None = None
    pad_value: Sequence[str] | None = None
    external_data_root: Path | None = None
    max_memory: str | None = None
    careful: bool = False

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given."""
        default = Choices()
        return tuple(
            f"--{name.replace('_', '-')}"
            for name in Choices.__slots__
            if name != "target_file"  # it says what a name means, and asks for nothing
            and (getattr(self, name) or None) != (getattr(default, name) or None)
        )


_OPTIONS: dict[str, tuple[Any, object]] = {
    "target": (TargetOption, None),
    "target_file": (TargetFileOption, None),
    "target_attr": (TargetAttrOption, None),
    "host": (HostOption, None),
    "shape": (ShapeOption, None),
    "pin": (PinOption, None),
    "exclude": (ExcludeOption, None),
    "layer": (LayerOption, None),
    "placement": (PlacementOption, "auto"),
    "strict": (StrictOption, False),
    "frozen": (FrozenOption, None),
    "no_cache": (NoCacheOption, False),
    "no_probe": (NoProbeOption, False),
    "sizes": (SizesOption, None),
    "bucket": (BucketOption, None),
    "pad_value": (PadValueOption, None),
    "external_data_root": (DataRootOption, None),
    "max_memory": (MaxMemoryOption, None),
    "careful": (CarefulOption, False),
}
"""By name, the option of each part of `Choices`, and its default; the parser reads target files."""

_SIZES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

MACHINE = ("target", "target_file", "target_attr", "host")
BUCKETS = ("bucket", "pad_value")
NODES = ("shape", "sizes", "pin", "exclude", "layer", "external_data_root")


def takes_choices(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each part of its `choices` that is named, in their place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            parts = {name: values.pop(name) for name in names if name in values}
            command(choices=Choices(**parts), **values)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            options = names if parameter.name == "choices" else ()
            parameters += [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=_OPTIONS[name][1],
                    annotation=_OPTIONS[name][0],
                )
                for name in options
            ]
            if not options:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def read_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...] | str]:
    """Return shapes by input from `NAME=1x3x224x224`; nothing after the sign is a scalar.

    Bounds of a free dimension, as `NAME=1..8`, are left as text.

    Raises:
        SettingError: A text is of another form, or an input is given twice.
    """
    shapes: dict[str, tuple[int, ...] | str] = {}
    form = r"(.+)=((?:[0-9]+(?:x[0-9]+)*)?|[0-9]+\.\.[0-9]*)"
    for name, dims in _read("--shape", texts, form, "NAME=SIZES", "data=1x3x224x224"):
        if name in shapes:
            raise SettingError(f"--shape gives {name!r} twice", hint="leave one out")
        is_bounds = ".." in dims
        shapes[name] = dims if is_bounds else tuple(int(size) for size in dims.split("x") if size)
    return shapes


def read_sizes(texts: Sequence[str] | None) -> tuple[dict[str, int], ...]:
    """Return each sizes that `NAME=16,128` means, of several names each with each; none for none.

    Raises:
        SettingError: A text is of another form, or a dimension is given twice.
    """
    sizes = _read_rows("--sizes", texts)
    if not sizes:
        return ()
    from intarsia.graph.free_sizes import list_sizes

    return list_sizes(sizes)


def read_buckets(texts: Sequence[str] | None) -> dict[str, list[int]]:
    """Return the sizes that inputs are padded up to from `NAME=64,128`, by free dimension.

    Raises:
        SettingError: A text is of another form, or a dimension is given twice.
    """
    return _read_rows("--bucket", texts)


def _read_rows(option: str, texts: Sequence[str] | None) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for name, row in _read(option, texts, r"(.+?)=([0-9]+(?:,[0-9]+)*)", "NAME=SIZES", "seq=16"):
        if name in rows:
            raise SettingError(f"{option} gives {name!r} twice", hint="write seq=16,128")
        rows[name] = [int(size) for size in row.split(",")]
    return rows


def read_pad_values(texts: Sequence[str] | None) -> dict[str, float]:
    """Return what inputs are padded with from `INPUT=VALUE`.

    Raises:
        SettingError: A text is of another form, or an input is given twice.
    """
    values: dict[str, float] = {}
    form = r"(.+)=([-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|inf|nan))"
    for name, text in _read("--pad-value", texts, form, "INPUT=VALUE", "ids=0"):
        if name in values:
            raise SettingError(f"--pad-value gives {name!r} twice", hint="leave one out")
        is_whole = text.lstrip("+-").isdecimal()
        values[name] = int(text) if is_whole else float(text)
    return values


def read_max_memory(text: str | None) -> int | None:
    """Return the bytes of `512MiB`, `2GB` or `1000000`; None for none.

    Raises:
        SettingError: It is of another form, or 0.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    nbytes = 0 if match is None else int(float(match[1]) * _SIZES[match[2] or ""])
    if nbytes < 1:
        raise SettingError(
            f"--max-memory {text!r} is no amount of memory", hint="write for example 512MiB"
        )
    return nbytes


def read_pins(texts: Sequence[str] | None) -> dict[str, str]:
    """Return targets by node pattern from `PATTERN=TARGET`.

    Raises:
        SettingError: A text is of another form.
        PlacementError: A pattern is given two targets.
    """
    example = "'layer4/*=onnxruntime'"
    return _read_targets("--pin", texts, r"([^=]+)=(.+)", "PATTERN=TARGET", example)


def read_layers(texts: Sequence[str] | None) -> dict[str, str]:
    """Return targets by layer from `NAME=TARGET` or `=NAME=TARGET`.

    Raises:
        SettingError: A text is of another form.
        PlacementError: A layer is given two targets.
    """
    example = "encoder=openvino, or =encoder=openvino for this name only"
    return _read_targets("--layer", texts, r"(=?[^=]+)=(.+)", "NAME=TARGET", example)


def read_files(option: str, texts: Sequence[str] | None) -> dict[str, Path]:
    """Return files by tensor from `NAME=FILE`.

    Raises:
        SettingError: A text is of another form, or a tensor is given twice.
    """
    files: dict[str, Path] = {}
    example = f"{option} data=image.npy"
    for name, file in _read(option, texts, r"([^=]+)=(.+)", "NAME=FILE.npy", example):
        if name in files:
            raise SettingError(f"{option} gives {name!r} twice", hint="leave one out")
        files[name] = Path(file)
    return files


def read_seconds(text: str) -> float:
    """Return the seconds of `90`, `90s`, `1.5min` or `1h`.

    Raises:
        SettingError: It is of another form, or not above 0.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SECONDS or not float(match[1]):
        raise SettingError(f"--budget {text!r} is not a time", hint="write for example 90s or 2min")
    return float(match[1]) * _SECONDS[match[2]]


def read_objective(text: str, slowdown: str | None) -> Objective:
    """Return the objective that an option names.

    Raises:
        SettingError: There is no such objective, or the slowdown has no meaning with it.
    """
    from intarsia.tuning.objectives.objective import SLOWDOWN, parse_objective

    return parse_objective(text, SLOWDOWN if slowdown is None else slowdown)


def _read(
    option: str, texts: Sequence[str] | None, form: str, wanted: str, example: str
) -> Iterator[tuple[str, str]]:
    """Yield the two parts of each text that was given for an option.

    Raises:
        SettingError: A text is of another form.
    """
    for text in texts or ():
        match = re.fullmatch(form, text, re.DOTALL)
        if match is None:
            raise SettingError(
                f"{option} {text!r} is not {wanted}", hint=f"write for example {example}"
            )
        yield match[1], match[2]


def _read_targets(
    option: str, texts: Sequence[str] | None, form: str, wanted: str, example: str
) -> dict[str, str]:
    """Return what `_read` yields by name.

    Raises:
        SettingError: A text is of another form.
        PlacementError: A name is given two targets.
    """
    targets: dict[str, str] = {}
    for name, target in _read(option, texts, form, wanted, example):
        if targets.setdefault(name, target) != target:
            raise PlacementError(
                f"{option} gives {name!r} both {targets[name]!r} and {target!r}",
                hint="leave one out",
            )
    return targets
