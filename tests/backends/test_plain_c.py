# SPDX-License-Identifier: Apache-2.0
"""Plain C through a runner: compiled for that machine, run there, with the numbers of here."""

import shutil

import numpy as np
import onnx
import pytest
from tests.backends.test_native_remote import EMULATOR, check_net, feeds, net

import intarsia
from intarsia.errors import TargetError
from intarsia.testing import conformance
from intarsia.testing.cases import CASES

test_conformance = pytest.mark.exhaustive(
    conformance(
        "intarsia.backends.plain_c:BACKEND",
        target="c -runner=here",
        checks=["contract", "numbers", "artifacts", "runner"],
        cases=[case for case in CASES if str(case) in ("Conv-padded", "Softmax-last_axis")],
    )
)

SMALL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[1, 8] x) => (float[1, 8] y) { y = Neg(x) }'
)


@pytest.mark.exhaustive
def test_a_program_of_free_sizes_runs_as_c_and_from_its_package(tmp_path):
    exe = check_net("c -runner=here")
    exe.save(tmp_path / "net.intarsia")
    again = intarsia.load(tmp_path / "net.intarsia")
    np.testing.assert_array_equal(again.run(feeds(2))["y"], exe.run(feeds(2))["y"])


@pytest.mark.exhaustive
def test_c_and_native_code_of_another_cpu_run_in_one_plan():
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed")
    pytest.importorskip("ziglang")
    target = f"c -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner={EMULATOR}"
    exe = intarsia.compile(net(), f"{target}, llvm", pins={"s": "llvm"}, strict=True)
    assert {region.backend for region in exe.placement.regions} == {"c", "llvm"}
    here = intarsia.compile(net(), "onnxruntime")
    for name, expected in here.run(feeds(2)).items():
        np.testing.assert_allclose(exe.run(feeds(2))[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "words", "hint"),
    [
        ("c", "does not say how its own is reached", "-runner=here"),
        ("c -mcpu=cortex-m55 -runner=ssh://b", "cortex-m55 has no operating system", "--emit c"),
        ("c -mtriple=riscv32-none-elf -runner=here", "has no operating system", "--emit c"),
        ("llvm -mcpu=cortex-m4 -runner=here", "cortex-m4 has no operating system", "--emit c"),
        (f"c -runner={EMULATOR}", "cannot be asked for one", "-mtriple="),
    ],
)
def test_a_machine_that_cannot_be_reached_is_refused_with_the_reason(target, words, hint):
    with pytest.raises(TargetError, match=words) as caught:
        intarsia.compile(SMALL, target)
    assert caught.value.message.startswith("runner: ")
    assert hint in str(caught.value.hint)
