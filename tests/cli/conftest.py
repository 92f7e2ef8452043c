# SPDX-License-Identifier: Apache-2.0
"""The command line in this process, in an empty folder with a few small models."""

import json
from typing import NamedTuple

import numpy as np
import onnx
import pytest

from intarsia.__main__ import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def call(capsys, monkeypatch):
    """A function that runs one command line; no traceback may ever come out."""
    monkeypatch.delenv("INTARSIA_DEBUG", raising=False)
    monkeypatch.delenv("INTARSIA_LOG", raising=False)

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(folder, chain_model):
    """`chain.onnx` in the current folder; its input is `x: float32[2,4]`."""
    onnx.save(chain_model, folder / "chain.onnx")
    return "chain.onnx"


@pytest.fixture
def mixed_model(folder, parse_model):
    """`mixed.onnx`, whose first node OpenVINO refuses because it reads an int64."""
    text = """
    mixed (int64[3] n) => (float[3] y) {
        [cast] c = Cast<to = 1>(n)
        [relu] y = Relu(c)
    }
    """
    onnx.save(parse_model(text), folder / "mixed.onnx")
    return "mixed.onnx"


@pytest.fixture
def free_model(folder, parse_model):
    """`free.onnx`, whose input has a free first dimension."""
    onnx.save(parse_model("free (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"), "free.onnx")
    return "free.onnx"


@pytest.fixture
def package(call, model):
    """`chain.intarsia`, compiled for ONNX Runtime."""
    assert call("compile", model, "-t", "onnxruntime").code == 0
    return "chain.intarsia"


@pytest.fixture
def array(folder):
    """`x.npy`, which fits the chain, and what is in it."""
    values = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.save(folder / "x.npy", values)
    return values
