# SPDX-License-Identifier: Apache-2.0
"""What people try first and cannot have: each message names the way out, before any work."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import intarsia
from intarsia import free_models
from intarsia.bench.compare import call_worker
from intarsia.cli import demo
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    InputError,
    ModelError,
    PackageError,
    SettingError,
)
from intarsia.plan.tuning import best_of

WRITERS = {
    "compile": ("compile", "chain.onnx", "-t", "onnxruntime", "-o"),
    "annotate": ("compile", "chain.onnx", "-t", "onnxruntime", "--annotate"),
    "emit": ("compile", "chain.onnx", "--emit", "c", "-o"),
    "tune": ("tune", "chain.onnx", "-t", "onnxruntime", "-o"),
    "lock": ("plan", "lock", "chain.intarsia", "-o"),
}


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fails where a model would be compiled: what cannot be written is known before."""

    def fail(*_, **__):
        pytest.fail("the model was compiled before the output was looked at")

    for name in ("compile", "tune"):
        monkeypatch.setattr(f"intarsia.compiler.{name}", fail)
    monkeypatch.setattr("intarsia.export.export_c", fail)


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        ("-", "nothing is written to standard output", "give the name of a file"),
        ("missing/out.bin", "there is no folder 'missing'", "mkdir -p missing"),
        ("taken/out.bin", "cannot write 'taken/out", "choose a writable folder"),
        ("folder", "it is a folder", "give folder/NAME"),
        ("pipe", "it is not a regular file", "give the name of a file"),
        ("chain.onnx", "is the model itself", "give another name"),
        ("linked.onnx", "is the model itself", "give another name"),
    ],
)
def test_an_output_is_looked_at_before_the_work(
    call, folder, package, nothing_runs, command, file, message, hint
):
    del package, nothing_runs
    if command == "emit" and file in ("missing/out.bin", "folder"):
        pytest.skip("--emit writes into a folder, and makes it")
    if command == "annotate" and file == "missing/out.bin":
        pytest.skip("--annotate makes the folder")
    if file.endswith(".onnx") and command not in ("compile", "tune"):
        pytest.skip("it may annotate the model in place, and makes nothing else of one")
    if command == "emit" and file == "pipe":
        pytest.skip("--emit writes into a folder")
    (folder / "taken").write_text("a file, no folder")
    (folder / "linked.onnx").symlink_to("chain.onnx")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    answer = call(*WRITERS[command], file)
    assert answer.code == 2
    assert message in answer.err or (command == "emit" and "cannot write" in answer.err)
    assert hint in answer.err
    assert not (folder / "-").exists()


@pytest.mark.parametrize(
    ("file", "kind"), [("x.so", "shared"), ("x.o", "object"), ("x.c", "c"), ("x.ptx", "ptx")]
)
def test_a_package_is_not_written_where_a_program_is_meant(call, nothing_runs, file, kind):
    del nothing_runs
    answer = call("compile", "chain.onnx", "-t", "onnxruntime", "-o", file)
    assert answer.code == 2
    assert f"--emit {kind} -o FOLDER" in answer.err
    assert "x.intarsia" in answer.err


def test_a_runtime_alone_is_completed_by_what_every_installation_has(call, model):
    answer = call("compile", model, "-t", "openvino")
    assert answer.code == 2
    assert 'add a fallback at the end: ", llvm"' in answer.err


WRITING = {
    "package": ("compile", "chain.onnx", "-t", "onnxruntime", "-o", "out"),
    "annotated": ("compile", "chain.onnx", "-t", "onnxruntime", "--annotate", "out.onnx"),
    "report": ("explain", "chain.onnx", "-t", "onnxruntime", "--html", "out.html"),
    "outputs": ("run", "chain.onnx", "-t", "onnxruntime", "--output", "y=out.npy"),
    "trace": ("run", "chain.onnx", "-t", "onnxruntime", "--trace", "out.json"),
}


@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_says_so_and_leaves_nothing(call, folder, model, command, monkeypatch):
    del model
    replaced = Path.replace

    def full(self, target):
        if str(target).rpartition("/")[2].startswith("out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", full)
    answer = call(*WRITING[command])
    assert answer.code == 2
    assert "No space left on device" in answer.err
    assert "hint: make space on that disk" in answer.err
    assert not list(folder.glob("out*"))


