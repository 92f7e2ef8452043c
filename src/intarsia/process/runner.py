# SPDX-License-Identifier: Apache-2.0
"""The way to a machine: this one, one that an emulator plays, or a host by SSH.

A `Runner` says how a shell is reached there; everything else is made of that, alike for all: a
folder, files put and got, programs run with limits or talked to. What fails on the way is a
`LinkError`, which says nothing about the program that was to run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Protocol, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit

from intarsia.errors import BackendError, ExecutionError, LinkError, TargetError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

HERE = "here"
"""The text of the runner that needs no way: this machine."""

_SSH = "ssh://"
_STATUS = "intarsia-status "
_STDERR_BYTES = 4000
_MOST_STATUS = 128
"""A shell says of a program that a signal ended this and the signal's number."""
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that say nothing about the program that they end."""
_CONNECT_SECONDS = 10
_SETUP_SECONDS = 60.0
_SLOWEST_BYTES = 100e3
"""A second; what sends fewer is taken for dead."""
_GRACE_SECONDS = 5.0
"""For what leads to another machine to end by itself, whoever waits: a hung program costs it."""
_LAST_WORDS_SECONDS = 30.0
"""For the end of what has closed its output already; over sooner but where much else is done."""
_CHUNK_BYTES = 1 << 16
_MEMORY = "/dev/shm"
"""Where systems have files in memory."""
_LEAST_MEMORY = 1 << 18
"""KiB that must be free there: containers have 64 MB, which the tensors of one plan may fill."""
_MADE = re.compile(r"/[^\n]*intarsia\.\w{6}")
"""A folder that `mktemp` made."""
_SOCKET_FOLDER_LETTERS = 48
"""The system allows 107 for a socket; the client adds a digest of 40 and, for a moment, 17 more."""


class Runner(Protocol):
    """How a shell on a machine is reached."""

    @property
    def text(self) -> str:
        """What `parse_runner` makes it of."""

    @property
    def place(self) -> str:
        """What machine it leads to, for people."""

    @property
    def emulator(self) -> tuple[str, ...]:
        """What programs are given to in order to run; nothing where the machine runs them."""

    @property
    def parent(self) -> str:
        """The folder in which folders are made; empty means the machine's own for such things."""

    def shell(self, script: str) -> list[str]:
        """Return the command that runs a script of a POSIX shell there, run here.

        Raises:
            LinkError: It cannot be run here.
        """

    def explain(self, said: str) -> tuple[str, str]:
        """Return what is the matter with the way, and what to do about it, from what it said."""


@dataclass(frozen=True, slots=True)
class HereRunner:
    """This machine."""

    text: str = HERE
    place: str = "this machine"
    emulator: tuple[str, ...] = ()
    parent: str = ""

    def shell(self, script: str) -> list[str]:
        """Return a command for this machine's shell."""
        return ["/bin/sh", "-c", script]

    def explain(self, said: str) -> tuple[str, str]:
        """Return what the shell said."""
        return _last_line(said) or "the shell ended", "look at the folder for temporary files"


@dataclass(frozen=True, slots=True)
class PrefixRunner:
    """This machine, with a command before each program: an emulator of another CPU."""

    emulator: tuple[str, ...]
    parent: str = ""

    @property
    def text(self) -> str:
        """The command."""
        return shlex.join(self.emulator)

    @property
    def place(self) -> str:
        """What plays the machine."""
        return self.emulator[0]

    def shell(self, script: str) -> list[str]:
        """Return a command for this machine's shell.

        Raises:
            LinkError: The emulator is not here.
        """
        if shutil.which(self.emulator[0]) is None:
            raise LinkError(
                f"there is no {self.emulator[0]!r} here to run programs with",
                hint="install it (Debian: qemu-user-static), or correct -runner",
            )
        return ["/bin/sh", "-c", script]

    def explain(self, said: str) -> tuple[str, str]:
        """Return what the shell said."""
        return HereRunner().explain(said)


