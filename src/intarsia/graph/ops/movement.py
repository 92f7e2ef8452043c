# SPDX-License-Identifier: Apache-2.0
"""Operators that compute nothing: they move elements, make some up, or run bodies.

Indices are followed (`carries`) through what exporters put between an input and a Gather; other
operators that move all elements, such as DepthToSpace, are left out: no index goes through them,
and what is followed decides which nodes a backend is offered.
"""

from __future__ import annotations

from functools import partial

from intarsia.graph.ops.operator import CallWeight, Family, Indexing, OnnxOperator, Part, ViewKind

_move = partial(OnnxOperator, family=Family.MOVEMENT)
_view = partial(
    _move, weight=CallWeight.LIGHT, view=ViewKind.RESHAPED, keeps_scale=True, carries=Part.ALL
)
_light = partial(OnnxOperator, family=Family.ELEMENTWISE, weight=CallWeight.LIGHT)

MOVEMENT = (
    _light("Cast", casts=True, carries=Part.ALL),
    _light("CastLike", casts=True),
    _light("Dropout", view=ViewKind.SAME, keeps_scale=True, is_random=True),
    _light("Identity", view=ViewKind.SAME, keeps_scale=True, carries=Part.ALL),
    _light("Where"),
    _view("Flatten"),
    _view("Reshape", shape_operands=(1,)),
    _view("Squeeze", shape_operands=(1,)),
    _view("Unsqueeze", shape_operands=(1,)),
    _view("Transpose", view=ViewKind.STRIDED),
    _move(
        "Slice",
        view=ViewKind.STRIDED,
        keeps_scale=True,
        carries=Part.SOME,
        reads=Part.SOME,
        shape_operands=(1, 2, 3, 4),
    ),
    _move("Split", view=ViewKind.STRIDED, keeps_scale=True, carries=Part.SOME, shape_operands=(1,)),
    _move("BitCast"),
    _move("CenterCropPad", shape_operands=(1,)),
    _move("Compress", keeps_scale=True, finds_entries=True),
    _move("Concat", keeps_scale=True, carries=Part.ALL),
    _move("Constant"),
    _move("ConstantOfShape", shape_operands=(0,)),
    _move("DepthToSpace", keeps_scale=True),
    _move(
        "Expand",
        weight=CallWeight.LIGHT,
        keeps_scale=True,
        carries=Part.ALL,
        shape_operands=(1,),
    ),
    _move("EyeLike"),
    _move(
        "Gather",
        keeps_scale=True,
        carries=Part.SOME,
        reads=Part.SOME,
        indexing=Indexing.AXIS,
    ),
    _move("GatherElements", keeps_scale=True, reads=Part.SOME, indexing=Indexing.AXIS),
    _move("GatherND", keeps_scale=True, reads=Part.SOME, indexing=Indexing.TUPLES),
    _move("Pad", shape_operands=(1, 3)),
    _move("ReverseSequence", keeps_scale=True),
    _move("Scatter", indexing=Indexing.AXIS),
    _move("ScatterElements", indexing=Indexing.AXIS),
    _move("ScatterND", indexing=Indexing.TUPLES),
    _move("Shape", reads=Part.NONE),
    _move("Size", reads=Part.NONE),
    _move("SpaceToDepth", keeps_scale=True),
    _move("TensorScatter"),
    _move("Tile", keeps_scale=True, carries=Part.ALL, shape_operands=(1,)),
    _move("Trilu", shape_operands=(1,)),
    OnnxOperator("SplitToSequence", Family.STRUCTURE, shape_operands=(1,)),
    *(
        OnnxOperator(name, Family.STRUCTURE)
        for name in (
            "ConcatFromSequence",
            "If",
            "Loop",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
            "Scan",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
        )
    ),
)
