# SPDX-License-Identifier: Apache-2.0
"""Fill in the types and shapes of values with `onnx.shape_inference`, and run `onnx.checker`.

Both get a copy of the model without its big weights, so that its size does not matter.

What a file declares of a shape that depends on what is fed is a guess, and dropped. A shape that an
operand says, as that of a Reshape, is another matter: who declares what a fed operand makes of it
states which runs there are, and a run that makes something else is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir

from intarsia.errors import ModelError
from intarsia.graph.contributed import MICROSOFT, with_stand_ins
from intarsia.graph.metadata import CLAIM_KEY
from intarsia.graph.ops import Family, Part, operator_of
from intarsia.graph.propagation import (
    cut_propagation,
    dimensions,
    hide_readers,
    is_complete,
    state_types,
)
from intarsia.graph.snapshot import node_bodies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_SMALL_BYTES = 1024
_INNER_ERROR = "Inference error(s)"
_FUNCTION_VALUE_INFO_IR_VERSION = 10
_MOST_ROUNDS = 8
"""Most rounds of finding lengths that depend on each other; some exporters' models need two."""
_TRADITIONAL = "ai.onnx.ml"


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return the model as protobuf with its big initializers turned into graph inputs."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = model.graph.name or "graph"
    for value in model.graph.inputs:
        if value.const_value is None:
            ir.serde.serialize_value_into(graph.input.add(), value)
    for value in model.graph.initializers.values():
        _add_initializer(graph, value)
    for node in model.graph:
        written = graph.node.add()
        ir.serde.serialize_node_into(written, node)
        if node.op_type == "STFT" and "onesided" not in node.attributes:
            # onnx's inference takes the default, which is 1, to be 0.
            written.attribute.append(onnx.helper.make_attribute("onesided", 1))
        for output in node.outputs:
            if output.name and output.type is not None and not output.is_graph_output():
                ir.serde.serialize_value_into(graph.value_info.add(), output)
    for value in model.graph.outputs:
        ir.serde.serialize_value_into(graph.output.add(), value)
    for function in model.functions.values():
        ir.serde.serialize_function_into(
            proto.functions.add(),
            function,
            create_value_info=model.ir_version >= _FUNCTION_VALUE_INFO_IR_VERSION,
        )
    return proto


def check_model(proto: onnx.ModelProto) -> None:
    """Run `onnx.checker` on a skeleton.

    Inputs and outputs without a shape pass, although the checker demands one: exporters write
    such models, and runtimes take them.

    Raises:
        ModelError: With the first line of what the checker says.
    """
    shapeless = [
        info.type.tensor_type
        for info in (*proto.graph.input, *proto.graph.output)
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")
    ]
    for tensor_type in shapeless:
        tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ModelError(
            f"the model is not valid ONNX: {_first_line(error)}",
            hint="run onnx.checker.check_model on it for the whole report",
        ) from None
    for tensor_type in shapeless:
        tensor_type.ClearField("shape")


def infer_shapes(model: ir.Model, proto: onnx.ModelProto | None = None) -> None:
    """Write the inferred types and shapes into the model, in place.

    Shapes that the file states and that contradict the inferred ones are dropped. So are those of
    the outputs of a model with operators of `ai.onnx.ml`, whose shapes nothing infers, and which
    converters get wrong, and those that depend on what is fed: unless they follow from something,
    they are known when it runs. Runs compare what was declared with what comes (`CLAIM_KEY`).

    Args:
        model: Its nodes are in topological order.
        proto: Its skeleton, if there is one already.

    Raises:
        ModelError: An operator's inputs do not fit together.
    """
    proto = skeleton(model) if proto is None else proto
    strict = all(opset.domain in ("", "ai.onnx", "ai.onnx.ml") for opset in proto.opset_import)
    _record_claims(model)
    if strict and any(node.domain == _TRADITIONAL for node in model.graph):
        _drop_claims(model, proto)
    _drop_guesses(model, proto)
    proto = with_stand_ins(proto)
    try:
        inferred = _infer_bounded(proto, strict=strict)
    except onnx.shape_inference.InferenceError:
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            output.type.tensor_type.ClearField("shape")
        inferred = _infer_without(proto, strict=strict)
    _merge(model, inferred)
    _measure_caches(model)
    if not is_complete(inferred):
        _complete(model)


def _measure_caches(model: ir.Model) -> None:
    """Write how long caches of keys and values are that a buffer may have room for.

    Exporters declare what counts of them, which is less than a buffer that is past and present.
    """
    from intarsia.graph.infer_free import infer_free_shapes  # dear to import, and seldom needed

    nodes = [
        node
        for node in model.graph
        if (node.domain, node.op_type) == (MICROSOFT, "GroupQueryAttention")
    ]
    if not nodes or not all(_has_shape(value) for value in model.graph.inputs):
        return
    shapes = infer_free_shapes(model, is_fixed=True)
    for node in nodes:
        if node.inputs[_TOTAL] not in shapes.entries:
            continue
        for value in node.outputs[1:3]:
            extents = shapes.extents.get(value, ())
            if extents and all(isinstance(extent, int) for extent in extents):
                value.shape = ir.Shape([int(extent) for extent in extents])
                value.metadata_props.pop(CLAIM_KEY, None)


