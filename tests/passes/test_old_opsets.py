# SPDX-License-Identifier: Apache-2.0
"""Every operator at every version of the operator set that ONNX takes is taken, and stays valid."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.defs import SchemaError, get_schema

import intarsia.testing.cases
from intarsia.arrays import np_dtype
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

VERSIONS = range(7, 23)


@dataclass
class Part:
    """A node with what it reads."""

    nodes: list
    inputs: list
    initializers: list
    outputs: list


def part_of(case, number, opset, *, fed):
    """Return a case as nodes of an operator set, or None where its operands have no form there."""
    try:
        schema = get_schema(case.op_type, opset)
    except SchemaError:
        return None
    new = get_schema(case.op_type)
    attributes = {name: value for name, value in case.attributes if name in schema.attributes}
    names, inputs, initializers = [], [], []
    rng = np.random.default_rng(number)
    for position, operand in enumerate(case.operands):
        port = new.inputs[min(position, len(new.inputs) - 1)].name
        if operand is None:
            names.append("")
            continue
        array = operand.draw(rng, case.dtypes[0])
        if position >= schema.max_input:  # it was an attribute then
            if port not in schema.attributes or not operand.is_constant or not array.size:
                return None
            attributes[port] = array.tolist()
            continue
        names.append(f"{case.op_type}{number}_x{position}")
        if fed and not operand.is_constant:
            element = helper.np_dtype_to_tensor_dtype(np_dtype(operand.dtype or case.dtypes[0]))
            inputs.append(helper.make_tensor_value_info(names[-1], element, operand.shape))
        else:
            initializers.append(numpy_helper.from_array(array, names[-1]))
    outputs = [f"{case.op_type}{number}_y{position}" for position in range(case.outputs)]
    node = helper.make_node(case.op_type, names, outputs, outputs[0], **attributes)
    read = [helper.make_node("Shape", [name], [f"{name}_s"]) for name in outputs]
    shown = [*outputs, *(f"{name}_s" for name in outputs)]
    return Part([node, *read], inputs, initializers, shown)


def model_of(parts, opset):
    graph = helper.make_graph(
        [node for part in parts for node in part.nodes],
        "all",
        [item for part in parts for item in part.inputs],
        [onnx.ValueInfoProto(name=name) for part in parts for name in part.outputs],
        [item for part in parts for item in part.initializers],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def is_legal(part, opset):
    """Tell what ONNX's own checks say."""
    try:
        model = onnx.shape_inference.infer_shapes(
            model_of([part], opset), check_type=True, strict_mode=True
        )
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


@cache
def legal_since(case, number, fed, since):
    """Tell whether a case is legal in the operator set that brought this form of its operator."""
    part = part_of(case, number, since, fed=fed)
    return part is not None and is_legal(part, since)


FIRST = {case.op_type: case for case in reversed(intarsia.testing.cases.CASES)}


@pytest.mark.parametrize("opset", VERSIONS)
def test_every_operator_of_an_old_set_is_taken(opset):
    legal = []
    for number, case in enumerate((*FIRST.values(), *FIRST.values())):
        part = part_of(case, number, opset, fed=number < len(FIRST))
        if part is not None:
            since = max(VERSIONS[0], get_schema(case.op_type, opset).since_version)
            if legal_since(case, number, number < len(FIRST), since):
                legal.append(part)
    assert len({part.nodes[0].op_type for part in legal}) > 70
    model = onnx.shape_inference.infer_shapes(model_of(legal, opset), strict_mode=True)
    prepared = ir.to_proto(prepare(load(model)).model)
    onnx.checker.check_model(prepared, full_check=True)
    for node in prepared.graph.node:
        assert node.domain or get_schema(node.op_type, opset)
