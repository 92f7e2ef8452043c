# SPDX-License-Identifier: Apache-2.0
"""Programs of ONNX Runtime that use Intarsia by its provider: unmodified, but for two lines."""

import gc
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from tests.c_compiler import compile_c

import intarsia

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.24")

NAME = "IntarsiaExecutionProvider"
RELU = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { p = MatMul (x, w) y = Relu (p) }"""
FREE = """<ir_version: 8, opset_import: ["": 17]>
    g (float[batch, 3] x) => (float[batch, 3] y) { a = Add (x, x) y = Softmax (a) }"""


@pytest.fixture(scope="module")
def devices():
    onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
    yield [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    gc.collect()  # sessions end before their provider's library
    onnxruntime.unregister_execution_provider_library("intarsia")


@pytest.fixture
def open_session(devices):
    def open_session(model, entries=None, **options):
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        settings.add_provider_for_devices(devices, {"target": "llvm", **options})
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in (entries or {}).items():
            settings.add_session_config_entry(key, value)
        if isinstance(model, str) and model.lstrip().startswith("<"):
            model = onnx.parser.parse_model(model)
        if isinstance(model, onnx.ModelProto):
            model = model.SerializeToString()
        return onnxruntime.InferenceSession(model, settings)

    return open_session


def owners(session):
    """Return how many nodes each provider has."""
    counts = Counter()
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] += len(list(part.get_nodes()))
    return counts


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_there_is_one_device(devices):
    (device,) = devices
    assert (device.ep_vendor, device.device.type.name) == ("Intarsia", "CPU")


def test_a_session_computes_as_the_program_itself(open_session):
    session = open_session(RELU)
    assert owners(session) == {NAME: 2}
    program = intarsia.compile(onnx.parser.parse_model(RELU), "llvm", cache=False)
    for seed in range(4):  # copied at first, bound when addresses come again
        feeds = {"x": draw(2, 3, seed=seed), "w": draw(3, 4, seed=seed + 10)}
        for _ in range(3):
            (y,) = session.run(None, feeds)
            np.testing.assert_array_equal(y, program.run(feeds)["y"])


def test_free_dimensions_stay_free(open_session):
    session = open_session(FREE)
    assert set(owners(session)) == {NAME}
    reference = onnx.reference.ReferenceEvaluator(onnx.parser.parse_model(FREE))
    for batch in (1, 5, 2, 5, 1):
        x = draw(batch, 3, seed=batch)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-6
        )


def test_python_may_end_while_there_is_a_session(tmp_path):
    code = f"""
import numpy, onnx.parser, onnxruntime, intarsia
onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
settings = onnxruntime.SessionOptions()
settings.add_provider_for_devices(
    [one for one in onnxruntime.get_ep_devices() if one.ep_name == {NAME!r}], {{}})
model = onnx.parser.parse_model({RELU!r}).SerializeToString()
session = onnxruntime.InferenceSession(model, settings)
print(session.run(None, {{"x": numpy.ones((2, 3), "f"), "w": numpy.ones((3, 4), "f")}})[0].sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "24.0"), done.stderr


def test_graphs_inside_nodes_may_have_nodes_of_ours(open_session):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (int64 n, bool c, float[4] x) => (float[4] y, float[4] z) {
            one = Constant <value = float[1] {2.0}> ()
            w = Mul (x, one)
            y = Loop (n, c, x) <body = b (int64 i, bool ci, float[4] v)
                => (bool co, float[4] vo) { co = Identity (ci) t = Add (v, w) vo = Mul (t, one) }>
            z = If (c) <then_branch = t () => (float[4] a) { q = Sub (x, w) a = Neg (q) },
                else_branch = e () => (float[4] a) { q = Add (x, w) a = Neg (q) }>
        }""")
    session = open_session(model)
    assert owners(session)["CPUExecutionProvider"] == 2
    reference = onnx.reference.ReferenceEvaluator(model)
    for condition in (True, False):
        feeds = {"n": np.array(3), "c": np.array(condition), "x": draw(4)}
        for value, expected in zip(
            session.run(None, feeds), reference.run(None, feeds), strict=True
        ):
            np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_what_no_target_takes_stays_with_onnx_runtime(open_session):
    model = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x, string[2] s) => (float[4] y, string[2] u, int64[1, k] z) {
            a = Add (x, x) z = NonZero (a) u = Identity (s) b = Neg (a) y = Mul (b, x) }"""
    session = open_session(model)
    assert owners(session)[NAME] >= 3
    x, texts = draw(4), np.array(["one", "two"], object)
    y, u, z = session.run(None, {"x": x, "s": texts})
    np.testing.assert_allclose(y, -2 * x * x, rtol=1e-6)
    assert list(u) == ["one", "two"]
    np.testing.assert_array_equal(z, [[0, 1, 2, 3]])


