# SPDX-License-Identifier: Apache-2.0
"""Calls of CMSIS-NN, on this machine and in one program for a board.

The library's own sources are not on the package indexes. What is called here is a stand-in with
its signatures (`cmsis_nn_standin/README.md`): it shows that the calls are right as the library's
documentation has them, and says nothing of the library's own code.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import intarsia
from intarsia.backends.cmsis_nn.costs import region_cycles
from intarsia.compiler import read_setting
from intarsia.errors import IntarsiaError, TargetError
from intarsia.export import export_c
from intarsia.graph.region import Region
from intarsia.place.request import Request
from intarsia.target.cores import core_named
from intarsia.testing import Tolerance, conformance
from intarsia.tuning.absent.explaining import explain_absent

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))
import tflite_layers as tl
from board import CASES, examine_board, kit_cases, layer_cases

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("tflite", reason="tflite is not installed")

ROOT = Path(__file__).parents[3]
STANDIN = Path(__file__).parent / "cmsis_nn_standin"
TARGET = f"cmsis-nn -cmsis_nn_path={STANDIN}, llvm"
BOARD = ROOT / "examples" / "microcontroller"
_TOOLS = [tool for tool in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(tool) is None]


test_conformance = conformance(
    "intarsia.backends.cmsis_nn.backend:BACKEND",
    target=TARGET,
    tolerances={"int8": Tolerance(atol=1)},  # TFLite's rounding is at most a step from ONNX's
    checks=("numbers", "artifacts", "devices"),
    cases=CASES,
)
test_endurance = pytest.mark.exhaustive(
    conformance(
        "intarsia.backends.cmsis_nn.backend:BACKEND",
        target=TARGET,
        checks=("threads", "memory", "loads"),
    )
)


def run(items):
    model, feeds = tl.join(items)
    program = intarsia.compile(model, target=TARGET, strict=True, cache=False)
    results = program.run(feeds)
    return [np.asarray(results[f"l{number}_y"]) for number in range(len(items))]


def test_each_operator_has_litert_bits():
    items = [layer for name in tl.OPERATORS for layer in tl.layers(name, 3, seed=11)]
    for layer, result in zip(items, run(items), strict=True):
        # LiteRT's reference of this operator rounds once, the library twice.
        tolerance = 1 if layer.name == "fully connected" else 0
        np.testing.assert_allclose(result, layer.reference(), atol=tolerance, err_msg=layer.name)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The convolutional network of the example, quantised by ONNX Runtime."""
    spec = importlib.util.spec_from_file_location("networks", BOARD / "make_networks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("networks")
    module.main(folder)
    return folder / "convnet.onnx"


def reference(model, feed):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options).run(None, {"x": feed})[0]


def some_input(model):
    (x,) = onnx.load(model).graph.input
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def test_a_network_runs_beside_llvm(network):
    program = intarsia.compile(network, target=TARGET, cache=False)
    x = some_input(network)
    assert "cmsis-nn" in str(program.placement)
    (got,) = program.run({"x": x}).values()
    np.testing.assert_allclose(got, reference(network, x), atol=0.02)


@pytest.mark.exhaustive
def test_a_network_runs_beside_c_through_a_runner(network):
    target = f"cmsis-nn -cmsis_nn_path={STANDIN}, c -runner=here"
    program = intarsia.compile(network, target, cache=False)
    x = some_input(network)
    assert {region.backend for region in program.placement.regions} == {"c", "cmsis-nn"}
    here = intarsia.compile(network, target=TARGET, cache=False)
    np.testing.assert_array_equal(program(x), here(x))
    # The input and the output alone are carried, and what each program of `c` says of faults and
    # of sizes; tensors between the three regions stay on the machine.
    assert [one.carried_tensors for one in program.executables] == [3, 0, 3]


