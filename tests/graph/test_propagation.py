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
from intarsia.zoo import build

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
ROOT = 1 << 20
COMPUTING = {
    "Mul": lambda: [helper.make_node("Mul", ["root", "root"], ["extent"])],
    "Add": lambda: [helper.make_node("Add", ["half_of_it", "half_of_it"], ["extent"])],
    "Sub": lambda: [helper.make_node("Sub", ["more", "root"], ["extent"])],
    "Cast": lambda: [helper.make_node("Cast", ["narrow"], ["extent"], to=7)],
    "Concat": lambda: [
        helper.make_node("Concat", ["shape", "one"], ["both"], axis=0),
        helper.make_node("Gather", ["both", "first"], ["extent"]),
    ],
    "Shape": lambda: [
        helper.make_node("Shape", ["wide"], ["sides"]),
        helper.make_node("Gather", ["sides", "first"], ["side"]),
        helper.make_node("Mul", ["side", "root"], ["extent"]),
    ],
}
"""Ways to compute `HUGE` as a vector of one entry."""
SIZED = {
    "Range": lambda: [
        helper.make_node("Squeeze", ["extent", "first"], ["limit"]),
        helper.make_node("Range", ["zero", "limit", "step"], ["v"]),
    ],
    "ConstantOfShape": lambda: [
        helper.make_node("ConstantOfShape", ["extent"], ["v"], value=ints("filler", 0))
    ],
    "Expand": lambda: [helper.make_node("Expand", ["one", "extent"], ["v"])],
    "Tile": lambda: [helper.make_node("Tile", ["one", "extent"], ["v"])],
    "Pad": lambda: [
        helper.make_node("Concat", ["first", "extent"], ["ends"], axis=0),
        helper.make_node("Pad", ["one", "ends"], ["v"]),
    ],
    "Resize": lambda: [helper.make_node("Resize", ["one", "", "", "extent"], ["v"])],
    "Squeeze": lambda: [
        helper.make_node("Concat", ["one", "extent"], ["plane"], axis=0),
        helper.make_node("Expand", ["one", "plane"], ["row"]),
        helper.make_node("Squeeze", ["row", "first"], ["v"]),
    ],
    "nested": lambda: [
        helper.make_node("Expand", ["one", "pair"], ["two"]),
        helper.make_node("Mul", ["two", "extent"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["size"]),
        helper.make_node("Tile", ["one", "size"], ["v"]),
    ],
}
"""Operators that make a vector `v` with as many entries as `extent` says."""
READING = {
    "Cast": lambda: [helper.make_node("Cast", ["v"], ["z"], to=1)],
    "Add": lambda: [helper.make_node("Add", ["v", "one"], ["z"])],
    "Sub": lambda: [helper.make_node("Sub", ["one", "v"], ["z"])],
    "Mul": lambda: [helper.make_node("Mul", ["v", "v"], ["z"])],
    "Concat": lambda: [helper.make_node("Concat", ["one", "v"], ["z"], axis=0)],
    "Gather": lambda: [helper.make_node("Gather", ["v", "first"], ["z"])],
    "GatherOf": lambda: [helper.make_node("Gather", ["off_on", "v"], ["z"])],
    "Slice": lambda: [helper.make_node("Slice", ["v", "first", "extent"], ["z"])],
    "Squeeze": lambda: [
        helper.make_node("Unsqueeze", ["v", "first"], ["u"]),
        helper.make_node("Squeeze", ["u", "first"], ["w"]),
        helper.make_node("Cast", ["w"], ["z"], to=1),
    ],
    "Unsqueeze": lambda: [helper.make_node("Unsqueeze", ["v", "first"], ["z"])],
    "Shape": lambda: [helper.make_node("Shape", ["v"], ["z"])],
    "Size": lambda: [helper.make_node("Size", ["v"], ["z"])],
}
"""All operators that propagate data, as readers of `v`."""


def assert_is_prepared_in_little_memory(nodes, constants):
    nodes = [
        *nodes,
        helper.make_node("Cast", ["z"], ["f"], to=1),
        helper.make_node("ReduceSum", ["f"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    shape = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", [*shape[:1], WIDE], shape[1:], constants)
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepared = prepare(load(model)).model
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used << 10 < MOST_BYTES
    assert prepared.graph.num_nodes() >= 1


WIDE = helper.make_tensor_value_info("wide", 1, [ROOT, 1])
COMPUTED = [
    *(*CONSTANTS, ints("root", ROOT), ints("half_of_it", HUGE >> 1), ints("more", HUGE + ROOT)),
    *(ints("first", 0), ints("pair", 2)),
    numpy_helper.from_array(np.array([HUGE], np.uint64), "narrow"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("operator", GROWING)
def test_constants_that_no_memory_holds_are_not_made(operator):
    assert_is_prepared_in_little_memory(GROWING[operator](), CONSTANTS)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("reader", READING)
@pytest.mark.parametrize("operator", SIZED)
def test_vectors_whose_length_is_computed_are_not_made(operator, reader):
    nodes = [*COMPUTING["Mul"](), *SIZED[operator](), *READING[reader]()]
    assert_is_prepared_in_little_memory(nodes, COMPUTED)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("computing", COMPUTING)
def test_it_does_not_matter_how_the_length_is_computed(computing):
    nodes = [*COMPUTING[computing](), *SIZED["ConstantOfShape"](), *READING["Cast"]()]
    assert_is_prepared_in_little_memory(nodes, COMPUTED)


def chain(links):
    """Make vectors that are each as long as the one before, by its sum's shape, and a huge one."""
    nodes = []
    for link in range(links):
        size = f"size{link}" if link else "one"
        nodes += [
            helper.make_node("ConstantOfShape", [size], [f"v{link}"], value=ints("filler", 1)),
            helper.make_node("Add", [f"v{link}", f"v{link}"], [f"w{link}"]),
            helper.make_node("Shape", [f"w{link}"], [f"sum{link}"]),
            helper.make_node("Mul", [f"sum{link}", "one"], [f"size{link + 1}"]),
        ]
    return [
        *(*nodes, helper.make_node("Mul", [f"size{links}", "shape"], ["extent"])),
        helper.make_node("ConstantOfShape", ["extent"], ["v"], value=ints("filler", 0)),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("links", [1, 4, 20])
def test_lengths_may_follow_from_each_other(links):
    """More often than there are rounds, too."""
    assert_is_prepared_in_little_memory([*chain(links), *READING["Cast"]()], COMPUTED)


LENGTHS = {
    "shape": lambda: [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "step"], ["length"]),
    ],
    "data": lambda: [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["length"], to=7),
    ],
}


def position_ids(length):
    """Make positions, [1, length], and what exporters expand them with."""
    nodes = [
        *LENGTHS[length](),
        helper.make_node("Range", ["zero", "length", "step"], ["range"]),
        helper.make_node("Add", ["range", "zero"], ["moved"]),
        helper.make_node("Unsqueeze", ["moved", "first"], ["row"]),
        helper.make_node("Add", ["row", "step"], ["ids"]),
        helper.make_node("Unsqueeze", ["length", "first"], ["columns"]),
        helper.make_node("Concat", ["pair", "columns"], ["target"], axis=0),
        helper.make_node("Shape", ["target"], ["rank"]),
        helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=ints("filler", 1)),
        helper.make_node("Mul", ["ones", "minus"], ["wildcards"]),
        helper.make_node("Equal", ["target", "wildcards"], ["is_wild"]),
        helper.make_node("Where", ["is_wild", "ones", "target"], ["kept"]),
        helper.make_node("Expand", ["ids", "kept"], ["y"]),
        helper.make_node("Reshape", ["ids", "columns"], ["flat"]),
    ]
    value = helper.make_tensor_value_info
    constants = [scalar("zero", 0), scalar("step", 1), ints("first", 0), ints("pair", 2)]
    graph = helper.make_graph(
        *(nodes, "g", [value("x", 1, [1, 5])]),
        *([value("y", 7, None), value("flat", 7, None)], [*constants, ints("minus", -1)]),
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("length", LENGTHS)
def test_positions_keep_the_shapes_that_onnx_finds(length):
    """Short vectors of computed and of unknown length: the same as onnx infers for the whole."""
    model = position_ids(length)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    expected = {
        info.name: [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*found.value_info, *found.output)
    }
    loaded = load(model)
    values = {value.name: value for node in loaded.graph for value in node.outputs}
    assert len(values) == len(model.graph.node)
    for name, value in values.items():
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for dim, stated in zip(dims, expected[name], strict=True):
            # What onnx leaves open our own rules may know.
            assert (dim or 0) == stated or (isinstance(dim, int) and isinstance(stated, str)), name


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


def test_shapes_are_found_however_many_depend_on_one_another():
    """Each layer of a transformer asks for the shape of what comes from the one before."""
    model = build("minilm:free")
    graph = prepare(load(model, {value.name: (1, 64) for value in model.graph.input})).graph
    assert all(value.shape is not None for value in graph.values)
    assert {value.shape for value in graph.values} >= {(1, 12, 64, 64), (1, 64, 384)}
