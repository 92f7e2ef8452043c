# SPDX-License-Identifier: Apache-2.0
"""Einsum: equations by table and at random, against ONNX's reference and numpy."""

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.codegen.lower.small_models import feeds_of, small_model
from tests.opencl import first_device

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.codegen.unit import AVX2, NEON, SCALAR, SSE
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NAMES = "abc"


def einsum_model(equation, *shapes, dtype=np.float32, then="y = Identity(e)", weights=()):
    arrays = {name: np.zeros(shape, dtype) for name, shape in zip(NAMES, shapes, strict=False)}
    known = {name: np.arange(arrays[name].size).reshape(arrays[name].shape) % 7 for name in weights}
    inputs = {name: array for name, array in arrays.items() if name not in weights}
    body = f'e = Einsum<equation = "{equation}">({", ".join(arrays)}) {then}'
    return small_model("y", body, inputs, {k: v.astype(dtype) for k, v in known.items()})


def compare(model, equation, backends, target="llvm"):
    feeds = feeds_of(model)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    arrays = [(feeds | constants)[name] for name in model.graph.node[0].input]
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    got = exe.run(feeds)["y"]
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    largest = max((float(np.abs(array).max(initial=1)) for array in arrays), default=1)
    atol = 1e-6 * largest ** len(arrays) * 64 if wanted.dtype.kind == "f" else 0
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=atol, err_msg=equation)
    if len(model.graph.node) == 2 and model.graph.node[1].op_type == "Identity":
        np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-5, atol=atol)


EQUATIONS = {
    "matrix product": ("ij,jk->ik", (3, 20), (20, 18)),
    "spaces, implicit": (" ij , jk ", (3, 5), (5, 4)),
    "implicit transposed": ("kj,ji", (3, 5), (5, 4)),
    "transposed result": ("ij,jk->ki", (7, 5), (5, 20)),
    "both transposed": ("ji,kj->ik", (20, 3), (19, 20)),
    "batched": ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    "scores": ("bqhd,bkhd->bhqk", (2, 9, 3, 8), (2, 17, 3, 8)),
    "weighted values": ("bhqk,bkhd->bqhd", (2, 3, 9, 17), (2, 17, 3, 8)),
    "two summed": ("bhqd,hdm->bqm", (2, 3, 5, 4), (3, 4, 18)),
    "two summed out of order": ("bqhd,dhm->bqm", (2, 5, 3, 4), (4, 3, 18)),
    "heads": ("bsm,mhd->bshd", (2, 5, 16), (16, 3, 8)),
    "heads in front": ("bsm,mhd->bhsd", (2, 5, 16), (16, 3, 8)),
    "ellipsis": ("...ij,...jk->...ik", (2, 1, 3, 4), (1, 5, 4, 6)),
    "ellipsis, implicit": ("i...,i...", (3, 2, 4), (3, 1, 4)),
    "ellipsis of one": ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
    "ellipsis behind": ("ij...,jk->ik...", (2, 3, 4), (3, 5)),
    "ellipsis of nothing": ("...i,i...->...", (3,), (3,)),
    "dots": ("i,i", (37,), (37,)),
    "batched dots": ("bi,bi->b", (3, 21), (3, 21)),
    "matrix by vector": ("bij,bj->bi", (2, 5, 19), (2, 19)),
    "outer": ("i,j->ij", (5,), (18,)),
    "outer, turned": ("i,j->ji", (5,), (18,)),
    "elementwise": ("ij,ji->ij", (4, 19), (19, 4)),
    "sum": ("ij->i", (3, 20)),
    "sum of all": ("ijk->", (3, 4, 5)),
    "sum, turned": ("ijk->kj", (3, 4, 5)),
    "transposed": ("ij->ji", (4, 19)),
    "implicit order": ("ba", (4, 19)),
    "nothing": ("ij->ij", (4, 5)),
    "diagonal": ("ii->i", (5, 5)),
    "trace": ("ii", (5, 5)),
    "batch diagonal": ("...ii->...i", (3, 5, 5)),
    "diagonal of three": ("iji->ji", (4, 3, 4)),
    "diagonal product": ("ii,ij->j", (4, 4), (4, 18)),
    "summed before": ("ijk,jl->il", (3, 5, 4), (5, 6)),
    "three": ("ij,jk,kl->il", (3, 4), (4, 5), (5, 6)),
    "three, far ends first": ("ij,kl,jk->il", (3, 4), (5, 6), (4, 5)),
    "three of one": ("i,i,i->i", (5,), (5,), (5,)),
    "three to a number": ("i,ij,j", (5,), (5, 7), (7,)),
    "bilinear": ("bi,oij,bj->bo", (3, 5), (4, 5, 6), (3, 6)),
    "scalars": (",->", (), ()),
    "scalar by matrix": (",ij->ij", (), (3, 5)),
    "broadcast one": ("ij,jk->ik", (3, 1), (5, 4)),
    "ones": ("ij,jk->ik", (1, 1), (1, 1)),
    "empty sum": ("ij,jk->ik", (3, 0), (0, 4)),
    "empty sum of one": ("ij->i", (3, 0)),
    "empty result": ("ij,jk->ik", (0, 4), (4, 5)),
    "capitals": ("IJ,JK", (3, 4), (4, 5)),
}
THEN = {
    "alone": "y = Identity(e)",
    "fused": "s = Sigmoid(e) y = Mul(s, e)",
}


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("name", EQUATIONS)
def test_equations(backends, name, then):
    equation, *shapes = EQUATIONS[name]
    compare(einsum_model(equation, *shapes, then=THEN[then]), equation, backends)


