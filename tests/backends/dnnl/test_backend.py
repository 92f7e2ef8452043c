# SPDX-License-Identifier: Apache-2.0
"""What surrounds the primitives: finding the library, programs, threads, layouts, refusals."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.dnnl import library as library_module
from intarsia.backends.dnnl.backend import DnnlBackend
from intarsia.backends.dnnl.execution import make_step, plain_step
from intarsia.backends.dnnl.forking import SPINS, short_spins
from intarsia.backends.dnnl.handles import MemoryLayout
from intarsia.backends.dnnl.library import driver
from intarsia.backends.dnnl.program import decode
from intarsia.backends.dnnl.threads import GET, openmp_runtimes, thread_count
from intarsia.errors import BackendError, ExecutionError, PackageError
from intarsia.report.health import backend_health
from intarsia.settings import Settings
from intarsia.target import Target


def dnnl():
    """The backend as the environment has it now."""
    return DnnlBackend(Settings.from_environment())


CHAIN = """case (float[1,16,10,10] x) => (float[1,16] y) <W> {
    a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w) d = Add(c, b)
    e = Relu(d) g = GlobalAveragePool(e) y = Flatten(g) }"""


@pytest.fixture(scope="session")
def chain(parse_model):
    """Two convolutions with a residual sum."""
    values = np.random.default_rng(0).standard_normal(16 * 16 * 9) * 0.1
    numbers = ",".join(f"{value:.3f}" for value in values)
    return parse_model(CHAIN.replace("W", f"float[16,16,3,3] w = {{{numbers}}}"))


@pytest.fixture
def compiled(library, chain):
    """The chain, compiled for one thread."""
    del library
    return intarsia.compile(chain, "dnnl, reference", num_threads=1)


@pytest.fixture
def anew():
    """Look for the library again, before and after a test."""
    library_module._driver.cache_clear()
    yield
    library_module._driver.cache_clear()


def executable_of(exe):
    return exe._executables[0]


@pytest.mark.usefixtures("anew")
def test_a_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setenv("INTARSIA_DNNL_LIBRARY", "/nowhere/libdnnl.so.3")
    with pytest.raises(BackendError, match=r"/nowhere/libdnnl\.so\.3") as caught:
        driver(Settings.from_environment())
    assert "INTARSIA_DNNL_LIBRARY" in caught.value.hint
    detection = dnnl().detect()
    assert detection.targets == ()
    assert "not available" in detection.reason


@pytest.mark.usefixtures("anew")
def test_another_library_is_not_taken_for_onednn(monkeypatch):
    monkeypatch.setenv("INTARSIA_DNNL_LIBRARY", "libc.so.6")
    with pytest.raises(BackendError, match="is not oneDNN 3"):
        driver(Settings.from_environment())


@pytest.mark.usefixtures("anew")
def test_an_old_library_is_refused(library, monkeypatch):
    monkeypatch.setattr(library_module, "OLDEST", (3, 99))
    with pytest.raises(BackendError, match=r"older than 3\.99"):
        library_module._load(library.path)


@pytest.mark.usefixtures("anew")
def test_of_two_libraries_the_newer_one_is_used(library, monkeypatch):
    def load(path, why):
        version = versions[path]
        if version is None:
            raise OSError(f"{path}: cannot open shared object file")
        functions = SimpleNamespace(_handle=path)
        return replace(library, path=path, version=version, why=why, functions=functions)

    monkeypatch.setattr(library_module, "_load", load)
    monkeypatch.setattr(library_module, "_wheel", lambda: "wheel")
    monkeypatch.delenv("INTARSIA_DNNL_LIBRARY", raising=False)
    system = library_module.FILE
    cases = {
        (None, (3, 4, 0)): (system, "the system's; there is no other"),
        ((3, 2, 0), None): ("wheel", "of the wheel onednn-cpu-gomp; there is no other"),
        ((3, 2, 0), (3, 2, 0)): ("wheel", "of the wheel onednn-cpu-gomp; the other is not newer"),
        ((3, 2, 0), (3, 4, 1)): (system, "the system's, newer than the other's 3.2.0"),
    }
    for (wheel, other), expected in cases.items():
        versions = {"wheel": wheel, system: other}
        library_module._driver.cache_clear()
        chosen = driver(Settings.from_environment())
        assert (chosen.path, chosen.why) == expected


@pytest.mark.usefixtures("anew")
def test_a_library_for_another_cpu_is_told(library, monkeypatch, tmp_path):
    header = bytearray(Path(library.path).read_bytes()[:4096])
    header[18:20] = (243).to_bytes(2, "little")  # RISC-V
    foreign = tmp_path / "libdnnl.so.3"
    foreign.write_bytes(header)
    monkeypatch.setenv("INTARSIA_DNNL_LIBRARY", str(foreign))
    detection = dnnl().detect()
    assert "is built for another CPU" in detection.reason


def test_notes_say_which_library_and_why(library, monkeypatch):
    first, second = dnnl().notes()[:2]
    assert first == f"library {library.path}: {library.why}"
    assert library.why
    assert "precisions f32" in second
    both = ("/usr/lib/libgomp.so.1", "/opt/intel/libiomp5.so")
    monkeypatch.setattr("intarsia.backends.dnnl.backend.openmp_runtimes", lambda: both)
    assert "several OpenMP runtimes" in dnnl().notes()[-1]
    assert all(path in dnnl().notes()[-1] for path in both)


FORK = """
import os, sys, numpy as np, onnx, intarsia

