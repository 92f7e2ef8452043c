# SPDX-License-Identifier: Apache-2.0
"""A way to call each command, on small models: what is true of all commands is tried on these."""

import typer

from intarsia.cli.program import app

INVOCATIONS = {
    "compile": [("chain.onnx", "-t", "fake -ops=Relu,Tanh, onnxruntime")],
    "tune": [
        (
            *("chain.onnx", "-t", "fake -cost=*:1e-3", "--threads", "1"),
            *("--database", "costs.sqlite", "--html", "report.html"),
        ),
        (
            *("free.onnx", "-t", "fake -cost=*:1e-3", "--sizes", "n=2,5", "--threads", "1"),
            *("--database", "costs.sqlite"),
        ),
        (
            *("free.onnx", "-t", "fake -cost=*:1e-3", "--bucket", "n=4", "--pad-value", "x=-1"),
            *("--threads", "1", "--database", "costs.sqlite"),
        ),
    ],
    "tune-kernels": [("chain.onnx", "-t", "llvm", "--threads", "1")],
    "quantize": [
        ("chain.onnx", "--dynamic", "--max-error", "0.5", "-o", "chain.int8.onnx"),
        ("chain.onnx", "--to", "int4", "--max-error", "0.5", "-o", "chain.int4.onnx"),
    ],
    "run": [("chain.intarsia", "--repeat", "3", "--trace", "trace.json")],
    "serve": [
        ("chain.intarsia", "free=free.intarsia", "--port", "0", "--batch", "2", "--dry-run"),
    ],
    "explain": [
        (
            *("chain.intarsia", "--all", "--profile", "2", "--overlay", "chain.overlay.json"),
            *("--html", "report.html"),
        ),
        ("chain.intarsia", "--node", "second"),
        ("chain.intarsia", "--kernels"),
        ("free.intarsia", "--sizes", "n=3"),
    ],
    "check": [("chain.intarsia",), ("chain.onnx", "-t", "fake -ops=Relu, llvm")],
    "verify": [("chain.onnx", "-t", "fake -ops=Relu -fault=wrong, onnxruntime", "--out", "small")],
    "reduce": [("chain.onnx", "--suspect", "fake -fault=wrong")],
    "bench": [
        (
            *("chain.onnx", "-t", "llvm", "--against", "onnxruntime", "--rounds", "3"),
            *("--plot", "bench.svg"),
        ),
        ("chain.onnx", "-t", "llvm", "--profile", "--rounds", "3", "--html", "report.html"),
        (
            *("free.onnx", "-t", "onnxruntime", "--sizes", "n=3", "--bucket", "n=4"),
            *("--pad-value", "x=-1", "--rounds", "3"),
        ),
    ],
    "demo": [()],
    "doctor": [()],
    "target show": [("llvm -mcpu=skylake-avx512, opencl:1, onnxruntime",)],
    "target list": [("--all",)],
    "target add": [("board", "llvm", "--runner", "here", "--file", "boards.toml")],
    "target diff": [("nvidia/v100", "nvidia/a100")],
    "target detect": [()],
    "costs ls": [("--all", "--database", "costs.sqlite")],
    "costs show": [("KEY", "--database", "costs.sqlite")],
    "costs export": [("costs.jsonl", "--database", "costs.sqlite")],
    "costs import": [("costs.jsonl", "--database", "other.sqlite")],
    "costs merge": [("other.sqlite", "--database", "costs.sqlite")],
    "costs diff": [("costs.sqlite", "other.sqlite", "--all", "--plot", "costs.svg")],
    "costs prune": [("--database", "costs.sqlite", "--older-than", "90d", "--dry-run")],
    "plan forecast": [
        ("chain.onnx", "-t", "llvm, onnxruntime"),
        ("free.onnx", "-t", "llvm, onnxruntime", "--bucket", "n=4", "--pad-value", "x=-1"),
    ],
    "plan absent": [("chain.onnx", "-t", "ethos-n, llvm -mcpu=cortex-a72")],
    "plan lock": [("chain.intarsia", "-o", "plan.lock.json")],
    "plan diff": [("chain.intarsia", "other.intarsia", "--html", "report.html")],
    "keys make": [()],
    "keys show": [()],
    "keys trust": [("friend", "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")],
    "keys list": [()],
    "keys sign": [("chain.intarsia",)],
    "keys distrust": [("friend",)],
    "cache info": [()],
    "cache clear": [("--yes",)],
}
"""By command, in an order in which they can be called one after another."""

SLOW = ("demo", "verify", "reduce")
"""Commands that take long: workers of their own."""


def list_commands():
    """Return the names of all commands that the program has."""
    return sorted(_leaves(typer.main.get_command(app), ()))


def _leaves(command, path):
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path)
    else:
        for name, one in inner.items():
            yield from _leaves(one, (*path, name))
