# SPDX-License-Identifier: Apache-2.0
"""Attention in every spelling becomes one kernel, with the numbers of onnxruntime."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia

LOWEST = np.finfo(np.float32).min


def ints(*numbers):
    return np.array(numbers, np.int64)


def num(value):
    return np.array(value, np.float32)


def heads(name, batch, length, heads, size):
    """Split the last dimension of a value into heads, as every exporter does."""
    shape = f"{name}_shape"
    body = f"{name}4 = Reshape({name}, {shape}) {name}h = Transpose<perm = [0, 2, 1, 3]>({name}4)"
    return body, {shape: ints(batch, length, heads, size)}


def spelled(
    middle,
    *,
    batch=2,
    queries=20,
    keys=36,
    count=3,
    size=8,
    value=8,
    end=None,
    more=(),
    weights=None,
    opset=17,
):
    """A model whose q, k and v are read as qh, kh and vh, and whose context is c.

    Args:
        middle: From these to c.
        batch, queries, keys, count, size, value: Its sizes; count is that of heads.
        end: From c to y; the heads joined unless told.
        more: Further inputs.
        weights: Further constants.
        opset: Of the model.
    """
    parts = [
        heads("q", batch, queries, count, size),
        heads("k", batch, keys, count, size),
        heads("v", batch, keys, count, value),
    ]
    body = " ".join(part for part, _ in parts) + " " + middle
    body += " " + (end or "t = Transpose<perm = [0, 2, 1, 3]>(c) y = Reshape(t, joined)")
    inputs = {
        "q": (batch, queries, count * size),
        "k": (batch, keys, count * size),
        "v": (batch, keys, count * value),
        **dict(more),
    }
    constants = {"joined": ints(batch, queries, -1), **(weights or {})}
    for _, shapes in parts:
        constants |= shapes
    used = {name: array for name, array in constants.items() if name in body}
    return small_model("y", body, inputs, used, opset=opset)


TURNED = "kt = Transpose<perm = [0, 1, 3, 2]>(kh)"
SCORES = f"{TURNED} s = MatMul(qh, kt)"
CONTEXT = "p = Softmax<axis = -1>(m) c = MatMul(p, vh)"
STACKED = (
    "k3 = Reshape(kh, stack) k3t = Transpose<perm = [0, 2, 1]>(k3) k4t = Reshape(k3t, unstack)"
    " qs = Mul(qh, root) ks = Mul(k4t, root) s = MatMul(qs, ks)"
)
CLEANED = "w = Softmax<axis = -1>(m) n = IsNaN(w) p = Where(n, zero, w) c = MatMul(p, vh)"
STACKS = {
    "stack": ints(6, 36, 8),
    "unstack": ints(2, 3, 8, 36),
    "root": num(8**-0.25),
    "zero": num(0),
}


def closed(shape, seed=1):
    """A mask of minus infinity in places, and everywhere in one row."""
    mask = np.where(np.random.default_rng(seed).random(shape) < 0.3, -np.inf, 0)
    mask[..., 0, :] = -np.inf
    return mask.astype(np.float32)


CASES = {
    "eager, divided": spelled(f"{SCORES} m = Div(s, r) {CONTEXT}", weights={"r": num(8**0.5)}),
    "eager, multiplied": spelled(f"{SCORES} m = Mul(r, s) {CONTEXT}", weights={"r": num(0.3)}),
    "eager, not scaled": spelled(f"{TURNED} m = MatMul(qh, kt) {CONTEXT}"),
    "eager with a mask of keys": spelled(
        f"{SCORES} d = Div(s, r) m = Add(d, mask) {CONTEXT}",
        more={"mask": (2, 1, 1, 36)},
        weights={"r": num(8**0.5)},
    ),
    "eager with a mask of queries and keys": spelled(
        f"{SCORES} d = Div(s, r) m = Add(mask, d) {CONTEXT}",
        more={"mask": (2, 1, 20, 36)},
        weights={"r": num(8**0.5)},
    ),
    "eager with a full mask of less rank": spelled(
        f"{SCORES} m = Add(mask, s) {CONTEXT}", more={"mask": (3, 20, 36)}
    ),
    "eager with two masks": spelled(
        f"{SCORES} a = Add(s, bias) m = Add(a, mask) {CONTEXT}",
        more={"mask": (2, 1, 1, 36), "bias": (1, 3, 20, 36)},
    ),
    "a mask of bool": spelled(
        f"{SCORES} m = Where(mask, s, low) {CONTEXT}",
        more={"mask": np.zeros((2, 1, 20, 36), bool)},
        weights={"low": num(LOWEST)},
    ),
    "a mask of bool that closes": spelled(
        f"{SCORES} m = Where(mask, low, s) {CONTEXT}",
        more={"mask": np.zeros((2, 1, 1, 36), bool)},
        weights={"low": num(LOWEST)},
    ),
    "rows without keys are not numbers": spelled(
        f"{SCORES} m = Add(s, mask) {CONTEXT}", weights={"mask": closed((2, 1, 20, 36))}
    ),
    "sdpa": spelled(f"{STACKED} a = Add(s, mask) m = Identity(a) {CONTEXT}".replace(
        "a = Add(s, mask) m = Identity(a)", "m = Add(s, mask)"), more={"mask": (2, 1, 20, 36)},
        weights=STACKS),
    "sdpa without a mask": spelled(
        f"{STACKED} p = Softmax<axis = -1>(s) c = MatMul(p, vh)", weights=STACKS
    ),
    "sdpa with rows without keys": spelled(
        f"{STACKED} m = Add(s, mask) {CLEANED}", weights={**STACKS, "mask": closed((2, 1, 20, 36))}
    ),
    "sdpa with a causal constant": spelled(
        f"{STACKED} m = Add(s, mask) {CLEANED}",
        weights={**STACKS, "mask": np.triu(np.full((1, 1, 20, 36), LOWEST), 4)},
    ),
    "sdpa with a mask of zeros": spelled(
        f"{STACKED} m = Add(s, mask) {CLEANED}",
        weights={**STACKS, "mask": np.zeros((1, 1, 20, 36), np.float32)},
    ),
    "a soft cap": spelled(
        f"{SCORES} d = Mul(s, r) e = Div(d, cap) f = Tanh(e) g = Mul(f, cap) m = Add(g, mask)"
        f" {CONTEXT}",
        more={"mask": (2, 1, 1, 36)},
        weights={"r": num(0.5), "cap": num(3)},
    ),
    "products of stacks": spelled(
        "q3 = Reshape(qh, q_stack) k3 = Reshape(kh, k_stack) v3 = Reshape(vh, v_stack)"
        " kt = Transpose<perm = [0, 2, 1]>(k3) s3 = MatMul(q3, kt) s = Reshape(s3, apart)"
        " m4 = Add(s, mask) m = Reshape(m4, together) p = Softmax<axis = -1>(m)"
        " c3 = MatMul(p, v3) c = Reshape(c3, context)",
        more={"mask": (2, 1, 20, 36)},
        weights={"q_stack": ints(6, 20, 8), "k_stack": ints(6, 36, 8), "v_stack": ints(6, 36, 8),
                 "apart": ints(2, 3, 20, 36), "together": ints(6, 20, 36),
                 "context": ints(2, 3, 20, 8)},
    ),
    "windows": spelled(
        f"{TURNED} s4 = MatMul(qh, kt) b = Add(s4, bias) s5 = Reshape(b, apart)"
        " a = Add(s5, mask) m = Reshape(a, together) p = Softmax<axis = -1>(m)"
        " c = MatMul(p, vh)",
        batch=6,
        queries=20,
        keys=20,
        weights={"bias": (1, 3, 20, 20), "mask": closed((1, 3, 1, 20, 20)),
                 "apart": ints(2, 3, 3, 20, 20), "together": ints(6, 3, 20, 20)},
    ),
    "other values": spelled(f"{SCORES} m = Mul(s, r) {CONTEXT}", value=5, size=7,
                            weights={"r": num(0.3)}),
    "the context itself": spelled(f"{SCORES} m = Mul(s, r) {CONTEXT}", end="y = Relu(c)",
                                  weights={"r": num(0.3)}),
    "the context through another view": spelled(
        f"{SCORES} m = Mul(s, r) {CONTEXT}",
        end="d = Reshape(c, same) t = Transpose<perm = [0, 2, 1, 3]>(d) e = Reshape(t, joined)"
        " y = Relu(e)",
        weights={"r": num(0.3), "same": ints(2, -1, 20, 8)},
    ),
}  # fmt: skip


def grouped(*, batch=2, queries=20, keys=36, pairs=2, group=3, size=8):
    """A model whose key heads are shared by a group of query heads, as Llama spells it."""
    parts = [heads("q", batch, queries, pairs * group, size),
             *(heads(name, batch, keys, pairs, size) for name in "kv")]  # fmt: skip
    body = " ".join(part for part, _ in parts)
    for name in "kv":
        body += f" {name}5 = Unsqueeze({name}h, two) {name}e = Expand({name}5, wide)"
        body += f" {name}r = Reshape({name}e, flat)"
    body += (
        " k3 = Reshape(kr, stack) kt3 = Transpose<perm = [0, 2, 1]>(k3) kt = Reshape(kt3, turned)"
        " qs = Mul(qh, root) ks = Mul(kt, root) s = MatMul(qs, ks) m = Add(s, mask)"
        " p = Softmax<axis = -1>(m) c = MatMul(p, vr)"
        " t = Transpose<perm = [0, 2, 1, 3]>(c) y = Reshape(t, joined)"
    )
    count = pairs * group
    weights = {
        "two": ints(2),
        "wide": ints(batch, pairs, group, keys, size),
        "flat": ints(batch, count, keys, size),
        "stack": ints(batch * count, keys, size),
        "turned": ints(batch, count, size, keys),
        "root": num(size**-0.25),
        "joined": ints(batch, queries, -1),
    }
    for _, shapes in parts:
        weights |= shapes
    inputs = {
        "q": (batch, queries, count * size),
        "k": (batch, keys, pairs * size),
        "v": (batch, keys, pairs * size),
        "mask": (batch, 1, queries, keys),
    }
    return small_model("y", body, inputs, weights)


CASES["heads that share keys"] = grouped()
CASES["one query of heads that share keys"] = grouped(queries=1)
CASES["one query"] = spelled(
    f"{SCORES} m = Mul(s, r) {CONTEXT}", queries=1, keys=300, weights={"r": num(0.3)}
)


def kernels_of(lower_model, model):
    program, _ = lower_model(model)
    return [program.kernels[call.kernel].name.rpartition("_")[0] for call in program.calls]


@pytest.mark.parametrize("case", CASES)
def test_numbers(run_both, case):
    run_both(CASES[case], feeds_of(CASES[case]))


@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@pytest.mark.parametrize("case", ["sdpa", "heads that share keys", "a mask of bool"])
def test_numbers_with_narrower_vectors(run_both, case, cpu):
    run_both(CASES[case], feeds_of(CASES[case]), f"llvm -mcpu={cpu}")


@pytest.mark.parametrize("case", CASES)
def test_it_is_one_kernel_and_nothing_is_moved(lower_model, case):
    relu = ["elementwise"] if case.startswith("the context") else []
    assert kernels_of(lower_model, CASES[case]) == ["attention", *relu]


OTHERS = {
    "weights that are read elsewhere": spelled(
        f"{SCORES} m = Mul(s, r) {CONTEXT}",
        end="e = ReduceMax(p, last) y = Add(c, e)",
        weights={"r": num(0.3), "last": ints(-1)},
        opset=18,
    ),
    "another axis": spelled(
        f"{SCORES} p = Softmax<axis = 2>(s) c = MatMul(p, vh)", weights={}
    ),
    "a factor by key": spelled(
        f"{SCORES} m = Mul(s, r) {CONTEXT}", weights={"r": (1, 1, 1, 36)}
    ),
    "a factor behind the mask": spelled(
        f"{SCORES} a = Add(s, mask) m = Mul(a, r) {CONTEXT}",
        more={"mask": (2, 1, 1, 36)},
        weights={"r": num(0.3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_something_else_is_left(run_both, lower_model, case):
    assert "attention" not in kernels_of(lower_model, OTHERS[case])
    run_both(OTHERS[case], feeds_of(OTHERS[case]))


@pytest.mark.parametrize("case", ["sdpa", "windows"])
def test_any_number_of_threads_gives_the_same_bits(backends, case):
    model = CASES[case]
    feeds = feeds_of(model)
    one, three = (
        intarsia.compile(model, "llvm", num_threads=n, backends=backends).run(feeds)["y"]
        for n in (1, 3)
    )
    np.testing.assert_array_equal(one, three)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_shapes(run_both, data):
    small, long = st.integers(1, 3), st.integers(1, 40)
    sizes = {
        "batch": data.draw(small),
        "queries": data.draw(long),
        "keys": data.draw(long),
    }
    cpu = data.draw(st.sampled_from(["", " -mcpu=haswell", " -mcpu=x86-64"]))
    if data.draw(st.booleans()):
        model = grouped(**sizes, pairs=data.draw(small), group=data.draw(small), size=8)
    else:
        count = data.draw(small)
        mask = [
            data.draw(st.sampled_from([1, n]))
            for n in (sizes["batch"], count, sizes["queries"], sizes["keys"])
        ]
        model = spelled(
            f"{SCORES} d = Mul(s, r) m = Add(d, mask) {CONTEXT}",
            **sizes,
            count=count,
            size=data.draw(long),
            value=data.draw(long),
            more={"mask": tuple(mask)},
            weights={"r": num(0.3)},
        )
    run_both(model, feeds_of(model), f"llvm{cpu}")
