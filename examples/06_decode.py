# SPDX-License-Identifier: Apache-2.0
"""Decode text with a Llama as ONNX Runtime GenAI exports it: greedily, and by sampling.

Keys and values of all tokens so far lie in buffers with room for more. They are bound as past and
as present, so that a step adds its own rows and copies nothing. The program for a prompt and the
one for a token share their large weights. The network is made from a seed, and so talks nonsense; a
real `model.onnx` goes through the same lines.
"""

from __future__ import annotations

import numpy as np

import intarsia
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

SIZE = Llama(layers=2, width=128, hidden=256, heads=4, key_heads=2, words=257)
WEIGHTS = {"float32": decoders.genai, "int4": decoders.int4}
END = 256


class ByteTokeniser:
    """A token for each byte, and one that ends the text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        return bytes(token for token in tokens if token != END).decode(errors="replace")


class Decoder:
    """A model with a cache of keys and values for some tokens.

    Args:
        model: In the layout of ONNX Runtime GenAI: `intarsia.compile` takes it.
        room: Most tokens of a text.
    """

    def __init__(self, model, room: int) -> None:
        self.exe = intarsia.compile(model, "llvm")
        self.room, self.done = room, 0
        self.programs = {}
        shapes = {spec.name: spec.shape for spec in self.exe.inputs}
        self.cache = {
            name.removeprefix("past_key_values."): np.zeros((1, heads, room, size), np.float32)
            for name, (_, heads, _, size) in ((n, s) for n, s in shapes.items() if len(s) == 4)
        }
        self.words = self.exe.outputs[0].shape[-1]
        # All steps have the same sizes: zeros of the mask stand for tokens that are still to come.
        self.token = np.zeros((1, 1), np.int64)
        self.mask = np.zeros((1, room), np.int64)
        self.logits = np.zeros((1, 1, self.words), np.float32)
        self._step = self._bind(self.token, self.mask, self.logits)

    def _bind(self, ids, mask, logits):
        sizes = {"batch_size": 1, "past_sequence_length": self.room}
        sizes |= {"sequence_length": ids.shape[1], "total_sequence_length": mask.shape[1]}
        past = {f"past_key_values.{name}": array for name, array in self.cache.items()}
        present = {f"present.{name}": array for name, array in self.cache.items()}
        self.programs[ids.shape[1]] = program = self.exe.specialise(sizes)
        return program.bind(
            {"input_ids": ids, "attention_mask": mask, **past}, {"logits": logits, **present}
        )

    def weight_bytes(self) -> int:
        """Return the bytes of weights in memory; what several programs share is counted once."""
        held = {}
        for program in (self.exe.generic, *self.programs.values()):
            for artifact in program.artifacts:
                held |= {one.data.ctypes.data: one.data.nbytes for one in artifact.constants}
        return sum(held.values())

    def read(self, tokens: list[int]) -> np.ndarray:
        """Read a prompt, and return the logits of the token that follows."""
        ids = np.array([tokens])
        logits = np.zeros((*ids.shape, self.words), np.float32)
        self._bind(ids, np.ones_like(ids), logits)()
        self.done = len(tokens)
        self.mask[:] = 0
        self.mask[:, : self.done] = 1
        return logits[0, -1]

    def step(self, token: int) -> np.ndarray:
        """Read one more token, and return the logits of the one that follows."""
        self.token[:] = token
        self.mask[:, self.done] = 1
        self.done += 1
        self._step()
        return self.logits[0, 0]


def pick(
    logits: np.ndarray,
    rng: np.random.Generator,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> int:
    """Return a token: the likeliest one, or one that is drawn.

    Args:
        logits: Of each token.
        rng: Draws it.
        temperature: What logits are divided by; 0 takes the likeliest.
        top_k: How many of the likeliest tokens may be drawn; 0 for all.
        top_p: Of these, as few of the likeliest as have this probability together.
    """
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    shares = np.exp((logits[order] - logits[order[0]]) / temperature, dtype=np.float64)
    shares /= shares.sum()
    kept = np.cumsum(shares) - shares < top_p  # the first one always
    return int(rng.choice(order[kept], p=shares[kept] / shares[kept].sum()))


def generate(decoder: Decoder, prompt: list[int], tokens: int, seed: int = 0, **how) -> list[int]:
    """Return the tokens that follow a prompt, as `pick` picks them; up to one that ends it."""
    rng, found = np.random.default_rng(seed), list[int]()
    logits = decoder.read(prompt)
    while True:
        found.append(pick(logits, rng, **how))
        if found[-1] == END or len(found) == tokens or decoder.done == decoder.room:
            return found
        logits = decoder.step(found[-1])


def main() -> None:
    """Decode a prompt in two ways, with weights of float32 and of 4 bits."""
    tokeniser = ByteTokeniser()
    prompt = tokeniser.encode("Once upon a time")
    for name, build in WEIGHTS.items():
        decoder = Decoder(build(SIZE, np.random.default_rng(0)), room=64)
        greedy = generate(decoder, prompt, 16)
        drawn = generate(decoder, prompt, 16, seed=1, temperature=0.8, top_k=40, top_p=0.95)
        print(
            f"{name}: {len(decoder.programs)} programs, {decoder.weight_bytes():,} bytes of weights"
        )
        print("  greedy: ", repr(tokeniser.decode(greedy)))
        print("  sampled:", repr(tokeniser.decode(drawn)))
        assert generate(decoder, prompt, 16) == greedy


if __name__ == "__main__":
    main()
