# SPDX-License-Identifier: Apache-2.0
"""The rows: elementwise operators, contractions, windows, work along axes, and what only moves.

Indices are followed (`carries`) through what exporters put between an input and a Gather; other
operators that move all elements, such as DepthToSpace, are left out: no index goes through them,
and what is followed decides which nodes a backend is offered.
"""

from __future__ import annotations

from functools import partial

from intarsia.graph.ops import counts
from intarsia.graph.ops.operator import CallWeight, Family, Indexing, OnnxOperator, Part, ViewKind

_elementwise = partial(
    OnnxOperator, family=Family.ELEMENTWISE, flops=counts.elementwise, weight=CallWeight.LIGHT
)
_contraction = partial(OnnxOperator, family=Family.CONTRACTION)
_axes = partial(OnnxOperator, family=Family.AXES, flops=counts.each(1))
_reduction = partial(OnnxOperator, family=Family.REDUCTION, flops=counts.each(1))
_loop = partial(_reduction, weight=CallWeight.LOOP)
_other = partial(OnnxOperator, family=Family.OTHER, flops=counts.elementwise)

# fmt: off
_FUNCTIONS = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseNot", "Ceil",
    "Celu", "Cos", "Cosh", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Mish", "Mod", "Neg", "Not", "Pow", "Reciprocal", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "SwiGLU",
    "Swish", "Tan", "Tanh", "ThresholdedRelu",
)
_COMMUTATIVE = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Mean", "Mul", "Or", "Sum",
    "Xor",
)
# fmt: on

ELEMENTWISE = (
    *(_elementwise(name) for name in _FUNCTIONS),
    *(_elementwise(name, is_commutative=True) for name in _COMMUTATIVE),
    _elementwise("Max", is_commutative=True, keeps_scale=True),
    _elementwise("Min", is_commutative=True, keeps_scale=True),
    _elementwise("Clip", flops=counts.once),
    _elementwise("PRelu", flops=counts.once),
    _elementwise("Shrink", flops=counts.once),
)

CONTRACTIONS = (
    _contraction("Attention", flops=counts.attention),
    _contraction("CausalConvWithState", flops=counts.convolution(1, 2)),
    _contraction("Conv", flops=counts.convolution(1, 2), least_flops=counts.winograd(1, 2)),
    _contraction("ConvInteger", flops=counts.convolution(1, -1)),
    _contraction("ConvTranspose", flops=counts.transposed),
    _contraction("DeformConv", flops=counts.deformed),
    _contraction("Einsum", flops=counts.einsum),
    _contraction("GRU", flops=counts.recurrent),
    _contraction("Gemm", flops=counts.gemm),
    _contraction("LSTM", flops=counts.recurrent),
    _contraction("MatMul", flops=counts.matmul),
    _contraction("MatMulInteger", flops=counts.matmul),
    _contraction("QLinearConv", flops=counts.convolution(3, 8)),
    _contraction("QLinearMatMul", flops=counts.matmul),
    _contraction("RNN", flops=counts.recurrent),
)

AXES = (
    OnnxOperator("AveragePool", Family.POOLING, counts.pooling),
    OnnxOperator("LpPool", Family.POOLING, counts.pooling),
    OnnxOperator("MaxPool", Family.POOLING, counts.pooling, keeps_scale=True),
    _axes("GlobalAveragePool"),
    _axes("GlobalLpPool", flops=counts.each(2)),
    _axes("GlobalMaxPool", keeps_scale=True),
    _reduction("ReduceL1"),
    _loop("ReduceL2", flops=counts.each(2)),
    _reduction("ReduceLogSum"),
    _reduction("ReduceLogSumExp", flops=counts.each(4)),
    _loop("ReduceMax", keeps_scale=True),
    _loop("ReduceMean"),
    _loop("ReduceMin", keeps_scale=True),
    _reduction("ReduceProd"),
    _loop("ReduceSum"),
    _loop("ReduceSumSquare", flops=counts.each(2)),
    _axes("ArgMax"),
    _axes("ArgMin"),
    _axes("BatchNormalization", flops=counts.each(2)),
    _axes("CumProd"),
    _axes("CumSum"),
    _axes("GroupNormalization", flops=counts.each(counts.NORMALISE)),
    _axes("Hardmax"),
    _axes("InstanceNormalization", flops=counts.each(counts.NORMALISE)),
    _axes("LRN", flops=counts.each(4)),
    _axes("LayerNormalization", flops=counts.each(counts.NORMALISE)),
    _axes("LogSoftmax", flops=counts.each(counts.SOFTMAX)),
    _axes("LpNormalization", flops=counts.each(3)),
    _axes("MeanVarianceNormalization", flops=counts.each(5)),
    _axes("RMSNormalization", flops=counts.each(4)),
    _axes("Softmax", flops=counts.each(counts.SOFTMAX), weight=CallWeight.LOOP),
    _axes("TopK", shape_operands=(1,)),
)
"""Reductions without `CallWeight.LOOP` are as light; but the search has units around them of their
own, and with other units it finds other plans."""

