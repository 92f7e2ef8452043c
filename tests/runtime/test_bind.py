# SPDX-License-Identifier: Apache-2.0
"""The tightest loop: `exe(x, out=...)` and `exe.bind(...)` on arrays of the caller's."""

import gc

import numpy as np
import pytest

import intarsia
from intarsia.errors import ExecutionError, InputError

TARGETS = ("reference", "onnxruntime", "fake -ops=Relu,Add, reference")


@pytest.fixture(scope="module", params=TARGETS)
def exe(request, chain_model, backends):
    return intarsia.compile(chain_model, request.param, num_threads=1, backends=backends)


@pytest.fixture(scope="module")
def x(chain_model, random_feeds):
    return random_feeds(chain_model)["x"]


def empty():
    return np.full((2, 4), np.nan, np.float32)


def test_out_is_filled_and_returned(exe, x):
    out = (empty(), empty())
    returned = exe(x, out=out)
    assert all(a is b for a, b in zip(returned, out, strict=True))
    for array, wanted in zip(out, exe(x), strict=True):
        np.testing.assert_array_equal(array, wanted)
    again = [array.copy() for array in out]
    exe(-x)  # another run does not touch them
    np.testing.assert_array_equal(out, again)


def test_one_output_takes_one_array(parse_model, backends):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    exe = intarsia.compile(model, "reference", backends=backends)
    out = np.zeros(2, np.float32)
    assert exe(np.array([1, -2], np.float32), out=out) is out
    np.testing.assert_array_equal(out, [-1, 2])
    assert exe(np.array([3, 4], np.float32), out=[out]) is out
    np.testing.assert_array_equal(out, [-3, -4])


def read_only():
    array = empty()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (empty(), "the model has 2 outputs, out has 1 arrays"),
        ((empty(),) * 3, "the model has 2 outputs, out has 3 arrays"),
        ((empty(), np.zeros((2, 4))), "'mid' is float64, the model wants float32"),
        ((empty(), np.zeros((4, 2), np.float32)), r"'mid' has shape \[4, 2\]"),
        ((np.zeros((4, 2), np.float32).T, empty()), "'y' cannot be bound in place"),
        ((empty(), [[0.0] * 4] * 2), "'mid'"),
        ((read_only(), empty()), "'y' cannot be written: the array is read-only"),
    ],
)
def test_what_cannot_be_filled_is_named(out, message, exe, x):
    with pytest.raises(InputError, match=message):
        exe(x, out=out)


def test_out_needs_a_shape_that_is_known(parse_model, backends):
    model = parse_model("g (float[2] x) => (int64[1, n] y) { y = NonZero(x) }")
    exe = intarsia.compile(model, "reference", backends=backends)
    with pytest.raises(InputError, match="'y' cannot be written to an array"):
        exe(np.ones(2, np.float32), out=np.zeros((1, 2), np.int64))


def test_a_bound_call_reads_and_writes_in_place(exe, x):
    source, y, mid = x.copy(), empty(), empty()
    call = exe.bind({"x": source}, {"y": y, "mid": mid})
    for factor in (1, -2, 0.5):
        source[...] = x * np.float32(factor)
        call()
        np.testing.assert_array_equal((y, mid), exe(source))


def test_a_bound_call_lives_on_its_own(chain_model, backends, x):
    exe = intarsia.compile(chain_model, "onnxruntime", backends=backends)
    wanted, y = exe(x)[0], empty()
    call = exe.bind({"x": x.copy()}, {"y": y})
    del exe
    gc.collect()
    call()
    np.testing.assert_array_equal(y, wanted)


def test_every_input_is_bound(exe):
    with pytest.raises(InputError, match="input 'x' is missing"):
        exe.bind({}, {"y": empty()})


def test_unknown_names_are_refused(exe, x):
    with pytest.raises(InputError, match="no tensor 'z' to bind"):
        exe.bind({"x": x.copy()}, {"z": empty()})


def test_a_failure_in_a_bound_call_is_explained(parse_model, backends):
    model = parse_model("g (float[4] x) => (float[4] y) { y = Tanh(x) }")
    exe = intarsia.compile(model, "fake -fault=run, reference", num_threads=1, backends=backends)
    call = exe.bind({"x": np.zeros(4, np.float32)}, {})
    with pytest.raises(ExecutionError, match="Tanh"):
        call()
