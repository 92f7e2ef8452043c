# SPDX-License-Identifier: Apache-2.0
"""The protocol's messages over gRPC, from a table of their fields.

Names and numbers are those of the Open Inference Protocol, version 2, "gRPC", and of its extension
for model repositories. They are kept in a pool of their own, beside those of any client that the
same process has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

Field = descriptor_pb2.FieldDescriptorProto

SERVICE = "inference.GRPCInferenceService"

_PARAMETERS = "map InferParameter"
_CONTENTS = {
    "bool_contents": (1, "repeated bool"),
    "int_contents": (2, "repeated int32"),
    "int64_contents": (3, "repeated int64"),
    "uint_contents": (4, "repeated uint32"),
    "uint64_contents": (5, "repeated uint64"),
    "fp32_contents": (6, "repeated float"),
    "fp64_contents": (7, "repeated double"),
    "bytes_contents": (8, "repeated bytes"),
}
_TENSOR = {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "repeated int64")}
_DATA = {
    **_TENSOR,
    "parameters": (4, _PARAMETERS),
    "contents": (5, "InferTensorContents"),
}
_NAMED = {"name": (1, "string"), "version": (2, "string")}

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {
        "name": (1, "string"),
        "version": (2, "string"),
        "extensions": (3, "repeated string"),
    },
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelMetadataResponse": {
        "name": (1, "string"),
        "versions": (2, "repeated string"),
        "platform": (3, "string"),
        "inputs": (4, "repeated ModelMetadataResponse.TensorMetadata"),
        "outputs": (5, "repeated ModelMetadataResponse.TensorMetadata"),
    },
    "InferParameter": {
        "bool_param": (1, "choice bool"),
        "int64_param": (2, "choice int64"),
        "string_param": (3, "choice string"),
        "double_param": (4, "choice double"),
        "uint64_param": (5, "choice uint64"),
    },
    "InferTensorContents": _CONTENTS,
    "ModelInferRequest.InferInputTensor": _DATA,
    "ModelInferRequest.InferRequestedOutputTensor": {
        "name": (1, "string"),
        "parameters": (2, _PARAMETERS),
    },
    "ModelInferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "inputs": (5, "repeated ModelInferRequest.InferInputTensor"),
        "outputs": (6, "repeated ModelInferRequest.InferRequestedOutputTensor"),
        "raw_input_contents": (7, "repeated bytes"),
    },
    "ModelInferResponse.InferOutputTensor": _DATA,
    "ModelInferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "outputs": (5, "repeated ModelInferResponse.InferOutputTensor"),
        "raw_output_contents": (6, "repeated bytes"),
    },
    "ModelRepositoryParameter": {
        "bool_param": (1, "choice bool"),
        "int64_param": (2, "choice int64"),
        "string_param": (3, "choice string"),
        "bytes_param": (4, "choice bytes"),
    },
    "RepositoryIndexRequest": {"repository_name": (1, "string"), "ready": (2, "bool")},
    "RepositoryIndexResponse.ModelIndex": {
        "name": (1, "string"),
        "version": (2, "string"),
        "state": (3, "string"),
        "reason": (4, "string"),
    },
    "RepositoryIndexResponse": {"models": (1, "repeated RepositoryIndexResponse.ModelIndex")},
    "RepositoryModelLoadRequest": {
        "repository_name": (1, "string"),
        "model_name": (2, "string"),
        "parameters": (3, "map ModelRepositoryParameter"),
    },
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": {
        "repository_name": (1, "string"),
        "model_name": (2, "string"),
        "parameters": (3, "map ModelRepositoryParameter"),
    },
    "RepositoryModelUnloadResponse": {},
}
"""By message, each field's number and type: `repeated` of it, a `map` from text to it, or one
`choice` of several."""

METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
"""Each takes the message `...Request` and returns `...Response`."""


@cache
def message(name: str) -> Any:
    """Return the class of a message.

    Args:
        name: As in `_MESSAGES`.
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="intarsia/inference.proto", package="inference", syntax="proto3"
    )
    made: dict[str, Any] = {}
    for name in sorted(_MESSAGES, key=lambda name: name.count(".")):
        outer, dot, inner = name.rpartition(".")
        part = made[outer].nested_type.add() if dot else file.message_type.add()
        part.name = inner
        made[name] = part
    for name, fields in _MESSAGES.items():
        for field, (number, kind) in fields.items():
            _add_field(made[name], name, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(part: Any, owner: str, name: str, number: int, kind: str) -> None:
    """Add a field to the description of a message."""
    how, _, kind = kind.rpartition(" ")
    field = part.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    if how in ("repeated", "map"):
        field.label = Field.LABEL_REPEATED
    if how == "choice":
        if not part.oneof_decl:
            part.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if how == "map":
        entry = part.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
        value.type, value.type_name = Field.TYPE_MESSAGE, f".inference.{kind}"
        field.type, field.type_name = Field.TYPE_MESSAGE, f".inference.{owner}.{entry.name}"
    elif kind in _MESSAGES:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".inference.{kind}"
    else:
        field.type = Field.Type.Value(f"TYPE_{kind.upper()}")
