# SPDX-License-Identifier: Apache-2.0
"""What Q and DQ nodes cost where nothing fuses them decides placement, and so do their bytes."""

import numpy as np
import onnx
import pytest

import intarsia

HEADER = """
<ir_version: 10, opset_import: ["" : 21]>
"""
CONSTANTS = "<float s = {0.05}, uint8 z = {128}, float[4,4,1,1] w>"
LAYER = f"""g (uint8[1,4,4,4] x) => (uint8[1,4,4,4] y) {CONSTANTS} {{
    [before] a = DequantizeLinear(x, s, z)
    [conv] b = Conv(a, w)
    [after] c = QuantizeLinear(b, s, z)
    [again] d = DequantizeLinear(c, s, z)
    [relu] e = Relu(d)
    [last] y = QuantizeLinear(e, s, z) }}"""
RESIDUAL = f"""g (float[1,4,4,4] x) => (float[1,4,4,4] y) {CONSTANTS} {{
    [relu] a = Relu(x)
    [codes] b = QuantizeLinear(a, s, z)
    [shared] c = DequantizeLinear(b, s, z)
    [conv] d = Conv(c, w)
    [after] e = QuantizeLinear(d, s, z)
    [again] f = DequantizeLinear(e, s, z)
    [sum] y = Add(f, c) }}"""
FUSED = "DequantizeLinear+Conv+QuantizeLinear"
NEXT = "DequantizeLinear+Relu+QuantizeLinear"
INTEGERS = f"fake -groups={FUSED} -cost={FUSED}:3e-3,{FUSED}+{NEXT}:3.3e-3,Conv:5e-3,*:1e-4"
"""Has the layer in integers, as one; nothing of it is as fast alone."""
BYTE = 1e-5
"""Seconds to copy a byte to the other target or back: 0.64 ms for codes, 2.56 ms for floats."""


@pytest.fixture
def place(exact, tmp_path):
    """A function that tunes a model for both targets, and says where nodes are."""

    def tune(text, floats):
        model = onnx.parser.parse_model(HEADER + text)
        weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        del model.graph.value_info[:]
        targets = [f"{INTEGERS} -call-cost=1e-5", f"{floats} -call-cost=1e-5 -copy-cost=0,{BYTE}"]
        program = intarsia.tune(model, targets, num_threads=1, costs=str(tmp_path / "costs.sqlite"))
        names = {}
        for region in program.placement.regions:
            target = "floats" if region.target.startswith("fake:1") else "integers"
            names.setdefault(target, set()).update(node.name for node in region.nodes)
        return names, program.explain().tuning.seconds

    return tune


def _floats(conversion):
    costs = f"Conv:1e-3,DequantizeLinear:{conversion},QuantizeLinear:{conversion}"
    return f"fake:1 -cost={costs},*:2e-2"


def test_a_layer_takes_its_conversions_along_if_these_are_cheap(place):
    names, seconds = place(LAYER, _floats(1e-4))
    assert names == {"floats": {"before", "conv", "after"}, "integers": {"again", "relu", "last"}}
    assert seconds == pytest.approx(1.2e-3 + 3e-4 + 2 * 64 * BYTE + 2e-5, rel=1e-3)


def test_a_layer_stays_where_it_needs_no_conversions_if_these_are_dear(place):
    """The convolution alone is as fast elsewhere as before, and its floats are four times codes."""
    names, seconds = place(LAYER, _floats(1e-3))
    assert names.keys() == {"integers"}
    assert seconds == pytest.approx(3.3e-3 + 1e-5, rel=1e-3)


def test_both_readers_of_codes_get_codes(place):
    """What a residual sum and a convolution read: neither makes floats for the other."""
    names, seconds = place(RESIDUAL, _floats(1e-4))
    assert names["floats"] == {"shared", "conv", "after"}
    assert names["integers"] == {"relu", "codes", "shared/2", "again", "sum"}
    assert seconds == pytest.approx(1.2e-3 + 5e-4 + 2 * 64 * BYTE + 3e-5, rel=1e-3)
