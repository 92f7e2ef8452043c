# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM for the ONNX reference evaluator (ONNX 1.23, "Operators": RNN, GRU, LSTM).

Its own pass over `clip`, `sequence_lens`, `activations`, their `alpha` and `beta`, and
`input_forget` without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from intarsia.arrays import Array

States: TypeAlias = tuple[Array, ...]
"""Each is `[batch, hidden]`; the first is the output."""
Activation: TypeAlias = Callable[[Array], Array]

_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "hardsigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "leakyrelu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "relu": lambda x: np.maximum(x, 0),
    "scaledtanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanh": np.tanh,
    "thresholdedrelu": lambda x, alpha: np.where(x > alpha, x, 0),
}
_PARAMETERS: Mapping[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0,),
}
"""`alpha` and `beta` of those that have any, where a node does not say."""


@cache
def recurrent() -> tuple[type[Any], ...]:
    """Return the three operators."""
    from onnx.reference.op_run import OpRun

    class RNN(OpRun):
        def _run(self, x: Any, w: Any, r: Any, *more: Any, **attributes: Any) -> tuple[Any, ...]:
            b, lengths, h = _filled(more, 3)
            results = _run(_rnn_cell, ("Tanh",), (x, w, r, b, lengths), (h,), attributes)
            return results[: len(self.onnx_node.output)]

    class GRU(OpRun):
        def _run(self, x: Any, w: Any, r: Any, *more: Any, **attributes: Any) -> tuple[Any, ...]:
            b, lengths, h = _filled(more, 3)
            is_linear = bool(attributes.get("linear_before_reset"))
            cell = partial(_gru_cell, is_linear)
            defaults = ("Sigmoid", "Tanh")
            results = _run(cell, defaults, (x, w, r, b, lengths), (h,), attributes)
            return results[: len(self.onnx_node.output)]

    class LSTM(OpRun):
        def _run(self, x: Any, w: Any, r: Any, *more: Any, **attributes: Any) -> tuple[Any, ...]:
            b, lengths, h, c, p = _filled(more, 5)
            peepholes = np.zeros((w.shape[0], 3 * r.shape[-1]), x.dtype) if p is None else p
            cell = partial(_lstm_cell, bool(attributes.get("input_forget")))
            operands = (x, w, r, b, lengths, peepholes)
            results = _run(cell, ("Sigmoid", "Tanh", "Tanh"), operands, (h, c), attributes)
            return results[: len(self.onnx_node.output)]

    return RNN, GRU, LSTM


def _filled(given: Sequence[Any], count: int) -> list[Any]:
    """Return optional inputs, None for those that a node leaves out at its end."""
    return [*given, *[None] * (count - len(given))]


def _run(
    cell: Callable[..., States],
    defaults: Sequence[str],
    operands: tuple[Any, ...],
    initial: tuple[Any, ...],
    attributes: Mapping[str, Any],
) -> tuple[Array, ...]:
    """Return `Y` and the last states of an operator, in the shapes that ONNX says.

    Args:
        cell: Takes the clip, the activations, the weights of a direction, an entry of the sequence
            `[batch, input]` and the states; returns the next states.
        defaults: The activations of a direction where the node does not say.
        operands: X, W, R, B, sequence_lens, and what else each direction has.
        initial: The first states, `[directions, batch, hidden]`, or None.
        attributes: Of the node.
    """
    x, w, r, b, lengths, *more = operands
    is_batch_first = bool(attributes.get("layout"))
    if is_batch_first:
        x = np.swapaxes(x, 0, 1)
        initial = tuple(None if one is None else np.swapaxes(one, 0, 1) for one in initial)
    steps, batch, _ = x.shape
    directions, gates_hidden, _ = w.shape
    dtype = np.result_type(x.dtype, np.float32)
    lengths = np.full(batch, steps) if lengths is None else lengths
    b = np.zeros((directions, 2 * gates_hidden)) if b is None else b
    zeros = np.zeros((directions, batch, r.shape[-1]))
    first = [zeros if one is None else one for one in initial]
    direction = attributes.get("direction") or "forward"
    activations = list(_activations(defaults * directions, attributes))
    count, outputs, last = len(defaults), [], []
    for number in range(directions):
        step = partial(
            cell,
            _clipping(attributes.get("clip")),
            activations[number * count : (number + 1) * count],
            [one[number].astype(dtype) for one in (w, r, b, *more)],
        )
        is_empty = lengths[:, None] == 0  # then ONNX Runtime's states are 0
        states = tuple(np.where(is_empty, 0, one[number]).astype(dtype) for one in first)
        is_reverse = direction == "reverse" or number == 1
        y, states = _scan(step, x.astype(dtype), lengths, states, is_reverse)
        outputs.append(y)
        last.append(states)
    y = np.stack(outputs, axis=1)
    ends = [np.stack(one, axis=0) for one in zip(*last, strict=True)]
    if is_batch_first:
        y, ends = y.transpose(2, 0, 1, 3), [one.transpose(1, 0, 2) for one in ends]
    return tuple(one.astype(x.dtype) for one in (y, *ends))