@dataclass(frozen=True, slots=True)
class SshRunner:
    """A host by SSH: the system's client, so that the user's own settings and keys count.

    Attributes:
        host: Its name, its address, or what the client's settings call it.
        user: Empty means what the client's settings say.
        port: 0 likewise.
        parent: Where folders are made there.
    """

    host: str
    user: str = ""
    port: int = 0
    parent: str = ""

    @property
    def text(self) -> str:
        """As an address: `ssh://user@host:port/folder`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{quote(self.user)}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{_SSH}{user}{host}{port}{quote(self.parent)}"

    @property
    def place(self) -> str:
        """The host as the client is given it."""
        user, port = f"{self.user}@" if self.user else "", f":{self.port}" if self.port else ""
        return f"{user}{self.host}{port}"

    @property
    def emulator(self) -> tuple[str, ...]:
        """Nothing: the machine runs its own programs."""
        return ()

    def shell(self, script: str) -> list[str]:
        """Return the client's command; the first one leaves a connection for those that follow.

        Raises:
            LinkError: There is no client here.
        """
        return [*self.client(), self.host, f"exec sh -c {shlex.quote(script)}"]

    def client(self) -> list[str]:
        """Return the client with its options, still without a host.

        Raises:
            LinkError: There is no client here.
        """
        client = shutil.which("ssh")
        if client is None:
            raise LinkError(
                f"there is no SSH client here to reach {self.place} with",
                hint="install OpenSSH's client (Debian: openssh-client)",
            )
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(_CONNECT_SECONDS),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "ControlMaster": "auto",
            "ControlPersist": "60",
            "ControlPath": f"{_socket_folder()}/%C",
        }
        command = [client, *(f"-o{name}={value}" for name, value in options.items())]
        command += ["-l", self.user] if self.user else []
        return command + (["-p", str(self.port)] if self.port else [])

    def disconnect(self) -> None:
        """End the connection that is kept, if there is one; else it ends a minute after its use."""
        subprocess.run(
            [*self.client(), "-O", "exit", self.host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def explain(self, said: str) -> tuple[str, str]:
        """Return what is the matter by the client's words."""
        lowered = said.lower()
        for sign, problem, hint in _SSH_PROBLEMS:
            if sign in lowered:
                by_hand = " ".join(["ssh", *(["-p", str(self.port)] if self.port else [])])
                name = f"{self.user}@{self.host}" if self.user else self.host
                return problem, hint.format(by_hand=f"{by_hand} {name}")
        return _last_line(said) or "the connection broke", "check the network and the machine"


_SSH_PROBLEMS = (
    (
        "identification has changed",
        "its host key is not the one that is known",
        "make sure that it is the same machine, then remove the old key: ssh-keygen -R HOST",
    ),
    (
        "host key verification failed",
        "its host key is unknown",
        "connect once by hand and compare the key: {by_hand}",
    ),
    (
        "permission denied",
        "it refused your key",
        "try {by_hand}; ssh-copy-id brings a key there, ~/.ssh/config says which one is used",
    ),
    (
        "connection refused",
        "it refused the connection",
        "start an SSH server there, or name its port: ssh://HOST:PORT",
    ),
    (
        "could not resolve",
        "no machine of that name is known",
        "correct the name, or define it in ~/.ssh/config",
    ),
    ("no route to host", "there is no route to it", "check the network and the machine"),
    ("timed out", "it does not answer", "check the network and the machine"),
    ("not responding", "it stopped answering", "check the network and the machine"),
)
"""What the client says, what that means, and what to do."""


