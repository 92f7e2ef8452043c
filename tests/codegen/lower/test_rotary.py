# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of ONNX and of ONNX Runtime, with tables and positions constant and fed."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.errors import IntarsiaError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

BATCH, LENGTH, HEADS, SIZE, ROWS = 2, 5, 3, 16, 11


def positions_of(kind):
    if kind == "first":
        return np.array([4], np.int64)
    return np.random.default_rng(5).integers(0, ROWS, (BATCH, LENGTH))


def model_of(
    domain="",
    rank=4,
    turned=0,
    positions="each",
    *,
    is_interleaved=False,
    is_constant=True,
    then="",
):
    """Return a model, and the positions that are fed."""
    pairs = (turned or SIZE) // 2
    shape = (BATCH, HEADS, LENGTH, SIZE) if rank == 4 else (BATCH, LENGTH, HEADS * SIZE)
    tables = (ROWS, pairs) if positions else (BATCH, LENGTH, pairs)
    others = {"c": tables, "s": tables}
    if positions:
        others["p"] = positions_of(positions)
    attributes = [f"interleaved = {int(is_interleaved)}"]
    attributes += [f"rotary_embedding_dim = {turned}"] * bool(turned)
    attributes += [f"num_heads = {HEADS}"] * bool(turned or (rank == 3 and not domain))
    operands = "x, p, c, s" if domain else "x, c, s, p" if positions else "x, c, s"
    text = f"y = {domain}RotaryEmbedding<{', '.join(attributes)}>({operands}) {then}"
    inputs = {"x": shape} | ({} if is_constant else others)
    model = small_model("z" if then else "y", text, inputs, others if is_constant else {}, 23)
    return model, {"p": others["p"]} if positions and not is_constant else {}


CASES = [
    pytest.param(domain, rank, turned, positions, id=f"{domain}{rank}D-{turned}-{positions}")
    for domain in ("", "com.microsoft.")
    for rank in (3, 4)
    for turned in (0, 6)
    for positions in (("each", "first") if domain else ("each", ""))
]


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize(("domain", "rank", "turned", "positions"), CASES)
def test_agrees_with_onnxruntime(
    run_both, lower_model, domain, rank, turned, positions, is_interleaved, is_constant
):
    model, fed = model_of(
        domain,
        rank,
        turned,
        positions,
        is_interleaved=is_interleaved,
        is_constant=is_constant,
        then="z = Neg(y)",
    )
    run_both(model, feeds_of(model) | fed, rtol=1e-6)
    program, _ = lower_model(model)
    picking = 0 if is_constant or not positions else 3 + (positions == "first")
    assert len(program.calls) == 2 + picking + bool(turned)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 20), st.booleans())
def test_random_shapes(run_both, batch, length, heads, pairs, is_interleaved):
    rng = np.random.default_rng(batch * length * pairs)
    arrays = {name: rng.standard_normal((length + 3, pairs), np.float32) for name in "cs"}
    positions = rng.integers(0, length + 3, (batch, length))
    text = f"y = com.microsoft.RotaryEmbedding<interleaved = {int(is_interleaved)}>(x, p, c, s)"
    inputs = {"x": (batch, length, heads * 2 * pairs), "p": positions}
    model = small_model("y", text, inputs, arrays)
    run_both(model, feeds_of(model) | {"p": positions}, rtol=1e-6)


def test_a_position_outside_is_an_error(backends):
    model, fed = model_of(is_constant=False)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    fed["p"][1, 2] = ROWS
    with pytest.raises(IntarsiaError, match=f"{ROWS}"):
        exe.run(feeds_of(model) | fed)


REFUSED = {
    "a constant position outside": (
        "y = com.microsoft.RotaryEmbedding(x, o, c, c)",
        "a position is outside of its tables",
    ),
    "a scale": (
        "y = com.microsoft.RotaryEmbedding<scale = 2.0>(x, p, c, c)",
        "it has a scale",
    ),
    "a packed batch": (
        "y = com.microsoft.RotaryEmbedding<is_packed_batching = 1>(x, p, c, c)",
        "its batch is packed",
    ),
    "other tables": (
        "y = com.microsoft.RotaryEmbedding<num_heads = 2, rotary_embedding_dim = 2>(x, p, c, c)",
        "its tables do not have the shape of its input",
    ),
    "an odd number": (
        "y = com.microsoft.RotaryEmbedding<num_heads = 2, rotary_embedding_dim = 3>(x, p, c, c)",
        "it does not turn pairs",
    ),
    "heads that do not fit": (
        "y = RotaryEmbedding<num_heads = 3>(x, c, c, p)",
        "its input is not a number of heads",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, reason = REFUSED[case]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 23, "com.microsoft": 1]>'
        " n (float[1,2,8] x, float[5,2] c, int64[1,2] p) => (float[1,2,8] y)"
        f" <int64[1,2] o = {{4, 5}}> {{ {text} }}"
    )
    graph = snapshot(load(model))
    assert refuse_node(graph, graph.nodes[0]) == ("op", reason)


