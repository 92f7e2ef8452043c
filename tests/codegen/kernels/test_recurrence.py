# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN kernels against the definitions of ONNX in numpy."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import UNITS, dense

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels import recurrence
from intarsia.codegen.kernels.recurrence import GATES, GateFunction, Recurrence
from intarsia.codegen.unit import AVX2, AVX512

ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(op_type, x, h, c, r, bias, p, flags):
    """One step of one direction; x is `[batch, gates, hidden]`, r `[gates, hidden, hidden]`."""
    products = np.einsum("bk,gnk->gbn", h, r)
    x = x.swapaxes(0, 1)
    if op_type == "RNN":
        return np.tanh(x[0] + products[0]), c
    if op_type == "GRU":
        z, reset = sigmoid(x[0] + products[0]), sigmoid(x[1] + products[1])
        inner = (
            reset * (products[2] + bias) if flags.get("is_linear_first") else (reset * h) @ r[2].T
        )
        return (1 - z) * np.tanh(x[2] + inner) + z * h, c
    i, o, f, candidate = x + products
    limit = flags.get("clip") or np.inf
    i = sigmoid(np.clip(i + p[0] * c, -limit, limit))
    f = 1 - i if flags.get("is_coupled") else sigmoid(np.clip(f + p[2] * c, -limit, limit))
    c = f * c + i * np.tanh(np.clip(candidate, -limit, limit))
    return sigmoid(np.clip(o + p[1] * c, -limit, limit)) * np.tanh(c), c


def expected(op_type, x, r, initial, bias, p, lengths, *, reverse, **flags):
    """All steps: y, y_h, y_c, directions first."""
    directions, steps, batch, _, hidden = x.shape
    y = np.zeros((directions, steps, batch, hidden), x.dtype)
    last = [state.copy() for state in initial]
    for d in range(directions):
        turned = bool(d) or (reverse and directions == 1)
        for time in reversed(range(steps)) if turned else range(steps):
            inside = (time < lengths)[:, None]
            h, c = (state[d] for state in last)
            new = cell(op_type, x[d, time], h, c, r[d], bias[d], p[d], flags)
            last[0][d], last[1][d] = (
                np.where(inside, after, before) for after, before in zip(new, (h, c), strict=True)
            )
            y[d, time] = np.where(inside, new[0], 0)
    return y, *(np.where((lengths != 0)[:, None], state, 0) for state in last)


def check(run_kernel, op_type, sizes, unit, dtype="float32", shares=1, lengths=None, **flags):
    directions, steps, batch, hidden = sizes
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.standard_normal(shape) * 0.7).astype(dtype)

    x = draw(directions, steps, batch, GATES[op_type], hidden)
    r = draw(directions, GATES[op_type], hidden, hidden)
    initial = draw(2, directions, batch, hidden)
    bias, p = draw(directions, hidden), draw(directions, 3, hidden)
    is_linear = flags.get("is_linear_first", False)
    reverse = flags.pop("reverse", False)
    counted = np.full(batch, 99) if lengths is None else lengths
    wanted = expected(op_type, x, r, initial, bias, p, counted, reverse=reverse, **flags)
    arrays = {"x": x}
    width = recurrence.columns(unit, dtype, hidden)
    blocks = -(-hidden // width)
    for number, gates in enumerate(recurrence.products(op_type, is_linear_first=is_linear)):
        packed = np.full((directions, blocks, hidden, len(gates), width), 99, dtype)
        for n in range(hidden):
            packed[:, n // width, :, :, n % width] = r[:, gates.start : gates.stop, n].swapaxes(
                1, 2
            )
        arrays[f"r{number}"] = packed
    arrays["initial_h"] = initial[0]
    state = np.zeros_like(initial[0])
    if op_type == "LSTM":
        arrays |= {"initial_c": initial[1], "peepholes": p}
    if is_linear:
        arrays["bias"] = bias
    if lengths is not None:
        arrays["lengths"] = lengths.astype("int32")
    arrays |= {"y": np.zeros_like(wanted[0]), "y_h": state}
    arrays["h"] = np.full((directions, 2, batch, hidden), 7, dtype)
    if op_type == "LSTM":
        arrays |= {"y_c": state, "c": state + 7}
    if op_type == "GRU" and not is_linear:
        arrays |= {"z": state + 7, "reset": state + 7}
    spec = Recurrence(
        op_type,
        *sizes,
        tuple((name, dense(array)) for name, array in arrays.items()),
        tuple(map(GateFunction, ACTIVATIONS[op_type])),
        is_reversed=reverse,
        shares=shares,
        unit=unit,
        **flags,
    )
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    results = run_kernel(recurrence.build(spec), list(arrays.values()), rtol=tolerance)
    by_name = dict(zip(arrays, results, strict=True))
    for name, want in zip(("y", "y_h", "y_c"), wanted, strict=True):
        if name in by_name:
            np.testing.assert_allclose(by_name[name], want, rtol=0, atol=tolerance, err_msg=name)
    return results


SIZES = ((1, 3, 1, 5), (1, 2, 7, 17), (2, 4, 3, 16), (2, 1, 1, 33), (1, 0, 2, 3))
FLAGS = {
    "LSTM": ({}, {"is_coupled": True}, {"clip": 0.3, "reverse": True}),
    "GRU": ({}, {"is_linear_first": True}, {"reverse": True}),
    "RNN": ({}, {"reverse": True}),
}
WAYS = [(op_type, flags) for op_type, ways in FLAGS.items() for flags in ways]


@pytest.mark.sample(8)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("op_type", "flags"), WAYS)
def test_steps(run_kernel, op_type, flags, sizes, unit):
    check(run_kernel, op_type, sizes, unit, **flags)


