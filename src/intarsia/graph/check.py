# SPDX-License-Identifier: Apache-2.0
"""Check the structure of a model: texts, operator sets, operators, names, inline data.

What `onnx.checker` finds too is found here first, so that the message names node and value. The
order of the nodes and which types of attributes an operator wants are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

import onnx
import onnx.defs

from intarsia.errors import ModelError
from intarsia.graph.external import tensor_bytes
from intarsia.graph.tensors import all_tensors
from intarsia.graph.undeclared import is_undeclared

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Remarked = (
        onnx.ModelProto
        | onnx.FunctionProto
        | onnx.GraphProto
        | onnx.ValueInfoProto
        | onnx.TensorProto
        | onnx.NodeProto
        | onnx.AttributeProto
    )

_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class _Scope:
    """The names that one graph declares, inside those of the graph around it."""

    makers: dict[str, str]
    outer: _Scope | None

    def __contains__(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.makers:
                return True
            scope = scope.outer
        return False


def check_structure(proto: onnx.ModelProto) -> None:
    """Check a model that has just been parsed.

    Raises:
        ModelError: It has a name that is no text, no operator set or one that is too new, no
            outputs, a tensor or an attribute that we cannot read, a map, an operator that does not
            exist, a value with two producers or with none.
    """
    _check_texts(proto)
    _check_opsets(proto)
    if not proto.graph.output:
        raise ModelError(
            f"graph {proto.graph.name!r} has no outputs", hint="declare what the model computes"
        )
    _check_names(proto.graph)
    _check_types(proto.graph)
    _check_operators(proto)
    _check_attributes(proto)
    _check_data(proto)


def mend_remarks(proto: onnx.ModelProto) -> None:
    """Make what no program needs fit for onnx_ir, which other runtimes do not look at.

    Remarks that are not UTF-8 are read as Latin-1, in which every byte is a letter; declarations of
    inner values as sequences of something without a type go: what they are is inferred.

    Args:
        proto: Checked; it is changed.
    """
    for part in _remarked(proto):
        _mend(part, "doc_string")
        if not isinstance(part, onnx.AttributeProto):
            for pair in part.metadata_props:
                _mend(pair, "key", "value")
    _mend(proto, "producer_name", "producer_version", "domain")
    for graph in _graphs(proto):
        for at in reversed(range(len(graph.value_info))):
            if _held(graph.value_info[at].type)[0].WhichOneof("value") is None:
                del graph.value_info[at]


def _mend(part: _Remarked | onnx.StringStringEntryProto, *fields: str) -> None:
    for name in fields:
        text = getattr(part, name)
        if not isinstance(text, str):
            setattr(part, name, text.decode("latin-1"))


def _remarked(proto: onnx.ModelProto) -> Iterator[_Remarked]:
    """Yield everything that may have remarks: texts that no program needs."""
    yield proto
    for function in proto.functions:
        yield function
        yield from function.value_info
        yield from function.attribute_proto
    for graph in _graphs(proto):
        yield graph
        yield from (*graph.input, *graph.output, *graph.value_info)
    yield from all_tensors(proto)
    for node in _nodes(proto):
        yield node
        yield from node.attribute


def _held(kind: onnx.TypeProto) -> tuple[onnx.TypeProto, bool]:
    """Return the type inside of sequences and optionals, and whether there are any around it."""
    is_inner = False
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        is_inner = True
        kind = (
            kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type
        ).elem_type
    return kind, is_inner


def _check_texts(proto: onnx.ModelProto) -> None:
    """Refuse names that are not UTF-8, of which protobuf gives the bytes where text is expected."""
    for text in _texts(proto):
        if not isinstance(text, str):
            raise ModelError(
                f"the model is damaged: its text {text!r} is not UTF-8",
                hint="copy or export the model again",
            )


def _texts(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    for opset in proto.opset_import:
        yield opset.domain
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
        yield from (opset.domain for opset in function.opset_import)
        yield from (value.name for value in function.value_info)
    for graph in _graphs(proto):
        yield graph.name
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in all_tensors(proto):
        yield tensor.name
    for node in _nodes(proto):
        yield from (node.name, node.op_type, node.domain)
        yield from (*node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph of a model, and every body inside it or a function."""
    yield proto.graph
    for node in _nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, those of bodies and functions among them."""
    waiting = [proto.graph.node, *(function.node for function in proto.functions)]
    while waiting:
        for node in waiting.pop():
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g.node)
                waiting += [body.node for body in attribute.graphs]


def _check_attributes(proto: onnx.ModelProto) -> None:
    for node in _nodes(proto):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.UNDEFINED:
                raise ModelError(
                    f"{describe(node)} has the attribute {attribute.name!r} without a type that"
                    " ONNX has",
                    node=node.name,
                    hint="export the model again",
                )


def _check_types(graph: onnx.GraphProto) -> None:
    known = onnx.TensorProto.DataType.values()
    at_border = len(graph.input) + len(graph.output)
    for at, value in enumerate((*graph.input, *graph.output, *graph.value_info)):
        kind, is_inner = _held(value.type)
        if kind.HasField("map_type"):
            maker = next((node for node in graph.node if value.name in node.output), None)
            raise ModelError(
                f"{value.name!r} holds maps; only tensors are supported",
                node=None if maker is None else maker.name,
                hint="export with zipmap=False, which gives a tensor: "
                "skl2onnx.to_onnx(model, x, options={'zipmap': False})",
            )
        if is_inner and at < at_border and kind.WhichOneof("value") is None:
            raise ModelError(
                f"{value.name!r} holds something without a type", hint="export the model again"
            )
        if kind.tensor_type.elem_type not in known:
            raise ModelError(
                f"{value.name!r} has the unknown element type {kind.tensor_type.elem_type}",
                hint="install a newer onnx and onnx-ir, or export the model again",
            )


def describe(node: onnx.NodeProto) -> str:
    """Return how a message calls a node: its name or first output, and its operator."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({node.op_type})"