def parse_runner(text: str) -> Runner:
    """Return the runner that a text names.

    Args:
        text: `here`; `ssh://user@host:port/folder`, of which only the host is needed; or the
            command that programs are given to: `qemu-aarch64-static -L /usr/aarch64-linux-gnu`.

    Raises:
        TargetError: It names none.
    """
    if text.strip() == HERE:
        return HereRunner()
    if text.strip().startswith(_SSH):
        return _parse_ssh(text.strip())
    scheme, sign, _ = text.strip().partition("://")
    if sign and scheme.isalnum():
        raise TargetError(
            f"runner: {text!r} is an address of {scheme}, which is not a way to a machine",
            hint=_FORMS,
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(f"runner: {text!r} is not a command: {error}", hint=_FORMS) from error
    if not words:
        raise TargetError("runner: the text is empty", hint=_FORMS)
    return PrefixRunner(tuple(words))


_FORMS = "give ssh://user@host:port/folder, a command such as qemu-aarch64-static, or here"


def _parse_ssh(text: str) -> SshRunner:
    try:
        parts = urlsplit(text)
        port = parts.port or 0
    except ValueError as error:
        raise TargetError(f"runner: {text!r} is not an address: {error}", hint=_FORMS) from error
    host, user = unquote(parts.hostname or ""), unquote(parts.username or "")
    named = parts.netloc.rpartition("@")[2]
    if not named.startswith("["):  # names in settings have capitals
        host = unquote(named.partition(":")[0])
    # The client would take a host that begins with a dash for an option.
    if not host or host.startswith("-") or user.startswith("-"):
        raise TargetError(f"runner: {text!r} names no host", hint=_FORMS)
    if parts.password is not None:
        raise TargetError(
            f"runner: the address of {host} holds a password",
            hint="leave it out: keys are what opens the way, and others read targets",
        )
    if parts.query or parts.fragment:
        raise TargetError(f"runner: {text!r} has more than a folder behind the host", hint=_FORMS)
    return SshRunner(host, user, port, unquote(parts.path.rstrip("/")))


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ran to its end.

    Attributes:
        code: What it returned.
        stdout: What it wrote.
        stderr: The end of what it wrote there.
        seconds: How long that took seen from here, the way there and back counted in.
    """

    code: int
    stdout: bytes
    stderr: str
    seconds: float


class RemoteFolder:
    """A folder on a machine that is removed in the end.

    Args:
        runner: The way there.
        in_memory: Whether it had better be in memory, unless the runner names a folder.

    Raises:
        LinkError: The machine is out of reach, or has no place for a folder.
    """

    def __init__(self, runner: Runner, *, in_memory: bool = False) -> None:
        self.runner = runner
        self._started = count()
        parent = _parent(runner)
        if in_memory and not runner.parent:
            has_room = (
                f'[ -w {_MEMORY} ] && ({_free(_MEMORY)}; [ "${{4:-0}}" -ge {_LEAST_MEMORY} ])'
            )
            parent = f'"$({has_room} && echo {_MEMORY} || echo {parent[1:-1]})"'
        # A shell waits there and removes the folder when its input ends: also if this process is
        # killed or the way breaks, and before we know what the folder is called. Then nobody reads
        # what it says any more, which must not end it.
        script = (
            f'trap "" PIPE; (mkdir -p {parent} && cd {parent} && '
            f'{_MAKE} && {{ echo "$made"; read -r end; rm -rf "$made"; }}); '
            f'printf "\n{_STATUS}%s\n" $? >&2'
        )
        self._keeper = _Started(runner.shell(script))
        try:
            answer = self._keeper.read_line(_deadline(_SETUP_SECONDS))
        except TimeoutError:
            self._keeper.kill()
            self._keeper.close()
            raise _silent(runner, "make a folder", _SETUP_SECONDS) from None
        except EOFError:
            said = self._keeper.last_words(_LAST_WORDS_SECONDS)
            self._keeper.close()
            raise _broken(runner, "cannot make a folder on", said) from None
        except BaseException:
            self._keeper.close()
            raise
        try:
            self.path = _made(runner, answer)
        except LinkError:
            self._keeper.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, name: str, content: bytes) -> None:
        """Write a file; it may be run.

        Args:
            name: Without a folder.
            content: What is in it.

        Raises:
            LinkError: That failed.
        """
        path, room = shlex.quote(f"{self.path}/{name}"), _free(shlex.quote(self.path))
        script = (
            f"said=$({{ cat > {path}.part && chmod 700 {path}.part && mv {path}.part {path}; }} "
            f"2>&1) || {{ rm -f {path}.part; {room}; {_SAY_ROOM}; false; }}"
        )
        _shell(self.runner, script, content, doing=_putting(name, content))

    def get(self, name: str) -> bytes:
        """Return what is in a file.

        Raises:
            LinkError: That failed.
        """
        path = shlex.quote(f"{self.path}/{name}")
        return _shell(self.runner, f"cat {path}", doing=f"get {name}")

    def run(
        self,
        *command: str,
        stdin: bytes = b"",
        seconds: float | None = None,
        memory_bytes: int | None = None,
    ) -> Finished:
        """Run a program in the folder, to its end.

        Args:
            command: The program, `./NAME` for one that was put there, and its arguments.
            stdin: What it reads.
            seconds: How long it may take, seen from here; None for no limit.
            memory_bytes: How much it may address there, the emulator's own counted in; None for no
                limit.

        Raises:
            LinkError: The way there failed.
            ExecutionError: It could not be started, took too long, or a signal ended it.
        """
        begin = time.monotonic()
        name = f".pid{next(self._started)}"
        script = (
            f"cd {shlex.quote(self.path)} || exit; "
            f"{_program(self.runner, name, command, memory_bytes)}; "
            f'printf "\\n{_STATUS}%s\\n" $? >&2'
        )
        with _Started(self.runner.shell(script)) as started:
            try:
                stdout = started.exchange(stdin, seconds)
            except TimeoutError:
                _kill_there(self.runner, f"{self.path}/{name}")
                raise ExecutionError(
                    f"{_named(self.runner, command)} took more than {seconds:g} s and was killed",
                    hint="give it more time, or less to do",
                ) from None
            said = started.last_words()
        code = _check_ended(self.runner, command, said)
        said = said.rpartition(_STATUS)[0].removesuffix("\n")
        return Finished(code, stdout, said, time.monotonic() - begin)

    @property
    def is_held(self) -> bool:
        """Whether it is still there, as far as can be told from here."""
        return self._keeper.is_running

    def close(self) -> None:
        """Remove the folder; a machine that cannot be reached any more does so by itself."""
        self._keeper.close()


_MAKE = 'made=$(mktemp -d "$PWD/intarsia.XXXXXX")'
_SAY_ROOM = 'echo "$said (${4:-?} KiB are free there)" >&2'
"""After `_free`."""


def _parent(runner: Runner) -> str:
    """Return a shell's word for the folder in which folders are made."""
    return shlex.quote(runner.parent) if runner.parent else '"${TMPDIR:-/tmp}"'


def _free(folder: str) -> str:
    """Return what lets `$4` be the KiB that are free where a folder is, a shell's word."""
    return f"set -- $(df -Pk {folder} 2>/dev/null | tail -n 1)"


def _putting(name: str, content: bytes) -> str:
    return f"put {name} ({len(content)} bytes)"


def _made(runner: Runner, answer: str) -> str:
    """Return the folder that a shell says that it made.

    Raises:
        LinkError: It is none: it is removed in the end, so it had better be one, and programs talk
            where this came from.
    """
    if not _MADE.fullmatch(answer):
        raise LinkError(
            f"cannot make a folder on {runner.place}: instead of one it says {answer[:80]!r}",
            hint="let what its shell starts with (~/.bashrc) write nothing",
        )
    return answer


def _program(
    runner: Runner, pid: str, command: Sequence[str], memory_bytes: int | None = None
) -> str:
    """Return what runs a program there, in the folder where the shell is, and keeps its number.

    Args:
        runner: The way there.
        pid: The file for its number, in that folder.
        command: The program and its arguments.
        memory_bytes: As of `RemoteFolder.run`.
    """
    limit = f"ulimit -v {memory_bytes // 1024}; " if memory_bytes else ""
    inner = shlex.quote(f'{limit}echo $$ > {pid}; exec "$@"')
    return f"sh -c {inner} sh {shlex.join([*runner.emulator, *command])}"


def _kill_there(runner: Runner, pid: str) -> None:
    """Kill a program there; what leads to it ends by itself then, and tidies up.

    Args:
        runner: The way there.
        pid: The file that has its number.
    """
    with contextlib.suppress(BackendError):
        _shell(runner, f"kill -9 $(cat {shlex.quote(pid)})", doing="kill")


def _shell(runner: Runner, script: str, stdin: bytes = b"", *, doing: str) -> bytes:
    """Run a script there and return what it wrote.

    Raises:
        LinkError: It failed.
    """
    script = f'({script}); printf "\\n{_STATUS}%s\\n" $? >&2'
    seconds = carry_seconds(len(stdin))
    with _Started(runner.shell(script)) as started:
        try:
            stdout = started.exchange(stdin, seconds)
        except TimeoutError:
            started.kill()
            raise _silent(runner, doing, seconds) from None
        said = started.last_words()
    if _status(said) != 0:
        raise _broken(runner, f"cannot {doing} on", said)
    return stdout


def carry_seconds(nbytes: int) -> float:
    """Return how long bytes may be under way before the way is taken for dead."""
    return _SETUP_SECONDS + nbytes / _SLOWEST_BYTES


_NAPS = (0.5, 2.0, 8.0)
"""Seconds to wait before a way to another machine is tried again."""


def insist(attempt: Callable[[], Result]) -> Result:
    """Try something again while only the way to another machine fails.

    Args:
        attempt: What leads there; a measurement of many, which one connection must not cost.

    Raises:
        LinkError: It fails for long.
    """
    for seconds in _NAPS:
        try:
            return attempt()
        except LinkError as error:
            logger.warning("%s; trying again in %g s", error.message, seconds)
            time.sleep(seconds)
    return attempt()


def start_program(runner: Runner, name: str, content: bytes, *arguments: str) -> Conversation:
    """Bring a program to a machine, and talk to it; nothing is left there when it ends.

    All of it is one shell there: it makes a folder, takes the program, says so, and becomes what
    the program talks through. The folder goes when the program ends, or comes in part.

    Args:
        runner: The way there.
        name: What its file is called.
        content: An executable for that machine.
        arguments: Its own.

    Raises:
        LinkError: The way there failed, or the machine has no room for it.
    """
    command, file = (f"./{name}", *arguments), shlex.quote(name)
    # Nothing is sent behind the program before the folder is named: `head` may read on otherwise.
    script = (
        f'trap "" PIPE; mkdir -p {_parent(runner)} && cd {_parent(runner)} && {_MAKE} || '
        f'{{ printf "\\n{_STATUS}%s\\n" $? >&2; exit; }}; cd "$made"; '
        f"said=$({{ head -c {len(content)} > {file} && chmod 700 {file}; }} 2>&1); code=$?; "
        f"[ $code -ne 0 ] || [ $(wc -c < {file}) -eq {len(content)} ] || code=1; "
        f'if [ $code -eq 0 ]; then echo "$made"; trap - PIPE; '
        f"{_program(runner, '.pid', command)}; code=$?; "
        f"else {_free('.')}; {_SAY_ROOM}; fi; "
        f'trap "" PIPE; cd /; rm -rf "$made"; printf "\\n{_STATUS}%s\\n" $code >&2'
    )
    doing = _putting(name, content)
    seconds = carry_seconds(len(content))
    started = _Started(runner.shell(script))
    try:
        deadline = _deadline(seconds)
        started.write(content, deadline)
        made = _made(runner, started.read_line(deadline))
    except TimeoutError:
        started.kill()
        started.close()
        raise _silent(runner, doing, seconds) from None
    except (EOFError, OSError):
        said = started.last_words(_LAST_WORDS_SECONDS)
        started.close()
        raise _broken(runner, f"cannot {doing} on", said) from None
    except BaseException:
        started.close()
        raise
    return Conversation(runner, command, started, f"{made}/.pid")


class Conversation:
    """A program on another machine that is asked and answers; made by `start_program`."""

    def __init__(self, runner: Runner, command: Sequence[str], started: _Started, pid: str) -> None:
        self._runner = runner
        self._command = command
        self._started = started
        self._pid = pid

    def send(self, *parts: bytes | memoryview, seconds: float | None = None) -> None:
        """Send bytes.

        Raises:
            LinkError: The way there failed.
            ExecutionError: The program has ended, or takes too long to read.
        """
        try:
            for part in parts:
                self._started.write(part, _deadline(seconds))
        except TimeoutError:
            raise self._late(seconds) from None
        except OSError:
            raise self._ended() from None

    def receive(self, nbytes: int, seconds: float | None = None) -> bytes:
        """Return so many bytes that the program writes.

        Raises:
            LinkError: The way there failed.
            ExecutionError: The program ended first, or takes longer than so many seconds.
        """
        try:
            return self._started.read(nbytes, _deadline(seconds))
        except TimeoutError:
            raise self._late(seconds) from None
        except (EOFError, OSError):
            raise self._ended() from None

    def close(self) -> None:
        """End the program: close what it reads, and kill it if it goes on."""
        self._started.close()

    def _late(self, seconds: float | None) -> ExecutionError:
        _kill_there(self._runner, self._pid)
        self.close()
        return ExecutionError(
            f"{_named(self._runner, self._command)} did not answer in {seconds:g} s",
            hint="it hangs, or the machine is slower than was thought",
        )

    def _ended(self) -> BackendError:
        """Return why there is no answer."""
        said = self._started.last_words(_LAST_WORDS_SECONDS)
        self.close()
        try:
            code = _check_ended(self._runner, self._command, said)
        except BackendError as error:
            return error
        last = _last_line(said.rpartition(_STATUS)[0])
        return ExecutionError(
            f"{_named(self._runner, self._command)} ended with {code} instead of an answer"
            + (f": {last}" if last else "")
        )


class _Started:
    """A process here whose input and output lead to another machine."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - need not be drained
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is for the owner to handle
            )
        except OSError as error:
            self._stderr.close()
            raise LinkError(f"cannot start {command[0]!r}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Also where nobody closes it: before what is garbage together with it is finalised.
        self._end = weakref.finalize(self, _end, self._process, self._stderr)
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exchange(self, stdin: bytes, seconds: float | None) -> bytes:
        """Write all, and return all that comes until the end.

        Raises:
            TimeoutError: It took longer.
        """
        try:
            stdout, _ = self._process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return stdout

    def write(self, data: bytes | memoryview, deadline: float | None) -> None:
        """Write all of it.

        Raises:
            TimeoutError: It took longer.
            OSError: The other end is closed.
        """
        left = memoryview(data).cast("B")
        while left:
            self._wait(deadline, writing=True)
            left = left[os.write(self._in, left[:_CHUNK_BYTES]) :]

    def read(self, nbytes: int, deadline: float | None) -> bytes:
        """Read so many bytes.

        Raises:
            TimeoutError: It took longer.
            EOFError: There are fewer.
        """
        received = bytearray()
        while len(received) < nbytes:
            self._wait(deadline, writing=False)
            part = os.read(self._out, min(nbytes - len(received), 16 * _CHUNK_BYTES))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def read_line(self, deadline: float | None) -> str:
        """Read to the end of a line.

        Raises:
            TimeoutError: It took longer.
            EOFError: There is none.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            line += self.read(1, deadline)
        return line[:-1].decode(errors="replace")

    def _wait(self, deadline: float | None, *, writing: bool) -> None:
        left = None if deadline is None else 1e3 * max(0.0, deadline - time.monotonic())
        waiting = select.poll()  # `select` refuses the descriptors of a process with many
        waiting.register(*((self._in, select.POLLOUT) if writing else (self._out, select.POLLIN)))
        if not waiting.poll(left):
            raise TimeoutError

    def last_words(self, seconds: float = 0.0) -> str:
        """Return the end of what it wrote to its error output; first wait so long for its end.

        It reads nothing more then.
        """
        if seconds:
            _close(self._process.stdin)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        return self._stderr.read().decode(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process here and what it has started here."""
        _kill(self._process)

    def close(self) -> None:
        """End it: by the end of its input, else by force."""
        self._end()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    if process.poll() is None:
        # Who reads learns that nothing comes, and who writes that nobody reads.
        _close(process.stdin)
        _close(process.stdout)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout, stderr):
        _close(pipe)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()


def _silent(runner: Runner, doing: str, seconds: float) -> LinkError:
    return LinkError(
        f"cannot {doing} on {runner.place}: no answer in {seconds:.0f} s",
        hint="check the network and the machine",
    )


def _broken(runner: Runner, what: str, said: str) -> LinkError:
    if _status(said) is None:
        problem, hint = runner.explain(said)
    else:
        problem = _last_line(said.rpartition(_STATUS)[0]) or "its shell failed"
        hint = "choose a folder that can be written and has room: ssh://HOST/FOLDER"
    return LinkError(f"{what} {runner.place}: {problem}", hint=hint)


def _named(runner: Runner, command: Sequence[str]) -> str:
    return f"{shlex.join(command)} on {runner.place}"


def _check_ended(runner: Runner, command: Sequence[str], said: str) -> int:
    """Return what a program returned.

    Raises:
        LinkError: The way there failed, or the machine ended it.
        ExecutionError: It could not be started, or a signal of its own doing ended it.
    """
    code = _status(said)
    if code is None:
        raise _broken(runner, f"lost {shlex.join(command)} on", said)
    last = _last_line(said.rpartition(_STATUS)[0])
    if code in (126, 127):
        raise ExecutionError(
            f"{_named(runner, command)} cannot be started: {last or 'not found'}",
            hint="is it for that machine? -mtriple says what code is for, -runner what runs it",
        )
    if code > _MOST_STATUS:
        number = code - _MOST_STATUS
        known = {item.value: item.name for item in signal.Signals}
        name = known.get(number, f"signal {number}")
        message = f"{_named(runner, command)} was ended by {name}" + (f": {last}" if last else "")
        if number in _FROM_OUTSIDE:
            raise LinkError(
                message, hint=f"{name} comes from outside: the machine may be out of memory"
            )
        raise ExecutionError(
            message,
            hint="SIGILL: -mcpu or -mattr promise instructions that the machine lacks"
            if number == signal.SIGILL
            else None,
        )
    return code


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _status(said: str) -> int | None:
    """Return what a program returned, by the last line of a script's errors; None without one."""
    _, sign, rest = said.rpartition(f"\n{_STATUS}")
    text = rest.strip()
    return int(text) if sign and text.isdigit() else None


def _last_line(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


def _socket_folder() -> Path:
    """Return the folder of the sockets of kept connections, which nobody else may enter.

    Raises:
        LinkError: It belongs to somebody else.
    """
    name = f"intarsia-ssh-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    if len(str(folder)) > _SOCKET_FOLDER_LETTERS:
        folder = Path("/tmp") / name  # looked at below
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise LinkError(
            f"{str(folder)!r} is not a folder that is yours alone",
            hint="remove it, or set TMPDIR to another folder",
        )
    return folder
