# SPDX-License-Identifier: Apache-2.0
"""What a library prints by itself is left out, and nothing else."""

import os
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
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
    os.write(STANDARD_ERROR, b"on\n")
    child.communicate(b"\n")
    assert child.returncode == 0
    assert capfd.readouterr().err == "on\n"


def test_more_than_a_pipe_holds_does_not_block(capfd):
    with without_lines("INFO: "):
        for _ in range(1024):
            try:
                os.write(STANDARD_ERROR, b"x" * 1023 + b"\n")
            except BlockingIOError:
                break
    assert len(capfd.readouterr().err) >= 1024


def test_a_closed_descriptor_is_left_alone():
    closed = os.dup(STANDARD_ERROR)
    os.close(closed)
    with without_lines("INFO: ", closed):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed)
