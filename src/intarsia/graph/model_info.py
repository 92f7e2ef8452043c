# SPDX-License-Identifier: Apache-2.0
"""The model's own metadata, stored with its program: names, version, properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.graph.metadata import CLAIM_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Legal:
    """What an input may hold.

    Attributes:
        bound: Its numbers are indices from 0 to below; 0 for no such bound.
        values: All of it, row by row; none where that is not settled.
    """

    bound: int = 0
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model's own metadata.

    Attributes:
        producer_name: The tool that wrote it.
        graph_name: The name of its graph.
        domain: Reverse domain name of its owner.
        description: Of the model.
        graph_description: Of its graph.
        version: Of the model.
        properties: Its `metadata_props`.
        types: ONNX's text of the type of each input and output that is not a tensor, by name:
            `seq(tensor(float))`.
        claims: The shape that it declares for each output, by name, where that does not follow
            from its nodes.
        legal: What its operators say of the values of inputs, by name.
    """

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    legal: Mapping[str, Legal] = field(default_factory=dict)

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        """The properties, by ONNX Runtime's name for them."""
        return dict(self.properties)


def read_model_info(snapshot: Graph) -> ModelInfo:
    """Return the model's own metadata."""
    from intarsia.graph.legal import legal_inputs  # running a program asks no operator

    described = describe_model(snapshot.model)
    claims = dict(_claims(snapshot.model.graph))
    return replace(described, claims=claims, legal=legal_inputs(snapshot))


def describe_model(model: ir.Model) -> ModelInfo:
    """Return the model's own metadata as far as no shape is needed."""
    graph = model.graph
    typed = {value.name or "": _type_text(value.type) for value in (*graph.inputs, *graph.outputs)}
    return ModelInfo(
        model.producer_name or "",
        graph.name or "",
        model.domain or "",
        model.doc_string or "",
        graph.doc_string or "",
        model.model_version or 0,
        dict(model.metadata_props),
        {name: text for name, text in typed.items() if not text.startswith("tensor(")},
    )


def _claims(graph: ir.Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    for value in graph.outputs:
        claim = value.metadata_props.get(CLAIM_KEY)
        if claim is None:
            continue
        extents = tuple(map(int, filter(None, claim.split("x"))))
        shape = value.shape
        if shape is None or not shape.is_static() or tuple(shape.numpy()) != extents:
            yield value.name or "", extents


def _type_text(kind: ir.TypeProtocol | None) -> str:
    """Return a type as ONNX writes it in the signatures of operators."""
    import onnx_ir as ir

    if kind is None:
        return "tensor()"
    if isinstance(kind, ir.SequenceType):
        return f"seq({_type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_type_text(kind.elem_type)})"
    text = f"tensor({kind.dtype.name.lower()})"
    return f"sparse_{text}" if isinstance(kind, ir.SparseTensorType) else text