def test_the_outputs_of_a_run_are_looked_at_before_it(call, folder, package, array):
    del array
    (folder / "taken").write_text("a file, no folder")
    for options in (("--output", "y=-"), ("--output", "y=taken/y.npy"), ("--output-dir", "taken")):
        answer = call("run", package, "--input", "x=x.npy", *options)
        assert answer.code == 2
        assert "hint: " in answer.err


@pytest.mark.parametrize("command", ["compile", "tune", "run", "explain", "check", "bench"])
def test_standard_input_is_a_clear_no(call, command):
    answer = call(command, "-")
    assert answer.code == 2
    assert "a model cannot be read from standard input" in answer.err
    assert "cat > model.onnx" in answer.err


@pytest.mark.parametrize("command", ["compile", "run"])
def test_a_pipe_is_a_clear_no(call, folder, command):
    os.mkfifo(folder / "pipe")
    answer = call(command, "pipe")
    assert answer.code == 2
    assert "a model cannot be read from a pipe" in answer.err
    assert "cat > model.onnx" in answer.err


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("CPU", "write llvm"),
        ("auto", "leave the target out"),
        ("GPU", "write opencl"),
        ("CPUExecutionProvider", "write onnxruntime"),
    ],
)
def test_other_programs_names_of_machines_lead_to_ours(call, model, target, hint):
    answer = call("compile", model, "-t", target)
    assert answer.code == 2
    assert hint in answer.err
    assert len(answer.err) < 400  # no catalogue of kinds


def test_an_unknown_option_names_the_help(call, model):
    answer = call("compile", model, "--bogus")
    assert answer.code == 2
    assert "see intarsia compile --help" in answer.err


def test_loading_a_model_says_that_compile_takes_it(folder, model):
    with pytest.raises(PackageError, match="is a model, not a package") as caught:
        intarsia.load(model)
    assert "compile" in caught.value.hint


def test_compiling_a_package_says_what_opens_it(call, package):
    for command in ("compile", "tune", "bench"):
        answer = (
            call(command, package, "-o", "x.intarsia")
            if command != "bench"
            else call(command, package)
        )
        assert answer.code == 2
        assert "is an archive, not an ONNX model" in answer.err
        assert "`load` or `intarsia run`" in answer.err
    with pytest.raises(ModelError, match="is an archive"):
        intarsia.compile(package)


def test_a_program_of_torch_names_what_is_inside(chain_model):
    class ONNXProgram:
        model_proto = chain_model

    with pytest.raises(ModelError, match="ONNXProgram is not a model") as caught:
        intarsia.compile(ONNXProgram())
    assert caught.value.hint == "give its .model_proto"


