# SPDX-License-Identifier: Apache-2.0
"""A small model whose constants would be huge is read and prepared like any other."""

import resource
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

HUGE = 1 << 40
MOST_BYTES = 256 << 20


def ints(name, *numbers):
    return numpy_helper.from_array(np.array(numbers), name)


def scalar(name, number):
    return numpy_helper.from_array(np.array(number), name)


def doubling(times):
    return [
        helper.make_node("Concat", [f"d{i}" if i else "one"] * 2, [f"d{i + 1}"], axis=0)
        for i in range(times)
    ] + [helper.make_node("Cast", [f"d{times}"], ["z"], to=7)]


def looping(trips):
    del trips
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Concat", ["c", "c"], ["twice"], axis=0),
        ],
        "body",
        [value("i", 7, []), value("go", 9, []), value("c", 7, None)],
        [value("still", 9, []), value("twice", 7, None)],
    )
    return [helper.make_node("Loop", ["huge", "", "one"], ["z"], body=body)]


GROWING = {
    "Range": lambda: [helper.make_node("Range", ["zero", "huge", "step"], ["z"])],
    "ConstantOfShape": lambda: [helper.make_node("ConstantOfShape", ["shape"], ["z"])],
    "Expand": lambda: [helper.make_node("Expand", ["one", "shape"], ["z"])],
    "Tile": lambda: [helper.make_node("Tile", ["one", "shape"], ["z"])],
    "Pad": lambda: [helper.make_node("Pad", ["one", "pads"], ["z"])],
    "OneHot": lambda: [helper.make_node("OneHot", ["one", "huge", "off_on"], ["z"])],
    "Resize": lambda: [helper.make_node("Resize", ["half", "", "", "shape"], ["z"])],
    "Concat": lambda: doubling(40),
    "Loop": lambda: looping(HUGE),
}
CONSTANTS = [
    *(scalar("zero", 0), scalar("huge", HUGE), scalar("step", 1), ints("shape", HUGE)),
    *(ints("one", 1), ints("pads", 0, HUGE), ints("off_on", 0, 1)),
    numpy_helper.from_array(np.float32([0.5]), "half"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("operator", GROWING)
def test_constants_that_no_memory_holds_are_not_made(operator):
    nodes = [
        *GROWING[operator](),
        helper.make_node("Cast", ["z"], ["f"], to=1),
        helper.make_node("ReduceSum", ["f"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    shape = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", shape[:1], shape[1:], CONSTANTS)
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepared = prepare(load(model)).model
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used << 10 < MOST_BYTES
    assert prepared.graph.num_nodes() > 1


def test_a_long_vector_of_data_keeps_shape_arithmetic_alive():
    """What is cut is the vector, not the model: the target of the Reshape is still found."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=7),
        helper.make_node("Shape", ["w"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["a", "target"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    constants = [scalar("zero", 0), ints("axes", 0), ints("rest", -1)]
    graph = helper.make_graph(
        *(nodes, "g", [value("x", 1, [1 << 20]), value("w", 1, [4, 2])]),
        *([value("y", 7, None)], constants),
    )
    imports = [helper.make_opsetid("", 17)]
    loaded = load(helper.make_model(graph, ir_version=8, opset_imports=imports))
    assert list(loaded.graph.outputs[0].shape) == [4, 1 << 18]


def test_folding_in_all_is_bounded(monkeypatch):
    """A hundred vectors of a mebibyte are legal each; not all of them are made."""
    from intarsia.passes import fold_constants

    monkeypatch.setattr(fold_constants, "_MOST_NEW_BYTES", 10 << 20)
    nodes, names = [], []
    for number in range(100):
        constant = numpy_helper.from_array(np.float32([number]))
        name = f"c{number}"
        nodes.append(helper.make_node("ConstantOfShape", ["shape"], [name], value=constant))
        names.append(name)
    nodes.append(helper.make_node("Sum", [*names, "x"], ["y"]))
    shape = helper.make_tensor_value_info("x", 1, [1 << 18])
    output = helper.make_tensor_value_info("y", 1, [1 << 18])
    graph = helper.make_graph(nodes, "g", [shape], [output], [ints("shape", 1 << 18)])
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    prepared = prepare(load(model)).model
    made = sum(value.const_value.nbytes for value in prepared.graph.initializers.values())
    assert 5 << 20 < made <= (10 << 20) + 8
    onnx.checker.check_model(model)