@pytest.mark.skipif(bool(_TOOLS), reason=f"not installed: {', '.join(_TOOLS)}")
@pytest.mark.parametrize(
    ("board", "cpu"), [("mps3-an547", "cortex-m55"), ("mps2-an386", "cortex-m4")]
)
def test_one_program_on_a_board_computes_what_onnxruntime_does(network, tmp_path, board, cpu):
    """Regions of the library and of `c` in one arena, with Helium (the library then wants sums of
    weights) and without."""
    target = f"cmsis-nn -mcpu={cpu} -cmsis_nn_path={STANDIN}, c -mcpu={cpu}"
    source, header = export_c(network, tmp_path, target)
    text = source.read_text()
    assert "arm_convolve_wrapper_s8(" in text
    assert "malloc" not in text
    assert ("arm_vector_sum_s8(" in text) == (cpu == "cortex-m55")
    (tmp_path / "network.h").write_text(f'#include "{header.name}"\n')
    x = some_input(network)
    (tmp_path / "input.raw").write_bytes(x.tobytes())
    fpu = ["-mfpu=fpv4-sp-d16"] if cpu == "cortex-m4" else []
    name = source.stem
    macros = {
        "INPUTS": "INPUT0_COUNT", "OUTPUTS": "OUTPUT0_COUNT",
        "SCRATCH_BYTES": "SCRATCH_BYTES", "STACK_BYTES": "STACK_BYTES",
    }  # fmt: skip
    defines = [f"-D{key}={name.upper()}_{value}" for key, value in macros.items()]
    command = [
        "arm-none-eabi-gcc", f"-mcpu={cpu}", "-mfloat-abi=hard", *fpu, "-mthumb", "-std=c99",
        "-ffreestanding", "-O2", "-Wall", "-Wextra", "-Werror", "-ffunction-sections", "-I.",
        f"-I{STANDIN / 'Include'}", f"-I{BOARD}", *defines, f"-DRUN={name}_run", source,
        STANDIN / "Source" / "standin.c", *(BOARD / f"{part}.c" for part in
        ("main", "startup", "semihosting")), "-nostartfiles", "-Wl,--gc-sections",
        "-T", BOARD / f"{board}.ld", "--specs=nano.specs", "-o", "network.elf",
    ]  # fmt: skip
    subprocess.run([str(word) for word in command], cwd=tmp_path, check=True)
    emulator = [
        "qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none",
        "-semihosting-config", "enable=on,target=native", "-kernel", "network.elf",
    ]  # fmt: skip
    done = subprocess.run(emulator, cwd=tmp_path, check=True, capture_output=True, text=True)
    arena = re.search(r"SCRATCH_BYTES (\d+)", header.read_text())[1]
    assert f"arena: {arena} bytes" in done.stdout + done.stderr
    got = np.fromfile(tmp_path / "output.raw", np.float32)
    np.testing.assert_allclose(got, reference(network, x).ravel(), atol=0.02)


@pytest.mark.skipif(bool(_TOOLS), reason=f"not installed: {', '.join(_TOOLS)}")
@pytest.mark.exhaustive
@pytest.mark.parametrize("board", ["mps3-an547", "mps2-an386"])
def test_the_kit_is_green_on_a_board(board):
    """Of the kit what applies there; `board.py` prints all of it, with more layers."""
    cases = [*kit_cases(CASES), *layer_cases(1)]
    verdicts = examine_board(cases, board)
    assert len(verdicts) == len(CASES) + len(tl.OPERATORS)
    assert set(verdicts.values()) == {"passed"}


def test_without_a_path_it_says_where_the_library_is(network):
    with pytest.raises(
        TargetError, match="cmsis_nn_path: the sources of CMSIS-NN are needed"
    ) as info:
        intarsia.compile(network, target="cmsis-nn, llvm")
    assert "https://github.com/ARM-software/CMSIS-NN" in info.value.hint