def nearest(name: str, names: list[str] | dict[str, str]) -> str:
    """Return " (nearest: ...)" with names like this one, or nothing."""
    close = get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" (nearest: {', '.join(map(repr, close))})" if close else ""


def _check_opsets(proto: onnx.ModelProto) -> None:
    if not proto.opset_import:
        raise ModelError(
            "the model imports no operator set",
            hint='export it again, or add opset_import {domain: "", version: ...}',
        )
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise ModelError(
                f"the model uses ai.onnx operator set {opset.version}, but onnx"
                f" {onnx.__version__} knows only up to {newest}",
                hint=f"install a newer onnx, or export with opset {newest}",
            )


def _check_names(graph: onnx.GraphProto) -> None:
    stack: list[tuple[onnx.GraphProto, _Scope | None]] = [(graph, None)]
    while stack:
        current, outer = stack.pop()
        if current.sparse_initializer:
            name = current.sparse_initializer[0].values.name
            raise ModelError(
                f"initializer {name!r} is a sparse tensor, which is not supported",
                hint="store it as a dense initializer",
            )
        scope = _Scope(_makers(current), outer)
        for node in current.node:
            _check_inputs(node, scope)
            for attribute in node.attribute:
                bodies = [attribute.g] if attribute.HasField("g") else []
                stack += [(body, scope) for body in (*bodies, *attribute.graphs)]
        for output in current.output:
            if output.name not in scope.makers:
                raise ModelError(
                    f"graph {current.name!r} returns {output.name!r}, which nothing in it produces"
                    f"{nearest(output.name, scope.makers)}",
                    hint="return a value of this graph, through Identity if it is an outer one",
                )


def _check_inputs(node: onnx.NodeProto, scope: _Scope) -> None:
    for name in node.input:
        if name and name not in scope:
            raise ModelError(
                f"{describe(node)} reads {name!r}, which nothing produces"
                f"{nearest(name, scope.makers)}",
                node=node.name,
                hint="rename the input, or add the node or initializer that produces it",
            )


