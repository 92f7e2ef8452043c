# SPDX-License-Identifier: Apache-2.0
"""What a row of the kernel benchmark is, and how both of its sides are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import Function
from intarsia.codegen.verifier import verify
from intarsia.native.callpath import make_step
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object, host_machine
from intarsia.native.native_target import target_cpu
from intarsia.target import Target

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], Any]

UNIT = target_cpu(Target("llvm"))[1]
"""The vector unit of this machine."""


@dataclass(frozen=True)
class Sides:
    """Both sides of a row, ready to be called; they hold what they work on.

    Attributes:
        ours: Our kernel, or kernels.
        peers: ONNX Runtime's calls with weights: the peer's time is the weighted sum of theirs.
            A chain of five and one of one, with +1/4 and -1/4, tell the cost inside a network.
        results: Yields our result and the peer's, or an exact one, after a call of each.
        tolerance: Of their difference, relative to the largest value.
    """

    ours: Call
    peers: Sequence[tuple[Call, float]]
    results: Callable[[], tuple[Array, Array]]
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        area: Whose limit it counts for.
        name: What is computed, with its shape.
        work: Floating-point operations, or bytes moved, of one call.
        unit: What a second of work is printed as: `GFLOP/s` or `GB/s`.
        build: Makes both sides; called just before they are measured.
    """

    area: str
    name: str
    work: float
    unit: str
    build: Callable[[], Sides]


@dataclass(frozen=True)
class Area:
    """Rows that have one limit together.

    Attributes:
        name: Of the area.
        least: What the geometric mean of peer's time over ours must reach; None for no limit.
        rows: Its rows.
        peak: Measures what the machine can do at most, in the rows' unit; None if that says little.
    """

    name: str
    least: float | None
    rows: Sequence[Row] = field(default=())
    peak: Callable[[], float] | None = None


def aligned(array: Array, alignment: int = 64) -> Array:
    """Return a copy that begins at a cache line."""
    memory = np.zeros(array.nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def kernel_call(*kernels: tuple[Function, Sequence[Array]], level: int = 0) -> Call:
    """Return a call of kernels on their arguments, which should be `aligned`, one after another."""
    libraries, calls, kept = [], [], []
    for function, arrays in kernels:
        verify(function)
        code = compile_object(emit_llvm(expand(function)), host_machine(), level)
        library = LoadedCode({function.name: code})
        addresses = [array.ctypes.data for array in arrays]
        assert function.extent is not None, "a benchmark's kernel has constant extents"
        calls.append((library.addresses[function.name], addresses, function.extent))
        libraries.append(library)
        kept.append(list(arrays))
    return make_step(calls, (libraries, kept))


def session_call(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, Array],
    constants: Mapping[str, Array],
) -> Call:
    """Return a call of a model in ONNX Runtime on one thread; it writes into `outputs`.

    Inputs and outputs are bound, constants are initializers, which it packs as it likes.
    """
    graph = helper.make_graph(
        list(nodes),
        "row",
        [_info(name, array) for name, array in feeds.items()],
        [_info(name, array) for name, array in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        pointer = array.ctypes.data
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, pointer)
    held = (feeds, outputs)

    def call(_held: object = held) -> None:
        session.run_with_iobinding(binding)

    return call


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )
