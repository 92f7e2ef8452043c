# SPDX-License-Identifier: Apache-2.0
"""Constants that several programs of one model share."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.graph.arena import LARGE_ARRAY_BYTES
from intarsia.runtime.loader import SharedConstants


def artifact(*arrays, is_packed=True):
    constants = tuple(
        ArtifactConstant(f"w{number}", array, is_packed) for number, array in enumerate(arrays)
    )
    return Artifact("llvm", "1", "llvm", b"", (), (), constants)


def weights(seed, count=8):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((300, 1000), np.float32) for _ in range(count)]


def data(shared):
    return [one.data for one in shared.constants]


def test_equal_constants_of_programs_are_one_array():
    shared = SharedConstants()
    first = shared.share(artifact(*weights(1)))
    second = shared.share(artifact(*weights(1), *weights(2)))
    assert all(a is b for a, b in zip(data(first), data(second)[:8], strict=True))
    for array, expected in zip(data(second), [*weights(1), *weights(2)], strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
def test_what_was_packed_lies_side_by_side_and_what_was_not_stays():
    own = weights(3)
    large = np.zeros(LARGE_ARRAY_BYTES // 4, np.float32)
    packed = data(SharedConstants().share(artifact(*own, large)))
    assert max(np.diff([array.ctypes.data for array in packed[:-1]])) < own[0].nbytes + 64
    assert packed[-1] is large
    plain = data(SharedConstants().share(artifact(*own, is_packed=False)))
    assert all(array is one for array, one in zip(plain, own, strict=True))


def test_constants_are_held_by_programs_alone():
    shared = SharedConstants()
    first = shared.share(artifact(*weights(4)))
    held = first.constants[0].data
    del first
    again = shared.share(artifact(*weights(4)))
    assert again.constants[0].data is held
    assert len(shared._by_content) == 8
    del again
    assert len(shared._by_content) == 1
