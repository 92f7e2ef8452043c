# SPDX-License-Identifier: Apache-2.0
"""Models as C and as shared libraries: built, called, and compared with onnxruntime."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.c_compiler import STRICT, compile_c, install_compiler
from tests.codegen.lower.small_models import feeds_of, small_model
from tests.free_model import BOUNDS, free_case, save_free_model

from intarsia import zoo
from intarsia.codegen.emit.c_main import seeded_input
from intarsia.codegen.emit.c_program import ALIGN, Tensor
from intarsia.errors import BackendError, SettingError, TargetError, UnsupportedError
from intarsia.export import (
    Product,
    export_c,
    export_executable,
    export_object,
    export_shared,
    write_program,
)
from intarsia.place.request import Request

EXAMPLE = Path(__file__).parents[1] / "examples" / "c" / "classify.c"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture(autouse=True)
def cc(tmp_path, monkeypatch):
    """The tests' C compiler where `export_shared` looks for one."""
    install_compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def build(*arguments):
    compile_c(*STRICT, "-pedantic", "-O2", *arguments)


def expected_of(model, feeds):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def call(library, name, arrays, function="run"):
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    return getattr(library, f"{name}_{function}")(*pointers)


def check(library, name, feeds, expected):
    """Call it twice, in its memory and in the caller's, and compare."""
    scratch = np.zeros(1 << 22, np.uint8)
    for function, first in (("run", []), ("run_in", [scratch[1:]])):
        outputs = {key: np.full_like(want, 7) for key, want in expected.items()}
        call(library, name, [*first, *feeds.values(), *outputs.values()], function)
        for key, want in expected.items():
            np.testing.assert_allclose(
                outputs[key], want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max(initial=1))
            )


@pytest.fixture(scope="module")
def network():
    """Two inputs and two outputs; a convolution, pooling, a product, a softmax."""
    body = """
        a = Conv<pads = [1, 1, 1, 1]>(x, w, b) c = Relu(a)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
        f = Flatten(p) g = Gemm(f, m) y = Softmax(g)
        h = Add(g, double) k = Greater(h, zero) z = Cast<to = 6>(k)"""
    weights = {"w": (5, 3, 3, 3), "b": (5,), "m": (80, 7), "zero": np.float32(0)}
    return small_model("z, y", body, {"x": (1, 3, 8, 8), "double": (1, 7)}, weights)


@pytest.fixture
def saved(network, tmp_path):
    path = tmp_path / "my-net.onnx"
    onnx.save(network, path)
    return path


@pytest.mark.parametrize("target", ["llvm", "c", "llvm -mcpu=haswell"])
def test_c_with_its_weights_inside(saved, network, tmp_path, target):
    files = export_c(saved, tmp_path / "out", target)
    assert [file.name for file in files] == ["my_net.c", "my_net.h"]
    build("-shared", "-fPIC", files[0], "-o", tmp_path / "net.so", "-lm")
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    feeds = feeds_of(network)
    check(library, "my_net", feeds, expected_of(network, feeds))


@pytest.mark.parametrize("form", ["c", "shared"])
def test_an_index_out_of_bounds_is_what_a_run_returns(tmp_path, form):
    body = "y = Gather(x, i) z = GatherND(x, j)"
    shapes = {"x": (4, 2), "i": np.arange(3), "j": np.array([[1, 1]])}
    onnx.save(small_model("y, z", body, shapes), tmp_path / "net.onnx")
    if form == "c":
        source, header = export_c(tmp_path / "net.onnx", tmp_path, "c")
        build("-shared", "-fPIC", source, "-o", tmp_path / "libnet.so", "-lm")
    else:
        _, header = export_shared(tmp_path / "net.onnx", tmp_path)
    library = ctypes.CDLL(str(tmp_path / "libnet.so"))
    x, y, z = np.ones((4, 2), np.float32), np.zeros((3, 2), np.float32), np.zeros(1, np.float32)
    for code, i, j in ((0, [0, 3, -4], [3, -2]), (1, [0, 4, 0], [0, 0]), (3, [0, 0, 0], [0, 2])):
        arrays = [x, np.array(i), np.array([j]), y, z]
        assert call(library, "net", arrays) == code
        described = f"{code}: an index in "
        assert (described in header.read_text()) == (code > 0)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_gcc_has_nothing_to_say_about_it_either(saved, tmp_path, target):
    source, _ = export_c(saved, tmp_path, target)
    command = ["gcc", *STRICT, "-pedantic", "-O1", "-fsyntax-only", source]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def wide(parse_model, tmp_path):
    """Weights of 160 KB."""
    model = small_model("y", "y = MatMul(x, w)", {"x": (2, 200)}, {"w": (200, 200)})
    onnx.save(model, tmp_path / "wide.onnx")
    return model


