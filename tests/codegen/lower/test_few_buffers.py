# SPDX-License-Identifier: Apache-2.0
"""Kernels for devices that give one few arrays: groups end earlier, and operators of many operands
are made in parts."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tests import opencl, webgpu
from tests.codegen.lower.conftest import evaluate

import intarsia
from intarsia.backends.native import native_groups
from intarsia.backends.opencl import driver as opencl_driver
from intarsia.backends.webgpu import driver as webgpu_driver
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX2, SSE
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.settings import Settings
from intarsia.testing.case import problem_of
from intarsia.testing.cases import CASES

MOST = 8
"""What WebGPU promises at least."""


def region_of(model):
    graph = snapshot(load(model))
    return Region.of(graph, range(len(graph.nodes)))


def most_buffers(program):
    return max(len(kernel.buffers) for kernel in program.kernels)


def many(op_type, count, dtype="float"):
    names = [f"x{number}" for number in range(count)]
    shapes = [(1, 5), (3, 1), (3, 5)]
    inputs = ", ".join(
        f"{dtype}[{','.join(map(str, shapes[i % 3]))}] {name}" for i, name in enumerate(names)
    )
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]>
        g ({inputs}) => ({dtype}[3,5] y) {{ [many] y = {op_type}({", ".join(names)}) }}""")


def long_chain(count=20):
    names = [f"x{number}" for number in range(count)]
    inputs = ", ".join(f"float[3,5] {name}" for name in names)
    body = "a0 = MatMul(m, w) " + " ".join(
        f"a{i + 1} = {'Add' if i % 2 else 'Mul'}(a{i}, {name})" for i, name in enumerate(names)
    )
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[3,4] m, float[4,5] w, {inputs}) => (float[3,5] y)
        {{ {body} y = Relu(a{count}) }}""")


MODELS = {
    **{op_type: many(op_type, 23) for op_type in ("Sum", "Mean", "Max", "Min")},
    "integers": many("Max", 23, "int32"),
    "doubles": many("Sum", 9, "double"),
    "one too many": many("Sum", MOST),
    "chain": long_chain(),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_kernel_is_given_more(name):
    region = region_of(MODELS[name])
    assert most_buffers(lower_region(region, SSE)) > MOST
    program = lower_region(region, SSE, most_buffers=MOST)
    assert most_buffers(program) == MOST
    assert program.summary() != lower_region(region, SSE).summary()


def test_numbers_of_sums_of_codes_count_too():
    """What makes floats of the sums of a product: a factor, an offset and sums of the weights."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-99, 99, (16, 8)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.1, 8).astype(np.float32),
        "bias": rng.standard_normal(8).astype(np.float32),
    }
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (uint8[4,16] x, float[4,8] u, float[4,8] v) => (float[4,8] y)
        <float s = {0.02}, uint8 z = {3}, int8 o = {0}, float t = {0.1}, uint8 h = {128}> {
            a = DequantizeLinear(x, s, z)
            b = DequantizeLinear<axis = 1>(w, ws)
            c = MatMul(a, b)
            d = Add(c, bias)
            e = Mul(d, u)
            f = Add(e, v)
            i = QuantizeLinear(f, t, h)
            j = DequantizeLinear(i, t, h)
            y = Relu(j)
        }""")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    region = region_of(model)
    assert most_buffers(lower_region(region, AVX2)) > MOST
    assert most_buffers(lower_region(region, AVX2, most_buffers=MOST)) <= MOST


def test_what_fits_stays_as_it_is():
    region = region_of(many("Sum", MOST - 1))
    assert lower_region(region, SSE, most_buffers=MOST).calls == lower_region(region, SSE).calls


def test_groups_are_those_of_the_kernels():
    region = region_of(MODELS["chain"])
    (whole,) = native_groups(region, SSE)
    assert len(whole.nodes) == len(region.nodes)
    groups = native_groups(region, SSE, MOST)
    assert sorted(node for group in groups for node in group.nodes) == list(region.nodes)
    assert [len(group.nodes) for group in groups] == [6, 6, 6, 4]


def test_the_kits_operators_have_no_more():
    """But for a recurrence that is given all that it can be, which goes to another target."""
    more = {}
    for case in CASES:
        program = lower_region(
            region_of(problem_of(case, case.dtypes[0]).model), SSE, most_buffers=MOST
        )
        if program.kernels and most_buffers(program) > MOST:
            more[str(case)] = most_buffers(program)
    assert more == {"LSTM-both_ways": 9}


def fewer(entry):
    """Return a device that gives a kernel as few as WebGPU promises."""
    return replace(entry, limits=replace(entry.limits, most_buffers=MOST))


@pytest.fixture
def devices(request, monkeypatch):
    """The kind of a device, all of which give a kernel few arrays."""
    settings = Settings.from_environment()
    if request.param == "opencl":
        opencl.first_device()
        found = tuple(map(fewer, opencl_driver.list_devices(settings)))
        monkeypatch.setattr(opencl_driver, "_devices", lambda *_: found)
    else:
        webgpu.first_device()
        found = tuple(map(fewer, webgpu_driver.list_adapters(settings)))
        monkeypatch.setattr(webgpu_driver, "_adapters", lambda: found)
    return request.param


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "devices", ["opencl", pytest.param("webgpu", marks=pytest.mark.exhaustive)], indirect=True
)
def test_numbers_are_those_of_onnxruntime(devices, name, backends, random_feeds):
    model = MODELS[name]
    exe = intarsia.compile(model, f"{devices}, llvm", backends=backends, cache=False)
    (region,) = exe.placement.regions
    assert region.backend == devices, exe.placement.refusals
    feeds = random_feeds(model)
    (expected,) = evaluate(model, feeds).values()
    np.testing.assert_allclose(exe.run(feeds)["y"], expected, rtol=1e-5, atol=1e-5)
