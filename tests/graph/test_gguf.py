# SPDX-License-Identifier: Apache-2.0
"""GGUF files: the same numbers in blocks, llama.cpp's network; what is not read is named."""

from dataclasses import replace

import gguf
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import quants

import intarsia
from intarsia.errors import ModelError
from intarsia.graph.gguf.blocks import BLOCKS, DECODERS
from intarsia.graph.gguf.container import KINDS, Container
from intarsia.graph.gguf.llama import _ModelSheet, _Size, _tables
from intarsia.graph.load import load

WIDTH, HIDDEN, HEADS, KEY_HEADS, WORDS, LAYERS, POSITIONS = 256, 512, 4, 2, 96, 2, 64
HEAD, EPSILON, BASE = WIDTH // HEADS, 1e-5, 5000.0
IDS = np.array([[5, 40, 7, 93, 2, 11, 60]])


def raw(rng, kind, rows, columns, spread):
    """Draw a tensor: quantised by the package where it can, else bytes with sensible scales."""
    if kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q8_0):
        drawn = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(spread)
        return quants.quantize(drawn, kind)
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    if kind is Kind.Q6_K:
        blocks[..., -2:] = np.array(spread / 1500, np.float16).reshape(1).view(np.uint8)
    else:
        blocks[..., :4] = np.array([spread / 150, spread / 20], np.float16).view(np.uint8)
        blocks[0, 0, :4] = np.array([0, spread / 20], np.float16).view(np.uint8)  # minima alone
    return blocks.reshape(rows, -1)


def kinds(main, embedding=Kind.F16, value=None):
    """Return the type of each matrix by name: `value` of what Q4_K_M files have wider."""
    return lambda name: (
        embedding
        if name == "token_embd.weight"
        else (value or main)
        if "attn_v" in name or name == "output.weight"
        else main
    )