def _makers(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the maker of each value of a graph; refuse two makers of one name."""
    makers: dict[str, str] = {}
    for info in graph.input:
        _add(makers, info.name, "a graph input")
    inputs = frozenset(makers)
    initializers: dict[str, str] = {}
    for tensor in graph.initializer:
        _add(initializers, tensor.name, "an initializer")
    makers.update((name, maker) for name, maker in initializers.items() if name not in inputs)
    for node in graph.node:
        for output in node.output:
            if output:
                _add(makers, output, describe(node))
    return makers


def _add(makers: dict[str, str], name: str, maker: str) -> None:
    if not name:
        raise ModelError(f"{maker} has no name", hint="give every value a name")
    if name in makers:
        raise ModelError(
            f"value {name!r} is made twice: by {makers[name]} and by {maker}",
            hint="give each value a name of its own",
        )
    makers[name] = maker


def _check_operators(proto: onnx.ModelProto) -> None:
    versions = {_domain(opset.domain): opset.version for opset in proto.opset_import}
    functions = {(_domain(function.domain), function.name) for function in proto.functions}
    stack = [(proto.graph.node, versions)]
    for function in proto.functions:
        own = {_domain(opset.domain): opset.version for opset in function.opset_import}
        stack.append((function.node, own))
    while stack:
        nodes, imports = stack.pop()
        for node in nodes:
            if (_domain(node.domain), node.op_type) not in functions:
                _check_operator(node, imports)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append((attribute.g.node, imports))
                stack += [(body.node, imports) for body in attribute.graphs]


def _check_operator(node: onnx.NodeProto, versions: dict[str, int]) -> None:
    domain = _domain(node.domain)
    if domain not in versions:
        label = domain or "ai.onnx"
        raise ModelError(
            f"{describe(node)} is of domain {label!r}, which the model does not import",
            node=node.name,
            hint="add the domain to opset_import",
        )
    if not domain and node.op_type == "Einsum":
        _check_equation(node)
    if not domain and is_undeclared(node.op_type, versions[domain]):
        return
    if node.domain in _ONNX_DOMAINS and not _exists(node.op_type, versions[domain], domain):
        label = domain or "ai.onnx"
        raise ModelError(
            f"{describe(node)}: {label} has no operator {node.op_type!r} in operator set"
            f" {versions[domain]}{nearest(node.op_type, _operators(domain))}",
            node=node.name,
            hint="check the operator's name and domain, or raise the model's operator set",
        )


def _check_equation(node: onnx.NodeProto) -> None:
    """Refuse dots that are no ellipsis: the inference of shapes of onnx would never end."""
    texts = (one.s.decode(errors="replace") for one in node.attribute if one.name == "equation")
    for equation in texts:
        if "." in equation.replace(" ", "").replace("...", ""):
            raise ModelError(
                f"{describe(node)} has the equation {equation!r}, with a dot that is not one "
                "of the three of an ellipsis",
                node=node.name,
                hint="write three dots for the dimensions that have no letters",
            )


@cache
def _exists(op_type: str, version: int, domain: str) -> bool:
    try:
        onnx.defs.get_schema(op_type, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return False
    return True


@cache
def _operators(domain: str) -> list[str]:
    schemas = onnx.defs.get_all_schemas()
    return sorted(schema.name for schema in schemas if schema.domain == domain)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_data(proto: onnx.ModelProto) -> None:
    for tensor in all_tensors(proto):
        if tensor.data_type == onnx.TensorProto.UNDEFINED and tensor.ByteSize():
            raise ModelError(
                f"tensor {tensor.name!r} has no element type", hint="export the model again"
            )
        if tensor.data_location == onnx.TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
            continue
        needed = tensor_bytes(tensor)
        if needed is not None and len(tensor.raw_data) != needed:
            raise ModelError(
                f"tensor {tensor.name!r} of shape {list(tensor.dims)} needs {needed} bytes of data"
                f" but has {len(tensor.raw_data)}",
                hint="export the model again",
            )
