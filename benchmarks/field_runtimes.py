# SPDX-License-Identifier: Apache-2.0
"""One model in one runtime, in a process of its own: the worker of `field.py`.

    PYTHON field_runtimes.py RUNTIME MODEL INPUTS OUTPUTS FOLDER THREADS NUMBERS NAME...

It imports nothing of ours but for the runtimes `intarsia` and `intarsia-llvm`: it runs under the
Python of a virtual environment that may hold only the runtime. Each runtime is set as its own
documentation says for the shortest latency of one request. The first line that it prints is JSON:
`version` and `set_up_seconds`, or `error`, which says what refused the model. Then each line that
it reads is a number of seconds, and what it prints is the milliseconds of each run in that time.

NUMBERS is `f32`; `bf16`, which a runtime makes of a float32 model by a setting of its own; or
`int8` or `int4`, which the model has, but for the runtimes of `FROM_FLOATS`: they have a float32
model, and their own converter quantises.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

LEAST_RUNS = 3

FROM_FLOATS = {("mnn", "int8"), ("mnn", "int4"), ("litert", "int8")}
"""Runtimes, with numbers that their own converters make of a float32 model."""

Run = Callable[[], Any]
Outputs = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """What is to be run.

    Attributes:
        model: The ONNX file.
        feeds: Its inputs, by name.
        names: Of its outputs.
        folder: For what a runtime makes of the model.
        threads: Of one run.
        numbers: Those that it is to compute in.
    """

    model: Path
    feeds: dict[str, Any]
    names: tuple[str, ...]
    folder: Path
    threads: int
    numbers: str = "f32"


class RefusedError(Exception):
    """A runtime does not take a model; the message holds its words."""


def intarsia(job: Job, target: str | None = None) -> tuple[Run, Outputs]:
    """Ours, on the target that it finds on this machine."""
    import intarsia as ours

    if job.numbers == "bf16":
        target = "llvm -precision=bf16" + (", onnxruntime" if target is None else "")
    program = ours.compile(str(job.model), target, num_threads=job.threads)
    context = program.context(inputs=job.feeds)
    return context.run, context.read_outputs


def intarsia_llvm(job: Job) -> tuple[Run, Outputs]:
    """Ours, with native code alone."""
    return intarsia(job, "llvm")


def onnxruntime(job: Job) -> tuple[Run, Outputs]:
    """ONNX Runtime's default provider, with inputs and outputs bound."""
    import onnxruntime as ort

    if job.numbers == "bf16":
        raise RefusedError("its CPU provider computes in bfloat16 on Arm alone")

    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(job.model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in job.feeds.items():
        binding.bind_cpu_input(name, array)
    for name in job.names:
        binding.bind_output(name)

    def outputs() -> dict[str, Any]:
        return dict(zip(job.names, binding.copy_outputs_to_cpu(), strict=True))

    return lambda: session.run_with_iobinding(binding), outputs


def openvino(job: Job) -> tuple[Run, Outputs]:
    """OpenVINO's CPU plug-in, for latency."""
    import openvino as ov

    core = ov.Core()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if job.numbers == "bf16" else "f32",
    }
    compiled = core.compile_model(core.read_model(str(job.model)), "CPU", settings)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        name = next(name for name in port.get_names() if name in job.feeds)
        request.set_tensor(port, ov.Tensor(job.feeds[name]))

    def outputs() -> dict[str, Any]:
        results = {}
        for port in compiled.outputs:
            for name in port.get_names() & set(job.names):
                results[name] = request.get_tensor(port).data.copy()
        return results

    return request.infer, outputs


def mnn(job: Job) -> tuple[Run, Outputs]:
    """MNN's CPU backend, from what its converter makes."""
    import MNN
    import numpy as np

    made = job.folder / "model.mnn"
    # The converter itself: `MNN.tools` installs a package that reports to its makers.
    convert = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    bits = {"int8": "8", "int4": "4"}.get(job.numbers)
    narrow = ("--weightQuantBits", bits, "--weightQuantBlock", "32") if bits else ()
    _tool(
        *(sys.executable, "-c", convert, "-f", "ONNX", *narrow),
        *("--modelFile", job.model, "--MNNModel", made, "--bizCode", "field"),
        makes=made,
    )
    settings = {"backend": "CPU", "numThread": job.threads}
    settings["precision"] = "low" if job.numbers == "bf16" else "high"
    if bits:
        settings["memory"] = "low"  # products of bytes, not of weights made floats again
    runtime = MNN.nn.create_runtime_manager((settings,))
    names = [*job.feeds]
    net = MNN.nn.load_module_from_file(str(made), names, list(job.names), runtime_manager=runtime)
    kinds = {"f": MNN.expr.float, "i": MNN.expr.int}
    feeds = []
    for name in names:
        array = job.feeds[name]
        given = array.astype(np.int32) if array.dtype.kind in "iub" else array
        value = MNN.expr.const(given, list(given.shape), MNN.expr.NCHW, kinds[given.dtype.kind])
        feeds.append(value)
    results: list[Any] = []

    def run() -> None:
        results[:] = net.forward(feeds)
        for value in results:
            value.read_as_tuple if value.size == 0 else value.read()  # computes what is lazy

    def outputs() -> dict[str, Any]:
        read = {}
        for name, value in zip(job.names, results, strict=True):
            plain = MNN.expr.convert(value, MNN.expr.NCHW)
            read[name] = np.array(plain.read()).reshape(plain.shape)
        return read

    return run, outputs


