# SPDX-License-Identifier: Apache-2.0
"""Saying the operators of a region otherwise, where a library lacks one or misreads it.

A rewrite is a row: which nodes, and what stands for each. The region's graph stays as it is; only
the ONNX that the library gets is another. Operator sets that a library does not know yet are
lowered, where the older definitions say the same of the region's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from intarsia.backends.values import Artifact

if TYPE_CHECKING:
    import onnx

    from intarsia.backends.defects import KnownDefect
    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

_AXES_ARE_INPUTS = 13
"""The operator set from which on Squeeze and Unsqueeze read their axes."""
_ONNX = ("", "ai.onnx")
_READ_BY_ALL = 10
"""The newest IR version that every supported release of every library reads."""


@dataclass
class RegionDraft:
    """What stands for one node: its operators in order, and their constants.

    Attributes:
        name: A prefix that no other value of the region has.
        opset: Version of ONNX's operators in the region.
        nodes: The operators so far.
        constants: The constants so far.
    """

    name: str
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, numbers: Any, dtype: str = "int64") -> str:
        """Add a constant and return its name.

        Args:
            numbers: An array, a list or a number.
            dtype: Of its elements.
        """
        from onnx import numpy_helper

        name = f"{self.name}/constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(numbers, dtype), name))
        return name

    def add(self, op_type: str, *reads: str, result: str = "", **attributes: Any) -> str:
        """Add an operator with one output and return the output's name.

        Args:
            op_type: An operator of ONNX's own domain.
            reads: Names of its inputs.
            result: Name of the output; empty for a new one.
            attributes: Of the operator.
        """
        from onnx import helper

        output = result or f"{self.name}/{len(self.nodes)}"
        name = f"{self.name}/{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(reads), [output], name, **attributes))
        return output

    def keep(self, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Add the node itself, with other inputs and outputs.

        Args:
            node: It is changed.
            inputs: Names; empty for one that is absent.
            outputs: Names; empty for one that is absent.
        """
        node.input[:], node.output[:] = inputs, outputs
        self.nodes.append(node)

    def transpose(self, value: str, perm: Sequence[int], result: str = "") -> str:
        """Add a transposition; an absent value, which has no name, stays absent."""
        return self.add("Transpose", value, result=result, perm=list(perm)) if value else ""

    def reshape(self, value: str, shape: Sequence[int], result: str = "") -> str:
        """Add a Reshape to a shape in which -1 stands for what is left."""
        return self.add("Reshape", value, self.constant(list(shape)), result=result)


Make = Callable[["Graph", "Node", "onnx.NodeProto", RegionDraft], None]
"""Adds to a draft what stands for a node; may use up the `NodeProto`."""


@dataclass(frozen=True, slots=True)
class NodeRewrite:
    """Nodes that a library gets otherwise than the model has them.

    Attributes:
        operators: Operators of ONNX's own domain.
        says: Why, in a clause.
        where: Which nodes of these operators.
        make: What stands for each.
        rule: What is known of the library, if that is why: without it there is nothing to say
            otherwise.
    """

    operators: frozenset[str]
    says: str
    where: Callable[[Graph, Node], bool]
    make: Make
    rule: KnownDefect | None = None

    @classmethod
    def of_rule(cls, rule: KnownDefect, where: Callable[[Graph, Node], bool], make: Make) -> Self:
        """Return how nodes are said otherwise that a rule describes.

        Args:
            rule: Of the library.
            where: Which of the rule's nodes.
            make: What stands for each.
        """
        return cls(rule.operators, rule.says, where, make, rule)

    def is_for(self, graph: Graph, node: Node, version: str) -> bool:
        """Tell whether a node is to be said otherwise for a release of the library."""
        is_meant = node.op_type in self.operators and node.domain in _ONNX
        if self.rule is not None and is_meant:
            is_meant = self.rule.describes(graph, node, version)
        return is_meant and self.where(graph, node)


