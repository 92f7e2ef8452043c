# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan as steps of a plan give what ONNX Runtime gives."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import intarsia
from intarsia.errors import ExecutionError, InputError

MACHINE = "llvm, onnxruntime"

IF = """g (bool c, float[4] x) => (float[4] y, float[4] z) <float[4] w = {1, 2, 3, 4}> {
    p = Neg(x)
    y, z = If(c) <
        then_branch = t () => (float[4] a, float[4] b) { a = Mul(p, w) b = Exp(x) },
        else_branch = e () => (float[4] d, float[4] f) { d = Add(p, x) f = Sub(d, w) }> }"""
PASSING = """g (bool c, float[4] x) => (float[4] y, float[4] z, float[4] same)
        <float[4] w = {1, 2, 3, 4}> {
    p = Neg(x)
    y, z, same = If(c) <
        then_branch = t () => (float[4] a, float[4] h, float[4] b) {
            a = Identity(w) h = Identity(p) b = Identity(a) },
        else_branch = e () => (float[4] d, float[4] g, float[4] k) {
            d = Abs(p) g = Neg(x) k = Constant<value = float[4] {0, 1, 0, 1}>() }> }"""
SIZES = """g (bool c, float[4] x) => (float[n] y) {
    p = Neg(x)
    r = If(c) <
        then_branch = t () => (float[4] a) { a = Exp(p) },
        else_branch = e () => (float[8] b) { b = Concat<axis = 0>(p, x) }>
    y = Abs(r) }"""
LOOP = """g (int64 m, bool go, float[4] x) => (float[4] y, float[n,4] all)
        <float[4] w = {1, 2, 3, 4}> {
    p = Neg(x)
    y, all = Loop(m, go, x) <
        body = b (int64 i, bool on, float[4] v) => (bool on, float[4] u, float[4] s) {
            s = Add(v, p) u = Mul(s, w) }> }"""
EARLY = """g (int64 m, float[4] x, float most) => (float[4] y, float[n] sums, int64 k)
        <int64 zero = {0}> {
    y, k, sums = Loop(m, , x, zero) <body = b
        (int64 i, bool on, float[4] v, int64 j) => (bool go, float[4] u, int64 k, float t) {
            k = Add(j, i) h = Abs(v) u = Add(h, h)
            t = ReduceSum<keepdims = 0>(u) go = Less(t, most) }> }"""
WHILE = """g (int64[1] x) => (int64[1] y, int64[1] count)
        <int64 one = {1}, int64 two = {2}, int64 three = {3}, bool yes = {1}, int64[1] none = {0}> {
    y, count = Loop( , yes, x, none) <
        body = b (int64 i, bool on, int64[1] v, int64[1] k) => (bool go, int64[1] u, int64[1] n) {
            n = Add(k, one) rest = Mod(v, two) is_odd = Cast<to = 9>(rest)
            half = Div(v, two) triple = Mul(v, three) more = Add(triple, one)
            u = Where(is_odd, more, half) big = Greater(u, one) go = Squeeze(big) }> }"""
SWAP = """g (int64 m, float16[2] a, float16[2] b) => (float16[2] c, float16[2] d, float16[n,2] all)
        <bool yes = {1}> {
    c, d, all = Loop(m, yes, a, b) <body = f
            (int64 i, bool on, float16[2] p, float16[2] q)
            => (bool on, float16[2] q, float16[2] p, float16[2] s) {
            s = Add(p, q) }> }"""
GROWING = """g (int64 m, float[n] x) => (float[k] y) <bool yes = {1}> {
    y = Loop(m, yes, x) <body = f (int64 i, bool on, float[k] v) => (bool on, float[j] u) {
        u = Concat<axis = 0>(v, v) }> }"""
