# SPDX-License-Identifier: Apache-2.0
"""The C compiler of the tests: the wheel `ziglang`, so that none has to be on the machine."""

import os
import subprocess
import sys
from pathlib import Path

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")
# Without `-O` zig links its sanitizer, which it first has to build: half a minute for nothing here.
_COMMAND = (sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined")
CACHE = Path(__file__).parents[1] / ".zig_cache"
"""Of zig: what is built for a target when it is first linked for stays there."""


def _environment():
    return {"ZIG_GLOBAL_CACHE_DIR": str(CACHE), **os.environ}


def compile_c(*arguments):
    """Call the compiler; what it complains of fails the test."""
    command = [*_COMMAND, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr[:4000]


def install_compiler(folder):
    """Make the compiler a program `cc` in a folder, for what looks for one in `PATH`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "cc"
    words = " ".join(f"'{word}'" for word in _COMMAND)
    cache = _environment()["ZIG_GLOBAL_CACHE_DIR"]
    program.write_text(f"#!/bin/sh\nZIG_GLOBAL_CACHE_DIR='{cache}' exec {words} \"$@\"\n")
    program.chmod(0o755)
