# SPDX-License-Identifier: Apache-2.0
"""Whole networks, placed in many ways, agree with ONNX Runtime on the untouched model."""

import random
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia import zoo

LATER = (pytest.param(name, marks=pytest.mark.exhaustive) for name in ("densenet121", "resnet50"))
NETWORKS = ("squeezenet", *LATER)
MIXED = "openvino, onnxruntime"


@dataclass
class Network:
    """A network, an image, and what ONNX Runtime says of it."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


@pytest.fixture(scope="session", params=NETWORKS)
def network(request):
    model = zoo.build(request.param)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(7)
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    names = [value.name for value in session.get_outputs()]
    return Network(model, feeds, dict(zip(names, session.run(names, feeds), strict=True)))


def check(network, exe):
    outputs = exe.run(network.feeds)
    assert list(outputs) == list(network.expected)
    for name, array in network.expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-3, atol=1e-4)


def test_one_target_runs_the_whole_network(network, backends):
    exe = intarsia.compile(network.model, "onnxruntime", backends=backends)
    assert len(exe.placement.regions) == 1
    check(network, exe)


def test_the_first_target_gets_all_that_it_takes(network, backends):
    exe = intarsia.compile(network.model, MIXED, backends=backends)
    coverage = exe.placement.coverage()
    assert coverage["openvino"] >= 0.9 * exe.placement.node_count
    assert exe.placement.shortfall is None or coverage["onnxruntime"]
    check(network, exe)


def test_random_pins_are_obeyed_and_change_nothing_else(network, backends):
    rng = random.Random(11)
    nodes = [node for node in network.model.graph.node if node.op_type != "Constant"]
    normalisations = [node for node in nodes if node.op_type == "BatchNormalization"]
    picked = [*rng.sample(nodes, 7), *rng.sample(normalisations or nodes, 3)]
    pins = {node.name: rng.choice(("openvino", "onnxruntime")) for node in picked}
    exe = intarsia.compile(network.model, MIXED, pins=pins, backends=backends)
    homes = {
        origin: region.target
        for region in exe.placement.regions
        for node in region.nodes
        for origin in {node.name, *node.origins}
    }
    kept = [name for name in pins if name in homes]  # the others were folded away
    assert len(kept) >= 7
    assert {name: homes[name] for name in kept} == {name: pins[name] for name in kept}
    coverage = exe.placement.coverage()
    assert coverage["openvino"] > len(pins)
    assert coverage["onnxruntime"] >= list(pins.values()).count("onnxruntime") - 3
    assert len(exe.placement.regions) >= 3
    check(network, exe)


def test_a_package_of_a_network_runs_the_same(network, backends, tmp_path):
    exe = intarsia.compile(network.model, MIXED, pins={"*1*": "onnxruntime"}, backends=backends)
    exe.save(tmp_path / "network.intarsia")
    check(network, intarsia.load(tmp_path / "network.intarsia", backends=backends))
