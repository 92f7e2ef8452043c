# SPDX-License-Identifier: Apache-2.0
"""Foreign code is tried in a process of its own before this one loads it.

A driver or a library may abort, hang, or compute nonsense; what aborts takes its whole process. So
it is tried once for each version of it, for each CPU and each version of ours, and the verdict is
kept among the caches. The process is a fresh one, and how it leaves is part of the trial. Where a
verdict is known, asking for it costs one look into a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cache import make_cache_folder, write_entry
from intarsia.cpu_text import cpu_text
from intarsia.errors import BackendError, SettingError, words
from intarsia.process.foreign import InstalledEntry, is_foreign, package_of
from intarsia.process.interpreter import fresh_python

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger(__name__)

KIND = "selftests"
"""The folder of the verdicts inside the cache folder."""

FORGET = "`intarsia cache clear` forgets the verdict"
"""A fact about the files or the CPU; when it changes, the trial is repeated."""

_SECONDS = 300.0
_GRACE_SECONDS = 20
_MOST_VERDICTS = 256
_MOST_FILES = 2000
_LAST_WORDS = 4000

_FROM_OUTSIDE = tuple(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)
)
"""Signals by which a system or its user ends a process, and no library its own."""

_state = {"is_inside": False}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A trial of foreign code.

    Attributes:
        name: What is tried, for people: `ONNX Runtime`.
        function: `module:function`, called with the arguments in the process. What it raises is a
            problem. It may yield values of JSON; each is kept as soon as it is there.
        arguments: Values of JSON.
        identity: What the verdict depends on beside the CPU: versions, and files (`file_facts`).
        environment: Variables of the process that differ from this one's.
        mend: Called after a failure; tells whether a second and last try is worth while.
    """

    name: str
    function: str = ""
    arguments: tuple[Any, ...] = ()
    identity: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mend: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class SelfTestVerdict:
    """What came of a trial.

    Attributes:
        problem: How it failed; empty if it did not.
        values: What the function had yielded.
    """

    problem: str = ""
    values: tuple[Any, ...] = ()


_known: dict[str, SelfTestVerdict] = {}
"""The verdicts that this process has already looked up."""


def is_inside() -> bool:
    """Tell whether this process was started to run a self-test."""
    return _state["is_inside"]


def judge(test: SelfTest, caches: Path) -> SelfTestVerdict:
    """Return the verdict on foreign code; what was not tried yet is tried now.

    In the process of a trial everything passes: it is there to be tried.

    Args:
        test: The trial.
        caches: The folder of all caches, where verdicts are kept.
    """
    if is_inside():
        return SelfTestVerdict()
    digest = _digest(test)
    verdict = _known.get(digest)
    if verdict is None:
        path = caches / KIND / f"{digest}.json"
        verdict = _known[digest] = _read(path) or _try(test, caches, path)
    return verdict


def _try(test: SelfTest, folder: Path, path: Path) -> SelfTestVerdict:
    logger.info("%s is tried in a process of its own", test.name)
    try:
        verdict, is_final = _run(test)
        if test.mend is not None and _has_failed(verdict) and test.mend():
            verdict, is_final = _run(test)
    except OSError as error:  # where no process may be started, there is nothing to go by
        logger.info("%s cannot be tried: %s", test.name, error)
        return SelfTestVerdict()
    if is_final:
        _keep(folder, path, verdict)
    return verdict


@dataclass(frozen=True, slots=True)
class TriedDevices:
    """What the trial of a backend's devices has found.

    Attributes:
        passed: Names of the devices that work.
        failed: Names of those that do not, each with the reason; `name` of the trial if it does not
            get so far as to name one.
    """

    passed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


def try_devices(test: SelfTest, backend: str, caches: Path) -> TriedDevices:
    """Try each device of a backend; those after one that takes its process are tried again.

    Args:
        test: The trial, without its function and arguments.
        backend: `module:attribute` of the backend.
        caches: The folder of all caches.
    """
    dead: dict[int, tuple[str, str]] = {}
    while True:
        function, arguments = "intarsia.testing.selftest:try_devices", (backend, sorted(dead))
        verdict = judge(replace(test, function=function, arguments=arguments), caches)
        begun = {value["number"]: value for value in verdict.values}  # the later one stays
        # The device that was begun and has no verdict is the one at which the process died; the
        # others are tried again without it.
        open_ = [value for value in begun.values() if "problem" not in value]
        if not (verdict.problem and open_):
            break
        dead[open_[0]["number"]] = (open_[0]["name"], verdict.problem)
    if verdict.problem:  # when its driver was loaded, or left
        return TriedDevices((), ((test.name, verdict.problem),))
    failed = [(value["name"], value["problem"]) for value in begun.values() if value["problem"]]
    passed = tuple(value["name"] for value in begun.values() if not value["problem"])
    return TriedDevices(passed, (*dead.values(), *failed))


