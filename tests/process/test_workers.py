# SPDX-License-Identifier: Apache-2.0
"""Worker processes: results are values, and whatever kills a worker is a reason."""

import contextlib
import gc
import io
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from intarsia.errors import ReasonCode, SettingError
from intarsia.process import workers
from intarsia.process.workers import Limits, Worker, own_seconds, resident_bytes

FUNCTIONS = """
import ctypes, os, sys, time

def add(a, b):
    return a + b

def fail():
    raise ValueError("no good")

def refuse():
    from intarsia.errors import TargetError
    raise TargetError("no such kind", hint="try another")

def crash():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 11)

def leave():
    os._exit(7)

def hang():
    time.sleep(600)

kept = []

def grow():
    for _ in range(20):
        kept.append(bytearray(32 << 20))
        time.sleep(0.01)
    time.sleep(600)

def keep():
    kept.append(bytearray(300 << 20))
    return "done"

def shout():
    sys.stderr.write("x" * 10**6)
    return "done"

def double(word, arrays):
    return {"word": word}, {name: array * 2 for name, array in arrays.items()}

def process():
    return os.getpid()

def crash_beside_a_child():
    import subprocess
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    for file in range(3, 64):  # as foreign code forks: the child has all that is open
        try:
            os.set_inheritable(file, True)
        except OSError:
            pass
    child = subprocess.Popen(command, close_fds=False)
    with open(os.environ["CHILD_FILE"], "w") as file:
        file.write(str(child.pid))
    os.kill(os.getpid(), 6)

def thing():
    return object()

def start_child():
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["CHILD_FILE"], "w") as file:
        file.write(str(child.pid))
    grow()
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "worker_functions.py").write_text(FUNCTIONS)
    return {"PYTHONPATH": str(tmp_path), "CHILD_FILE": str(tmp_path / "child")}


@pytest.fixture
def worker(environment):
    with Worker(environment) as made:
        yield made


def call(worker, name, *arguments, **options):
    return worker.call(f"worker_functions:{name}", *arguments, **options)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid):
    """Whether a process ends; a slow machine is not a failure, so that it is waited for long."""
    deadline = time.monotonic() + 120
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def own_files():
    """What this process has open of what a worker needs: sockets, and files without a name."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = str(file.readlink())
            if target.startswith("socket:") or target.endswith("(deleted)"):
                found.add((file.name, target))
    return found


def test_where_no_process_can_be_started_an_error_says_so_and_nothing_stays_open(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    gc.collect()
    before = own_files()
    with Worker() as worker:
        for _ in range(3):
            with pytest.raises(SettingError, match="cannot start a measurement worker"):
                worker.call("platform:system")
    assert own_files() <= before


def test_a_result_is_a_value(worker):
    outcome = call(worker, "add", 1, 2)
    assert outcome.is_ok
    assert outcome.value == 3
    assert outcome.reason is None
    assert outcome.peak_bytes > 1 << 20


def test_another_thread_can_end_a_call(worker):
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, worker, "hang")
        while worker.pid is None and not waiting.done():
            time.sleep(0.01)
        worker.stop()
    outcome = waiting.result()
    assert outcome.reason is ReasonCode.CRASHED
    assert outcome.signal_name == "SIGKILL"
    assert call(worker, "add", 1, 2).value == 3
    worker.stop()
    worker.stop()


def test_calls_share_one_process(worker):
    first = call(worker, "process").value
    assert first == call(worker, "process").value == worker.pid
    assert first != os.getpid()


def test_an_exception_is_a_value(worker):
    outcome = call(worker, "fail")
    assert not outcome.is_ok
    assert (outcome.error_type, outcome.message) == ("ValueError", "no good")
    assert outcome.reason is None
    assert call(worker, "add", 1, 1).value == 2


def test_the_hint_of_our_errors_comes_along(worker):
    outcome = call(worker, "refuse")
    assert (outcome.error_type, outcome.hint) == ("TargetError", "try another")


def test_a_signal_becomes_a_reason_and_the_worker_is_replaced(worker):
    before = call(worker, "process").value
    outcome = call(worker, "crash")
    assert outcome.reason is ReasonCode.CRASHED
    assert outcome.signal_name == "SIGSEGV"
    assert "last words" in outcome.message
    after = call(worker, "process")
    assert after.is_ok
    assert after.value != before


def test_a_worker_that_dies_is_noticed_even_if_what_it_started_lives_on(worker, environment):
    outcome = call(worker, "crash_beside_a_child", limits=Limits(seconds=300))
    child = int(Path(environment["CHILD_FILE"]).read_text())
    try:
        assert is_running(child)
        assert (outcome.reason, outcome.signal_name) == (ReasonCode.CRASHED, "SIGABRT")
    finally:
        os.kill(child, 9)


