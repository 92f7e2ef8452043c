# SPDX-License-Identifier: Apache-2.0
"""Makes small networks from seeds: `mlp.onnx` in float32, `convnet.onnx` and `three.onnx` in int8.

    python make_networks.py FOLDER

The latter are convolutional networks for images of 16 x 16 and 32 x 32, quantised by ONNX Runtime
on random images: QuantizeLinear and DequantizeLinear around each operator, weights in int8 per
channel. `three` has a layer that an Ethos-U leaves to the CPU and CMSIS-NN has (steps of four), and
one that only plain C has (Erf).
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

MLP = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[1, 32] x) => (float[1, 4] y) {
    a = Gemm<transB = 1>(x, w0, b0)  b = Tanh(a)
    c = Gemm<transB = 1>(b, w1, b1)  d = Relu(c)
    e = Gemm<transB = 1>(d, w2, b2)  y = Softmax(e)
}"""
MLP_WEIGHTS = {"w0": (48, 32), "b0": (48,), "w1": (24, 48), "b1": (24,), "w2": (4, 24), "b2": (4,)}

CONVNET = """
<ir_version: 8, opset_import: ["" : 17]>
convnet (float[1, 1, 16, 16] x) => (float[1, 10] y) {
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0, b0)  b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 8>(b, w1, b1)         d = Relu(c)
    e = Conv(d, w2, b2)                                         f = Relu(e)
    g = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(f, w3, b3)  h = Relu(g)
    i = Add(h, h)  j = GlobalAveragePool(i)  k = Flatten(j)
    y = Gemm<transB = 1>(k, w4, b4)
}"""
CONVNET_WEIGHTS = {
    "w0": (8, 1, 3, 3), "b0": (8,), "w1": (8, 1, 3, 3), "b1": (8,), "w2": (16, 8, 1, 1),
    "b2": (16,), "w3": (24, 16, 3, 3), "b3": (24,), "w4": (10, 24), "b4": (10,),
}  # fmt: skip

THREE = """
<ir_version: 8, opset_import: ["" : 17]>
three (float[1, 1, 32, 32] x) => (float[1, 10] y) {
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0, b0)  b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 8>(b, w1, b1)         d = Relu(c)
    e = Conv(d, w2, b2)                                         f = Relu(e)
    g = Conv<pads = [1, 1, 1, 1], strides = [4, 4]>(f, w3, b3)  h = Relu(g)
    i = Add(h, h)  j = GlobalAveragePool(i)  k = Flatten(j)
    l = Gemm<transB = 1>(k, w4, b4)  y = Erf(l)
}"""


def network(text: str, weights: dict[str, tuple[int, ...]], seed: int) -> onnx.ModelProto:
    """Return a model in ONNX's text form, with weights drawn from a seed."""
    model, rng = parser.parse_model(text), np.random.default_rng(seed)
    for name, shape in weights.items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    return model


class Images(CalibrationDataReader):
    """Random images of a size, from which ranges are read."""

    def __init__(self, size: int, count: int = 16) -> None:
        rng = np.random.default_rng(2)
        self._images = iter(rng.standard_normal((count, 1, 1, size, size), np.float32))

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next image, or None."""
        image = next(self._images, None)
        return None if image is None else {"x": image}


def main(folder: Path) -> None:
    """Write the networks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(network(MLP, MLP_WEIGHTS, 1), folder / "mlp.onnx")
    for name, text, size in (("convnet", CONVNET, 16), ("three", THREE, 32)):
        quantize_static(
            network(text, CONVNET_WEIGHTS, 1),
            folder / f"{name}.onnx",
            Images(size),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
