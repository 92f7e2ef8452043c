# SPDX-License-Identifier: Apache-2.0
"""What was compiled, as a node `EPContext` of a model: a package, inside it or in a file beside it.

Source:
    ONNX Runtime, EP context design.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int64, c_void_p
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from intarsia.errors import PackageError
from intarsia.opening import load
from intarsia.provider.options import NAME, ProviderOptions

if TYPE_CHECKING:
    from intarsia.provider.abi import OrtApi
    from intarsia.runtime.free import Program

_INT, _STRING = 1, 5


def make_context_node(
    api: OrtApi,
    options: ProviderOptions,
    program: Program,
    model: str,
    ends: tuple[str, Sequence[str], Sequence[str]],
) -> int:
    """Return the address of a new node that holds a program; ONNX Runtime has it then.

    Args:
        api: ONNX Runtime's functions.
        options: Whether a file is written, and where.
        program: What is stored.
        model: The file of the model; empty if it came as bytes.
        ends: The name of the node, what it reads, and what it writes.

    Raises:
        PackageError: The program cannot be written.
        SettingError: It is not known where to write it.
    """
    name, inputs, outputs = ends
    if options.is_embedded:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "region.intarsia"
            program.save(path)
            content = path.read_bytes()
    else:
        folder_of_model = options.context_folder(model)
        stem = Path(options.context_file or model).stem
        path = folder_of_model / f"{stem}_{_plain(name)}.intarsia"
        program.save(path)
        content = path.name.encode()
    attributes: dict[str, int | bytes] = {
        "embed_mode": int(options.is_embedded),
        "ep_cache_context": content,
        "ep_sdk_version": version("intarsia").encode(),
        "main_context": 1,
        "partition_name": name.encode(),
        "source": NAME.encode(),
    }
    made = (c_void_p * len(attributes))()
    try:
        for i, (key, value) in enumerate(attributes.items()):
            made[i] = _make_attribute(api, key, value)
        read, written = (
            (c_char_p * len(some))(*(one.encode() for one in some)) for some in (inputs, outputs)
        )
        return api.pointer(
            "CreateNode",
            b"EPContext",
            b"com.microsoft",
            f"{options.node_prefix}{name}".encode(),
            read,
            len(inputs),
            written,
            len(outputs),
            made,
            len(attributes),
        )
    finally:
        for one in made:
            if one:
                api.call("ReleaseOpAttr", one)


def _make_attribute(api: OrtApi, name: str, value: int | bytes) -> int:
    if isinstance(value, int):
        number = c_int64(value)
        return api.pointer("CreateOpAttr", name.encode(), byref(number), 1, _INT)
    return api.pointer("CreateOpAttr", name.encode(), value, len(value), _STRING)


def _plain(name: str) -> str:
    """Return a name as a part of a file's name."""
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name)


def load_context(attributes: Mapping[str, Any], model: str, options: ProviderOptions) -> Program:
    """Return the program that a node holds.

    Args:
        attributes: Of the node.
        model: The file of the model, beside which files of programs are.
        options: Whether its code runs whoever wrote it.

    Raises:
        PackageError: It is damaged, or its file is not there or not beside the model.
        IntarsiaError: As `intarsia.load`.
    """
    content = attributes.get("ep_cache_context", b"")
    arguments: dict[str, Any] = {"num_threads": options.num_threads, "trust": options.trust}
    if not attributes.get("embed_mode", 1):
        name = content.decode(errors="replace")
        pure = PurePath(name)
        if pure.is_absolute() or ".." in pure.parts:
            raise PackageError(
                f"the model names {name!r}, which is not beside it",
                hint="make the model again, with ep.context_enable",
            )
        return load(Path(model).parent / pure, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "region.intarsia"
        path.write_bytes(content)
        return load(path, **arguments)
