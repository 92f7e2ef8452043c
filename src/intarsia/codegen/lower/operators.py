# SPDX-License-Identifier: Apache-2.0
"""The table of operators: how each is lowered, why it may be refused, which layouts it wants.

Elementwise ones have one row for all: what they compute is a row of `codegen.scalar_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.codegen.kernels.recurrence import GATES
from intarsia.codegen.lower import (
    activations,
    attention_operators,
    block_products,
    contraction,
    convolution,
    decoder_masked,
    dynamic_quantization,
    embedding,
    fixed_point,
    found,
    group_query,
    indices,
    integer_convolution,
    integer_products,
    movement,
    multi_head,
    products,
    qlinear,
    recipes,
    recurrent,
    reductions,
    rotary,
    sampling,
    training,
)
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.codegen.scalar_ops.narrow import WITH_NARROW
from intarsia.codegen.scalar_ops.operator import ANY, BOOL, WIDE
from intarsia.codegen.unit import CpuModel
from intarsia.errors import InternalError
from intarsia.graph.late_sizes import finders
from intarsia.graph.ops import ViewKind, names_of


def _takes(_operation: Operation) -> str | None:
    return None


def _plain(_operation: Operation, _unit: CpuModel) -> Wish:
    return Wish()


@dataclass(frozen=True, slots=True)
class Operator:
    """An entry of the table.

    Attributes:
        lower: Appends the calls of a group that it anchors.
        dtypes: Of its data, by numpy's names.
        refuse: Says why a node is not taken, or nothing; shapes and dtypes are known by then.
        wish: Says which layouts it wants.
        has_epilogue: Whether elementwise operators may join it.
        finds_size: Whether it finds the size of its result, which the data decides.
    """

    lower: Callable[[Assembler, KernelGroup], None]
    dtypes: frozenset[str]
    refuse: Callable[[Operation], str | None] = _takes
    wish: Callable[[Operation, CpuModel], Wish] = _plain
    has_epilogue: bool = False
    finds_size: bool = False


def _follow(operation: Operation, _unit: CpuModel) -> Wish:
    """Keep the layout of the operands that have the shape of the result's rank."""
    rank = len(operation.output_shape)
    follows = tuple(value.id for value in operation.inputs if len(value.shape or ()) == rank)
    return Wish("follow", follows)


def _follow_alone(operation: Operation, unit: CpuModel) -> Wish:
    """Keep the layout of the operand, but where there is a second output: that is plain."""
    return Wish() if operation.outputs[1:] else _follow(operation, unit)


def _follow_slice(operation: Operation, unit: CpuModel) -> Wish:
    """Keep the layout of the operand, unless tables say when it runs what is copied."""
    return Wish() if movement.is_slice_computed(operation) else _follow(operation, unit)


FLOATS = frozenset(("float32",))
BYTES = integer_products.BYTES


def find(operation: Operation) -> Operator | None:
    """Return the entry of an operation's operator, or None if there is none."""
    entry = OPERATORS.get(operation.op_type)
    if (entry is None or operation.op_type == "MatMul") and is_elementwise(operation):
        return _ELEMENTWISE
    return entry or _OF_TRAINING.get(operation.op_type)


def entry_of(operation: Operation) -> Operator:
    """Return the entry of an operator that is taken."""
    entry = find(operation)
    if entry is None:
        raise InternalError(
            f"{operation.op_type} is not a native operator", node=operation.node.name
        )
    return entry


def refuse_operation(operation: Operation) -> tuple[str, str] | None:
    """Say why an operation is not taken.

    Returns:
        Nothing; or what is in the way (`op`, `dtype` or `shape`), and a sentence.
    """
    entry, node = find(operation), operation.node
    if entry is None:
        return "op", f"there is no native code for {node.domain or 'ai.onnx'}.{node.op_type}"
    for value in (*operation.inputs, *operation.outputs):
        if not value.is_static:
            return "shape", f"the shape of {value.name!r} is not known when compiling"
    for value in (*operation.inputs[:1], *operation.outputs):
        if value.dtype not in entry.dtypes:
            return "dtype", f"{node.op_type} of {value.dtype} has no native code"
    if not entry.finds_size and finders(operation.graph).get(node.id):
        return "shape", f"the data decides the size of what {node.op_type} makes"
    problem = entry.refuse(operation)
    return None if problem is None else ("op", problem)