def test_c_with_its_weights_beside_it(wide, tmp_path):
    target = "c -weights-in=file"
    files = export_c(tmp_path / "wide.onnx", tmp_path, target, name="product")
    assert [file.name for file in files] == ["product.c", "product.h", "product.bin"]
    build("-shared", "-fPIC", files[0], "-o", tmp_path / "wide.so", "-lm")
    library = ctypes.CDLL(str(tmp_path / "wide.so"))
    weights = files[2].read_bytes()
    for content in (b"", weights[:-1], weights + b"\0"):
        (tmp_path / "wrong.bin").write_bytes(content)
        assert library.product_init(str(tmp_path / "wrong.bin").encode()) == -1
    assert library.product_init(str(tmp_path / "missing.bin").encode()) == -1
    assert library.product_init(str(files[2]).encode()) == 0
    feeds = feeds_of(wide)
    check(library, "product", feeds, expected_of(wide, feeds))
    library.product_free()


def linked_to(library):
    """Return the names of libraries in a file: all that it needs, and maybe more."""
    names = re.findall(rb"(?<=\0)lib[\w+-]+\.so[.\d]*(?=\0)", Path(library).read_bytes())
    return {name.decode() for name in names}


@pytest.mark.parametrize("fixture", ["network", "wide"])
def test_a_shared_library_needs_the_c_library_alone(request, fixture, tmp_path):
    model = request.getfixturevalue(fixture)
    onnx.save(model, tmp_path / "net.onnx")
    library, header = export_shared(tmp_path / "net.onnx", tmp_path)
    assert (library.name, header.name) == ("libnet.so", "net.h")
    assert "libc.so.6" in linked_to(np._core._multiarray_umath.__file__)  # it can be seen
    assert linked_to(library) <= {"libc.so.6", "libm.so.6"}
    feeds = feeds_of(model)
    check(ctypes.CDLL(str(library)), "net", feeds, expected_of(model, feeds))


def test_the_header_says_what_tensors_are_and_serves_c_plus_plus(saved, tmp_path):
    _, header = export_shared(saved, tmp_path)
    text = header.read_text()
    assert "input x: float32, 1 x 3 x 8 x 8" in text
    assert "output z: int32, 1 x 7" in text
    assert "const float *x, const float *double_, int32_t *z, float *y" in text
    assert 'extern "C"' in text
    size = int(text.split("MY_NET_SCRATCH_BYTES ")[1].split("u")[0])
    assert ALIGN <= size < 1 << 20
    (tmp_path / "use.c").write_text('#include "my_net.h"\nint main(void) { return 0; }\n')
    build("-I", tmp_path, tmp_path / "use.c", "-o", tmp_path / "use")


@pytest.fixture
def classifier(tmp_path):
    """A network of the shape that the example is written for, but small."""
    body = """
        a = Conv<strides = [16, 16]>(data, w) b = Relu(a) c = GlobalAveragePool(b)
        d = Conv(c, m) prob = Softmax<axis = 1>(d)"""
    weights = {"w": (16, 3, 16, 16), "m": (1000, 16, 1, 1)}
    model = small_model("prob", body, {"data": (1, 3, 224, 224)}, weights)
    onnx.save(model, tmp_path / "squeezenet.onnx")
    return model


def five_best(model, image):
    (probabilities,) = expected_of(model, {"data": image}).values()
    flat = probabilities.reshape(-1)
    return [(int(i), float(flat[i])) for i in np.argsort(-flat, kind="stable")[:5]]


def printed_by(*command):
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return [(int(a), float(b)) for a, b in map(str.split, done.stdout.splitlines())]


