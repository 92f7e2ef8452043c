# SPDX-License-Identifier: Apache-2.0
"""Compiling kernels in several processes: the same objects, whoever dies on the way."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from intarsia.errors import BackendError
from intarsia.native import compile_pool
from intarsia.native.compile_pool import CompilePool
from intarsia.native.machine import NativeCpu, compile_object, host_machine
from intarsia.native.objects import ObjectCache

HERE = host_machine()


def module(name: str, adds: int = 2000) -> str:
    """Return a module of a function that is long enough for a worker to pay."""
    lines = [f"define float @{name}(float %x, float %v0) {{"]
    lines += [f"  %v{i + 1} = fadd float %v{i}, %x" for i in range(adds)]
    return "\n".join((*lines, f"  ret float %v{adds}", "}", ""))


MODULES = {f"kernel{number}": module(f"kernel{number}", 2000 + number) for number in range(8)}


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes few modules worth a worker."""
    monkeypatch.setattr(compile_pool, "_WORTH", 128 << 10)


KeepBusy = Callable[[CompilePool], Event]


@pytest.fixture
def keep_busy(monkeypatch: pytest.MonkeyPatch) -> KeepBusy:
    """Keeps the thread of a pool busy until an event is set: what is submitted is for workers."""
    is_free = Event()

    def wait(text: str, cpu: NativeCpu) -> bytes:
        assert is_free.wait(600)
        return compile_object(text, cpu)

    def keep(pool: CompilePool) -> Event:
        pool.submit("first", module("first", 1))
        while pool.is_waiting:
            time.sleep(0.01)
        return is_free

    monkeypatch.setattr(compile_pool, "compile_object", wait)
    return keep


def test_objects_are_those_of_this_process(tmp_path: Path, keep_busy: KeepBusy) -> None:
    told = []
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=2) as pool:
        is_free = keep_busy(pool)
        for name, text in MODULES.items():
            pool.submit(name, text)
        assert pool.pids, "so much waits that a worker pays"
        is_free.set()
        found = pool.finish(lambda done, total: told.append((done, total)))
    texts = {"first": module("first", 1), **MODULES}
    assert found == {name: compile_object(text, HERE) for name, text in texts.items()}
    assert told == sorted(told)
    assert told[-1] == (len(texts), len(texts))


def test_what_is_cached_starts_nothing(tmp_path: Path) -> None:
    first = {}
    for most in (0, 2):
        with CompilePool(HERE, ObjectCache(tmp_path), most_workers=most) as pool:
            for name, text in MODULES.items():
                pool.submit(name, text)
            found = pool.finish()
            assert pool.pids == ()
        first = first or found
        assert found == first


def test_a_thread_compiles_before_all_are_there(tmp_path: Path) -> None:
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=0) as pool:
        pool.submit("kernel0", MODULES["kernel0"])
        for _ in range(6000):
            if list(tmp_path.rglob("*.o")):
                break
            time.sleep(0.01)
        else:
            pytest.fail("nobody compiles what waits")
        pool.submit("kernel1", MODULES["kernel1"])
        assert set(pool.finish()) == {"kernel0", "kernel1"}
    assert not pool.pids


def test_an_unforeseen_end_of_the_thread_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(compile_pool, "compile_object", lambda *_: 1 // 0)
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=0) as pool:
        pool.submit("kernel", MODULES["kernel0"])
        with pytest.raises(BackendError, match="kernel was not compiled"):
            pool.finish()


def test_few_kernels_start_nothing(tmp_path: Path) -> None:
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=2) as pool:
        pool.submit("kernel", module("kernel", 100))
        assert set(pool.finish()) == {"kernel"}
        assert pool.pids == ()


@pytest.mark.parametrize("most", [0, 1])
def test_the_first_refused_module_is_named(tmp_path: Path, keep_busy: KeepBusy, most: int) -> None:
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=most) as pool:
        is_free = keep_busy(pool)
        for name, text in MODULES.items():
            pool.submit(name, text.replace("fadd float %v7,", "fadd double %v7,"))
        assert len(pool.pids) == most
        is_free.set()
        with pytest.raises(BackendError, match="LLVM refused a kernel"):
            pool.finish()


def test_a_killed_worker_is_done_without(tmp_path: Path, keep_busy: KeepBusy) -> None:
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=1) as pool:
        is_free = keep_busy(pool)
        for name, text in MODULES.items():
            pool.submit(name, text)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        is_free.set()
        assert set(pool.finish()) == {"first", *MODULES}


def test_what_ends_llvm_is_an_error(tmp_path: Path, keep_busy: KeepBusy) -> None:
    """In this process it would be the end of it, so it must be the worker that takes it."""
    fatal = (
        'define void @fatal() {\n  call void asm sideeffect "no such thing", ""()\n  ret void\n}\n'
    )
    padding = "; " + "x" * (300 << 10) + "\n"
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=1) as pool:
        is_free = keep_busy(pool)
        pool.submit("fatal", padding + fatal)
        while pool.is_waiting:
            time.sleep(0.01)
        is_free.set()
        with pytest.raises(BackendError, match="LLVM failed on kernel fatal"):
            pool.finish()


def test_leaving_early_ends_the_workers(tmp_path: Path, keep_busy: KeepBusy) -> None:
    with CompilePool(HERE, ObjectCache(tmp_path), most_workers=1) as pool:
        is_free = keep_busy(pool)
        for name, text in MODULES.items():
            pool.submit(name, text)
        (pid,) = pool.pids
        is_free.set()
    assert is_gone(pid)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, os; sys.path.insert(0, sys.argv[1])\n"
        "from test_compile_pool import *\n"
        "compile_pool._WORTH = 0\n"
        "pool = CompilePool(HERE, ObjectCache(pathlib.Path(sys.argv[2])), most_workers=1)\n"
        "[pool.submit(name, text) for name, text in MODULES.items()]\n"
        "print(*pool.pids, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    for _ in range(6000):
        if is_gone(pid):
            return
        time.sleep(0.01)
    pytest.fail("the worker lives on")


def is_gone(pid: int) -> bool:
    """Tell whether a process is gone, or only waits for its parent to notice."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def test_another_cpu(tmp_path: Path) -> None:
    cpu = NativeCpu("aarch64-unknown-linux-gnu", "cortex-a76", "")
    with CompilePool(cpu, ObjectCache(tmp_path), most_workers=1) as pool:
        for name, text in MODULES.items():
            pool.submit(name, text)
        found = pool.finish()
    assert found["kernel0"] == compile_object(MODULES["kernel0"], cpu)
