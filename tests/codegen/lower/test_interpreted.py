# SPDX-License-Identifier: Apache-2.0
"""Blocks of the zoo's networks at small sizes: compiled, and every kernel in the interpreter."""

import ctypes

import numpy as np
import pytest
from tests.codegen.conftest import aligned_copy, host_cpu
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia import zoo
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.lower.program import StorageKind
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, SSE
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object
from intarsia.zoo import random_net

UNITS = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "scalar": SCALAR}
SAME = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"


def bottleneck():
    body = f"""
        a = Conv(x, w1) b = BatchNormalization(a, g, h, m, v) c = Relu(b)
        d = Conv{SAME}(c, w2) e = BatchNormalization(d, g, h, m, v) f = Relu(e)
        i = Conv(f, w3, z) j = Add(i, x) k = Relu(j)
        y = Conv<strides = [2, 2]>(k, w4)"""
    statistics = dict.fromkeys("ghm", (5,)) | {"v": np.linspace(0.5, 2, 5, dtype=np.float32)}
    weights = {"w1": (5, 20, 1, 1), "w2": (5, 5, 3, 3), "w3": (20, 5, 1, 1), "z": (20,)}
    return small_model(
        "y", body, {"x": (1, 20, 5, 6)}, weights | {"w4": (7, 20, 1, 1)} | statistics
    )


def fire_module():
    body = f"""
        s = Conv(x, w1, b1) t = Relu(s)
        a = Conv(t, w2, b2) b = Relu(a) c = Conv{SAME}(t, w3, b2) d = Relu(c)
        e = Concat<axis = 1>(b, d) f = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(e)
        y = Conv(f, w4)"""
    weights = {"w1": (4, 10, 1, 1), "b1": (4,), "w2": (16, 4, 1, 1), "w3": (16, 4, 3, 3)}
    return small_model(
        "y", body, {"x": (1, 10, 5, 7)}, weights | {"b2": (16,), "w4": (6, 32, 1, 1)}
    )


def dense_block():
    body = f"""
        a = Mul(x, s) b = Add(a, t) c = Relu(b) d = Conv(c, w1) e = Relu(d) f = Conv{SAME}(e, w2)
        g = Concat<axis = 1>(x, f)
        h = Mul(g, s2) i = Relu(h) j = Conv(i, w3) k = Relu(j) l = Conv{SAME}(k, w2)
        m = Concat<axis = 1>(g, l)
        n = Conv(m, w4) y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(n)"""
    weights = {"s": (8, 1, 1), "t": (8, 1, 1), "s2": (12, 1, 1), "w1": (6, 8, 1, 1)}
    weights |= {"w2": (4, 6, 3, 3), "w3": (6, 12, 1, 1), "w4": (8, 16, 1, 1)}
    return small_model("y", body, {"x": (1, 8, 4, 6)}, weights)


def inverted_residual():
    body = """
        a = Conv(x, w1) b = Clip(a, low, high)
        c = Conv<group = 20, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(b, w2)
        d = Clip(c, low, high)
        e = Conv(d, w3) f = Add(x, e)
        g = ReduceMean<axes = [-1, -2], keepdims = 1>(f) y = Reshape(g, shape)"""
    weights = {"w1": (20, 6, 1, 1), "w2": (20, 1, 3, 3), "w3": (6, 20, 1, 1)}
    bounds = {"low": np.float32(0), "high": np.float32(6), "shape": np.array([1, 6])}
    return small_model("y", body, {"x": (1, 6, 5, 5)}, weights | bounds)


def shuffle_unit():
    body = """
        a = Conv<group = 2>(x, w1) b = Relu(a)
        c = Reshape(b, apart) d = Transpose<perm = [0, 2, 1, 3, 4]>(c) e = Reshape(d, whole)
        f = Conv<group = 12, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(e, w2)
        g = Conv<group = 2>(f, w3) h = Add(g, x) y = Relu(h)"""
    weights = {"w1": (12, 6, 1, 1), "w2": (12, 1, 3, 3), "w3": (12, 6, 1, 1)}
    shapes = {"apart": np.array([1, 2, 6, 4, 5]), "whole": np.array([1, 12, 4, 5])}
    return small_model("y", body, {"x": (1, 12, 4, 5)}, weights | shapes)