def test_a_program_for_a_board_needs_to_know_its_cpu(network, tmp_path):
    library = TARGET.removesuffix(", llvm")
    with pytest.raises(TargetError, match="mcpu: the sizes of the library's buffers") as info:
        export_c(network, tmp_path, f"{library}, c")
    assert "-mcpu=cortex-m55" in info.value.hint
    with pytest.raises(TargetError, match="mcpu: cortex-m4 is not the CPU of 'c' behind it"):
        export_c(network, tmp_path, f"{library} -mcpu=cortex-m4, c -mcpu=cortex-m55")


def test_costs_are_cycles_of_the_core_behind_it(network):
    """Helium is faster than DSP, DSP than neither, and the library than plain C."""
    target = f"{TARGET.removesuffix(', llvm')}, c -mcpu=cortex-m55"
    setting = read_setting(Request(model=network, target=target, is_here=False))
    explanation = explain_absent(setting, "collage")
    assert explanation.tuning.winner == "cmsis-nn alone"
    for text in explanation.regions:
        assert "(estimated)" in text
        assert "cycles of cortex-m55 at 0.4 GHz; not run here" in text
    layers = max(explanation.placement.regions, key=lambda one: len(one.nodes))
    names = {node.name for node in layers.nodes}
    region = Region.of(setting.graph, [n.id for n in setting.graph.nodes if n.name in names])
    cores = {"cortex-m55": "_mve", "cortex-m4": "_dsp", "cortex-m3": ""}
    cycles = [region_cycles(region, core_named(core), variant) for core, variant in cores.items()]
    assert 2 * cycles[0] < cycles[1] < cycles[2]


def test_a_folder_without_the_library_is_an_error(network, tmp_path):
    with pytest.raises(TargetError, match=r"has no Include/arm_nnfunctions\.h"):
        intarsia.compile(network, target=f"cmsis-nn -cmsis_nn_path={tmp_path}, llvm")


def test_what_the_compiler_says_is_told(tmp_path):
    shutil.copytree(STANDIN, tmp_path / "broken")
    (tmp_path / "broken" / "Source" / "standin.c").write_text("int broken(")
    (layer,) = tl.layers("conv", 1, seed=1)
    target = f"cmsis-nn -cmsis_nn_path={tmp_path / 'broken'}, llvm"
    with pytest.raises(IntarsiaError, match=r"failed to link library\.o"):
        intarsia.compile(layer.model, target=target, strict=True)


REFUSED = {
    "uint8": ("uint8", "Softmax", "'x' is uint8: the library takes int8"),
    "steps": ("int8", "Softmax", "other steps than 1/256"),
    "operator": ("int8", "Sigmoid", "Sigmoid is no operator of integers here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_why(name):
    dtype, operator, reason = REFUSED[name]
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        layer ({dtype}[2, 8] x) => ({dtype}[2, 8] y)
        <float s = {{0.01}}, {dtype} z = {{3}}> {{
            f = DequantizeLinear(x, s, z)
            g = {operator}(f)
            y = QuantizeLinear(g, s, z)
        }}
    """)
    program = intarsia.compile(model, target=TARGET, cache=False)
    assert reason in str(program.explain())


def test_with_free_sizes_c_takes_all_and_one_warning_says_why(tmp_path, caplog):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 3, 9, 9] x) => (float[n, 4, 9, 9] y)
        <float s = {0.05}, int8 z = {0}> {
            xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, z)  c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
            cq = QuantizeLinear(c, s, z)  y = DequantizeLinear(cq, s, z) }"""
    )
    w = np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "net.onnx")
    target = f"cmsis-nn -cmsis_nn_path={STANDIN}, c -mcpu=cortex-m55"
    for shapes, is_taken in (({"n": "1..4"}, False), ({"n": 2}, True)):
        caplog.clear()
        source, _ = export_c(tmp_path / "net.onnx", tmp_path, target, shapes=shapes)
        warnings = [text for text in caplog.messages if "nothing of the program is on" in text]
        assert ("arm_convolve_wrapper_s8(" in source.read_text()) == is_taken
        assert len(warnings) == (not is_taken)
        assert all("the model has free dimensions" in text for text in warnings)
        assert all("fix the sizes (--shape) for its library" in text for text in warnings)
