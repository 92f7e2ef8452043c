# SPDX-License-Identifier: Apache-2.0
"""The kind `cutlass` without a GPU: its table, its kernels' source, and what compiles them."""

import sys
from dataclasses import replace

import onnx.parser
import pytest
from tests.backends.cuda.test_cuda import has_driver

from intarsia.backends.cuda.cutlass import toolkit as tools
from intarsia.backends.cuda.cutlass.backend import BACKEND, program_of
from intarsia.backends.cuda.cutlass.kernels import (
    SHARED_BYTES,
    ProductSort,
    tiles_of,
    write_kernel,
)
from intarsia.backends.cuda.cutlass.table import TABLE
from intarsia.backends.cuda.cutlass.toolkit import MachineCode, compile_kernel, toolkit
from intarsia.backends.patterns import pattern_rules
from intarsia.errors import BackendError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import make_contexts
from intarsia.target import CompilationConfig

HEADER = '<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>'
MODELS = {
    "a dense layer": (
        "(float16[4,8] x, float16[8,6] w, float16[6] b) => (float16[4,6] y) "
        "{ a = MatMul(x, w) c = Add(a, b) y = Relu(c) }",
        {"m": 4, "n": 6, "k": 8, "batch": 1, "activation": "Relu"},
    ),
    "rows of all items": (
        "(float[3,4,8] x, float[8,6] w) => (float[3,4,6] y) { a = MatMul(x, w) y = Gelu(a) }",
        {"m": 12, "batch": 1, "activation": "Gelu", "bias": -1},
    ),
    "a turned matrix": (
        "(float[8,4] x, float[6,8] w, float[1,6] b) => (float[4,6] y) "
        "{ y = Gemm<transA=1, transB=1, alpha=0.5>(x, w, b) }",
        {"is_left_turned": True, "is_right_turned": True, "alpha": 0.5, "k": 8},
    ),
    "a batch with one left operand": (
        "(bfloat16[4,8] x, bfloat16[3,8,6] w) => (bfloat16[3,4,6] y) { y = MatMul(x, w) }",
        {"batch": 3, "is_left_repeated": True, "is_right_repeated": False},
    ),
}
REFUSED = {
    "multiplies float64": "(double[4,8] x, double[8,6] w) => (double[4,6] y) { y = MatMul(x, w) }",
    "an operand is a vector": "(float[8] x, float[8,6] w) => (float[6] y) { y = MatMul(x, w) }",
    "a size is not known": "(float[N,8] x, float[8,6] w) => (float[N,6] y) { y = MatMul(x, w) }",
    "do not begin at multiples of 4 bytes": (
        "(float16[4,7] x, float16[7,6] w) => (float16[4,6] y) { y = MatMul(x, w) }"
    ),
    "repeated in more than one dimension": (
        "(float[1,3,4,8] x, float[2,3,8,6] w) => (float[2,3,4,6] y) { y = MatMul(x, w) }"
    ),
    "what it adds is not one row": (
        "(float[4,8] x, float[8,6] w, float[4,6] b) => (float[4,6] y) { y = Gemm(x, w, b) }"
    ),
    "no pattern matches it": "(float[4] x) => (float[4] y) { y = Relu(x) }",
}
ROW = ProductSort("float16", False, False, 8, 8, 8, True, "Relu", False)
SORTS = {
    "float16": ROW,
    "bfloat16, turned": replace(
        ROW, dtype="bfloat16", is_left_turned=True, is_right_turned=True, activation="Gelu"
    ),
    "float16, rows of two": replace(
        ROW, left_items=2, right_items=2, result_items=2, has_row=False, activation=""
    ),
    "float32 by TF32": replace(ROW, dtype="float32", left_items=4, right_items=4, result_items=4),
    "float32, odd rows": replace(ROW, dtype="float32", left_items=1, right_items=1, result_items=1),
    "float32 as such": replace(
        *(ROW,), dtype="float32", left_items=1, right_items=1, result_items=1, is_exact=True
    ),
}


@pytest.fixture
def graph_of():
    def parse(text):
        return snapshot(load(onnx.parser.parse_model(f"{HEADER} g {text}"), stays_free=True))

    return parse