def _scan(
    step: Callable[[Array, States], States],
    x: Array,
    lengths: Array,
    states: States,
    is_reverse: bool,
) -> tuple[Array, States]:
    """Run a direction; beyond a sequence's end outputs are 0 and states stay."""
    steps, batch, _ = x.shape
    samples = np.arange(batch)
    y = np.zeros((steps, batch, states[0].shape[-1]), x.dtype)
    for number in range(steps):
        is_running = number < lengths
        at = np.where(is_running, lengths - 1 - number, 0) if is_reverse else number
        places = np.broadcast_to(at, batch)
        computed = step(x[places, samples], states)
        states = tuple(
            np.where(is_running[:, None], new, old)
            for new, old in zip(computed, states, strict=True)
        )
        y[places[is_running], samples[is_running]] = states[0][is_running]
    return y, states


def _rnn_cell(
    clip: Activation,
    activations: Sequence[Activation],
    weights: Sequence[Array],
    x: Array,
    states: States,
) -> States:
    (w, r, b), (f,), (h,) = weights, activations, states
    return (f(clip(x @ w.T + h @ r.T + sum(np.split(b, 2)))),)


def _gru_cell(
    is_linear: bool,
    clip: Activation,
    activations: Sequence[Activation],
    weights: Sequence[Array],
    x: Array,
    states: States,
) -> States:
    (w, r, b), (f, g), (h,) = weights, activations, states
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    bz, br, bh, cz, cr, ch = np.split(b, 6)
    update = f(clip(x @ wz.T + h @ rz.T + bz + cz))
    reset = f(clip(x @ wr.T + h @ rr.T + br + cr))
    recurrent_part = reset * (h @ rh.T + ch) if is_linear else (reset * h) @ rh.T + ch
    hidden = g(clip(x @ wh.T + recurrent_part + bh))
    return ((1 - update) * hidden + update * h,)


def _lstm_cell(
    has_coupled_gates: bool,
    clip: Activation,
    activations: Sequence[Activation],
    weights: Sequence[Array],
    x: Array,
    states: States,
) -> States:
    (w, r, b, p), (f, g, h_of), (h, c) = weights, activations, states
    gates = np.split(x @ w.T + h @ r.T + sum(np.split(b, 2)), 4, axis=-1)
    pi, po, pf = np.split(p, 3)
    take = f(clip(gates[0] + pi * c))
    keep = 1 - take if has_coupled_gates else f(clip(gates[2] + pf * c))
    state = keep * c + take * g(clip(gates[3]))
    show = f(clip(gates[1] + po * state))
    return show * h_of(state), state  # ONNX Runtime clips what gates read, and no state


def _clipping(threshold: float | None) -> Activation:
    return (lambda x: np.clip(x, -threshold, threshold)) if threshold else (lambda x: x)


def _activations(defaults: Sequence[str], attributes: Mapping[str, Any]) -> Iterator[Activation]:
    """Yield the functions of all directions; each takes the next `alpha` and `beta` that it has."""
    given = [iter(attributes.get(f"activation_{name}") or ()) for name in ("alpha", "beta")]
    for name in attributes.get("activations") or defaults:
        key = name.lower()
        numbers = [
            next(values, default)
            for values, default in zip(given, _PARAMETERS.get(key, ()), strict=False)
        ]
        yield partial(_with_numbers, _FUNCTIONS[key], tuple(numbers))


def _with_numbers(function: Callable[..., Array], numbers: Sequence[float], x: Array) -> Array:
    return function(x, *numbers)
