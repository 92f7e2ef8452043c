# SPDX-License-Identifier: Apache-2.0
"""How control flow, sequences and optionals are drawn: whole little constructions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from intarsia.testing.graphs.draft import Draft

_INNER = ("Relu", "Neg", "Sigmoid", "Tanh", "Abs")


def branch(d: Draft, op_type: str) -> None:
    """Draw If, whose bodies read from outside."""
    x = d.take("Relu", dtypes=("float32",), rank=(0, 3))
    bodies = {}
    for name in ("then_branch", "else_branch"):
        node = helper.make_node(d.pick(_INNER), [x], [f"{name}_{len(d.nodes)}"])
        out = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, d.array(x).shape)
        bodies[name] = helper.make_graph([node], name, [], [out])
    condition = d.new("bool", d.pick(((), (1,))), constant=0.3)
    made = d.op(op_type, [condition], **bodies)
    d.values[made[0]] = np.asarray(d.values[made[0]])


def loop(d: Draft, op_type: str) -> None:
    """Draw Loop of a fixed number of turns with a carried and a collected value."""
    shape = d.shape(0, 2)
    x = d.new("float32", shape)
    step = d.new("float32", shape, kind="plain")
    tag = len(d.nodes)

    def info(name: str, element: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(f"{name}{tag}", element, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", [f"carried{tag}", step], [f"next{tag}"]),
            helper.make_node(d.pick(_INNER), [f"next{tag}"], [f"seen{tag}"]),
            helper.make_node("Identity", [f"go{tag}"], [f"on{tag}"]),
        ],
        "body",
        [
            info("turn", TensorProto.INT64, ()),
            info("go", TensorProto.BOOL, ()),
            info("carried", TensorProto.FLOAT, shape),
        ],
        [
            info("on", TensorProto.BOOL, ()),
            info("next", TensorProto.FLOAT, shape),
            info("seen", TensorProto.FLOAT, shape),
        ],
    )
    turns = d.fixed(np.array(d.between(1, 4)), constant=0.6)
    d.op(op_type, [turns, d.constant(True, "bool"), x], 2, body=body)


def scan(d: Draft, op_type: str) -> None:
    """Draw Scan: a running sum."""
    length, width = d.between(1, 5), d.between(1, 4)
    tag = len(d.nodes)
    row = [
        helper.make_tensor_value_info(f"{name}{tag}", TensorProto.FLOAT, (width,))
        for name in ("state", "row", "sum", "out")
    ]
    nodes = [
        helper.make_node("Add", [f"state{tag}", f"row{tag}"], [f"sum{tag}"]),
        helper.make_node(d.pick(_INNER), [f"sum{tag}"], [f"out{tag}"]),
    ]
    body = helper.make_graph(nodes, "body", row[:2], row[2:])
    inputs = [d.new("float32", (width,)), d.new("float32", (length, width))]
    ways = d.some(scan_input_directions=[d.between(0, 1)], scan_output_directions=[d.between(0, 1)])
    axes = d.some(scan_input_axes=[0], scan_output_axes=[0])
    d.op(op_type, inputs, 2, body=body, num_scan_inputs=1, **ways, **axes)


def sequence(d: Draft, op_type: str) -> None:
    """Draw sequences that are made, changed and read again."""
    x = d.take("Add", rank=(1, 3), dtypes=("float32", "int64"))
    shape, dtype = d.array(x).shape, d.dtype_of(x)
    if op_type == "SplitToSequence":
        axis = d.axis(len(shape))
        sizes = d.constant(np.array(1)) if d.chance(0.5) else ""
        keep = {} if sizes else d.some(keepdims=d.between(0, 1))
        made = d.op(op_type, [x, sizes], axis=axis, **keep)[0]
        d.op("SequenceAt", [made, d.fixed(np.array(d.pick((0, -1))))])
        return
    parts = [x, *(d.new(dtype, shape) for _ in range(d.between(1, 2)))]
    made = d.op("SequenceConstruct", parts)[0]
    if op_type == "SequenceEmpty":
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        made = d.op("SequenceEmpty", [], dtype=element)[0]
        made = d.op("SequenceInsert", [made, x])[0]
    if op_type == "SequenceInsert":
        made = d.op(op_type, [made, d.new(dtype, shape), d.fixed(np.array(d.pick((0, 1, -1))))])[0]
    if op_type == "SequenceErase":
        made = d.op(op_type, [made, d.fixed(np.array(d.pick((0, 1, -1))))])[0]
    if op_type == "SequenceLength":
        d.op(op_type, [made])
    if op_type == "ConcatFromSequence":
        d.op(op_type, [made], axis=d.between(0, len(shape) - 1), **d.some(new_axis=d.between(0, 1)))
        return
    d.op("SequenceAt", [made, d.fixed(np.array(0))])


def optional(d: Draft, op_type: str) -> None:
    """Draw an optional that holds something."""
    made = d.op("Optional", [d.take("Relu", dtypes=("float32",))])[0]
    d.op("OptionalGetElement" if op_type == "Optional" else op_type, [made])


_SEQUENCES = (
    *("SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase"),
    *("SequenceLength", "SequenceAt", "ConcatFromSequence"),
)

RECIPES = {
    **dict.fromkeys(_SEQUENCES, sequence),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), optional),
    "If": branch,
    "Loop": loop,
    "Scan": scan,
}
"""By operator, how it is drawn."""