_ELEMENTWISE = Operator(
    recipes.lower_pointwise, WITH_NARROW, recipes.refuse_pointwise, _follow, has_epilogue=True
)
_OF_TRAINING = {
    "BatchNormalization": Operator(
        training.lower_batch_normalization,
        frozenset(("float32", "float64")),
        training.refuse_batch_normalization,
    ),
    "Dropout": Operator(training.lower_dropout, ANY, training.refuse_dropout),
}
"""Operators that are elementwise without masks and statistics of a batch."""
_RENAMING = Operator(movement.lower_reshape, WITH_NARROW)
_POOL = Operator(reductions.lower_pool, FLOATS, reductions.refuse_pool, _follow, has_epilogue=True)
_GLOBAL_POOL = Operator(
    reductions.lower_global_pool, FLOATS, reductions.refuse_pool, _follow, has_epilogue=True
)
_REDUCTION = Operator(
    reductions.lower_reduction,
    ANY,
    reductions.refuse_reduction,
    reductions.wish_reduction,
    has_epilogue=True,
)
_CONSTANT = Operator(movement.lower_constant, ANY)
_REAL = frozenset(("float32", "float64"))
_SOFTMAX = Operator(reductions.lower_softmax, _REAL, reductions.refuse_softmax, has_epilogue=True)
_RECURRENT = Operator(recurrent.lower_recurrent, _REAL, recurrent.refuse_recurrent)
_RESIZE = Operator(
    movement.lower_resize, ANY, movement.refuse_resize, movement.wish_resize, has_epilogue=True
)
_SCAN = Operator(indices.lower_scan, ANY, indices.refuse_scan)
_SCATTER = Operator(indices.lower_scatter_elements, ANY, indices.refuse_scatter)


def _normalization(
    lower: Callable[[Assembler, KernelGroup], None],
    wish: Callable[[Operation, CpuModel], Wish] = _plain,
) -> Operator:
    return Operator(lower, _REAL, reductions.refuse_normalization, wish, has_epilogue=True)


_ROWS = _normalization(reductions.lower_normalization, reductions.wish_normalization)

_ROTARY = Operator(rotary.lower_rotary, _REAL, rotary.refuse_rotary)
_FUSED_MATMUL = Operator(
    products.lower_matmul, _REAL, products.refuse_fused_matmul, has_epilogue=True
)
_SKIP = Operator(reductions.lower_skip, _REAL, reductions.refuse_skip, has_epilogue=True)

_ON_CODES = Operator(qlinear.lower_qlinear, BYTES | FLOATS | BOOL, qlinear.refuse_qlinear)

