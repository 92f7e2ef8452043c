# SPDX-License-Identifier: Apache-2.0
"""A driver that aborts, hangs or lies takes nobody, on any CPU: the tests bring one of their own.

Their driver is `broken_driver.c`; nothing here needs an OpenCL that works.
"""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from tests.c_compiler import compile_c

from intarsia.backends.opencl import pocl, vendors
from intarsia.process import selftest
from intarsia.settings import Settings


def judge(library):
    """What the driver's self-test finds, kept where the environment has the caches."""
    return vendors.judge_vendor(library, Settings.from_environment().cache_folder())


pytestmark = pytest.mark.skipif(
    find_spec("pyopencl") is None or sys.platform != "linux", reason="no pyopencl for Linux"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The driver, compiled."""
    made = tmp_path_factory.mktemp("driver") / "libbroken.so"
    source = f"{os.path.dirname(__file__)}/broken_driver.c"  # noqa: PTH120
    compile_c("-std=gnu99", "-Wall", "-Wextra", "-shared", "-fPIC", source, "-o", made)
    return made


@pytest.fixture
def broken(library, own_cache, monkeypatch):
    """A function that breaks the driver, which is the only one there is."""
    monkeypatch.setenv("OCL_ICD_VENDORS", str(library))
    monkeypatch.setattr(selftest, "_known", {})

    def break_(where, how):
        monkeypatch.setenv("BROKEN_AT", where)
        monkeypatch.setenv("BROKEN_HOW", how)
        return str(library)

    return break_


@pytest.mark.parametrize(
    ("where", "how", "problem"),
    [
        ("load", "abort", "it aborted (SIGABRT)"),
        ("build", "abort", "it aborted (SIGABRT)"),
        ("build", "error", "opencl:0 does not build"),
        ("run", "abort", "it aborted (SIGABRT)"),
        ("run", "error", "failed: OUT_OF_RESOURCES"),
        ("run", "lie", "elements are wrong"),
        ("exit", "abort", "it aborted on leaving the process (SIGABRT)"),
    ],
)
def test_a_device_of_a_broken_driver_is_not_offered(broken, where, how, problem):
    vendor = judge(broken(where, how))
    assert vendor.passed == ()
    ((name, said),) = vendor.failed
    assert problem in said
    is_named = where in ("build", "run")
    assert name == ("broken device (Broken Platform, 2 units)" if is_named else "libbroken.so")


def test_a_driver_that_hangs_is_not_waited_for(broken, monkeypatch):
    monkeypatch.setattr(selftest, "_SECONDS", 3.0)
    ((_, said),) = judge(broken("load", "hang")).failed
    assert said.startswith("it hung")


@pytest.fixture
def patient_to_the_mark(tmp_path, monkeypatch):
    """A trial has half a second from where the driver hangs; if it does not, as long as ever."""
    mark = tmp_path / "hangs"
    monkeypatch.setenv("BROKEN_MARK", str(mark))
    wait, seconds = selftest._wait, selftest._SECONDS

    def wait_from_the_mark(process, request):
        process.stdin.write(request)
        process.stdin.close()
        process.stdin = None
        until = time.monotonic() + seconds
        while not mark.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.setattr(selftest, "_SECONDS", 0.5 if mark.exists() else seconds)
        mark.unlink(missing_ok=True)
        return wait(process, b"")

    monkeypatch.setattr(selftest, "_wait", wait_from_the_mark)


@pytest.mark.parametrize(("where", "is_named"), [("build", True), ("run", True), ("exit", False)])
def test_a_device_that_hangs_is_named(broken, where, is_named, patient_to_the_mark):
    ((name, said),) = judge(broken(where, "hang")).failed
    assert name.startswith("broken device" if is_named else "libbroken.so")
    late = "" if is_named else " on leaving the process"
    assert said == f"it hung{late}: no answer within 0.5 s"


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "intarsia", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.exhaustive
def test_doctor_and_compile_say_why_and_what_would_help(broken, tmp_path):
    import onnx

    broken("run", "abort")
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = (row for row in found["backends"] if row["name"] == "opencl")
    assert not row["is_usable"]
    assert row["reason"] == (
        "no OpenCL device passes its self-test: broken device (Broken Platform, 2 units): "
        "it aborted (SIGABRT)"
    )
    assert row["fix"].startswith("pip install intel-opencl-rt")
    assert row["reason"] in " ".join(problem["problem"] for problem in found["problems"])
    text = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    onnx.save(model, tmp_path / "m.onnx")
    done = run(
        *(
            "compile",
            tmp_path / "m.onnx",
            "-t",
            "opencl, onnxruntime",
            "-o",
            tmp_path / "m.intarsia",
        )
    )
    assert done.returncode == 3
    assert "broken device (Broken Platform, 2 units): it aborted (SIGABRT)" in done.stderr
    assert "pip install intel-opencl-rt" in done.stderr


def test_drivers_that_are_named_are_the_only_ones(library, tmp_path, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", str(library))
    assert vendors.find_libraries() == (str(library),)
    folder = tmp_path / "vendors"
    folder.mkdir()
    (folder / "a.icd").write_text(f"{library}\n")
    (folder / "b.icd").write_text("/no/such/library.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(folder))
    assert vendors.find_libraries() == (str(library),)


def test_the_loader_is_shown_some_drivers_only(library, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")
    monkeypatch.setenv("OCL_ICD_FILENAMES", "/lib/liball.so")
    with vendors.visible([str(library)]) as shown:
        assert os.environ["OCL_ICD_VENDORS"] == shown["OCL_ICD_VENDORS"]
        assert list(vendors._named()) == [str(library)]
    assert os.environ["OCL_ICD_VENDORS"] == "/etc/OpenCL/vendors"
    assert os.environ["OCL_ICD_FILENAMES"] == "/lib/liball.so"


def make_program(folder, name, library, size=None):
    """Make what PoCL keeps of a program; its library is cut to a size."""
    kernel = folder / name[:2] / name / "kernel"
    kernel.mkdir(parents=True)
    (kernel.parent / "program.bc").write_bytes(b"BC")
    (kernel / "kernel.so").write_bytes(library.read_bytes()[:size])
    return kernel.parent


def age(program, seconds):
    for path in (program, *program.rglob("*")):
        status = path.stat()
        os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


def test_what_pocl_would_die_of_is_removed(library, tmp_path):
    sound = make_program(tmp_path, "AA1", library)
    poisoned = [make_program(tmp_path, f"BB{size}", library, size) for size in (0, 10, 200)]
    cut = make_program(tmp_path, "CC1", library)
    (cut / "program.bc").write_bytes(b"")
    for program in (*poisoned, cut):
        age(program, 60)
    being_written = make_program(tmp_path, "DD1", library, 0)
    pocl.tidy(tmp_path)
    assert sorted(tmp_path.glob("??/*")) == [sound, being_written]


def test_what_pocl_keeps_is_bounded_and_goes_by_age(library, tmp_path):
    programs = [make_program(tmp_path, f"AA{number}", library) for number in range(4)]
    for position, program in enumerate(programs):
        age(program, 1000 * position)
    kept = (programs[0], *programs[0].rglob("*"))
    pocl.tidy(tmp_path, limit_bytes=3 * sum(path.stat().st_size for path in kept))
    assert sorted(tmp_path.glob("??/*")) == programs[:2]


def test_pocl_uses_our_folder_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("POCL_CACHE_DIR", "/elsewhere")
    pocl.use_own_cache(tmp_path / "cache")
    assert os.environ["POCL_CACHE_DIR"] == "/elsewhere"
    monkeypatch.delenv("POCL_CACHE_DIR")
    pocl.use_own_cache(tmp_path / "cache")
    assert os.environ["POCL_CACHE_DIR"] == str(tmp_path / "cache" / "pocl")
    assert not pocl.empty(tmp_path / "cache")
    make_program(tmp_path / "cache" / "pocl", "AA1", tmp_path / "cache" / "CACHEDIR.TAG")
    assert pocl.empty(tmp_path / "cache")
