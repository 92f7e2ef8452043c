# SPDX-License-Identifier: Apache-2.0
"""What is run in the process of a self-test: a backend does its work, and its numbers are compared.

The model is several cases of the conformance kit side by side, which are built and run as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import onnx
import onnx.compose
from onnx import helper

from intarsia.arrays import Array
from intarsia.backends.backend import Backend, RegisteredBackend
from intarsia.errors import words
from intarsia.graph.region import Region
from intarsia.place.decide import cut_regions
from intarsia.testing.case import OPSET, EvaluatedModel, problem_of
from intarsia.testing.cases import CASES
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR, TOLERANCES

COMMON = (
    *("Add-same float32", "Relu-plain float32", "MatMul-2d float32", "Softmax-last_axis float32"),
    *("Conv-padded float32", "MaxPool-padded float32", "ReduceSum-last_axis float32"),
)
"""Cases that tell whether a library works at all on this CPU."""

EMITTED = (
    "Pow-plain float16",
    "ReduceLogSumExp-last_axis float32",
    "Relu-scalar float16",
    "AveragePool-padded float32",
    "Softmax-last_axis float64",
    "ArgMax-last_axis float32",
    "ReduceMax-uint8 uint8",
    "ReduceMax-bool bool",
    "OneHot-floats float32",
    "TopK-largest int64",
    "MaxPool-bytes int8",
    "ReduceMin-bool bool",
    "Clip-integers int32",
    "Clip-integers int64",
    "Cos-plain float32",
    "Div-positive_integers uint8",
    "ArgMin-axis_0 float32",
    "Gather-axis_0 bool",
    "Gather-fed_indices float32",
    "Gather-int32_indices float32",
    "Div-positive_integers int64",
    "Pow-plain float64",
    "Where-both_ways float16",
    "ReduceMax-last_axis int32",
    "ReduceMin-last_axis float64",
    "Div-positive_integers int32",
    "Mod-integers int32",
    "Mod-fmod_of_doubles float32",
    "Cast-float_to_uint8 float32",
    "Cast-to_float16 int64",
    "Cast-to_float32 int64",
    "DequantizeLinear-uint8 uint8",
    "Pad-fed_value float32",
    "MatMul-2d float64",
    "MatMul-many_rows float32",
    "ReduceSum-last_axis int64",
    "Abs-plain int64",
    "Abs-plain int32",
    "Abs-plain uint8",
    "Acos-plain float32",
    "Ceil-plain float32",
    "Floor-plain float32",
    "Sqrt-plain float64",
    "Round-halves float32",
    "Sigmoid-one_element float32",
    "Clip-both float16",
    "Mul-same int64",
    "Mul-same int32",
    "Add-uint8 uint8",
    "Pow-integer_exponent float32",
    "Mod-integers int64",
    "Mod-fmod float32",
    "BitwiseAnd-plain uint8",
    "LessOrEqual-row float32",
    "Cast-float_to_int64 float32",
    "Cast-float_to_int64 float64",
    "Cast-to_bool float32",
    "Cast-to_float32 int32",
    "Cast-to_float32 uint8",
    "Cast-to_float32 bool",
    "Cast-bool_to_int64 bool",
    "Gemm-trans_both float32",
    "LayerNormalization-last_axis float32",
    "ReduceMin-last_axis float32",
    "GlobalMaxPool-plain float32",
    "Resize-nearest_asymmetric float16",
    "Pad-constant float16",
)
"""Cases whose kernels have every operation, on every type, that our emitters write."""


def try_library(spelling: str) -> None:
    """Use a backend's library for the first time.

    Args:
        spelling: `module:attribute` of the backend.

    Raises:
        ConformanceError: What it computes is wrong.
        BackendError: It cannot be used.
    """
    backend = Subject(spelling, None, TOLERANCES).backend
    detection = backend.detect()
    if detection.targets:
        _try(backend, None, COMMON)


def try_tiles(target: str) -> None:
    """Run products of bytes and of bfloat16, for which CPUs with AMX have tiles.

    Args:
        target: Text of a partial target; what it refuses is not tried.

    Raises:
        ConformanceError: What it computes is wrong.
        BackendError: It cannot be used.
    """
    from intarsia.compiler import compile as compile_model

    rng = np.random.default_rng(0)
    weight, x = rng.integers(-8, 8, (64, 64)), rng.integers(0, 16, (16, 64))
    for op_type, *dtypes in (
        ("MatMulInteger", "uint8", "int8", "int32"),
        ("MatMul", "float32", "float32", "float32"),
    ):
        numbers = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in dtypes]
        graph = helper.make_graph(
            [helper.make_node(op_type, ["x", "w"], ["y"])],
            "tiles",
            [helper.make_tensor_value_info("x", numbers[0], x.shape)],
            [helper.make_tensor_value_info("y", numbers[2], x.shape)],
            [onnx.numpy_helper.from_array(weight.astype(dtypes[1]), "w")],
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        program = compile_model(model, f"{target}, reference", num_threads=1, cache=False)
        y = program.run({"x": x.astype(dtypes[0])})["y"]
        if not np.allclose(y, x @ weight, rtol=1e-2, atol=1.0):
            raise ConformanceError(f"{op_type} of {dtypes[0]} is wrong")


def try_devices(spelling: str, skipped: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Use each device of a backend, and say so before and after.

    Args:
        spelling: `module:attribute` of the backend, whose `detect` has a line for each device.
        skipped: Numbers of devices that are left alone.

    Yields:
        The `number` and the `name` of the device that is tried next; then the same again with its
        `problem`, which is empty if it has none.
    """
    backend = Subject(spelling, None, TOLERANCES).backend
    for number, line in enumerate(backend.detect().devices):
        place, _, name = line.partition(" ")
        if number in skipped:
            continue
        device = {"number": number, "name": name}
        yield device
        try:
            _try(backend, place, EMITTED)
            problem = ""
        except Exception as error:
            problem = str(error) if isinstance(error, ConformanceError) else words(error)
        yield {**device, "problem": problem}