def rewrite_artifact(
    artifact: Artifact, region: Region, rewrites: Sequence[NodeRewrite], newest_opset: int
) -> Artifact:
    """Return an artifact whose ONNX says nodes as a library wants them; the same if it does.

    Args:
        artifact: Made by `onnx_artifact` of the region.
        region: What it was made from.
        rewrites: The first that is for a node is applied.
        newest_opset: The newest operator set that the library knows.
    """
    graph = region.graph
    found = {
        position: rewrite
        for position, node in enumerate(region.nodes)
        if (rewrite := _first(graph, graph.nodes[node], rewrites, artifact.version)) is not None
    }
    opset = graph.model.opset_imports.get("", 0)
    is_newer = opset > newest_opset and all(
        position in found or has_definition(graph, graph.nodes[node], newest_opset)
        for position, node in enumerate(region.nodes)
    )
    if not found and not is_newer and graph.model.ir_version <= _READ_BY_ALL:
        return artifact
    import onnx
    from onnx import helper

    model = onnx.load_model_from_string(artifact.payload)
    if is_newer:
        opset = newest_opset
        for position, proto in enumerate(model.graph.node):
            if position not in found and proto.domain in _ONNX:
                _drop_unknown_attributes(proto, opset)
        for imported in model.opset_import:
            if imported.domain == "":
                imported.version = opset
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    model.ir_version = min(model.ir_version, needed if is_newer else max(needed, _READ_BY_ALL))
    _apply(model.graph, region, found, opset)
    read = set(_names_read(model.graph))
    constants = tuple(item for item in artifact.constants if item.name in read)
    dropped = {item.name for item in artifact.constants} - read
    for items in (model.graph.input, model.graph.initializer):
        remaining = [item for item in items if item.name not in dropped]
        del items[:]
        items.extend(remaining)
    return replace(artifact, payload=model.SerializeToString(), constants=constants)


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph and those inside of its nodes read, repeats included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _names_read(body)
    for output in graph.output:
        yield output.name


def _drop_unknown_attributes(proto: onnx.NodeProto, opset: int) -> None:
    """Drop attributes that an operator set lacks: they say what holds without them."""
    import onnx

    known = onnx.defs.get_schema(proto.op_type, opset, "").attributes
    remaining = [attribute for attribute in proto.attribute if attribute.name in known]
    del proto.attribute[:]
    proto.attribute.extend(remaining)


def _first(
    graph: Graph, node: Node, rewrites: Sequence[NodeRewrite], version: str
) -> NodeRewrite | None:
    return next((rewrite for rewrite in rewrites if rewrite.is_for(graph, node, version)), None)


def is_rewritten(rewrites: Sequence[NodeRewrite], version: str) -> Callable[[Graph, Node], bool]:
    """Return what tells whether a node is said otherwise for a release of a library."""
    return lambda graph, node: _first(graph, node, rewrites, version) is not None


def _apply(
    target: onnx.GraphProto, region: Region, found: Mapping[int, NodeRewrite], opset: int
) -> None:
    """Put what stands for nodes into their places."""
    nodes = list(target.node)
    del target.node[:]
    for position, (proto, node_id) in enumerate(zip(nodes, region.nodes, strict=True)):
        if position not in found:
            target.node.append(proto)
            continue
        # An output's name is the region's alone; what is made of it has a slash behind it.
        prefix = next(f"{name}/otherwise" for name in proto.output if name)
        draft = RegionDraft(prefix, opset)
        found[position].make(region.graph, region.graph.nodes[node_id], proto, draft)
        target.node.extend(draft.nodes)
        target.initializer.extend(draft.constants)


def has_definition(graph: Graph, node: Node, opset: int) -> bool:
    """Tell whether an older operator set says the same of a node as the model's.

    Newer definitions add element types, attributes and inputs; so the older one has to have those
    that the node has, and the same defaults of all others.

    Args:
        graph: Of the node.
        node: An operator without bodies; those of other domains stay as they are.
        opset: The older operator set of ONNX's own domain.
    """
    import onnx
    import onnx_ir as ir

    if node.domain not in _ONNX:
        return True
    if node.ir.op_identifier() in graph.model.functions:
        return False
    try:
        newer = onnx.defs.get_schema(node.op_type, graph.model.opset_imports.get("", 0), "")
        if newer.since_version <= opset:
            return _bodies_have_definitions(graph, node, opset)
        older = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    given = {
        attribute.name
        for attribute in _attributes(node)
        if not _is_default(ir.to_proto(attribute), newer)
    }
    has_attributes = given <= older.attributes.keys() and all(
        name in node.ir.attributes
        or (
            name in newer.attributes
            and newer.attributes[name].default_value == attribute.default_value
        )
        for name, attribute in older.attributes.items()
    )
    return has_attributes and all(
        _takes(formals, types)
        for formals, types in (
            (older.inputs, _types(graph, node.inputs)),
            (older.outputs, _types(graph, node.outputs)),
        )
    )


