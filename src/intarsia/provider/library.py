# SPDX-License-Identifier: Apache-2.0
"""The library that ONNX Runtime loads, as a file.

It is made once for a machine and kept among the caches: from LLVM IR, and on x86-64 Linux without
any linker, so that an installation needs nothing but our package; elsewhere by a C compiler or the
wheel `ziglang`.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from functools import cache
from pathlib import Path

from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import SettingError
from intarsia.hashing import digest
from intarsia.native.elf import NotLinkedError, can_link
from intarsia.native.machine import NativeCpu, compile_object, generator_version
from intarsia.provider.library_code import CODE, EXPORTED
from intarsia.settings import Settings

_NAME = "intarsia_onnxruntime"
_KIND = "provider"
"""The folder of the library inside the cache folder."""

_LEVEL = 2
_CPU = NativeCpu()


def onnxruntime_library() -> str:
    """Return the file of Intarsia's execution provider, to be registered with ONNX Runtime.

    ONNX Runtime 1.24 or later; it has to be the Python of this process that registers it::

        onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())

    Returns:
        The path of a shared library; it is made when it is first asked for.

    Raises:
        BackendError: There is neither a linker of our own for this machine nor a C compiler.
        SettingError: The cache folder cannot be written.
    """
    return str(library_file(Settings.from_environment().cache_folder()))


def library_file(caches: Path) -> Path:
    """Return the file of the library, made if it is not there.

    Args:
        caches: The folder of all caches.

    Raises:
        BackendError: It cannot be linked on this machine.
        SettingError: The folder cannot be written.
    """
    key = digest([CODE, generator_version(), sys.platform])[:16]
    suffix = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
    path = caches / _KIND / f"lib{_NAME}-{key}.{suffix}"
    if not path.is_file():
        content = link_library(path.name, caches)
        make_cache_folder(caches)
        try:
            write_entry(path, content)
        except OSError as error:
            raise SettingError(
                f"the library {str(path)!r} cannot be written: {error.strerror or error}",
                hint="set INTARSIA_CACHE_DIR to a folder of yours",
            ) from error
    return path


def link_library(name: str, caches: Path) -> bytes:
    """Return the library's content.

    Args:
        name: How it calls itself.
        caches: The folder of all caches, where `ziglang` keeps its own.

    Raises:
        BackendError: It cannot be linked on this machine.
    """
    from intarsia.native.linking import BinaryKind, Linker
    from intarsia.native.shared_object import make_library

    code = compile_object(CODE, _CPU, _LEVEL)
    if can_link():
        try:
            return make_library(code, name, EXPORTED)
        except NotLinkedError:
            pass  # another linker has it
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / f"{_NAME}.o", Path(folder) / name
        source.write_bytes(code)
        Linker.find(_CPU, caches).link(BinaryKind.SHARED, made, [source])
        return made.read_bytes()


@cache
def loaded_library() -> ctypes.CDLL:
    """Return the library, loaded for good: its functions are called until the process ends."""
    return ctypes.CDLL(onnxruntime_library())


def function_address(name: str) -> int:
    """Return where a function of the library is."""
    address = ctypes.cast(getattr(loaded_library(), name), ctypes.c_void_p).value
    assert address is not None
    return address