NESTED = """g (int64 m, bool c, double[3] x) => (double[3] y, double[n,2,3] all)
        <int64 two = {2}, bool yes = {1}> {
    p = Neg(x)
    y, all = Loop(m, yes, x) <body = outer
            (int64 i, bool on, double[3] v) => (bool on, double[3] u, double[2,3] inner) {
        q = Abs(v)
        w, inner = Loop(two, yes, v) <body = deep
                (int64 j, bool k, double[3] s) => (bool k, double[3] t, double[3] o) {
            o = If(c) <
                then_branch = yes_ () => (double[3] a) { a = Add(s, p) },
                else_branch = no_ () => (double[3] d) { e = Mul(s, q) d = Sub(e, x) }>
            t = Tanh(o) }>
        u = Add(w, q) }> }"""
SCAN = """g (float[3] s, float[5,3] x, int64[2,5] n) => (float[3] y, float[5,3] all, int64[2,5] m)
        <float[3] w = {1, 2, 3}> {
    y, all, m = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
            scan_output_axes = [0, -1], scan_output_directions = [0, 1],
            body = b (float[3] p, float[3] v, int64[2] k) => (float[3] q, float[3] o, int64[2] j) {
        t = Add(p, v) q = Mul(t, w) o = Neg(q) j = Add(k, k) }> (s, x, n) }"""


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


X = numbers(4)
HALVES = {"a": numbers(2, dtype=np.float16), "b": numbers(2, dtype=np.float16, seed=1)}


def fed(names, *rows, **others):
    """Return feeds by name for each row of scalars, with what is in all of them."""
    return [
        {**others, **{name: np.array(one) for name, one in zip(names.split(), row, strict=True)}}
        for row in rows
    ]


