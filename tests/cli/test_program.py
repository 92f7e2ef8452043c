# SPDX-License-Identifier: Apache-2.0
"""The program as a whole: usage, errors, exit codes, streams."""

import json
import os
import subprocess
import sys
import warnings

import pytest

from intarsia.cli import run as run_module
from intarsia.errors import ExecutionError

COMMANDS = ["compile", "run", "explain", "target", "demo"]


def test_version_is_that_of_the_package(call):
    answer = call("--version")
    assert answer.code == 0
    assert answer.out.startswith("intarsia 0.")


def test_help_lists_every_command(call):
    answer = call("--help")
    assert answer.code == 0
    assert all(command in answer.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call, command):
    answer = call(command, "--help")
    assert answer.code == 0
    assert "Usage" in answer.out


def test_a_bare_command_prints_help(call):
    answer = call()
    assert answer.code == 2
    assert "compile" in answer.out + answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--nonsense"], "No such option: --nonsense"),
        (["nonsense"], "No such command 'nonsense'"),
        (["compile"], "Missing argument 'MODEL'"),
        (["compile", "m.onnx", "--threads", "two"], "--threads"),
    ],
)
def test_a_usage_error_is_one_message(call, arguments, message):
    answer = call(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    first, last = answer.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert last.startswith("hint: see intarsia")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(["run", "none.onnx"], "ModelError"), (["run", "--nonsense"], "UsageError")],
)
def test_an_error_is_data_too_if_json_is_asked_for(call, folder, arguments, kind):
    answer = call(*arguments, "--json")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    error = answer.json["error"]
    assert error["type"] == kind
    assert error["message"] in answer.err
    assert set(error) == {"type", "message", "node", "target", "hint"}


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_failing_backend_exits_with_3(call, monkeypatch):
    error = ExecutionError("region 0 failed", node="conv", target="fake", hint="exclude it")
    monkeypatch.setattr(run_module, "open_executable", failing(error))
    answer = call("run", "x.intarsia", "--json")
    assert answer.code == 3
    assert answer.err == "error: region 0 failed\nhint: exclude it\n"
    assert answer.json["error"]["node"] == "conv"


def test_our_own_bug_exits_with_4(call, monkeypatch):
    monkeypatch.setattr(run_module, "open_executable", failing(KeyError("gone")))
    answer = call("run", "x.intarsia")
    assert answer.code == 4
    assert answer.err.startswith("internal error: KeyError: 'gone'\nhint: set INTARSIA_DEBUG=1")


def test_debugging_shows_the_traceback_of_our_own_bug(capsys, monkeypatch):
    from intarsia.__main__ import main

    monkeypatch.setenv("INTARSIA_DEBUG", "1")
    monkeypatch.setattr(run_module, "open_executable", failing(KeyError("gone")))
    assert main(["run", "x.intarsia"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(call, monkeypatch):
    monkeypatch.setattr(run_module, "open_executable", failing(KeyboardInterrupt()))
    assert call("run", "x.intarsia") == (130, "", "interrupted\n")


def test_a_wrong_setting_is_named(call, monkeypatch):
    monkeypatch.setenv("INTARSIA_NUM_THREADS", "many")
    answer = call("target", "list")
    assert answer.code == 2
    assert "INTARSIA_NUM_THREADS='many'" in answer.err


def test_a_python_warning_is_one_line(call, monkeypatch):
    def warn(*_, **__):
        warnings.simplefilter("always")
        warnings.warn("this is deprecated", UserWarning, stacklevel=1)
        raise ExecutionError("and it failed")

    monkeypatch.setattr(run_module, "open_executable", warn)
    assert call("run", "x.intarsia").err == "warning: this is deprecated\nerror: and it failed\n"


def test_a_reader_that_goes_away_ends_the_program_quietly():
    command = [sys.executable, "-m", "intarsia", "target", "list", "--all"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize("call", [["--help"], ["run", "--help"], ["target"], []])
def test_help_that_nobody_reads_to_its_end_ends_quietly(call):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "intarsia", *call]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_module_runs_as_a_program():
    command = [sys.executable, "-m", "intarsia", "target", "detect", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["config"]["targets"]


def test_help_needs_no_heavy_module():
    code = (
        "import sys; from intarsia.__main__ import main; main(['--version']); "
        "heavy = [n for n in ('numpy', 'onnx', 'onnx_ir', 'msgspec') if n in sys.modules]; "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bench_says_at_once_that_a_placement_is_unknown(call, model):
    answer = call("bench", model, "--placement", "best")
    assert answer.code == 2
    assert "placement 'best' is unknown" in answer.err
