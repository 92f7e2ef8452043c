# SPDX-License-Identifier: Apache-2.0
"""Graphs as descriptors of cuDNN's, and the engines that may compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intarsia.backends.cuda.cudnn.library import (
    DATA_TYPES,
    WORDS,
    Cudnn,
    CudnnError,
    DnnDescriptor,
)
from intarsia.backends.cuda.library_execution import ALIGNMENT

if TYPE_CHECKING:
    from intarsia.backends.cuda.cudnn.graphs import (
        DnnGraph,
        DnnOperation,
        DnnTensor,
        EngineRules,
    )

_NUMBER_BYTES = 4
_MOST_ENGINES = 32
_MOST_NOTES = 16
_SINGLE = "DATA_FLOAT"
_MODES = ("HEUR_MODE_B", "HEUR_MODE_A", "HEUR_MODE_FALLBACK")
"""From the one that knows most of an engine's speed to the one that finds any engine."""
_MULTIPLIERS = frozenset(("convolution", "transposed convolution", "product", "attention"))
"""Operations whose numbers depend on what an engine multiplies in."""
_NOTES = WORDS["NUMERICAL_NOTE"]
_WINOGRAD = ("winograd", "winograd_nonfused")
_FOURIER = ("fft", "fft_tiling")

_Tensors = Mapping[str, DnnDescriptor]


def describe(dnn: Cudnn, graph: DnnGraph) -> list[DnnDescriptor]:
    """Return the operations of a graph as cuDNN has them; tensors are called by their numbers.

    Raises:
        CudnnError: It does not take a part of it.
    """
    tensors = [_tensor(dnn, number, one) for number, one in enumerate(graph.tensors)]
    operations = []
    for operation in graph.operations:
        named = {letter: tensors[number] for letter, number in operation.tensors.items()}
        operations.append(_WRITERS[operation.kind](dnn, operation, named))
    return operations


def engines(
    dnn: Cudnn, graph: DnnGraph, rules: EngineRules, properties: DnnDescriptor
) -> Iterator[list[DnnDescriptor]]:
    """Yield configurations of engines for a graph, the likely fastest first.

    Args:
        dnn: The library.
        graph: The graph.
        rules: Which engines may compute it.
        properties: Of the device.

    Yields:
        What each way to ask has, if it has any: whoever can use none of these asks the next way.

    Raises:
        CudnnError: cuDNN does not take the graph, or no way to ask answers.
    """
    described = DnnDescriptor(dnn, "OPERATIONGRAPH", OPERATIONGRAPH_OPS=describe(dnn, graph))
    failures: list[CudnnError] = []
    for mode in _MODES:
        try:
            asked = DnnDescriptor(
                dnn,
                "ENGINEHEUR",
                ENGINEHEUR_OPERATION_GRAPH=described,
                ENGINEHEUR_MODE=mode,
                ENGINEHEUR_DEVICEPROP=properties,
            )
            made = [DnnDescriptor(dnn, "ENGINECFG") for _ in range(_MOST_ENGINES)]
            found = made[: asked.fill("ENGINEHEUR_RESULTS", made)]
            allowed = [one for one in found if _is_allowed(_notes(dnn, one), graph, rules)]
        except CudnnError as error:
            failures.append(error)
            continue
        if allowed:
            yield allowed
    if len(failures) == len(_MODES):
        raise failures[0]


def device_properties(dnn: Cudnn, number: int) -> DnnDescriptor:
    """Return what engines depend on of a device.

    Args:
        dnn: The library.
        number: Of the device, as the driver counts.

    Raises:
        CudnnError: There is no such device.
    """
    return DnnDescriptor(dnn, "DEVICEPROP", DEVICEPROP_DEVICE_ID=number)


def _notes(dnn: Cudnn, configuration: DnnDescriptor) -> frozenset[int]:
    """Return what cuDNN says of an engine's numbers."""
    engine = DnnDescriptor(dnn, "ENGINE")
    configuration.fill("ENGINECFG_ENGINE", [engine])
    return frozenset(engine.get("ENGINE_NUMERICAL_NOTE", _MOST_NOTES))


def _is_allowed(notes: frozenset[int], graph: DnnGraph, rules: EngineRules) -> bool:
    def has(name: str) -> bool:
        return _NOTES[f"NUMERICAL_NOTE_{name}"] in notes

    kinds = {operation.kind for operation in graph.operations}
    is_wide = rules.math_type == "tensor_op_allow_conversion"
    if rules.is_deterministic and has("NONDETERMINISTIC"):
        return False
    if not is_wide and (has("DOWN_CONVERT_INPUTS") or has("REDUCED_PRECISION_REDUCTION")):
        return False
    if has("TENSOR_CORE") and kinds & _MULTIPLIERS:
        is_single = graph.tensors[0].dtype == "float32"  # which tensor cores take as TF32
        if rules.math_type == "fma" or (rules.math_type == "default" and is_single):
            return False
    if rules.conv_algorithm and "convolution" in kinds:
        wanted = rules.conv_algorithm in _WINOGRAD, rules.conv_algorithm in _FOURIER
        return (has("WINOGRAD"), has("FFT")) == wanted
    return True


def _tensor(dnn: Cudnn, number: int, tensor: DnnTensor) -> DnnDescriptor:
    flags = {}
    if tensor.number is not None:
        flags["TENSOR_IS_BY_VALUE"] = True
    elif tensor.tensor < 0:
        flags["TENSOR_IS_VIRTUAL"] = True
    return DnnDescriptor(
        dnn,
        "TENSOR",
        TENSOR_UNIQUE_ID=number + 1,
        TENSOR_DATA_TYPE=DATA_TYPES[tensor.dtype],
        TENSOR_BYTE_ALIGNMENT=ALIGNMENT if tensor.number is None else _NUMBER_BYTES,
        TENSOR_DIMENSIONS=tensor.dims,
        TENSOR_STRIDES=tensor.strides,
        **flags,
    )


