# SPDX-License-Identifier: Apache-2.0
"""Runners: files come and go, programs run and are talked to, alike here, emulated and by SSH."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from intarsia.errors import ExecutionError, LinkError, TargetError
from intarsia.process.runner import (
    HereRunner,
    PrefixRunner,
    RemoteFolder,
    SshRunner,
    parse_runner,
    start_program,
)

EMULATOR, COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-gcc-12"

ECHO = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int byte;
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "abort"))
        abort();
    if (!strcmp(what, "spin"))
        for (;;)
            ;
    if (!strcmp(what, "fail")) {
        fputs("last words\n", stderr);
        return 7;
    }
    if (!strcmp(what, "take"))
        return malloc((size_t)1 << 34) == NULL ? 9 : 0;
    while ((byte = getchar()) != EOF) {
        putchar(byte ^ 1);
        fflush(stdout);
    }
    return 0;
}
"""


def build(folder: Path, compiler: str, *options: str) -> bytes:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (folder / "echo.c").write_text(ECHO)
    command = [compiler, "-O1", *options, "-o", str(folder / "echo"), str(folder / "echo.c")]
    subprocess.run(command, check=True)
    return (folder / "echo").read_bytes()


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    return build(tmp_path_factory.mktemp("echo"), "cc")


@pytest.fixture(params=["here", "ssh", EMULATOR])
def way(request, tmp_path):
    """A runner with a program that runs there."""
    if request.param == "here":
        return HereRunner(), request.getfixturevalue("native")
    if request.param == "ssh":
        return request.getfixturevalue("by_ssh"), request.getfixturevalue("native")
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed")
    return parse_runner(EMULATOR), build(tmp_path, COMPILER, "-static")


@pytest.mark.parametrize(
    ("text", "runner"),
    [
        ("here", HereRunner()),
        ("qemu-aarch64-static -L '/a b'", PrefixRunner(("qemu-aarch64-static", "-L", "/a b"))),
        ("ssh://board", SshRunner("board")),
        ("ssh://me@Board:2222/data/x/", SshRunner("Board", "me", 2222, "/data/x")),
        ("ssh://[::1]:22", SshRunner("::1", port=22)),
        ("ssh://a%40b@board/data%3F%23%25x", SshRunner("board", "a@b", 0, "/data?#%x")),
    ],
)
def test_a_text_names_a_runner_which_prints_as_it(text, runner):
    assert parse_runner(text) == runner
    assert parse_runner(runner.text) == runner


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  ", "empty"),
        ("qemu 'x", "not a command"),
        ("telnet://board", "address of telnet"),
        ("ssh://", "names no host"),
        ("ssh://-oProxyCommand=x", "names no host"),
        ("ssh://me:secret@board", "holds a password"),
        ("ssh://board:99999", "not an address"),
        ("ssh://board/x?y", "more than a folder"),
    ],
)
def test_a_text_that_names_none_is_refused(text, problem):
    with pytest.raises(TargetError, match=problem) as caught:
        parse_runner(text)
    assert "secret" not in str(caught.value)


def test_a_shell_that_greets_is_told_and_nothing_else_is_removed(monkeypatch):
    greeting = ["/bin/sh", "-c", "echo hello; echo /; printf '\\nintarsia-status 0\\n' >&2"]
    monkeypatch.setattr(HereRunner, "shell", lambda self, script: greeting)
    with pytest.raises(LinkError, match="instead of one it says 'hello") as caught:
        RemoteFolder(HereRunner())
    assert "bashrc" in caught.value.hint


def test_a_folder_whose_name_is_lost_on_the_way_is_removed(monkeypatch, tmp_path):
    pipe = tmp_path / "pipe"  # of which nobody reads the other end
    broken = f"mkfifo {pipe}; : < {pipe} & exec > {pipe}; wait; "
    monkeypatch.setattr(PrefixRunner, "shell", lambda _, script: ["sh", "-c", broken + script])
    with pytest.raises(LinkError, match="cannot make a folder"):
        RemoteFolder(PrefixRunner(("sh",), str(tmp_path / "there")))
    wait_until(lambda: not list((tmp_path / "there").iterdir()))


def test_every_way_carries_files_and_programs(way):
    runner, program = way
    with RemoteFolder(runner) as folder:
        folder.put("echo it", program)
        folder.put("data", bytes(range(256)) * 1000)
        assert folder.get("data") == bytes(range(256)) * 1000
        done = folder.run("./echo it", stdin=b"abc", seconds=60)
        assert (done.code, done.stdout) == (0, b"`cb")
        done = folder.run("./echo it", "fail", seconds=60)
        assert (done.code, done.stderr.strip()) == (7, "last words")
        with pytest.raises(ExecutionError, match=f"abort on {runner.place} was ended by SIGABRT"):
            folder.run("./echo it", "abort")
        with pytest.raises(ExecutionError, match=r"took more than 0\.3 s and was killed"):
            folder.run("./echo it", "spin", seconds=0.3)
        if not runner.emulator:
            assert folder.run("./echo it", "take", memory_bytes=1 << 30).code == 9
            with pytest.raises(ExecutionError, match=r"\./absent on .* cannot be started"):
                folder.run("./absent")
        path = folder.path
    again = RemoteFolder(runner)
    assert not Path(path).exists()
    again.close()


def test_a_machine_without_room_for_a_file_says_so_with_the_size_and_the_room(tmp_path):
    with RemoteFolder(parse_runner("here")) as folder:
        part = Path(folder.path, "agent.part")
        part.symlink_to("/dev/full")
        with pytest.raises(LinkError) as caught:
            folder.put("agent", bytes(100_000))
        assert re.fullmatch(
            r"cannot put agent \(100000 bytes\) on this machine: .*No space left on device "
            r"\(\d+ KiB are free there\)",
            caught.value.message,
        )
        assert "has room" in caught.value.hint
        assert list(Path(folder.path).iterdir()) == []
        folder.put("agent", b"1")
        assert folder.get("agent") == b"1"