@pytest.fixture
def no_compiler(monkeypatch):
    """Compile nothing: what is written is looked at."""
    compiled = []

    def compile_nothing(nvcc, kernel, arch):
        compiled.append(kernel)
        return MachineCode(kernel.name.encode(), (1, 2, 3, 4))

    monkeypatch.setattr(tools, "toolkit", lambda: tools.Nvcc("nvcc", "include", "1"))
    monkeypatch.setattr(tools, "_compile", compile_nothing)
    return compiled


def context(text="cutlass"):
    contexts = make_contexts(CompilationConfig.resolve(f"{text}, cuda -arch=sm_80, llvm"), 1)
    return next(one for target, one in contexts.items() if target.target.kind.name == "cutlass")


def program(graph, text="cutlass", caches=None):
    return program_of(Region.of(graph, range(len(graph.nodes))), context(text), "sm_80", caches)[0]


@pytest.mark.parametrize("name", MODELS)
def test_products_of_the_table(name, graph_of, no_compiler):
    text, fields = MODELS[name]
    made = program(graph_of(text))
    (product,) = made.products
    assert {key: getattr(product, key) for key in fields} == fields
    assert (product.bias >= 0) == (len(made.tensors) == 4)
    assert [kernel.name for kernel in made.kernels] == [kernel.name for kernel in no_compiler]
    assert set(product.kernels) == set(range(len(made.kernels)))


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason, graph_of):
    graph = graph_of(REFUSED[reason])
    refused = [rule.refuse(graph, context()) for rule in pattern_rules(TABLE)]
    (node,) = graph.nodes
    assert any(reason in one[node.id].reason for one in refused), refused
    with pytest.raises(BackendError, match="is no product of CUTLASS's"):
        program(graph)


def test_large_products_have_several_kernels_to_be_measured(graph_of, no_compiler):
    text = "(float16[512,64] x, float16[64,256] w) => (float16[512,256] y) { y = MatMul(x, w) }"
    (product,) = program(graph_of(text)).products
    assert len(product.kernels) == len(no_compiler) == 3
    (product,) = program(graph_of(text), "cutlass -find_first_valid=1").products
    assert product.kernels == (0,)


def test_float32_is_three_products_of_tf32_or_none(graph_of, no_compiler):
    graph = graph_of("(float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }")
    program(graph)
    program(graph, "cutlass -use_3xtf32=0")
    split, exact = no_compiler
    assert "OpMultiplyAddFastF32" in split.source
    assert "OpClassSimt" in exact.source


def test_kernels_are_kept(graph_of, no_compiler, tmp_path):
    graph = graph_of("(float[8,8] x, float[8,8] w) => (float[8,8] y) { y = MatMul(x, w) }")
    first = program(graph, caches=tmp_path / "caches")
    assert program(graph, caches=tmp_path / "caches") == first
    assert len(no_compiler) == 1
    (entry,) = (tmp_path / "caches" / "cutlass").iterdir()
    entry.write_bytes(b"damaged")
    assert program(graph, caches=tmp_path / "caches") == first
    assert len(no_compiler) == 2


def test_without_nvcc_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(tools, "_find_nvcc", lambda: None)
    monkeypatch.setattr(tools, "_find_headers", lambda: None)
    toolkit.cache_clear()
    try:
        found = BACKEND.detect()
        assert found.targets == ()
        assert "there is no nvcc, nor CUTLASS's headers" in found.reason
        assert found.hint == "pip install 'intarsia[cutlass]'"
        with pytest.raises(BackendError, match="there is no nvcc"):
            BACKEND.rules(context())
    finally:
        toolkit.cache_clear()


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """CUTLASS's headers and an nvcc that is a script, whose text the test writes; no g++."""
    headers = tmp_path / "include"
    (headers / "cutlass").mkdir(parents=True)
    words = zip(("MAJOR", "MINOR", "PATCH"), "420", strict=True)
    text = "\n".join(f"#define CUTLASS_{name} {number}" for name, number in words)
    (headers / "cutlass" / "version.h").write_text(text, encoding="utf-8")
    nvcc = tmp_path / "nvcc"
    which = {"clang++": "/opt/bin/clang++"}
    monkeypatch.setattr(tools, "_find_nvcc", lambda: nvcc)
    monkeypatch.setattr(tools, "_find_headers", lambda: headers)
    monkeypatch.setattr(tools.shutil, "which", which.get)
    toolkit.cache_clear()
    yield nvcc, which
    toolkit.cache_clear()


