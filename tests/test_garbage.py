# SPDX-License-Identifier: Apache-2.0
"""While a model is compiled garbage waits; afterwards the process is as it was."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import intarsia
from intarsia.errors import ModelError
from intarsia.garbage import fewer_collections


@pytest.fixture(autouse=True)
def usual():
    """Python's own settings; those of the test process come back."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def collections_of(count):
    """Return how often Python looked for garbage while so many objects were made."""
    phases = []
    listen = lambda phase, info: phases.append(phase)  # noqa: E731
    gc.callbacks.append(listen)
    try:
        kept = [[] for _ in range(count)]
    finally:
        gc.callbacks.remove(listen)
    assert len(kept) == count
    return phases.count("start")


def test_objects_that_stay_are_looked_at_less_often():
    usually = collections_of(100_000)
    with fewer_collections():
        assert collections_of(100_000) * 10 < usually
    assert collections_of(100_000) * 10 > usually


def test_the_settings_come_back_when_the_last_one_leaves():
    def compile_one(_):
        with fewer_collections(), fewer_collections():
            assert gc.get_threshold() != (700, 10, 10)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compile_one, range(200)))
    assert gc.get_threshold() == (700, 10, 10)


def test_they_come_back_after_a_failure():
    with pytest.raises(ModelError):
        intarsia.compile(b"no model", "onnxruntime", cache=False)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("said", [(0, 10, 10), (1_000_000, 5, 5)])
def test_who_collects_less_or_never_is_left_alone(said):
    gc.set_threshold(*said)
    with fewer_collections():
        assert gc.get_threshold() == said
    assert gc.get_threshold() == said


def test_what_is_set_meanwhile_stays():
    with fewer_collections():
        gc.set_threshold(5000, 3, 3)
    assert gc.get_threshold() == (5000, 3, 3)
