"""Runs kernels through the other emitters, and compares them with the interpreter.

Each runner has the signature of the fixture `run_kernel`, so that it takes the cases which the
machine code is tested by.
"""

import ctypes
import functools
import itertools
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.c_compiler import STRICT, compile_c
from tests.gpu_on_cpu import SHUFFLE, WAIT, link_kernel, waits
from tests.opencl import first_device
from tests.webgpu import opened_device

from intarsia.backends.cuda.device import CudaView
from intarsia.backends.cuda.driver import call, list_devices
from intarsia.backends.cuda.execution import Arguments
from intarsia.backends.device import ThreadOptions
from intarsia.backends.device_payload import KernelRecord
from intarsia.backends.native import CallRecord
from intarsia.backends.values import TensorSpec
from intarsia.backends.webgpu.execution import launch_calls, make_pipeline
from intarsia.codegen.emit.c import emit_c, parameters
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.codegen.emit.opencl import (
    build_options,
    emit_opencl,
    program_source,
    refuse_types,
)
from intarsia.codegen.emit.wgsl import emit_wgsl, missing_feature, needed_features
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.verifier import verify
from intarsia.graph.arena import aligned_bytes
from intarsia.native.ptx import compile_ptx, gpu_limits, ptx_arch
from intarsia.settings import Settings
from intarsia.target import Target