model = onnx.load(sys.argv[1])
exe = intarsia.compile(model, "dnnl, reference", num_threads=2)
x = np.random.default_rng(0).standard_normal((1, 16, 10, 10)).astype(np.float32)
expected = next(iter(exe.run({"x": x}).values())).copy()
child = os.fork()
if child == 0:
    again = next(iter(exe.run({"x": x}).values()))
    anew = intarsia.compile(model, "dnnl, reference", num_threads=2)
    other = next(iter(anew.run({"x": x}).values()))
    good = np.array_equal(again, expected) and np.allclose(other, expected, rtol=1e-5)
    os._exit(0 if good else 7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_a_fork_runs_and_compiles(library, chain, tmp_path):
    del library
    path = tmp_path / "chain.onnx"
    onnx.save(chain, path)
    command = [sys.executable, "-c", FORK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_the_hint_for_openmp_names_the_system_package():
    reason = "libgomp.so.1: cannot open shared object file: No such file or directory"
    assert "libgomp1" in library_module._hint(reason, "the system's")


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("content", [b"no library", None], ids=["not a library", "nothing there"])
def test_doctor_says_what_to_do_about_the_setting(monkeypatch, tmp_path, content):
    path = tmp_path / "libdnnl.so.3"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("INTARSIA_DNNL_LIBRARY", str(path))
    health = backend_health(RegisteredBackend.of(dnnl()))
    assert not health.is_usable
    assert str(path) in health.reason
    assert health.fix.startswith("unset INTARSIA_DNNL_LIBRARY")


@pytest.mark.usefixtures("anew")
def test_doctor_says_how_to_install_what_is_missing(monkeypatch):
    monkeypatch.setattr(library_module, "_wheel", lambda: None)
    monkeypatch.setattr(library_module, "FILE", "libdnnl-that-is-nowhere.so.3")
    monkeypatch.delenv("INTARSIA_DNNL_LIBRARY", raising=False)
    assert "pip install 'intarsia[dnnl]'" in backend_health(RegisteredBackend.of(dnnl())).fix


def test_without_a_library_the_compiler_says_so(chain, monkeypatch):
    def missing(settings):
        raise BackendError("oneDNN is not available", backend="dnnl", hint="install it")

    monkeypatch.setattr("intarsia.backends.dnnl.backend.driver", missing)
    with pytest.raises(BackendError, match="oneDNN is not available"):
        intarsia.compile(chain, "dnnl, reference", num_threads=1)


def test_fused_primitives_and_no_reorder_inside(compiled):
    assembly = executable_of(compiled).assembly
    kinds = [step.nodes for step in assembly.steps]
    assert [nodes for nodes in kinds if len(nodes) > 1] == [
        tuple(node.name for node in compiled.plan.placement.regions[0].nodes[first:last])
        for first, last in ((0, 2), (2, 5))
    ]
    inside = kinds[1:-1]
    assert () not in inside
    assert "primitives with" in str(compiled.explain().regions)


def test_a_run_in_machine_code_is_a_run_in_python(compiled):
    executable = executable_of(compiled)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 16, 10, 10)).astype(np.float32)
    (expected,) = compiled.run({"x": x}).values()
    y = np.zeros((1, 16), np.float32)
    scratch = np.zeros(executable.scratch_bytes + 64, np.uint8)
    scratch = scratch[-scratch.ctypes.data % 64 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intarsia.backends.dnnl.execution.make_step", plain_step)
        step = executable.bind([x], [y], scratch)
    step()
    np.testing.assert_array_equal(y, expected)


def test_a_primitive_that_fails_is_an_error(library):
    step = make_step(library, 0, 1, [(0, 0, 0)], None)
    with pytest.raises(RuntimeError, match=r"primitive 0 ended with 2"):
        step()
    with pytest.raises(BackendError, match="invalid_arguments"):
        plain_step(library, 0, 1, [(0, 0, 0)], None)()


def test_a_failure_while_running_names_the_region(compiled, library):
    context = compiled.context()
    context._steps[0] = make_step(library, 0, 1, [(0, 0, 0)], None)
    with pytest.raises(ExecutionError, match=r"region 0 .*primitive 0 ended with 2"):
        context.run()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_are_obeyed_and_given_back(library, chain, threads):
    get = getattr(library.functions, GET)
    before = get()
    exe = intarsia.compile(chain, "dnnl, reference", num_threads=threads)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 16, 10, 10)).astype(np.float32)
    (y,) = exe.run({"x": x}).values()
    assert get() == before
    assert executable_of(exe)._num_threads == threads
    one = intarsia.compile(chain, "dnnl, reference", num_threads=1)
    np.testing.assert_allclose(y, *one.run({"x": x}).values(), rtol=1e-5, atol=1e-6)
    with thread_count(library, threads):
        assert get() == threads


