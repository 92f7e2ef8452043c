# SPDX-License-Identifier: Apache-2.0
"""Writes what was generated to files for people: `INTARSIA_DUMP=folder`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping

from intarsia.codegen.lower.program import Program
from intarsia.codegen.printer import print_function
from intarsia.errors import SettingError
from intarsia.settings import expanded

_NAME_LENGTH = 80


def dump_kernels(
    folder: str | None, program: Program, made_for: str, files: Callable[[int], Mapping[str, str]]
) -> None:
    """Write loop IR and generated code of each kernel, named after its first call's nodes.

    Each program has a folder of its own, named after its first node and by a digest of the program,
    so that the regions of a model, also of several processes, do not overwrite each other.

    Args:
        folder: Where to; None writes nothing.
        program: Whose kernels; its text is written too.
        made_for: What the code is for.
        files: From a kernel's number to its code, by the suffix of the file.

    Raises:
        SettingError: The folder cannot be written.
    """
    if not folder:
        return
    names: dict[int, str] = {}
    for number, call in enumerate(program.calls):
        label = _file_name("+".join(call.nodes) or call.note or "layout")
        names.setdefault(call.kernel, f"{number:04d}-{label}")
    root = expanded(folder) / _folder_name(program, made_for)
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / "program.txt").write_text(f"{program}\n", encoding="utf-8")
        for index, kernel in enumerate(program.kernels):
            name = names.get(index, f"unused-{index}")
            for suffix, text in {"loop": print_function(kernel), **files(index)}.items():
                (root / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"INTARSIA_DUMP={folder!r} cannot be written: {error.strerror or error}",
            hint="name a folder of yours, or unset INTARSIA_DUMP",
        ) from error


def _folder_name(program: Program, made_for: str) -> str:
    first = next((call.nodes[0] for call in program.calls if call.nodes), "region")
    identity = "\0".join((str(program), made_for)).encode()
    return f"{_file_name(first)}-{hashlib.sha256(identity).hexdigest()[:8]}"


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).lstrip(".")[:_NAME_LENGTH]