def ncnn(job: Job) -> tuple[Run, Outputs]:
    """The CPU code of ncnn, from what pnnx makes."""
    import ncnn as library
    import numpy as np

    copied = job.folder / "model.onnx"
    copied.write_bytes(job.model.read_bytes())
    shapes = ",".join(
        "[" + ",".join(map(str, array.shape)) + "]" + _pnnx_type(array.dtype)
        for array in job.feeds.values()
    )
    made = job.folder / "model.ncnn.param"
    _tool(
        Path(sys.executable).with_name("pnnx"),
        *(copied, f"inputshape={shapes}", "fp16=0"),
        makes=made,
    )
    net = library.Net()
    net.opt.num_threads = job.threads
    net.opt.use_vulkan_compute = False
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = job.numbers == "bf16"
    if net.load_param(str(made)) or net.load_model(str(made.with_suffix(".bin"))):
        raise RefusedError("ncnn does not load what pnnx makes")
    feeds = [
        np.squeeze(array.astype(np.int32) if array.dtype.kind == "i" else array, 0)
        for array in job.feeds.values()
    ]
    results: list[Any] = []

    def run() -> None:
        extractor = net.create_extractor()
        for index, array in enumerate(feeds):
            extractor.input(f"in{index}", library.Mat(array))
        results.clear()
        for index in range(len(job.names)):
            code, value = extractor.extract(f"out{index}")
            if code:
                raise RefusedError(f"ncnn ends with {code}")
            results.append(value)

    def outputs() -> dict[str, Any]:
        return {name: np.array(value)[None] for name, value in zip(job.names, results, strict=True)}

    return run, outputs


def litert(job: Job) -> tuple[Run, Outputs]:
    """LiteRT's XNNPACK delegate, from what onnx2tf makes."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    if job.numbers == "bf16":
        raise RefusedError("XNNPACK in LiteRT has no bfloat16")
    folder = job.folder / "tflite"
    is_dynamic = job.numbers == "int8"  # weights of bytes, activations too, by ranges of each run
    form = "dynamic_range_quant" if is_dynamic else "float32"
    made = folder / f"{job.model.stem}_{form}.tflite"
    shapes = [f"{name}:{','.join(map(str, a.shape))}" for name, a in job.feeds.items()]
    # Its strict mode (without `-dsm`) tries transpositions of every operator, minutes a network.
    _tool(
        Path(sys.executable).with_name("onnx2tf"),
        *("-i", job.model, "-o", folder, "-ois", *shapes, "-n", "-dsm", "-kat", *job.feeds),
        *(("-odrqt",) if is_dynamic else ()),
        makes=made,
    )
    interpreter = Interpreter(str(made), num_threads=job.threads)
    interpreter.allocate_tensors()
    inputs = interpreter.get_input_details()
    for position, (name, array) in enumerate(job.feeds.items()):
        named = [each for each in inputs if name.replace("/", "_") in each["name"]]
        detail = named[0] if named else inputs[position]
        if tuple(detail["shape"]) != array.shape:
            raise RefusedError(
                f"onnx2tf makes input '{name}' {[*detail['shape']]} of {[*array.shape]}"
            )
        interpreter.set_tensor(detail["index"], array.astype(detail["dtype"]))

    def outputs() -> dict[str, Any]:
        details = interpreter.get_output_details()
        arrays = [np.array(interpreter.get_tensor(each["index"])) for each in details]
        return dict(zip(job.names, arrays, strict=True))

    return interpreter.invoke, outputs


_IREE_BF16 = (
    "--iree-global-opt-demote-contraction-inputs-type=bf16",
    "--iree-global-opt-demote-contraction-inputs-operations=all",
)


def iree(job: Job) -> tuple[Run, Outputs]:
    """IREE's code for this CPU, on its pool of tasks."""
    import iree.runtime as rt
    import numpy as np

    written, made = job.folder / "model.mlir", job.folder / "model.vmfb"
    scripts = Path(sys.executable).parent
    _tool(scripts / "iree-import-onnx", job.model, "-o", written, makes=written)
    _tool(
        *(scripts / "iree-compile", written, "--iree-hal-target-device=local"),
        *("--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"),
        *("--iree-opt-level=O3", *(_IREE_BF16 if job.numbers == "bf16" else ()), "-o", made),
        makes=made,
    )
    rt.flags.parse_flags(f"--task_topology_group_count={job.threads}")
    config = rt.Config("local-task")
    module = rt.VmModule.mmap(config.vm_instance, str(made))
    context = rt.SystemContext(
        vm_modules=[rt.create_hal_module(config.vm_instance, config.device), module], config=config
    )
    functions = [name for name in module.function_names if not name.startswith("__")]
    function = getattr(context.modules[module.name], functions[0].removesuffix("$async"))
    feeds = [rt.asdevicearray(config.device, array) for array in job.feeds.values()]
    results: list[Any] = []

    def run() -> None:
        made_now = function(*feeds)
        results[:] = made_now if isinstance(made_now, tuple | list) else [made_now]
        results[0].to_host()  # waits

    def outputs() -> dict[str, Any]:
        return {n: np.array(value.to_host()) for n, value in zip(job.names, results, strict=True)}

    return run, outputs