def test_an_exit_becomes_a_reason(worker):
    outcome = call(worker, "leave")
    assert (outcome.reason, outcome.exit_code) == (ReasonCode.CRASHED, 7)


def test_a_call_that_hangs_is_killed(worker):
    outcome = call(worker, "hang", limits=Limits(seconds=0.3))
    assert outcome.reason is ReasonCode.TIMEOUT
    assert "0.3 s" in outcome.message
    assert call(worker, "add", 2, 2).value == 4


def test_a_call_that_grows_is_killed(worker):
    used = call(worker, "add", 0, 0).peak_bytes
    outcome = call(worker, "grow", limits=Limits(memory_bytes=used + (200 << 20)))
    assert outcome.reason is ReasonCode.CRASHED
    assert "memory" in outcome.message
    assert outcome.peak_bytes < used + (900 << 20)


def test_a_call_that_has_grown_is_refused_however_quick_it_was(worker):
    used = call(worker, "add", 0, 0).peak_bytes
    limits = Limits(memory_bytes=used + (200 << 20))
    outcome = call(worker, "keep", limits=limits)
    assert outcome.reason is ReasonCode.CRASHED
    assert "memory" in outcome.message
    assert call(worker, "add", 1, 1, limits=limits).value == 2


def test_what_a_killed_worker_started_is_killed_too(worker, tmp_path):
    used = call(worker, "add", 0, 0).peak_bytes
    call(worker, "start_child", limits=Limits(memory_bytes=used + (200 << 20)))
    assert ends(int((tmp_path / "child").read_text()))


def test_much_standard_error_does_not_block(worker):
    assert call(worker, "shout").value == "done"


def test_arrays_come_and_go_in_shared_memory(worker):
    arrays = {f"a{i}": np.full((i, 3), i, np.float32) for i in range(130)}
    arrays["flags"] = np.array([True, False])
    arrays["scalar"] = np.array(7, np.int64)
    outcome = call(worker, "double", "hi", arrays=arrays)
    assert outcome.value == {"word": "hi"}
    assert list(outcome.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(outcome.arrays[name], array * 2)
        assert outcome.arrays[name].shape == array.shape


def test_a_result_that_is_no_value_is_an_error(worker):
    outcome = call(worker, "thing")
    assert outcome.error_type == "TypeError"
    assert call(worker, "add", 1, 1).value == 2


def test_an_unknown_function_is_an_error(worker):
    assert call(worker, "nothing").error_type == "AttributeError"
    assert worker.call("no_such_module:f").error_type == "ModuleNotFoundError"


def test_closing_ends_the_process(environment):
    worker = Worker(environment)
    pid = call(worker, "process").value
    worker.close()
    assert not is_running(pid)
    assert worker.pid is None


def test_a_worker_ends_when_its_owner_is_killed(environment, tmp_path):
    import subprocess
    import sys

    script = (
        "from intarsia.process.workers import Worker\n"
        "import os, time\n"
        "worker = Worker()\n"
        "print(worker.call('worker_functions:process').value, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    with owner:
        pid = int(owner.stdout.readline())
        owner.kill()
    assert ends(pid)


def test_memory_of_a_process_can_be_told():
    assert resident_bytes() > 1 << 20
    assert resident_bytes(2**31 - 1) == 0


def test_a_threads_own_clock_counts_what_it_computes_and_what_it_sleeps():
    """However long each takes: a clock that left it out would stand still for all of it."""
    begin, computed = own_seconds(), time.thread_time()
    while own_seconds() - begin < 0.05:
        assert time.thread_time() - computed < 30
    begin = own_seconds()
    for _ in range(1000):  # of which next to nothing is computed
        time.sleep(0.02)
        if own_seconds() - begin >= 0.2:
            break
    else:
        pytest.fail("the clock stands still while its thread sleeps")


def test_a_threads_own_clock_stands_still_while_others_have_the_cpu(monkeypatch):
    facts = iter([b"7 1000000000 3", b"7 3500000000 4", b"7 3500000000 4"])  # it waits in between
    times = iter([10.0, 12.5])
    monkeypatch.setattr(workers, "open", lambda *_: io.BytesIO(next(facts)), raising=False)
    clocks = {"perf_counter": lambda: next(times), "monotonic": time.monotonic}
    monkeypatch.setattr(workers, "time", SimpleNamespace(**clocks))
    assert own_seconds() == 12.5 - 3.5


def test_without_facts_of_the_scheduler_the_clock_is_an_ordinary_one(monkeypatch):
    def refuse(*_):
        raise FileNotFoundError

    monkeypatch.setattr(workers, "open", refuse, raising=False)
    before = time.perf_counter()
    assert before <= own_seconds() <= time.perf_counter()
