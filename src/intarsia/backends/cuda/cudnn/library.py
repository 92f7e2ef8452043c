# SPDX-License-Identifier: Apache-2.0
"""cuDNN's C interface of graphs (NVIDIA, "cuDNN Backend API": `cudnn_graph.h` of cuDNN 9).

Descriptors are made by the host alone; a handle needs NVIDIA's driver and a GPU.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from intarsia.backends.cuda.libraries import (
    LibraryError,
    files_of_packages,
    load_library,
    version_text,
)
from intarsia.errors import BackendError

BACKEND_NAME = "cudnn"
INSTALL = "pip install 'intarsia[cudnn]'"

_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_NAMES = ("libcudnn.so.9", "cudnn64_9.dll")
_OLDEST = 91300
"""The first version with an operation of attention."""
_MOST_LETTERS = 1024

KINDS = {
    "POINTWISE": 0,
    "CONVOLUTION": 1,
    "ENGINE": 2,
    "ENGINECFG": 3,
    "ENGINEHEUR": 4,
    "EXECUTION_PLAN": 5,
    "OPERATION_CONVOLUTION_FORWARD": 10,
    "OPERATION_CONVOLUTION_BACKWARD_DATA": 12,
    "OPERATION_POINTWISE": 13,
    "OPERATIONGRAPH": 15,
    "VARIANT_PACK": 16,
    "TENSOR": 17,
    "MATMUL": 18,
    "OPERATION_MATMUL": 19,
    "RESAMPLE": 24,
    "OPERATION_RESAMPLE_FWD": 25,
    "OPERATION_NORM_FORWARD": 29,
    "DEVICEPROP": 38,
    "OPERATION_SDPA_FWD": 41,
}
"""cudnnBackendDescriptorType_t, without `CUDNN_BACKEND_` and `_DESCRIPTOR`."""
TYPES: Mapping[str, tuple[int, Any]] = {
    "HANDLE": (0, c_void_p),
    "DATA_TYPE": (1, c_int),
    "BOOLEAN": (2, ctypes.c_bool),
    "INT64": (3, c_int64),
    "DOUBLE": (5, ctypes.c_double),
    "VOID_PTR": (6, c_void_p),
    "CONVOLUTION_MODE": (7, c_int),
    "HEUR_MODE": (8, c_int),
    "NAN_PROPOGATION": (10, c_int),
    "NUMERICAL_NOTE": (11, c_int),
    "POINTWISE_MODE": (14, c_int),
    "BACKEND_DESCRIPTOR": (15, c_void_p),
    "RESAMPLE_MODE": (21, c_int),
    "PADDING_MODE": (22, c_int),
    "INT32": (23, ctypes.c_int32),
    "CHAR": (24, ctypes.c_char),
    "NORM_MODE": (27, c_int),
    "NORM_FWD_PHASE": (28, c_int),
}
"""cudnnBackendAttributeType_t, without `CUDNN_TYPE_`, and what C has for each."""
ATTRIBUTES = {
    "POINTWISE_MODE": (0, "POINTWISE_MODE"),
    "POINTWISE_MATH_PREC": (1, "DATA_TYPE"),
    "POINTWISE_NAN_PROPAGATION": (2, "NAN_PROPOGATION"),
    "CONVOLUTION_COMP_TYPE": (100, "DATA_TYPE"),
    "CONVOLUTION_CONV_MODE": (101, "CONVOLUTION_MODE"),
    "CONVOLUTION_DILATIONS": (102, "INT64"),
    "CONVOLUTION_FILTER_STRIDES": (103, "INT64"),
    "CONVOLUTION_POST_PADDINGS": (104, "INT64"),
    "CONVOLUTION_PRE_PADDINGS": (105, "INT64"),
    "CONVOLUTION_SPATIAL_DIMS": (106, "INT64"),
    "ENGINEHEUR_MODE": (200, "HEUR_MODE"),
    "ENGINEHEUR_OPERATION_GRAPH": (201, "BACKEND_DESCRIPTOR"),
    "ENGINEHEUR_RESULTS": (202, "BACKEND_DESCRIPTOR"),
    "ENGINEHEUR_DEVICEPROP": (204, "BACKEND_DESCRIPTOR"),
    "ENGINECFG_ENGINE": (300, "BACKEND_DESCRIPTOR"),
    "EXECUTION_PLAN_HANDLE": (400, "HANDLE"),
    "EXECUTION_PLAN_ENGINE_CONFIG": (401, "BACKEND_DESCRIPTOR"),
    "EXECUTION_PLAN_WORKSPACE_SIZE": (402, "INT64"),
    "OPERATION_CONVOLUTION_FORWARD_ALPHA": (700, "DOUBLE"),
    "OPERATION_CONVOLUTION_FORWARD_BETA": (701, "DOUBLE"),
    "OPERATION_CONVOLUTION_FORWARD_CONV_DESC": (702, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_W": (703, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_X": (704, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_Y": (705, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_BWD_DATA_ALPHA": (706, "DOUBLE"),
    "OPERATION_CONVOLUTION_BWD_DATA_BETA": (707, "DOUBLE"),
    "OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC": (708, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_BWD_DATA_W": (709, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_BWD_DATA_DX": (710, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_BWD_DATA_DY": (711, "BACKEND_DESCRIPTOR"),
    "OPERATION_POINTWISE_PW_DESCRIPTOR": (750, "BACKEND_DESCRIPTOR"),
    "OPERATION_POINTWISE_XDESC": (751, "BACKEND_DESCRIPTOR"),
    "OPERATION_POINTWISE_BDESC": (752, "BACKEND_DESCRIPTOR"),
    "OPERATION_POINTWISE_YDESC": (753, "BACKEND_DESCRIPTOR"),
    "OPERATIONGRAPH_OPS": (801, "BACKEND_DESCRIPTOR"),
    "TENSOR_BYTE_ALIGNMENT": (900, "INT64"),
    "TENSOR_DATA_TYPE": (901, "DATA_TYPE"),
    "TENSOR_DIMENSIONS": (902, "INT64"),
    "TENSOR_STRIDES": (903, "INT64"),
    "TENSOR_UNIQUE_ID": (906, "INT64"),
    "TENSOR_IS_VIRTUAL": (907, "BOOLEAN"),
    "TENSOR_IS_BY_VALUE": (908, "BOOLEAN"),
    "VARIANT_PACK_UNIQUE_IDS": (1000, "INT64"),
    "VARIANT_PACK_DATA_POINTERS": (1001, "VOID_PTR"),
    "VARIANT_PACK_WORKSPACE": (1003, "VOID_PTR"),
    "ENGINE_NUMERICAL_NOTE": (1303, "NUMERICAL_NOTE"),
    "MATMUL_COMP_TYPE": (1500, "DATA_TYPE"),
    "OPERATION_MATMUL_ADESC": (1520, "BACKEND_DESCRIPTOR"),
    "OPERATION_MATMUL_BDESC": (1521, "BACKEND_DESCRIPTOR"),
    "OPERATION_MATMUL_CDESC": (1522, "BACKEND_DESCRIPTOR"),
    "OPERATION_MATMUL_DESC": (1523, "BACKEND_DESCRIPTOR"),
    "RESAMPLE_MODE": (1700, "RESAMPLE_MODE"),
    "RESAMPLE_COMP_TYPE": (1701, "DATA_TYPE"),
    "RESAMPLE_SPATIAL_DIMS": (1702, "INT64"),
    "RESAMPLE_POST_PADDINGS": (1703, "INT64"),
    "RESAMPLE_PRE_PADDINGS": (1704, "INT64"),
    "RESAMPLE_STRIDES": (1705, "INT64"),
    "RESAMPLE_WINDOW_DIMS": (1706, "INT64"),
    "RESAMPLE_NAN_PROPAGATION": (1707, "NAN_PROPOGATION"),
    "RESAMPLE_PADDING_MODE": (1708, "PADDING_MODE"),
    "OPERATION_RESAMPLE_FWD_XDESC": (1710, "BACKEND_DESCRIPTOR"),
    "OPERATION_RESAMPLE_FWD_YDESC": (1711, "BACKEND_DESCRIPTOR"),
    "OPERATION_RESAMPLE_FWD_DESC": (1716, "BACKEND_DESCRIPTOR"),
    "OPERATION_NORM_FWD_MODE": (2000, "NORM_MODE"),
    "OPERATION_NORM_FWD_PHASE": (2001, "NORM_FWD_PHASE"),
    "OPERATION_NORM_FWD_XDESC": (2002, "BACKEND_DESCRIPTOR"),
    "OPERATION_NORM_FWD_SCALE_DESC": (2005, "BACKEND_DESCRIPTOR"),
    "OPERATION_NORM_FWD_BIAS_DESC": (2006, "BACKEND_DESCRIPTOR"),
    "OPERATION_NORM_FWD_EPSILON_DESC": (2007, "BACKEND_DESCRIPTOR"),
    "OPERATION_NORM_FWD_YDESC": (2013, "BACKEND_DESCRIPTOR"),
    "DEVICEPROP_DEVICE_ID": (2700, "INT32"),
    "DEVICEPROP_JSON_REPRESENTATION": (2702, "CHAR"),
    "OPERATION_SDPA_FWD_QDESC": (2800, "BACKEND_DESCRIPTOR"),
    "OPERATION_SDPA_FWD_KDESC": (2801, "BACKEND_DESCRIPTOR"),
    "OPERATION_SDPA_FWD_VDESC": (2802, "BACKEND_DESCRIPTOR"),
    "OPERATION_SDPA_FWD_ODESC": (2803, "BACKEND_DESCRIPTOR"),
    "OPERATION_SDPA_FWD_SCALEDESC": (2805, "BACKEND_DESCRIPTOR"),
}
"""cudnnBackendAttributeName_t, without `CUDNN_ATTR_`, and the type of each."""
WORDS = {
    "CONVOLUTION_MODE": {"CROSS_CORRELATION": 1},
    "HEUR_MODE": {"HEUR_MODE_B": 1, "HEUR_MODE_FALLBACK": 2, "HEUR_MODE_A": 3},
    "NAN_PROPOGATION": {"PROPAGATE_NAN": 1},
    "POINTWISE_MODE": {
        "POINTWISE_ADD": 0,
        "POINTWISE_MUL": 1,
        "POINTWISE_RELU_FWD": 100,
        "POINTWISE_GELU_APPROX_TANH_FWD": 107,
    },
    "RESAMPLE_MODE": {
        "RESAMPLE_AVGPOOL_INCLUDE_PADDING": 2,
        "RESAMPLE_MAXPOOL": 3,
        "RESAMPLE_AVGPOOL_EXCLUDE_PADDING": 4,
    },
    "PADDING_MODE": {"ZERO_PAD": 0, "NEG_INF_PAD": 1},
    "NORM_MODE": {"LAYER_NORM": 0, "INSTANCE_NORM": 1},
    "NORM_FWD_PHASE": {"NORM_FWD_INFERENCE": 0},
    "DATA_TYPE": {"DATA_FLOAT": 0, "DATA_HALF": 2, "DATA_BFLOAT16": 9},
    "NUMERICAL_NOTE": {
        "NUMERICAL_NOTE_TENSOR_CORE": 0,
        "NUMERICAL_NOTE_DOWN_CONVERT_INPUTS": 1,
        "NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION": 2,
        "NUMERICAL_NOTE_FFT": 3,
        "NUMERICAL_NOTE_NONDETERMINISTIC": 4,
        "NUMERICAL_NOTE_WINOGRAD": 5,
    },
}
"""Values of attributes by their types, without `CUDNN_`."""
DATA_TYPES = {"float32": "DATA_FLOAT", "float16": "DATA_HALF", "bfloat16": "DATA_BFLOAT16"}


class CudnnError(LibraryError):
    """What cuDNN answered instead of success."""


@dataclass(frozen=True, slots=True)
class Cudnn:
    """The library.

    Attributes:
        functions: Of it, by name.
    """

    functions: Any

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that answers with a status.

        Raises:
            CudnnError: It failed.
        """
        status = getattr(self.functions, name)(*arguments)
        if status:
            say = self.functions.cudnnGetErrorString
            say.restype = ctypes.c_char_p
            text = ctypes.create_string_buffer(_MOST_LETTERS)
            self.functions.cudnnGetLastErrorString(text, c_size_t(_MOST_LETTERS))
            told = text.value.decode(errors="replace")
            word = (say(status) or b"an unknown status").decode()
            raise CudnnError(f"{name}: {word}" + (f" ({told})" if told else ""))

    def number(self) -> int:
        """Return its version, as in 92800."""
        ask = self.functions.cudnnGetVersion
        ask.restype = c_size_t
        return int(ask())

    def version(self) -> str:
        """Return its version, as in `9.28.0`."""
        return version_text(self.number())


