# SPDX-License-Identifier: Apache-2.0
"""A client of a server in a process of its own: tritonclient, over HTTP and gRPC.

It brings gevent and gRPC, neither of which the processes of other tests are to have, as these fork.

    python client.py HTTP_PORT GRPC_PORT
"""

import sys

import grpc
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.grpc.service_pb2 as pb
import tritonclient.http
from tritonclient.utils import InferenceServerException

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)


def try_client(module, port, wanted):
    """Do what clients do; check each answer."""
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("rows")
    metadata, server = client.get_model_metadata("rows"), client.get_server_metadata()
    index = client.get_model_repository_index()
    if module is tritonclient.http:
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        assert server["name"] == "intarsia"
        assert {one["name"]: one["state"] for one in index}["rows"] == "READY"
    else:
        assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [
            ("x", "FP32", [-1, 3])
        ]
        assert server.name == "intarsia"
        assert {one.name: one.state for one in index.models}["rows"] == "READY"

    given = module.InferInput("x", X.shape, "FP32")
    given.set_data_from_numpy(X)
    result = client.infer("rows", [given], request_id="seven")
    np.testing.assert_allclose(result.as_numpy("y"), wanted, rtol=1e-6)
    packed = (
        {"compression_algorithm": "gzip"}
        if module is tritonclient.grpc
        else {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
    )
    result = client.infer("rows", [given], **packed)
    np.testing.assert_allclose(result.as_numpy("y"), wanted, rtol=1e-6)
    asked = [module.InferRequestedOutput("y")]
    result = client.infer("rows", [given], outputs=asked, model_version="1")
    np.testing.assert_allclose(result.as_numpy("y"), wanted, rtol=1e-6)
    waiting = (
        [client.async_infer("rows", [given]) for _ in range(8)]
        if module is not (tritonclient.grpc)
        else []
    )
    for one in waiting:
        np.testing.assert_allclose(one.get_result().as_numpy("y"), wanted, rtol=1e-6)

    texts = np.array(["", "über", "a"], object)
    given_texts = module.InferInput("s", texts.shape, "BYTES")
    given_texts.set_data_from_numpy(texts)
    found = client.infer("texts", [given_texts]).as_numpy("t")
    assert [one.decode() for one in found] == [one * 2 for one in texts]

    wrong = module.InferInput("x", (4, 3), "FP64")
    wrong.set_data_from_numpy(X.astype(np.float64))
    for name, inputs, words in (
        ("nobody", [given], "there is no model 'nobody'"),
        ("rows", [wrong], "the model takes FP32"),
        ("rows", [], "input 'x' is missing"),
    ):
        expect(words, client.infer, name, inputs)
    expect("unknown", lambda: client.infer("rows", [given, given_texts]))

    client.unload_model("texts")
    assert not client.is_model_ready("texts")
    expect("does not answer", client.infer, "texts", [given_texts])
    client.load_model("texts")
    assert client.is_model_ready("texts")
    expect("in the repository", client.load_model, "nobody")
    expect("'config'", lambda: client.load_model("texts", config="{}"))
    client.close()


def expect(words, call, *arguments):
    """Check that a call is refused, and how."""
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments)
    assert words in caught.value.message(), caught.value.message()


def try_messages(port, wanted):
    """Ask with the protocol's own messages: typed fields, and what lies."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def ask(change):
        request = pb.ModelInferRequest(model_name="rows", id="eight")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=X.shape)
        tensor.contents.fp32_contents.extend(X.ravel().tolist())
        change(request, tensor)
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        return call(request)

    answer = ask(lambda request, tensor: None)
    assert answer.id == "eight"
    assert not answer.raw_output_contents  # in the form of the request
    found = np.reshape(answer.outputs[0].contents.fp32_contents, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)

    def typed_elsewhere(_, tensor):
        tensor.contents.Clear()
        tensor.contents.fp64_contents.extend(X.ravel().tolist())

    for change, code, words in (
        (typed_elsewhere, "INVALID_ARGUMENT", "0 elements in fp32_contents"),
        (lambda _, t: t.shape.append(10**15), "INVALID_ARGUMENT", "its shape says"),
        (lambda _, t: t.__setattr__("datatype", "FP16"), "INVALID_ARGUMENT", "raw_input"),
        (lambda _, t: t.__setattr__("datatype", "X"), "INVALID_ARGUMENT", "has not"),
        (lambda r, _: r.raw_input_contents.extend([b"", b""]), "INVALID_ARGUMENT", "1 inputs"),
        (lambda r, _: r.raw_input_contents.append(b"1"), "INVALID_ARGUMENT", "1 bytes"),
        (lambda r, _: r.__setattr__("model_version", "9"), "NOT_FOUND", "no version '9'"),
        (
            lambda r, _: r.parameters["sequence_id"].__setattr__("int64_param", 3),
            "INVALID_ARGUMENT",
            "'sequence_id'",
        ),
        (
            lambda r, _: r.raw_input_contents.append(bytes(2 << 20)),
            "RESOURCE_EXHAUSTED",
            "",
        ),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            ask(change)
        assert caught.value.code().name == code, caught.value
        assert words in caught.value.details(), caught.value
    # Bytes that are no message are refused, and the next request is answered.
    junk = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        junk(b"\xff" * 100)
    assert "Traceback" not in (caught.value.details() or "")
    assert ask(lambda request, tensor: None).id == "eight"


def main(http_port, grpc_port, model):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": X})
    try_client(tritonclient.http, http_port, wanted)
    try_client(tritonclient.grpc, grpc_port, wanted)
    try_messages(grpc_port, wanted)
    print("all answers are right")


if __name__ == "__main__":
    main(*sys.argv[1:])
