# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN as programs, against onnxruntime."""

import numpy as np
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.errors import InputError, UnsupportedError

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def draw_model(rng, op_type):
    """A model of one operator with random sizes, options and constants, and its inputs."""
    steps, batch = int(rng.integers(1, 6)), int(rng.choice([1, 2, 3, 9]))
    depth, hidden = int(rng.choice([1, 3, 20])), int(rng.choice([1, 5, 16, 33]))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    ways, gates = 1 + (direction == "bidirectional"), GATES[op_type]
    fed, fixed, names = {}, {}, []

    def add(name, array, *, constant):
        (fixed if constant else fed)[name] = array
        names.append(name)

    def numbers(*shape):
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    is_constant = rng.random() < 0.7
    add("x", numbers(steps, batch, depth), constant=False)
    add("w", numbers(ways, gates * hidden, depth), constant=is_constant)
    add("r", numbers(ways, gates * hidden, hidden), constant=is_constant)
    state = (ways, batch, hidden)
    options = [("b", numbers(ways, 2 * gates * hidden), is_constant)]
    options.append(("l", rng.integers(1, steps + 1, batch).astype(np.int32), rng.random() < 0.5))
    options.append(("h", numbers(*state), rng.random() < 0.3))
    if op_type == "LSTM":
        options.append(("c", numbers(*state), rng.random() < 0.3))
        options.append(("p", numbers(ways, 3 * hidden), is_constant))
    for name, array, constant in options:
        if rng.random() < 0.5:
            add(name, array, constant=constant)
        else:
            names.append("")
    flags = [f"hidden_size = {hidden}", f'direction = "{direction}"']
    flags += ["clip = 0.4"] * (rng.random() < 0.2)
    flags += ["linear_before_reset = 1"] * (op_type == "GRU" and rng.random() < 0.5)
    flags += ["input_forget = 1"] * (op_type == "LSTM" and rng.random() < 0.3)
    if rng.random() < 0.3:
        some = rng.choice(["Relu", "Tanh", "Elu", "HardSigmoid"], ways * min(gates, 3))
        some = some[: ways * {"LSTM": 3, "GRU": 2, "RNN": 1}[op_type]]
        flags.append(f"activations = [{', '.join(f'{chr(34)}{name}{chr(34)}' for name in some)}]")
    results = ["y", "h_last", "c_last"][: 3 if op_type == "LSTM" else 2]
    wanted = [name if rng.random() < 0.7 else "" for name in results]
    wanted = wanted if any(wanted) else results
    body = f"{', '.join(wanted)} = {op_type}<{', '.join(flags)}>({', '.join(names).rstrip(', ')})"
    return small_model(", ".join(filter(None, wanted)), body, fed, fixed), fed


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("seed", range(4))
def test_random_networks(run_both, op_type, seed):
    for part in range(3):
        model, feeds = draw_model(np.random.default_rng([seed, part]), op_type)
        run_both(model, feeds)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first_is_the_same_turned(backends, op_type):
    gates = GATES[op_type]
    shapes = {"w": (2, 8 * gates, 3), "r": (2, 8 * gates, 8), "b": (2, 16 * gates)}
    flags = 'hidden_size = 8, direction = "bidirectional"'
    x = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
    h = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    results = []
    for layout in (0, 1):
        body = f"y, z = {op_type}<{flags}, layout = {layout}>(x, w, r, b, , h)"
        feeds = {"x": x.swapaxes(0, layout), "h": h.swapaxes(0, layout)}
        model = small_model("y, z", body, feeds, shapes)
        results.append(intarsia.compile(model, "llvm", strict=True, backends=backends).run(feeds))
    first, turned = results
    np.testing.assert_array_equal(turned["y"], first["y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(turned["z"], first["z"].swapaxes(0, 1))


def test_two_layers_between_others(run_both):
    body = """
        s = Transpose<perm = [1, 0, 2]>(x)
        a, ah = GRU<hidden_size = 6, linear_before_reset = 1>(s, w, r, b)
        q = Squeeze(a, one)
        , c, d = LSTM<hidden_size = 5>(q, v, u)
        y = Concat<axis = 2>(c, d)
        z = Relu(y)"""
    weights = {"w": (1, 18, 7), "r": (1, 18, 6), "b": (1, 36), "v": (1, 20, 6), "u": (1, 20, 5)}
    model = small_model("z", body, {"x": (3, 4, 7)}, weights | {"one": np.array([1])})
    run_both(model, feeds_of(model))


def test_only_last_states_of_two(run_both):
    body = ", h = LSTM<hidden_size = 3>(x, w, r) , i = RNN<hidden_size = 3>(x, v, s) y = Add(h, i)"
    weights = {"w": (1, 12, 2), "r": (1, 12, 3), "v": (1, 3, 2), "s": (1, 3, 3)}
    model = small_model("y", body, {"x": (4, 2, 2)}, weights)
    run_both(model, feeds_of(model))


def test_a_length_beyond_the_sequence_is_an_error(backends):
    lengths = np.array([2, 9], np.int32)
    model = small_model(
        "y",
        "y = RNN<hidden_size = 3>(x, w, r, , l)",
        {"x": (4, 2, 2), "l": lengths},
        {"w": (1, 3, 2), "r": (1, 3, 3)},
    )
    exe = intarsia.compile(model, "llvm", strict=True, backends=backends)
    with pytest.raises(InputError, match="index 9 in 'l'"):
        exe.run({"x": np.zeros((4, 2, 2), np.float32), "l": lengths})


@pytest.mark.parametrize(
    ("flags", "more", "reason"),
    [
        ('activations = ["Affine"]', {}, "its activation Affine lacks a number"),
        ('activations = ["Tanh", "Tanh"]', {}, "it has 2 activations"),
        ('activations = ["Sine"]', {}, "its activation sine has no native code"),
        ("clip = 0.5", {"l": np.array([1, 5], np.int32)}, "not all of 0 to 4 steps"),
    ],
)
def test_refusals(backends, flags, more, reason):
    body = f"y = RNN<hidden_size = 3, {flags}>(x, w, r{', , l' if more else ''})"
    model = small_model("y", body, {"x": (4, 2, 2)}, {"w": (1, 3, 2), "r": (1, 3, 3), **more})
    with pytest.raises(UnsupportedError, match=reason):
        intarsia.compile(model, "llvm", strict=True, backends=backends)
