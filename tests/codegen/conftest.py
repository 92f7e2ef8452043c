"""Runs kernels of the loop-level IR: compiled for this machine, and in the interpreter."""

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.printer import print_function
from intarsia.codegen.verifier import verify
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_object


def host_cpu():
    return NativeCpu("", llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@pytest.fixture(scope="session")
def run_kernel():
    """A function that runs a kernel on copies of arrays and returns what they hold afterwards.

    It runs the machine code in two halves of the parallel loop (as threads would) and the
    interpreter, and checks that both agree to `rtol` of the largest value.
    """

    def run(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0, emit=emit_llvm):
        verify(function)
        assert print_function(function)
        expanded = expand(function)
        verify(expanded)
        arrays = [np.ascontiguousarray(array) for array in arrays]
        compiled = [aligned_copy(array) for array in arrays]
        library = LoadedCode({function.name: compile_object(emit(expanded), host_cpu(), level)})
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        entry = call(library.addresses[function.name])
        table = np.array([a.ctypes.data for a in compiled] + list(sizes), np.int64)
        extent = function.extent
        if not isinstance(extent, int):
            extent = sizes[function.free.index(extent)]
        for begin, end in ((0, extent // 2), (extent // 2, extent)):
            entry(table.ctypes.data, begin, end)
        if interpreted:
            slow = [array.copy().reshape(-1) for array in arrays]
            interpret(function, slow, sizes)
            for fast, exact, buffer in zip(compiled, slow, function.buffers, strict=True):
                if not buffer.is_written:
                    continue
                if np.dtype(buffer.dtype).kind == "f":
                    finite = np.abs(exact[np.isfinite(exact)])
                    scale = float(finite.max()) if finite.size else 1.0
                    np.testing.assert_allclose(
                        fast.reshape(-1), exact, rtol=rtol, atol=rtol * scale
                    )
                else:
                    np.testing.assert_array_equal(fast.reshape(-1), exact)
        return compiled

    return run


def aligned_copy(array):
    """A copy whose first element lies at a cache line."""
    memory = np.zeros(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view