CASES = {
    "if": (IF, fed("c", (True,), (False,), (True,), x=X)),
    "outputs that nothing computes": (PASSING, fed("c", (False,), (True,), x=X)),
    "branches of two sizes": (SIZES, fed("c", (False,), (True,), (False,), x=X)),
    "loop": (LOOP, fed("m go", (3, True), (0, True), (4, False), (1, True), (2, True), x=X)),
    "early exit": (
        EARLY,
        [
            {"m": np.array(m), "x": X, "most": np.array(most, np.float32)}
            for m, most in ((9, 20), (2, 1e9), (5, 0), (1, 9))
        ],
    ),
    "while": (WHILE, [{"x": np.array([n])} for n in (7, 2, 27)]),
    "swap": (SWAP, fed("m", (0,), (1,), (2,), (5,), **HALVES)),
    "nested": (
        NESTED,
        fed("m c", (0, True), (3, True), (2, False), x=numbers(3, dtype=np.float64)),
    ),
    "scan": (
        SCAN,
        [
            {"s": numbers(3), "x": numbers(5, 3, seed=s), "n": np.arange(10).reshape(2, 5) + s}
            for s in (1, 2)
        ],
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, parse_model):
    text, feeds = CASES[request.param]
    return parse_model(text), feeds


def expected_of(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize(
    "machine", [MACHINE, "llvm", "fake -ops=Neg,Add,Mul,Sub,Abs,Exp, reference"]
)
def test_control_flow_gives_what_onnxruntime_gives(machine, case, assert_same, backends):
    model, feeds = case
    exe = intarsia.compile(model, machine, backends=backends)
    assert "control flow" in {region.reason for region in exe.placement.regions}
    for one in feeds:
        assert_same(exe.run(one), expected_of(model, one))


def test_a_package_holds_the_bodies(case, assert_same, backends, tmp_path):
    model, feeds = case
    exe = intarsia.compile(model, MACHINE, backends=backends)
    exe.save(tmp_path / "p.intarsia")
    loaded = intarsia.load(tmp_path / "p.intarsia")
    assert loaded.plan == exe.plan
    for one in feeds:
        assert_same(loaded.run(one), exe.run(one))


def test_a_branch_reads_and_writes_in_place(parse_model, backends):
    """What is captured is not copied: the branch is bound to the arrays around the If."""
    exe = intarsia.compile(parse_model(IF), MACHINE, backends=backends)
    arrays = {"c": np.array(True), "x": X.copy()}
    outputs = {"y": np.empty(4, np.float32), "z": np.empty(4, np.float32)}
    step = exe.bind(arrays, outputs)
    for condition in (True, False):
        arrays["c"][...] = condition
        arrays["x"] += 1
        step()
        expected = expected_of(parse_model(IF), arrays)
        for name, array in outputs.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-6)
    assert exe.plan.copies == ()


def test_what_grows_while_it_is_carried_has_no_size(parse_model, assert_same, backends):
    model = parse_model(GROWING)
    exe = intarsia.compile(model, MACHINE, shapes={"x": (3,)}, backends=backends)
    for count in (0, 1, 4):
        feeds = {"m": np.array(count), "x": numbers(3)}
        assert_same(exe.run(feeds), expected_of(model, feeds))


def test_a_count_that_the_model_declares_wrongly_is_an_error(parse_model, backends):
    model = parse_model(LOOP.replace("float[n,4] all", "float[3,4] all"))
    exe = intarsia.compile(model, MACHINE, backends=backends)
    with pytest.raises(ExecutionError, match="'all' came out as"):
        exe.run({"m": np.array(2), "go": np.array(True), "x": X})


def test_one_value_may_be_several_outputs(parse_model, backends):
    """ONNX Runtime gives garbage for the second one, and counts too far for what it hands on."""
    twice = """g (bool c, float[4] x) => (float[4] y, float[4] z) {
        y, z = If(c) <then_branch = t () => (float[4] a, float[4] a) { a = Neg(x) },
                      else_branch = e () => (float[4] b, float[4] b) { b = Exp(x) }> }"""
    exe = intarsia.compile(parse_model(twice), MACHINE, backends=backends)
    for condition, expected in ((True, -X), (False, np.exp(X))):
        for array in exe.run({"c": np.array(condition), "x": X}).values():
            np.testing.assert_allclose(array, expected, rtol=1e-6)
    counter = """g (int64 m, float[4] x) => (int64 k, float[4] y) <int64 zero = {0}> {
        k, y = Loop(m, , zero, x) <
            body = b (int64 i, bool on, int64 j, float[4] v) => (bool on, int64 i, float[4] u) {
                u = Add(v, v) }> }"""
    exe = intarsia.compile(parse_model(counter), MACHINE, backends=backends)
    for count, last in ((0, 0), (1, 0), (4, 3)):
        outputs = exe.run({"m": np.array(count), "x": X})
        assert outputs["k"] == last
        np.testing.assert_array_equal(outputs["y"], X * 2**count)


def test_what_a_loop_stacks_may_become_bfloat16(parse_model, backends):
    """The Cast reads a tensor of unknown size and writes one that numpy has no type for."""
    model = parse_model("""g (int64 m, float[2] x) => (bfloat16[2,2] y) {
        z, all = Loop(m, , x) <
            body = b (int64 i, bool on, float[2] v) => (bool on, float[2] u, float[2] t) {
            u = Add(v, x) t = Neg(v) }>
        y = Cast<to = 16>(all) }""")
    exe = intarsia.compile(model, MACHINE, backends=backends)
    x = np.array([1, 2], np.float32)
    array = exe.run({"m": np.array(2), "x": x})["y"]
    assert array.dtype.name == "bfloat16"
    np.testing.assert_array_equal(array.astype(np.float32), [-x, -2 * x])


@pytest.mark.parametrize("kind", ["16", "1"])
def test_a_bfloat16_number_goes_into_what_a_loop_stacks(parse_model, backends, kind):
    """Neither what comes in nor what goes out has a size and a type that the session knows."""
    dtype = {"16": "bfloat16", "1": "float"}[kind]
    model = parse_model(f"""g (int64 m, bfloat16 s) => ({dtype}[k] y) {{
        x = Cast<to = 1>(s)
        z, all = Loop(m, , x) <
            body = b (int64 i, bool on, float v) => (bool on, float u, float t) {{
            u = Add(v, x) t = Neg(v) }}>
        y = Cast<to = {kind}>(all) }}""")
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    start = np.array(1.5, ml_dtypes.bfloat16)
    for count in (2, 0):
        array = exe.run({"m": np.array(count), "s": start})["y"]
        assert array.dtype.name == {"16": "bfloat16", "1": "float32"}[kind]
        np.testing.assert_array_equal(array.astype(np.float32), [-1.5, -3.0][:count])


def test_a_profile_counts_iterations_and_times_what_is_in_them(parse_model, backends):
    exe = intarsia.compile(parse_model(NESTED), MACHINE, backends=backends)
    feeds = {"m": np.array(3), "c": np.array(True), "x": numbers(3, dtype=np.float64)}
    profile = exe.profile(feeds, runs=2)
    (loop,) = profile.bodies
    branches = [(body.name, body.iterations) for body in loop.profile.bodies]
    assert (loop.name, loop.iterations) == ("body", 3)
    assert branches == [("then_branch", 3), ("else_branch", 0)] * 2  # the loop inside is unrolled
    assert profile.of_regions(exe.plan)[loop.region] >= loop.seconds >= sum(loop.profile.seconds)
    assert min(loop.profile.seconds) > 0
    assert {body.seconds for body in loop.profile.bodies if not body.iterations} == {0}
    explanation = exe.explain(profile)
    (body,) = explanation.bodies
    assert (body.iterations, body.seconds) == (3, loop.seconds)
    assert body.explanation.region_seconds == loop.profile.of_regions(exe.plan.bodies[0].plan)
    assert f"body of region {loop.region} (3 iterations, " in str(explanation)
    assert "iteration" not in str(exe.explain())


def test_a_profile_says_what_fails_in_a_body(parse_model, backends):
    model = parse_model("""g (int64 m, float[4] x) => (float[4] y) <bool yes = {1}> {
        y = Loop(m, yes, x) <body = b (int64 i, bool on, float[4] v) => (bool on, float[4] u) {
            one = Gather(x, i) u = Add(v, one) }> }""")
    exe = intarsia.compile(model, MACHINE, backends=backends)
    assert len(exe.profile({"m": np.array(4), "x": X}).bodies) == 1
    with pytest.raises(InputError, match="index 4"):
        exe.profile({"m": np.array(5), "x": X})


def test_what_the_data_counts_is_stacked_and_read_by_native_code(
    parse_model, assert_same, backends
):
    model = parse_model(
        """g (float[4] x, int64 m) => (float[n,4] y) <bool go = {1}> {
           last, all = Loop (m, go, x) <body = b (int64 i, bool before, float[4] v) =>
               (bool after, float[4] w, float[4] o) {
               after = Identity(before) w = Add(v, x) o = Neg(v) }>
           y = Tanh(all) }"""
    )
    exe = intarsia.compile(model, "llvm", backends=backends)
    last = exe.placement.regions[-1]
    assert (last.backend, [node.op_type for node in last.nodes]) == ("llvm", ["Tanh"])
    for count in (0, 1, 4, 1):
        feeds = {"m": np.array(count), "x": X}
        assert_same(exe.run(feeds), expected_of(model, feeds))


def test_what_is_stacked_of_entries_of_unknown_size_stays_whole(parse_model, assert_same, backends):
    model = parse_model(
        """g (float[4] x, int64 m) => (int64[n,1,k] y) <bool go = {1}> {
           r = Relu(x)
           last, y = Loop (m, go, r) <body = b (int64 i, bool before, float[4] v) =>
               (bool after, float[4] w, int64[1,c] o) {
               after = Identity(before) w = Add(v, r) o = NonZero(v) }> }"""
    )
    for target in ("llvm, onnxruntime", "llvm"):  # onnxruntime stands in for the host
        exe = intarsia.compile(model, target, backends=backends)
        assert [one.backend for one in exe.placement.regions] == ["llvm", "onnxruntime"]
        for count in (1, 4):
            feeds = {"m": np.array(count), "x": X}
            assert_same(exe.run(feeds), expected_of(model, feeds))
