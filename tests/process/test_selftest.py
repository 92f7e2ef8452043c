# SPDX-License-Identifier: Apache-2.0
"""What takes its process takes a process of its own only; the verdict is given once."""

import os
import sys
from importlib.metadata import EntryPoint

import pytest

from intarsia.errors import BackendError
from intarsia.process import selftest
from intarsia.process.selftest import (
    SelfTest,
    file_facts,
    judge,
    package_facts,
    require,
    require_plugin,
)

SOURCE = """
import atexit, os, sys, time

def fine(text):
    with open(text, "a") as file:
        file.write("x")
    yield {"seen": text}

def abort(_):
    yield "before"
    print("the last words", file=sys.stderr, flush=True)
    os.abort()

def abort_later(_):
    atexit.register(os.abort)

def leave(_):
    os._exit(7)

def leave_as_if_well(_):
    os._exit(0)

def hang(_):
    yield "before"
    while True:
        time.sleep(60)

def fail(_):
    raise ValueError("wrong number")
"""


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make(tmp_path, caches, monkeypatch):
    """A function from the name of a function of `SOURCE` to its self-test, with own caches."""
    monkeypatch.setattr(selftest, "_known", {})
    (tmp_path / "tried.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name, **options: SelfTest(
        "a library", f"tried:{name}", (str(tmp_path / "runs"),), **options
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("abort", "it aborted (SIGABRT): the last words"),
        ("abort_later", "it aborted on leaving the process (SIGABRT)"),
        ("leave", "it ended the process with exit code 7"),
        ("leave_as_if_well", "it ended the process with exit code 0"),
        ("fail", "ValueError: wrong number"),
    ],
)
def test_the_verdict_says_how_it_failed(make, name, problem, caches):
    verdict = judge(make(name), caches)
    assert verdict.problem == problem
    assert verdict.values == (("before",) if name == "abort" else ())
    with pytest.raises(BackendError, match=r"a library does not pass its self-test") as caught:
        require(make(name), "mine", "install another", caches)
    assert caught.value.hint == "install another; `intarsia cache clear` forgets the verdict"
    assert caught.value.backend == "mine"


def test_what_hangs_is_ended(make, monkeypatch, caches):
    monkeypatch.setattr(selftest, "_SECONDS", 2.0)
    assert judge(make("hang"), caches).problem == "it hung: no answer within 2 s"


def test_a_verdict_is_given_once_for_all_processes(make, tmp_path, monkeypatch, caches):
    runs = tmp_path / "runs"
    for _ in range(2):
        assert judge(make("fine"), caches) == selftest.SelfTestVerdict("", ({"seen": str(runs)},))
        monkeypatch.setattr(selftest, "_known", {})  # as in another process
    assert runs.read_text() == "x"
    judge(make("fine", identity=("version 2",)), caches)
    assert runs.read_text() == "xx"


def test_where_no_process_may_be_started_nothing_is_held_against_a_library(
    make, monkeypatch, caches
):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert judge(make("abort"), caches) == selftest.SelfTestVerdict()


def test_a_damaged_verdict_is_given_anew(make, tmp_path, monkeypatch, caches):
    judge(make("fine"), caches)
    (entry,) = (tmp_path / "cache" / "selftests").iterdir()
    entry.write_bytes(b'{"problem": ')
    monkeypatch.setattr(selftest, "_known", {})
    assert not judge(make("fine"), caches).problem
    assert (tmp_path / "runs").read_text() == "xx"


def test_it_is_tried_again_if_something_could_be_mended(make, tmp_path, caches):
    (tmp_path / "tried.py").write_text(
        SOURCE + "def once(path):\n    assert os.path.exists(path), 'poisoned'\n"
    )

    def mend():
        (tmp_path / "runs").touch()
        return True

    assert judge(make("once", mend=lambda: False), caches).problem == "AssertionError: poisoned"
    assert not judge(make("once", identity=("mended",), mend=mend), caches).problem


