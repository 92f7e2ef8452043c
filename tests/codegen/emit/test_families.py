"""Every family of kernels in C, OpenCL C and for NVPTX, against the interpreter and a reference.

The cases are those that the machine code is tested by; here one or two of a family.
"""

import pytest
from tests.codegen.emit.runners import run_c, run_nvptx, run_opencl, run_opencl_groups, run_wgsl
from tests.codegen.kernels import (
    test_attention,
    test_cache,
    test_conv,
    test_conv_plain,
    test_conv_transposed,
    test_depthwise,
    test_elementwise,
    test_entry_tables,
    test_fill,
    test_gather,
    test_gemm,
    test_global_pool,
    test_lrn,
    test_pool,
    test_recurrence,
    test_reduce,
    test_resize,
    test_rows,
    test_sampling,
    test_scan,
    test_top_k,
    test_winograd,
)
from tests.codegen.kernels.conv_cases import check_conv

from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.kernels.pool.combination import PoolKind
from intarsia.codegen.unit import AVX2, AVX512, SSE

FAMILIES = {
    "attention": lambda run: test_attention.test_hard_shapes(run, "avx2", 17, 33, 20),
    "attention with masks": lambda run: test_attention.test_masks_of_all_shapes(
        run, "sse", test_attention.KEPT, (2, 1, 21, 40), False
    ),
    "attention by keys": lambda run: test_attention.test_masks_of_all_shapes(
        run, "avx2", test_attention.ADDED, (2, 1, 21, 40), True
    ),
    "attention in parts": lambda run: test_attention.test_many_keys_of_few_queries_are_cut(
        run, "avx2", 1, 513, {}
    ),
    "attention with lengths": lambda run: test_attention.test_lengths_of_keys(
        run, "int64", {"last": 0, "first": -3}
    ),
    "attention without keys": lambda run: test_attention.test_rows_without_keys(
        run, test_attention.EmptyRow.NAN, 70
    ),
    "conv": lambda run: check_conv(run, test_conv.CASES["3x3"], AVX512, ConvKind.DIRECT),
    "conv odd": lambda run: check_conv(run, test_conv.CASES["odd channels"], SSE, ConvKind.DIRECT),
    "conv grouped": lambda run: check_conv(run, test_conv.CASES["grouped"], AVX2, ConvKind.DIRECT),
    "conv plain": lambda run: test_conv_plain.test_plain_agrees_with_the_reference(
        run, "shuffled", "avx2"
    ),
    "conv with computed weights": lambda run: test_conv_plain.test_weights_are_read_as_they_are(
        run, "groups of two", "avx2"
    ),
    "conv transposed with computed weights": lambda run: (
        test_conv_transposed.test_phases_read_weights_as_they_are(run, "dilated", SSE)
    ),
    "conv transposed": lambda run: test_conv_transposed.test_transposed_agrees_with_onnxruntime(
        run, "stride 2", AVX2
    ),
    "depthwise": lambda run: test_depthwise.test_depthwise_agrees_with_the_reference(
        run, "stride 2", "avx2"
    ),
    "transpose": lambda run: test_elementwise.test_transposes(run, AVX2, (2, 1, 0), (2, 17, 33)),
    "chain": lambda run: test_elementwise.test_transposed_operand_of_a_chain(run, AVX2),
    "turns": lambda run: test_elementwise.test_many_turns_and_tails(run, AVX512),
    "blocked": lambda run: test_elementwise.test_blocked_layouts_and_back(run, AVX2, 21),
    "bool": lambda run: test_elementwise.test_transposes_every_dtype(run, AVX2, "bool"),
    "fill": lambda run: test_fill.test_other_dtypes(run, "int64", -3),
    "pad": lambda run: test_fill.test_pad_by_tables(run, "reflect", "float32", AVX2),
    "append": lambda run: test_cache.test_what_was_before_is_carried_and_what_is_new_appended(
        run, "avx2", 300, 260, 600, 8, (513, 260)
    ),
    "lengths of caches": lambda run: test_cache.test_lengths(run, "tokens", True),
    "slice tables": lambda run: test_entry_tables.test_slice(run, "backwards"),
    "pad tables": lambda run: test_entry_tables.test_pad(run, "reflect", [1, 0]),
    "gather": lambda run: test_gather.test_gather(run, (2, 7, 3), 1, "int32", "float32", AVX2),
    "gather elements": lambda run: test_gather.test_gather_elements(run, (3, 4), (2, 4), 0),
    "gather nd": lambda run: test_gather.test_gather_nd(run, 1, 1, AVX2),
    "one hot": lambda run: test_gather.test_one_hot(run, 1),
    "extrema of bools": lambda run: test_reduce.test_extrema_of_small_dtypes(run, "Min", "bool"),
    "scatter nd": lambda run: test_gather.test_scatter_nd(run, 1, "add", AVX2),
    "gemm": lambda run: test_gemm.test_hard_shapes(run, "avx2", True, 7),
    "gemm rows": lambda run: test_gemm.test_epilogue_sees_every_operand(run, "avx2", False),
    "gemm dots": lambda run: test_gemm.test_few_rows_times_transposed_operand(
        run, "avx512", "float32", 3
    ),
    "global pool": lambda run: test_global_pool.test_gaps_between_rows_and_epilogue(run, 3),
    "lrn": lambda run: test_lrn.test_powers_and_even_sizes(run, 4, 0.75),
    "max pool": lambda run: test_pool.test_agrees_with_onnxruntime(
        run, next(iter(test_pool.CASES)), PoolKind.MAX, *test_pool.LAYOUTS[0]
    ),
    "average pool": lambda run: test_pool.test_average_counts_the_padding(
        run, 1, *test_pool.LAYOUTS[0]
    ),
    "pool indices": lambda run: test_pool.test_indices(run, (2, 3, 6, 9), 0, *test_pool.LAYOUTS[0]),
    "reduce": lambda run: test_reduce.test_kinds(run, "LogSumExp", AVX2),
    "arg max": lambda run: test_reduce.test_arguments(run, "ArgMax", "float32", AVX2),
    "lstm": lambda run: test_recurrence.check(run, "LSTM", (2, 3, 5, 17), AVX2),
    "gru": lambda run: test_recurrence.check(run, "GRU", (1, 3, 1, 17), AVX512, shares=2),
    "resize": lambda run: test_resize.test_linear(run, (3, 9), test_resize.COORDINATES[0]),
    "resize cubic": lambda run: test_resize.test_weighted(
        run, "cubic", (2, 2), True, False, test_resize.COORDINATES[0]
    ),
    "resize crop": lambda run: test_resize.test_crop(run, "linear", "float32"),
    "grid sample": lambda run: test_sampling.test_grid_sample(run, "linear", "zeros"),
    "roi align": lambda run: test_sampling.test_roi_align(run, "avg", AVX2),
    "softmax": lambda run: test_rows.test_softmax_and_kin(run, "Softmax", "float32", AVX512),
    "layer norm": lambda run: test_rows.test_layer_normalization(run, 96, "float32", AVX2),
    "sum and norm": lambda run: test_rows.test_what_is_added_first(
        run, "Normalize", (3, 700), 1, True, AVX2
    ),
    "cumsum": lambda run: test_scan.test_cumsum(run, (2, 5, 19), 1, 1, "float32", AVX2),
    "cumprod": lambda run: test_scan.test_cumprod(run, (2, 5, 19), 1, 1, "float32", AVX2),
    "top k": lambda run: test_top_k.test_top_k(run, (3, 40), 1, 7, "float32", True),
    "top k of many": lambda run: test_top_k.test_many_are_sorted(run, (3, 40), 1, 30, "int8", True),
    "top k on a heap": lambda run: test_top_k.test_many_are_sorted(
        run, (2, 200), 1, 3, "float32", False
    ),
    "winograd": lambda run: test_winograd.test_agrees_with_the_reference(
        run, next(iter(test_winograd.CASES)), "avx2", 4
    ),
}


