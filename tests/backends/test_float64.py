# SPDX-License-Identifier: Apache-2.0
"""A model computed in float64."""

import numpy as np
import pytest

from intarsia.backends.float64 import evaluate


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_it_is_finer_than_what_the_model_computes_in(parse_model, kind):
    model = parse_model(f"net ({kind}[4] x) => ({kind}[4] y) {{ a = Exp(x) y = Log(a) }}")
    before = model.SerializeToString()
    x = np.array([0.1, 1.7, -3.3, 9.9], {"float": "f4", "float16": "f2"}[kind])
    (y,) = evaluate(model, {"x": x})
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, x.astype(np.float64), rtol=1e-14)
    assert model.SerializeToString() == before
