# SPDX-License-Identifier: Apache-2.0
"""Every built-in backend passes the conformance kit."""

import pytest

from intarsia.backends.registry import load_backends
from intarsia.testing import conformance

BACKENDS = load_backends()

test_reference = conformance(BACKENDS.named("reference"))
test_fake = conformance(BACKENDS.named("fake"))
test_onnxruntime = conformance(BACKENDS.named("onnxruntime"))
test_llvm = conformance(BACKENDS.named("llvm"), target="llvm, onnxruntime")
test_openvino = pytest.mark.slow(
    conformance(BACKENDS.named("openvino"), target="openvino, onnxruntime")
)
