# SPDX-License-Identifier: Apache-2.0
"""Every built-in backend passes the conformance kit."""

import shutil
from dataclasses import replace
from importlib.util import find_spec

import pytest

from intarsia.backends.registry import load_backends
from intarsia.settings import Settings
from intarsia.testing import CHECKS, conformance
from intarsia.testing.cases import CASES

BACKENDS = load_backends(Settings.from_environment())

test_reference = conformance(BACKENDS.named("reference"))
test_fake = conformance(BACKENDS.named("fake"))
test_onnxruntime = conformance(BACKENDS.named("onnxruntime"))
test_llvm = pytest.mark.sample(3)(conformance(BACKENDS.named("llvm"), target="llvm, onnxruntime"))
test_llvm_through_a_runner = pytest.mark.exhaustive(
    conformance(
        BACKENDS.named("llvm"),
        target="llvm -runner=here",
        checks=["contract", "numbers", "artifacts", "processes", "threads", "memory", "runner"],
        cases=[case for case in CASES if str(case) in ("Conv-padded", "Softmax-last_axis")],
    )
)
EMULATOR = "qemu-aarch64-static"
test_llvm_under_an_emulator = pytest.mark.skipif(
    not (shutil.which(EMULATOR) and find_spec("ziglang")), reason=f"{EMULATOR} or ziglang is absent"
)(
    pytest.mark.exhaustive(
        conformance(
            BACKENDS.named("llvm"),
            target=f"llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner={EMULATOR}",
            checks=["numbers", "runner"],
            cases=[case for case in CASES if str(case) in ("Conv-padded",)],
        )
    )
)
test_openvino = pytest.mark.sample(4)(
    conformance(
        BACKENDS.named("openvino"),
        target="openvino, onnxruntime",
        checks=[name for name in CHECKS if name != "loads"],  # they take 40 s; last passed by hand
    )
)

OPERATORS = tuple({case.op_type: replace(case, dtypes=case.dtypes[:1]) for case in CASES}.values())
"""One case of each operator: PoCL takes a quarter of a second for each program."""

# `loads` is left out: PoCL links a program for each of a thousand.
test_opencl = pytest.mark.sample(2)(
    conformance(
        BACKENDS.named("opencl"),
        target="opencl, llvm",
        checks=[name for name in CHECKS if name not in ("numbers", "regions", "loads")],
    )
)
test_opencl_operators = pytest.mark.sample(8)(
    conformance(
        BACKENDS.named("opencl"), target="opencl, llvm", checks=["numbers"], cases=OPERATORS[::4]
    )
)
test_webgpu = conformance(
    BACKENDS.named("webgpu"),
    target="webgpu, llvm",
    checks=["contract", "numbers", "artifacts"],
    cases=[case for case in CASES if str(case) in ("Conv-padded", "Softmax-last_axis")],
)
