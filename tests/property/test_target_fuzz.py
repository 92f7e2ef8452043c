# SPDX-License-Identifier: Apache-2.0
r"""Texts made to break the parser of targets: by mutating legal ones, and noise.

A text has to be refused with a `TargetError`, or be a value that its own text gives again. As a
script this tries many, and keeps the first text of every new behaviour::

    python tests/property/test_target_fuzz.py --count 200000 --seed 1 --keep
"""

import argparse
import json
import random
import re
import sys
import time
import warnings
from pathlib import Path

import pytest

from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, PlacedTarget, Target, get_kind, list_kinds

_LONGEST_KEPT = 120
CORPUS = Path(__file__).parent / "target_corpus.json"
READERS = (
    (Target, str),
    (PlacedTarget.parse, str),
    (CompilationConfig.resolve, lambda config: config.text),
)
LEGAL = (
    "llvm -mcpu=skylake-avx512 -mattr=+avx512f,-avx",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=generic",
    "c -mcpu=cortex-m55+nomve", "cuda -arch=sm_80 -compiler=tensorrt",
    "cuda:1 --host='llvm -mcpu=x'",
    "opencl 1 -device=mali", "acl, llvm -mattr=+neon", "ethos-u,cmsis-nn,c", "nvidia/jetson-nano",
    "composite --host=llvm --devices='cuda -arch=sm_80','opencl -device=mali'",
    r"composite -devices='composite -devices=\'cuda -model=\\\'a b\\\'\',c'",
    "vulkan -device_name='Name of GPU' -supports_float16",
    "tensorrt -tensorrt_version=8,6 -base=cuda",
    "llvm -cl-opt='-unroll-threshold:uint=100,-unroll-count:uint=3' -tag=aws/c5",
    "fake -ops=Add,Mul",
    '{"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm", "mattr": ["+a"]}}',
    '{"targets": ["arm_acl", "c"], "host": "c", "labels": {"x": "cuda:1"}}', '["openvino", "c"]',
    '{"cuda:1": "cuda", "cpu": "c"}', "aws/p3 -max_num_threads=512, reference",
)  # fmt: skip
PIECES = (
    *" ,'\"\\=-:{}[]/+\n\t\x00\x1f0191aZ_.é日\U0001f600\ud800\u2028\u00a0",
    " -", "--", " , ", ", ", ",,", "''", '""', "\\'", "\\\\'", "='", "' ", " -k",
    "=true", "=1", "=-1",
    "=99999999999999999999", "null", "true", "1e9", "NaN", '"kind"', ":1", ":-1", ":x",
    ".json", ".toml",
    " -host=", " -devices=", " -tag=acl", " -keys=", " -base=", " -compiler=", " -memory_scope=s",
    " -device_id=1", " -from_device=0", " -target_host=c", "native",
)  # fmt: skip


def make_text(rng: random.Random) -> str:
    """Return a legal text after some mutations, a made-up one, or noise."""
    choice = rng.random()
    if choice < 0.15:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 12)))
    text = rng.choice(LEGAL) if choice < 0.6 else _from_schema(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        text = _mutate(text, rng)
    return text


def _from_schema(rng: random.Random) -> str:
    kind = get_kind(rng.choice(list_kinds(all=True)))
    words = [kind.name]
    for spec in rng.sample(sorted(kind.attrs.values(), key=lambda spec: spec.name), 3):
        value = rng.choice(
            ("1", "true", "a", "a,b", "'a b'", "-1", "", "'{\"a\": 1}'", "cuda", "sm_80")
        )
        words.append(f"-{spec.name}={value}" if rng.random() < 0.9 else f"-{spec.name}")
    return " ".join(words)


def _mutate(text: str, rng: random.Random) -> str:
    start, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    match rng.randrange(8):
        case 0 | 1:
            return text[:start] + rng.choice(PIECES) + text[start:]
        case 2:
            return text[:start] + text[start + 1 :]
        case 3:
            return text[:start] + text[end:]
        case 4:
            return text[:end] + text[start:end] + text[end:]
        case 5:
            return f"{text}{rng.choice((', ', ',', ' '))}{rng.choice(LEGAL)}"
        case 6:
            quoted = text.replace("\\", "\\\\").replace("'", "\\'")
            return f"composite -{rng.choice(('devices', 'host', 'base'))}='{quoted}'"
        case _:
            return text[:start] + rng.choice(LEGAL)[: rng.randrange(20)] + text[end:]


def check(text: str) -> str:
    """Read the text in every way, and return roughly what happened.

    Raises:
        AssertionError: A value is not the one that its own text gives.
    """
    behaviour = []
    for read, show in READERS:
        try:
            value = read(text)
        except TargetError as error:
            check_error(error)
            message = re.sub(r"^[^ ]*: |'[^']*'|\"[^\"]*\"", "", error.message)
            words = [word for word in message.split() if re.fullmatch("[a-z]{2,}", word)]
            behaviour.append(" ".join(words[:2]))
            continue
        shown = show(value)
        again = read(shown)
        assert again == value, (text, shown)
        assert hash(again) == hash(value), (text, shown)
        assert show(again) == shown, (text, shown)
        behaviour.append(type(value).__name__)
    return "; ".join(behaviour)


def check_error(error: TargetError) -> None:
    """Fail unless the error can be shown, and its place is in its text."""
    assert error.message
    assert str(error).isascii() or str(error).encode(errors="backslashreplace")
    if error.place is not None:
        assert 0 <= error.place.start <= len(error.place.text)
        line, carets = str(error.place).splitlines()
        assert set(carets.strip()) == {"^"}
        assert len(carets) <= max(len(line), 3) + 1


def fuzz(count: int, seed: int) -> dict[str, str]:
    """Check so many texts, and return the first of every behaviour."""
    rng = random.Random(seed)
    first: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            text = make_text(rng)
            try:
                first.setdefault(check(text), text)
            except Exception as error:
                error.add_note(f"text: {text!r}")
                raise
    return first


@pytest.mark.parametrize("text", json.loads(CORPUS.read_text(encoding="utf-8")))
@pytest.mark.filterwarnings("ignore")
def test_a_text_that_was_interesting_once_is_read_or_refused(text):
    check(text)


def test_mutated_texts_are_read_or_refused():
    assert len(fuzz(1000, seed=7)) > 30


def main() -> None:
    """Fuzz, and keep what is interesting if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add new behaviours to the corpus")
    options = parser.parse_args()
    start = time.perf_counter()
    found = fuzz(options.count, options.seed)
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{options.count} texts, {len(found)} behaviours, {seconds:.1f} s\n")
    if options.keep:
        known = set(json.loads(CORPUS.read_text(encoding="utf-8")))
        short = {text for text in found.values() if len(text) <= _LONGEST_KEPT}
        CORPUS.write_text(json.dumps(sorted(known | short), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
