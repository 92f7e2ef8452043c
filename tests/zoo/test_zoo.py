# SPDX-License-Identifier: Apache-2.0
"""The zoo keeps its word: named, repeatable, valid networks that compute something."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
import pytest

from intarsia import zoo
from intarsia.errors import ModelError
from intarsia.zoo.catalogue import ENTRIES

BIG = ("alexnet", "bert_base", "gpt2", "llama_decode", "vgg19", "vit_b16", "zfnet512")
SMALL = tuple(name for name in zoo.models() if name not in BIG)
SOFTMAX = re.compile("alexnet|inception.*|resnet50|shufflenet|squeezenet|vgg19|zfnet512")

# name: pattern of node names, and how many nodes have such a name
NAMES = {
    "alexnet": [(r"conv[1-5]/(conv|relu|norm|pool)", 15), (r"head/(fc|relu|dropout)[678]", 7)],
    "bert_base": [
        (r"encoder/\d+/attention/(query|key|value|output)/(matmul|add)", 96),
        (r"encoder/11/.*", 40),
        (r"embeddings/.*", 6),
    ],
    "deit_small": [
        (r"encoder/\d+/attention/heads/qkv/(matmul|add)", 24),
        (r"encoder/\d+/attention/heads/(unbind|query|key|value)", 48),
    ],
    "densenet121": [
        (r"block[1-4]/layer\d+/conv[12]", 2 * (6 + 12 + 24 + 16)),
        (r"transition[123]/(bn|conv|pool)", 9),
        (r"head/(bn|scale|shift|relu|pool|fc)", 6),
    ],
    "detector": [
        (r"backbone/.*/conv", 1 + 4 + 4 * 3 + 2 * 7 + 2),
        (r"backbone/sppf/pool[123]", 3),
        (r"neck/up[34]/resize", 2),
        (r"head/p[345]/sigmoid", 3),
    ],
    "efficientformer_l1": [
        (r"stage[1-4]/\d/mixer/(pool|sub)", 28),
        (r"stage[1-4]/\d/mlp/(up|down)", 28),
        (r"stage4/3/attention/.*", 15),
    ],
    "gpt2": [(r"decoder/\d+/mlp/(up|down)/gemm", 24), (r"decoder/0/attention/.*", 25)],
    "inception_v1": [
        (r"inception_[345][a-e]/(1x1|3x3|5x5|pool_proj)/conv", 36),
        (r"inception_[345][a-e]/concat", 9),
        (r"inception_[34][be]/downsample", 2),
        (r"stem/.*", 10),
    ],
    "inception_v2": [
        (r"inception_[345][a-e]/double3x3(_reduce|a|b)/bn", 30),
        (r"inception_[345][a-e]/pool", 10),
        (r"stem/(conv1|conv2_reduce|conv2)/relu", 3),
    ],
    "llama_decode": [
        (r"decoder/\d/mlp/(gate|up|down)/matmul", 24),
        (r"decoder/\d/attention/(key|value)/present", 16),
        (r"decoder/\d/attention/(query|key)/rotate/add", 16),
        (r"rotary/.*", 8),
    ],
    "minilm": [(r"encoder/[0-5]/norm[12]", 12), (r"pooler/(first|fc|tanh)", 3)],
    "mobilenet_v2": [
        (r"stage\d/\d/depthwise/(conv|clip)", 34),
        (r"stage\d/\d/add", 10),
        (r"head/(conv|clip|pool|flatten|fc)", 5),
    ],
    "mobilevit_small": [
        (r"stage[345]/transformer/(un)?fold/.*", 30),
        (r"stage[345]/transformer/layer/\d/attention/context", 9),
        (r"stage\d/\d/(expand|depthwise)/silu", 14),
    ],
    "resnet18": [
        (r"layer[1-4]/[01]/conv[12]", 16),
        (r"layer[234]/0/downsample/conv", 3),
        (r"layer[1-4]/[01]/(add|relu[12])", 24),
        (r"stem/(conv|relu|pool)|head/(pool|flatten|fc)", 6),
    ],
    "resnet50": [
        (r"layer4/.*", 32),
        (r"layer[1-4]/\d/add", 3 + 4 + 6 + 3),
        (r"layer[1-4]/0/downsample/(conv|bn)", 8),
        (r"stem/(conv|bn|relu|pool)|head/(pool|flatten|fc|softmax)", 8),
    ],
    "segformer_b0": [
        (r"stage[1-4]/layer/[01]/mlp/(depthwise|gelu/erf)", 16),
        (r"stage[1-3]/layer/[01]/attention/reduction/(conv|norm)", 12),
        (r"head/(stage[1-4]/resize|concat|fuse|relu|classifier)", 8),
    ],
    "shufflenet": [
        (r"stage[234]/\d/shuffle", 16),
        (r"stage[234]/0/(pool|concat)", 6),
        (r"stage3/7/(conv|bn)[123]", 6),
        (r"head/(pool|flatten|fc|softmax)", 4),
    ],
    "squeezenet": [
        (r"fire[2-9]/(squeeze1x1|expand1x1|expand3x3|concat)", 32),
        (r"stem/(conv|relu|pool)|head/(conv|relu|pool|softmax)", 7),
    ],
    "swin_tiny": [
        (r"stage[1-4]/layer/\d/attention/(bias|softmax|context)", 36),
        (r"stage[1-3]/layer/\d/(shift|back)/roll[12]", 20),
        (r"stage[2-4]/merge/(concat|norm)", 6),
    ],
    "vgg19": [(r"conv[1-5]/conv[1-4]", 16), (r"conv[1-5]/pool", 5)],
    "vit_b16": [(r"encoder/\d+/mlp/gelu", 12), (r"embeddings/(patch|concat|add)", 3)],
    "whisper_encoder": [(r"stem/(conv|gelu)[12]", 4), (r"encoder/3/attention/.*", 23)],
    "zfnet512": [(r"conv[12]/norm", 2), (r"head/fc[678]", 3)],
}


@dataclass(frozen=True)
class Built:
    """A network, and what it gives for two different inputs."""

    name: str
    model: onnx.ModelProto
    shapes: dict[str, list[int]]
    first: list[np.ndarray[Any, Any]]
    second: list[np.ndarray[Any, Any]]


def feeds_of(session: Any, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    limits = {"input_ids": 1000, "position_ids": 128, "token_type_ids": 2}
    return {
        value.name: rng.standard_normal(value.shape, dtype=np.float32)
        if value.type == "tensor(float)"
        else rng.integers(value.name == "attention_mask", limits.get(value.name, 2), value.shape)
        for value in session.get_inputs()
    }


def built(name: str) -> Built:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = zoo.build(name)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shapes = {value.name: value.shape for value in session.get_inputs()}
    first, second = (session.run(None, feeds_of(session, seed)) for seed in (1, 2))
    return Built(name, model, shapes, first, second)


@pytest.fixture(
    scope="module",
    params=[*SMALL, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in BIG)],
)
def network(request: pytest.FixtureRequest) -> Built:
    """Each network once, and never two big ones at a time."""
    return built(request.param)


def test_the_catalogue_tells_inputs_and_parameters(network: Built) -> None:
    entry = ENTRIES[network.name]
    assert {name: tuple(shape) for name, shape in network.shapes.items()} == entry.inputs
    weights = [tensor for tensor in network.model.graph.initializer if tensor.data_type == 1]
    assert sum(math.prod(tensor.dims) for tensor in weights) == entry.parameters


def test_a_network_is_nothing_but_nodes_that_compute_and_weights_that_are_used(
    network: Built,
) -> None:
    onnx.checker.check_model(network.model, full_check=True)
    graph = network.model.graph
    ops = {node.op_type for node in graph.node}
    assert not ops & {"Constant", "ConstantOfShape", "Identity"}
    used = {value for node in graph.node for value in node.input}
    assert all(tensor.name in used for tensor in graph.initializer)
    assert not {tensor.name for tensor in graph.initializer} & set(network.shapes)


def test_node_names_are_unique_paths_that_follow_the_structure(network: Built) -> None:
    names = [node.name for node in network.model.graph.node]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+(/\w+)+", name) for name in names)
    counts = [
        (pattern, sum(re.fullmatch(pattern, name) is not None for name in names))
        for pattern, _ in NAMES[network.name]
    ]
    assert counts == NAMES[network.name]


def test_outputs_are_finite_and_follow_the_input(network: Built) -> None:
    for first, second in zip(network.first, network.second, strict=True):
        assert np.isfinite(first).all()
        assert first.std() > 1e-4
        assert (first - second).std() > 0.2 * first.std()


def test_a_classifier_is_neither_certain_nor_clueless(network: Built) -> None:
    if not SOFTMAX.fullmatch(network.name):
        pytest.skip("ends without a softmax")
    (probability,) = network.first
    assert probability.sum() == pytest.approx(1, abs=1e-4)
    assert 2e-3 < probability.max() < 0.5
    assert 0.2 < np.log(probability).std() < 5


@pytest.mark.parametrize(("name", "megabytes"), [("densenet121", 32.7), ("resnet50", 102.5)])
def test_a_model_has_the_published_size(name: str, megabytes: float) -> None:
    assert ENTRIES[name].parameters * 4 / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_a_network_is_the_same_when_built_again(network: Built) -> None:
    digest = sha256(network.model.SerializeToString()).digest()
    assert sha256(zoo.build(network.name).SerializeToString()).digest() == digest


@pytest.mark.parametrize("name", ["squeezenet", "random:5"])
def test_another_seed_gives_other_weights(name: str) -> None:
    assert zoo.build(name, 3).SerializeToString() != zoo.build(name, 4).SerializeToString()


def test_an_unknown_network_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'lenet'") as caught:
        zoo.build("lenet")
    assert all(name in str(caught.value) for name in (*zoo.models(), "random:SEED"))


def test_a_negative_seed_is_an_error() -> None:
    with pytest.raises(ModelError, match="seed -1 is negative"):
        zoo.build("squeezenet", seed=-1)