@pytest.mark.parametrize("emit", ["c", "shared"])
def test_the_example_prints_what_onnxruntime_says(classifier, tmp_path, emit):
    program = tmp_path / "classify"
    if emit == "c":
        source, _, weights = export_c(tmp_path / "squeezenet.onnx", tmp_path, "c -weights-in=file")
        options = [f'-DWEIGHTS="{weights}"', EXAMPLE, source, "-lm"]
    else:
        export_shared(tmp_path / "squeezenet.onnx", tmp_path)
        options = [EXAMPLE, f"-L{tmp_path}", "-lsqueezenet", f"-Wl,-rpath,{tmp_path}"]
    build(f"-I{tmp_path}", *options, "-o", program)
    image = np.random.default_rng(3).standard_normal((1, 3, 224, 224), np.float32)
    (tmp_path / "image.raw").write_bytes(image.tobytes())
    ramp = np.linspace(-1, 1, image.size, dtype=np.float32).reshape(image.shape)
    for arguments, data in (((tmp_path / "image.raw",), image), ((), ramp)):
        got, want = printed_by(program, *arguments), five_best(classifier, data)
        assert [index for index, _ in got] == [index for index, _ in want]
        np.testing.assert_allclose([p for _, p in got], [p for _, p in want], atol=2e-6)


def test_a_program_runs_the_model_on_files_or_on_a_seed(network, saved, tmp_path):
    program, header = export_executable(saved, tmp_path)
    assert (program.name, header.name) == ("my_net", "my_net.h")
    feeds = {
        name: seeded_input(Tensor(name, "float32", shape), number, 5)
        for number, (name, shape) in enumerate((("x", (1, 3, 8, 8)), ("double", (1, 7))))
    }
    want = expected_of(network, feeds)
    np.save(tmp_path / "x.npy", feeds["x"])
    (tmp_path / "double.raw").write_bytes(feeds["double"].tobytes())
    for arguments in (["-s", "5"], ["-n", "3", tmp_path / "x.npy", tmp_path / "double.raw"]):
        command = [program, "-o", tmp_path, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert re.fullmatch(r"my_net: \d+\.\d{3} ms, the best of [13]\n", done.stdout)
        for name, value in want.items():
            got = np.load(tmp_path / f"{name}.npy")
            assert (got.dtype, got.shape) == (value.dtype, value.shape)
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)
    wrong = [[tmp_path / "x.npy"], ["-n", "0"], [tmp_path / "x.npy"] * 2, ["-q"], ["a", "b"]]
    for arguments in wrong:
        done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr


SIZES = [(1, 9), (4, 2), (3, 1)]


@pytest.mark.parametrize("form", [pytest.param("c", marks=pytest.mark.exhaustive), "shared"])
def test_a_size_that_is_bounded_is_a_parameter(tmp_path, form):
    save_free_model(tmp_path / "free.onnx")
    options = {"shapes": BOUNDS}
    if form == "c":
        source, header = export_c(tmp_path / "free.onnx", tmp_path, "c", **options)
        build("-shared", "-fPIC", source, "-o", tmp_path / "libfree.so", "-lm")
    else:
        _, header = export_shared(tmp_path / "free.onnx", tmp_path, **options)
    text = header.read_text()
    assert "int free_run(int64_t batch, int64_t words, const float *x, const int64_t *ids," in text
    assert "input ids: int64, batch x words\n" in text
    assert "words: 1 to 9 */" in text
    run = ctypes.CDLL(str(tmp_path / "libfree.so")).free_run
    run.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 4
    for sizes in SIZES:
        feeds, wanted = free_case(tmp_path / "free.onnx", *sizes)
        outputs = [np.full_like(want, 7) for want in wanted]
        arrays = [array.ctypes.data for array in (*feeds.values(), *outputs)]
        assert run(*sizes, *arrays) == 0
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        feeds["ids"][-1, -1] = 9
        assert run(*sizes, *arrays) == 1  # an index that is out of bounds, whatever the sizes
        assert run(5, sizes[1], *arrays) == run(sizes[0], 0, *arrays) == -2


