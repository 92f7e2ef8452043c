# SPDX-License-Identifier: Apache-2.0
"""Tests of the kind `opencl`; without a device they are skipped."""

import onnx
import pytest
from tests.opencl import first_device

import intarsia
from intarsia.backends.device import ThreadOptions
from intarsia.settings import Settings
from intarsia.target import PlacedTarget

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[3,5] x, float[5,4] w) => (float[3,4] y) { a = MatMul(x, w) y = Tanh(a) }"""


@pytest.fixture(scope="session")
def opencl(backends):
    first_device()
    return backends.named("opencl")


@pytest.fixture
def twice(monkeypatch, opencl):
    """Lists the first device twice, as if there were two."""
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", "0,0")
    return opencl.configured(Settings.from_environment())


@pytest.fixture
def open_device(opencl):
    """A function from a number to the opened device."""

    def open_(number=0):
        configured = opencl.configured(Settings.from_environment())
        return configured.open(PlacedTarget.parse(f"opencl:{number}"), ThreadOptions())

    return open_


@pytest.fixture(scope="session")
def small_model():
    return onnx.parser.parse_model(TEXT)


@pytest.fixture(scope="session")
def program(small_model, opencl, backends):
    return intarsia.compile(small_model, "opencl, llvm", backends=backends)
