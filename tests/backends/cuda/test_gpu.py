# SPDX-License-Identifier: Apache-2.0
"""What needs a GPU: the conformance kits, and every family of kernels as PTX. `make gpu` runs it.

Kernels that say themselves which threads there are run as they do on a GPU of 32 lanes.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.emit.runners import run_cuda
from tests.codegen.emit.test_families import FAMILIES
from tests.codegen.kernels import test_grid_conv, test_grid_strips, test_warp_gemm

from intarsia.backends.cuda.backend import BACKEND
from intarsia.backends.cuda.cublas.backend import BACKEND as CUBLAS
from intarsia.backends.cuda.cudnn.backend import BACKEND as CUDNN
from intarsia.backends.cuda.cutlass.backend import BACKEND as CUTLASS
from intarsia.testing import conformance

FOUND = BACKEND.detect()
if not FOUND.targets:
    pytest.skip(f"no GPU is here: {FOUND.reason}", allow_module_level=True)

test_conformance = conformance(BACKEND, target="cuda, llvm")
if CUTLASS.detect().targets:
    test_conformance_of_cutlass = conformance(CUTLASS, target="cutlass, cuda, llvm")
if CUBLAS.detect().targets:
    test_conformance_of_cublas = conformance(CUBLAS, target="cublas, cuda, llvm")
if CUDNN.detect().targets:
    test_conformance_of_cudnn = conformance(CUDNN, target="cudnn, cuda, llvm")


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    FAMILIES[family](run_cuda)


@pytest.mark.parametrize("name", test_grid_strips.CASES)
def test_strips(name):
    test_grid_strips.check(run_cuda, test_grid_strips.CASES[name])


@pytest.mark.parametrize("name", test_grid_conv.CASES)
def test_convolutions_by_tiles(name):
    test_grid_conv.check(run_cuda, test_grid_conv.CASES[name])


@pytest.mark.skipif(
    bool(FOUND.targets) and int(FOUND.targets[0].attrs["arch"].removeprefix("sm_")) < 80,
    reason="this GPU has no such instruction",
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("size", ["SMALL", "MEDIUM", "LARGE"])
def test_products_of_warps(size, dtype):
    """The interpreter's numbers: it sums in another order, and rounds sums once."""
    plan = getattr(test_warp_gemm, size)
    spec = replace(test_warp_gemm.warps(130, 70, 50, dtype), schedule=plan)
    a, b = (one.astype(dtype) for one in test_warp_gemm.operands(spec.product))
    run_cuda(test_warp_gemm.build(spec), [a, b, np.zeros((130, 70), "float32")], rtol=1e-4)
