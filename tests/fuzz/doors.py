# SPDX-License-Identifier: Apache-2.0
"""The doors by which a stranger's bytes come in: seeds, how to go through, and mutations.

Each door either takes an input or raises an error of ours; anything else is a finding.
"""

import random
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import intarsia
from intarsia.cost.database import CostDatabase
from intarsia.cost.exchange import import_costs
from intarsia.graph.load import load as load_model
from intarsia.plan.lock import decode_lock, lock_plan
from intarsia.runtime.archive import open_archive, write_archive
from intarsia.runtime.package import MANIFEST, read_package
from intarsia.target import CompilationConfig
from intarsia.target.source import read_source

_HEAD = '<ir_version: 9, opset_import: ["" : 20]> '
_MODELS = (
    "g (float[2,3] x) => (float[2,4] y) <float[3,4] w = {0,1,2,3,4,5,6,7,8,9,10,11}> "
    "{ a = MatMul(x, w) b = Relu(a) y = Softmax<axis=1>(b) }",
    "g (float[n,8] x, bool c) => (float[n,8] y) { y = If(c) <then_branch = t () => (float[n,8] a) "
    "{ a = Neg(x) }, else_branch = e () => (float[n,8] b) { b = Abs(x) }> }",
)
_COSTS = (
    b'{"kind":"header","format":"intarsia-costs","schema":2}\n'
    b'{"kind":"machine","digest":"abc","text":"a machine"}\n'
)
_TARGETS = (
    b"llvm -mcpu=cortex-a72 -mattr=+neon,-sve, onnxruntime",
    b'{"kind":"llvm","mcpu":"skylake","keys":["cpu"],"host":{"kind":"llvm"}}',
    b'[{"kind":"opencl","device_id":1},"llvm"]',
    b"composite -host=llvm -devices='opencl, llvm'",
)
_TOML = (
    b'[tags.big]\nkind = "llvm"\nmcpu = "cortex-a76"\n'
    b'[targets.gpu]\ninherits = "big"\ndevice_id = 1\n',
)
_WORDS = (
    *(
        b"-1",
        b"0",
        b"99999999999999999999",
        b"1e999",
        b"NaN",
        b"null",
        b"{",
        b"[",
        b'"',
        b"\\u0000",
    ),
    *(b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80" * 9 + b"\x01", b"\0" * 8, b"../", b"=", b","),
)


@dataclass(frozen=True)
class Door:
    """How bytes come in: from which seeds, and through what."""

    seeds: tuple
    enter: object


def _package_seeds(folder):
    model = onnx.parser.parse_model(_HEAD + _MODELS[0])
    exe = intarsia.compile(model, "reference", num_threads=1, cache=False, probe=False)
    exe.save(folder / "seed.intarsia")
    return exe, (folder / "seed.intarsia").read_bytes()


def _enter_manifest(folder, source):
    """Return what puts bytes into a package in place of its manifest, which is else sound."""
    kept = {name: bytes(view) for name, view in open_archive(source).contents.items()}

    def enter(data, path):
        contents = {**kept, MANIFEST: data}
        write_archive(path, [(name, memoryview(one)) for name, one in contents.items()])
        read_package(path)

    return kept[MANIFEST], enter


def _by_file(read, suffix=""):
    def enter(data, path):
        file = path.with_name(path.name + suffix)
        file.write_bytes(data)
        read(file)

    return enter


def _gguf(folder, block):
    """Return a whole model of one layer, with weights of float32 or in blocks."""
    gguf = __import__("gguf")
    quants, kind, rng = gguf.quants, gguf.GGMLQuantizationType[block], np.random.default_rng(0)
    width, words = 32, 4
    writer = gguf.GGUFWriter(folder / "seed.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(8)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "b", "c", "d"])
    rows = {"attn_q": width, "attn_k": 16, "attn_v": 16, "attn_output": width}
    rows |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), width)
    named = {f"blk.0.{name}.weight": count for name, count in rows.items()}
    for name, count in {"token_embd.weight": words, **named}.items():
        drawn = rng.standard_normal((count, width)).astype(np.float32)
        writer.add_tensor(name, quants.quantize(drawn, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "seed.gguf").read_bytes()


def make_door(name, folder):
    """Return a door.

    Args:
        name: One of `DOORS`.
        folder: Where files may be written.
    """
    folder = Path(folder)
    if name == "onnx":
        seeds = [onnx.parser.parse_model(_HEAD + text).SerializeToString() for text in _MODELS]
        return Door(tuple(seeds), lambda data, path: load_model(data, stays_free=True))
    if name == "gguf":
        seeds = tuple(_gguf(folder, block) for block in ("F32", "Q8_0", "Q4_0"))
        return Door(seeds, _by_file(partial(load_model, stays_free=True), ".gguf"))
    if name == "target":
        return Door(
            _TARGETS,
            lambda data, path: CompilationConfig.resolve(data.decode("utf-8", "surrogateescape")),
        )
    if name == "toml":
        return Door(_TOML, _by_file(read_source, ".toml"))
    if name == "costs":
        database = CostDatabase.open(str(folder / "costs.sqlite"))

        def enter(data, path):
            import_costs(database, data.decode("utf-8", "replace").splitlines(), "costs")

        return Door((_COSTS,), enter)
    exe, package = _package_seeds(folder)
    if name == "lock":
        lock = str(lock_plan(exe.plan)).encode()
        return Door((lock,), lambda data, path: decode_lock(data, "lock"))
    if name == "package":
        return Door((package,), _by_file(read_package))
    manifest, enter = _enter_manifest(folder, folder / "seed.intarsia")
    return Door((manifest,), enter)


DOORS = ("onnx", "gguf", "target", "toml", "costs", "lock", "package", "manifest")


def mutate(door, number):
    """Return the input of a number: always the same bytes."""
    rng = random.Random(zlib.crc32(b"input") + number)
    data = bytearray(rng.choice(door.seeds))
    for _ in range(rng.choice((1, 1, 2, 4, 8, 16))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 32)]
        elif kind == 3:
            data[at:at] = rng.choice(_WORDS)
        elif kind == 4:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.randrange(1, 64)]
        else:
            word = rng.choice(_WORDS)
            data[at : at + len(word)] = word
    return bytes(data)