def _is_default(attribute: onnx.AttributeProto, schema: Any) -> bool:
    """Tell whether an attribute says what holds without it."""
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    fields = ("type", "i", "f", "s")
    return bool(default.name) and all(
        getattr(attribute, field) == getattr(default, field) for field in fields
    )


def _bodies_have_definitions(graph: Graph, node: Node, opset: int) -> bool:
    """Tell whether all operators in a node's bodies are those of an older operator set."""
    import onnx

    from intarsia.graph.snapshot import node_bodies

    return all(
        inner.domain not in _ONNX
        or onnx.defs.get_schema(
            inner.op_type, graph.model.opset_imports.get("", 0), ""
        ).since_version
        <= opset
        for body in node_bodies(node.ir)
        for inner in body.all_nodes()
    )


def _attributes(node: Node) -> Sequence[Any]:
    return tuple(node.ir.attributes.values())


def _types(graph: Graph, values: Sequence[int]) -> list[str]:
    """Return the types of values as schemas write them; empty where one is absent or unknown."""
    import onnx

    types = []
    for value in values:
        source = graph.values[value] if value >= 0 else None
        is_known = source is not None and source.is_tensor and source.ir.dtype is not None
        if source is None or not is_known:
            types.append("" if source is None else "?")
        else:
            assert source.ir.dtype is not None
            element_type = onnx.TensorProto.DataType.Name(source.ir.dtype.value)
            types.append(f"tensor({element_type.lower()})")
    return types


def _takes(formals: Sequence[Any], types: Sequence[str]) -> bool:
    """Tell whether formal inputs or outputs take values of these types."""
    if not formals:
        return not types
    last = formals[-1]
    is_variadic = last.option.name == "Variadic"
    if len(types) > len(formals) and not is_variadic:
        return False
    padded = [*formals, *([last] * (len(types) - len(formals)))]
    return all(
        not kind or kind in formal.types for formal, kind in zip(padded, types, strict=False)
    )


def _is_batch_first(graph: Graph, node: Node) -> bool:
    return node.ir.attributes.get_int("layout", 0) == 1


