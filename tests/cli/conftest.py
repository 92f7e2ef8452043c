# SPDX-License-Identifier: Apache-2.0
"""The command line in this process, in an empty folder with a few small models."""

import contextlib
import json
import math
import os
import shutil
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from tests.cli.invocations import INVOCATIONS

from intarsia.__main__ import main
from intarsia.cli import demo

NARROW = 80


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def call(capsys, monkeypatch):
    """A function that runs one command line; no traceback may ever come out.

    Nor do lines that tell of work that takes long, which a busy machine alone makes it do.
    """
    monkeypatch.setattr("intarsia.cli.models.QUIET_SECONDS", math.inf)
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


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, chain_model, parse_model):
    """A folder with what commands need: models, packages, a cost database and its export."""
    folder = tmp_path_factory.mktemp("prepared")
    onnx.save(chain_model, folder / "chain.onnx")
    free = parse_model("free (float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
    onnx.save(free, folder / "free.onnx")
    target, options = "fake -ops=Relu,Tanh, onnxruntime", ["--database", "costs.sqlite"]
    tune = ["tune", "chain.onnx", "-t", "fake -cost=*:1e-3", "-o", "tuned.intarsia"]
    tune_free = ["tune", "free.onnx", "-t", "fake -cost=*:1e-3", "--sizes", "n=2,5"]
    with contextlib.chdir(folder):
        for call in (
            ["compile", "chain.onnx", "-t", target],
            ["compile", "chain.onnx", "-t", "onnxruntime", "-o", "other.intarsia"],
            [*tune, "--threads", "1", *options],
            [*tune_free, "--threads", "1", *options],
            ["costs", "export", "costs.jsonl", *options],
            ["costs", "import", "costs.jsonl", "--database", "other.sqlite"],
        ):
            assert main(call) == 0
    return folder


@pytest.fixture
def desk(call, prepared, tmp_path, own_cache, monkeypatch):
    """A function that calls a command; what commands need is there."""
    shutil.copytree(prepared, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    others = shutil.ignore_patterns("signing.key", "trusted_keys")
    shutil.copytree(os.environ["INTARSIA_KEYS_DIR"], tmp_path / "keys", ignore=others)
    monkeypatch.setenv("INTARSIA_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.setenv("COLUMNS", str(NARROW))
    monkeypatch.setattr(demo, "NETWORK", "squeezenet")
    monkeypatch.setattr(demo, "PINNED", "fire3/*")
    monkeypatch.setattr(demo, "TUNE_SECONDS", 1.0)
    monkeypatch.setattr(demo, "SIZES", ({"batch": 1, "seq": 5},))

    def run(command, arguments):
        if "KEY" in arguments:
            rows = call("costs", "ls", "--database", "costs.sqlite", "--json").json
            key = rows["entries"][0]["key"]
            arguments = [key if one == "KEY" else one for one in arguments]
        keys = [name for name in INVOCATIONS if name.startswith("keys ")]
        for earlier in keys[: keys.index(command)] if command in keys else ():
            call(*earlier.split(), *INVOCATIONS[earlier][0])
        return call(*command.split(), *arguments)

    return run
