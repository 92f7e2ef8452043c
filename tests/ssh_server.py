# SPDX-License-Identifier: Apache-2.0
"""A real SSH server on this machine's loopback, with keys and a port of its own, for tests."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intarsia.process.runner import parse_runner

SERVER = "/usr/sbin/sshd"


class SshServer:
    """Serves whoever has the key in its folder.

    Its client is a script that goes before the system's in `PATH`: the system's looks for the
    user's settings where the account says, which a test must not touch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        for name in ("host_key", "user_key", "other_key"):
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        (folder / "authorized").write_bytes((folder / "user_key.pub").read_bytes())
        (folder / "authorized").chmod(0o600)
        kind, key, *_ = (folder / "host_key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized\nPidFile {folder}/sshd.pid\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nMaxSessions 64\n"
        )
        self.configure()
        self._process = None
        self.start()

    def configure(self, key: str = "user_key", known: str = "known_hosts") -> None:
        """Let the client use a key and a file of known hosts."""
        folder = self.folder
        (folder / "config").write_text(
            f"Host *\n  IdentityFile {folder}/{key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder}/{known}\n  GlobalKnownHostsFile none\n"
        )
        (folder / "bin").mkdir(exist_ok=True)
        client = folder / "bin" / "ssh"
        client.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
        client.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What processes need to find its client, and to keep connections to it apart."""
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {"PATH": path, "TMPDIR": str(self.folder)}

    @property
    def text(self) -> str:
        """The runner that leads to it."""
        return f"ssh://127.0.0.1:{self.port}{self.folder}/there"

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)  # its own account lives there
        command = (SERVER, "-D", "-f", str(self.folder / "sshd_config"))
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(3000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise TimeoutError("sshd does not listen")

    def cut(self) -> list[int]:
        """Break every connection there is, and return its processes; new ones are served."""
        processes = list(_servers_below(self._process.pid))
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        return processes

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.cut()
        self.stop()

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _free_port() -> int:
    """Return a port that nobody has, below those that systems hand out.

    One of those may be another connection's before the server has it, or while it is stopped.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def _servers_below(pid: int) -> Iterator[int]:
    """Give the server's own processes, not what they have started."""
    try:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().startswith("sshd"):
                yield from _servers_below(int(child))
                yield int(child)
    except OSError:  # gone meanwhile
        return


@pytest.fixture(scope="module")
def ssh_server(tmp_path_factory):
    if not Path(SERVER).exists():
        pytest.skip(f"{SERVER} is not installed")
    served = SshServer(tmp_path_factory.mktemp("ssh"))
    yield served
    served.close()


@pytest.fixture
def by_ssh(ssh_server, monkeypatch):
    for name, value in ssh_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    ssh_server.configure()
    runner = parse_runner(ssh_server.text)
    yield runner
    runner.disconnect()