def write(path, kind_of, *, is_tied=False, freqs=False, **settings):
    """Write a Llama; return what its tensors hold, as the package reads them."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, settings.pop("architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    writer.add_token_list(["location", *map(str, range(WORDS - 1))])
    for key, value in settings.items():
        writer.add_uint32(f"llama.{key}", value)
    shapes = {"token_embd.weight": (WORDS, WIDTH)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q.weight": (HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_k.weight": (KEY_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_v.weight": (KEY_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_output.weight": (WIDTH, HEADS * HEAD),
            f"blk.{i}.ffn_gate.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_up.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_down.weight": (WIDTH, HIDDEN),
        }
    if not is_tied:
        shapes["output.weight"] = (WORDS, WIDTH)
    held = {}
    for name, (rows, columns) in shapes.items():
        kind = kind_of(name)
        data = raw(rng, kind, rows, columns, 1.0 if "embd" in name else columns**-0.5)
        writer.add_tensor(name, data, raw_dtype=kind)
        held[name] = quants.dequantize(data, kind)
    norms = [f"blk.{i}.{part}_norm" for i in range(LAYERS) for part in ("attn", "ffn")]
    vectors = {f"{name}.weight": WIDTH for name in (*norms, "output_norm")}
    if freqs:
        vectors["rope_freqs.weight"] = HEAD // 2
    for name, size in vectors.items():
        held[name] = rng.uniform(0.8, 1.5, size).astype(np.float32)
        writer.add_tensor(name, held[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def compute(held):
    """Compute logits in float64 as llama.cpp does: neighbours of a head turn."""
    w = {name: array.astype(np.float64) for name, array in held.items()}
    count = IDS.shape[1]
    rates = BASE ** -(np.arange(0, HEAD, 2) / HEAD) / w.get("rope_freqs.weight", 1.0)
    turns = np.exp(1j * np.outer(np.arange(count), rates))[:, None]

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * w[f"{name}.weight"]

    def split(x, heads, turns=None):
        x = x.reshape(count, heads, HEAD)
        if turns is not None:
            x = x.view(np.complex128) * turns
            x = np.ascontiguousarray(x).view(np.float64)
        return np.repeat(x.transpose(1, 0, 2), HEADS // heads, 0)

    x = w["token_embd.weight"][IDS[0]]
    for i in range(LAYERS):
        blk = f"blk.{i}"
        y = norm(x, f"{blk}.attn_norm")
        q, k, v = (y @ w[f"{blk}.attn_{part}.weight"].T for part in "qkv")
        q, k, v = split(q, HEADS, turns), split(k, KEY_HEADS, turns), split(v, KEY_HEADS)
        scores = np.exp(q @ k.transpose(0, 2, 1) / HEAD**0.5) * np.tri(count)
        context = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2)
        x = x + context.reshape(count, -1) @ w[f"{blk}.attn_output.weight"].T
        y = norm(x, f"{blk}.ffn_norm")
        gate, up = (y @ w[f"{blk}.ffn_{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{blk}.ffn_down.weight"].T
    return norm(x, "output_norm") @ w.get("output.weight", w["token_embd.weight"]).T


def feeds():
    shape = (1, KEY_HEADS, 0, HEAD)
    pairs = [f"{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    past = {f"past_key_values.{pair}": np.zeros(shape, np.float32) for pair in pairs}
    return {"input_ids": IDS, "attention_mask": np.ones_like(IDS), **past}


def without_rounded_rows(model):
    """Have rows stay float32 in products with narrow weights, so that weights alone count."""
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
    return model


@pytest.mark.parametrize("kind", [Kind[name] for name in DECODERS])
def test_blocks_are_the_same_numbers(kind):
    data = raw(np.random.default_rng(3), kind, 24, 768, 1.0)
    blocks = DECODERS[kind.name](data)
    wanted, found = quants.dequantize(data, kind), blocks.numbers()
    assert found.dtype == np.float32
    if blocks.zero_points is None:
        assert np.array_equal(found, wanted)
    else:  # zero points in float32: what the module says of them
        minima = np.repeat(blocks.scales * blocks.zero_points, 32, -1).reshape(wanted.shape)
        assert (abs(found - wanted) <= 2.0**-24 * (abs(minima) + 2 * abs(wanted))).all()
        assert (wanted[0, :32] == wanted[0, 0]).all()


CASES = {
    "f32": (kinds(Kind.F32, Kind.F32), {"freqs": True}),
    "q4_0": (kinds(Kind.Q4_0), {"freqs": True}),
    "q8_0": (kinds(Kind.Q8_0, Kind.Q8_0), {"is_tied": True}),
    "q4_k_m": (kinds(Kind.Q4_K, Kind.Q4_K, Kind.Q6_K), {}),
    "bf16": (kinds(Kind.BF16), {"is_tied": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_weights_in_the_file(tmp_path, case):
    kind_of, more = CASES[case]
    held = write(tmp_path / "m.gguf", kind_of, **more)
    wanted = compute(held)
    model = load(tmp_path / "m.gguf", stays_free=True)
    session = onnxruntime.InferenceSession(
        ir.to_proto(without_rounded_rows(model)).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    found, *_ = session.run(["logits"], feeds())
    assert abs(found[0] - wanted).max() < 2e-5 * abs(wanted).max()


def test_a_gguf_file_is_compiled_like_any_model(tmp_path):
    held = write(tmp_path / "m.gguf", kinds(Kind.Q4_K, Kind.F16, Kind.Q6_K))
    exe = intarsia.compile(str(tmp_path / "m.gguf"), "onnxruntime")
    found = exe.run(feeds())["logits"][0]
    wanted = compute(held)
    # Rows may be rounded to int8 by block.
    assert abs(found - wanted).max() < 0.05 * abs(wanted).max()
    exe.save(tmp_path / "m.intarsia")
    again = intarsia.load(tmp_path / "m.intarsia").run(feeds())["logits"][0]
    assert np.array_equal(again, found)


def refuse(path, *parts):
    with pytest.raises(ModelError) as caught:
        load(path, stays_free=True)
    assert caught.value.hint
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("key", "number", "says"),
    [
        ("block_count", 4_000_000_000, "4000000000 layers and"),
        ("block_count", 0, "says 0 under 'llama.block_count'"),
        ("context_length", 4_000_000_000, "4000000000 positions for heads of 64"),
        ("embedding_length", 1, "says 0 under 'llama.attention.key_length'"),
        ("feed_forward_length", "wide", "says 'wide' under 'llama.feed_forward_length'"),
        ("attention.layer_norm_rms_epsilon", "small", "says 'small' under"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "says nan under"),
        ("rope.freq_base", float("inf"), "says inf under"),
        ("rope.freq_base", "1e4", "says '1e4' under"),
    ],
)
def test_sizes_that_no_file_can_have_are_refused_at_once(tmp_path, key, number, says):
    path = tmp_path / "m.gguf"
    write(path, kinds(Kind.F32))
    held = Container.open(path)
    settings = {**held.settings, f"llama.{key}": number}
    with pytest.raises(ModelError, match=says):
        sheet_size(replace(held, settings=settings))


def sheet_size(file):
    """Read what a file says of its network, up to the tables of angles."""
    size = _Size.read(file)
    return _tables(_ModelSheet(file, size))


def test_types_have_the_names_that_the_package_gives_them():
    assert {number: Kind(number).name for number in KINDS} == KINDS
    assert {kind: gguf.GGML_QUANT_SIZES[Kind[kind]] for kind in BLOCKS} == BLOCKS


def test_what_is_not_read_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, lambda name: Kind.Q5_0 if "ffn_up" in name else Kind.F32)
    refuse(path, "'blk.0.ffn_up.weight'", "Q5_0", "Q4_0")
    write(path, kinds(Kind.F32), architecture="qwen2")
    refuse(path, "qwen2", "llama")
    write(path, kinds(Kind.F32), expert_count=8)
    refuse(path, "mixture of experts")
    write(path, kinds(Kind.F32), **{"attention.sliding_window": 16})
    refuse(path, "'llama.attention.sliding_window'")
    write(path, kinds(Kind.F32), **{"rope.dimension_count": HEAD // 2})
    refuse(path, "turns 32 of a head")
    whole = path.read_bytes()
    for size in (5, 30, 700, 4000, len(whole) - 64):
        path.write_bytes(whole[:size])
        refuse(path, "damaged")
    with pytest.raises(ModelError, match="GGUF file") as caught:
        load(path.read_bytes())
    assert "path" in caught.value.hint
