# SPDX-License-Identifier: Apache-2.0
"""The Llama in blocks of 4 bits: that of `genai`, rounded; and as a GGUF file, the same one."""

import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import numpy_helper

from intarsia.graph.load import load
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "decoding_int4.py"
SIZE = Llama(layers=2, width=128, hidden=192, heads=4, key_heads=2, words=96)


def arrays(model):
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


def logits(model):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ids = np.array([[3, 14, 15, 92, 65]])
    shape = (1, SIZE.key_heads, 0, SIZE.head)
    feeds = {one.name: np.zeros(shape, np.float32) for one in session.get_inputs()[2:]}
    feeds |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return session.run(["logits"], feeds)[0]


def test_blocks_of_4_bits_are_the_weights_of_genai_rounded():
    exact = decoders.genai(SIZE, np.random.default_rng(5))
    narrow = decoders.int4(SIZE, np.random.default_rng(5))
    held, found = arrays(narrow), dict[str, np.ndarray]()
    for name, weight in arrays(exact).items():
        part = name.removesuffix(".weight")
        if f"{part}.codes" not in held:
            assert np.array_equal(held[name], weight)
            continue
        codes, scales = held[f"{part}.codes"], held[f"{part}.scales"]
        assert np.array_equal(scales, scales.astype(np.float16))
        numbers = np.stack([codes & 15, codes >> 4], -1).reshape(*scales.shape, 32) - np.float32(8)
        found[name] = (numbers * scales[..., None]).reshape(weight.T.shape).T
        step = np.repeat(abs(scales), 32, -1).T
        assert (abs(found[name] - weight) <= 1.01 * step).all()  # the far end is a step away
    for tensor in exact.graph.initializer:
        if tensor.name in found:
            tensor.CopyFrom(numpy_helper.from_array(found[tensor.name], tensor.name))
    for node in narrow.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    wanted = logits(exact)
    assert len(found) == 15
    assert abs(logits(narrow) - wanted).max() < 1e-5 * abs(wanted).max()


def test_a_gguf_file_of_it_is_read_as_the_same_weights(tmp_path):
    spec = importlib.util.spec_from_file_location("decoding_int4_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    model = decoders.int4(SIZE, np.random.default_rng(5))
    benchmark.write_gguf(model, SIZE, tmp_path / "m.gguf")
    read = load(tmp_path / "m.gguf", stays_free=True)
    held = arrays(model)

    ours = [
        [node.input[1], node.input[2]] for node in model.graph.node if node.op_type == "MatMulNBits"
    ]
    theirs = [
        [value.const_value.numpy() for value in node.inputs[1:]]
        for node in read.graph
        if node.op_type == "MatMulNBits"
    ]
    for names, found in zip(ours, theirs, strict=True):
        assert all(np.array_equal(held[a], b) for a, b in zip(names, found, strict=True)), names