ATTRIBUTES = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
    g (float[1, 2, rows, 6] x, float[3] f) => (float[1, 4, m, n] y, float[1, 3] z) {
        c = Conv <auto_pad = "VALID", kernel_shape = [2, 3], strides = [1, 2]> (x, w)
        y = LeakyRelu <alpha = 0.25> (c)
        z = ai.onnx.ml.Scaler <offset = [1.0, 2.0, 3.0], scale = [0.5, 0.25, 2.0]> (f)
    }"""


def test_a_graph_is_read_as_it_is(open_session, monkeypatch):
    """Every function of ONNX Runtime's tables by which we read is called on a known model."""
    from intarsia.provider.provider import SessionProvider

    seen = []

    def look(self, graph):
        inner = [node for node in graph.nodes if graph.takes(node)]
        written = {name for node in inner for name in node.outputs}
        model = graph.model(inner, [name for name in graph.outputs if name in written])
        seen.append((onnx.ModelProto.FromString(_bytes(model)), graph.opsets(), graph.path()))
        return []

    monkeypatch.setattr(SessionProvider, "_settle", look)
    model = onnx.parser.parse_model(ATTRIBUTES)
    weights = draw(4, 2, 2, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    halves = np.array([1.5, -2.25], np.float16)
    model.graph.node.append(
        onnx.helper.make_node("Constant", [], ["h"], value=onnx.numpy_helper.from_array(halves))
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", 10, [2]))
    open_session(model, {"session.disable_constant_folding": "1"})
    read, opsets, path = seen[0]
    assert (opsets[""], opsets["ai.onnx.ml"], path) == (17, 3, "")
    nodes = {node.op_type: node for node in read.graph.node}
    for node in model.graph.node:
        if node.op_type == "Constant":  # ONNX Runtime makes an initializer of it
            continue
        found = {
            one.name: onnx.helper.get_attribute_value(one) for one in nodes[node.op_type].attribute
        }
        for one in node.attribute:
            assert found[one.name] == onnx.helper.get_attribute_value(one), one.name
        assert list(nodes[node.op_type].input) == list(node.input)
        assert list(nodes[node.op_type].output) == list(node.output)
    inputs = {one.name: one.type.tensor_type for one in read.graph.input}
    dims = [one.dim_param or one.dim_value for one in inputs["x"].shape.dim]
    assert (dims, inputs["x"].elem_type) == ([1, 2, "rows", 6], 1)
    (constant,) = (one for one in read.graph.initializer if one.name == "w")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(constant), weights)


def _bytes(model):
    import onnx_ir as ir

    return ir.to_proto(model).SerializeToString()


@pytest.mark.parametrize("is_embedded", [True, False])
def test_what_was_compiled_is_stored_in_a_model(open_session, tmp_path, monkeypatch, is_embedded):
    source, stored = tmp_path / "m.onnx", tmp_path / "stored.onnx"
    onnx.save(onnx.parser.parse_model(RELU), source)
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": str(int(is_embedded)),
        "ep.context_file_path": str(stored),
    }
    feeds = {"x": draw(2, 3), "w": draw(3, 4)}
    expected = open_session(str(source), entries).run(None, feeds)[0]
    assert len(list(tmp_path.glob("*.intarsia"))) == (not is_embedded)
    monkeypatch.setattr("intarsia.provider.provider.compile_model", None)  # nothing is compiled
    session = open_session(str(stored))
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    if not is_embedded:
        model = onnx.load(stored)
        (attribute,) = (one for one in model.graph.node[0].attribute if one.s.endswith(b"sia"))
        attribute.s = b"../other.intarsia"
        onnx.save(model, stored)
        with pytest.raises(Exception, match=r"which is not beside it"):
            onnxruntime.InferenceSession(str(stored), _only(open_session), enable_fallback=False)


def _only(open_session):
    """Return options with the provider, for sessions that must not do without it."""
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(devices, {})
    return settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"taget": "llvm"}, "no option 'taget' .hint: did you mean 'target'"),
        ({"target": "llvmm"}, "target kind 'llvmm' is not known"),
        ({"num_threads": "none"}, "num_threads is 'none' .hint: give a number"),
        ({"placement": "best"}, "placement is 'best'"),
        ({"trust": "yes"}, "trust is 'yes' .hint: give 0 or 1"),
    ],
)
def test_an_option_that_is_wrong_is_a_status_with_our_words(devices, options, said):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices(devices, options)
    model = onnx.parser.parse_model(RELU).SerializeToString()
    with pytest.raises(Exception, match=said):
        onnxruntime.InferenceSession(model, settings, enable_fallback=False)


