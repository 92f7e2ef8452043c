# SPDX-License-Identifier: Apache-2.0
"""Programs of `cutlass` on the stand-in of the driver (`worker.py`).

nvcc is not asked: what compiles is a function that makes a file of the format of machine code with
the kernel's name in it, and tells the stand-in what does here what the kernel's source says. That
the source is taken by nvcc, `test_cutlass.py` tries where it is installed.
"""

import ctypes
import gc
import math
import re
import struct
from unittest import mock

import numpy as np
import onnx
import onnx.reference

import intarsia
from intarsia.backends.cuda.cutlass import backend, toolkit

DTYPES = {"cutlass::half_t": np.float16, "float": np.float32}
RUN = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))
ARGUMENTS = 10
NVCC = toolkit.Nvcc("nvcc", "include", "CUTLASS of a test")

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float16[48,16] x, float[3,4,8] h, float[8,8] s)
=> (float16[48,8] y, float[3,4,6] z, float[3,4,4] w) {
    a = MatMul(x, u)
    b = Add(a, c)
    d = Relu(b)
    y = Gemm<transB=1, alpha=0.5>(d, v, f)
    i = Gemm<transA=1>(s, s)
    j = Gemm(i, t)
    z = MatMul(h, j)
    k = MatMul(h, q)
    w = Gelu(k)
}"""


def fake_elf(name):
    """Return a header as of machine code for GPUs, and a name behind it."""
    head = b"\x7fELF" + bytes(12) + struct.pack("<HH", 2, 190) + bytes(20)
    head += struct.pack("<Q", 64 + len(name) + 1) + bytes(10) + struct.pack("<HHH", 64, 0, 0)
    return head.ljust(64, b"\0") + name.encode() + b"\0"


class Compiler:
    """What is called in the place of nvcc."""

    def __init__(self, stand_in):
        self.stand_in = stand_in
        self.compiled, self.ran, self.held = [], [], []

    def __call__(self, nvcc, kernel, arch):
        assert (nvcc, arch) == (NVCC, "sm_80")
        self.compiled.append(kernel.name)
        run = RUN(self.computing(kernel))
        self.held.append(run)
        whole = self.stand_in.stand_in_whole_kernel
        whole(kernel.name.encode(), run, ctypes.c_uint(kernel.threads), ARGUMENTS)
        return toolkit.MachineCode(fake_elf(kernel.name), (128, 0, 0, 24576))

    def computing(self, kernel):
        source = kernel.source
        dtype = DTYPES[re.search(r"using Element = (.+);", source)[1]]
        turned = [one == "ColumnMajor" for one in re.findall(r"layout::(\w+), \d", source)]
        has_row = "NoBetaScaling" in source
        activation = re.search(r"thread::LinearCombination(\w*)<", source)[1]
        assert len(turned) == 2

        size = np.dtype(dtype).itemsize
        rows, columns, _ = kernel.tile.block

        def run(table):
            numbers = [ctypes.c_int64.from_address(table[one]).value for one in range(ARGUMENTS)]
            left, right, row, result, m, n, k, *steps, bits = numbers
            (alpha,) = struct.unpack("<d", struct.pack("<q", bits))
            item = self.stand_in.stand_in_ctaid_z()
            a = matrix(left + item * steps[0] * size, dtype, (m, k), turned[0])
            b = matrix(right + item * steps[1] * size, dtype, (k, n), turned[1])
            total = alpha * (a.astype("float64") @ b.astype("float64"))
            if has_row:
                total = total + matrix(row, dtype, (1, n), False)
            if activation == "Relu":
                total = np.maximum(total, 0)
            if activation == "GELU":
                total = total * 0.5 * (1 + np.vectorize(math.erf)(total / math.sqrt(2)))
            # No more than what the blocks reach.
            reached = slice(self.stand_in.stand_in_blocks(0) * rows)
            across = slice(self.stand_in.stand_in_blocks(1) * columns)
            out = matrix(result + item * m * n * size, dtype, (m, n), False)
            out[reached, across] = total[reached, across]
            self.ran.append((kernel.name, activation, has_row))

        return run


def matrix(address, dtype, shape, is_turned):
    count = shape[0] * shape[1] * np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype)
    return flat.reshape(shape[::-1]).T if is_turned else flat.reshape(shape)


def make_model():
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(7)
    shapes = {"u": (16, 12), "c": (12,), "v": (8, 12), "f": (8,), "t": (8, 6), "q": (3, 8, 4)}
    for name, shape in shapes.items():
        weight = rng.uniform(-1, 1, shape).astype("float16" if name in "ucvf" else "float32")
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    feeds = {
        "x": rng.uniform(-1, 1, (48, 16)).astype("float16"),
        "h": rng.uniform(-1, 1, (3, 4, 8)).astype("float32"),
        "s": rng.uniform(-1, 1, (8, 8)).astype("float32"),
    }
    return made, feeds


def check(stand_in, folder):
    """Compile, run, save and load: numbers, one launch, what the kernels need, what is compiled."""
    model, feeds = make_model()
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    compiler = Compiler(stand_in)
    with (
        mock.patch.object(toolkit, "toolkit", return_value=NVCC),
        mock.patch.object(backend, "toolkit", return_value=NVCC),
        mock.patch.object(toolkit, "_compile", compiler),
    ):
        (target,) = backend.BACKEND.detect().targets
        assert str(target) == "cutlass -base='cuda -arch=sm_80'", target
        options = {"num_threads": 1, "placement": "greedy", "cache": False}
        exe = intarsia.compile(model, "cutlass, cuda, llvm", **options)
        on = [region.backend for region in exe.placement.regions for _ in region.nodes]
        assert on == ["cutlass"] * 9, exe.explain()
        assert len(compiler.compiled) == len(set(compiler.compiled)) == 5
        for _ in range(3):
            found = exe.run(feeds)
            for name, value in zip("yzw", wanted, strict=True):
                np.testing.assert_allclose(found[name], value, rtol=4e-3, atol=4e-3)
        kinds = {what[1:] for what in compiler.ran}
        assert kinds == {("Relu", True), ("", True), ("", False), ("GELU", False)}, kinds
        exe.save(folder / "t.intarsia")
        again = intarsia.load(folder / "t.intarsia").run(feeds)
        np.testing.assert_array_equal(again["y"], found["y"])
        # Kernels are kept: nothing is compiled for a second program.
        count = len(compiler.compiled)
        intarsia.compile(model, "cutlass, cuda, llvm", **options)
        assert len(compiler.compiled) == count
    del exe, again
    gc.collect()
