# SPDX-License-Identifier: Apache-2.0
"""The blocks of Python of a page are one program, which runs from top to bottom.

What a page takes for granted (a model, an array, a helper of the reader's) is made before, of small
networks under the names that it uses. Pages that show what they print are in `test_guides.py`,
those whose commands need what the programs write in `test_consoles.py`.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.end_to_end.consoles import PAGES, ROOT, RUNS_PYTHON, blocks_of
from tests.end_to_end.test_guides import GUIDES

ELSEWHERE = {"README.md", *RUNS_PYTHON, *(f"docs/{name}" for name in GUIDES)}
SHORTER = {"budget=120": "budget=2", "bert_base": "squeezenet"}
"""What a page gives more time, or a larger network, than a test has."""

IMAGES = """
<ir_version: 9, opset_import: ["" : 20]>
images (float[1,3,224,224] data) => (float[1,4,1,1] prob) <float[4,3,1,1] w> {
    ["stem/pool"] a = AveragePool<kernel_shape = [32, 32], strides = [32, 32]>(data)
    ["stem/conv"] b = Conv(a, w)
    ["stem/act"]  c = Relu(b)
    ["pool"]      prob = GlobalAveragePool(c)
}"""
TOKENS = """
<ir_version: 9, opset_import: ["" : 20]>
tokens (int64[batch,seq] input_ids, int64[batch,seq] attention_mask)
    => (float[batch,seq,4] y) <float[50,4] w> {
    a = Gather(w, input_ids)
    b = Cast<to = 1>(attention_mask)
    c = Unsqueeze(b, last)
    y = Mul(a, c)
}"""


def save_images(name):
    """Write a small network of images; return an image for it."""
    model = onnx.parser.parse_model(IMAGES)
    weights = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, name)
    return np.ones((1, 3, 224, 224), np.float32)


def save_tokens(name):
    """Write a small network of tokens, of free batch and length."""
    model = onnx.parser.parse_model(TOKENS)
    weights = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    last = np.array([-1], np.int64)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(last, "last"))
    onnx.save(model, name)


def make_network(_):
    return {"image": save_images("resnet50.onnx")}


def make_network_for_intarsia(_):
    import intarsia

    return {"image": save_images("resnet50.onnx"), "intarsia": intarsia}


def make_backend(monkeypatch):
    """A library of the reader's, and a package whose backend is that of our example."""
    example = (ROOT / "examples" / "05_write_a_backend.py").read_text(encoding="utf-8")
    Path("my_package.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    return {"is_dense": bool, "has_one_shape": bool}


def make_decoders(_):
    from gguf import GGMLQuantizationType as Kind
    from tests.graph.test_gguf import kinds, write

    import intarsia
    from intarsia.zoo import decoders
    from intarsia.zoo.transformers import Llama

    size = Llama(layers=1, width=64, hidden=64, heads=2, key_heads=1, words=96)
    onnx.save(decoders.genai(size, np.random.default_rng(0)), "model.onnx")
    onnx.save(decoders.optimum(size, np.random.default_rng(0)), "optimum.onnx")
    past = {f"past_key_values.0.{part}": np.zeros((1, 1, 0, 32)) for part in ("key", "value")}
    write("model-Q4_K_M.gguf", kinds(Kind.Q4_K))
    return {
        "intarsia": intarsia,
        "cache": {f"0.{part}": np.zeros((1, 1, 8, 32), np.float32) for part in ("key", "value")},
        "token": np.array([[5]], np.int64),
        "mask": np.array([[1] + [0] * 7], np.int64),
        "logits": np.zeros((1, 1, 96), np.float32),
        "feeds": {
            "input_ids": np.array([[5]], np.int64),
            "attention_mask": np.ones((1, 1), np.int64),
            "position_ids": np.zeros((1, 1), np.int64),
            **{name: array.astype(np.float32) for name, array in past.items()},
        },
    }


def make_tokens(_):
    import intarsia

    save_tokens("minilm.onnx")
    save_tokens("minilm_free.onnx")
    ids = np.ones((2, 100), np.int64)
    return {"intarsia": intarsia, "ids": ids, "mask": np.ones_like(ids)}


def make_torch_module(_):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x).relu()

    return {"model": Model(), "x": torch.ones(2, 4)}


def make_samples(_):
    save_images("squeezenet.onnx")
    np.savez("images.npz", data=np.random.default_rng(0).random((4, 3, 224, 224), np.float32))
    return {}


GIVEN = {
    "docs/backends.md": make_backend,
    "docs/collage.md": make_network_for_intarsia,
    "docs/decoding.md": make_decoders,
    "docs/free_sizes.md": make_tokens,
    "docs/onnxruntime.md": make_network,
    "docs/quantization.md": make_samples,
    "docs/torch.md": make_torch_module,
}
"""What makes the names and files that the reader of a page has, by page."""

ALONE = ("docs/onnxruntime_provider.md", "docs/targets.md")
"""Pages whose programs change what every other program of a process sees: they have their own."""

TAKES_LONGER = tuple(
    f"docs/{name}.md"
    for name in ("collage", "decoding", "free_sizes", "machines", "quantization", "torch", "zoo")
)


def program_of(page):
    """Return the blocks of a page that run, as one text with the line numbers of the page."""
    text = ""
    for block in blocks_of(page):
        if block.language == "python" and not block.mark:
            text += "\n" * (block.line - 1 - text.count("\n")) + block.text
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.exhaustive if page in TAKES_LONGER else ())
        for page in PAGES
        if page not in ELSEWHERE and program_of(page)
    ],
)
def test_the_blocks_of_a_page_run_as_one_program(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTARSIA_COSTS", str(tmp_path / "costs.sqlite"))
    if page in ALONE:
        done = subprocess.run(
            [sys.executable, "-c", program_of(page)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return
    names = {"__name__": "page", **GIVEN.get(page, lambda _: {})(monkeypatch)}
    exec(compile(program_of(page), page, "exec"), names)


def test_a_block_that_does_not_run_says_why():
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "python":
                where = f"{page}:{block.line}"
                assert re.fullmatch(r"(needs [\w' -]+)?", block.mark), where
                compile(block.text, where, "exec")
