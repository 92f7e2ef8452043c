# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries go in and out over their own memory."""

import array

import numpy as np
import pytest

import intarsia
from intarsia.arrays import address_of
from intarsia.errors import InputError

MODEL = "g (float[2, 4] x) => (float[2, 4] y) { y = Neg(x) }"


class Exporter:
    """An array of another library: nothing but the DLPack protocol."""

    def __init__(self, values, device=(1, 0), options=True):
        self.values, self.device, self.takes_options = values, device, options

    def __dlpack__(self, **options):
        if self.device[0] != 1:
            raise BufferError("it is on a GPU")
        if options and not self.takes_options:
            raise TypeError("unexpected keyword argument")
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@pytest.fixture(scope="module")
def exe(parse_model, backends):
    return intarsia.compile(parse_model(MODEL), "llvm", backends=backends)


@pytest.fixture
def x():
    return np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_bound_call_has_the_memory_of_other_libraries(exe, x):
    result, lines = np.zeros_like(x), array.array("f", bytes(32))
    buffer = memoryview(lines).cast("B").cast("f", (2, 4))
    for source, destination, wrote in (
        (Exporter(x), Exporter(result), result),
        (memoryview(x), buffer, np.asarray(buffer)),
    ):
        context = exe.context({"x": source}, {"y": destination})
        inputs, outputs = context.border()
        assert [address_of(one) for one in inputs] == [address_of(x)]
        assert [address_of(one) for one in outputs] == [address_of(wrote)]
        x += 1  # after it was bound
        context.run()
        np.testing.assert_array_equal(wrote, -x)


def test_out_fills_and_returns_what_was_given(exe, x):
    result = np.zeros_like(x)
    given = Exporter(result)
    assert exe(Exporter(x), out=given) is given
    np.testing.assert_array_equal(result, -x)


def test_every_order_of_elements_can_be_read(exe, x):
    wide = np.zeros((4, 4), np.float32)
    wide[::2] = x
    for source in (wide[::2], np.asfortranarray(x), x[::-1, ::-1].copy()[::-1, ::-1]):
        np.testing.assert_array_equal(exe(Exporter(source)), -x)


REFUSED = [
    (lambda x: Exporter(x.T.copy().T), r"its strides are \[4, 8\] bytes"),
    (lambda x: x.tolist(), "in place: Unable to avoid copy"),
    (lambda x: Exporter(x, device=(2, 1)), "'x' is on cuda:1, whose memory the host does not"),
    (lambda x: Exporter(x.astype(np.float64)), "'x' is float64, the model wants float32"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_bound_says_why(make, message, exe, x):
    with pytest.raises(InputError, match=message) as caught:
        exe.bind({"x": make(x)}, {"y": np.zeros_like(x)})
    assert caught.value.hint


def test_an_exporter_that_does_not_say_that_it_may_be_written_is_read_only(exe, x):
    """DLPack before 1.0 has no such flag, and numpy takes the array for read-only."""
    with pytest.raises(InputError, match="'y' cannot be written: the array is read-only"):
        exe(x, out=Exporter(np.zeros_like(x), options=False))
    np.testing.assert_array_equal(exe(Exporter(x, options=False)), -x)