class Tensor:
    """Behaves like one of torch: DLPack, and `detach`."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def contiguous(self):
        return self


def test_inputs_that_are_none_or_tensors_name_what_to_pass(chain_model, backends):
    exe = intarsia.compile(chain_model, "onnxruntime", backends=backends)
    x = np.ones((2, 4), np.float32)
    for run in (lambda: exe.run({"x": None}), lambda: exe(None)):
        with pytest.raises(InputError, match="'x' is None") as caught:
            run()
        assert "float32[2,4]" in caught.value.hint
    with pytest.raises(InputError, match="cannot be bound in place") as caught:
        exe.bind({"x": Tensor(np.asfortranarray(x))}, {})
    assert ".contiguous()" in caught.value.hint
    assert exe.run({"x": Tensor(x)})["y"].shape == (2, 4)  # copied, it may be what it likes


def test_an_onnx_file_is_still_compiled_whatever_it_is_called(folder, chain_model, call):
    onnx.save(chain_model, folder / "chain.model")
    assert call("compile", "chain.model", "-t", "onnxruntime").code == 0


def test_a_session_names_its_own_word_for_targets(chain_model):
    with pytest.raises(SettingError, match="no argument `target`") as caught:
        intarsia.InferenceSession(chain_model.SerializeToString(), target="reference")
    assert "targets=" in caught.value.hint


@pytest.mark.parametrize("budget", ["ten", "10s", None])
def test_a_budget_that_is_no_number_is_one_error(chain_model, budget):
    with pytest.raises(SettingError, match="not a number of seconds") as caught:
        intarsia.tune(chain_model, "reference", budget=budget)
    assert "budget=120" in caught.value.hint


def test_a_size_of_another_form_shows_the_form(chain_model):
    name = chain_model.graph.input[0].name
    with pytest.raises(ModelError, match=f"'2x8' is no size of '{name}'") as caught:
        intarsia.compile(chain_model, "reference", shapes={name: "2x8"})
    assert "(1, 3)" in caught.value.hint


def test_a_package_that_is_cut_or_missing_says_what_to_do(package, call, folder):
    (folder / "cut.intarsia").write_bytes(Path(package).read_bytes()[:5000])
    for name, hint in (("cut.intarsia", "get the file again"), ("no.intarsia", "check the path")):
        answer = call("explain", name)
        assert answer.code == 2
        assert f"hint: {hint}" in answer.err


def test_one_plan_is_not_the_best_of_several():
    assert best_of(1) == "the only plan that was run"
    assert best_of(2) == "the best of 2 plans that were run"


def test_a_peer_that_is_missing_says_so_in_its_own_words():
    outcome = SimpleNamespace(
        is_ok=False, error_type="BackendError", reason="", message="it is not here", hint="get it"
    )
    workers = {"other": SimpleNamespace(call=lambda *_, **__: outcome)}
    with pytest.raises(BackendError) as caught:
        call_worker(workers, "other", "set_up_peer")
    assert (caught.value.message, caught.value.hint) == ("other: it is not here", "get it")


def test_the_demo_names_all_that_it_needs_before_it_starts(call, folder, monkeypatch):
    def version():
        raise BackendError("OpenVINO is not here", hint="pip install 'intarsia[openvino]'")

    there = SimpleNamespace(version=lambda: "1")
    here = {"onnxruntime": there, "openvino": SimpleNamespace(version=version)}
    monkeypatch.setattr(demo, "installed_backends", lambda: SimpleNamespace(by_name=here))
    answer = call("demo")
    assert answer.code == 3
    assert answer.err == "error: OpenVINO is not here\nhint: pip install 'intarsia[all]'\n"


def test_an_attribute_outside_of_the_quotes_of_its_target_is_told(call, model):
    answer = call("compile", model, "-t", "llvm", "-mtriple=aarch64-linux-gnu")
    assert answer.code == 2
    assert 'hint: quote a target that has attributes: -t "llvm -mtriple=' in answer.err
    for written in (("-t", "cuda"), ("--target", "cuda"), ("--target=cuda",)):
        answer = call("compile", model, *written, "-mtriple=nvptx64")
        assert 'attributes: -t "cuda -mtriple=nvptx64"' in answer.err
    answer = call("compile", model, "-x")
    assert "hint: see intarsia compile --help" in answer.err


SHELL = "exec {python} -m intarsia {call}"


def in_a_shell(call, **options):
    line = SHELL.format(python=sys.executable, call=call)
    return subprocess.run(["sh", "-c", line], text=True, check=False, **options)


@pytest.mark.parametrize("command", ["--version", "--help", "compile --help"])
def test_a_full_standard_output_is_one_error(command):
    done = in_a_shell(f"{command} > /dev/full", stderr=subprocess.PIPE)
    assert done.returncode == 2
    message = "error: cannot write to standard output: No space left on device\n"
    assert done.stderr.startswith(message + "hint: ")


def test_an_error_that_nothing_takes_as_json_keeps_its_code():
    done = in_a_shell("explain nothing.onnx --json > /dev/full", stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "cannot write to standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_nobody_reads_as_json_keeps_its_code():
    reader, writer = os.pipe()
    os.close(reader)
    done = in_a_shell("explain nothing.onnx --json", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("streams", "code", "err"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("nowhere >&-", 2, "No such command"),
    ],
)
def test_closed_streams_lead_nowhere(streams, code, err):
    call = f"--version {streams}" if code == 0 else streams
    done = in_a_shell(call, capture_output=True)
    assert done.returncode == code
    assert err in done.stderr if err else done.stderr == ""


def nameless(folder, model):
    """Give a model a name of bytes that are no UTF-8, as files of other systems have."""
    name = os.fsdecode(b"m\xff.onnx")
    (folder / model).rename(folder / name)
    return name


def test_a_file_whose_name_is_no_text_is_compiled_run_and_explained(call, folder, model):
    name = nameless(folder, model)
    assert call("compile", name, "-t", "llvm", "-o", "out.intarsia").code == 0
    answer = call("run", name, "-t", "llvm", "--json")
    assert answer.code == 0
    assert answer.json["outputs"]
    assert call("explain", name, "-t", "llvm", "--html", "out.html").code == 0
    assert "m\\udcff.onnx" in (folder / "out.html").read_text(encoding="utf-8")


def test_a_file_whose_name_is_no_text_is_named_with_escapes(folder, model):
    command = [sys.executable, "-m", "intarsia", "compile", nameless(folder, model), "-t", "llvm"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, env=strict, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"m\udcff" in done.stdout


def test_a_file_whose_name_is_no_text_is_one_error_where_another_process_opens_it(
    call, folder, model, own_cache
):
    del own_cache
    answer = call("bench", nameless(folder, model), "-t", "llvm", "--rounds", "2")
    assert answer.code == 2
    assert r"'m\udcff.onnx' is not Unicode text" in answer.err
    assert "hint: rename that file in UTF-8" in answer.err


def test_a_cache_folder_that_may_not_be_looked_into_is_one_line(call, model, monkeypatch):
    looked = Path.stat

    def refuse(self, **options):
        if self.name == "costs.sqlite":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return looked(self, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    answer = call("explain", model, "-t", "llvm, onnxruntime")
    assert answer.code == 0
    assert answer.err.count("costs.sqlite' cannot be seen: Permission denied") == 1
    answer = call("tune", model, "-t", "llvm, onnxruntime", "--budget", "1s")
    assert answer.code == 2
    assert "hint: set INTARSIA_CACHE_DIR to a folder of yours" in answer.err


def test_costs_out_of_reach_are_a_warning_where_free_sizes_look_for_plans(monkeypatch, caplog):
    free = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)'
        " { y = Softmax (x) }"
    )
    program = intarsia.compile(free, "llvm, onnxruntime", num_threads=1)

    def refuse(*_):
        raise CostDatabaseError("it cannot be seen")

    monkeypatch.setattr(free_models, "has_database", refuse)
    assert program._source.plans() is None
    assert program._source.plans() is None
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings == ["the costs cannot be read, so placement is greedy: it cannot be seen"]


def test_a_cache_folder_that_is_a_file_is_said_once(call, folder, model, monkeypatch):
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder / "file"))
    answer = call("compile", model, "-t", "llvm")
    assert answer.code == 0
    assert "schedules" not in answer.err


@pytest.fixture
def newest_model(folder, parse_model):
    """`newest.onnx`, whose IR version ONNX Runtime does not know."""
    proto = parse_model("newest (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    proto.ir_version = onnx.IR_VERSION
    onnx.save(proto, folder / "newest.onnx")
    return "newest.onnx"


def test_a_file_newer_than_a_runtime_runs_on_it(call, newest_model):
    answer = call("compile", newest_model, "-t", "onnxruntime")
    assert (answer.code, answer.err) == (0, "")
    assert "1 on onnxruntime" in answer.out
    assert call("run", "newest.intarsia").code == 0


def test_a_file_newer_than_the_runtime_beside_says_what_to_do(newest_model, backends):
    with pytest.raises(BackendError, match="Unsupported model IR version") as caught:
        backends.by_name["onnxruntime"].baseline(newest_model, {}, 1)
    assert caught.value.hint.startswith("the model is newer than this release")


def test_what_folding_cannot_compute_is_logged_for_debugging_alone(parse_model, caplog, capfd):
    model = parse_model("""
        fails (float[2] x) => (float[2] y)
        <int64[3] table = {1, 2, 3}, int64[1] index = {7}> {
            i = Gather(table, index)
            f = Cast<to = 1>(i)
            y = Add(x, f)
        }
    """)
    with caplog.at_level(logging.DEBUG, "intarsia"):
        intarsia.compile(model, "reference")
    found = [record for record in caplog.records if "Evaluation failed" in record.getMessage()]
    assert {(record.name, record.levelname) for record in found} == {
        ("intarsia.passes.folding", "DEBUG")
    }
    assert "Evaluation failed" not in capfd.readouterr().err
