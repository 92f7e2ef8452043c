"""Products of quantised matrices: the reference evaluator's numbers to the bit, in integers."""

import ctypes

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from tests.codegen.conftest import host_cpu
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import dots_key
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import CpuModel
from intarsia.errors import UnsupportedError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object

UNITS = {
    "vnni": CpuModel(256, 16, dots=("avxvnni",)),
    "neon": CpuModel(128, 32, dots=("dotprod",)),
    "blocks": CpuModel(128, 32, dots=("dotprod", "i8mm")),
    "pairs": CpuModel(256, 16, dots=("avx2",)),
    "avx512": CpuModel(512, 32, dots=("avx512bw",)),
    "scalar": CpuModel(0, 16),
}
RNG = np.random.default_rng(3)


def codes(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scales(*shape):
    return RNG.uniform(0.002, 0.01, shape).astype(np.float32)


def reference(model, feeds):
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))


def check(backends, model, feeds, wanted=None):
    """Compile a model for this machine and no other target, and compare to the bit."""
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    results = exe.run(feeds)
    for name, want in (wanted or reference(model, feeds)).items():
        assert results[name].dtype == want.dtype
        np.testing.assert_array_equal(results[name], want, err_msg=name)


def check_unit(lower_model, model, feeds, unit):
    """Lower for another unit, and run what comes out with the plain lowering of dot products."""
    program, region = lower_model(model, unit)
    texts = {kernel.name: emit_llvm(kernel) for kernel in program.kernels}
    library = LoadedCode({name: compile_object(text, host_cpu()) for name, text in texts.items()})
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    def compiled(call, arrays):
        table = np.array([array.ctypes.data for array in arrays], np.uint64)
        entry = signature(library.addresses[program.kernels[call.kernel].name])
        entry(table.ctypes.data, 0, call.extent)

    results = run_program(program, region, feeds, compiled)
    for name, want in reference(model, feeds).items():
        np.testing.assert_array_equal(results[name], want, err_msg=name)
    return program


def integer(a="uint8", b="int8", a_zero=True, b_zero="", shapes=((2, 5, 37), (37, 19))):
    """A MatMulInteger and its feeds; `b_zero` is empty, `one` or `columns`."""
    weights = {"w": codes(b, *shapes[1])}
    names = "x, w"
    if a_zero or b_zero:
        names += ", z" if a_zero else ", "
        weights |= {"z": codes(a)} if a_zero else {}
    if b_zero:
        columns = shapes[1][-1:] if b_zero == "columns" else ()
        weights["v"] = codes(b, *columns)
        names += ", v"
    feeds = {"x": codes(a, *shapes[0])}
    return small_model("y", f"y = MatMulInteger({names})", feeds, weights, 21), feeds


DTYPES = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]


@pytest.mark.parametrize("b_zero", ["", "one", "columns"])
@pytest.mark.parametrize("a_zero", [False, True])
@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_matmul_integer(backends, a, b, a_zero, b_zero):
    check(backends, *integer(a, b, a_zero, b_zero))


@pytest.mark.parametrize(
    "shapes",
    [((37,), (37, 5)), ((4, 37), (37,)), ((3, 1), (1, 5)), ((1, 300), (300, 70))],
    ids=str,
)
def test_vectors_and_thin_matrices(backends, shapes):
    check(backends, *integer(shapes=shapes))


def test_stacks_of_weights(backends):
    check(backends, *integer(shapes=((3, 4, 9), (3, 9, 5))))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("b_zero", ["", "columns"])
@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_matmul_integer_for_other_units(lower_model, a, b, b_zero, unit):
    model, feeds = integer(a, b, True, b_zero)
    program = check_unit(lower_model, model, feeds, UNITS[unit])
    notes = [call.note for call in program.calls]
    is_bytes = UNITS[unit].has_byte_dots and (a, b, b_zero) in ((a, "int8", ""),)
    is_unsigned = UNITS[unit].multiplies_unsigned and (a, b, b_zero) == ("uint8", "uint8", "")
    are_codes = is_bytes or is_unsigned
    assert notes == [f"{a} times {b}"] if are_codes else notes[0] == "as int16"