def test_a_bug_of_ours_is_a_status_too(open_session, monkeypatch):
    from intarsia.provider.kernel import RegionKernel

    session = open_session(RELU)
    feeds = {"x": draw(2, 3), "w": draw(3, 4)}
    expected = session.run(None, feeds)[0]

    def fail(*_):
        raise ZeroDivisionError("by nothing")

    with monkeypatch.context() as patch:
        patch.setattr(RegionKernel, "_run", fail)
        with pytest.raises(Exception, match=r"ZeroDivisionError: by nothing .hint: this is a bug"):
            session.run(None, {"x": draw(2, 3, seed=1), "w": draw(3, 4, seed=2)})
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_an_index_that_is_too_large_is_an_error_of_the_run(open_session):
    model = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 3] x, int64[2] i) => (float[2, 3] y) { y = Gather (x, i) }"""
    session = open_session(model)
    assert owners(session) == {NAME: 1}
    x = draw(4, 3)
    for _ in range(3):
        with pytest.raises(Exception, match="4"):
            session.run(None, {"x": x, "i": np.array([0, 4])})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.array([3, 0])})[0], x[[3, 0]])


def test_sessions_run_from_many_threads(open_session):
    sessions = [open_session(RELU), open_session(RELU)]
    problems = []

    def work(seed):
        try:
            for i in range(30):
                x, w = draw(2, 3, seed=seed * 100 + i), draw(3, 4, seed=seed)
                (y,) = sessions[i % 2].run(None, {"x": x, "w": w})
                np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not problems


def test_a_session_that_ends_gives_everything_back(open_session):
    from intarsia.provider import callbacks

    def count():
        gc.collect()
        return len(callbacks._tables)

    open_session(RELU)
    before = count()
    session = open_session(RELU)
    assert count() == before + 2  # the provider, and its region
    session.run(None, {"x": draw(2, 3), "w": draw(3, 4)})
    del session
    assert count() == before


def test_a_library_may_be_registered_again(tmp_path):
    """Also as a copy elsewhere, by two names, in a process that has not imported our package."""
    code = f"""
import shutil, sys, numpy, onnxruntime
library = shutil.copy({intarsia.onnxruntime_library()!r}, {str(tmp_path / "libcopy.so")!r})
model = open({str(tmp_path / "m.onnx")!r}, "rb").read()
for name in ("one", "two", "one"):
    onnxruntime.register_execution_provider_library(name, library)
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(
        [one for one in onnxruntime.get_ep_devices() if one.ep_name == {NAME!r}], {{}})
    session = onnxruntime.InferenceSession(model, settings)
    y = session.run(None, {{"x": numpy.ones((2, 3), "f"), "w": numpy.ones((3, 4), "f")}})[0]
    assert y.sum() == 24 and session.get_providers()[0] == {NAME!r}
    del session, settings
    onnxruntime.unregister_execution_provider_library(name)
"""
    onnx.save(onnx.parser.parse_model(RELU), tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_session_names_the_provider(devices):
    """As programs do that give providers by name."""
    if NAME not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime knows plug-ins by their devices alone")
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(RELU).SerializeToString(),
        settings,
        providers=[NAME, "CPUExecutionProvider"],
        provider_options=[{"target": "llvm", "num_threads": "1"}, {}],
    )
    assert owners(session) == {NAME: 2}
    x, w = draw(2, 3), draw(3, 4)
    np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], np.maximum(x @ w, 0))


HOST = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
static void *create_status(int code, const char *text) {
  printf("%d %s", code, text);
  return (void *)1;
}
static const void *table[] = {(void *)create_status};
static const void *get_api(uint32_t version) { return version == 1 ? table : 0; }
int main(int count, char **words) {
  const void *base[] = {(void *)get_api, 0};
  void *factories[4];
  size_t made = 0;
  void *library = dlopen(words[count - 1], RTLD_NOW);
  if (!library) return puts(dlerror()), 2;
  void *(*create)(const char *, const void *, const void *, void **, size_t, size_t *) =
      dlsym(library, "CreateEpFactories");
  return create("intarsia", base, 0, factories, 4, &made) == (void *)1 && !made ? 0 : 3;
}
"""


@pytest.mark.exhaustive
def test_a_process_without_python_is_told_so(tmp_path):
    source, program = tmp_path / "host.c", tmp_path / "host"
    source.write_text(HOST)
    compile_c("-o", program, source, "-ldl")
    done = subprocess.run(
        [program, intarsia.onnxruntime_library()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 Intarsia's provider works in a process of Python")


def test_an_older_onnx_runtime_is_told_so():
    import ctypes

    from intarsia.provider.factory import create_factories

    said = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, text):
        said.append((code, text.decode()))
        return 1

    table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def get_api(version):
        return ctypes.addressof(table) if version == 1 else 0

    version = ctypes.create_string_buffer(b"1.23.2")

    @ctypes.CFUNCTYPE(ctypes.c_void_p)
    def get_version():
        return ctypes.addressof(version)

    base = (ctypes.c_void_p * 2)(
        *(ctypes.cast(one, ctypes.c_void_p) for one in (get_api, get_version))
    )
    assert create_factories(0, ctypes.addressof(base), 0, 0, 4, 0) == 1
    ((code, text),) = said
    assert code == 1
    assert text.startswith("this provider needs ONNX Runtime 1.24 or later, this is 1.23.2")
