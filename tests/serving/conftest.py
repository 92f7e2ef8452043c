# SPDX-License-Identifier: Apache-2.0
"""A server in this process: its application is called without a socket."""

import contextlib
import json
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.cli.conftest import call  # noqa: F401 - a fixture

import intarsia
from intarsia.serving.http import HEADER, make_app
from intarsia.serving.metrics import ServerMetrics
from intarsia.serving.repository import ModelRepository
from intarsia.serving.service import InferenceService
from intarsia.serving.values import ServingLimits

ROWS = """
rows (float[n, 3] x) => (float[n, 2] y)
<float[3, 2] w = {0.5, -1, 2, 0.25, -0.75, 1}> { a = MatMul(x, w) y = Tanh(a) }
"""
TEXTS = "texts (string[n] s) => (string[n] t) { t = StringConcat(s, s) }"


class Server:
    """What tests ask, and how."""

    def __init__(self, client, service):
        self.client, self.service = client, service

    def infer(self, model, body, headers=()):
        """Ask with a body of JSON, or with bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(f"/v2/models/{model}/infer", content=content, headers=dict(headers))

    def binary(self, model, head, *blobs):
        """Ask with tensors as bytes."""
        text = json.dumps(head).encode()
        return self.infer(model, b"".join((text, *blobs)), {HEADER: str(len(text))})

    def count(self, name, **labels):
        """Return a figure of the metrics."""
        found = self.service.metrics.registry.get_sample_value(name, labels)
        return 0 if found is None else found


def answer_of(response):
    """Return what an answer has, by output, as flat lists or as bytes."""
    size = int(response.headers.get(HEADER, len(response.content)))
    head, rest = json.loads(response.content[:size]), response.content[size:]
    outputs = {}
    for output in head["outputs"]:
        length = output.get("parameters", {}).get("binary_data_size")
        if length is None:
            outputs[output["name"]] = output["data"]
        else:
            outputs[output["name"]], rest = rest[:length], rest[length:]
    assert not rest
    return head, outputs


@pytest.fixture
def start(tmp_path):
    """A function from models by name to a server of them."""
    with _servers(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def make_server(tmp_path_factory):
    """As `start`, for servers that the tests of a module share."""
    with _servers(tmp_path_factory.mktemp("served")) as make:
        yield make


@contextlib.contextmanager
def _servers(folder):
    testclient = pytest.importorskip("starlette.testclient")
    with contextlib.ExitStack() as stack:

        def make(models, *, open_program=None, is_controlled=True, repository=None, **limits):
            files = {}
            for name, model in models.items():
                files[name] = folder / f"{name}.onnx"
                onnx.save(model, files[name])
            bounds, metrics = ServingLimits(**limits), ServerMetrics()
            compiled = open_program or (lambda path: intarsia.compile(path, "onnxruntime"))
            served = ModelRepository(files, compiled, bounds, metrics, repository)
            for name in files:
                served.load(name)
            service = InferenceService(served, bounds, metrics, is_controlled=is_controlled)
            client = testclient.TestClient(
                make_app(service, is_local=True), base_url="http://localhost"
            )
            stack.enter_context(client)
            stack.callback(lambda: served.close(time.monotonic() + bounds.grace))
            return Server(client, service)

        yield make


@pytest.fixture(scope="session")
def rows_model(parse_model):
    """A model whose first dimension is free."""
    return parse_model(ROWS)


@pytest.fixture(scope="session")
def texts_model(parse_model):
    """A model of strings."""
    return parse_model(TEXTS)


@pytest.fixture
def by_onnxruntime():
    """A function from a model and inputs to what ONNX Runtime makes of them."""

    def run(model, feeds):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def json_input(name, array, datatype="FP32"):
    """Return an input with its values in JSON."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype,
        "data": np.asarray(array).ravel().tolist(),
    }


def binary_input(name, array, datatype="FP32"):
    """Return an input whose values are behind the JSON."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": array.nbytes},
    }