def require(test: SelfTest, backend: str, hint: str, caches: Path) -> None:
    """Raise unless foreign code has passed its trial.

    Args:
        test: The trial.
        backend: Name of the backend that needs it.
        hint: What would mend it.
        caches: The folder of all caches.

    Raises:
        BackendError: It has not.
    """
    verdict = judge(test, caches)
    if verdict.problem:
        raise BackendError(
            f"{test.name} does not pass its self-test: {verdict.problem}",
            backend=backend,
            hint=f"{hint}; {FORGET}",
        )


def require_library(
    name: str, spelling: str, files: Sequence[str], hint: str, caches: Path
) -> None:
    """Raise unless the library of a backend of ours has passed its trial: its first use.

    Args:
        name: The library's.
        spelling: `module:attribute` of the backend.
        files: Facts on the library's files; without any there is nothing to try.
        hint: What would mend it.
        caches: The folder of all caches.

    Raises:
        BackendError: It has not.
    """
    if files:
        trial = "intarsia.testing.selftest:try_library"
        backend = spelling.partition(":")[0].removeprefix("intarsia.backends.").partition(".")[0]
        require(SelfTest(name, trial, (spelling,), tuple(files)), backend, hint, caches)


def require_plugin(entry: InstalledEntry, caches: Path) -> None:
    """Raise if a plug-in takes its process when it is loaded or first used.

    Our own backends try what they load of others by themselves.

    Args:
        entry: The plug-in.
        caches: The folder of all caches.

    Raises:
        BackendError: It does, or its own `self_test` fails.
    """
    if not is_foreign(entry):
        return
    dist = getattr(entry, "dist", None)
    owner = entry.name if dist is None else dist.name
    require(
        SelfTest(
            f"the plug-in {entry.name!r}",
            "intarsia.testing.selftest:try_plugin",
            (entry.name, entry.value, entry.group),
            ("" if dist is None else dist.version, *package_facts(package_of(entry), "**/*.*")),
        ),
        entry.name,
        f"pip install --upgrade {owner}, or uninstall it",
        caches,
    )


def file_facts(*files: str | Path) -> tuple[str, ...]:
    """Return a line for each file that tells it from another one of its name."""
    return tuple(map(_fact, files))


def package_facts(name: str, pattern: str) -> tuple[str, ...]:
    """Return facts on files of a package, which is found and not imported; none if it is absent.

    Args:
        name: Of a top-level package or module.
        pattern: Of the files that count, inside its folder.
    """
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return ()
    files = [Path(spec.origin)] if spec.origin else []
    for folder in spec.submodule_search_locations or ():
        inner = (path for path in Path(folder).glob(pattern) if path.suffix != ".pyc")
        files += sorted(path for path, _ in zip(inner, range(_MOST_FILES), strict=False))
    return file_facts(*files)


def _fact(file: str | Path) -> str:
    try:
        status = os.stat(file)  # noqa: PTH116 - of what may not be a path
    except OSError:
        return f"{file} absent"
    return f"{os.path.realpath(file)} {status.st_size} {status.st_mtime_ns}"


def _has_failed(verdict: SelfTestVerdict) -> bool:
    parts = (value.get("problem") for value in verdict.values if isinstance(value, dict))
    return bool(verdict.problem) or any(parts)


@cache
def machine_text() -> str:
    """Return what a verdict depends on beside the code: the CPU, Python and our version."""
    from importlib.metadata import PackageNotFoundError, version

    own = "not installed"
    with contextlib.suppress(PackageNotFoundError):
        own = version("intarsia")
    return f"{cpu_text()} {platform.python_version()} {own}"