def _convolution(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    window = DnnDescriptor(
        dnn,
        "CONVOLUTION",
        CONVOLUTION_SPATIAL_DIMS=len(operation.strides),
        CONVOLUTION_COMP_TYPE=_SINGLE,
        CONVOLUTION_CONV_MODE="CROSS_CORRELATION",
        CONVOLUTION_PRE_PADDINGS=operation.before,
        CONVOLUTION_POST_PADDINGS=operation.after,
        CONVOLUTION_FILTER_STRIDES=operation.strides,
        CONVOLUTION_DILATIONS=operation.dilations,
    )
    is_forward = operation.kind == "convolution"
    head = "OPERATION_CONVOLUTION_" + ("FORWARD_" if is_forward else "BWD_DATA_")
    sides = {"W": "W", "X": "X", "Y": "Y"} if is_forward else {"W": "W", "X": "DY", "Y": "DX"}
    values: dict[str, Any] = {head + name: tensors[letter] for letter, name in sides.items()}
    values |= {f"{head}CONV_DESC": window, f"{head}ALPHA": 1.0, f"{head}BETA": 0.0}
    kind = "FORWARD" if is_forward else "BACKWARD_DATA"
    return DnnDescriptor(dnn, f"OPERATION_CONVOLUTION_{kind}", **values)


def _pointwise(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    function = DnnDescriptor(
        dnn,
        "POINTWISE",
        POINTWISE_MODE=f"POINTWISE_{operation.mode}",
        POINTWISE_MATH_PREC=_SINGLE,
        POINTWISE_NAN_PROPAGATION="PROPAGATE_NAN",
    )
    head = "OPERATION_POINTWISE_"
    values = {f"{head}{letter}DESC": one for letter, one in tensors.items()}
    return DnnDescriptor(dnn, "OPERATION_POINTWISE", **{f"{head}PW_DESCRIPTOR": function}, **values)


def _product(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    how = DnnDescriptor(dnn, "MATMUL", MATMUL_COMP_TYPE=_SINGLE)
    values = {f"OPERATION_MATMUL_{letter}DESC": one for letter, one in tensors.items()}
    return DnnDescriptor(dnn, "OPERATION_MATMUL", OPERATION_MATMUL_DESC=how, **values)


def _pooling(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    window = DnnDescriptor(
        dnn,
        "RESAMPLE",
        RESAMPLE_MODE=f"RESAMPLE_{operation.mode}",
        RESAMPLE_COMP_TYPE=_SINGLE,
        RESAMPLE_SPATIAL_DIMS=len(operation.window),
        RESAMPLE_WINDOW_DIMS=operation.window,
        RESAMPLE_STRIDES=operation.strides,
        RESAMPLE_PRE_PADDINGS=operation.before,
        RESAMPLE_POST_PADDINGS=operation.after,
        RESAMPLE_PADDING_MODE="NEG_INF_PAD" if operation.mode == "MAXPOOL" else "ZERO_PAD",
        RESAMPLE_NAN_PROPAGATION="PROPAGATE_NAN",
    )
    head = "OPERATION_RESAMPLE_FWD_"
    values = {f"{head}{letter}DESC": one for letter, one in tensors.items()}
    return DnnDescriptor(dnn, "OPERATION_RESAMPLE_FWD", **{f"{head}DESC": window}, **values)


def _norm(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    names = {"X": "XDESC", "Y": "YDESC"}
    head = "OPERATION_NORM_FWD_"
    values = {head + names.get(name, f"{name}_DESC"): one for name, one in tensors.items()}
    return DnnDescriptor(
        dnn,
        "OPERATION_NORM_FORWARD",
        OPERATION_NORM_FWD_MODE=operation.mode,
        OPERATION_NORM_FWD_PHASE="NORM_FWD_INFERENCE",
        **values,
    )


def _attention(dnn: Cudnn, operation: DnnOperation, tensors: _Tensors) -> DnnDescriptor:
    values = {f"OPERATION_SDPA_FWD_{letter}DESC": one for letter, one in tensors.items()}
    return DnnDescriptor(dnn, "OPERATION_SDPA_FWD", **values)


_WRITERS: Mapping[str, Callable[[Cudnn, DnnOperation, _Tensors], DnnDescriptor]] = {
    "convolution": _convolution,
    "transposed convolution": _convolution,
    "pointwise": _pointwise,
    "product": _product,
    "pooling": _pooling,
    "norm": _norm,
    "attention": _attention,
}


def pack(
    dnn: Cudnn, numbers: Sequence[int], addresses: Sequence[int], workspace: int
) -> DnnDescriptor:
    """Return where the tensors of a graph lie, and the workspace.

    Args:
        dnn: The library.
        numbers: Of tensors of the graph.
        addresses: Of each; of a number that the host gives, on the host.
        workspace: The address of memory of the engine's own.

    Raises:
        CudnnError: It is not taken.
    """
    return DnnDescriptor(
        dnn,
        "VARIANT_PACK",
        VARIANT_PACK_UNIQUE_IDS=[number + 1 for number in numbers],
        VARIANT_PACK_DATA_POINTERS=list(addresses),
        VARIANT_PACK_WORKSPACE=workspace,
    )
