# SPDX-License-Identifier: Apache-2.0
"""`intarsia doctor` says what works, what does not, and what to do about what does not."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from intarsia.backends import registry
from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.fake import BACKEND as FAKE
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection
from intarsia.cache import make_cache_folder
from intarsia.errors import BackendError
from intarsia.report.health import (
    ThreadFacts,
    backend_health,
    diagnose,
    platform_problems,
    thread_problems,
)
from intarsia.settings import Settings

UNUSED = dict.fromkeys(("rules", "check", "estimate", "compile", "open", "load"))


def make_backend(error, name="onnxruntime"):
    """Return a backend whose runtime does not load."""

    def version():
        raise error

    return RegisteredBackend.of(
        SimpleNamespace(
            name=name,
            kinds=("onnxruntime",),
            version=version,
            detect=lambda: Detection(reason=str(error)),
            **UNUSED,
        )
    )


def caused(message, cause, hint=None):
    error = BackendError(message, hint=hint)
    error.__cause__ = cause
    return error


def test_it_lists_backends_versions_threads_settings_and_caches(call, own_cache, monkeypatch):
    monkeypatch.setenv("INTARSIA_NUM_THREADS", "1")
    answer = call("doctor", "--json")
    assert answer.code == 0
    found = answer.json
    usable = {row["name"]: row["is_usable"] for row in found["backends"]}
    assert usable["onnxruntime"]
    assert usable["reference"]
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(found["versions"].values())
    assert found["threads"]["used"] == 1
    settings = {row["name"]: row for row in found["settings"]}
    assert settings["num_threads"]["source"] == "INTARSIA_NUM_THREADS"
    assert settings["debug"]["source"] == "default"
    assert found["cache"]["folder"] == str(own_cache)
    kept = {path.name for path in own_cache.iterdir()}
    assert kept <= {"CACHEDIR.TAG", "installed", "selftests", "pocl"}  # nothing else is changed


def test_what_is_printed_names_the_backends_and_the_settings(call, folder):
    answer = call("doctor")
    assert answer.code == 0
    for word in ("onnxruntime", "openvino", "INTARSIA_CACHE_DIR", "threads", "cpu"):
        assert word in answer.out


def test_without_a_complete_backend_the_answer_is_no(call, folder, monkeypatch):
    broken = collect([make_backend(BackendError("it is not there", hint="pip install it"))])
    monkeypatch.setattr(registry, "load_backends", lambda settings: broken)
    answer = call("doctor")
    assert answer.code == 1
    assert "it is not there" in answer.out
    assert "pip install it" in answer.out
    assert "intarsia[onnxruntime]" in answer.out


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    absent = ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")
    health = backend_health(make_backend(caused("gone", absent, "pip install 'x[onnxruntime]'")))
    assert not health.is_usable
    assert health.missing == "package onnxruntime"
    assert health.fix == "pip install 'x[onnxruntime]'"


def test_a_missing_library_is_named():
    absent = ImportError("libtbb.so.12: cannot open shared object file: No such file or directory")
    health = backend_health(make_backend(caused("gone", absent, "pip install it")))
    assert health.missing == "library libtbb.so.12"
    assert "libtbb.so.12" in health.fix


def test_a_missing_file_is_named():
    absent = FileNotFoundError(2, "No such file", "/opt/plugins.xml")
    assert backend_health(make_backend(caused("gone", absent))).missing == "file /opt/plugins.xml"


def test_a_plug_ins_exception_is_an_answer():
    health = backend_health(make_backend(ZeroDivisionError("oops")))
    assert (health.is_usable, health.reason) == (False, "oops")
    assert health.fix


def test_a_plug_in_that_does_not_load_is_a_problem_with_a_fix():
    backends = collect([], {"mine": "ModuleNotFoundError: No module named 'pet_runtime'"})
    found = diagnose(backends, Settings())
    assert not found.is_usable
    (row,) = found.backends
    assert row.missing == "package pet_runtime"
    assert any("mine" in item.problem and item.fix for item in found.problems)


@pytest.mark.parametrize(
    ("threads", "fix"),
    [
        (ThreadFacts(2, None, None, 4, 4), "unset INTARSIA_NUM_THREADS"),
        (ThreadFacts(8, 2.5, None, 0, 8), "INTARSIA_NUM_THREADS=2"),
        (ThreadFacts(8, None, "3", 0, 8), "INTARSIA_NUM_THREADS=3"),
    ],
)
def test_threads_that_fight_for_cpus_are_a_problem(threads, fix):
    (problem,) = thread_problems(threads)
    assert fix in problem.fix


def test_threads_that_fit_are_none():
    assert list(thread_problems(ThreadFacts(2, 2.0, "2", 0, 2))) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (("Darwin", "arm64", "3.11.4"), ["untested platform: macOS"]),
        (("Windows", "AMD64", "3.11.4"), ["untested platform: Windows"]),
        (("Linux", "aarch64", "3.11.4"), ["untested platform: Linux on aarch64"]),
        (("Linux", "x86_64", "3.13.0"), ["untested version of Python: 3.13"]),
        (("Linux", "x86_64", "3.11.7"), []),
    ],
)
def test_what_no_test_covers_is_said(facts, words):
    problems = list(platform_problems(*facts))
    assert [item.problem for item in problems] == words
    assert all(item.fix for item in problems)


@contextlib.contextmanager
def read_only(place):
    """Make a folder one of a medium that nobody can write to; root cannot either."""
    if os.geteuid() != 0:
        place.chmod(0o500)
        yield
        place.chmod(0o700)
        return
    bind = ["mount", "--bind", str(place), str(place)]
    if shutil.which("mount") is None or subprocess.run(bind, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(params=["below a file", "in proc", "not ours", "nowhere", "read-only"])
def unwritable(request, folder):
    """A cache folder that cannot be written, by anybody: as root permissions say nothing."""
    place = folder / "place"
    if request.param == "below a file":
        place.write_text("a file")
        yield place / "cache"
    elif request.param == "in proc":
        if sys.platform != "linux":
            pytest.skip("there is no /proc here")
        yield Path("/proc/intarsia")
    elif request.param == "nowhere":
        place.symlink_to(folder / "gone" / "away")
        yield place
    elif request.param == "not ours":
        place.mkdir()
        (place / "thesis.txt").write_text("of somebody else")
        yield place
    else:
        make_cache_folder(place)
        with read_only(place):
            yield place


def test_a_cache_folder_that_cannot_be_written_is_a_problem(
    unwritable, call, chain_model, monkeypatch
):
    before = sorted(unwritable.rglob("*")) if unwritable.is_dir() else None
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(unwritable))
    monkeypatch.setattr(registry, "load_backends", lambda settings: collect([FAKE]))
    found = call("doctor", "--json").json
    assert not found["cache"]["is_writable"]
    (problem,) = [row for row in found["problems"] if "cache folder" in row["problem"]]
    assert found["cache"]["obstacle"] in problem["problem"]
    assert "INTARSIA_CACHE_DIR" in problem["fix"]
    assert "not writable" in call("doctor").out
    assert not call("cache", "info", "--json").json["is_writable"]
    assert (sorted(unwritable.rglob("*")) if unwritable.is_dir() else None) == before


def test_without_a_cache_a_model_still_runs(unwritable, call, chain_model, monkeypatch):
    onnx.save(chain_model, "chain.onnx")
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(unwritable))
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    answer = call("run", "chain.onnx", "-t", "llvm, reference")
    assert answer.code == 0, answer.err


def test_looking_at_a_folder_leaves_nothing_in_it(call, folder, monkeypatch):
    made = make_cache_folder(folder / "cache")
    (made / "programs").mkdir()
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(made))
    monkeypatch.setattr(registry, "load_backends", lambda settings: collect([FAKE]))
    found = call("doctor", "--json").json
    assert found["cache"]["is_writable"]
    assert not any("cache folder" in row["problem"] for row in found["problems"])
    assert sorted(path.name for path in made.rglob("*")) == ["CACHEDIR.TAG", "programs"]
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder / "not" / "yet"))
    assert call("cache", "info", "--json").json["is_writable"]
    assert not (folder / "not").exists()
