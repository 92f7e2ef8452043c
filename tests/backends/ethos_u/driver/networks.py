# SPDX-License-Identifier: Apache-2.0
"""Writes the networks that the stand-in for an Ethos-U computes: those of one program's streams.

    python networks.py MODEL TARGET FOLDER

The stand-in runs no command stream. It knows each by its bytes, and calls C of the kind `c`
(`-requantise=tflite`) of the same integer network: the region that Vela was given.
"""

import sys
from pathlib import Path

from intarsia.backends.ethos_u.backend import compile_region
from intarsia.compiler import read_setting
from intarsia.export import export_c
from intarsia.graph.extract import extract
from intarsia.graph.region import Region
from intarsia.place.request import Request
from intarsia.tuning.absent.explaining import decide_absent

_HEAD = """#include <string.h>
{headers}
int ethosu_standin_network(uint32_t digest, uint8_t *arena, size_t bytes)
{{
    int failed = -1;
"""
_ONE = """    if (digest == {digest}u && bytes == {arena}) {{
{memory}
        {copies}
        memset(arena, 0x5a, bytes); /* what lies elsewhere does not outlive a call */
        failed = {name}_run({passed});
    }}
"""


def digest_of(commands):
    """FNV-1a, as the stand-in computes it."""
    digest = 2166136261
    for byte in commands:
        digest = ((digest ^ byte) * 16777619) % 2**32
    return digest


def write_networks(model, target, folder, placement="auto"):
    """Write `known.c` and the C of each network.

    Args:
        model: The ONNX file that a program was made of.
        target: Its target.
        folder: Where to.
        placement: As the program's.

    Returns:
        The sources, and the names of the nodes of each region.
    """
    setting = read_setting(Request(model=model, target=target, is_here=False))
    pieces = decide_absent(setting, placement)[0].pieces
    sources, texts, names = [], [], []
    for piece in pieces:
        own = piece.target.target
        if own.kind.name != "ethos-u":
            continue
        region, name = Region.of(setting.graph, piece.nodes), f"npu{len(sources)}"
        compiled = compile_region(region, str(own.attrs["accelerator_config"]))
        file = folder / f"{name}.onnx"
        file.write_bytes(extract(region).model)
        export_c(file, folder, "c -requantise=tflite", name=name)
        sources.append(folder / f"{name}.c")
        names.append(tuple(setting.graph.nodes[node].name for node in region.nodes))
        texts.append(_text(name, compiled))
    known = folder / "known.c"
    headers = "".join(f'#include "{source.stem}.h"\n' for source in sources)
    known.write_text(_HEAD.format(headers=headers) + "".join(texts) + "    return failed;\n}\n")
    return (known, *sources), tuple(names)


def _text(name, compiled):
    """The branch of one stream."""
    places = list(enumerate(compiled.inputs))
    memory = [f"        static int8_t x{at}[{size}];" for at, (_, size) in places]
    copies = [f"memcpy(x{at}, arena + {start}, {size});" for at, (start, size) in places]
    passed = [f"x{at}" for at, _ in places]
    passed += [f"(int8_t *)arena + {start}" for start, _ in compiled.outputs]
    return _ONE.format(
        digest=digest_of(compiled.commands), arena=compiled.arena_bytes, name=name,
        memory="\n".join(memory), copies="\n        ".join(copies), passed=", ".join(passed),
    )  # fmt: skip


if __name__ == "__main__":
    written, _ = write_networks(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.stdout.write("".join(f"{source}\n" for source in written))
