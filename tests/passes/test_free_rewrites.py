# SPDX-License-Identifier: Apache-2.0
"""What rewrites do to a network does not depend on how many images or texts there will be."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.passes.freed import freed

from intarsia.graph.load import load
from intarsia.passes.free_shapes import prepare_free
from intarsia.passes.prepare import ROUNDING, prepare
from intarsia.zoo import build

BATCH = 3
SMALL = ("detector", "mobilenet_v2", "resnet18", "segformer_b0", "shufflenet", "squeezenet")
LARGE = (
    *("deit_small", "densenet121", "efficientformer_l1", "inception_v1", "inception_v2", "minilm"),
    *("swin_tiny", "vit_b16"),
)
OF_SHAPES = frozenset(("Shape", "Gather", "Slice", "Concat", "Expand"))
"""What computes how many images there are, where nobody knows it."""


@pytest.mark.parametrize(
    "name", [*SMALL, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in LARGE)]
)
def test_rewrites_do_not_go_by_the_number_of_images(name):
    model = freed(build(name))
    free, shapes = prepare_free(load(model, stays_free=True), {"batch": 1})
    assert not shapes.problems
    dims = {one.name: one.type.tensor_type.shape.dim for one in model.graph.input}
    fixed = {
        name: [BATCH if dim.dim_param else dim.dim_value for dim in of] for name, of in dims.items()
    }
    static = prepare(load(model, fixed))
    done, wanted = (
        {one.name: (one.count, set(one.nodes)) for one in some.rewrites if one.name in ROUNDING}
        for some in (free, static)
    )
    assert done == wanted
    operators, known = (
        Counter(node.op_type for node in some.graph.nodes) for some in (free, static)
    )
    assert not known - operators
    assert set(operators - known) <= OF_SHAPES


def test_networks_are_rewritten():
    """The test above would hold if nothing were."""
    prepared, _ = prepare_free(load(freed(build("segformer_b0")), stays_free=True), {"batch": 1})
    done = {one.name for one in prepared.rewrites}
    assert {"convolve-before-resizing", "convolve-tokens"} <= done
    convolutions = [node for node in prepared.graph.nodes if node.op_type == "Conv"]
    assert not any("fuse" in node.name for node in convolutions)  # merged into linear layers
