# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a decoder in blocks of 4 bits, against those who decode: same bits for all.

    python benchmarks/decoding_int4.py [--size half-billion] [--threads 1] [--prompt 32]
        [--tokens 8] [--rounds 7] [--cpu] [--target llvm] [--only ours llama.cpp]

The network is `llama:int4` of the zoo. ONNX Runtime (bound memory, as `examples/06_decode.py` binds
it here) and ONNX Runtime GenAI read its file; OpenVINO a stateful model made of it; llama.cpp and
OpenVINO GenAI a GGUF file of Q4_0 with the same codes and scales, the latter with a tokeniser of
bytes and pairs, which its pipeline wants but is not asked. Who is not installed is left out:
`pip install onnxruntime-genai openvino-genai llama-cpp-python gguf`.

A sample is the time of reading a prompt, and the mean time of steps of one token behind it; with
`--cpu`, CPU time of this process. OpenVINO GenAI tells its own times (`perf_metrics`); of CPU time,
what a run of one token takes, and what more tokens take beyond that. Printed are medians over
rounds, and what each takes over ours in the same round; how far logits behind the prompt are from
those of ONNX Runtime in float32, by their largest (OpenVINO GenAI shows none); and how many of the
greedy tokens are the same. With `--write FILE.gguf` the file is written, and no more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