@pytest.mark.parametrize("zero", ["", "constant", "computed"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_weights_that_are_small_but_for_some(lower_model, backends, dtype, zero):
    """Bytes are multiplied, where an instruction adds two products in 16 bits."""
    weights = {"w": np.clip(codes("int8", 64, 40), -64, 64)}
    weights["w"][5:8], weights["w"][13] = 127, -128
    feeds = {"x": codes(dtype, 2, 5, 64)}
    feeds["x"][:, 0] = np.iinfo(dtype).max
    if zero:
        (weights if zero == "constant" else feeds)["z"] = np.array(99, dtype)
    node = f"y = MatMulInteger(x, w{', z' if zero else ''})"
    model = small_model("y", node, feeds, weights, 21)
    check(backends, model, feeds)
    program = check_unit(lower_model, model, feeds, UNITS["pairs"])
    notes = [call.note for call in program.calls]
    assert notes == ["as uint8"] * (dtype == "int8") + ["uint8 times int8"]


def test_numbers_that_saturate_elsewhere(backends):
    """`pmaddubsw` would make 32767 of each of these pairs."""
    weights = {"w": np.full((64, 8), 127, np.int8)}
    feeds = {"x": np.full((3, 64), 255, np.uint8)}
    check(backends, small_model("y", "y = MatMulInteger(x, w)", feeds, weights), feeds)


def test_a_zero_point_that_is_computed(lower_model, backends):
    feeds = {"x": codes("uint8", 4, 20), "z": np.uint8(77).reshape(())}
    weights = {"w": codes("int8", 20, 9)}
    model = small_model("y", "y = MatMulInteger(x, w, z)", feeds, weights)
    check(backends, model, feeds)
    check_unit(lower_model, model, feeds, UNITS["vnni"])


@pytest.mark.parametrize("unit", ["vnni", "pairs"])
def test_dynamic_quantisation(lower_model, backends, unit):
    body = """
        q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z)
        c = Cast<to = 1>(m) f = Mul(s, t) d = Mul(c, f) y = Add(d, b)"""
    weights = {"w": codes("int8", 40, 24), "t": scales(24), "b": (24,)}
    model = small_model("y, q, s, z", body, {"x": (2, 5, 40)}, weights)
    x = RNG.standard_normal((2, 5, 40)).astype(np.float32)
    for moved in (x, x + 9, x - 9, x * 0):
        check(backends, model, {"x": moved})
    check_unit(lower_model, model, {"x": x}, UNITS[unit])


def test_dynamic_quantisation_of_one_number(backends):
    model = small_model("y, s, z", "y, s, z = DynamicQuantizeLinear(x)", {"x": ()})
    check(backends, model, {"x": np.float32(-3).reshape(())})


def qlinear(a, b, y, columns, computed=()):
    shape = (19,) if columns else ()
    weights = {"w": codes(b, 33, 19), "s": np.float32(0.02), "t": scales(*shape)}
    weights |= {"z": codes(a), "v": codes(b, *shape), "u": np.float32(0.9), "o": codes(y)}
    feeds = {"x": codes(a, 6, 33)} | {name: np.asarray(weights.pop(name)) for name in computed}
    body = "y = QLinearMatMul(x, s, z, w, t, v, u, o)"
    return small_model("y", body, feeds, weights, 21), feeds


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("y", ["uint8", "int8"])
@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_qlinear_matmul(backends, a, b, y, columns):
    check(backends, *qlinear(a, b, y, columns))


@pytest.mark.parametrize("computed", ["z", "s", "uo", "szuo"])
def test_qlinear_matmul_of_computed_parameters(lower_model, backends, computed):
    model, feeds = qlinear("uint8", "int8", "uint8", True, computed)
    check(backends, model, feeds)
    check_unit(lower_model, model, feeds, UNITS["vnni"])


def test_qlinear_matmul_rounds_ties_as_the_reference():
    """Half-way numbers, which the zero point moves to an even or an odd code."""
    x = np.arange(256, dtype=np.uint8).reshape(256, 1)
    weights = {"w": np.ones((1, 1), np.int8), "s": np.float32(1), "u": np.float32(2)}
    weights |= {"z": np.uint8(0), "v": np.int8(0), "o": np.uint8(3)}
    model = small_model("y", "y = QLinearMatMul(x, s, z, w, s, v, u, o)", {"x": x}, weights, 21)
    check(None, model, {"x": x})


def notes_of(lower_model, model, unit=UNITS["pairs"]):
    program, _ = lower_model(model, unit)
    return [call.note for call in program.calls]


def requantised(exe, model, feeds, name, step):
    """Check that results are within a step of what onnxruntime makes of the nodes as they are."""
    got, want = exe.run(feeds)[name].astype(np.float64), evaluate(model, feeds)[name]
    assert np.abs(got - want).max() <= step * 1.001
    assert np.mean(np.abs(got - want) > step / 2) < 0.01  # where a tie is rounded


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_matmul_between_q_and_dq(lower_model, backends, a, b, columns):
    body = """
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        e = DequantizeLinear<axis = 1>(w, t, v) m = MatMul(d, e) a = Add(m, b) r = Relu(a)
        p = QuantizeLinear(r, u, z) y = DequantizeLinear(p, u, z)"""
    shape = (24,) if columns else ()
    weights = {"w": codes(b, 40, 24), "t": scales(*shape), "v": codes(b, *shape), "b": (24,)}
    weights |= {"s": np.float32(0.02), "z": np.asarray(100, a), "u": np.float32(0.05)}
    model = small_model("y", body, {"x": (2, 5, 40)}, weights, 21)
    feeds = {"x": RNG.standard_normal((2, 5, 40)).astype(np.float32)}
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    requantised(exe, model, feeds, "y", 0.05)
    assert any("int16 times int" in note for note in notes_of(lower_model, model))


@pytest.mark.parametrize("axis", [0, 1])
def test_gemm_between_q_and_dq(lower_model, backends, axis):
    """Of transposed weights, whose scales are of rows, and with a dequantised bias."""
    turned = ", transB = 1" if axis == 0 else ""
    body = f"""
        d = DequantizeLinear(x, s, z) e = DequantizeLinear<axis = {axis}>(w, t, v)
        c = DequantizeLinear(i, k) m = Gemm<alpha = 1.0{turned}>(d, e, c)
        y = QuantizeLinear(m, u, z)"""
    shape = (24, 40) if axis == 0 else (40, 24)
    weights = {"w": codes("int8", *shape), "t": scales(24), "v": np.zeros(24, np.int8)}
    weights |= {"i": codes("int16", 24).astype(np.int32), "k": np.float32(1e-3)}
    weights |= {"s": np.float32(0.02), "z": np.uint8(100), "u": np.float32(0.9)}
    feeds = {"x": codes("uint8", 7, 40)}
    model = small_model("y", body, feeds, weights, 21)
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    requantised(exe, model, feeds, "y", 1)
    assert "int16 times int8" in notes_of(lower_model, model)


def test_what_is_dequantised_may_be_read_by_several(lower_model, backends):
    """By two products, whose DequantizeLinear goes, and by others, for which it stays."""
    body = """
        d = DequantizeLinear(x, s, z) e = DequantizeLinear(w, t) f = DequantizeLinear(o, t)
        k = MatMul(d, e) l = MatMul(d, f) y = Add(k, l)"""
    weights = {"w": codes("int8", 20, 12), "o": codes("int8", 20, 12), "t": np.float32(0.01)}
    weights |= {"s": np.float32(0.02), "z": np.uint8(100)}
    feeds = {"x": codes("uint8", 4, 20)}
    for outputs, calls in (("y", 4), ("y, d", 5)):
        model = small_model(outputs, body, feeds, weights, 21)
        exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
        for name, want in evaluate(model, feeds).items():
            np.testing.assert_allclose(exe.run(feeds)[name], want, rtol=1e-5, atol=1e-5)
        notes = notes_of(lower_model, model)
        assert len(notes) == calls
        assert notes.count("int16 times int8") == 2


def test_codes_that_a_product_reads_are_written_where_others_read_what_they_stand_for(backends):
    body = """
        h = Relu(x) q = QuantizeLinear(h, s, z) d = DequantizeLinear(q, s, z)
        e = DequantizeLinear(w, t) m = MatMul(d, e) y = Add(m, d)"""
    weights = {"w": codes("int8", 20, 20), "t": np.float32(0.01)}
    weights |= {"s": np.float32(0.02), "z": np.uint8(100)}
    feeds = {"x": RNG.standard_normal((4, 20)).astype(np.float32)}
    model = small_model("y", body, feeds, weights, 21)
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    np.testing.assert_allclose(
        exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-5, atol=1e-5
    )


STAYS = {
    "rows of weights with scales of their own": "e = DequantizeLinear<axis = 0>(w, r)",
    "weights that are computed": "e = DequantizeLinear(v, t)",
}


@pytest.mark.parametrize("case", STAYS)
def test_other_products_stay_in_float(lower_model, backends, case):
    body = f"d = DequantizeLinear(x, s) {STAYS[case]} y = MatMul(d, e)"
    weights = {"w": codes("int8", 20, 12), "t": np.float32(0.01), "r": scales(20)}
    feeds = {"x": codes("uint8", 4, 20), "v": codes("int8", 20, 12)}
    model = small_model("y", body, feeds, weights | {"s": np.float32(0.02)}, 21)
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    want = evaluate(model, feeds)["y"]
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    assert not any("times" in note for note in notes_of(lower_model, model))


REFUSED = {
    "and has a zero point for each column": ("x, v, , c", {"c": np.zeros(9, np.int8)}),
    "a zero point for each row": ("x, w, r", {"r": np.zeros(4, np.uint8)}),
    "right zero point is not constant": ("x, w, z, o", {"z": np.uint8(1)}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_why_a_product_is_for_others(backends, reason):
    names, more = REFUSED[reason]
    feeds = {"x": codes("uint8", 4, 20), "v": codes("int8", 20, 9), "o": codes("int8")}
    model = small_model(
        "y", f"y = MatMulInteger({names})", feeds, {"w": codes("int8", 20, 9), **more}
    )
    with pytest.raises(UnsupportedError, match=reason):
        intarsia.compile(model, "llvm", strict=True, backends=backends)


def computed(a, b, a_zero, b_zero, shapes, *, are_fed=False):
    """A MatMulInteger of two computed operands, and its feeds; zero points may be fed too."""
    zeros = {
        name: codes(dtype)
        for name, dtype, is_there in (("z", a, a_zero), ("u", b, b_zero))
        if is_there
    }
    feeds = {"x": codes(a, *shapes[0]), "v": codes(b, *shapes[1])}
    names = "x, v" + (", z" if a_zero else ", " if b_zero else "") + (", u" if b_zero else "")
    feeds |= zeros if are_fed else {}
    model = small_model("y", f"y = MatMulInteger({names})", feeds, {} if are_fed else zeros, 21)
    return model, feeds


COMPUTED = [
    ((2, 3, 17, 32), (2, 3, 32, 33)),
    ((1, 4, 9, 80), (3, 1, 80, 20)),
    ((12, 16, 37), (12, 37, 5)),
    ((70,), (70, 9)),
    ((5, 70), (70,)),
]


@pytest.mark.parametrize("shapes", COMPUTED, ids=str)
def test_computed_operands(backends, shapes):
    check(backends, *computed("uint8", "uint8", True, True, shapes))


@pytest.mark.parametrize("are_fed", [False, True])
@pytest.mark.parametrize(("a_zero", "b_zero"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("a", "b"), DTYPES)
def test_zero_points_of_computed_operands(lower_model, a, b, a_zero, b_zero, are_fed):
    model, feeds = computed(a, b, a_zero, b_zero, ((2, 5, 22), (2, 22, 19)), are_fed=are_fed)
    program = check_unit(lower_model, model, feeds, UNITS["vnni"])
    assert program.calls[-1].note == f"{a} times int8"


@pytest.mark.parametrize("unit", UNITS)
def test_computed_operands_for_other_units(lower_model, unit):
    model, feeds = computed("uint8", "int8", True, True, ((3, 4, 21), (3, 21, 18)))
    program = check_unit(lower_model, model, feeds, UNITS[unit])
    kind = "uint8 times int8" if UNITS[unit].has_byte_dots else "int16 times int16"
    assert program.calls[-1].note == kind


@pytest.mark.parametrize("are_fed", [False, True])
def test_requantised_computed_operands(backends, are_fed):
    feeds = {"x": codes("uint8", 2, 9, 64), "v": codes("int8", 2, 64, 20)}
    numbers = {"s": scales(), "z": np.uint8(119), "t": scales(), "u": np.int8(-7)}
    numbers |= {"r": np.float32(0.03), "o": np.uint8(130)}
    feeds |= numbers if are_fed else {}
    node = "y = QLinearMatMul(x, s, z, v, t, u, r, o)"
    check(backends, small_model("y", node, feeds, {} if are_fed else numbers, 21), feeds)


@pytest.mark.parametrize(("terms", "is_of_codes"), [(33_025, True), (33_026, False)])
def test_sums_that_may_leave_32_bits_are_of_floats(terms, is_of_codes, lower_model, backends):
    feeds = {"x": np.full((8, terms), 255, np.uint8), "v": np.full((terms, 2), 255, np.uint8)}
    body = "a = DequantizeLinear(x, s) b = DequantizeLinear(v, s) y = MatMul(a, b)"
    model = small_model("y", body, feeds, {"s": np.float32(1)})
    program, _ = lower_model(model, UNITS["vnni"])
    notes = [call.note for call in program.calls]
    assert ("uint8 times int8" in notes) is is_of_codes
    want = np.full((8, 2), 255.0**2 * terms)
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=1e-5)


def test_free_columns_of_a_computed_operand(backends):
    """There is no program for all sizes, but one for each."""
    model, _ = computed("uint8", "int8", False, False, ((4, 20), (20, 9)))
    del model.graph.value_info[:]
    for value in (model.graph.input[1], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_param = "columns"
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    for columns in (1, 9, 33):
        some = {"x": codes("uint8", 4, 20), "v": codes("int8", 20, columns)}
        np.testing.assert_array_equal(exe.run(some)["y"], reference(model, some)["y"])


ATTENTION = {
    "c": """
    q = DequantizeLinear(x, s, z) k = DequantizeLinear(v, t, u)
    m = MatMul(q, k) c = QuantizeLinear(m, r, o)""",
    "e": """
    f = DequantizeLinear(c, r, o)
    a = Add(f, b) p = Softmax<axis = -1>(a) e = QuantizeLinear(p, h, n)""",
    "y": """
    d = DequantizeLinear(w, t, u) g = DequantizeLinear(e, h, n)
    j = MatMul(g, d) y = QuantizeLinear(j, i, o)""",
}
"""By the codes that it makes, a part of attention: each makes its own of those before."""


def attention():
    """The two products of attention between Q and DQ nodes, its numbers and its feeds."""
    feeds = {"x": codes("uint8", 2, 3, 24, 32), "v": codes("uint8", 2, 3, 32, 20)}
    feeds |= {"w": codes("uint8", 2, 3, 20, 16)}
    numbers = {"s": np.float32(0.02), "z": np.uint8(119), "t": np.float32(0.01), "u": np.uint8(131)}
    numbers |= {
        "r": np.float32(0.05),
        "o": np.uint8(126),
        "h": np.float32(1 / 255),
        "n": np.uint8(0),
    }
    mask = np.where(np.arange(20) < 17, 0, -1e4).astype(np.float32)
    numbers |= {"i": np.float32(0.01), "b": mask}
    return small_model("y", "".join(ATTENTION.values()), feeds, numbers), numbers, feeds


def test_attention_between_q_and_dq(lower_model, backends):
    model, numbers, feeds = attention()
    told = small_model("c, e, y", "".join(ATTENTION.values()), feeds, numbers)
    for target in ("llvm", "llvm -mattr=-amx-int8,-amx-tile", "llvm -mattr=-avx512vnni,-avxvnni"):
        exe, telling = (
            intarsia.compile(one, target, strict=True, num_threads=1, backends=backends)
            for one in (model, told)
        )
        made = telling.run(feeds)
        np.testing.assert_array_equal(exe.run(feeds)["y"], made["y"])
        # A step of the first codes may be more of the last: each is compared with what those
        # before it come to.
        for name, given in (("c", "xv"), ("e", "c"), ("y", "ew")):
            before = {one: (feeds | made)[one] for one in given}
            part = small_model(name, ATTENTION[name], before, numbers)
            off = evaluate(part, before)[name].astype(int) - made[name].astype(int)
            assert np.abs(off).max() <= 1, (target, name)
    vnni = CpuModel(512, 32, dots=("avx512vnni", "avx512bw"))
    program, _ = lower_model(model, vnni)
    assert [call.note for call in program.calls].count("uint8 times int8") == 2
    program, _ = lower_model(model, CpuModel(256, 16, dots=("avx2",)))
    assert not any("times" in call.note for call in program.calls)


def test_a_product_is_one_of_floats_where_the_program_for_all_sizes_has_that():
    """Or a program for some sizes would have other bits."""
    model, _, _ = attention()
    graph = snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    vnni = CpuModel(512, 32, dots=("avx512vnni", "avx512bw"))
    products = [node.name for node in graph.nodes if node.op_type == "MatMul"]
    noted = {
        dots_key(Operation(graph, node)): "tiles"
        for node in graph.nodes
        if node.name == products[0]
    }
    program = lower_region(region, vnni, settled=noted)
    assert [call.note for call in program.calls].count("uint8 times int8") == 1


def test_free_rows(backends):
    """One program for all sizes, with the bits of each."""
    model, feeds = integer(a_zero=True)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[1]
        dim.dim_param = "rows"
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    for rows in (1, 5, 8, 13):
        some = {"x": codes("uint8", 2, rows, 37)}
        want = reference(model, some)["y"]
        np.testing.assert_array_equal(exe.run(some)["y"], want)
    np.testing.assert_array_equal(exe.run(feeds)["y"], reference(model, feeds)["y"])
