# SPDX-License-Identifier: Apache-2.0
"""Whole convolutional networks on `dnnl` agree with ONNX Runtime on the untouched model."""

import numpy as np
import pytest

import intarsia
from intarsia import zoo

NETWORKS = (
    *("alexnet", "densenet121", "inception_v1", "inception_v2", "mobilenet_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_region_with_the_same_numbers(library, peer, random_feeds, name):
    del library
    model = zoo.build(name)
    feeds = random_feeds(model)
    exe = intarsia.compile(model, "dnnl, onnxruntime", num_threads=2)
    assert len(exe.placement.regions) == 1
    assert exe.placement.coverage()["onnxruntime"] == 0
    for output, expected in peer(model, feeds).items():
        for _ in range(2):
            array = exe.run(feeds)[output]
            np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["detector", "minilm"])
@pytest.mark.parametrize("rest", ["onnxruntime", "llvm, onnxruntime"])
def test_other_networks_have_the_same_numbers(library, peer, random_feeds, name, rest):
    del library
    model = zoo.build(name)
    feeds = random_feeds(model)
    exe = intarsia.compile(model, f"dnnl, {rest}", num_threads=2)
    coverage = exe.placement.coverage()
    assert coverage["dnnl"] > 0.9 * sum(coverage.values())
    for output, expected in peer(model, feeds).items():
        np.testing.assert_allclose(exe.run(feeds)[output], expected, rtol=1e-3, atol=1e-3)


def test_no_tensor_of_resnet50_is_reordered_between_its_blocks(library):
    del library
    exe = intarsia.compile(zoo.build("resnet50"), "dnnl, onnxruntime", num_threads=1)
    steps = exe._executables[0].assembly.steps
    reorders = [position for position, step in enumerate(steps) if not step.nodes]
    assert len(steps) - len(reorders) == 57  # 53 convolutions, 2 poolings, product, softmax
    assert reorders in ([], [0])  # of the image, at the border