def write_script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are of a shell")
def test_an_nvcc_that_does_not_start_is_a_reason(installed, monkeypatch):
    nvcc, _ = installed
    nvcc.write_text("no program", encoding="utf-8")  # may not be executed
    assert "cannot be used: [Errno" in BACKEND.detect().reason
    write_script(nvcc, "echo what >&2; exit 3")
    assert f"{nvcc} does not start: what" in BACKEND.detect().reason
    write_script(nvcc, "exec sleep 60")
    monkeypatch.setattr(tools, "_SECONDS_TO_START", 0.1)
    assert "timed out" in BACKEND.detect().reason
    monkeypatch.setattr(tools, "_SECONDS_TO_START", 60)
    write_script(nvcc, "echo release 13.1,")
    (nvcc.parent / "include" / "cutlass" / "version.h").unlink()
    with pytest.raises(BackendError, match="No such file"):
        toolkit()


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are of a shell")
def test_nvcc_is_told_of_a_compiler_that_it_does_not_look_for(installed):
    """`clang++` alone: nvcc would look for g++. The name is a part of what kernels are kept by."""
    nvcc, which = installed
    kernel = write_kernel(ROW, tiles_of(ROW)[-1])
    write_script(
        nvcc, 'if [ "$1" = --version ]; then echo release 13.1,; exit; fi\necho "$@"; exit 1'
    )
    found = toolkit()
    assert found.version == "CUTLASS 4.2.0, nvcc 13.1, clang++"
    with pytest.raises(BackendError, match="-ccbin=/opt/bin/clang"):
        compile_kernel(kernel, "sm_80", None)
    which["g++"] = "/usr/bin/g++"
    toolkit.cache_clear()
    assert toolkit().version == "CUTLASS 4.2.0, nvcc 13.1, g++"
    with pytest.raises(BackendError) as caught:
        compile_kernel(kernel, "sm_80", None)
    assert "-ccbin" not in caught.value.message


@pytest.mark.skipif(sys.platform == "win32", reason="a file that may not be executed")
def test_an_nvcc_of_a_wheel_that_may_not_be_executed_is_none(monkeypatch, tmp_path):
    file = tmp_path / "cu13" / "bin" / "nvcc"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o644)
    monkeypatch.setattr(tools, "_folders", lambda package: [tmp_path])
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    assert tools._find_nvcc() is None
    file.chmod(0o755)
    assert tools._find_nvcc() == file


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(tools, "toolkit", lambda: tools.Nvcc("nvcc", "include", "1"))
    monkeypatch.setattr(
        "intarsia.backends.cuda.cutlass.backend.toolkit", lambda: tools.Nvcc("nvcc", "include", "1")
    )
    assert "driver is not installed" in BACKEND.detect().reason


def has_toolkit():
    try:
        toolkit()
    except BackendError:
        return False
    return True


@pytest.mark.exhaustive
@pytest.mark.skipif(not has_toolkit(), reason="nvcc and CUTLASS are not here: the extra cutlass")
@pytest.mark.parametrize("name", SORTS)
def test_nvcc_takes_the_kernels(name):
    """Machine code, without a spill, in the shared memory that a kernel has."""
    sort = SORTS[name]
    for tile in tiles_of(sort):
        kernel = write_kernel(sort, tile)
        code = compile_kernel(kernel, "sm_80", None)
        registers, stack, spilled, shared = code.needs
        assert kernel.name.encode() in code.cubin
        assert code.cubin[:4] == b"\x7fELF"
        assert 0 < registers <= 255
        assert (stack, spilled) == (0, 0)
        assert 0 < shared <= SHARED_BYTES
