# SPDX-License-Identifier: Apache-2.0
"""Plans that mix real backends compute what ONNX Runtime computes, whatever they mix."""

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.place.assign import Policy
from intarsia.place.build import build_program
from intarsia.place.decide import PlanChoice
from intarsia.plan.tuning import TuningReport
from intarsia.search.solve import solve
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import TargetModel
from intarsia.tuning.proposals.space import make_space

TARGETS = ("openvino", "dnnl", "llvm", "onnxruntime")


@pytest.fixture(scope="module")
def network():
    """A small residual network with a head of another kind."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return onnx.numpy_helper.from_array(array.astype(np.float32), name)

    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], "conv0", pads=[1] * 4),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "w1"], ["c1"], "conv1", pads=[1] * 4),
        node("Sigmoid", ["c1"], ["s1"], "sigmoid1"),
        node("Mul", ["c1", "s1"], ["g1"], "gate1"),
        node("Add", ["g1", "r0"], ["a1"], "add1"),
        node("MaxPool", ["a1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], "conv2"),
        node("Erf", ["c2"], ["e2"], "erf2"),
        node("Concat", ["p1", "e2"], ["j2"], "join2", axis=1),
        node("GlobalAveragePool", ["j2"], ["m3"], "mean3"),
        node("Flatten", ["m3"], ["f3"], "flat3"),
        node("Gemm", ["f3", "w4"], ["l4"], "gemm4"),
        node("Softmax", ["l4"], ["y"], "softmax4"),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])],
        [info("y", onnx.TensorProto.FLOAT, [1, 10]), info("a1", onnx.TensorProto.FLOAT, None)],
        [
            weight("w0", 16, 3, 3, 3),
            weight("b0", 16),
            weight("w1", 16, 16, 3, 3),
            weight("w2", 32, 16, 1, 1),
            weight("w4", 48, 10),
        ],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9
    )
    return onnx.shape_inference.infer_shapes(model)


@pytest.fixture(scope="module")
def expected(network):
    import onnxruntime as ort

    session = ort.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    return feeds, session.run(None, feeds)


def _report(calls):
    return TuningReport(
        *(TARGETS, (), "", 1, "latency", (), "drawn", len(calls) > 1, "", None, None, None, 0.0)
    )


def _check(executable, expected):
    feeds, wanted = expected
    found = executable.run(feeds)
    for array, other in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_computes_the_same(seed, network, expected, setting_of):
    setting = setting_of(network, ", ".join(TARGETS))
    space = make_space(setting)
    rng = np.random.default_rng(seed)
    models = {
        position: TargetModel(
            1e-6,
            1e-12,
            {unit: float(rng.uniform(1e-5, 1e-4)) for unit in range(len(space.units.units))},
            frozenset(range(len(space.units.units))),
        )
        for position in range(len(TARGETS))
    }
    facts = Facts(models, {}, frozenset(), lambda position, nbytes: 0.0, lambda unit: 0)
    solution = solve(formulate(space, facts))
    calls = tuple((call.backend, space.units.nodes_of(call.ops)) for call in solution.calls)
    executable = build_program(setting, PlanChoice(Policy.COLLAGE, calls, _report(calls)))
    assert executable.placement.policy == "collage"
    assert [len(region.nodes) for region in executable.placement.regions] == [
        len(nodes) for _, nodes in calls
    ]
    _check(executable, expected)


def test_every_single_plan_computes_the_same(network, expected, setting_of):
    setting = setting_of(network, ", ".join(TARGETS))
    plans = make_space(setting).plans
    assert {plan.name for plan in plans} <= {f"{name} alone" for name in TARGETS} | {"greedy"}
    assert len(plans) >= 3
    for plan in plans:
        _check(
            build_program(setting, PlanChoice(Policy.COLLAGE, plan.calls, _report(plan.calls))),
            expected,
        )


def test_greedy_falls_back_from_one_to_the_next(network, expected):
    executable = intarsia.compile(network, "openvino, dnnl, llvm", placement="greedy")
    assert executable.placement.fallback.startswith("llvm")
    _check(executable, expected)
    excluded = intarsia.compile(
        network, "openvino, dnnl, llvm", placement="greedy", exclude=["openvino:*"]
    )
    names = {region.target.partition(" ")[0] for region in excluded.placement.regions}
    assert names == {"dnnl", "llvm"}
    _check(excluded, expected)
