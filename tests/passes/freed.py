# SPDX-License-Identifier: Apache-2.0
"""Networks of the zoo as exporters write them when the number of images or texts is free."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def freed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model for one image or text as one for any number, called `batch`.

    What is a constant of one image is spelled as PyTorch's exporter does: shapes of Reshapes
    begin with 0 or -1, sizes of Resizes are computed, and what is joined to images is expanded.
    """
    shapes, constants = _known(model)
    free = onnx.ModelProto.FromString(model.SerializeToString())
    graph = free.graph
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    nodes: list[onnx.NodeProto] = []

    def keep(array, name):
        graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.int64), name))
        return name

    def images(of, rest, name):
        """Add the number of images of a value, and other extents behind it."""
        first = [helper.make_node("Shape", [of], [f"{name}.shape"], f"{name}.shape")]
        ends = [keep([end], f"{name}.{end}") for end in (0, 1)]
        read = [f"{name}.shape", *ends]
        first.append(helper.make_node("Slice", read, [f"{name}.images"], f"{name}.images"))
        read = [f"{name}.images", keep(rest, f"{name}.rest")]
        nodes.extend((*first, helper.make_node("Concat", read, [name], name, axis=0)))
        return name

    for number, node in enumerate(graph.node):
        name = f"freed{number}"
        if node.op_type == "Reshape" and node.input[1] in constants:
            wanted = _reshaped(shapes[node.input[0]], constants[node.input[1]])
            node.input[1] = keep(wanted, name)
        elif node.op_type == "Resize" and len(node.input) > 3:
            node.input[3] = images(node.input[0], constants[node.input[3]][1:], name)
        elif node.op_type == "Concat" and len(shapes[node.output[0]]) > 1:
            (axis,) = (one.i for one in node.attribute)
            for place, read in enumerate(node.input):
                if read in constants and axis != 0:
                    fed = next(one for one in node.input if one not in constants)
                    shape = images(fed, constants[read].shape[1:], name)
                    nodes.append(
                        helper.make_node("Expand", [read, shape], [f"{name}.all"], f"{name}.all")
                    )
                    node.input[place] = f"{name}.all"
        nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return free


def _reshaped(source: list[int], wanted: np.ndarray) -> list[int]:
    """Return the shape of a Reshape whose first extent is what it was, or what is left."""
    first, *rest = map(int, wanted)
    if first == source[0]:
        return [0, *rest]
    return [-1, *rest] if first == 1 else [first, *rest]


def _known(model: onnx.ModelProto) -> tuple[dict[str, list[int]], dict[str, np.ndarray]]:
    """Return the shapes of values, and the constants."""
    types = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*types.value_info, *types.input, *types.output)
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in values}
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    fixed = [node for node in model.graph.node if node.op_type == "Constant"]
    constants |= {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in fixed}
    return shapes, constants