def try_plugin(name: str, value: str, group: str) -> None:
    """Load a plug-in and use it for the first time.

    What it raises is for the process that uses it to deal with; only its own `self_test` may fail.

    Args:
        name: Of the entry point.
        value: Its `module:attribute`.
        group: The entry point's group.
    """
    try:
        backend = EntryPoint(name, value, group).load()
        registered = RegisteredBackend.of(backend)
    except Exception:  # see above: not what is tried here
        return
    if registered.self_test is not None:
        registered.self_test()
        return
    with contextlib.suppress(Exception):
        backend.version()
        if backend.detect().targets:
            _try(backend, None, COMMON)


def _try(backend: Backend, target: str | None, names: Sequence[str]) -> None:
    """Build and run what a backend takes of some cases, as one region.

    Raises:
        ConformanceError: A number is wrong.
    """
    subject = Subject(backend, target, TOLERANCES)
    problem = side_by_side(names)
    graph = subject.graph(problem.model)
    refused = subject.refusals(graph, problem.title)
    sides = [-1 if node.id in refused else 0 for node in graph.nodes]
    for side, nodes in cut_regions(graph, sides):
        if side == 0:
            region = Region.of(graph, nodes)
            with contextlib.suppress(NotApplicable):
                subject.verify_region(region, problem.values, problem.title, REGION_FACTOR)


def side_by_side(names: Sequence[str]) -> EvaluatedModel:
    """Return one model of several cases that have nothing to do with each other.

    Args:
        names: A case and its dtype each, as `Relu-plain float32`.
    """
    cases = {f"{case} {dtype}": (case, dtype) for case in CASES for dtype in case.dtypes}
    graph = onnx.GraphProto(name="self-test")
    draws: list[dict[str, Array]] = []
    for name in names:
        problem = problem_of(*cases[name])
        prefix = name.replace(" ", "-") + "/"
        part = onnx.compose.add_prefix(problem.model, prefix).graph
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(graph, field).extend(getattr(part, field))
        draws = draws or [{} for _ in problem.values]
        for draw, values in zip(draws, problem.values, strict=True):
            draw |= {prefix + key: array for key, array in values.items()}
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    return EvaluatedModel("self-test", model, (), tuple(draws))
