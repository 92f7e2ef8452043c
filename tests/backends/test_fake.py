# SPDX-License-Identifier: Apache-2.0
"""The fake device: memory that the host cannot read, and faults that the compiler survives."""

import logging

import numpy as np
import pytest

import intarsia
from intarsia.backends.device import ThreadOptions
from intarsia.backends.values import TensorSpec
from intarsia.errors import BackendError, ExecutionError, PlacementError, ReasonCode
from intarsia.target import PlacedTarget

SPEC = TensorSpec("t", "float32", (2, 3))


def open_fake(backends, ordinal=0):
    placed = PlacedTarget.parse(f"fake:{ordinal}")
    return backends.named("fake").open(placed, ThreadOptions())


def test_the_host_cannot_read_a_tensor_of_the_device(backends):
    device = open_fake(backends)
    tensor = device.tensor(device.allocate(64), 0, SPEC)
    assert not hasattr(tensor, "__array__")
    assert not hasattr(tensor, "__dlpack__")
    with pytest.raises(TypeError):
        memoryview(tensor)


def test_memory_read_without_a_copy_is_nonsense(backends):
    device = open_fake(backends)
    block = device.allocate(64)
    written = np.arange(6, dtype=np.float32).reshape(2, 3)
    device.write(written, device.tensor(block, 0, SPEC))
    assert not np.array_equal(block[:24].view(np.float32).reshape(2, 3), written)
    read = np.empty_like(written)
    device.read(device.tensor(block, 0, SPEC), read)
    np.testing.assert_array_equal(read, written)


def test_a_device_refuses_the_memory_of_another(backends):
    one, other = open_fake(backends), open_fake(backends, 1)
    tensor = other.tensor(other.allocate(64), 0, SPEC)
    with pytest.raises(ExecutionError, match="not in its memory"):
        one.write(np.zeros((2, 3), np.float32), tensor)
    with pytest.raises(ExecutionError, match="not in its memory"):
        one.read(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("fault", ["compile", "load"])
def test_a_region_that_fails_goes_to_the_fallback(
    fault, chain_model, random_feeds, evaluate, assert_same, backends, caplog
):
    target = f"fake -ops=Relu,Tanh -fault={fault}, reference"
    with caplog.at_level(logging.WARNING, logger="intarsia"):
        exe = intarsia.compile(chain_model, target, backends=backends)
    assert exe.placement.coverage()["reference"] == 5
    codes = {r.code for r in exe.placement.refusals if r.op_type in ("Relu", "Tanh")}
    assert codes == {ReasonCode.COMPILE_FAILED}
    assert "compile-failed 2" in exe.placement.shortfall
    assert exe.placement.shortfall in caplog.text
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))


@pytest.mark.parametrize("fault", ["compile", "load"])
def test_strict_makes_a_failed_region_an_error(fault, chain_model, backends):
    target = f"fake -fault={fault}, reference"
    with pytest.raises(BackendError, match="as its target asks") as caught:
        intarsia.compile(chain_model, target, strict=True, backends=backends)
    assert caught.value.target == f"fake -fault={fault}"


def test_a_pin_to_a_target_that_fails_is_an_error_and_not_bent(chain_model, backends):
    with pytest.raises(PlacementError, match="compile-failed") as caught:
        intarsia.compile(
            chain_model,
            "fake -fault=compile, reference",
            pins={"second": "fake"},
            backends=backends,
        )
    assert caught.value.node == "second"


def test_a_failing_run_names_the_region_and_the_target(chain_model, random_feeds, backends):
    exe = intarsia.compile(chain_model, "fake:1 -ops=Relu -fault=run, reference", backends=backends)
    with pytest.raises(ExecutionError, match=r"region 1 \(Relu\) failed on fake:1") as caught:
        exe.run(random_feeds(chain_model))
    assert caught.value.node == "second"
    assert caught.value.target.startswith("fake:1 ")
    assert caught.value.hint


def test_poisoned_outputs_come_out(chain_model, random_feeds, backends):
    exe = intarsia.compile(chain_model, "fake -ops=Tanh -fault=nan, reference", backends=backends)
    outputs = exe.run(random_feeds(chain_model))
    assert np.isnan(outputs["y"]).all()
    assert not np.isnan(outputs["mid"]).any()
