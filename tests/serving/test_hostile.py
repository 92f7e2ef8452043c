# SPDX-License-Identifier: Apache-2.0
"""What is asked wrongly is refused in the protocol's form, and the server goes on."""

import gzip
import json
import struct
import zlib

import numpy as np
import pytest
from tests.serving.conftest import answer_of, binary_input, json_input

from intarsia.serving.http import HEADER

X = np.ones((2, 3), np.float32)
BODY = {"inputs": [json_input("x", X)]}
HUGE = 10**30


def changed(**parts):
    return {"inputs": [{**BODY["inputs"][0], **parts}]}


def sized(size, **parts):
    one = {**binary_input("x", X), **parts}
    return {"inputs": [{**one, "parameters": {"binary_data_size": size}}]}


@pytest.fixture(scope="module")
def server(make_server, parse_model):
    rows = parse_model(
        "rows (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }",
    )
    texts = parse_model("texts (string[n] s) => (string[n] t) { t = StringConcat(s, s) }")
    kinds = parse_model(
        "kinds (uint8[2] u, bool[2] b, int64[2] i) => (uint8[2] v, bool[2] c, int64[2] j)"
        "{ v = Identity(u) c = Not(b) j = Identity(i) }"
    )
    models = {"rows": rows, "texts": texts, "kinds": kinds}
    return make_server(models, body_bytes=1 << 20)


@pytest.fixture(autouse=True)
def goes_on(server):
    """After whatever was asked, the server answers, and holds nothing."""
    yield
    response = server.infer("rows", BODY)
    assert answer_of(response)[1]["y"] == [1.0] * 6
    assert server.count("intarsia_body_bytes") == 0
    assert server.count("intarsia_waiting_requests", model="rows") == 0


def refused(response, status, *words):
    """Check that an answer is an error of the protocol's form that names what is wrong."""
    assert response.status_code == status, response.text
    told = response.json()
    assert list(told) == ["error"]
    assert "Traceback" not in told["error"]
    assert "\n" not in told["error"]
    for word in words:
        assert word in told["error"]


NOT_JSON = (
    b"",
    b"{",
    b"[]",
    b"nonsense",
    b'"\xff"',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"inputs": ' + b"[" * 100_000,
    b'{"inputs": {}}',
    b'{"inputs": [7]}',
    b'{"inputs": [{"name": "x"}]}',
    b'{"inputs": null}',
    b'{"inputs": [], "parameters": ' + b'{"a":' * 100_000,
    json.dumps(changed(shape="2x3")).encode(),
    json.dumps(changed(shape=[-1, 3])).encode(),
    json.dumps(changed(shape=[2.5, 3])).encode(),
    json.dumps(changed(name=7)).encode(),
    json.dumps({**BODY, "id": 7}).encode(),
    json.dumps({**BODY, "outputs": [{}]}).encode(),
)


def test_what_is_not_the_protocols_json_is_refused(server):
    for body in NOT_JSON:
        refused(server.infer("rows", body), 400, "the request is not what is taken here")