@pytest.mark.exhaustive
def test_a_program_is_told_sizes(tmp_path):
    save_free_model(tmp_path / "free.onnx")
    shapes = {"batch": "2..4"}  # and words are as many as is usual
    program, _ = export_executable(tmp_path / "free.onnx", tmp_path, shapes=shapes)
    session = onnxruntime.InferenceSession(tmp_path / "free.onnx")
    for options, batch in (([], 2), (["-d", "3"], 3)):
        subprocess.run([program, *options, "-o", tmp_path], check=True, capture_output=True)
        shapes = {"x": ("float32", (batch, 3, 8, 8)), "ids": ("int64", (batch, 128))}
        feeds = {
            name: seeded_input(Tensor(name, *shape), number)
            for number, (name, shape) in enumerate(shapes.items())
        }
        for name, want in zip("yz", session.run(None, feeds), strict=True):
            np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), want, atol=1e-5)
    for options, code in ((["-d", "5"], 1), (["-d", "2,2"], 2), (["-d", ""], 2)):
        done = subprocess.run([program, *options], check=False, capture_output=True, text=True)
        assert (done.returncode, bool(done.stderr)) == (code, True)
    with pytest.raises(UnsupportedError, match="'batch' has no largest size"):
        export_shared(tmp_path / "free.onnx", tmp_path, shapes={"batch": "2..", "words": "1..9"})


@pytest.fixture
def wide_network(tmp_path):
    """Of layers that are worth more than one thread."""
    body = "a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = Conv(b, v) y = GlobalMaxPool(c)"
    weights = {"w": (64, 16, 3, 3), "v": (96, 64, 1, 1)}
    onnx.save(small_model("y", body, {"x": (1, 16, 40, 40)}, weights), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_threads_share_a_run_and_change_no_bit(wide_network, tmp_path):
    x = np.random.default_rng(3).standard_normal((1, 16, 40, 40)).astype(np.float32)
    results = []
    for threads in (1, 4):
        library, _ = export_shared(
            wide_network, tmp_path / f"{threads}", num_threads=threads, name="net"
        )
        loaded = ctypes.CDLL(str(library))
        size = int(re.search(r"NET_SCRATCH_BYTES (\d+)", _.read_text())[1])

        def run(_number, loaded=loaded, size=size):
            y, scratch = np.zeros((1, 96, 1, 1), np.float32), np.zeros(size, np.uint8)
            for _ in range(5):
                assert call(loaded, "net", [scratch, x, y], "run_in") == 0
            return y

        with ThreadPoolExecutor(3) as callers:  # side by side: one has the threads
            results += callers.map(run, range(6))
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    assert (b"pthread_create" in library.read_bytes()) is (threads > 1)
    with pytest.raises(SettingError, match="runs on one thread"):
        write_program(Request(model=wide_network, target="c", num_threads=2), tmp_path, Product.C)
    with pytest.raises(BackendError, match=r"thumbv7em-none-eabihf has no POSIX threads"):
        export_object(
            wide_network,
            tmp_path,
            "llvm -mtriple=thumbv7em-none-eabihf -mcpu=cortex-m7",
            num_threads=2,
        )


def test_outputs_that_would_be_called_alike_have_files_and_parameters_of_their_own(tmp_path):
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    made = {"a/b": "Neg", "a:b": "Abs", "A_b": "Relu"}
    nodes = [onnx.helper.make_node(operator, ["x"], [name]) for name, operator in made.items()]
    outputs = [value(name, kind, [5]) for name in made]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", kind, [5])], outputs)
    onnx.save(onnx.helper.make_model(graph, ir_version=10), tmp_path / "net.onnx")
    program, header = export_executable(tmp_path / "net.onnx", tmp_path)
    assert "const float *x, float *a_b, float *a_b_, float *A_b)" in header.read_text()
    subprocess.run([program, "-o", tmp_path], check=True, capture_output=True)
    x = seeded_input(Tensor("x", "float32", (5,)), 0)
    for name, want in {"a_b": -x, "a_b_": np.abs(x), "A_b__": np.maximum(x, 0)}.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), want)


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
)
def test_a_seed_makes_the_same_inputs_here_and_there(tmp_path, dtype):
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Transpose", ["x"], ["y"])
    sides = [value("x", kind, (5, 7))], [value("y", kind, (7, 5))]
    graph = onnx.helper.make_graph([node], "g", *sides)
    onnx.save(onnx.helper.make_model(graph, ir_version=10), tmp_path / "net.onnx")
    program, _ = export_executable(tmp_path / "net.onnx", tmp_path)
    subprocess.run([program, "-s", "3", "-o", tmp_path], check=True, capture_output=True)
    want = seeded_input(Tensor("x", dtype, (5, 7)), 0, 3)
    got = np.load(tmp_path / "y.npy")
    assert got.dtype == want.dtype
    assert len(np.unique(got)) > (1 if dtype in ("bool", "int32", "int64") else 20)
    np.testing.assert_array_equal(got, want.T)


