# SPDX-License-Identifier: Apache-2.0
"""A model with two free dimensions: images by the batch, and words of sentences of any length."""

import numpy as np
import onnx
import onnxruntime

_TEXT = """<ir_version: 8, opset_import: ["": 17]>
free (float[batch, 3, 8, 8] x, int64[batch, words] ids)
    => (float[batch, 7] y, float[batch, words, 6] z)
<float[5, 3, 3, 3] w, float[80, 7] m, float[9, 6] table, float[6, 6] v>
{
    a = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(a)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    f = Flatten(p) g = Gemm(f, m) y = Softmax(g)
    e = Gather(table, ids) k = MatMul(e, v) t = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(k, t) q = Softmax(s) z = MatMul(q, e)
}"""
BOUNDS = {"batch": "1..4", "words": "1..9"}


def save_free_model(path):
    """Write the model."""
    model = onnx.parser.parse_model(_TEXT)
    drawn = np.random.default_rng(3)
    for name, shape in (("w", (5, 3, 3, 3)), ("m", (80, 7)), ("table", (9, 6)), ("v", (6, 6))):
        weights = (drawn.standard_normal(shape) / 2).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(model, path)


def free_case(path, batch, words):
    """Return inputs of some sizes, and what ONNX Runtime makes of them."""
    drawn = np.random.default_rng(batch)
    feeds = {
        "x": drawn.standard_normal((batch, 3, 8, 8)).astype(np.float32),
        "ids": drawn.integers(-9, 9, (batch, words)),
    }
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return feeds, session.run(None, feeds)