def test_every_way_leads_to_a_program_that_answers_and_takes_its_folder_along(way):
    runner, program = way
    talk = start_program(runner, "echo it", program)
    folder = Path(talk._pid).parent
    assert (folder / "echo it").read_bytes() == program
    for size in (1, 1000, 20_000):
        for start in range(0, size, 4096):  # the program answers byte by byte
            part = bytes([6]) * min(4096, size - start)
            talk.send(part, seconds=60)
            assert talk.receive(len(part), seconds=60) == bytes([7]) * len(part)
    with pytest.raises(ExecutionError, match=r"did not answer in 0\.2 s"):
        talk.receive(1, seconds=0.2)
    ended = start_program(runner, "echo", program, "fail")
    with pytest.raises(ExecutionError, match="ended with 7 instead of an answer: last words"):
        ended.receive(1)
    assert not Path(ended._pid).parent.exists()
    wait_until(lambda: not folder.exists())


def test_a_machine_without_room_for_a_program_says_so_and_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(HereRunner, "shell", lambda _, script: ["sh", "-c", limited + script])
    limited = "ulimit -f 8; trap '' XFSZ; "  # more than so many blocks cannot be written
    runner = parse_runner("here")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(LinkError) as caught:
        start_program(runner, "agent", bytes(100_000))
    assert re.fullmatch(
        r"cannot put agent \(100000 bytes\) on this machine: .*File too large "
        r"\(\d+ KiB are free there\)",
        caught.value.message,
    )
    assert "has room" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_comes_in_part_is_not_started_and_leaves_nothing(tmp_path, monkeypatch):
    short = ["sh", "-c", 'head -c 1000 | sh -c "$1"', "sh"]  # the rest is lost on the way
    monkeypatch.setattr(HereRunner, "shell", lambda _, script: [*short, script])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(LinkError, match=r"cannot put agent \(200000 bytes\)"):
        start_program(parse_runner("here"), "agent", b"#!/bin/sh\n" + bytes(199_990))
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_program_is_brought_and_talked_to_by_one_shell(by_ssh, native, monkeypatch):
    asked = []
    shell = SshRunner.shell
    monkeypatch.setattr(
        SshRunner, "shell", lambda runner, script: (asked.append(script), shell(runner, script))[1]
    )
    talk = start_program(by_ssh, "echo", native)
    talk.send(b"a")
    assert talk.receive(1) == b"`"
    talk.close()
    assert len(asked) == 1


def test_a_program_for_another_machine_is_told_as_that(tmp_path):
    program = bytearray(build(tmp_path, COMPILER, "-static"))
    program[18] ^= 0x55  # the machine in an ELF file's header: one that nothing is registered for
    with RemoteFolder(HereRunner()) as folder:
        folder.put("echo", bytes(program))
        with pytest.raises(ExecutionError, match="cannot be started") as caught:
            folder.run("./echo")
    assert "-runner what runs it" in caught.value.hint


def test_a_missing_emulator_is_told_by_name():
    with pytest.raises(LinkError, match="no 'qemu-none' here") as caught:
        RemoteFolder(parse_runner("qemu-none -L x"))
    assert "install it" in caught.value.hint


def test_one_connection_is_kept(by_ssh, ssh_server):
    def connections():
        main = ssh_server._process.pid
        return Path(f"/proc/{main}/task/{main}/children").read_text().split()

    with RemoteFolder(by_ssh) as folder:
        wait_until(lambda: len(connections()) == 1)  # those of other tests end by themselves
        first = connections()
        folder.put("x", b"1")
        folder.get("x")
        assert connections() == first


def test_a_connection_that_breaks_is_one_error_and_the_next_is_new(by_ssh, ssh_server, native):
    talk = start_program(by_ssh, "echo", native)
    talk.send(b"a")
    assert talk.receive(1) == b"`"
    ssh_server.cut()
    with pytest.raises(LinkError, match=rf"lost ./echo on 127.0.0.1:{ssh_server.port}"):
        talk.receive(1)
    wait_until(lambda: not Path(talk._pid).parent.exists())  # the program saw its input end
    with RemoteFolder(by_ssh) as other:
        other.put("echo", native)
        assert other.run("./echo", stdin=b"a").stdout == b"`"


def test_what_is_wrong_with_the_way_is_told_with_the_host_and_a_remedy(by_ssh, ssh_server):
    by_ssh.disconnect()
    for change, problem, remedy in (
        ({"key": "other_key"}, "it refused your key", "ssh-copy-id"),
        ({"known": "nobody"}, "its host key is unknown", "connect once by hand"),
    ):
        ssh_server.configure(**change)
        with pytest.raises(LinkError, match=rf"127.0.0.1:{ssh_server.port}: {problem}") as caught:
            RemoteFolder(by_ssh)
        assert remedy in caught.value.hint
    ssh_server.configure()
    with pytest.raises(LinkError, match=r"cannot make a folder on .*/proc/none"):
        RemoteFolder(parse_runner(f"ssh://127.0.0.1:{ssh_server.port}/proc/none"))
    by_ssh.disconnect()
    ssh_server.stop()
    try:
        with pytest.raises(LinkError, match="it refused the connection") as caught:
            RemoteFolder(by_ssh)
        assert "start an SSH server there" in caught.value.hint
    finally:
        ssh_server.start()
    with pytest.raises(LinkError, match=r"no-such-host\.invalid: no machine of that name"):
        RemoteFolder(parse_runner("ssh://no-such-host.invalid"))


def wait_until(is_so):
    for _ in range(6000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")