def test_nodes_without_native_code_are_named(parse_model, tmp_path):
    text = """
    odd (float[3] x) => (float[3] y, int64[1, N] n) {
        [first] y = Relu(x)
        [second] n = NonZero(x)
    }
    """
    onnx.save(parse_model(text), tmp_path / "odd.onnx")
    with pytest.raises(UnsupportedError, match=r"1 of 2 nodes .* on llvm.*'second' \(NonZero\)"):
        export_c(tmp_path / "odd.onnx", tmp_path)


def test_nodes_on_other_targets_are_named(saved, tmp_path, backends):
    with pytest.raises(UnsupportedError, match=r"\(Conv\) on onnxruntime; .*; \.\.\."):
        export_c(saved, tmp_path, "onnxruntime, llvm", backends=backends)


def test_of_several_targets_one_must_take_all(saved, tmp_path):
    names = [file.name for file in export_shared(saved, tmp_path, "llvm, c")]
    assert names == ["libmy_net.so", "my_net.h"]
    with pytest.raises(UnsupportedError, match=r"not one region .*\(Conv\) on cuda"):
        export_c(saved, tmp_path, "cuda, llvm")


def test_an_output_that_nothing_computes_is_named(parse_model, tmp_path):
    text = "idle (float[3] x) => (float[3] y, float[3] x) { y = Relu(x) }"
    onnx.save(parse_model(text), tmp_path / "idle.onnx")
    with pytest.raises(UnsupportedError, match="nothing computes the output 'x'"):
        export_c(tmp_path / "idle.onnx", tmp_path)


def test_machine_code_is_of_the_kind_llvm(saved, tmp_path):
    with pytest.raises(BackendError, match="for the kind llvm, and 'c' writes C"):
        export_shared(saved, tmp_path, "c")


def test_a_program_needs_a_system_that_loads_it(saved, tmp_path):
    with pytest.raises(BackendError, match=r"thumbv7em-none-eabihf has no system") as caught:
        export_executable(saved, tmp_path, "llvm -mtriple=thumbv7em-none-eabihf -mcpu=cortex-m7")
    assert "--emit object" in caught.value.hint


def test_without_a_compiler_it_says_so(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("intarsia.native.linking.has_zig", lambda: False)
    with pytest.raises(BackendError, match="no C compiler"):
        export_shared(saved, tmp_path)


@pytest.mark.parametrize("export", [export_c, export_shared])
def test_a_file_in_the_place_of_the_folder_is_an_error(saved, tmp_path, export):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SettingError, match=r"cannot write into .*taken'") as caught:
        export(saved, tmp_path / "taken")
    assert "writable folder" in caught.value.hint


def test_a_name_must_be_one(saved, tmp_path):
    with pytest.raises(SettingError, match="'9 lives' cannot be part"):
        export_c(saved, tmp_path, name="9 lives")


def test_alignments_are_the_users(saved, tmp_path):
    with pytest.raises(TargetError, match="constants-byte-alignment: 24 is no power of two"):
        export_c(saved, tmp_path, "c -constants-byte-alignment=24")
    text = "c -constants-byte-alignment=128 -workspace-byte-alignment=16"
    source, _ = export_c(saved, tmp_path, text)
    assert "aligned(128)" in source.read_text()
    assert "memory += (16 - (uintptr_t)memory % 16) % 16;" in source.read_text()


@pytest.mark.exhaustive
def test_squeezenet_as_c(tmp_path):
    model = zoo.build("squeezenet")
    onnx.save(model, tmp_path / "squeezenet.onnx")
    source, _ = export_c(tmp_path / "squeezenet.onnx", tmp_path, "c")
    build("-shared", "-fPIC", "-O2", source, "-o", tmp_path / "net.so", "-lm")
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    image = np.random.default_rng(3).standard_normal((1, 3, 224, 224), np.float32)
    (want,) = expected_of(model, {"data": image}).values()
    got = np.zeros_like(want)
    call(library, "squeezenet", [image, got])
    np.testing.assert_allclose(got, want, atol=1e-7)