def compare(function, arrays, results, sizes, rtol):
    """Check what a kernel wrote against the interpreter, to `rtol` of the largest value."""
    slow = [array.copy().reshape(-1) for array in arrays]
    interpret(function, slow, sizes)
    for fast, exact, buffer in zip(results, slow, function.buffers, strict=True):
        if not buffer.is_written:
            np.testing.assert_array_equal(fast.reshape(-1), exact)
        elif np.dtype(buffer.dtype).kind == "f":
            finite = np.abs(exact[np.isfinite(exact)])
            scale = float(finite.max()) if finite.size else 1.0
            np.testing.assert_allclose(fast.reshape(-1), exact, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(fast.reshape(-1), exact)


def run_c(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0):
    """Run a kernel through a C compiler; return what the arrays hold afterwards."""
    verify(function)
    expanded = expand(function)
    verify(expanded)
    arrays = [np.ascontiguousarray(array) for array in arrays]
    results = [array.copy() for array in arrays]
    extent = function.extent
    if not isinstance(extent, int):
        extent = sizes[function.free.index(extent)]
    with tempfile.TemporaryDirectory() as folder:
        library = build_c(expanded, Path(folder), f"-O{max(level, 1)}")
        for begin, end in ((0, extent // 2), (extent // 2, extent)):
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in results]
            integers = [ctypes.c_int64(number) for number in (*sizes, begin, end)]
            library.entry(*pointers, *integers)
    if interpreted:
        compare(function, arrays, results, sizes, rtol)
    return results


def build_c(function, folder, *options):
    """Compile a kernel to a shared library; its function is `entry`."""
    declared = ", ".join(f"{type_} {name}" for type_, name in parameters(function))
    passed = ", ".join(name for _, name in parameters(function))
    source = folder / "kernel.c"
    source.write_text(
        f"{emit_c([function])}\nvoid entry({declared});\n"
        f"void entry({declared})\n{{\n    {function.name}({passed});\n}}\n"
    )
    target = folder / "kernel.so"
    flags = (*STRICT, *options, "-DEXACT_FMA", "-march=native", "-shared", "-fPIC")
    compile_c(*flags, source, "-o", target, "-lm")
    return ctypes.CDLL(str(target))


@functools.cache
def opencl_context():
    """A context of the first device, which lives as long as the process."""
    device = first_device().device
    import pyopencl as cl

    return cl.Context([device])


@functools.cache
def opencl_queue():
    """A queue on the first device; Intel's keeps no context alive."""
    context = opencl_context()
    import pyopencl as cl

    return cl.CommandQueue(context)


def device_limits(work_group=1, **changes):
    """The limits of the first device."""
    import pyopencl as cl

    device = opencl_queue().device
    extensions = device.extensions.split()
    flags = device.single_fp_config
    return DeviceLimits(
        **{
            "vector_bits": 32 * device.native_vector_width_float,
            "max_work_group": device.max_work_group_size,
            "work_group": work_group,
            "local_bytes": device.local_mem_size,
            "has_fp64": "cl_khr_fp64" in extensions,
            "has_fp16": "cl_khr_fp16" in extensions,
            "is_correctly_rounded": bool(flags & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT),
            **changes,
        }
    )


SHIFT = 3
"""Elements before each buffer in its memory object: a kernel must honour its offset."""


def run_opencl_groups(function, arrays, **options):
    """Run a kernel with many work-items for a turn, in groups of 8, as a GPU would."""
    limits = device_limits(work_group=8, busy_items=1 << 10)
    return run_opencl(function, arrays, limits=limits, **options)


def run_opencl(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0, limits=None):
    """Run a kernel on the first OpenCL device; return what the arrays hold afterwards."""
    del level
    queue = opencl_queue()
    import pyopencl as cl

    limits = limits or device_limits()
    verify(function)
    expanded = expand(function)
    missing = refuse_types(expanded, limits)
    if missing:
        pytest.skip(f"the device lacks {missing}")
    kernel = emit_opencl(expanded, limits)
    source = program_source([kernel], limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some compilers say that they have compiled
        program = cl.Program(opencl_context(), source).build(list(build_options(limits)))
    arrays = [np.ascontiguousarray(array) for array in arrays]
    arguments, memories = [], []
    for array in arrays:
        held = np.zeros(array.size + 2 * SHIFT, array.dtype)
        held[SHIFT : SHIFT + array.size] = array.reshape(-1)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        memory = cl.Buffer(opencl_context(), flags, hostbuf=held)
        memories.append((memory, held))
        arguments += [memory, np.int64(SHIFT)]
    arguments += [np.int64(size) for size in sizes]
    extent = function.extent
    if not isinstance(extent, int):
        extent = sizes[function.free.index(extent)]
    made = cl.Kernel(program, kernel.name)
    made.set_args(*arguments)
    cl.enqueue_nd_range_kernel(queue, made, kernel.global_size(extent), kernel.local_size)
    results = []
    for array, (memory, held) in zip(arrays, memories, strict=True):
        before = held.copy()
        cl.enqueue_copy(queue, held, memory)
        np.testing.assert_array_equal(held[:SHIFT], before[:SHIFT])
        np.testing.assert_array_equal(held[SHIFT + array.size :], before[SHIFT + array.size :])
        results.append(held[SHIFT : SHIFT + array.size].reshape(array.shape))
    if interpreted:
        compare(function, arrays, results, sizes, rtol)
    return results


def run_wgsl(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0):
    """Run a kernel on the first WebGPU device; return what the arrays hold afterwards."""
    del level
    device = opened_device()
    limits = device.entry.limits
    verify(function)
    expanded = expand(function)
    missing = missing_feature(needed_features(expanded), limits)
    if missing:
        pytest.skip(f"the device lacks {missing}")
    kernel = emit_wgsl(expanded, limits)
    arrays = [np.ascontiguousarray(array) for array in arrays]
    extent = function.extent
    if not isinstance(extent, int):
        extent = sizes[function.free.index(extent)]
    items = [array.itemsize for array in arrays]
    record = KernelRecord(kernel.name, list(kernel.local_size), items, [])
    tensors, places, everything = [], [], []
    for number, array in enumerate(arrays):
        held = np.zeros(array.size + 16, array.dtype)
        held[8 : 8 + array.size] = array.reshape(-1)
        spec = TensorSpec(f"t{number}", array.dtype.name, held.shape)
        tensor = device.tensor(device.allocate(spec.nbytes), 0, spec)
        device.write(held, tensor)
        tensors.append(tensor)
        places.append((tensor.block.memory, 0, spec.nbytes))
        everything.append(held)
    arguments = [(number, 8 * item) for number, item in enumerate(items)]
    call = CallRecord(0, arguments, extent, [], "", sizes=list(sizes))
    pipeline = make_pipeline(device, record, kernel.source)
    step = launch_calls(device, [(pipeline, record, call, kernel.global_size(extent))], places, ())
    step()
    results = []
    for array, tensor, held in zip(arrays, tensors, everything, strict=True):
        found = np.zeros_like(held)
        device.read(tensor, found)
        np.testing.assert_array_equal(found[:8], held[:8])
        np.testing.assert_array_equal(found[8 + array.size :], held[8 + array.size :])
        results.append(found[8 : 8 + array.size].reshape(array.shape))
    if interpreted:  # WGSL's `fma` may round twice
        compare(function, arrays, results, sizes, max(rtol, 1e-6))
    return results


LANES = DeviceLimits(work_group=8, busy_items=1 << 10, has_fp16=True, local_bytes=48 << 10)
"""A GPU of few threads: each is a thread of this CPU."""


def run_nvptx(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0):
    """Run a kernel in LLVM's IR for NVPTX on this CPU; return what the arrays hold afterwards.

    What is run is the text that PTX is made of, compiled for this CPU: special registers and
    barriers are functions of this process, and each thread of a block is one here.
    """
    del level
    verify(function)
    expanded = expand(function)
    verify(expanded)
    kernel = emit_nvptx(expanded, LANES)
    arrays = [np.ascontiguousarray(array) for array in arrays]
    extent = function.extent
    if not isinstance(extent, int):
        extent = sizes[function.free.index(extent)]
    held = [aligned_bytes(array.nbytes + 128) for array in arrays]
    for memory, array in zip(held, arrays, strict=True):
        memory[:] = 0xA5
        memory[64 : 64 + array.nbytes] = array.reshape(-1).view(np.uint8)
    pointers = [ctypes.c_void_p(memory.ctypes.data + 64) for memory in held]
    _run_blocks(kernel, extent, (*pointers, *map(ctypes.c_int64, sizes)))
    results = []
    for memory, array in zip(held, arrays, strict=True):
        assert (memory[:64] == 0xA5).all()
        assert (memory[64 + array.nbytes :] == 0xA5).all()
        data = memory[64 : 64 + array.nbytes].view(array.dtype)
        results.append(data.reshape(array.shape).copy())
    if interpreted:
        compare(function, arrays, results, sizes, rtol)
    return results


def _run_blocks(kernel, extent, arguments):
    """Run the blocks of a grid one after another, and the threads of each side by side."""
    here = threading.local()
    width = kernel.local_size[0] * kernel.local_size[1]
    items = kernel.global_size(extent)
    grid = [whole // part for whole, part in zip(items, kernel.local_size, strict=True)]
    together = threading.Barrier(width)

    def wait(_number):
        together.wait()

    handed = [0] * width

    def shuffle(_members, number, mask, _segments):
        handed[here.thread] = number
        together.wait()
        found = handed[here.thread ^ mask]
        together.wait()
        return found

    registers = {
        "tid.x": lambda: here.thread,
        "ctaid.x": lambda: here.block[0],
        "ctaid.y": lambda: here.block[1],
        "nctaid.y": lambda: grid[1],
    }
    held = {name: ctypes.CFUNCTYPE(ctypes.c_int32)(value) for name, value in registers.items()}
    held[SHUFFLE] = ctypes.CFUNCTYPE(*[ctypes.c_int32] * 5)(shuffle)
    held[WAIT] = ctypes.CFUNCTYPE(None, ctypes.c_int32)(wait)
    addresses = {name: ctypes.cast(value, ctypes.c_void_p).value for name, value in held.items()}
    _library, address = link_kernel(kernel, addresses)
    call = ctypes.CFUNCTYPE(None, *map(type, arguments))(address)
    has_to_wait = waits(kernel)
    blocks = list(itertools.product(range(grid[0]), range(grid[1])))

    def run(thread):
        here.thread = thread
        for here.block in blocks:
            call(*arguments)
            if has_to_wait:  # blocks have one shared memory here
                together.wait()

    if not has_to_wait:
        for thread in range(width):
            run(thread)
        return
    threads = [threading.Thread(target=run, args=(number,)) for number in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@functools.cache
def cuda_view():
    """The first GPU, opened once for the process."""
    return CudaView(0, list_devices(Settings.from_environment())[0], ThreadOptions())


def run_cuda(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0):
    """Run a kernel's PTX on the first GPU; return what the arrays hold afterwards."""
    del level
    view = cuda_view()
    verify(function)
    kernel = emit_nvptx(expand(function), gpu_limits(Target("cuda")))
    extent = function.extent
    if not isinstance(extent, int):
        extent = sizes[function.free.index(extent)]
    arrays = [np.ascontiguousarray(array) for array in arrays]
    tensors = []
    for number, array in enumerate(arrays):
        held = np.full(array.nbytes + 512, 0xA5, np.uint8)
        held[256 : 256 + array.nbytes] = array.reshape(-1).view(np.uint8)
        spec = TensorSpec(f"t{number}", "uint8", held.shape)
        tensors.append(view.tensor(view.allocate(spec.nbytes), 0, spec))
        view.write(held, tensors[-1])
    ptx = compile_ptx([kernel], ptx_arch(view.entry.capability))
    module = call("cuModuleLoadData", ptx.encode() + b"\0")
    made = call("cuModuleGetFunction", module, kernel.name.encode())
    items = zip(kernel.global_size(extent), kernel.local_size, strict=True)
    grid = [whole // part for whole, part in items]
    threads = kernel.local_size[0] * kernel.local_size[1]
    arguments = Arguments([*(one.block.memory.address + 256 for one in tensors), *sizes])
    numbers = (*grid, 1, threads, 1, 1, 0)
    call("cuLaunchKernel", made, *numbers, view.stream, arguments.address, 0)
    results = []
    for array, tensor in zip(arrays, tensors, strict=True):
        held = np.empty(tensor.spec.shape, np.uint8)
        view.read(tensor, held)
        assert (held[:256] == 0xA5).all()
        assert (held[256 + array.nbytes :] == 0xA5).all()
        data = held[256 : 256 + array.nbytes].view(array.dtype)
        results.append(data.reshape(array.shape).copy())
    call("cuModuleUnload", module)
    if interpreted:
        compare(function, arrays, results, sizes, rtol)
    return results
