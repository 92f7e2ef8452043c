# SPDX-License-Identifier: Apache-2.0
"""The shared library: where it is, what it can do, and its functions, typed and checked.

Nothing else in the project calls oneDNN's C interface.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from intarsia.backends.dnnl.forking import short_spins, watch_forks
from intarsia.backends.dnnl.words import (
    ENGINE_CPU,
    ISA_AVX2_VNNI,
    ISA_AVX512,
    ISA_AVX512_BF16,
    ISA_AVX512_FP16,
    ISA_AVX512_VNNI,
    CpuRuntime,
    LibraryStatus,
)
from intarsia.backends.onednn_isa import keep_off_broken_tiles
from intarsia.errors import BackendError
from intarsia.process.selftest import file_facts, require_library
from intarsia.settings import Settings

FILE = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"
OLDEST = (3, 2)
_ELF = b"\x7fELF"
_ELF_HEADER = 20  # its last two bytes say of which machine the code is
_INSTALLED = "/etc/ld.so.cache"  # changes with the libraries of the system
_SETTING = "INTARSIA_DNNL_LIBRARY"
_HINT = f"pip install 'intarsia[dnnl]', or set {_SETTING} to a {FILE} of 3.2 or newer"
_HINT_SET = f"unset {_SETTING} to use the wheel's or the system's, or set it to a {FILE}"
_NAMED = f"{_SETTING} names it"

_out = POINTER(c_void_p)
_dims = POINTER(c_int64)
_windows = (_dims, _dims, _dims, _dims)
_forward = (_out, c_void_p, c_int)  # the result, the engine, the kind of propagation
_function = (*_forward, c_int, c_void_p, c_void_p)  # also the algorithm, source and destination
_convolution = (*_forward, c_int, *(c_void_p,) * 4, *_windows, c_void_p)

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "dnnl_engine_create": (_out, c_int, c_size_t),
    "dnnl_stream_create": (_out, c_void_p, c_uint),
    "dnnl_stream_wait": (c_void_p,),
    "dnnl_set_verbose": (c_int,),
    "dnnl_memory_desc_create_with_tag": (_out, c_int, _dims, c_int, c_int),
    "dnnl_memory_desc_create_with_strides": (_out, c_int, _dims, c_int, _dims),
    "dnnl_memory_desc_create_submemory": (_out, c_void_p, _dims, _dims),
    "dnnl_memory_desc_permute_axes": (_out, c_void_p, POINTER(c_int)),
    "dnnl_memory_desc_clone": (_out, c_void_p),
    "dnnl_memory_desc_query": (c_void_p, c_int, c_void_p),
    "dnnl_memory_create": (_out, c_void_p, c_void_p, c_void_p),
    "dnnl_primitive_attr_create": (_out,),
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_fpmath_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_scales_mask": (c_void_p, c_int, c_int),
    "dnnl_primitive_attr_set_zero_points_mask": (c_void_p, c_int, c_int),
    "dnnl_primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "dnnl_post_ops_create": (_out,),
    "dnnl_post_ops_append_sum": (c_void_p, c_float, c_int32, c_int),
    "dnnl_post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "dnnl_post_ops_append_binary": (c_void_p, c_int, c_void_p),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_create": (_out, c_void_p),
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, c_void_p),
    "dnnl_reorder_primitive_desc_create": (_out, *(c_void_p,) * 5),
    "dnnl_concat_primitive_desc_create": (_out, c_void_p, c_void_p, c_int, c_int, _out, c_void_p),
    "dnnl_binary_primitive_desc_create": (_out, c_void_p, c_int, *(c_void_p,) * 4),
    "dnnl_convolution_forward_primitive_desc_create": _convolution,
    "dnnl_deconvolution_forward_primitive_desc_create": _convolution,
    "dnnl_pooling_forward_primitive_desc_create": (*_function, *_windows, _dims, c_void_p),
    "dnnl_eltwise_forward_primitive_desc_create": (*_function, c_float, c_float, c_void_p),
    "dnnl_softmax_forward_primitive_desc_create": (*_function, c_int, c_void_p),
    "dnnl_lrn_forward_primitive_desc_create": (*_function, c_int64, *(c_float,) * 3, c_void_p),
    "dnnl_batch_normalization_forward_primitive_desc_create": (
        *_forward,
        c_void_p,
        c_void_p,
        c_float,
        c_uint,
        c_void_p,
    ),
    "dnnl_layer_normalization_forward_primitive_desc_create": (
        *_forward,
        *(c_void_p,) * 3,
        c_float,
        c_uint,
        c_void_p,
    ),
    "dnnl_matmul_primitive_desc_create": (_out, *(c_void_p,) * 6),
    "dnnl_prelu_forward_primitive_desc_create": (*_forward, *(c_void_p,) * 4),
    "dnnl_reduction_primitive_desc_create": (
        _out,
        c_void_p,
        c_int,
        c_void_p,
        c_void_p,
        c_float,
        c_float,
        c_void_p,
    ),
    "dnnl_resampling_forward_primitive_desc_create": (
        *_forward,
        c_int,
        POINTER(c_float),
        *(c_void_p,) * 3,
    ),
    "dnnl_shuffle_forward_primitive_desc_create": (
        *_forward,
        c_void_p,
        c_void_p,
        c_int,
        c_int64,
        c_void_p,
    ),
    "dnnl_memory_desc_destroy": (c_void_p,),
    "dnnl_memory_destroy": (c_void_p,),
    "dnnl_post_ops_destroy": (c_void_p,),
    "dnnl_primitive_attr_destroy": (c_void_p,),
    "dnnl_primitive_desc_destroy": (c_void_p,),
    "dnnl_primitive_destroy": (c_void_p,),
    "dnnl_stream_destroy": (c_void_p,),
}
"""Functions that return a status, and their parameters."""


class StatusError(BackendError):
    """A function of the library did not succeed.

    Args:
        function: Its name.
        status: What it returned.
    """

    def __init__(self, function: str, status: int) -> None:
        names = {code.value: code.name.lower() for code in LibraryStatus}
        name = names.get(status, f"status {status}")
        super().__init__(f"oneDNN: {function}: {name}", backend="dnnl")
        self.status = status


class _Version(ctypes.Structure):
    """`dnnl_version_t`."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