_TOTAL = 6
"""The input of GroupQueryAttention that says how many keys count in all."""


def _complete(model: ir.Model) -> None:
    """Add what follows from the shapes of the inputs by our own rules.

    They follow the arithmetic of exporters through a whole model at once; onnx needs a round for
    each part that depends on one before it, as each layer of a transformer does.
    """
    from intarsia.graph.infer_free import infer_free_shapes  # dear to import, and seldom needed

    # What operators of others make may depend on what is fed: a cache that grows or does not.
    if any(node.domain not in ("", "ai.onnx") for node in model.graph):
        return
    if not all(_has_shape(value) for value in model.graph.inputs):
        return
    for value, extents in infer_free_shapes(model, is_fixed=True).extents.items():
        if not _has_shape(value) and all(isinstance(extent, int) for extent in extents):
            value.shape = ir.Shape([int(extent) for extent in extents])


def _has_shape(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _record_claims(model: ir.Model) -> None:
    """Keep what is declared of outputs, which inference may change."""
    for value in model.graph.outputs:
        if value.producer() is not None and value.shape is not None and value.shape.is_static():
            value.metadata_props.setdefault(CLAIM_KEY, "x".join(map(str, value.shape)))


def _drop_claims(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Forget the shapes of outputs that nodes make."""
    for value, info in zip(model.graph.outputs, proto.graph.output, strict=True):
        if value.producer() is not None and info.type.HasField("tensor_type"):
            value.shape = None
            info.type.tensor_type.ClearField("shape")


def _drop_guesses(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Forget the shapes that depend on data, also inside bodies."""
    guessed = [value for value in data_dependent_shapes(model.graph) if value.shape is not None]
    names = {value.name for value in guessed}
    for value in guessed:
        value.shape = None
    graphs = [proto.graph] if names else []
    while graphs:
        graph = graphs.pop()
        for info in (*graph.value_info, *graph.output):
            if info.name in names and info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
        graphs += (body for node in graph.node for body in _proto_bodies(node))


def _infer_bounded(proto: onnx.ModelProto, *, strict: bool) -> onnx.ModelProto:
    """Infer; with data propagated where that is needed, and no long vectors of it.

    Lengths that only the propagation of data makes known are found first, without the nodes that
    would carry these vectors, in rounds while more becomes known. After `_MOST_ROUNDS` such nodes
    stay without data. In bodies of control flow, vectors of any length are carried.
    """
    inferred = _infer(proto, strict=strict, data_prop=False)
    if is_complete(inferred):
        return inferred
    for _ in range(_MOST_ROUNDS):
        if not cut_propagation(proto, inferred):
            return inferred
        hiding, names = hide_readers(proto, inferred)
        if not names:
            return _infer(proto, strict=strict, data_prop=True)
        before = dimensions(inferred, names)
        carried = _infer(hiding, strict=strict, data_prop=True)
        inferred = _infer(state_types(proto, carried), strict=strict, data_prop=False)
        if dimensions(inferred, names) == before:
            return _infer(proto, strict=strict, data_prop=True)
    return inferred


def adopt_types(model: ir.Model, types: Mapping[str, onnx.TypeProto]) -> None:
    """Write types and shapes onto values of the graph that have none, in place.

    Args:
        model: Its values are changed.
        types: By name.
    """
    for node in model.graph:
        for value in node.outputs:
            if value.name is not None and value.name in types:
                _adopt(value, onnx.ValueInfoProto(name=value.name, type=types[value.name]))


def _infer_without(proto: onnx.ModelProto, *, strict: bool) -> onnx.ModelProto:
    """Infer without stated shapes, and without what onnx itself is wrong about.

    Its propagation of data loses ranks in long chains of shape arithmetic, and the bodies that it
    declares for some operators (MeanVarianceNormalization) do not pass its own checks.
    """
    try:
        return _infer_bounded(proto, strict=strict)
    except onnx.shape_inference.InferenceError as error:
        first = str(error)
    try:
        return _infer(proto, strict=strict, data_prop=False)
    except onnx.shape_inference.InferenceError:
        if first.count(_INNER_ERROR) > 1 and not proto.functions:
            return _infer(proto, strict=False, data_prop=False)
    raise ModelError(
        f"the shapes or types of the model do not fit: {_first_line(first)}",
        hint="check the inputs' shapes, and the node's attributes and inputs",
    )


def _infer(proto: onnx.ModelProto, *, strict: bool, data_prop: bool) -> onnx.ModelProto:
    while True:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=strict, data_prop=data_prop
        )
        if not drop_empty_windows(proto, inferred):
            return inferred


def _add_initializer(graph: onnx.GraphProto, value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is None:
        return
    if tensor.nbytes <= _SMALL_BYTES and not isinstance(tensor, ir.ExternalTensor):
        proto = graph.initializer.add()
        ir.serde.serialize_tensor_into(proto, tensor)
        proto.name = value.name or ""
        return
    info = graph.input.add(name=value.name or "")
    info.type.tensor_type.elem_type = tensor.dtype.value
    info.type.tensor_type.shape.SetInParent()
    for dim in tensor.shape.numpy():
        info.type.tensor_type.shape.dim.add(dim_value=dim)


def _first_line(error: Exception | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no reason is given"


def _merge(model: ir.Model, inferred: onnx.ModelProto) -> None:
    stack = [(model.graph, inferred.graph)]
    while stack:
        graph, proto = stack.pop()
        infos = {info.name: info for info in (*proto.value_info, *proto.output)}
        for node, node_proto in zip(graph, proto.node, strict=True):
            for value in node.outputs:
                if value.name in infos:
                    _adopt(value, infos[value.name])
            bodies = node_bodies(node)
            if bodies:
                stack += zip(bodies, _proto_bodies(node_proto), strict=True)


def _proto_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _adopt(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    info_value = ir.serde.deserialize_value_info_proto(info, None)
    if value.type is None and info_value.type is not None:
        value.type = info_value.type
    shape = info_value.shape
    if shape is None or value.shape == shape:
        return
    if value.shape is not None and len(value.shape) == len(shape):
        dims = [
            new if isinstance(new, int) else old
            for old, new in zip(value.shape, shape, strict=True)
        ]
        value.shape = ir.Shape(dims)
    else:
        value.shape = shape


def data_dependent_shapes(graph: ir.Graph) -> set[ir.Value]:
    """Return the values of as many entries as operators find, and all that is computed of them.

    A shape may follow from the nodes all the same, as after a ReduceSum over all axes.

    Args:
        graph: Its nodes, and those of its bodies, are in topological order.
    """
    open_shapes: set[ir.Value] = set()
    _spread(graph, {value for value in graph.inputs if value.const_value is None}, open_shapes)
    return open_shapes


def _spread(graph: ir.Graph, fed: set[ir.Value], open_shapes: set[ir.Value]) -> None:
    """Go through a graph.

    Args:
        graph: A graph or a body.
        fed: Values whose numbers depend on what is fed; grows.
        open_shapes: Values whose shapes do; grows.
    """
    for node in graph:
        read = {value for value in node.inputs if value is not None}
        bodies = node_bodies(node)
        for body in bodies:
            fed.update(body.inputs)
            _spread(body, fed, open_shapes)
            read.update(body.outputs)
        is_fed, is_open = not read.isdisjoint(fed), not read.isdisjoint(open_shapes)
        operator = operator_of(node)
        is_open |= operator.finds_entries and is_fed
        is_fed &= operator.reads is not Part.NONE
        if is_open:
            open_shapes.update(node.outputs)
        if is_open or is_fed:
            fed.update(node.outputs)


def drop_empty_windows(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Rewrite poolings of a skeleton so that inference counts their windows as ONNX does.

    A window that would begin in the padding behind the input is not one: so say ONNX from operator
    set 22 on, and ONNX Runtime, onnx.reference and PyTorch of every version. With `ceil_mode`, the
    inference of onnx counts it in older operator sets.

    Args:
        proto: Changed in place: such a pooling gets explicit pads in the place of `ceil_mode`.
        inferred: The same with inferred shapes.

    Returns:
        Whether a pooling was rewritten; what follows it has to be inferred again.
    """
    pairs = zip(_graphs(proto.graph), _graphs(inferred.graph), strict=True)
    rewritten = [_rewrite(graph, inferred_graph) for graph, inferred_graph in pairs]
    return any(rewritten)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _rewrite(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> bool:
    pools = [node for node in graph.node if operator_of(node).family is Family.POOLING]
    pools = [node for node in pools if _attributes(node).get("ceil_mode", 0)]
    if not pools:
        return False
    infos = (*inferred.input, *inferred.value_info, *inferred.output)
    shapes = {info.name: _shape(info) for info in infos}
    changed = False
    for node in pools:
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        pads = _explicit_pads(_attributes(node), before, after) if before and after else None
        if pads is not None:
            attributes = [item for item in node.attribute if item.name not in ("ceil_mode", "pads")]
            del node.attribute[:]
            node.attribute.extend((*attributes, onnx.helper.make_attribute("pads", pads)))
            changed = True
    return changed


def _explicit_pads(
    attributes: dict[str, Any], before: tuple[int, ...], after: tuple[int, ...]
) -> list[int] | None:
    """Return pads that give the right shape without `ceil_mode`; None if nothing is wrong."""
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    ones = [1] * rank
    pads = attributes.get("pads") or [0] * 2 * rank
    begins, ends = pads[:rank], list(pads[rank:])
    is_wrong = False
    for dim, (size, out) in enumerate(zip(before[2:], after[2:], strict=True)):
        stride = (attributes.get("strides") or ones)[dim]
        span = (kernel[dim] - 1) * (attributes.get("dilations") or ones)[dim] + 1
        if (out - 1) * stride >= size + begins[dim] and out > 1:
            is_wrong = True
        else:
            ends[dim] = max(ends[dim], (out - 1) * stride + span - size - begins[dim])
    return [*begins, *ends] if is_wrong else None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    dims = info.type.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)
