# SPDX-License-Identifier: Apache-2.0
"""Vision transformers of several stages have the sizes and the structure of their papers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from intarsia import zoo
from intarsia.zoo.catalogue import ENTRIES

# what the papers' own code counts, and what the exporter folds: batch norms, tables of positions
PUBLISHED = {
    "deit_small": 22_050_664,
    "segformer_b0": 3_752_694,
    "mobilevit_small": 5_578_632,
    "efficientformer_l1": 12_289_928,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_vision_transformer_has_the_published_size(name: str) -> None:
    assert ENTRIES[name].parameters == pytest.approx(PUBLISHED[name], rel=2e-3)


def test_a_shifted_window_keeps_apart_what_was_not_adjacent() -> None:
    model = zoo.build("swin_tiny")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    mask = numpy_helper.to_array(tensors["stage3/layer/1/attention/mask"])
    assert mask.shape == (1, 4, 1, 49, 49)
    rows, columns = (np.indices((14, 14)) + 3) % 14  # where each token of the rolled image was
    places = np.stack([rows, columns], -1).reshape(2, 7, 2, 7, 2).transpose(0, 2, 1, 3, 4)
    places = places.reshape(4, 49, 2)
    distance = np.abs(places[:, :, None] - places[:, None]).max(-1)
    np.testing.assert_array_equal(mask[0, :, 0] == 0, distance < 7)


def test_a_roll_is_undone_by_the_next() -> None:
    model = zoo.build("swin_tiny")
    slices = [node for node in model.graph.node if "stage1/layer/1/" in node.name]
    rolls = [node for node in slices if node.op_type in ("Slice", "Concat")]
    image = onnx.helper.make_tensor_value_info("x", 1, [1, 56, 56, 96])
    there, back = ([n for n in rolls if part in n.name] for part in ("/shift/", "/back/"))
    there[0].input[0] = there[1].input[0] = "x"
    back[0].input[0] = back[1].input[0] = there[-1].output[0]
    output = onnx.helper.make_tensor_value_info(back[-1].output[0], 1, [1, 56, 56, 96])
    graph = onnx.helper.make_graph(
        [*there, *back], "rolls", [image], [output], model.graph.initializer
    )
    opset = onnx.helper.make_model(graph, opset_imports=model.opset_import)
    x = np.random.default_rng(0).standard_normal((1, 56, 56, 96), dtype=np.float32)
    evaluator = onnx.reference.ReferenceEvaluator(opset)
    np.testing.assert_array_equal(evaluator.run(None, {"x": x})[0], x)
