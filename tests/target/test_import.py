# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

HEAVY = (
    "numpy", "onnx", "onnx_ir", "onnxscript", "msgspec", "rich", "typer", "llvmlite", "tomllib",
    "difflib",
)  # fmt: skip


def test_the_target_layer_imports_nothing_heavy():
    program = f"import sys, intarsia.target; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_using_targets_imports_nothing_heavy_either():
    program = (
        "import sys; from intarsia.target import CompilationConfig as C;"
        "C.resolve('openvino, dnnl, llvm -mcpu=skylake-avx512');"
        f"print([n for n in {HEAVY[:-2]} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_texts_do_not_depend_on_the_hash_seed():
    program = (
        "from intarsia.target import CompilationConfig as C, Target;"
        "print(C.resolve('fake:1 -ops=C,B,A,D, acl, llvm -libs=z,y,x -mattr=+b,+a'));"
        "print(Target('aws/p3').to_json())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""