def tvm(job: Job) -> tuple[Run, Outputs]:
    """TVM's Relax with its own pipeline and no search, which takes hours."""
    import numpy as np
    import onnx
    import tvm as library
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    if job.numbers == "bf16":
        raise RefusedError("its pass to mixed precision knows float16 alone")
    os.environ["TVM_NUM_THREADS"] = str(job.threads)  # noqa: TID251 - TVM's own
    shapes = {name: list(array.shape) for name, array in job.feeds.items()}
    module = from_onnx(onnx.load(job.model), shape_dict=shapes)
    target = library.target.Target.from_device(library.cpu())
    compiled = library.compile(module, target=target)
    machine = relax.VirtualMachine(compiled, library.cpu())
    feeds = [library.runtime.tensor(array) for array in job.feeds.values()]
    results: list[Any] = []

    def run() -> None:
        value = machine["main"](*feeds)
        results[:] = [value] if hasattr(value, "numpy") else list(value)

    def outputs() -> dict[str, Any]:
        return {n: np.array(value.numpy()) for n, value in zip(job.names, results, strict=True)}

    return run, outputs


def inductor(job: Job) -> tuple[Run, Outputs]:
    """PyTorch's Inductor, of the model that onnx2torch makes."""
    import onnx
    import torch
    from onnx2torch import convert

    torch.set_num_threads(job.threads)
    model = convert(onnx.load(job.model)).eval()
    compiled = torch.compile(model)
    feeds = [torch.from_numpy(array) for array in job.feeds.values()]
    results: list[Any] = []
    is_narrow = job.numbers == "bf16"

    def run() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            value = compiled(*feeds)
        results[:] = [value] if isinstance(value, torch.Tensor) else list(value)

    run()

    def outputs() -> dict[str, Any]:
        return {n: value.float().numpy() for n, value in zip(job.names, results, strict=True)}

    return run, outputs


RUNTIMES: dict[str, tuple[Callable[[Job], tuple[Run, Outputs]], str]] = {
    "intarsia": (intarsia, "intarsia"),
    "intarsia-llvm": (intarsia_llvm, "intarsia"),
    "onnxruntime": (onnxruntime, "onnxruntime"),
    "openvino": (openvino, "openvino"),
    "mnn": (mnn, "MNN"),
    "ncnn": (ncnn, "ncnn"),
    "litert": (litert, "ai-edge-litert"),
    "iree": (iree, "iree-base-runtime"),
    "tvm": (tvm, "apache-tvm"),
    "inductor": (inductor, "torch"),
}
"""By name, what sets a runtime up, and the package whose version is told."""


def _pnnx_type(dtype: Any) -> str:
    return {"float32": "f32", "int64": "i64", "int32": "i32"}[str(dtype)]


def _tool(*command: Any, makes: Path) -> None:
    """Run a converter; raise `RefusedError` with the end of its words if it makes nothing."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if ended.returncode or not makes.exists():
        lines = [line.strip() for line in (ended.stderr + ended.stdout).splitlines()]
        lines = [line for line in lines if line and not line.startswith("File ")]
        lines = lines or ["it says nothing"]  # tracebacks name files of this machine
        told = re.compile("error|can't|unsupported|not support", re.I)
        errors = [line for line in lines if told.search(line)]
        raise RefusedError(f"{(errors or lines[-1:])[0][:200]}")


def main(arguments: list[str]) -> None:
    """Set a runtime up and time it as told on standard input."""
    import numpy as np

    name, model, inputs, outputs, folder, threads, numbers, *names = arguments
    with np.load(inputs) as arrays:
        feeds = {key: np.ascontiguousarray(arrays[key]) for key in arrays.files}
    job = Job(Path(model), feeds, tuple(names), Path(folder), int(threads), numbers)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print where answers would be
    start = time.perf_counter()
    set_up, package = RUNTIMES[name]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run, read = set_up(job)
            run()
        seconds = time.perf_counter() - start
        np.savez(outputs, **read())
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        print(json.dumps({"error": f"{type(error).__name__}: {words[0][:200]}"}), file=answers)
        return
    print(json.dumps({"version": version(package), "set_up_seconds": seconds}), file=answers)
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while len(times) < LEAST_RUNS or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps(times), file=answers)


if __name__ == "__main__":
    main(sys.argv[1:])
