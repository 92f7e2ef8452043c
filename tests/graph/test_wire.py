# SPDX-License-Identifier: Apache-2.0
"""References to files are found in the bytes of a model wherever they stand; garbage is refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intarsia.graph.tensors import all_tensors, read_references


def _external(name, location="constants"):
    tensor = numpy_helper.from_array(np.ones(4, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4096")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _model():
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=_external("in_body"))], "body", [], []
    )
    nodes = [
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Many", [], ["m"], items=[_external("listed"), _external("also", "/etc")]),
    ]
    sparse = helper.make_sparse_tensor(
        _external("values"), numpy_helper.from_array(np.zeros(4, np.int64), "indices"), [8]
    )
    graph = helper.make_graph(
        nodes, "g", [], [], [_external("weight")], sparse_initializer=[sparse]
    )
    function = helper.make_function("d", "F", [], ["c"], inner.node, [helper.make_opsetid("", 20)])
    model = helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.CopyFrom(inner)
    odd = model.graph.initializer.add()
    odd.name, odd.data_location = "says so alone", TensorProto.EXTERNAL
    return model


def test_every_reference_is_found():
    model = _model()
    expected = [
        (tensor.name, [entry.value for entry in tensor.external_data if entry.key == "location"])
        for tensor in all_tensors(model)
        if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL
    ]
    assert len(expected) == 9
    assert sorted(read_references(model.SerializeToString())) == sorted(expected)


def test_what_readers_would_merge_is_an_error():
    attribute = onnx.AttributeProto(name="value", t=_external("known")).SerializeToString()
    attribute += onnx.AttributeProto(t=TensorProto(name="other")).SerializeToString()
    node = onnx.NodeProto(op_type="Constant").SerializeToString()
    node += bytes([5 << 3 | 2, 0x80 | len(attribute) & 0x7F, len(attribute) >> 7]) + attribute
    assert onnx.NodeProto.FromString(node).attribute[0].t.name == "other"
    graph = bytes([1 << 3 | 2, 0x80 | len(node) & 0x7F, len(node) >> 7]) + node
    model = bytes([7 << 3 | 2, 0x80 | len(graph) & 0x7F, len(graph) >> 7]) + graph
    with pytest.raises(ValueError, match="twice"):
        list(read_references(model))


@pytest.mark.parametrize("cut", [1, 7, 40, 200])
def test_bytes_that_are_cut_off_are_an_error(cut):
    with pytest.raises(ValueError, match=r"cut off|wire type|too long"):
        list(read_references(_model().SerializeToString()[:-cut]))