MISFITS = (
    (changed(name="z"), "unknown input 'z'"),
    ({"inputs": []}, "input 'x' is missing"),
    ({"inputs": [*BODY["inputs"]] * 2}, "given twice"),
    (changed(datatype="INT64", data=[1] * 6), "the model takes FP32"),
    (changed(datatype="FLOAT"), "which the protocol has not"),
    (changed(shape=[3, 2]), "the model takes [-1, 3]"),
    (changed(shape=[6]), "the model takes [-1, 3]"),
    (changed(shape=[2, 3, 1], data=[[[1]] * 3] * 2), "the model takes [-1, 3]"),
    (changed(shape=[HUGE, 3]), "its shape says"),
    (changed(shape=[0, 2**62], data=[]), "has shape"),
    (changed(shape=[1, 3]), "more than the 3 elements"),
    (changed(shape=[3, 3]), "its shape says 9"),
    (changed(data=[[1, 2], [3, 4], [5, 6]]), "is nested as [3, 2]"),
    (changed(data=[[1, 2, 3], [4, 5]]), "no tensor of FP32"),
    (changed(data=[1, 2, 3, 4, 5, "six"]), "no tensor of FP32"),
    (changed(data=[1, 2, 3, 4, 5, None]), "no tensor of FP32"),
    (changed(data=[1, 2, 3, 4, 5, 1e39]), "too large"),
    (changed(data=7), "not an array"),
    (changed(data={"a": 1}), "not an array"),
    ({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32"}]}, "neither data nor"),
    ({**BODY, "outputs": [{"name": "z"}]}, "no output 'z'"),
    ({**BODY, "parameters": {"sequence_id": 3}}, "'sequence_id'"),
    ({**BODY, "parameters": {"timeout": -3}}, "microseconds"),
    ({**BODY, "parameters": {"timeout": "soon"}}, "microseconds"),
    ({**BODY, "parameters": {"binary_data_output": "yes"}}, "neither true nor false"),
    (
        {**BODY, "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        "'classification'",
    ),
    (changed(parameters={"shared_memory_region": "r"}), "'shared_memory_region'"),
    (changed(parameters={"binary_data_size": 24}), "both data and"),
)


@pytest.mark.parametrize("model", ["rows", "nobody"])
def test_a_shape_of_very_many_dimensions_is_refused(server, model):
    # A type of lists nested that deep would end the process, whatever the model.
    body = {"inputs": [{**json_input("x", X), "shape": [1] * 100_000, "data": [[1]]}]}
    refused(server.infer(model, body), 400, "the request is not what is taken here")
    head = sized(24, shape=[1] * 33)
    refused(server.binary(model, head, X.tobytes()), 400, "the request is not what is taken here")


def test_texts_are_nested_as_their_shape_says(server):
    one = {"name": "s", "shape": [3, 2], "datatype": "BYTES", "data": [["a", "b", "c"]] * 2}
    refused(server.infer("texts", {"inputs": [one]}), 400, "is nested as [2, 3]")


def test_a_request_that_does_not_fit_its_model_says_why(server):
    for body, word in MISFITS:
        refused(server.infer("rows", body), 400, word)


@pytest.mark.parametrize(
    ("name", "datatype", "data", "word"),
    [
        ("u", "UINT8", [1, 300], "no tensor of UINT8"),
        ("u", "UINT8", [1, -1], "no tensor of UINT8"),
        ("u", "UINT8", [1, 1.5], "no tensor of UINT8"),
        ("b", "BOOL", [1, 0], "no tensor of BOOL"),
        ("i", "INT64", [1, 2**63], "no tensor of INT64"),
    ],
)
def test_no_number_is_changed_to_fit(server, name, datatype, data, word):
    good = {"u": ("UINT8", [1, 2]), "b": ("BOOL", [True, False]), "i": ("INT64", [3, 4])}
    given = {**good, name: (datatype, data)}
    inputs = [
        {"name": key, "shape": [2], "datatype": kind, "data": values}
        for key, (kind, values) in given.items()
    ]
    refused(server.infer("kinds", {"inputs": inputs}), 400, word, repr(name))


LIES = (
    (sized(24), (X.tobytes()[:-1],), "23 bytes are left"),
    (sized(24), (X.tobytes(), b"more"), "4 bytes more"),
    (sized(23), (X.tobytes(),), "has 23 bytes"),
    (sized(-1), (X.tobytes(),), "binary_data_size -1"),
    (sized(HUGE), (X.tobytes(),), "24 bytes are left"),
    (sized("24"), (X.tobytes(),), "binary_data_size '24'"),
    (sized(True), (X.tobytes(),), "binary_data_size True"),
    (sized(24, shape=[HUGE, 3]), (X.tobytes(),), "has 24 bytes"),
    (sized(24, datatype="FP64"), (X.tobytes(),), "has 24 bytes"),
    (sized(24, datatype="INT32"), (X.tobytes(),), "the model takes FP32"),
)


def test_sizes_that_lie_are_refused(server):
    for head, blobs, word in LIES:
        refused(server.binary("rows", head, *blobs), 400, word)


def test_a_header_that_lies_is_refused(server):
    body = json.dumps(BODY).encode()
    for text in ("-1", "1e3", "999999", "9" * 5000, "", "\u0663", "0x10", "3.5"):
        refused(server.infer("rows", body, {HEADER: text.encode()}), 400, HEADER)


@pytest.mark.parametrize(
    ("blob", "word"),
    [
        (b"\x01\x00", "ends inside the length"),
        (struct.pack("<I", 2**32 - 1) + b"a", "an element of 4294967295 bytes"),
        (struct.pack("<I", 1) + b"\xff" + struct.pack("<I", 0), "not UTF-8"),
        (struct.pack("<I", 1) + b"a", "1 elements, and its shape says 2"),
    ],
)
def test_elements_of_bytes_that_lie_are_refused(server, blob, word):
    one = {"name": "s", "shape": [2], "datatype": "BYTES"}
    head = {"inputs": [{**one, "parameters": {"binary_data_size": len(blob)}}]}
    refused(server.binary("texts", head, blob), 400, word)


def test_bytes_that_are_no_booleans_are_refused(server):
    one = {"name": "b", "shape": [2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}}
    refused(server.binary("kinds", {"inputs": [one]}, b"\x00\x02"), 400, "neither 0 nor 1")


def test_a_body_that_is_too_large_is_refused(server):
    refused(server.infer("rows", b" " * ((1 << 20) + 1)), 413, "1048576 bytes")

    def parts():
        for _ in range(40):
            yield b" " * (1 << 15)

    response = server.client.post("/v2/models/rows/infer", content=parts())
    refused(response, 413, "1048576 bytes")
    headers = {"content-length": "99999999999999999999"}
    refused(server.infer("rows", b"{}", headers), 413, "1048576 bytes")


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_unpacked(server, coding, pack):
    headers = {"content-encoding": coding}
    response = server.infer("rows", pack(json.dumps(BODY).encode()), headers)
    assert answer_of(response)[1] == {"y": X.ravel().tolist()}


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (gzip.compress(b" " * (1 << 24)), 413, "1048576 bytes"),
        (gzip.compress(b"{}")[:-4], 400, "ends too early"),
        (gzip.compress(b"{}") + b"x", 400, "follow the end"),
        (b"no gzip", 400, "is not gzip"),
        (b"", 400, "ends too early"),
    ],
)
def test_a_body_that_is_packed_wrongly_or_unpacks_to_too_much_is_refused(
    server, body, status, word
):
    refused(server.infer("rows", body, {"content-encoding": "gzip"}), status, word)


def test_a_body_in_another_coding_is_refused(server):
    refused(server.infer("rows", b"x", {"content-encoding": "br"}), 415, "'br'")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/nobody/ready", 404),
        pytest.param("GET", f"/v2/models/{'n' * 5000}/ready", 404, id="long"),
        ("GET", "/v2/models/rows/versions/2", 404),
        ("POST", "/v2/models/rows/versions/x/infer", 404),
        ("POST", "/v2/models/nobody/infer", 404),
        ("GET", "/v2/models/rows/infer", 405),
        ("POST", "/v2/repository/models/..%2F..%2Fetc%2Fpasswd/load", 404),
        ("POST", "/v2/repository/models/nobody/load", 404),
        ("POST", "/v2/repository/models/nobody/unload", 404),
    ],
)
def test_addresses_that_nothing_is_at_are_refused(server, method, path, status):
    body = json.dumps(BODY).encode() if path.endswith("infer") else b""
    response = server.client.request(method, path, content=body)
    refused(response, status)
    assert len(response.content) < 300


def test_what_web_pages_send_is_refused(server):
    body = json.dumps(BODY).encode()
    refused(server.infer("rows", body, {"origin": "http://localhost:3000"}), 403, "web pages")
    refused(server.infer("rows", body, {"host": "rebound.example:8000"}), 403, "rebound.example")
    assert server.infer("rows", body, {"host": "127.0.0.1:8000"}).status_code == 200


def test_numbers_that_json_has_not_are_told_and_bytes_have_them(server):
    one = {"name": "x", "shape": [2, 3], "datatype": "FP32"}
    blob = np.full((2, 3), np.inf, np.float32).tobytes()
    head = {"inputs": [{**one, "parameters": {"binary_data_size": len(blob)}}]}
    refused(server.binary("rows", head, blob), 400, "output 'y' has NaN or infinity")
    head["parameters"] = {"binary_data_output": True}
    assert answer_of(server.binary("rows", head, blob))[1]["y"] == blob
