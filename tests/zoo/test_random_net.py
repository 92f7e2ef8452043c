# SPDX-License-Identifier: Apache-2.0
"""Random networks: every kind of layer, all of them valid, no two alike."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intarsia import zoo
from intarsia.errors import ModelError

SEEDS = range(20)


@pytest.fixture(scope="module")
def networks() -> list[onnx.ModelProto]:
    return [zoo.build(f"random:{seed}") for seed in SEEDS]  # runs the checker


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_network_runs_and_follows_its_input(
    networks: list[onnx.ModelProto], seed: int
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        networks[seed].SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shape, rng = session.get_inputs()[0].shape, np.random.default_rng(1)
    first, second = (
        session.run(None, {"data": rng.standard_normal(shape, dtype=np.float32)})[0]
        for _ in range(2)
    )
    assert np.isfinite(first).all()
    assert 0.1 < first.std() < 100
    assert (first - second).std() > 0.05 * first.std()


def test_structures_differ_by_seed(networks: list[onnx.ModelProto]) -> None:
    structures = {
        tuple((node.op_type, node.name) for node in model.graph.node) for model in networks
    }
    assert len(structures) == len(networks)


def test_twenty_seeds_cover_the_operators_and_odd_extents(
    networks: list[onnx.ModelProto],
) -> None:
    nodes = [node for model in networks for node in model.graph.node]
    assert {node.op_type for node in nodes} == {
        *("Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Flatten"),
        *("Gemm", "GlobalAveragePool", "HardSwish", "MaxPool", "Mul", "Relu", "Sigmoid"),
    }
    attributes = [
        (a.name, onnx.helper.get_attribute_value(a)) for node in nodes for a in node.attribute
    ]
    for wanted in (("ceil_mode", 1), ("dilations", [3, 3]), ("strides", [2, 2]), ("group", 4)):
        assert wanted in attributes
    extents = {
        dim.dim_value
        for model in networks
        for dim in model.graph.input[0].type.tensor_type.shape.dim
    }
    assert {97, 131} <= extents


def test_the_structure_depends_on_its_own_seed_alone() -> None:
    first, second = (zoo.build("random:5", seed=seed) for seed in (0, 1))
    assert first.graph.node == second.graph.node
    assert first.graph.initializer != second.graph.initializer


@pytest.mark.parametrize("name", ["random:", "random:x", "random:-1", "random:1.5"])
def test_a_random_network_needs_a_seed(name: str) -> None:
    with pytest.raises(ModelError, match="is not the seed of a random network") as caught:
        zoo.build(name)
    assert "random:7" in str(caught.value)