@pytest.mark.parametrize("op_type", GATES)
def test_in_double_precision(run_kernel, op_type):
    check(run_kernel, op_type, (2, 3, 4, 9), AVX2, "float64")


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_sequences_end_early(run_kernel, op_type, directions):
    lengths = np.array([0, 4, 2, 1, 3])
    check(run_kernel, op_type, (directions, 4, 5, 6), AVX512, lengths=lengths)


@pytest.mark.parametrize("op_type", GATES)
def test_shares_of_a_batch_change_no_bit(run_kernel, op_type):
    whole, *others = (
        check(run_kernel, op_type, (1, 3, 7, 19), AVX512, shares=shares) for shares in (1, 2, 7)
    )
    for other in others:
        for one, same in zip(whole, other, strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("sizes", [(1, 3, 0, 4), (1, 3, 2, 0)])
def test_nothing(run_kernel, sizes):
    check(run_kernel, "RNN", sizes, AVX2)


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [
        (GateFunction("Affine", (("alpha", 2.0), ("beta", 0.5))), lambda x: 2 * x + 0.5),
        (GateFunction("ScaledTanh", (("alpha", 3.0), ("beta", 0.5))), lambda x: 3 * np.tanh(x / 2)),
        (GateFunction("LeakyRelu"), lambda x: np.where(x < 0, 0.01 * x, x)),
    ],
)
def test_activations(run_kernel, activation, wanted):
    x = np.linspace(-3, 3, 9, dtype="float32").reshape(1, 9, 1, 1, 1)
    r, h, y = np.zeros((1, 1, 1, 1, 1), "float32"), np.zeros((1, 2, 1, 1), "float32"), x[..., 0]
    tensors = (("x", dense(x)), ("r0", dense(r)), ("y", dense(y)), ("h", dense(h)))
    spec = Recurrence("RNN", 1, 9, 1, 1, tensors, (activation,), unit=AVX2)
    got = run_kernel(recurrence.build(spec), [x, r, y, h], rtol=1e-5)
    np.testing.assert_allclose(got[2], wanted(y), rtol=1e-5)


def test_strides_that_are_not_dense(run_kernel):
    x = np.random.default_rng(0).standard_normal((2, 3, 1, 1, 4)).astype("float32")
    r, h = np.zeros((1, 1, 4, 1, 4), "float32"), np.zeros((1, 2, 3, 4), "float32")
    turned = Layout("float32", (0, 4, 12, 0, 1))  # batch first
    y = np.zeros((2, 3, 4), "float32")
    tensors = (("x", turned), ("r0", dense(r)), ("y", Layout("float32", (0, 4, 12, 1))))
    spec = Recurrence(
        "RNN", 1, 3, 2, 4, (*tensors, ("h", dense(h[:, :, :2]))), (GateFunction("Tanh"),), unit=AVX2
    )
    got = run_kernel(recurrence.build(spec), [x, r, y, h[:, :, :2]], rtol=1e-5)
    np.testing.assert_allclose(got[2], np.tanh(x[:, :, 0, 0]), rtol=1e-5)
