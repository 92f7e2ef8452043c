# SPDX-License-Identifier: Apache-2.0
"""Where arrays lie, whatever they hold."""

import ml_dtypes
import numpy as np
import pytest

from intarsia.arrays import address_of


def read_only():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((), np.int64),
        np.zeros((0, 3), np.float32),
        np.zeros((4, 4), np.float32)[1:, ::2],
        np.zeros(8, np.uint8)[3:],
        np.zeros(4, ml_dtypes.bfloat16),
        np.zeros(4, "M8[s]"),
        np.array(["a", "b"], object),
        np.array(["a", "b"]),
        read_only(),
    ],
    ids=lambda array: f"{array.dtype.name}{array.shape}",
)
def test_an_address_is_that_of_the_first_element(array):
    assert address_of(array) == array.ctypes.data
