# SPDX-License-Identifier: Apache-2.0
"""The untouched model in a runtime's own plain API, for comparisons."""

import numpy as np
import pytest

from intarsia.errors import BackendError

NAMES = ["onnxruntime", "openvino"]


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_has_the_models_outputs_in_order(
    backends, name, chain_model, random_feeds, evaluate, assert_same
):
    backend = backends.named(name)
    feeds = random_feeds(chain_model)
    baseline = backend.baseline(chain_model.SerializeToString(), feeds, 1)
    baseline.run()
    results = baseline.outputs()
    expected = evaluate(chain_model, feeds)
    assert_same(dict(zip(expected, results, strict=True)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_of_a_plug_ins_operator_is_our_error(backends, name, parse_model):
    model = parse_model("odd (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(BackendError, match="refused the model"):
        backends.named(name).baseline(model.SerializeToString(), {"x": np.zeros(2, np.float32)}, 1)


def test_not_every_backend_has_a_baseline(backends):
    with pytest.raises(BackendError, match="no baseline"):
        backends.baseline_of("fake")