def test_files_that_change_have_other_facts(tmp_path):
    library = tmp_path / "lib.so"
    assert file_facts(library) == (f"{library} absent",)
    library.write_text("1")
    before = file_facts(library)
    os.utime(library, (1, 1))
    assert file_facts(library) != before
    assert package_facts("no_such_package", "*") == ()


PLUGIN = """
import os
from intarsia.backends.values import Detection, Rule
from intarsia.backends.reference import ReferenceBackend
from intarsia.target import Target

class PlugIn(ReferenceBackend):
    name = "plug-in"
    kinds = ("bnns",)

    def detect(self):
        return Detection((Target("bnns"),))

    def rules(self, context):
        return (Rule("all", lambda graph, context: {}),)
"""
BROKEN = {
    "import": "os.abort()",
    "compile": "    def compile(self, candidate, context):\n        os.abort()",
    "load": "    def load(self, artifact, device):\n        os.abort()",
    "own": "    def self_test(self):\n        raise ValueError('the driver is too old')",
}


@pytest.mark.parametrize("where", BROKEN)
def test_a_plugin_that_would_take_the_process_is_not_loaded(where, make, tmp_path, monkeypatch):
    module = f"broken_at_{where}"
    (tmp_path / f"{module}.py").write_text(f"{PLUGIN}\n{BROKEN[where]}\nBACKEND = PlugIn()\n")
    entry = EntryPoint("plug-in", f"{module}:BACKEND", "intarsia.backends")
    monkeypatch.setattr("intarsia.backends.registry.list_entries", lambda settings: [entry])
    from intarsia.backends.registry import load_backends
    from intarsia.settings import Settings

    found = load_backends(Settings.from_environment())
    assert not found.by_name
    said = "the driver is too old" if where == "own" else "it aborted (SIGABRT)"
    assert "the plug-in 'plug-in' does not pass its self-test" in found.broken["plug-in"]
    assert said in found.broken["plug-in"]
    assert module not in sys.modules


def test_a_plugin_that_works_is_loaded_and_one_that_raises_is_left_to_its_caller(make, tmp_path):
    works = f"{PLUGIN}\nBACKEND = PlugIn()\n"
    fails = "    def version(self):\n        raise OSError('no driver')"
    raises = f"{PLUGIN}\n{fails}\nBACKEND = PlugIn()\n"
    for name, source in (("works", works), ("raises", raises)):
        (tmp_path / f"plug_in_that_{name}.py").write_text(source)
        require_plugin(
            EntryPoint(name, f"plug_in_that_{name}:BACKEND", "intarsia.backends"),
            tmp_path / "cache",
        )


def test_what_lies_in_the_current_folder_is_not_imported(make, tmp_path, monkeypatch, caches):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("platform", "signal", "tried", "numpy"):
        (here / f"{name}.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert not judge(make("fine"), caches).problem


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"])
def test_what_is_ended_from_outside_is_tried_again(name, make, tmp_path, monkeypatch, caches):
    body = f"    os.path.exists(path) or os.kill(os.getpid(), signal.{name})\n"
    if name != "SIGKILL":  # under `nohup` a trial is not ended by SIGHUP either, as its user wishes
        body = f"    signal.signal(signal.{name}, signal.SIG_DFL)\n{body}"
    source = f"import signal\ndef ended(path):\n{body}"
    (tmp_path / "tried.py").write_text(SOURCE + source)
    assert judge(make("ended"), caches).problem == f"it aborted ({name})"
    monkeypatch.setattr(selftest, "_known", {})  # as in another process
    (tmp_path / "runs").touch()
    assert not judge(make("ended"), caches).problem


def test_a_process_that_ends_before_the_trial_says_nothing_of_a_library(make, monkeypatch, caches):
    monkeypatch.setattr(selftest, "fresh_python", lambda *_: [sys.executable, "-c", "1 / 0"])
    assert judge(make("abort"), caches) == selftest.SelfTestVerdict()