def inception_module():
    body = f"""
        a = Conv(x, w1) b = Relu(a)
        c = Conv(x, w2) d = Relu(c) e = Conv{SAME}(d, w3) f = Relu(e)
        g = Conv<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(d, w4)
        h = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) i = Conv(h, w1)
        j = Concat<axis = 1>(b, f, g, i) k = LRN<size = 5>(j)
        l = AveragePool<kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1>(k)
        m = GlobalAveragePool(l) n = Flatten(m) o = Gemm<transB = 1>(n, w5, b5)
        y = Softmax(o)"""
    weights = {"w1": (4, 9, 1, 1), "w2": (3, 9, 1, 1), "w3": (8, 3, 3, 3), "w4": (4, 3, 5, 5)}
    return small_model("y", body, {"x": (1, 9, 5, 4)}, weights | {"w5": (10, 20), "b5": (10,)})


def detector_head():
    nearest = '<mode = "nearest", nearest_mode = "floor",'
    body = f"""
        a = Conv<kernel_shape = [6, 6], strides = [2, 2], pads = [2, 2, 2, 2]>(x, w1)
        b = Sigmoid(a) c = Mul(a, b)
        d = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(c, w2)
        e = Resize{nearest} coordinate_transformation_mode = "asymmetric">(d, , scales)
        f = Concat<axis = 1>(e, c) g = Conv(f, w3)
        h = Reshape(g, split) i = Transpose<perm = [0, 1, 3, 4, 2]>(h) j = Sigmoid(i)
        k, l = Split<axis = 4>(j, sizes) m = Mul(k, k) n = Concat<axis = 4>(m, l)
        y = Reshape(n, rows)"""
    weights = {"w1": (5, 3, 6, 6), "w2": (8, 5, 3, 3), "w3": (10, 13, 1, 1)}
    constants = {"scales": np.array([1, 1, 2, 2], np.float32), "split": np.array([1, 2, 5, 4, 4])}
    constants |= {"sizes": np.array([2, 3]), "rows": np.array([1, -1, 5])}
    return small_model("y", body, {"x": (1, 3, 8, 8)}, weights | constants)


BLOCKS = (
    *(bottleneck, fire_module, dense_block, inverted_residual),
    *(shuffle_unit, inception_module, detector_head),
)


def run_program(program, region, feeds, run_kernel, filler=0xA5):
    """Run the calls of a program on memory full of one byte and return its outputs by name."""
    values = region.graph.values
    outputs = [np.zeros(values[i].shape, values[i].dtype) for i in region.outputs]
    memory = {
        StorageKind.INPUT: [aligned_copy(feeds[values[i].name]) for i in region.inputs],
        StorageKind.OUTPUT: [aligned_copy(array) for array in outputs],
        StorageKind.CONSTANT: [aligned_copy(array) for array in program.constants.values()],
    }
    arena = aligned_copy(np.full(program.scratch_bytes, filler, np.uint8))
    for call in program.calls:
        arrays = []
        buffers = program.kernels[call.kernel].buffers
        for argument, buffer in zip(call.arguments, buffers, strict=True):
            storage = program.storages[argument.storage]
            if storage.kind is StorageKind.SCRATCH:
                whole = arena[storage.index : storage.index + storage.nbytes]
            elif storage.kind is StorageKind.FAULT:
                whole = np.zeros(storage.nbytes, np.uint8)
            else:
                whole = memory[storage.kind][storage.index].reshape(-1).view(np.uint8)
            arrays.append(whole[argument.offset :].view(buffer.dtype))
        run_kernel(call, arrays)
    names = [values[i].name for i in region.outputs]
    return dict(zip(names, memory[StorageKind.OUTPUT], strict=True))


def check(lower_model, model, unit):
    program, region = lower_model(model, unit)
    feeds = feeds_of(model)
    texts = {kernel.name: emit_llvm(kernel, unit) for kernel in program.kernels}
    library = LoadedCode({name: compile_object(text, host_cpu()) for name, text in texts.items()})
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    def compiled(call, arrays):
        table = np.array([array.ctypes.data for array in arrays], np.uint64)
        entry = signature(library.addresses[program.kernels[call.kernel].name])
        entry(table.ctypes.data, 0, call.extent)

    def interpreted(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    fast = run_program(program, region, feeds, compiled)
    slow = run_program(program, region, feeds, interpreted)
    for name, wanted in evaluate(model, feeds).items():
        scale = float(np.abs(wanted).max())
        np.testing.assert_allclose(fast[name], slow[name], rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(slow[name], wanted, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_block(lower_model, block, unit):
    check(lower_model, block(), UNITS[unit])


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("seed", range(4))
def test_random_network(monkeypatch, lower_model, seed, unit):
    monkeypatch.setattr(random_net, "_SIZES", ((13, 12), (12, 14)))
    monkeypatch.setattr(random_net, "_WIDTHS", (4, 6, 10, 20))
    monkeypatch.setattr(random_net, "_BLOCKS", (3, 5))
    check(lower_model, zoo.build(f"random:{seed}"), UNITS[unit])