OPERATORS: dict[str, Operator] = {
    "Attention": Operator(
        attention_operators.lower_attention, FLOATS, attention_operators.refuse_attention
    ),
    "AffineGrid": Operator(sampling.lower_affine_grid, _REAL, sampling.refuse_affine_grid),
    "AveragePool": _POOL,
    block_products.BLOCK_PRODUCT: Operator(
        block_products.lower_block_product, FLOATS, has_epilogue=True
    ),
    "CenterCropPad": Operator(movement.lower_pad, ANY, wish=movement.wish_pad),
    "Compress": Operator(found.lower_compress, WITH_NARROW, found.refuse_compress, finds_size=True),
    "Concat": Operator(movement.lower_concat, WITH_NARROW, wish=_follow),
    "Conv": Operator(
        convolution.lower_conv,
        FLOATS,
        convolution.refuse_conv,
        convolution.wish_conv,
        has_epilogue=True,
    ),
    "ConvInteger": Operator(
        integer_convolution.lower_conv_integer,
        BYTES | {"int32"},
        integer_convolution.refuse_conv_integer,
        integer_convolution.wish_integer_conv,
        has_epilogue=True,
    ),
    "ConvTranspose": Operator(
        convolution.lower_conv_transpose,
        FLOATS,
        convolution.refuse_conv,
        convolution.wish_conv,
        has_epilogue=True,
    ),
    "CumProd": _SCAN,
    "CumSum": _SCAN,
    "DeformConv": Operator(sampling.lower_deform_conv, _REAL, sampling.refuse_deform_conv),
    integer_convolution.DEQUANTIZED_CONV: Operator(
        integer_convolution.lower_dequantized_conv,
        BYTES | FLOATS,
        wish=integer_convolution.wish_integer_conv,
        has_epilogue=True,
    ),
    reductions.DEQUANTIZED_POOL: Operator(
        reductions.lower_dequantized_pool, BYTES | FLOATS, wish=_follow, has_epilogue=True
    ),
    integer_products.DEQUANTIZED_PRODUCT: Operator(
        integer_products.lower_dequantized_product,
        BYTES | FLOATS,
        has_epilogue=True,
    ),
    "DepthToSpace": Operator(movement.lower_shuffle, WITH_NARROW),
    "DynamicQuantizeLinear": Operator(dynamic_quantization.lower_dynamic_quantize, FLOATS | BYTES),
    "Einsum": Operator(
        contraction.lower_einsum, WIDE, contraction.refuse_einsum, has_epilogue=True
    ),
    "Expand": Operator(movement.lower_expand, WITH_NARROW),
    **dict.fromkeys(GATES, _RECURRENT),
    fixed_point.FIXED_AVERAGE_POOL: Operator(
        reductions.lower_fixed_average_pool, BYTES, wish=_follow, has_epilogue=True
    ),
    fixed_point.FIXED_CONV: Operator(
        integer_convolution.lower_fixed_conv,
        BYTES,
        wish=integer_convolution.wish_integer_conv,
        has_epilogue=True,
    ),
    fixed_point.FIXED_PRODUCT: Operator(
        integer_products.lower_fixed_product, BYTES, has_epilogue=True
    ),
    fixed_point.FIXED_SOFTMAX: Operator(reductions.lower_fixed_softmax, BYTES),
    "Gather": Operator(indices.lower_gather, WITH_NARROW, indices.refuse_gather),
    "GatherElements": Operator(
        indices.lower_gather_elements, WITH_NARROW, indices.refuse_gather, has_epilogue=True
    ),
    "GatherND": Operator(indices.lower_gather_nd, WITH_NARROW, indices.refuse_gather),
    "Gemm": Operator(products.lower_gemm, WIDE, has_epilogue=True),
    "GlobalAveragePool": _GLOBAL_POOL,
    "GlobalLpPool": _GLOBAL_POOL,
    "GlobalMaxPool": _GLOBAL_POOL,
    "GridSample": Operator(sampling.lower_grid_sample, ANY, sampling.refuse_grid_sample),
    "GroupNormalization": _normalization(reductions.lower_group_normalization),
    "Hardmax": _SOFTMAX,
    "InstanceNormalization": _normalization(reductions.lower_instance, reductions.wish_instance),
    "LRN": Operator(
        reductions.lower_lrn, _REAL, reductions.refuse_lrn, reductions.wish_lrn, has_epilogue=True
    ),
    "LayerNormalization": _ROWS,
    "LogSoftmax": _SOFTMAX,
    "LpNormalization": Operator(reductions.lower_lp_normalization, _REAL),
    "LpPool": _POOL,
    "MatMul": Operator(products.lower_matmul, WIDE, has_epilogue=True),
    "MatMulInteger": Operator(
        integer_products.lower_matmul_integer,
        BYTES | {"int32"},
        integer_products.refuse_matmul_integer,
        has_epilogue=True,
    ),
    "MaxPool": Operator(
        reductions.lower_pool,
        frozenset(("float32", "float64", "int8", "uint8", "int64")),
        reductions.refuse_pool,
        _follow_alone,
        has_epilogue=True,
    ),
    "MeanVarianceNormalization": _normalization(reductions.lower_mean_variance),
    "NonMaxSuppression": Operator(
        found.lower_suppression,
        frozenset(("float32", "int64")),
        found.refuse_suppression,
        finds_size=True,
    ),
    "Unique": Operator(found.lower_unique, ANY, found.refuse_unique, finds_size=True),
    "NonZero": Operator(
        found.lower_nonzero, ANY - frozenset(("float16",)), found.refuse_found, finds_size=True
    ),
    "OneHot": Operator(indices.lower_one_hot, WITH_NARROW, indices.refuse_one_hot),
    "Pad": Operator(movement.lower_pad, ANY, movement.refuse_pad, movement.wish_pad),
    "QLinearConv": Operator(
        integer_convolution.lower_qlinear_conv,
        BYTES,
        integer_convolution.refuse_qlinear_conv,
        integer_convolution.wish_integer_conv,
        has_epilogue=True,
    ),
    "QLinearMatMul": Operator(
        integer_products.lower_qlinear_matmul,
        BYTES,
        integer_products.refuse_qlinear_matmul,
        has_epilogue=True,
    ),
    "RMSNormalization": _ROWS,
    integer_convolution.REQUANTIZED_CONV: Operator(
        integer_convolution.lower_requantized_conv,
        BYTES,
        wish=integer_convolution.wish_integer_conv,
        has_epilogue=True,
    ),
    "Range": Operator(
        indices.lower_range, frozenset(("float32", "float64", "int16", "int32", "int64"))
    ),
    "Resize": _RESIZE,
    "ReverseSequence": Operator(
        indices.lower_reverse_sequence, WITH_NARROW, indices.refuse_reverse_sequence
    ),
    "RoiAlign": Operator(sampling.lower_roi_align, _REAL, sampling.refuse_roi_align),
    "RotaryEmbedding": _ROTARY,
    "Scatter": _SCATTER,
    "ScatterElements": _SCATTER,
    "ScatterND": Operator(indices.lower_scatter_nd, ANY, indices.refuse_scatter),
    "Slice": Operator(movement.lower_slice, WITH_NARROW, movement.refuse_slice, _follow_slice),
    "Softmax": _SOFTMAX,
    "SpaceToDepth": Operator(movement.lower_shuffle, WITH_NARROW),
    "Split": Operator(movement.lower_split, WITH_NARROW, movement.refuse_split, wish=_follow),
    "TensorScatter": Operator(indices.lower_tensor_scatter, WIDE, indices.refuse_tensor_scatter),
    "Tile": Operator(movement.lower_tile, WITH_NARROW, movement.refuse_tile),
    "TopK": Operator(indices.lower_top_k, ANY - BOOL, indices.refuse_top_k),
    "Transpose": Operator(movement.lower_transpose, WITH_NARROW),
    "Trilu": Operator(indices.lower_trilu, ANY, indices.refuse_trilu),
    "com.microsoft.Attention": Operator(multi_head.lower_packed, FLOATS, multi_head.refuse_packed),
    "com.microsoft.DecoderMaskedMultiHeadAttention": Operator(
        decoder_masked.lower_decoder_masked, FLOATS, decoder_masked.refuse_decoder_masked
    ),
    "com.microsoft.EmbedLayerNormalization": Operator(
        embedding.lower_embedding,
        embedding.DTYPES,
        embedding.refuse_embedding,
        has_epilogue=True,
    ),
    "com.microsoft.FusedConv": Operator(
        convolution.lower_conv,
        FLOATS,
        convolution.refuse_fused_conv,
        convolution.wish_conv,
        has_epilogue=True,
    ),
    "com.microsoft.FusedGemm": Operator(
        products.lower_gemm, _REAL, activations.refuse_activation, has_epilogue=True
    ),
    "com.microsoft.FusedMatMul": _FUSED_MATMUL,
    reductions.GROUP_NORM: Operator(
        reductions.lower_group_norm, _REAL, reductions.refuse_group_norm, has_epilogue=True
    ),
    "com.microsoft.GroupQueryAttention": Operator(
        group_query.lower_group_query, FLOATS, group_query.refuse_group_query
    ),
    block_products.MATMUL_NBITS: Operator(
        block_products.lower_matmul_nbits,
        FLOATS,
        block_products.refuse_matmul_nbits,
        has_epilogue=True,
    ),
    "com.microsoft.MultiHeadAttention": Operator(
        multi_head.lower_multi_head, FLOATS, multi_head.refuse_multi_head
    ),
    "com.microsoft.RotaryEmbedding": _ROTARY,
    "com.microsoft.SkipLayerNormalization": _SKIP,
    "com.microsoft.SkipSimplifiedLayerNormalization": _SKIP,
    "com.microsoft.TransposeMatMul": _FUSED_MATMUL,
    "com.microsoft.Trilu": Operator(indices.lower_trilu, ANY, indices.refuse_trilu),
    **dict.fromkeys(names_of(lambda operator: operator.view is ViewKind.RESHAPED), _RENAMING),
    "Upsample": _RESIZE,
    **dict.fromkeys(qlinear.QLINEAR, _ON_CODES),
    **dict.fromkeys(movement.CONSTANTS, _CONSTANT),
    **dict.fromkeys(reductions.REDUCTIONS, _REDUCTION),
}