HALVES = {
    "slices": "a = Slice(x, zero, half, last) b = Slice(x, half, end, last)",
    "parts": "a, b = Split<axis = -1>(x, sizes)",
}
TURNED = "n = Neg(b) r = Concat<axis = -1>(n, a) p = Mul(x, c) q = Mul(r, s) y = Add(p, q)"
NUMBERS = {
    "zero": np.array([0]),
    "half": np.array([8]),
    "end": np.array([2**63 - 1]),
    "last": np.array([-1]),
    "sizes": np.array([8, 8]),
}
SWAPPED = {
    "as it is": TURNED,
    "sine in front": TURNED.replace("Mul(r, s)", "Mul(s, r)").replace("Add(p, q)", "Add(q, p)"),
}


def halves_model(halves, turned=TURNED, angles=(1, 1, 5, 16)):
    """Return a model with heads behind a product, and an activation behind them."""
    heads = "m = MatMul(i, w) h = Reshape(m, to) x = Transpose<perm = [0, 2, 1, 3]>(h)"
    weights = {"w": (8, 48), "to": np.array([2, 5, 3, 16])}
    weights |= {name: array for name, array in NUMBERS.items() if name in HALVES[halves]}
    inputs = {"i": (2, 5, 8), "c": angles, "s": angles}
    return small_model("z", f"{heads} {HALVES[halves]} {turned} z = Neg(y)", inputs, weights)


@pytest.mark.parametrize("angles", [(1, 1, 5, 16), (2, 1, 5, 16), (5, 16)])
@pytest.mark.parametrize("turned", SWAPPED)
@pytest.mark.parametrize("halves", HALVES)
def test_halves_that_change_places_are_one_kernel(run_both, lower_model, halves, turned, angles):
    model = halves_model(halves, SWAPPED[turned], angles)
    program, _ = lower_model(model)
    assert max(len(call.nodes) for call in program.calls) == len(model.graph.node) - 4
    run_both(model, feeds_of(model), rtol=1e-5)


OTHER_HALVES = {
    "halves in their places": TURNED.replace("Neg(b)", "Neg(a)").replace("(n, a)", "(n, b)"),
    "one half twice": TURNED.replace("(n, a)", "(n, b)"),
}


@pytest.mark.parametrize("case", OTHER_HALVES)
@pytest.mark.parametrize("halves", HALVES)
def test_other_halves_stay_several_kernels(run_both, lower_model, halves, case):
    model = halves_model(halves, OTHER_HALVES[case])
    program, _ = lower_model(model)
    assert max(len(call.nodes) for call in program.calls) < len(model.graph.node) - 4
    run_both(model, feeds_of(model), rtol=1e-5)


PAIRS = (
    "a = Slice(x, zero, end, last, two) b = Slice(x, one, end, last, two) n = Neg(b)"
    " u = Unsqueeze(n, last) v = Unsqueeze(a, last) k = Concat<axis = -1>(u, v) r = Reshape(k, all)"
    " p = Mul(x, c) q = Mul(r, s) y = Add(p, q)"
)
OTHER_PAIRS = {
    "both even": PAIRS.replace("one", "zero"),
    "the other way round": PAIRS.replace("(u, v)", "(v, u)"),
    "one after the other": PAIRS.replace("axis = -1", "axis = 3"),
}


def pairs_model(text, angles=(5, 16)):
    """Return a model with heads behind a product, and an activation behind them."""
    heads = "m = MatMul(i, w) h = Reshape(m, to) x = Transpose<perm = [0, 2, 1, 3]>(h)"
    weights = {"w": (8, 48), "to": np.array([2, 5, 3, 16]), "all": np.array([2, 3, 5, 16])}
    weights |= {name: NUMBERS[name] for name in ("zero", "end", "last")}
    weights |= {"one": np.array([1]), "two": np.array([2])}
    used = {name: array for name, array in weights.items() if name in f"{heads} {text}"}
    inputs = {"i": (2, 5, 8), "c": angles, "s": angles}
    return small_model("z", f"{heads} {text} z = Neg(y)", inputs, used)


@pytest.mark.parametrize("angles", [(1, 1, 5, 16), (2, 1, 5, 16), (5, 16)])
def test_pairs_side_by_side_that_change_places_are_one_kernel(run_both, lower_model, angles):
    model = pairs_model(PAIRS, angles)
    program, _ = lower_model(model)
    assert max(len(call.nodes) for call in program.calls) == len(model.graph.node) - 4
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("case", OTHER_PAIRS)
def test_other_pairs_stay_several_kernels(run_both, lower_model, case):
    model = pairs_model(OTHER_PAIRS[case])
    program, _ = lower_model(model)
    assert max(len(call.nodes) for call in program.calls) < len(model.graph.node) - 4
    run_both(model, feeds_of(model), rtol=1e-5)