def test_cores_of_the_target_win(library, chain):
    del library
    exe = intarsia.compile(chain, "dnnl -num-cores=1, reference", num_threads=2)
    assert executable_of(exe)._num_threads == 1


def _seen_by_libraries(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name.encode())


def test_openmp_spins_briefly_unless_it_is_told_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with short_spins():
        assert _seen_by_libraries("GOMP_SPINCOUNT") == str(SPINS).encode()
    assert _seen_by_libraries("GOMP_SPINCOUNT") is None
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with short_spins():
        assert _seen_by_libraries("GOMP_SPINCOUNT") is None


def test_several_openmp_runtimes_are_found():
    lines = (
        "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libgomp.so.1.0.0",
        "7f01-7f02 r-xp 00000000 08:01 1 /usr/lib/libgomp.so.1.0.0",
        "7f02-7f03 r-xp 00000000 08:01 2 /opt/torch/lib/libgomp-a34b3233.so.1",
        "7f03-7f04 r-xp 00000000 08:01 3 /opt/intel/libiomp5.so",
        "7f04-7f05 r-xp 00000000 08:01 4 /usr/lib/libompress.so",
    )
    found = openmp_runtimes("\n".join(lines))
    assert [path.rpartition("/")[2] for path in found] == [
        "libgomp.so.1.0.0",
        "libgomp-a34b3233.so.1",
        "libiomp5.so",
    ]


def test_the_runtime_of_the_library_is_found(library):
    del library
    if sys.platform == "linux":
        assert any("libgomp" in path for path in openmp_runtimes())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Sin(x)", "has no primitive for ai.onnx.Sin"),
        ("y = LRN<size=4>(x)", "an even size"),
        ("y = Softmax(x)", "over several axes"),
        ("y = Sub(one, x)", "broadcasting of the first operand"),
    ],
)
def test_what_is_refused_says_why(library, parse_model, body, reason):
    del library
    one = "float[6] one = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}"
    text = f"case (float[1,4,6,6] x) => (float[a,b,c,d] y) <{one}> {{ {body} }}"
    exe = intarsia.compile(parse_model(text, 11), "dnnl, reference", num_threads=1)
    (refusal,) = exe.placement.refusals
    assert reason in refusal.reason
    assert exe.placement.coverage() == {"dnnl": 0, "reference": 1}


def test_integers_and_free_shapes_are_refused(library, parse_model):
    del library
    text = (
        "case (int64[3] x, float[3] z) => (int64[3] y, float[3] u) { y = Add(x, x) u = Add(z, z) }"
    )
    exe = intarsia.compile(parse_model(text), "dnnl, reference", num_threads=1)
    assert [str(refusal.code) for refusal in exe.placement.refusals] == ["unsupported-dtype"]


def test_a_damaged_program_is_an_error(compiled):
    artifact = compiled.artifacts[0]
    program = decode(artifact)
    device = HostDevice(ThreadOptions(1))
    conv = program.calls[0]
    wrong = {
        "calls": (msgspec.structs.replace(conv, inputs=(0, 99)), *program.calls[1:]),
        "outputs": (0, 0),
        "tensors": program.tensors[:1],
    }
    for name, value in wrong.items():
        payload = msgspec.msgpack.encode(msgspec.structs.replace(program, **{name: value}))
        with pytest.raises(PackageError, match="damaged"):
            dnnl().load(replace(artifact, payload=payload), device)
    huge = msgspec.structs.replace(conv, lists={**conv.lists, "shape1": (64, 16, 3, 3)})
    payload = msgspec.msgpack.encode(
        msgspec.structs.replace(program, calls=(huge, *program.calls[1:]))
    )
    with pytest.raises(PackageError, match="another size"):
        dnnl().load(replace(artifact, payload=payload), device)
    with pytest.raises(PackageError, match="damaged"):
        dnnl().load(replace(artifact, payload=b"no"), device)


def test_dense_layouts_are_told(library):
    assert MemoryLayout.strided(library, (2, 3, 4)).is_dense
    assert not MemoryLayout.strided(library, (2, 3, 4), (12, 1, 3)).is_dense
    assert MemoryLayout.strided(library, (2, 3, 1), (3, 1, 3)).is_dense
    assert MemoryLayout.channels_last(library, (2, 3, 4, 5)).is_channels_last
    assert not MemoryLayout.strided(library, (2, 3, 4, 5)).is_channels_last


def test_the_kind_has_its_attributes():
    target = Target("onednn -precision=bf16 -fpmath=any -num-cores=3")
    assert str(target) == "dnnl -fpmath=any -num-cores=3 -precision=bf16"