OTHERS = (
    OnnxOperator(
        "DequantizeLinear", Family.QUANTISATION, counts.each_output(2), weight=CallWeight.LINK
    ),
    OnnxOperator("DynamicQuantizeLinear", Family.QUANTISATION, counts.each_output(4)),
    OnnxOperator(
        "QuantizeLinear", Family.QUANTISATION, counts.each_output(2), weight=CallWeight.LINK
    ),
    _other("Bernoulli", flops=counts.once, is_random=True),
    _other("DFT", flops=counts.each(1)),
    _other("Det", flops=counts.each(1)),
    _other("GridSample", flops=counts.each_output(7)),
    _other("Multinomial", is_random=True),
    _other("NonMaxSuppression", flops=counts.each(1), finds_entries=True),
    _other("NonZero", flops=counts.each(1), finds_entries=True),
    _other("OneHot", flops=counts.once, shape_operands=(1,)),
    _other("RandomNormal", is_random=True),
    _other("RandomNormalLike", flops=counts.once, is_random=True),
    _other("RandomUniform", is_random=True),
    _other("RandomUniformLike", is_random=True),
    _other("Range", flops=counts.once, shape_operands=(0, 1, 2)),
    _other("Resize", flops=counts.resize, shape_operands=(2, 3)),
    _other("RoiAlign", flops=counts.each_output(7)),
    _other("RotaryEmbedding", flops=counts.each(3)),
    _other("STFT", flops=counts.each(1)),
    _other("StringSplit", finds_entries=True),
    _other("Unique", flops=counts.each(1), finds_entries=True),
    _other("Upsample", flops=counts.resize),
)

_activation = partial(_other, weight=CallWeight.LIGHT)

MICROSOFT = (
    _activation("BiasAdd"),
    _activation("BiasGelu"),
    _activation("FastGelu"),
    _activation("Gelu"),
    _activation("QuickGelu"),
    _contraction("FusedConv", flops=counts.convolution(1, 2), least_flops=counts.winograd(1, 2)),
    _contraction("FusedGemm", flops=counts.gemm),
    _contraction("FusedMatMul", flops=counts.fused_matmul),
    _contraction("Attention", flops=counts.packed_attention),
    _contraction("DecoderMaskedMultiHeadAttention", flops=counts.attention_of_heads),
    _contraction("GroupQueryAttention", flops=counts.attention_of_heads),
    _contraction("MatMulNBits", flops=counts.matmul),
    _contraction("MultiHeadAttention", flops=counts.attention_of_heads),
    _contraction("TransposeMatMul", flops=counts.fused_matmul),
    _axes("QLinearAveragePool", flops=counts.pooling),
    _axes("QLinearGlobalAveragePool"),
    _axes("QLinearSoftmax"),
    *(_other(f"QLinear{name}") for name in ("Add", "LeakyRelu", "Mul", "Sigmoid")),
    OnnxOperator("QLinearConcat", Family.OTHER),
    OnnxOperator("QLinearWhere", Family.OTHER),
    _axes("EmbedLayerNormalization", flops=counts.each_output(counts.NORMALISE)),
    _axes("GroupNorm", flops=counts.each_output(counts.NORMALISE)),
    _axes("SkipLayerNormalization", flops=counts.each(counts.NORMALISE)),
    _axes("SkipSimplifiedLayerNormalization", flops=counts.each(4)),
    _other("RotaryEmbedding", flops=counts.each(3)),
)
"""Operators of ONNX Runtime's own domain. Activations are no `Family.ELEMENTWISE`: passes that move
such nodes know ONNX's alone."""

_move = partial(OnnxOperator, family=Family.MOVEMENT)
_view = partial(
    _move, weight=CallWeight.LIGHT, view=ViewKind.RESHAPED, keeps_scale=True, carries=Part.ALL
)
_light = partial(OnnxOperator, family=Family.ELEMENTWISE, weight=CallWeight.LIGHT)

MOVEMENT = (
    _light("BitCast"),
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
