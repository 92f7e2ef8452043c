# SPDX-License-Identifier: Apache-2.0
"""What holds for every command: figures stay whole on narrow terminals, and all lines are ours."""

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest
import rich.console
from tests.cli.conftest import NARROW
from tests.cli.invocations import INVOCATIONS, SLOW, list_commands
from tests.opencl import first_device

FIGURE = re.compile(r"(?<![^\s(])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=[\s),;:]|$)")
"""A number that is not part of a word."""

LISTENER = """
import io, json, os, sys

class Recorder(io.TextIOBase):
    # What Python code writes, and which module does: the nearest that is not part of Python itself.
    def __init__(self):
        self.parts = []
    def write(self, text):
        frame, modules = sys._getframe(1), []
        while frame is not None:
            name = frame.f_globals.get("__name__", "").partition(".")[0]
            if name not in sys.stdlib_module_names and name not in ("rich", "__main__"):
                modules.append(name)
            frame = frame.f_back
        self.parts.append((modules[0] if modules else "", text))
        return len(text)
    def flush(self):
        pass
    def fileno(self):
        raise OSError("no file")
    def isatty(self):
        return False

calls, answers = json.loads(sys.argv[1]), []
from intarsia.__main__ import main
for call in calls:
    sys.stdout, sys.stderr = Recorder(), Recorder()
    code = main(call)
    answers.append([code, sys.stdout.parts, sys.stderr.parts])
sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(answers, file)
"""

UNTIDY = """
<ir_version: 9, opset_import: ["" : 13]>
untidy (float[2,3] x, float[3] fed) => (float[1,3] wrong, int64[2,n] at)
<float[3] fed = {1, 2, 3}, float[4] unused = {1, 2, 3, 4}, int64[1] axis = {0}> {
    [dead] nobody = Sin(x)
    [one] a = Add(x, fed)
    [two] b = Relu(a)
    [three] wrong = Dropout(b)
    [four] at = NonZero(b)
}
"""
"""What runtimes like to complain of: no use, a constant that is an input, a wrong shape."""

TARGETS = (
    *("llvm", "onnxruntime", "openvino, onnxruntime", "dnnl, llvm", "opencl, llvm"),
    *("reference", "fake -ops=Relu, reference", "openvino -precision=bf16, onnxruntime"),
)
SHORT = ("openvino, onnxruntime", "reference")
"""Of these, what `make test` tries."""


def test_every_command_is_called_here():
    assert sorted(INVOCATIONS) == list_commands()


@pytest.fixture
def printed(monkeypatch):
    """What is printed through rich: on a line without end, and at 80 columns."""
    found = []
    plain = rich.console.Console.print

    def render(objects, options, width):
        out = io.StringIO()
        console = rich.console.Console(file=out, width=width, highlight=False, markup=False)
        plain(console, *objects, **options)
        return out.getvalue()

    def record(self, *objects, **options):
        found.append((render(objects, options, 10_000), render(objects, options, NARROW)))
        return plain(self, *objects, **options)

    monkeypatch.setattr(rich.console.Console, "print", record)
    return found


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.exhaustive if c in SLOW else ()) for c in INVOCATIONS],
)
def test_no_figure_is_broken_at_80_columns(command, desk, printed):
    for arguments in INVOCATIONS[command]:
        answer = desk(command, arguments)
        assert answer.code in (0, 1), answer.err
        assert "…" not in answer.out + answer.err
    for wide, narrow in printed:
        assert not Counter(FIGURE.findall(wide)) - Counter(FIGURE.findall(narrow)), narrow
        assert "…" not in narrow


@pytest.mark.parametrize("text", ["7", "0.5 ms", "(3)", "1, 2", "1.5e-05"])
def test_a_figure_is_found_wherever_it_stands(text):
    assert FIGURE.search(text)


def listen(calls, folder):
    """Call commands in a process of their own at level info; return all that was written.

    Returns:
        What was written past Python; then by call its exit code, and the pieces that were written
        to either stream, each with the package that wrote it.
    """
    file = folder / "answers.json"
    arguments = [sys.executable, "-c", LISTENER, json.dumps(calls), str(file)]
    environment = {**os.environ, "INTARSIA_LOG": "info", "COLUMNS": str(NARROW)}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, json.loads(file.read_text(encoding="utf-8"))


def check_ours(calls, folder):
    """Call commands; whatever they write has been written by us."""
    past, answers = listen(calls, folder)
    assert past == ""
    for call, (code, *streams) in zip(calls, answers, strict=True):
        written = "".join(text for stream in streams for _, text in stream)
        assert code in (0, 1), written
        assert {owner for stream in streams for owner, _ in stream} <= {"intarsia"}, (call, written)


@pytest.mark.exhaustive
def test_every_line_of_every_command_is_ours(desk):
    calls = [
        [*command.split(), *arguments]
        for command, ways in INVOCATIONS.items()
        for arguments in ways
        if command not in ("demo", "cache clear") and "KEY" not in arguments
    ]
    check_ours(calls, Path.cwd())


@pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=() if t in SHORT else pytest.mark.exhaustive) for t in TARGETS],
)
def test_every_line_is_ours_whatever_the_backend_thinks_of_a_model(target, folder):
    if "opencl" in target:
        first_device()
    onnx.save(onnx.parser.parse_model(UNTIDY), folder / "untidy.onnx")
    where = ["-t", target, "--threads", "2"]
    calls = [
        ["compile", "untidy.onnx", *where, "-o", "untidy.intarsia"],
        ["run", "untidy.intarsia"],
        ["check", "untidy.intarsia"],
        ["explain", "untidy.intarsia", "--all"],
        ["bench", "untidy.onnx", *where, "--against", "onnxruntime", "--rounds", "1"],
    ]
    check_ours(calls, folder)


def test_a_line_of_somebody_else_is_seen(folder, model, monkeypatch):
    plugin = folder / "sitecustomize.py"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for code, seen in (
        ("import os, atexit; atexit.register(os.write, 2, b'native')", "native"),
        ("import logging; logging.getLogger('onnx').warning('python')", "python"),
    ):
        plugin.write_text(f"import intarsia.cli.program\n{code}\n")
        past, answers = listen([["target", "detect"]], folder)
        assert seen in past + json.dumps(answers)
