# SPDX-License-Identifier: Apache-2.0
"""What we use of ONNX Runtime's C interface for plug-ins: functions by their places in its tables.

The tables only ever grow at their ends, and a library says for which version it was written: all
of this is of version 24 (ONNX Runtime 1.24), which later ones serve too.

Source:
    onnxruntime_c_api.h and onnxruntime_ep_c_api.h of ONNX Runtime 1.24.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from dataclasses import dataclass
from typing import Any

from intarsia.errors import BackendError

VERSION = 24
"""Of the interface. ONNX Runtime 1.N has version N, and serves all before."""

FAILED, INVALID_ARGUMENT = 1, 2
"""Codes of a status: ORT_FAIL, ORT_INVALID_ARGUMENT."""

CPU_DEVICE = 0
TENSOR = 1
"""ONNX_TYPE_TENSOR."""

OPTIONAL_DIMENSION = -1
"""What a dimension is that has no fixed size."""

CREATE_STATUS = 0

PLACES: dict[str, int] = {
    "GetErrorMessage": 2,
    "CastTypeInfoToTensorInfo": 55,
    "GetOnnxTypeFromTypeInfo": 56,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetSymbolicDimensions": 63,
    "GetTensorMutableData": 51,
    "GetStringTensorDataLength": 53,
    "GetStringTensorContent": 54,
    "KernelContext_GetInput": 90,
    "KernelContext_GetOutput": 91,
    "ReleaseStatus": 93,
    "ReleaseValue": 96,
    "CreateOpAttr": 211,
    "ReleaseOpAttr": 212,
    "ReadOpAttr": 272,
    "GetValueInfoName": 289,
    "GetValueInfoTypeInfo": 290,
    "GetModelEditorApi": 291,
    "CreateKeyValuePairs": 295,
    "AddKeyValuePair": 296,
    "GetKeyValuePairs": 298,
    "ReleaseKeyValuePairs": 300,
    "HardwareDevice_Type": 307,
    "GetEpApi": 317,
    "GetTensorSizeInBytes": 318,
    "ValueInfo_GetInitializerValue": 326,
    "ValueInfo_IsGraphOutput": 330,
    "ValueInfo_IsConstantInitializer": 331,
    "Graph_GetModelPath": 334,
    "Graph_GetOnnxIRVersion": 335,
    "Graph_GetNumOperatorSets": 336,
    "Graph_GetOperatorSets": 337,
    "Graph_GetNumInputs": 338,
    "Graph_GetInputs": 339,
    "Graph_GetNumOutputs": 340,
    "Graph_GetOutputs": 341,
    "Graph_GetNumInitializers": 342,
    "Graph_GetInitializers": 343,
    "Graph_GetNumNodes": 344,
    "Graph_GetNodes": 345,
    "Graph_GetParentNode": 346,
    "Node_GetId": 348,
    "Node_GetName": 349,
    "Node_GetOperatorType": 350,
    "Node_GetDomain": 351,
    "Node_GetNumInputs": 353,
    "Node_GetInputs": 354,
    "Node_GetNumOutputs": 355,
    "Node_GetOutputs": 356,
    "Node_GetNumImplicitInputs": 357,
    "Node_GetImplicitInputs": 358,
    "Node_GetNumAttributes": 359,
    "Node_GetAttributes": 360,
    "OpAttr_GetTensorAttributeAsOrtValue": 362,
    "OpAttr_GetType": 363,
    "OpAttr_GetName": 364,
    "Node_GetNumSubgraphs": 365,
    "GetTensorData": 378,
    "GetSessionOptionsConfigEntries": 379,
    "TensorTypeAndShape_HasShape": 390,
    "GetTensorElementTypeAndShapeDataReference": 414,
}
"""By name, the place of a function in the main table, OrtApi."""

_EP_PLACES = {"CreateEpDevice": 0, "EpGraphSupportInfo_AddNodesToFuse": 2}
"""The same of OrtEpApi."""

_EDITOR_PLACES = {"CreateNode": 6}
"""The same of OrtModelEditorApi."""

_RETURNING: dict[str, Any] = {
    "GetErrorMessage": c_char_p,
    "ReleaseStatus": None,
    "ReleaseValue": None,
    "ReleaseOpAttr": None,
    "GetModelEditorApi": c_void_p,
    "CreateKeyValuePairs": None,
    "AddKeyValuePair": None,
    "GetKeyValuePairs": None,
    "ReleaseKeyValuePairs": None,
    "HardwareDevice_Type": c_int,
    "GetEpApi": c_void_p,
    "TensorTypeAndShape_HasShape": ctypes.c_bool,
}
"""What functions return that do not return a status."""


class OrtError(BackendError):
    """ONNX Runtime refused something that it was asked for."""


def _vector(address: int, count: int) -> list[int]:
    return list((c_void_p * count).from_address(address)) if count else []


@dataclass(frozen=True, slots=True)
class OrtApi:
    """ONNX Runtime's functions, by name.

    Attributes:
        tables: The addresses of the main table, and of those for providers and for making nodes.
    """

    tables: tuple[int, int, int]

    @classmethod
    def of(cls, base: int) -> OrtApi:
        """Return the functions of the ONNX Runtime that loads a library.

        Args:
            base: The address of its OrtApiBase.

        Raises:
            BackendError: It is too old.
        """
        get_api, get_version = _vector(base, 2)
        main = CFUNCTYPE(c_void_p, c_uint32)(get_api)(VERSION)
        if not main:
            version = CFUNCTYPE(c_char_p)(get_version)().decode()
            raise BackendError(
                f"this provider needs ONNX Runtime 1.{VERSION} or later, this is {version}",
                hint="pip install --upgrade onnxruntime",
            )
        first = cls((main, 0, 0))
        return cls((main, first.call("GetEpApi"), first.call("GetModelEditorApi")))

    @property
    def address(self) -> int:
        """The address of the main table."""
        return self.tables[0]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function.

        Args:
            name: Of the function.
            arguments: Addresses, sizes and what `byref` returns; bytes are texts.

        Raises:
            OrtError: It returned a status that says what is wrong.
        """
        function = _functions.get((self.tables, name))
        if function is None:
            function = _function(self.tables, name, len(arguments))
        result = function(*arguments)
        if result and name not in _RETURNING:
            text = self.call("GetErrorMessage", result).decode(errors="replace")
            self.call("ReleaseStatus", result)
            raise OrtError(f"{name}: {text}")
        return result

    def pointer(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter is where it writes an address; return that, or 0."""
        found = c_void_p()
        self.call(name, *arguments, byref(found))
        return found.value or 0

    def number(self, name: str, *arguments: Any) -> int:
        """The same of a number of 8 bytes."""
        found = c_int64()
        self.call(name, *arguments, byref(found))
        return found.value

    def small(self, name: str, *arguments: Any) -> int:
        """The same of a number of 4 bytes or fewer."""
        found = c_int()
        self.call(name, *arguments, byref(found))
        return found.value

    def text(self, name: str, *arguments: Any) -> str:
        """The same of a text; none is empty."""
        found = c_char_p()
        self.call(name, *arguments, byref(found))
        return (found.value or b"").decode(errors="surrogateescape")

    def list(self, what: str, owner: int) -> list[int]:
        """Return the addresses of what something has, as `Graph_Nodes`; 0 is none."""
        kind, plural = what.split("_")
        count = self.number(f"{kind}_GetNum{plural}", owner)
        found = (c_void_p * count)()
        if count:
            self.call(f"{kind}_Get{plural}", owner, found, count)
        return [address or 0 for address in found]

    def entries(self, options: int) -> dict[str, str]:
        """Return the configuration of a session."""
        pairs = c_void_p(self.pointer("GetSessionOptionsConfigEntries", options))
        keys, values, count = POINTER(c_char_p)(), POINTER(c_char_p)(), c_size_t()
        try:
            self.call("GetKeyValuePairs", pairs, byref(keys), byref(values), byref(count))
            return {
                (keys[i] or b"").decode(): (values[i] or b"").decode() for i in range(count.value)
            }
        finally:
            self.call("ReleaseKeyValuePairs", pairs)

    def status(self, text: str, code: int = FAILED) -> int:
        """Return the address of a new status."""
        create = CFUNCTYPE(c_void_p, c_int, c_char_p)(_vector(self.address, 1)[CREATE_STATUS])
        made: int = create(code, text.encode(errors="replace").replace(b"\0", b"")) or 0
        return made

    @contextmanager
    def released(self, release: str, address: int) -> Iterator[int]:
        """Yield something that is ours, and give it back."""
        try:
            yield address
        finally:
            if address:
                self.call(release, address)


_functions: dict[tuple[tuple[int, int, int], str], Callable[..., Any]] = {}
"""Functions of the tables at some addresses; one process has one ONNX Runtime, as a rule."""


def _function(tables: tuple[int, int, int], name: str, count: int) -> Callable[..., Any]:
    for table, places in zip(tables, (PLACES, _EP_PLACES, _EDITOR_PLACES), strict=True):
        if name in places:
            address = c_void_p.from_address(table + 8 * places[name]).value or 0
            # With the interpreter's lock: to give it back and ask for it again takes longer than
            # any of these does.
            prototype = PYFUNCTYPE(_RETURNING.get(name, c_void_p), *([c_void_p] * count))
            found = _functions[tables, name] = prototype(address)
            return found
    raise KeyError(name)


class FusionOptions(ctypes.Structure):
    """OrtNodeFusionOptions."""

    _fields_ = (("version", c_uint32), ("drops_constants", ctypes.c_bool))


class ComputeInfo(ctypes.Structure):
    """OrtNodeComputeInfo, and after it what `intarsia_compute` reads.

    Attributes:
        version: Of the interface.
        create_state: Called when a session is ready.
        compute: Called to run the region.
        release_state: Called at the end of a session.
        callback: Runs the region, given this, a record of its tensors and the kernel's context.
        api: The main table.
        input_count: Of the fused node.
        output_count: How many outputs have a shape that is known before it runs.
        shapes: Of these, the number of dimensions and the dimensions, one after another.
    """

    _fields_ = (
        ("version", c_uint32),
        ("create_state", c_void_p),
        ("compute", c_void_p),
        ("release_state", c_void_p),
        ("callback", c_void_p),
        ("api", c_void_p),
        ("input_count", c_int64),
        ("output_count", c_int64),
        ("shapes", c_void_p),
    )


EP_FUNCTIONS = (
    "GetName",
    "GetCapability",
    "Compile",
    "ReleaseNodeComputeInfos",
    "GetPreferredDataLayout",
    "ShouldConvertDataLayoutForOp",
    "SetDynamicOptions",
    "OnRunStart",
    "OnRunEnd",
    "CreateAllocator",
    "CreateSyncStreamForDevice",
    "GetCompiledModelCompatibilityInfo",
    "GetKernelRegistry",
)
"""The functions of OrtEp, in their order, after its version."""

FACTORY_FUNCTIONS = (
    "GetName",
    "GetVendor",
    "GetSupportedDevices",
    "CreateEp",
    "ReleaseEp",
    "GetVendorId",
    "GetVersion",
    "ValidateCompiledModelCompatibilityInfo",
    "CreateAllocator",
    "ReleaseAllocator",
    "CreateDataTransfer",
    "IsStreamAware",
    "CreateSyncStreamForDevice",
    "GetHardwareDeviceIncompatibilityDetails",
)
"""The functions of OrtEpFactory, in their order, after its version."""


def make_status(base: int, text: str) -> int:
    """Return the address of a new status of any ONNX Runtime, however old.

    Args:
        base: The address of its OrtApiBase.
        text: What it says.
    """
    main: int = CFUNCTYPE(c_void_p, c_uint32)(_vector(base, 1)[0])(1) or 0
    return OrtApi((main, 0, 0)).status(text)