SIZES = {
    "small": Llama(layers=2, width=256, hidden=512, heads=4, key_heads=2, words=512),
    "half-billion": decoders.HALF_BILLION,
}
POSITIONS = 4096
NAMES = {
    "attn.query": "attn_q",
    "attn.key": "attn_k",
    "attn.value": "attn_v",
    "attn.output": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
WORDED = "worded.gguf"
"""The GGUF file that has a tokeniser."""
Reader = Callable[[Sequence[int]], Any]


def write_gguf(model: onnx.ModelProto, size: Llama, path: Path, *, has_words: bool = False) -> None:
    """Write the zoo's `int4` as a GGUF file of Q4_0, with the same codes and scales.

    Args:
        model: The network.
        size: Its sizes.
        path: The file.
        has_words: Whether it has a tokeniser.
    """
    import gguf

    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(size.layers)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(size.width)
    writer.add_feed_forward_length(size.hidden)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.key_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(size.head)
    writer.add_vocab_size(size.words)
    if has_words:
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
        _add_words(writer, size.words)
    else:
        writer.add_tokenizer_model("none")

    def product(name: str, source: str, heads: int = 0) -> None:
        codes = held[f"{source}.codes"]
        rows, blocks, _ = codes.shape
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(rows, blocks, 2, 16)
        raw = np.empty((rows, blocks, 18), np.uint8)
        raw[..., :2] = held[f"{source}.scales"].astype(np.float16)[..., None].view(np.uint8)
        raw[..., 2:] = codes[:, :, 0] | (codes[:, :, 1] << 4)
        if heads:  # halves of a head become neighbours
            raw = raw.reshape(heads, 2, -1, blocks, 18).swapaxes(1, 2)
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(name, np.ascontiguousarray(raw).reshape(rows, -1), raw_dtype=kind)

    writer.add_tensor("token_embd.weight", held["embeddings.weight"])
    writer.add_tensor("output_norm.weight", held["norm.scale"])
    product("output.weight", "head")
    for i in range(size.layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", held[f"layers.{i}.norm1.scale"])
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", held[f"layers.{i}.norm2.scale"])
        for ours, theirs in NAMES.items():
            heads = {"attn_q": size.heads, "attn_k": size.key_heads}.get(theirs, 0)
            product(f"blk.{i}.{theirs}.weight", f"layers.{i}.{ours}", heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: Any, count: int) -> None:
    """Add a tokeniser of so many words: bytes as GPT-2 spells them, pairs and triples of these."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(others))]
    plain = letters[:94]
    pairs = [(a, b) for a in plain for b in plain]
    pairs = (pairs + [(a + b, c) for a, b in pairs for c in plain[:8]])[: count - 2 - len(letters)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<s>", *letters, *(a + b for a, b in pairs), "</s>"])
    writer.add_token_types([3, *[1] * (count - 2), 3])  # control, normal
    writer.add_token_merges([f"{a} {b}" for a, b in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(count - 1)


class Bound:
    """Intarsia: a program for the prompt and one for a token, on one cache in place.

    Args:
        model: The file.
        size: Of the network.
        options: Those of the command.
    """

    def __init__(self, model: Path, size: Llama, options: argparse.Namespace) -> None:
        self.size, self.room = size, options.prompt + options.tokens + 1
        self.prepare(model, options)
        shape = (1, size.key_heads, self.room, size.head)
        pairs = [f"{i}.{kind}" for i in range(size.layers) for kind in ("key", "value")]
        self.cache = {pair: np.zeros(shape, np.float32) for pair in pairs}
        self.mask = np.zeros((1, self.room), np.int64)
        self.feeds = {
            count: (np.zeros((1, count), np.int64), np.zeros((1, count, size.words), np.float32))
            for count in (options.prompt, 1)
        }
        self.calls = {count: self.bind(*arrays) for count, arrays in self.feeds.items()}
        self.done = 0

    def prepare(self, model: Path, options: argparse.Namespace) -> None:
        """Load the model."""
        self.exe = intarsia.compile(str(model), options.target, num_threads=options.threads)
        self.programs: list[Any] = []

    def bind(self, ids: Any, logits: Any) -> Callable[[], object]:
        """Return what reads these ids into these logits."""
        sizes = {"batch_size": 1, "sequence_length": ids.shape[1]}
        sizes |= {"past_sequence_length": self.room, "total_sequence_length": self.room}
        feeds = {"input_ids": ids, "attention_mask": self.mask}
        feeds |= {f"past_key_values.{pair}": array for pair, array in self.cache.items()}
        results = {f"present.{pair}": array for pair, array in self.cache.items()}
        self.programs.append(self.exe.specialise(sizes))
        return self.programs[-1].bind(feeds, {"logits": logits, **results})

    def weight_bytes(self) -> int:
        """Return the bytes of weights in memory; what programs share is counted once."""
        held = {}
        for program in (self.exe.generic, *self.programs):
            for artifact in program.artifacts:
                held |= {one.data.ctypes.data: one.data.nbytes for one in artifact.constants}
        return sum(held.values())

    def start(self) -> None:
        """Forget what was read."""
        self.done = 0
        self.mask[:] = 0

    def read(self, tokens: Sequence[int]) -> Any:
        """Read tokens, and return the logits of the one that follows."""
        ids, logits = self.feeds[len(tokens)]
        ids[:] = tokens
        self.done += len(tokens)
        self.mask[:, : self.done] = 1
        self.calls[len(tokens)]()
        return logits[0, -1]


class OnnxRuntime(Bound):
    """ONNX Runtime, bound in the same way."""

    def prepare(self, model: Path, options: argparse.Namespace) -> None:
        """Load the model."""
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        self.session = onnxruntime.InferenceSession(
            str(model), settings, providers=["CPUExecutionProvider"]
        )

    def bind(self, ids: Any, logits: Any) -> Callable[[], object]:
        """Return what reads these ids into these logits."""
        import onnxruntime

        value = onnxruntime.OrtValue.ortvalue_from_numpy
        binding = self.session.io_binding()
        for name, array in (("input_ids", ids), ("attention_mask", self.mask)):
            binding.bind_ortvalue_input(name, value(array))
        binding.bind_ortvalue_output("logits", value(logits))
        for pair, array in self.cache.items():
            both = value(array)
            binding.bind_ortvalue_input(f"past_key_values.{pair}", both)
            binding.bind_ortvalue_output(f"present.{pair}", both)
        return lambda: self.session.run_with_iobinding(binding)


class GenAI:
    """ONNX Runtime GenAI, which takes the likeliest token itself.

    Args:
        model: The file.
        size: Of the network.
        options: Those of the command.
    """

    def __init__(self, model: Path, size: Llama, options: argparse.Namespace) -> None:
        import onnxruntime_genai

        self.module, self.room = onnxruntime_genai, options.prompt + options.tokens + 2
        both = {"key": "key", "value": "value"}
        config = {
            "model": {
                "type": "llama",
                "bos_token_id": 0,
                "eos_token_id": size.words - 1,
                "pad_token_id": 0,
                "context_length": POSITIONS,
                "vocab_size": size.words,
                "decoder": {
                    "session_options": {"intra_op_num_threads": options.threads},
                    "filename": model.name,
                    "head_size": size.head,
                    "hidden_size": size.width,
                    "num_attention_heads": size.heads,
                    "num_hidden_layers": size.layers,
                    "num_key_value_heads": size.key_heads,
                    "inputs": {
                        "input_ids": "input_ids",
                        "attention_mask": "attention_mask",
                        **{f"past_{k}_names": f"past_key_values.%d.{k}" for k in both},
                    },
                    "outputs": {
                        "logits": "logits",
                        **{f"present_{k}_names": f"present.%d.{k}" for k in both},
                    },
                },
            },
            "search": {"max_length": self.room, "past_present_share_buffer": True},
        }
        (model.parent / "genai_config.json").write_text(json.dumps(config))
        self.model = onnxruntime_genai.Model(str(model.parent))
        self.generator: Any = None

    def start(self) -> None:
        """Forget what was read."""
        parameters = self.module.GeneratorParams(self.model)
        parameters.set_search_options(max_length=self.room, min_length=self.room, do_sample=False)
        self.generator = self.module.Generator(self.model, parameters)

    def read(self, tokens: Sequence[int]) -> Any:
        """Read tokens, and return the logits of the one that follows."""
        if len(tokens) == 1:  # the one that it took
            self.generator.generate_next_token()
        else:
            self.generator.append_tokens(np.array(tokens, np.int32))
        return self.generator.get_logits()[0, -1]


class OpenVINO:
    """OpenVINO, with the caches as states of the model.

    Args:
        model: The file.
        size: Of the network.
        options: Those of the command.
    """

    def __init__(self, model: Path, size: Llama, options: argparse.Namespace) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        read = openvino.Core().read_model(model)
        pairs = [f"{i}.{kind}" for i in range(size.layers) for kind in ("key", "value")]
        past = [1, size.key_heads, -1, size.head]
        shapes: dict[str, list[int]] = {"input_ids": [1, -1], "attention_mask": [1, -1]}
        read.reshape({**shapes, **{f"past_key_values.{pair}": past for pair in pairs}})
        apply_make_stateful_transformation(
            read, {f"past_key_values.{pair}": f"present.{pair}" for pair in pairs}
        )
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options.threads}
        self.request = openvino.compile_model(read, "CPU", config).create_infer_request()
        self.done = 0

    def start(self) -> None:
        """Forget what was read."""
        self.request.reset_state()
        self.done = 0

    def read(self, tokens: Sequence[int]) -> Any:
        """Read tokens, and return the logits of the one that follows."""
        self.done += len(tokens)
        mask = np.ones((1, self.done), np.int64)
        found = self.request.infer({"input_ids": np.array([tokens]), "attention_mask": mask})
        return found["logits"][0, -1]


class OpenVINOGenAI:
    """OpenVINO GenAI's pipeline, on the same weights in a GGUF file; it decodes by itself.

    Args:
        model: The ONNX file; the other one lies beside it.
        size: Of the network.
        options: Those of the command.
    """

    def __init__(self, model: Path, size: Llama, options: argparse.Namespace) -> None:
        import openvino
        import openvino_genai

        self.tensor = openvino.Tensor
        self.pipeline = openvino_genai.LLMPipeline(
            str(model.with_name(WORDED)), "CPU", INFERENCE_NUM_THREADS=options.threads
        )

    def generate(self, prompt: Sequence[int], count: int) -> Any:
        """Read a prompt, and return what it says of so many tokens behind it."""
        ids = self.tensor(np.array([prompt], np.int64))
        return self.pipeline.generate(ids, max_new_tokens=count, ignore_eos=True, do_sample=False)

    def seconds(self, prompt: Sequence[int], tokens: int, *, is_cpu: bool) -> tuple[float, float]:
        """Return the times of the prompt, and of a token behind it."""
        if not is_cpu:
            told = self.generate(prompt, tokens + 1).perf_metrics
            return told.get_ttft().mean / 1e3, told.get_tpot().mean / 1e3
        times = [time.process_time()]
        for count in (1, tokens + 1):
            self.generate(prompt, count)
            times.append(time.process_time())
        one, all_of_them = times[1] - times[0], times[2] - times[1]
        return one, (all_of_them - one) / tokens


class LlamaCpp:
    """llama.cpp, on the same weights in a file of its own format.

    Args:
        model: The ONNX file; the other one lies beside it.
        size: Of the network.
        options: Those of the command.
    """

    def __init__(self, model: Path, size: Llama, options: argparse.Namespace) -> None:
        import llama_cpp

        self.module, self.words = llama_cpp, size.words
        room = options.prompt + options.tokens + 1
        self.llama = llama_cpp.Llama(
            str(model.with_suffix(".gguf")),
            n_ctx=max(room, 64),
            n_batch=room,
            n_threads=options.threads,
            n_threads_batch=options.threads,
            verbose=False,
        )

    def start(self) -> None:
        """Forget what was read."""
        self.llama.reset()

    def read(self, tokens: Sequence[int]) -> Any:
        """Read tokens, and return the logits of the one that follows."""
        self.llama.eval(tokens)
        logits = self.module.llama_get_logits_ith(self.llama.ctx, -1)
        return np.ctypeslib.as_array(logits, (self.words,))


CONTENDERS: dict[str, Any] = {
    "ours": Bound,
    "onnxruntime": OnnxRuntime,
    "genai": GenAI,
    "openvino": OpenVINO,
    "openvino-genai": OpenVINOGenAI,
    "llama.cpp": LlamaCpp,
}


def decode(contender: Any, prompt: Sequence[int], tokens: int) -> Iterator[Any]:
    """Decode greedily, and yield logits, which are overwritten by the next ones."""
    contender.start()
    logits = contender.read(prompt)
    yield logits
    for _ in range(tokens):
        logits = contender.read([int(logits.argmax())])
        yield logits


def main() -> None:
    """Measure, and print a line for each contender."""
    options = _parse()
    size = SIZES[options.size]
    model = decoders.int4(size, np.random.default_rng(0))
    if options.write:
        write_gguf(model, size, options.write)
        return
    clock = time.process_time if options.cpu else time.perf_counter
    prompt = np.random.default_rng(1).integers(0, size.words - 1, options.prompt).tolist()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file)
        write_gguf(model, size, file.with_suffix(".gguf"))
        if "openvino-genai" in options.only:
            write_gguf(model, size, file.with_name(WORDED), has_words=True)
        exact = _exact(model, Path(folder) / "exact.onnx", size, options)
        del model
        expected = [one.copy() for one in decode(exact, prompt, options.tokens)]
        del exact
        contenders = {}
        for name in options.only:
            try:
                contenders[name] = CONTENDERS[name](file, size, options)
            except ImportError as error:
                print(f"{name} is left out: {error}")
        if "ours" in contenders:
            held, given = contenders["ours"].weight_bytes(), file.stat().st_size
            print(f"ours           {held / 1e6:.1f} MB of weights, a file of {given / 1e6:.1f} MB")
        for name, contender in contenders.items():
            print(f"{name:14} {_agreement(contender, prompt, expected)}", flush=True)

        def take(name: str) -> tuple[float, float]:
            if isinstance(contenders[name], OpenVINOGenAI):
                told: tuple[float, float] = contenders[name].seconds(
                    prompt, options.tokens, is_cpu=options.cpu
                )
                return told
            seconds, start = [], clock()
            for _ in decode(contenders[name], prompt, options.tokens):
                seconds.append(clock() - start)
                start = clock()
            return seconds[0], statistics.fmean(seconds[1:])

        samples = take_turns(tuple(contenders), take, options.rounds)
    _tell(samples, options.prompt)


def _tell(samples: dict[str, list[tuple[float, float]]], prompt: int) -> None:
    """Print medians of times of the prompt and of a token, and how they are to ours."""
    for part, what in enumerate(("prompt", "token")):
        times = {name: [one[part] for one in taken] for name, taken in samples.items()}
        count = prompt if part == 0 else 1
        for name, seconds in times.items():
            middle = statistics.median(seconds)
            text = (
                f"{what:6} {name:14} {middle * 1e3:8.2f} ms, {count / middle:7.1f} tokens a second"
            )
            if name != "ours" and "ours" in times:
                text += f", over ours {paired_ratio(seconds, times['ours'])}"
            print(text, flush=True)


def _agreement(contender: Any, prompt: Sequence[int], expected: Sequence[Any]) -> str:
    """Say how near somebody's logits and tokens are to those that are expected."""
    if isinstance(contender, OpenVINOGenAI):
        text, tokens = "", contender.generate(prompt, len(expected)).tokens[0]
    else:
        found = [one.copy() for one in decode(contender, prompt, len(expected) - 1)]
        error = abs(found[0] - expected[0]).max() / abs(expected[0]).max()
        text, tokens = f"error {error:.4f}, ", [one.argmax() for one in found]
    same = sum(a == b.argmax() for a, b in zip(tokens, expected, strict=True))
    return f"{text}{same} of {len(expected)} tokens"


def _exact(model: onnx.ModelProto, file: Path, size: Llama, options: argparse.Namespace) -> Any:
    """Return ONNX Runtime on a copy whose rows stay float32 in products."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    onnx.save(model, file)
    return OnnxRuntime(file, size, options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="half-billion")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
