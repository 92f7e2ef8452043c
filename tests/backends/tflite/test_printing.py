# SPDX-License-Identifier: Apache-2.0
"""What a library prints by itself is left out, and nothing else."""

import os
import resource
import subprocess
import sys

import pytest

from intarsia.backends.tflite.printing import STANDARD_ERROR, without_lines


def test_lines_are_left_out_and_others_come_through_in_order(capfd):
    with without_lines("INFO: "):
        os.write(STANDARD_ERROR, b"WARNING: one\nINFO: created\nERROR: two\nINFO: and more\n")
    os.write(STANDARD_ERROR, b"INFO: later\n")
    assert capfd.readouterr().err == "WARNING: one\nERROR: two\nINFO: later\n"


def test_what_is_said_before_an_error_comes_through(capfd):
    def refuse():
        with without_lines("INFO: "):
            os.write(STANDARD_ERROR, b"INFO: created\nERROR: it does not fit\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        refuse()
    assert capfd.readouterr().err == "ERROR: it does not fit\n"


def test_a_process_that_starts_meanwhile_holds_nothing_up(capfd):
    with without_lines("INFO: "):
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; input(); os.write(2, b'late'); print('on')"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    os.write(STANDARD_ERROR, b"on\n")
    said, _ = child.communicate(b"\n")
    assert said == b"on\n"
    assert child.returncode == 0
    assert capfd.readouterr().err == "on\n"


def test_more_than_a_pipe_holds_comes_through(capfd):
    with without_lines("INFO: "):
        for _ in range(128):
            os.write(STANDARD_ERROR, b"x" * 1023 + b"\n")
    assert len(capfd.readouterr().err) == 128 * 1024


def test_a_child_of_fork_can_do_the_same(capfd):
    reader, writer = os.pipe()
    with without_lines("INFO: "):
        child = os.fork()
        if child == 0:  # the lock of the parent is held in it
            with without_lines("INFO: "):
                os.write(writer, b"made")
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"made"
    assert os.waitpid(child, 0)[1] == 0


def test_a_closed_descriptor_is_left_alone():
    closed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # none is numbered so
    with without_lines("INFO: ", closed):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed)
