# SPDX-License-Identifier: Apache-2.0
"""How far a quantised model is from the one that it was made of, as ONNX Runtime runs both.

The error of an output is the root of the sum of all squared differences over the root of the sum
of all squared values, over all samples. That of a model is the largest among its float outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from intarsia.backends.artifact import first_line
from intarsia.errors import BackendError, ModelError
from intarsia.quantizing.libraries import import_library

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.quantizing.samples import Feeds

_FATAL = 4


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far an output is from what the model computes in f32.

    Attributes:
        name: Of the output.
        error: Relative, as this module defines it.
        decibels: The same as a ratio of signal to noise: `-20 log10(error)`; None if exact.
    """

    name: str
    error: float
    decibels: float | None


class AccuracyTrial:
    """A model's outputs in f32 on some samples, with which those of others are compared."""

    def __init__(self, model: onnx.ModelProto, samples: Sequence[Feeds], threads: int) -> None:
        self._samples, self._threads = tuple(samples), threads
        self._names = [value.name for value in model.graph.output if _is_float(value)]
        if not self._names:
            raise ModelError(
                "no output of the model is a float, so that no error of it can be measured",
                hint="make what the last float operators compute outputs of the model",
            )
        self._expected = list(self._run(model, self._names))

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def first(self, count: int) -> AccuracyTrial:
        """Return the trial on at most so many of the samples."""
        if count >= self.size:
            return self
        shorter = copy.copy(self)
        shorter._samples, shorter._expected = self._samples[:count], self._expected[:count]  # noqa: SLF001
        return shorter

    def compare(self, model: onnx.ModelProto) -> tuple[OutputError, ...]:
        """Return the error of each float output of a model with the same inputs and outputs.

        Raises:
            BackendError: ONNX Runtime cannot run it.
        """
        return _compare(self._names, self._expected, self._run(model, self._names))

    def compare_inside(
        self, model: onnx.ModelProto, other: onnx.ModelProto, tensors: Mapping[str, str]
    ) -> dict[str, float]:
        """Return the error of tensors inside.

        Args:
            model: In f32.
            other: Quantised.
            tensors: By name in `model`, the name in `other`.

        Raises:
            BackendError: ONNX Runtime cannot run one of them with these outputs.
        """
        if not tensors:
            return {}
        expected = self._run(_with_outputs(model, tensors), list(tensors))
        actual = self._run(_with_outputs(other, tensors.values()), list(tensors.values()))
        return {one.name: one.error for one in _compare(list(tensors), expected, actual)}

    def _run(self, model: onnx.ModelProto, names: Sequence[str]) -> Iterator[list[Array]]:
        with _own_error():
            session = _open(model, self._threads)
        for feeds in self._samples:
            with _own_error():
                results = session.run(list(names), dict(feeds))
            yield [np.asarray(result) for result in results]


def worst(errors: Iterable[OutputError]) -> float:
    """Return the error of a model."""
    return max(one.error for one in errors)


def _is_float(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type.elem_type
    return kind in {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    }


def _open(model: onnx.ModelProto, threads: int) -> Any:
    ort = import_library("onnxruntime")
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = _FATAL
    settings.add_session_config_entry("session.disable_double_qdq_remover", "1")
    # The numbers that the model means: without VNNI, sums of uint8 times int8 saturate else.
    settings.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


@contextmanager
def _own_error() -> Iterator[None]:
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(
            f"ONNX Runtime cannot run the model to measure its error: {first_line(error)}",
            backend="onnxruntime",
            hint="see whether it runs as it is: intarsia run MODEL -t onnxruntime",
        ) from error


def _with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    more = onnx.ModelProto()
    more.CopyFrom(model)
    there = {value.name for value in more.graph.output}
    more.graph.output.extend(
        onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names) if n not in there
    )
    return more


def _compare(
    names: Sequence[str], expected: Iterable[Sequence[Array]], actual: Iterable[Sequence[Array]]
) -> tuple[OutputError, ...]:
    noise, signal = np.zeros(len(names)), np.zeros(len(names))
    for one, other in zip(expected, actual, strict=True):
        for i, (wanted, computed) in enumerate(zip(one, other, strict=True)):
            power = _powers(wanted, computed)
            noise[i] += power[0]
            signal[i] += power[1]
    return tuple(map(_output_error, names, noise, signal))


def _powers(wanted: Array, computed: Array) -> tuple[float, float]:
    """Return the sums of squares of the differences and of what is wanted.

    What is not finite on both sides alike is infinitely wrong.
    """
    if wanted.shape != computed.shape:
        return math.inf, 0.0
    wanted, computed = wanted.astype(np.float64), computed.astype(np.float64)
    is_finite = np.isfinite(wanted) & np.isfinite(computed)
    others = (wanted == computed) | (np.isnan(wanted) & np.isnan(computed)) | is_finite
    if not others.all():
        return math.inf, 0.0
    wanted, computed = wanted[is_finite], computed[is_finite]
    return float(np.square(computed - wanted).sum()), float(np.square(wanted).sum())


def _output_error(name: str, noise: float, signal: float) -> OutputError:
    if noise == 0:
        return OutputError(name, 0.0, None)
    error = math.sqrt(noise / signal) if signal else math.inf
    return OutputError(name, error, -20 * math.log10(error) if error < math.inf else -math.inf)