def _make_time_first(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Say a recurrent layer with `layout=1` by transpositions around one with `layout=0`."""
    kept = [attribute for attribute in proto.attribute if attribute.name != "layout"]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    inputs, outputs = list(proto.input), list(proto.output)
    states = (0, 5, 6)  # X, initial_h and initial_c have the batch first
    for position in states:
        if position < len(inputs):
            inputs[position] = draft.transpose(inputs[position], (1, 0, 2))
    made = [name and f"{draft.name}/state{position}" for position, name in enumerate(outputs)]
    draft.keep(proto, inputs, made)
    for position, (name, source) in enumerate(zip(outputs, made, strict=True)):
        if name:  # Y: [seq, directions, batch, hidden]; Y_h and Y_c: [directions, batch, hidden]
            draft.transpose(source, (1, 0, 2) if position else (2, 0, 1, 3), result=name)


BATCH_FIRST = NodeRewrite(
    frozenset(("GRU", "LSTM", "RNN")),
    "it has the sequence first",
    _is_batch_first,
    _make_time_first,
)
"""Recurrent layers whose first dimension is the batch."""


def _has_columns_first(graph: Graph, node: Node) -> bool:
    source = graph.values[node.inputs[0]]
    is_fixed = source.shape is not None and not source.is_free
    return is_fixed and node.ir.attributes.get_string("mode", "DCR") == "CRD"


def _make_blocks(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Say SpaceToDepth by a transposition between two views."""
    count, channels, height, width = graph.values[node.inputs[0]].shape or ()
    size = node.ir.attributes.get_int("blocksize", 1)
    rows, columns = height // size, width // size
    split = draft.reshape(proto.input[0], (count, channels, rows, size, columns, size))
    moved = draft.transpose(split, (0, 1, 3, 5, 2, 4))
    draft.reshape(moved, (count, channels * size * size, rows, columns), result=proto.output[0])


SPACE_TO_DEPTH = NodeRewrite(
    frozenset(("SpaceToDepth",)),
    "it does not know the order of channels",
    _has_columns_first,
    _make_blocks,
)
"""SpaceToDepth whose channels come before what was rows and columns (operator set 28)."""


_MASK, _PAST, _LENGTHS, _SCORES = 3, 4, 6, 3
"""Positions of Attention's inputs `attn_mask`, `past_key` and `nonpad_kv_seqlen`, and of its output
`qk_matmul_output`."""


def _has_windows(graph: Graph, node: Node) -> bool:
    return not node.ir.attributes.keys().isdisjoint(("left_window_size", "right_window_size"))


def has_known_mask(graph: Graph, node: Node) -> bool:
    """Tell whether which keys an Attention's queries attend to may be said by a constant mask.

    Args:
        graph: Of the node.
        node: An Attention.
    """
    values = [graph.values[value] if value >= 0 else None for value in node.inputs]
    values += [None] * (_LENGTHS + 1 - len(values))
    query, key, mask, past = values[0], values[1], values[_MASK], values[_PAST]
    shows_masked = (
        len(node.outputs) > _SCORES
        and node.outputs[_SCORES] >= 0
        and node.ir.attributes.get_int("qk_matmul_output_mode", 0) != 0
    )
    if shows_masked or values[_LENGTHS] is not None or query is None or key is None:
        return False
    if any(one is not None and (one.is_free or not one.shape) for one in (query, key, mask, past)):
        return False
    return mask is None or (mask.shape or ())[-1] == _count_keys(graph, node)


def _count_keys(graph: Graph, node: Node) -> int:
    """Return how many keys there are with those of the past, of static shape."""
    count = (graph.values[node.inputs[1]].shape or ())[-2]
    return count + _count_past(graph, node)


def _count_past(graph: Graph, node: Node) -> int:
    is_there = len(node.inputs) > _PAST and node.inputs[_PAST] >= 0
    return (graph.values[node.inputs[_PAST]].shape or ())[-2] if is_there else 0


def make_masked(graph: Graph, node: Node, proto: onnx.NodeProto, draft: RegionDraft) -> None:
    """Say windows and `is_causal` of Attention by its mask."""
    attributes, past = node.ir.attributes, _count_past(graph, node)
    query = graph.values[node.inputs[0]]
    rows = np.arange((query.shape or ())[-2])[:, None] + past
    columns = np.arange(_count_keys(graph, node))
    left, right = (attributes.get_int(f"{side}_window_size", -1) for side in ("left", "right"))
    if attributes.get_int("is_causal", 0):
        right = 0
    counts = np.full((rows.size, columns.size), True)
    if left >= 0:
        counts &= columns >= rows - left
    if right >= 0:
        counts &= columns <= rows + right
    inputs = [*proto.input, *[""] * (_MASK + 1 - len(proto.input))]
    mask = inputs[_MASK]
    if not counts.all():
        inputs[_MASK] = draft.constant(counts, "bool")
        if mask and graph.values[node.inputs[_MASK]].dtype == "bool":
            inputs[_MASK] = draft.add("And", mask, inputs[_MASK])
        elif mask:
            nothing = draft.constant(-np.inf, graph.values[node.inputs[_MASK]].dtype)
            inputs[_MASK] = draft.add("Where", inputs[_MASK], mask, nothing)
    said = ("left_window_size", "right_window_size", "is_causal")
    others = [attribute for attribute in proto.attribute if attribute.name not in said]
    del proto.attribute[:]
    proto.attribute.extend(others)
    draft.keep(proto, inputs, list(proto.output))


WINDOWS = NodeRewrite(
    frozenset(("Attention",)),
    "it does not know windows",
    lambda graph, node: _has_windows(graph, node) and has_known_mask(graph, node),
    make_masked,
)
"""Attention whose queries attend to the keys near them (operator set 25)."""
