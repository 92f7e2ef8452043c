# SPDX-License-Identifier: Apache-2.0
"""Every family of kernels is tried on WebGPU by a case of the kit or a model here, or never gets
there for a reason that is said."""

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tests.webgpu import first_device

import intarsia
from intarsia.codegen.kernels.families import FAMILIES, family_of
from intarsia.codegen.lower import assembler
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import SSE, GpuModel
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.testing.case import problem_of
from intarsia.testing.cases import CASES

MODELS = {
    "attention": "g (float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v) => (float[1,2,5,4] y) "
    "{ y = Attention(q, k, v) }",
    "block_gemm": "g (float[3,32] x) => (float[3,8] y) "
    "{ y = com.microsoft.MatMulNBits<K=32, N=8, bits=4, block_size=32>(x, codes, scales) }",
    "cache": "g (float[1,2,8,4] x, float[1,2,2,4] new, int64[1] at) => (float[1,2,8,4] y) "
    "{ y = TensorScatter(x, new, at) }",
    "grid_attention": "g (float[1,2,20,8] q, float[1,2,24,8] k, float[1,2,24,8] v) => "
    "(float[1,2,20,8] y) { y = Attention(q, k, v) }",
    "grid_conv": "g (float[1,8,7,7] x) => (float[1,16,7,7] y) "
    "{ y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w) }",
    "grid_reduce": "g (float[3,5,40] x) => (float[3,1,1] y) <int64[2] axes = {1, 2}> "
    "{ y = ReduceMean(x, axes) }",
    "grid_rows": "g (float[3,45] x) => (float[3,45] y) { y = Softmax(x) }",
    "grid_strips": "g (float[1,16,7,7] x) => (float[1,16,7,7] y) "
    "{ y = Conv<kernel_shape=[3,3], pads=[1,1,1,1], group=2>(x, w) }",
    "code_panels": "g (uint8[2,4,8] x, int8[2,8,5] v) => (int32[2,4,5] y) "
    "{ y = MatMulInteger(x, v) }",
    "lookup": "g (uint8[64,80] x) => (uint8[64,80] y) <float s = {0.02}, uint8 z = {128}> "
    "{ a = DequantizeLinear(x, s, z) b = Sigmoid(a) y = QuantizeLinear(b, s, z) }",
    "sampling": "g (float[1,2,5,5] x, float[1,3,3,2] grid) => (float[1,2,3,3] y) "
    "{ y = GridSample(x, grid) }",
    "steering": "g (float[2,3] x, int64[2] repeats) => (float[4,3] y) { y = Tile(x, repeats) }",
}
"""A model for each family of which the kit has no case; those of `grid_` are for GPUs alone."""

FEEDS = {"at": np.array([5]), "repeats": np.array([2, 1])}

LATE = {
    "compaction": "g (float[9] x) => (int64[1,n] y) { y = NonZero(x) }",
    "suppression": "g (float[1,6,4] boxes, float[1,1,6] scores) => (int64[n,3] y) "
    "{ y = NonMaxSuppression(boxes, scores) }",
    "unique": "g (float[9] x) => (float[n] y) { y = Unique(x) }",
}
"""Refused: the data decides the size of what they make."""

ELSEWHERE = {
    "code_sums": "sums beside products of bytes, of CPUs that multiply these",
    "code_softmax": "softmax as LiteRT computes it, which no device's target asks for",
    **dict.fromkeys(("pair_conv", "paired_codes"), "products of pairs, of CPUs that have them"),
    **dict.fromkeys(("tile_product", "tile_rows"), "tiles of AMX"),
    "warp_gemm": "matrix instructions of warps, which WGSL has none of",
    "sizes": "extents that are known when it runs: devices take known ones only",
    "winograd": "transforms, which only `llvm` has by -winograd",
}
"""Families whose kernels no device is given."""


def model_of(text):
    model = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24, "com.microsoft": 1]> {text}'
    )
    rng = np.random.default_rng(2)
    if "MatMulNBits" in text:
        codes = rng.integers(0, 256, (8, 1, 16), np.uint8)
        scales = rng.uniform(0.01, 0.1, 8).astype(np.float32)
        for name, array in (("codes", codes), ("scales", scales)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    if "Conv<" in text:
        weights = rng.standard_normal((16, 8, 3, 3)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def region_of(model):
    graph = snapshot(load(model))
    return Region.of(graph, range(len(graph.nodes)))


def name_of(family):
    return family.__name__.rpartition(".")[2]


def test_every_family_is_tried_or_has_a_reason(monkeypatch):
    seen = set()

    def spy(spec):
        family = family_of(spec)
        seen.add(name_of(family))
        return family

    monkeypatch.setattr(assembler, "family_of", spy)
    for case in CASES:
        region = region_of(problem_of(case, case.dtypes[0]).model)
        lower_region(region, SSE)
        if case.op_type == "MatMul":  # larger groups of work-items share tiles
            lower_region(region, GpuModel(SSE))
    assert not seen & {*MODELS, *LATE, *ELSEWHERE}
    for family, text in MODELS.items():
        lower_region(region_of(model_of(text)), GpuModel(SSE) if "grid_" in family else SSE)
        assert family in seen
    assert seen == {name_of(family) for family in FAMILIES} - {*LATE, *ELSEWHERE}


@pytest.mark.parametrize("family", LATE)
def test_what_finds_its_size_is_refused(family, backends):
    first_device()
    exe = intarsia.compile(model_of(LATE[family]), "webgpu, llvm", backends=backends, cache=False)
    (refusal,) = exe.placement.refusals
    assert "the data decides" in refusal.reason


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", MODELS)
def test_numbers_are_those_of_llvm(family, backends, random_feeds):
    first_device()
    model = model_of(MODELS[family])
    exe = intarsia.compile(model, "webgpu, llvm", backends=backends, cache=False)
    (region,) = exe.placement.regions
    assert region.backend == "webgpu", exe.placement.refusals
    feeds = random_feeds(model) | {k: v for k, v in FEEDS.items() if f" {k}" in MODELS[family]}
    wanted = intarsia.compile(model, "llvm", backends=backends, cache=False).run(feeds)["y"]
    found = exe.run(feeds)["y"]
    assert found.dtype == wanted.dtype
    if found.dtype == np.uint8:
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
