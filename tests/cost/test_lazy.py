# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy is loaded when costs are used, and never before."""

import os
import subprocess
import sys

import onnx
import pytest

_TELL = "; print('sqlalchemy' in sys.modules)"
_COMPILE = (
    "exe = intarsia.compile('m.onnx', 'reference', placement='greedy'); exe.save('m.intarsia')"
)
_RUN = "intarsia.load('m.intarsia')(numpy.zeros((2, 4), 'float32'))"
_COMMAND = "from intarsia.__main__ import main; main(['run', 'm.intarsia'])"


@pytest.mark.parametrize(
    "code", [_COMPILE, _RUN, _COMMAND, "import intarsia.cli.program", "intarsia.Target('llvm')"]
)
def test_what_uses_no_costs_loads_no_database(tmp_path, parse_model, code):
    onnx.save(
        parse_model("m (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"), tmp_path / "m.onnx"
    )
    environment = {**os.environ, "INTARSIA_CACHE_DIR": str(tmp_path / "cache")}

    def run(line):
        command = [sys.executable, "-c", f"import sys, intarsia, numpy; {line}{_TELL}"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    if code in (_RUN, _COMMAND):
        run(_COMPILE)
    assert run(code).splitlines()[-1] == "False"
