# SPDX-License-Identifier: Apache-2.0
"""The protocol over HTTP: what is asked rightly gets the numbers of ONNX Runtime."""

import struct

import ml_dtypes
import numpy as np
import pytest
from tests.serving.conftest import answer_of, binary_input, json_input

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)

NUMBERS = {
    "BOOL": (np.bool_, "bool"),
    "UINT8": (np.uint8, "uint8"),
    "UINT16": (np.uint16, "uint16"),
    "UINT32": (np.uint32, "uint32"),
    "UINT64": (np.uint64, "uint64"),
    "INT8": (np.int8, "int8"),
    "INT16": (np.int16, "int16"),
    "INT32": (np.int32, "int32"),
    "INT64": (np.int64, "int64"),
    "FP16": (np.float16, "float16"),
    "BF16": (ml_dtypes.bfloat16, "bfloat16"),
    "FP32": (np.float32, "float"),
    "FP64": (np.float64, "double"),
}


@pytest.fixture(scope="module")
def server(make_server, rows_model, texts_model):
    return make_server({"rows": rows_model, "texts": texts_model})


def test_the_server_says_that_it_is_there_and_what_it_has(server):
    assert server.client.get("/v2/health/live").json() == {"live": True}
    assert server.client.get("/v2/health/ready").json() == {"ready": True}
    told = server.client.get("/v2").json()
    assert told["name"] == "intarsia"
    assert "binary_tensor_data" in told["extensions"]
    assert server.client.get("/v2/models/rows/ready").status_code == 200
    assert server.client.get("/v2/models/rows").json() == {
        "name": "rows",
        "versions": ["1"],
        "platform": "intarsia_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    told = server.client.get("/v2/models/texts/versions/1").json()
    assert told["inputs"][0]["datatype"] == "BYTES"


@pytest.mark.parametrize("is_nested", [True, False])
def test_numbers_in_json_are_those_of_onnxruntime(server, rows_model, by_onnxruntime, is_nested):
    one = json_input("x", X)
    if is_nested:
        one["data"] = X.tolist()
    response = server.infer("rows", {"id": "seven", "inputs": [one]})
    assert response.status_code == 200
    head, outputs = answer_of(response)
    assert (head["model_name"], head["model_version"], head["id"]) == ("rows", "1", "seven")
    assert head["outputs"][0]["shape"] == [4, 2]
    wanted = by_onnxruntime(rows_model, {"x": X})["y"]
    np.testing.assert_allclose(np.reshape(outputs["y"], (4, 2)), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("request_flag", "output_flag", "is_binary"),
    [(None, None, False), (True, None, True), (True, False, False), (None, True, True)],
)
def test_bytes_are_answered_where_they_are_asked_for(
    server, rows_model, by_onnxruntime, request_flag, output_flag, is_binary
):
    head = {"inputs": [binary_input("x", X)], "outputs": [{"name": "y"}]}
    if request_flag is not None:
        head["parameters"] = {"binary_data_output": request_flag}
    if output_flag is not None:
        head["outputs"][0]["parameters"] = {"binary_data": output_flag}
    response = server.binary("rows", head, X.tobytes())
    assert response.status_code == 200, response.text
    _, outputs = answer_of(response)
    assert isinstance(outputs["y"], bytes) == is_binary
    found = np.frombuffer(outputs["y"], np.float32) if is_binary else outputs["y"]
    wanted = by_onnxruntime(rows_model, {"x": X})["y"]
    np.testing.assert_allclose(np.reshape(found, (4, 2)), wanted, rtol=1e-6)


def test_every_datatype_goes_in_and_out_as_json_and_as_bytes(start, parse_model):
    """One model of all types, with each dimension that tensors may have."""
    ends = [f"{of}[2,3] {name}" for name, (_, of) in NUMBERS.items()]
    nodes = " ".join(f"{name}o = Identity({name})" for name in NUMBERS)
    outs = ", ".join(f"{end}o" for end in ends)
    server = start({"all": parse_model(f"all ({', '.join(ends)}) => ({outs}) {{ {nodes} }}")})
    arrays = {
        name: np.array([[1, 0, 1], [1, 1, 0]] if name == "BOOL" else [[0, 1, 2], [3, 4, 7]], dtype)
        for name, (dtype, _) in NUMBERS.items()
    }
    inputs = [json_input(name, array, name) for name, array in arrays.items()]
    for one in inputs:
        if one["datatype"] == "BF16":
            one["data"] = [float(number) for number in one["data"]]
    response = server.infer("all", {"inputs": inputs})
    assert response.status_code == 200, response.text
    head, outputs = answer_of(response)
    assert [one["datatype"] for one in head["outputs"]] == list(NUMBERS)
    for name, array in arrays.items():
        assert outputs[f"{name}o"] == array.ravel().astype(np.float64).tolist()
    head = {
        "inputs": [binary_input(name, array, name) for name, array in arrays.items()],
        "parameters": {"binary_data_output": True},
    }
    # `BOOL` is first and has 6 bytes: nothing behind it is aligned.
    response = server.binary("all", head, *(array.tobytes() for array in arrays.values()))
    assert response.status_code == 200, response.text
    _, outputs = answer_of(response)
    for name, array in arrays.items():
        assert outputs[f"{name}o"] == array.tobytes()


def test_strings_go_in_and_out(server):
    texts = ["", "über", "a,b"]
    one = {"name": "s", "shape": [3], "datatype": "BYTES", "data": texts}
    _, outputs = answer_of(server.infer("texts", {"inputs": [one]}))
    assert outputs["t"] == [text * 2 for text in texts]
    blob = b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in texts)
    head = {
        "inputs": [
            {
                "name": "s",
                "shape": [3],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(blob)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    _, outputs = answer_of(server.binary("texts", head, blob))
    doubled = [(text * 2).encode() for text in texts]
    assert outputs["t"] == b"".join(struct.pack("<I", len(one)) + one for one in doubled)


def test_outputs_that_nobody_asks_for_are_left_out(start, chain_model):
    server = start({"chain": chain_model})
    x = np.ones((2, 4), np.float32)
    asked = {"inputs": [json_input("x", x)], "outputs": [{"name": "mid"}]}
    _, outputs = answer_of(server.infer("chain", asked))
    assert list(outputs) == ["mid"]
    _, outputs = answer_of(server.infer("chain", {"inputs": [json_input("x", x)]}))
    assert list(outputs) == ["y", "mid"]


def test_requests_are_counted(start, rows_model):
    server = start({"rows": rows_model})
    server.infer("rows", {"inputs": [json_input("x", X)]})
    server.infer("rows", {"inputs": []})
    server.infer("nobody", {"inputs": []})
    server.infer("made up", b"{")
    text = server.client.get("/metrics").text
    for line in (
        'intarsia_requests_total{code="200",model="rows",protocol="http"} 1.0',
        'intarsia_requests_total{code="400",model="rows",protocol="http"} 1.0',
        'intarsia_requests_total{code="404",model="",protocol="http"} 1.0',
        'intarsia_requests_total{code="400",model="",protocol="http"} 1.0',
        'intarsia_run_seconds_count{model="rows"} 1.0',
        'intarsia_waiting_requests{model="rows"} 0.0',
        "intarsia_body_bytes 0.0",
    ):
        assert line in text
    assert "made up" not in text