@dataclass(frozen=True, eq=False)
class OneDnn:
    """oneDNN, loaded.

    Attributes:
        path: Where it is from.
        version: Its three numbers.
        runtime: What it starts threads with.
        engine: The one engine, of the CPU; it lives as long as the process.
        functions: The library itself.
        why: Why it is this one.
        without_tiles: Why it is kept off AMX; empty if it is not.
        caches: The folder of all caches; None keeps nothing.
    """

    path: str
    version: tuple[int, int, int]
    runtime: CpuRuntime
    engine: int
    functions: Any
    why: str = ""
    without_tiles: str = ""
    caches: Path | None = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            StatusError: It did not succeed.
        """
        status = getattr(self.functions, name)(*arguments)
        if status:
            raise StatusError(name, status)

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function that makes something, and return its address.

        Raises:
            StatusError: It did not succeed.
        """
        address = c_void_p()
        self.call(name, ctypes.byref(address), *arguments)
        return address.value or 0

    @property
    def isa(self) -> int:
        """The instruction sets that it uses: a bit each (`dnnl_cpu_isa_t`)."""
        return int(self.functions.dnnl_get_effective_cpu_isa())

    @property
    def block(self) -> int:
        """The channels of a block: the float32 numbers of a vector."""
        return 16 if self.isa & ISA_AVX512 else 8

    @property
    def has_integer_products(self) -> bool:
        """Whether this CPU sums products of bytes without saturating (VNNI).

        Without these instructions oneDNN adds pairs of products in 16 bits, which saturate.
        """
        return bool(self.isa & (ISA_AVX2_VNNI | ISA_AVX512_VNNI))

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that this CPU has instructions for; oneDNN may emulate others slowly."""
        isa = self.isa
        needed_bits = {"f32": 0, "bf16": ISA_AVX512_BF16, "f16": ISA_AVX512_FP16}
        return tuple(name for name, bit in needed_bits.items() if isa & bit == bit)

    def address(self, name: str) -> int:
        """Return where a function is; 0 if neither the library nor what it links to has it."""
        function = getattr(self.functions, name, None)
        return 0 if function is None else ctypes.cast(function, c_void_p).value or 0


def driver(settings: Settings) -> OneDnn:
    """Load oneDNN: the one that is set, else the newer of the wheel's and the system's.

    Raises:
        BackendError: It is missing, too old, or cannot be used by us.
    """
    return _driver(settings.dnnl_library, settings.cache_folder())


@cache
def _driver(setting: str | None, caches: Path) -> OneDnn:
    wheel = None if setting else _wheel()
    facts = _facts(setting, wheel)
    # In a process of its own first: a library for other instructions ends with SIGILL, which
    # nothing here could catch.
    require_library("oneDNN", "intarsia.backends.dnnl.backend:BACKEND", facts, _HINT, caches)
    without_tiles = keep_off_broken_tiles("oneDNN", "dnnl", facts, caches)
    if setting:
        candidates = [_try(setting, _NAMED)]
    else:
        system = _try(FILE, "the system's")  # first: a name alone also finds what is loaded
        candidates = [_try(wheel, f"of the wheel {WHEEL}")] if wheel else []
        candidates.append(system)
    usable: list[OneDnn] = []
    handles: set[int] = set()
    for candidate in candidates:
        if isinstance(candidate, OneDnn) and candidate.functions._handle not in handles:  # noqa: SLF001
            usable.append(candidate)
            handles.add(candidate.functions._handle)  # noqa: SLF001 - one file under two names
    if not usable:
        raise candidates[0]  # type: ignore[misc]  # nothing but errors
    chosen = max(usable, key=lambda library: library.version)  # of equals the first: the wheel's
    watch_forks()
    why = _why(chosen, usable, has_choice=not setting)
    return replace(chosen, why=why, without_tiles=without_tiles, caches=caches)


def _facts(setting: str | None, wheel: str | None) -> tuple[str, ...]:
    """Return facts on the files of which one will be loaded, for the self-test."""
    if setting:
        return file_facts(setting) if Path(setting).exists() else ()
    return file_facts(*filter(None, (wheel, _INSTALLED)))


def _why(chosen: OneDnn, usable: list[OneDnn], *, has_choice: bool) -> str:
    """Return why a library was chosen."""
    others = [library for library in usable if library is not chosen]
    if others and others[0].version < chosen.version:
        return f"{chosen.why}, newer than the other's {_number(others[0].version)}"
    if others:
        return f"{chosen.why}; the other is not newer"
    return f"{chosen.why}; there is no other" if has_choice else chosen.why


def _try(path: str, why: str) -> OneDnn | BackendError:
    """Return a library, or what is wrong with it."""
    try:
        return _load(path, why)
    except BackendError as error:
        return error
    except OSError as error:
        reason = _foreign(path) or str(error)
        return BackendError(
            f"oneDNN is not available: {reason}", backend="dnnl", hint=_hint(reason, why)
        )


def _foreign(path: str) -> str:
    """Return an error text if a file, which the loader calls missing, is for another CPU."""
    try:
        with Path(path).open("rb") as file, Path(sys.executable).open("rb") as executable:
            header, our_header = file.read(_ELF_HEADER), executable.read(_ELF_HEADER)
    except OSError:
        return ""
    is_elf = header.startswith(_ELF) and our_header.startswith(_ELF)
    return f"{path} is built for another CPU" if is_elf and header[18:] != our_header[18:] else ""


def _number(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def _hint(reason: str, why: str) -> str:
    for library, package in (("libgomp", "libgomp1"), ("libstdc++", "libstdc++6")):
        if library in reason:
            return f"install the system package {package} (apt-get install {package})"
    return _HINT_SET if why == _NAMED else _HINT


def _wheel() -> str | None:
    """Return the file that the wheel brought, or None."""
    try:
        wheel = distribution(WHEEL)
    except PackageNotFoundError:
        beside = Path(sys.prefix) / "lib" / FILE
        return str(beside) if beside.exists() else None
    for file in wheel.files or ():
        if file.name == FILE:
            return str(Path(str(wheel.locate_file(file))).resolve())
    return None


def _load(path: str, why: str = "") -> OneDnn:
    with short_spins():
        functions = ctypes.CDLL(path)
    try:
        functions.dnnl_version.restype = POINTER(_Version)
        about = functions.dnnl_version().contents
        version = (about.major, about.minor, about.patch)
        number = _number(version)
        # 3.2 is what the wheel brings and what is tested; a next major version may change the C
        # interface, and we call it by hand-written signatures.
        if version[:2] < OLDEST or version[0] != OLDEST[0]:
            wanted = ".".join(map(str, OLDEST))
            raise BackendError(
                f"oneDNN {number} ({path}) is not version 3, or is older than {wanted}",
                backend=f"dnnl {number}",
                hint=_hint("", why),
            )
        for name, parameters in _SIGNATURES.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = parameters, c_int
        functions.dnnl_memory_desc_get_size.restype = c_size_t
        functions.dnnl_memory_desc_get_size.argtypes = (c_void_p,)
        functions.dnnl_memory_desc_equal.argtypes = (c_void_p, c_void_p)
        functions.dnnl_primitive_desc_query_md.restype = c_void_p
        functions.dnnl_primitive_desc_query_md.argtypes = (c_void_p, c_int, c_int)
    except AttributeError as error:
        raise BackendError(
            f"{path} is not oneDNN 3: {error}", backend="dnnl", hint=_hint("", why)
        ) from error
    # A number of threads per calling thread is OpenMP's alone; built for TBB or a pool, a region
    # would take as many as that has.
    if about.cpu_runtime not in (CpuRuntime.OPENMP, CpuRuntime.SEQUENTIAL):
        raise BackendError(
            f"oneDNN {number} ({path}) is built for another threading runtime than OpenMP",
            backend=f"dnnl {number}",
            hint=_hint("", why),
        )
    engine = c_void_p()
    status = functions.dnnl_engine_create(ctypes.byref(engine), ENGINE_CPU, 0)
    if status:
        raise StatusError("dnnl_engine_create", status)
    runtime = CpuRuntime(about.cpu_runtime)
    return OneDnn(path, version, runtime, engine.value or 0, functions, why)
