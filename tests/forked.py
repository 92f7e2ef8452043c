# SPDX-License-Identifier: Apache-2.0
"""What a child of fork says, which may as well hang or die: a lock may have had another owner."""

from multiprocessing.connection import wait

import pytest

_SECONDS = 300.0


def answer_of(child, queue):
    """Return what a child puts into a queue, and wait for its end.

    Args:
        child: The process, started.
        queue: A `SimpleQueue`, into which it puts one thing.
    """
    reader = queue._reader
    wait([reader, child.sentinel], _SECONDS)
    if not reader.poll():
        child.kill()
        child.join()
        pytest.fail(f"a child of fork hung, or ended with {child.exitcode} without a word")
    answer = queue.get()
    child.join(_SECONDS)
    assert child.exitcode == 0
    return answer
