# SPDX-License-Identifier: Apache-2.0
"""PTX for the GPUs that it is for, as NVIDIA's assembler sees it, which needs none of them."""

import numpy as np
import onnx
import pytest
from tests.ptx import ON_EACH_ARCHITECTURE, count

from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.errors import BackendError, TargetError
from intarsia.export import Product, write_program
from intarsia.export.region import lower_for_gpu
from intarsia.native.ptx import gpu_limits, ptx_arch
from intarsia.native.ptxas import assemble, find_ptxas
from intarsia.place.request import Request
from intarsia.target import Target

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[1,8,12,12] x, float[16,8,3,3] w, float[8,1,3,3] u, float[48,40] v, float[40] s)
    => (float[16,40] y, float[16,1] m, float[4,40] best)
<int64[2] form = {16, 36}, int64[4] pads = {0, 0, 0, 12}, int64[1] last = {1}, int64[1] k = {4}> {
    d = Conv <pads=[1,1,1,1], group=8> (x, u)
    c = Conv <pads=[1,1,1,1]> (d, w)
    r = Relu(c)
    p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
    f = Reshape(p, form)
    q = Pad(f, pads)
    h = MatMul(q, v)
    n = LayerNormalization(h, s, s)
    e = Gelu(n)
    y = Softmax(e)
    m = ReduceMean(e, last)
    best, places = TopK <axis=0> (h, k)
}"""


def make_model():
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for value in [value for value in model.graph.input if value.name != "x"]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
        model.graph.input.remove(value)
    return model


@pytest.fixture(scope="module")
def kernels():
    request = Request(model=make_model(), target="cuda -arch=sm_80")
    program, _, limits = lower_for_gpu(request)
    return [emit_nvptx(kernel, limits) for kernel in program.kernels]


@ON_EACH_ARCHITECTURE
def test_kernels_fit_their_gpu(kernels, arch):
    """Next to nothing is spilled, and several blocks fit a multiprocessor."""
    counted, _ = count(kernels, arch)
    assert {kernel.name for kernel in counted} == {kernel.name for kernel in kernels}
    names = " ".join(kernel.name for kernel in counted)
    for family in ("strips", "conv", "max_pool", "gemm", "rows", "reduce", "top_k"):
        assert family in names
    for kernel in counted:
        assert kernel.registers <= 128, kernel
        assert kernel.spilled_bytes <= 16, kernel
        assert kernel.shared_bytes <= 48 << 10, kernel
        assert kernel.stack_bytes <= 4 << 10, kernel


def test_a_model_is_written_as_ptx(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[64] x) => (float[64] y) { y = Abs(x) }'
    )
    onnx.save(model, tmp_path / "layer.onnx")
    request = Request(model=tmp_path / "layer.onnx", target="nvptx -mcpu=sm_90a")
    (file,) = write_program(request, tmp_path, Product.PTX)
    assert file.name == "layer.ptx"
    assert ".target sm_90\n" in file.read_text()
    assert file.read_text().count(".visible .entry") == 1


def test_attributes_shape_blocks_and_architectures_are_checked(tmp_path):
    few = gpu_limits(Target("cuda -max_threads_per_block=32 -max_shared_memory_per_block=1024"))
    assert (few.group_size, few.local_bytes) == (32, 1024)
    assert gpu_limits(Target("cuda -registers_per_block=8192")).group_size == 32
    assert gpu_limits(Target("nvptx -mcpu=sm_75 -max_num_threads=16")).group_size == 16
    assert [ptx_arch(number) for number in (75, 89, 125)] == ["sm_75", "sm_89", "sm_121"]
    with pytest.raises(TargetError, match="sm_52 lacks"):
        ptx_arch(52)
    for target in ("cuda", "llvm", "cuda -arch=sm_80, llvm"):
        with pytest.raises(TargetError, match="names"):
            write_program(
                Request(model=onnx.parser.parse_model(TEXT), target=target),
                tmp_path,
                Product.PTX,
                "x",
            )


def test_what_the_assembler_refuses_is_said():
    if find_ptxas() is None:
        pytest.skip("ptxas is not here: pip install nvidia-cuda-nvcc-cu12")
    with pytest.raises(BackendError, match="ptxas refuses"):
        assemble(".version 7.0\n.target sm_80\n.address_size 64\nnonsense\n")