def _digest(test: SelfTest) -> str:
    parts = (test.name, test.function, json.dumps(test.arguments), machine_text(), *test.identity)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> SelfTestVerdict | None:
    try:
        record = json.loads(path.read_bytes())
        return SelfTestVerdict(str(record["problem"]), tuple(record["values"]))
    except (OSError, ValueError, KeyError, TypeError):  # it is made anew
        return None


def _keep(folder: Path, path: Path, verdict: SelfTestVerdict) -> None:
    content = json.dumps({"problem": verdict.problem, "values": verdict.values}).encode()
    try:
        make_cache_folder(folder)
        write_entry(path, content)
        entries = sorted(path.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)
        # Each version of a library, of ours and of a driver leaves one.
        for entry in entries[:-_MOST_VERDICTS]:
            entry.unlink()
    except (OSError, SettingError) as error:
        logger.info("the verdict on a self-test is not kept: %s", error)


def _run(test: SelfTest) -> tuple[SelfTestVerdict, bool]:
    """Make a trial.

    Returns:
        The verdict, and whether it may be kept: what was killed from outside may be tried again.

    Raises:
        OSError: There is no process to try it in.
    """
    import subprocess  # what is tried already needs none of these
    import tempfile

    # The process ends itself a little later: the owner, if it is still there, is to be the one that
    # says that it hung.
    request = {
        "function": test.function,
        "arguments": test.arguments,
        "seconds": _SECONDS + _GRACE_SECONDS,
    }
    with tempfile.TemporaryDirectory(prefix="intarsia-") as name:
        values, said = Path(name) / "values", Path(name) / "said"
        values.touch()
        with said.open("wb") as errors:
            process = subprocess.Popen(
                fresh_python(f"{__name__}:serve", str(values)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **test.environment},  # noqa: TID251 - handed on, not read
                start_new_session=True,
            )
            end = _wait(process, json.dumps(request).encode())
        records = list(_records(values))
        if not records:  # nothing foreign was reached yet
            raise OSError(_problem_of(end, _last_line(said), has_answered=False))
        done = next((record["problem"] for record in records if "problem" in record), None)
        answers = tuple(record["value"] for record in records if "value" in record)
        problem = done or _problem_of(end, _last_line(said), has_answered=done is not None)
        # A hang is the library's own; a SIGKILL may have been the machine's lack of memory.
        return SelfTestVerdict(problem, answers), end is None or -end not in _FROM_OUTSIDE


def _wait(process: subprocess.Popen[bytes], request: bytes) -> int | None:
    """Return how a process ended; None if it took too long and was killed."""
    from subprocess import TimeoutExpired

    try:
        process.communicate(request, timeout=_SECONDS)
    except TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
            process.wait()
    return process.returncode


def _problem_of(end: int | None, last_line: str, *, has_answered: bool) -> str:
    """Return what was wrong with the end of a process; empty if nothing was."""
    if end == 0 and has_answered:
        return ""
    when = " on leaving the process" if has_answered else ""
    if end is None:
        return f"it hung{when}: no answer within {_SECONDS:g} s"
    if end < 0:
        how = f"aborted{when} ({signal.Signals(-end).name})"
    else:
        how = f"ended the process{when and ' late,'} with exit code {end}"
    return f"it {how}" + (f": {last_line}" if last_line else "")


def _records(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # the process died while it wrote it
            yield json.loads(line)


def _last_line(file: Path) -> str:
    lines = file.read_bytes()[-_LAST_WORDS:].decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def serve(file: str) -> None:
    """Make a trial in this process.

    Args:
        file: What is yielded goes there, a line of JSON each, and the problem last.
    """
    request = json.loads(sys.stdin.buffer.read())
    _state["is_inside"] = True
    with contextlib.suppress(ImportError, ValueError, OSError):  # no dump of what is expected
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if hasattr(signal, "alarm"):  # ends what hangs even if the process that started it is gone
        signal.alarm(int(request["seconds"]))
    with Path(file).open("a", encoding="utf-8", buffering=1) as out:
        out.write(json.dumps({"begun": True}) + "\n")
        try:
            module, _, name = request["function"].partition(":")
            function = getattr(import_module(module), name)
            for value in function(*request["arguments"]) or ():
                out.write(json.dumps({"value": value}) + "\n")
            problem = ""
        except Exception as error:  # foreign code may raise anything
            problem = words(error)
        out.write(json.dumps({"problem": problem}) + "\n")
