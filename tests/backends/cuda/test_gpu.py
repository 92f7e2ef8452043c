# SPDX-License-Identifier: Apache-2.0
"""What needs a GPU: the conformance kit, and every family of kernels as PTX. `make gpu` runs it."""

import pytest
from tests.codegen.emit.runners import run_cuda
from tests.codegen.emit.test_families import FAMILIES

from intarsia.backends.cuda.backend import BACKEND
from intarsia.testing import conformance

FOUND = BACKEND.detect()
if not FOUND.targets:
    pytest.skip(f"no GPU is here: {FOUND.reason}", allow_module_level=True)

test_conformance = conformance(BACKEND, target="cuda, llvm")


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    FAMILIES[family](run_cuda)