@pytest.mark.parametrize("name", ["scores", "two summed out of order", "three", "diagonal", "sum"])
def test_on_opencl(backends, name):
    first_device()
    equation, *shapes = EQUATIONS[name]
    compare(einsum_model(equation, *shapes, then=THEN["fused"]), equation, backends, "opencl")


@pytest.mark.parametrize("unit", [AVX2, SSE, NEON, SCALAR], ids=["avx2", "sse", "neon", "scalar"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_lowers_for_every_unit(lower_model, name, unit):
    equation, *shapes = EQUATIONS[name]
    program, _ = lower_model(einsum_model(equation, *shapes, then=THEN["fused"]), unit)
    assert program.calls or 0 in shapes[0]


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("name", ["scores", "three", "sum, turned", "outer", "batched dots"])
def test_dtypes(backends, name, dtype):
    equation, *shapes = EQUATIONS[name]
    compare(einsum_model(equation, *shapes, dtype=dtype), equation, backends)


@pytest.mark.parametrize("known", ["a", "b"])
@pytest.mark.parametrize(
    "name", ["heads", "two summed", "ellipsis", "elementwise", "two summed out of order"]
)
def test_with_constants(backends, name, known):
    equation, *shapes = EQUATIONS[name]
    compare(einsum_model(equation, *shapes, weights=known), equation, backends)


@st.composite
def drawn_equations(draw):
    """An equation of one to three operands, and their shapes; some extents of 1 are broadcast."""
    sizes = {
        name: draw(st.integers(0, 20) if name == "i" else st.integers(1, 5)) for name in "hijk"
    }
    hidden = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        letters = draw(st.lists(st.sampled_from("hijk"), max_size=4))
        at = draw(st.integers(0, len(letters)))
        outer = [draw(st.sampled_from((1, extent))) for extent in hidden]
        shape = [sizes[letter] for letter in letters]
        terms.append("".join([*letters[:at], "..." * bool(hidden), *letters[at:]]))
        shapes.append((*shape[:at], *outer, *shape[at:]))
    equation = ",".join(terms)
    if draw(st.booleans()):
        letters = sorted({*equation} - {*",."})
        output = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
        at = draw(st.integers(0, len(output)))
        equation += "->" + "".join([*output[:at], "..." * bool(hidden), *output[at:]])
    return equation, shapes


@settings(max_examples=25, deadline=None)
@given(drawn_equations(), st.sampled_from(sorted(THEN)), st.sampled_from((np.float32, np.int64)))
def test_drawn_equations(backends, drawn, then, dtype):
    equation, shapes = drawn
    assume(equation)  # ONNX infers no shape from an empty one
    then = THEN[then] if dtype is np.float32 else "y = Neg(e)"
    compare(einsum_model(equation, *shapes, dtype=dtype, then=then), equation, backends)


# What does not fit at all is a ModelError when the model is loaded.
REFUSED = {
    "its result leaves out the ellipsis": ("...i->i", (3, 4)),
    "its result has letters of both cases in no order": ("iJ", (3, 4)),
    "'i' has two extents in 'ii'": ("ii->i", (1, 4)),
    "'j' has extents 4 and 5": ("ij,jk->ik", (3, 4), (5, 6)),
    "'ii' does not follow from the operands": ("ij->ii", (3, 4)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    equation, *shapes = REFUSED[reason]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip(NAMES, shapes, strict=False)
    ]
    node = onnx.helper.make_node("Einsum", [*NAMES[: len(shapes)]], ["y"], equation=equation)
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 4))
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, [result]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = snapshot(load(model))
    assert refuse_node(graph, graph.nodes[0]) == ("op", reason)
