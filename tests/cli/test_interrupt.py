# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C is answered with a line and 130, however early it comes."""

import subprocess
import sys

import pytest

CODE = """
import sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupter())
from intarsia.__main__ import main
sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    "module", ["intarsia.cli.program", "logging", "typer", "msgspec", "intarsia.report.health"]
)
def test_an_interrupted_import_shows_no_traceback(module):
    """The first second of a command is imports: whichever is under way, as a signal would."""
    code = CODE.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_nothing_is_imported_before_it_is_answered():
    code = (
        "import sys; before = set(sys.modules); import intarsia.__main__; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) <= {"__future__", "intarsia", "intarsia.__main__"}


AT_WORK = """
import os, signal, sys

module, function = sys.argv[1].split(":")

def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name == function and frame.f_globals["__name__"] == module:
        sys.setprofile(None)
        os.killpg(os.getpgrp(), signal.SIGINT)

from intarsia.cli import demo
demo.NETWORK, demo.PINNED = "squeezenet", "fire3/*"
from intarsia.__main__ import main
sys.setprofile(watch)
sys.exit(main(sys.argv[2:]))
"""
"""Sends the signal to all processes of its group, as a terminal does, at a call of a function."""

WORK = {
    "compile": ("intarsia.place.build:build_program", "chain.onnx -t llvm -o out.bin"),
    "compile, writing": ("intarsia.runtime.archive:_pieces", "chain.onnx -t llvm -o out.bin"),
    "run": ("intarsia.measure.timing:time_runs", "chain.onnx -t llvm --repeat 3"),
    "bench": ("intarsia.process.workers:_wait", "chain.onnx -t llvm --rounds 3"),
    "quantize": (
        "intarsia.quantizing.accuracy:_open",
        "chain.onnx --dynamic --max-error 0.5 -o out.bin",
    ),
    "verify": ("intarsia.process.workers:_wait", "chain.onnx -t llvm"),
    "tune-kernels": ("intarsia.place.setting:_ask", "chain.onnx -t llvm --threads 1"),
    "demo": ("intarsia.place.build:build_program", ""),
}
"""By command, a function that it calls in the middle of its work, and its arguments."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WORK)
def test_a_command_that_is_interrupted_at_work_says_one_line_and_leaves_nothing(
    name, model, folder, own_cache
):
    del model
    point, arguments = WORK[name]
    call = [name.partition(",")[0], *arguments.split()]
    process = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, point, *call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, err = process.communicate()  # ends when no process of ours has its end of the pipes
    assert process.returncode == 130, err
    assert err.endswith("interrupted\n")
    assert err.count("interrupted") == 1
    assert "Traceback" not in err
    assert not list(folder.glob("out.bin*"))
    assert not list(own_cache.rglob("*.partial"))


@pytest.mark.exhaustive
def test_tuning_that_is_interrupted_ships_what_is_best_so_far_and_goes_on_later(
    model, call, own_cache
):
    del own_cache
    tune = ["tune", model, "-t", "llvm, onnxruntime", "--budget", "30s", "-o", "out.intarsia"]
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK, "intarsia.tuning.finalists:compare_plans", *tune],
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stdout + done.stderr
    assert call("check", "out.intarsia").code == 0