SHARED = (
    *("conv", "depthwise", "turns", "blocked", "fill", "pad", "gather", "max pool", "winograd"),
    *("softmax", "layer norm", "reduce", "global pool", "lstm", "gru"),
)
"""Families whose turns several work-items share, or whose own buffers they do."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("run", [run_c, run_opencl])
def test_family(run, family):
    FAMILIES[family](run)


IN_WGSL = (
    *("depthwise", "transpose", "pad", "gather nd", "global pool", "max pool", "resize"),
    *("resize cubic", "grid sample", "cumprod"),
)
"""Families whose kernels Mesa's software device compiles in seconds; others take it minutes."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", IN_WGSL)
def test_family_in_wgsl(family):
    FAMILIES[family](run_wgsl)


@pytest.mark.exhaustive
def test_small_attention_in_wgsl():
    test_attention.test_hard_shapes(run_wgsl, "avx512", 3, 5, 7)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", SHARED)
def test_family_with_shared_turns(family):
    FAMILIES[family](run_opencl_groups)


IN_NVPTX = (
    *("depthwise", "pad", "gather nd", "max pool", "layer norm", "cumsum", "sum and norm"),
    *("resize crop", "global pool", "top k on a heap"),
)
"""Families whose kernels lanes of a block share, wait in, or keep to themselves."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", IN_NVPTX)
def test_family_in_nvptx(family):
    FAMILIES[family](run_nvptx)