class DnnDescriptor:
    """A descriptor of cuDNN's, which lives as long as this does.

    Args:
        dnn: The library.
        kind: What it describes.
        values: Its attributes; those of a type that has words take these, descriptors themselves.

    Raises:
        CudnnError: It is not taken.
    """

    def __init__(self, dnn: Cudnn, kind: str, **values: Any) -> None:
        self.dnn, self.kind = dnn, kind
        self.value = c_void_p()
        dnn.call("cudnnBackendCreateDescriptor", KINDS[kind], byref(self.value))
        weakref.finalize(self, _destroy, dnn, self.value)
        self._kept: list[Any] = []
        for name, value in values.items():
            self._set(name, value)
        if values:
            dnn.call("cudnnBackendFinalize", self.value)

    def get(self, name: str, most: int) -> list[Any]:
        """Return the values of an attribute, so many at most.

        Raises:
            CudnnError: It has none.
        """
        number, kind = ATTRIBUTES[name]
        code, form = TYPES[kind]
        found, count = (form * most)(), c_int64()
        arguments = (self.value, number, code, c_int64(most), byref(count), byref(found))
        self.dnn.call("cudnnBackendGetAttribute", *arguments)
        return list(found[: count.value])

    def fill(self, name: str, made: Sequence[DnnDescriptor]) -> int:
        """Have descriptors filled that an attribute is, and return how many were.

        They keep this one, of which they may be parts.

        Raises:
            CudnnError: It failed.
        """
        number, kind = ATTRIBUTES[name]
        code, form = TYPES[kind]
        found, count = (form * len(made))(*(one.value.value for one in made)), c_int64()
        arguments = (self.value, number, code, c_int64(len(made)), byref(count), byref(found))
        self.dnn.call("cudnnBackendGetAttribute", *arguments)
        for one in made[: count.value]:
            one.keep(self)
        return int(count.value)

    def keep(self, other: DnnDescriptor) -> None:
        """Let another one live as long as this does."""
        self._kept.append(other)

    def _set(self, name: str, value: Any) -> None:
        number, kind = ATTRIBUTES[name]
        code, form = TYPES[kind]
        values = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, DnnDescriptor) for one in values):
            self._kept += values  # a descriptor may go on reading those that it is made of
        plain = [_plain(one, WORDS.get(kind, {})) for one in values]
        array = (form * len(plain))(*plain)
        arguments = (self.value, number, code, c_int64(len(plain)), byref(array))
        try:
            self.dnn.call("cudnnBackendSetAttribute", *arguments)
        except CudnnError as error:
            raise CudnnError(f"{name} of {self.kind}: {error}") from error


def _plain(value: Any, words: Mapping[str, int]) -> Any:
    """Return a value as C has it: of a descriptor or a handle its address, of a word its number."""
    if isinstance(value, DnnDescriptor):
        return value.value.value
    if isinstance(value, c_void_p):
        return value.value
    return words[value] if isinstance(value, str) else value


def _destroy(dnn: Cudnn, value: c_void_p) -> None:
    dnn.functions.cudnnBackendDestroyDescriptor(value)


@cache
def library() -> Cudnn:
    """Return cuDNN: of its wheel, else what the system has.

    What it loads itself, cuBLASLt and NVIDIA's compiler, it looks for in the wheels beside its own.

    Raises:
        BackendError: It is not installed, or too old.
    """
    files = files_of_packages(_PACKAGES, ("libcudnn.so", "cudnn64_"))
    found = Cudnn(load_library(BACKEND_NAME, "cuDNN", files, _NAMES, INSTALL))
    if found.number() < _OLDEST:
        raise BackendError(
            f"cudnn: cuDNN {found.version()} is too old", backend=BACKEND_NAME, hint=INSTALL
        )
    return found
