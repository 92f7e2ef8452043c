# SPDX-License-Identifier: Apache-2.0
"""Values are read from JSON and MessagePack, by several threads from the first time on."""

import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pytest

from intarsia.decoding import decode_json, decode_msgpack


@dataclass(frozen=True)
class Pair:
    """Two values."""

    first: int
    second: list[str]


@pytest.mark.parametrize(
    ("decode", "encode"),
    [(decode_json, msgspec.json.encode), (decode_msgpack, msgspec.msgpack.encode)],
)
def test_values_come_back_and_others_are_refused(decode, encode):
    pair = Pair(3, ["a"])
    assert decode(encode(pair), Pair) == pair
    assert decode(encode([pair]), list[Pair]) == [pair]
    with pytest.raises(msgspec.DecodeError, match="first"):
        decode(encode({"first": "x", "second": []}), Pair)


def test_threads_that_decode_for_the_first_time_together_survive():
    code = (
        "import sys, threading\n"
        "from intarsia.decoding import decode_json\n"
        "from intarsia.runtime.package import Manifest\n"
        "sys.setswitchinterval(1e-6)\n"
        "text = '{\"' + Manifest.__struct_fields__[-1] + '\": true}'  # what is looked at last\n"
        "ready, ends = threading.Barrier(8), []\n"
        "def decode():\n"
        "    ready.wait()\n"
        "    try:\n"
        "        decode_json(text, Manifest)\n"
        "    except ValueError as error:\n"
        "        ends.append(str(error))\n"
        "threads = [threading.Thread(target=decode) for _ in range(8)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(ends) == 8 and len(set(ends)) == 1, ends\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
