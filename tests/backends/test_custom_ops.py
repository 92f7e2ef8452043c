# SPDX-License-Identifier: Apache-2.0
"""Libraries of custom operators: `onnxruntime -custom_ops=PATH`."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.c_compiler import compile_c

import intarsia
from intarsia.errors import BackendError, UnsupportedError
from intarsia.session import SessionOptions

SOURCE = Path(__file__).with_name("custom_op.c")
HEADER = '<ir_version: 10, opset_import: ["" : 20, "test.ops" : 1]>\n'
MODEL = """
g (float[2,3] x) => (float[2,3] y) {
    [first] a = Relu(x)
    [special] b = test.ops.Thrice(a)
    [between] c = Neg(b)
    [again] d = test.ops.Thrice(c)
    [last] y = Sigmoid(d) }"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    file = tmp_path_factory.mktemp("ops") / "thrice.so"
    compile_c("-shared", "-fPIC", "-O1", "-o", file, SOURCE)
    return file


@pytest.fixture(scope="module")
def model():
    return onnx.parser.parse_model(HEADER + MODEL)


FEEDS = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}


def expected_of(model, library):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, FEEDS)[0]


@pytest.mark.parametrize("first", ["", "llvm, ", "fake -ops=Relu, "])
def test_a_library_of_custom_operators_is_used(first, library, model, tmp_path, backends):
    target = f"{first}onnxruntime -custom_ops='{library}'"
    exe = intarsia.compile(model, target, backends=backends)
    expected = expected_of(model, library)
    np.testing.assert_allclose(exe.run(FEEDS)["y"], expected, rtol=1e-6)
    found = {node.name: r.target for r in exe.placement.regions for node in r.nodes}
    assert found["special"].startswith("onnxruntime")
    if first:
        assert not found["first"].startswith("onnxruntime")
    exe.save(tmp_path / "p.intarsia")
    loaded = intarsia.load(tmp_path / "p.intarsia")
    np.testing.assert_allclose(loaded.run(FEEDS)["y"], expected, rtol=1e-6)


def test_the_host_may_have_the_library(library, model, backends):
    host = f"onnxruntime -custom_ops='{library}'"
    exe = intarsia.compile(model, "fake -ops=Relu", host=host, backends=backends)
    np.testing.assert_allclose(exe.run(FEEDS)["y"], expected_of(model, library), rtol=1e-6)


def test_a_library_that_changed_is_not_loaded(library, model, tmp_path, backends):
    own = tmp_path / "own.so"
    own.write_bytes(library.read_bytes())
    exe = intarsia.compile(model, f"onnxruntime -custom_ops='{own}'", backends=backends)
    exe.save(tmp_path / "p.intarsia")
    own.unlink()  # this process has it mapped
    own.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(BackendError, match="is not the one that was compiled with"):
        intarsia.load(tmp_path / "p.intarsia")
    own.unlink()
    with pytest.raises(BackendError, match=r"cannot read the library of custom operators .*own.so"):
        intarsia.load(tmp_path / "p.intarsia")


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_file_that_is_no_library_is_an_error(content, model, tmp_path, backends):
    file = tmp_path / "none.so"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BackendError, match=r"library of custom operators .*none.so"):
        intarsia.compile(model, f"onnxruntime -custom_ops='{file}'", backends=backends)


def test_without_the_library_the_error_says_how_to_give_one(model, backends):
    with pytest.raises(UnsupportedError, match="special") as caught:
        intarsia.compile(model, "onnxruntime", backends=backends)
    assert "-custom_ops=PATH" in caught.value.hint


def test_a_session_registers_a_library(library, model):
    options = SessionOptions()
    options.register_custom_ops_library(library)
    session = intarsia.InferenceSession(
        model.SerializeToString(), options, targets="llvm, onnxruntime"
    )
    expected = expected_of(model, library)
    np.testing.assert_allclose(session.run(None, FEEDS)[0], expected, rtol=1e-6)
