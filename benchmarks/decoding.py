# SPDX-License-Identifier: Apache-2.0
"""Steps of one token of a decoder with a cache, against ONNX Runtime on bound memory.

    python benchmarks/decoding.py [--size small] [--threads 1] [--tokens 24] [--rounds 9] [--cpu]
                                  [--profile] [--rows grows cached --prompt 1024]

Rows, by what a program does for each token: `bound` binds past and present to one buffer once, and
writes into a mask as long as that (`examples/06_decode.py`); `mask` binds a mask that is longer by
one token in each step, as ONNX Runtime GenAI does; `grows` feeds what came out of the step before,
as Optimum does; `cached` does so by a `CachedDecoder`, and ONNX Runtime as before. What counts is
the mean time of a step, ours over ONNX Runtime's in the same round; rounds start anew behind a
prompt of 16 tokens, of `grows` and `cached` that of `--prompt`. With `--cpu` it is the CPU time of
this process. With `--profile` a step of `bound` is told by kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import intarsia
import intarsia.session
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

SIZES = {
    "small": Llama(layers=6, width=256, hidden=512, heads=4, key_heads=2, words=1000),
    "llama": Llama(),
}
"""2.3 million weights beside the words, which are what overhead shows at; and 100 million."""
PROMPT, ROOM = 16, 256
ROWS = ("bound", "mask", "grows", "cached")
Clock = Callable[[], float]
Step = Callable[[], object]


class CachedSession:
    """A session whose caches grow where they lie.

    Args:
        decoder: What runs.
    """

    def __init__(self, decoder: intarsia.CachedDecoder) -> None:
        self.decoder = decoder

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        """Return some outputs."""
        found = self.decoder.run(feeds)
        return [found[name] for name in outputs]


class Decoding:
    """A session that decodes.

    Args:
        module: `onnxruntime`, or what stands in for it.
        sessions: By layout.
        size: Of the model.
        prompt: Tokens of a prompt for rows whose caches grow.
    """

    def __init__(self, module: Any, sessions: dict[str, Any], size: Llama, prompt: int) -> None:
        self.module, self.sessions, self.size = module, sessions, size
        self.prompt = prompt
        pairs = [(i, kind) for i in range(size.layers) for kind in ("key", "value")]
        self.names = [f"{i}.{kind}" for i, kind in pairs]
        shape = (1, size.key_heads, ROOM, size.head)
        value = module.OrtValue.ortvalue_from_numpy
        self.cache = {name: value(np.zeros(shape, np.float32)) for name in self.names}

    def steps(self, row: str, tokens: int) -> Iterator[Step]:
        """Read a prompt, and yield what makes each step."""
        if row in ("grows", "cached"):
            return self._grown("optimum" if row == "grows" else row, tokens)
        return self._bound(row, tokens)

    def _bind(self, ids: Any, mask: Any, logits: Any) -> Any:
        binding = self.sessions["genai"].io_binding()
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", mask)
        for name, value in self.cache.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        value = self.module.OrtValue.ortvalue_from_numpy(logits)
        binding.bind_ortvalue_output("logits", value)
        return binding

    def _bound(self, row: str, tokens: int) -> Iterator[Step]:
        session, words = self.sessions["genai"], self.size.words
        prompt = np.ones((1, PROMPT), np.int64)
        logits = np.zeros((1, PROMPT, words), np.float32)
        session.run_with_iobinding(self._bind(prompt, np.ones_like(prompt), logits))
        token, logits = np.ones((1, 1), np.int64), np.zeros((1, 1, words), np.float32)
        mask = np.zeros((1, ROOM), np.int64)
        mask[:, :PROMPT] = 1
        binding = self._bind(token, mask, logits)

        def step(done: int) -> None:
            if row == "mask":
                binding.bind_cpu_input("attention_mask", np.ones((1, done + 1), np.int64))
            mask[:, done] = 1
            session.run_with_iobinding(binding)
            token[:] = logits[0, -1].argmax()

        step(PROMPT)
        for done in range(PROMPT + 1, PROMPT + 1 + tokens):
            yield lambda done=done: step(done)

    def _grown(self, layout: str, tokens: int) -> Iterator[Step]:
        session = self.sessions[layout]
        outputs = ["logits", *(f"present.{name}" for name in self.names)]
        shape = (1, self.size.key_heads, 0, self.size.head)
        state = [np.zeros(shape, np.float32) for _ in self.names]

        def step(ids: Any, done: int) -> Any:
            feeds = {
                "input_ids": ids,
                "attention_mask": np.ones((1, done + ids.shape[1]), np.int64),
                "position_ids": np.arange(done, done + ids.shape[1])[None],
            }
            feeds |= {
                f"past_key_values.{name}": array
                for name, array in zip(self.names, state, strict=True)
            }
            logits, *state[:] = session.run(outputs, feeds)
            return logits[:, -1:].argmax(-1)

        current = [step(np.ones((1, self.prompt), np.int64), 0)]
        for done in range(self.prompt, self.prompt + tokens):
            yield lambda done=done: current.append(step(current[-1], done))


def main() -> None:
    """Measure, and print a line for each row."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS)
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    clock: Clock = time.process_time if options.cpu else time.perf_counter
    size = SIZES[options.size]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for layout, build in (("genai", decoders.genai), ("optimum", decoders.optimum)):
        model = build(size, np.random.default_rng(0))
        ours[layout] = intarsia.InferenceSession(model, targets="llvm", num_threads=options.threads)
        theirs[layout] = onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
    decoder = intarsia.CachedDecoder(model, "llvm", num_threads=options.threads)
    ours["cached"], theirs["cached"] = CachedSession(decoder), theirs["optimum"]
    # Sizes that come often get a program of their own, which would be compiled beside the steps.
    one, room = {"batch_size": 1}, {"past_sequence_length": ROOM}
    for new, total in ((1, ROOM), (PROMPT, PROMPT)):
        sizes = {"sequence_length": new, "total_sequence_length": total}
        ours["genai"].executable.specialise(one | room | sizes)
    sizes = {"sequence_length": options.prompt, "past_sequence_length": 0}
    ours["optimum"].executable.specialise(one | sizes)
    contenders = {
        "ours": Decoding(intarsia.session, ours, size, options.prompt),
        "onnxruntime": Decoding(onnxruntime, theirs, size, options.prompt),
    }
    if options.profile:
        _tell_kernels(contenders["ours"])

    def take(contender: str, row: str) -> float:
        steps = contenders[contender].steps(row, options.tokens)
        seconds = []
        for step in steps:
            start = clock()
            step()
            seconds.append(clock() - start)
        return statistics.fmean(seconds)

    for row in options.rows:
        samples = take_turns(tuple(contenders), lambda one, row=row: take(one, row), 2)
        samples = take_turns(tuple(contenders), lambda one, row=row: take(one, row), options.rounds)
        ratio = paired_ratio(samples["onnxruntime"], samples["ours"])
        middle = {name: statistics.median(times) * 1e6 for name, times in samples.items()}
        times = ", ".join(f"{name} {value:.0f} us" for name, value in middle.items())
        print(f"{row:6} {times}, onnxruntime over ours {ratio}", flush=True)


def _tell_kernels(decoding: Decoding) -> None:
    """Print how long the kernels of a step take, by name."""
    from intarsia.runtime.recorder import RunRecorder

    program = decoding.sessions["genai"].executable
    feeds = {
        "input_ids": np.ones((1, 1), np.int64),
        "attention_mask": np.ones((1, PROMPT + 1), np.int64),
    }
    cache = {name: value.numpy() for name, value in decoding.cache.items()}
    feeds |= {f"past_key_values.{name}": array for name, array in cache.items()}
    results = {f"present.{name}": array for name, array in cache.items()}
    context = program.context(feeds, results)
    calls = list(context.calls(RunRecorder(context), by_kernel=True))
    times: dict[str, list[float]] = {}
    for position, kernel, call in calls * 50:
        start = time.perf_counter()
        context.call(position, call)
        name = "step" if kernel is None else kernel.kernel
        times.setdefault(name, []).append(time.perf_counter() - start)
    for name, seconds in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(f"  {name:16} {len(seconds) // 50:4} calls {sum(seconds) / 50 * 1e6:8.1f} us")


if __name__ == "__main__":
    main()
