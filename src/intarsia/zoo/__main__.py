# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia.zoo NAME... --out DIR`: write zoo networks as ONNX files, or list them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import IntarsiaError, SettingError
from intarsia.files import whole_file
from intarsia.zoo.catalogue import ENTRIES, RANDOM, build, find, models

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from intarsia.zoo.catalogue import Inputs

_NAMES = "networks to write, random:SEED among them"
_SHOWN = 3  # inputs of a network that are listed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The arguments after the program's name; those of the process by default.

    Returns:
        0 when every file was written, else the exit code of the error.
    """
    options = _parser().parse_args(argv)
    if options.list:
        _print(_table(), _catalogue(), as_json=options.json)
        return 0
    try:
        if not options.names and not options.all:
            raise SettingError(
                "no network is named", hint="--list prints the names; --all writes all (3 GB)"
            )
        written = _write(options.names or models(), options.out, options.seed)
    except IntarsiaError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    _print([str(entry["path"]) for entry in written], written, as_json=options.json)
    return 0


def _catalogue() -> list[dict[str, object]]:
    """Return the facts about each network without building it."""
    return [
        {
            "name": name,
            "parameters": ENTRIES[name].parameters,
            "inputs": {key: list(shape) for key, shape in ENTRIES[name].inputs.items()},
        }
        for name in models()
    ]


def _table() -> list[str]:
    """Return a line for each network: name, parameters, inputs."""
    rows = [
        (name, f"{ENTRIES[name].parameters:,}", _in_words(ENTRIES[name].inputs))
        for name in models()
    ]
    rows.append((f"{RANDOM}SEED", "", "data; all else depends on the seed"))
    return [f"{name:<15}  {parameters:>11}  {inputs}" for name, parameters, inputs in rows]


def _in_words(inputs: Inputs) -> str:
    """Return `name 1x3x224x224` for each input; of many, the first three and a count."""
    texts = [f"{name} {'x'.join(map(str, shape))}" for name, shape in inputs.items()]
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join(texts[:_SHOWN] + more)


def _print(lines: Iterable[str], data: object, *, as_json: bool) -> None:
    text = json.dumps(data, indent=2) if as_json else "\n".join(lines)
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m intarsia.zoo",
        description="Write networks with seeded random weights as ONNX files.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=_NAMES)
    parser.add_argument("--all", action="store_true", help="all that have a name (3 GB)")
    parser.add_argument("--out", type=Path, default=Path(".zoo"), metavar="DIR", help="folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of every weight; default: 0")
    parser.add_argument("--list", action="store_true", help="print what there is and write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    return parser


def _write(names: Sequence[str], folder: Path, seed: int) -> list[dict[str, str | int]]:
    """Build and write networks; every name is checked before the first is built."""
    for name in names:
        find(name)
    written: list[dict[str, str | int]] = []
    for name in names:
        sys.stderr.write(f"building {name} from seed {seed}\n")
        data = build(name, seed).SerializeToString()
        path = folder / f"{name.replace(':', '_')}.onnx"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as draft:
                draft.write_bytes(data)
        except OSError as error:
            hint = "choose a writable folder with --out"
            msg = f"cannot write {path}: {error.strerror}"
            raise SettingError(msg, hint=hint) from error
        written.append({"name": name, "path": str(path), "seed": seed, "bytes": len(data)})
    return written


if __name__ == "__main__":
    sys.exit(main())
