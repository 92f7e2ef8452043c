# SPDX-License-Identifier: Apache-2.0
"""Ways of running a small model, and what one does otherwise than another: in a worker process.

A side is a text. `reference` is the ONNX reference evaluator, and the name of another backend that
has a baseline (`onnxruntime`, `openvino`) is that library by its own API, which gets the model as
it is: nothing is placed. `ours: TARGET` is our compiler for a target.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import onnx

from intarsia.arrays import Array
from intarsia.backends.evaluator import make_evaluator
from intarsia.backends.registry import Backends
from intarsia.compiler import compile as compile_model
from intarsia.errors import InputError, IntarsiaError, ReasonCode
from intarsia.process.workers import CallOutcome, Limits, Worker, own_seconds, resident_bytes
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.tuning.laboratory.plug_ins import PlugIns, load_all
from intarsia.verifying.judging import COST_RUNS, judge_cost, judge_outputs
from intarsia.verifying.references import precision_of
from intarsia.verifying.values import Fault, Symptom

REFERENCE = "reference"
OURS = "ours:"
_MODEL, _FEED = "model", "feed:"
_LEAST_PATIENCE, _PATIENCE = 2.0, 8.0  # seconds, and a factor
_OTHER_SECONDS = 600.0  # for the reference


def check_side(side: str, backends: Backends) -> str:
    """Return a side in its own form; a target of ours may be given without `ours:`.

    Raises:
        InputError: It is empty.
        BackendError: It names no backend with a baseline, and no target.
        TargetError: It is no target.
    """
    text = side.strip()
    if not text:
        raise InputError("a side is empty", hint="reference, onnxruntime, openvino or a target")
    if text == REFERENCE:
        return text
    target = text.removeprefix(OURS).strip()
    is_library = not text.startswith(OURS) and target in backends.by_name
    if is_library and backends.named(target).baseline is not None:
        return target
    CompilationConfig.resolve(_with_fallback(target))
    return f"{OURS} {target}"


def _with_fallback(target: str) -> str:
    """Return a target behind which the reference takes what it refuses, if it cannot be alone."""
    try:
        CompilationConfig.resolve(target)
    except IntarsiaError:
        return f"{target}, {REFERENCE}"
    return target


def worker_variables(threads: int | None) -> dict[str, str]:
    """Return the variables of a worker: the reference has as many threads as what it judges."""
    variables = {"INTARSIA_LOG": "error"}
    return variables if threads is None else {**variables, "OPENBLAS_NUM_THREADS": str(threads)}


class SideTrial:
    """Tells what a suspect does otherwise, on models of any size, in a worker process.

    Args:
        suspect: The side that is doubted.
        against: The side that is right by assumption.
        threads: Threads of one run.
        runs: How often each model is run.
        seconds: How long the suspect may take with one model.
        plug_ins: Backends that are not installed.
        worker: The process to use, which stays the caller's; None starts one.

    Attributes:
        trials: How many models were tried.
    """

    def __init__(
        self,
        suspect: str,
        against: str = REFERENCE,
        *,
        threads: int = 1,
        runs: int = 1,
        seconds: float = 60.0,
        plug_ins: PlugIns | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.suspect, self.against, self.runs = suspect, against, runs
        self.trials = 0
        self._threads = threads
        self._seconds = seconds
        self._longest = 0.0
        self._plug_ins = msgspec.to_builtins(plug_ins or PlugIns())
        self._is_own = worker is None
        self._worker = worker or Worker(worker_variables(threads))

    def close(self) -> None:
        """End the worker, unless it is the caller's."""
        if self._is_own:
            self._worker.close()

    @property
    def _patience(self) -> float:
        """How long the next model may take: many times what any took that came back."""
        if not self._longest:
            return self._seconds
        return min(self._seconds, _LEAST_PATIENCE + _PATIENCE * self._longest)

    def judge(self, model: bytes, feeds: Mapping[str, Any]) -> Fault | None:
        """Return what the suspect does otherwise on a model, or None.

        Args:
            model: A serialized `ModelProto` with its constants.
            feeds: An array per input, by name.

        Raises:
            IntarsiaError: The other side cannot run it.
        """
        self.trials += 1
        if self._worker.pid is None:  # its start is not the model's fault
            self._worker.call(f"{__name__}:warm", self._plug_ins, limits=Limits(300.0))
        patience = self._patience
        arrays = {_MODEL: np.frombuffer(model, np.uint8)}
        arrays |= {_FEED + name: np.asarray(array) for name, array in feeds.items()}
        outcome = self._worker.call(
            f"{__name__}:try_model",
            self.suspect,
            self.against,
            self._threads,
            self.runs,
            patience,
            arrays=arrays,
            limits=Limits(_OTHER_SECONDS + patience),
        )
        fault = fault_of(outcome, patience)
        if fault is not None:
            return fault
        self._longest = max(self._longest, outcome.seconds)
        if not outcome.is_ok:
            raise IntarsiaError(outcome.message, hint=outcome.hint or None)
        return None if outcome.value is None else msgspec.convert(outcome.value, Fault)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the process, from outside of Python, if what is inside takes longer.

    Only what is doubted is timed: the reference takes as long as it takes.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


_ENDED_LATE = 1
"""The exit code of a process that `limited` ends; what crashes is ended by a signal."""


def fault_of(outcome: CallOutcome, seconds: float) -> Fault | None:
    """Return what a call that a worker did not survive shows, or None.

    Args:
        outcome: Of the call.
        seconds: How long what is doubted might take.
    """
    if outcome.reason is None:
        return None
    if outcome.reason is ReasonCode.TIMEOUT or outcome.exit_code == _ENDED_LATE:
        return Fault(Symptom.HUNG, f"it took more than {seconds:.3g} s and was ended")
    if outcome.reason is ReasonCode.CRASHED:
        return Fault(Symptom.CRASHED, outcome.message)
    return None


_loaded: list[Backends] = []


def warm(plug_ins: Mapping[str, Any]) -> None:
    """Load the backends and import what compiles: what a worker does first."""
    _loaded[:] = [load_all(msgspec.convert(plug_ins, PlugIns), Settings.from_environment())]
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "warm", [value], [result])
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    Side(f"{OURS} {REFERENCE}", model.SerializeToString(), {"x": np.ones(1, np.float32)}, 1).run()


def try_model(
    suspect: str,
    against: str,
    threads: int,
    runs: int,
    seconds: float,
    arrays: Mapping[str, Array],
) -> dict[str, Any] | None:
    """Run a model on both sides and return the fault of the suspect, as a dictionary.

    Args:
        suspect: The side that is doubted.
        against: The other one.
        threads: Threads of one run.
        runs: How often the suspect runs it.
        seconds: How long it may take.
        arrays: The model's bytes, and its inputs.
    """
    model = arrays[_MODEL].tobytes()
    feeds = {
        name.removeprefix(_FEED): np.array(array)
        for name, array in arrays.items()
        if name != _MODEL
    }
    proto = onnx.load_from_string(model)
    other = Side(against, model, feeds, threads)
    expected = other.run()
    try:
        with limited(seconds):
            side = Side(suspect, model, feeds, threads)
    except IntarsiaError as error:
        return _plain(Fault(Symptom.FAILED, f"{type(error).__name__}: {error.message}"))
    operators = {node.op_type for node in proto.graph.node}
    spent: list[float] = []
    grown: list[int] = []
    for number in range(runs):
        before = resident_bytes()
        try:
            with limited(seconds):
                actual = side.run()
        except IntarsiaError as error:
            return _plain(Fault(Symptom.FAILED, f"{type(error).__name__}: {error.message}"))
        after = resident_bytes()
        fault, _ = judge_outputs(
            feeds,
            expected,
            actual,
            operators,
            side.precision,
            lambda moved: Side(REFERENCE, model, moved, threads).run(),
        )
        if number:
            spent.append(side.seconds)
            grown.append(after - before)
        if fault is not None:
            return _plain(fault)
    if len(grown) >= COST_RUNS:
        slow = judge_cost(spent, other.seconds, grown)
        if slow is not None and against != REFERENCE:  # what a library takes is no measure
            judge = Side(REFERENCE, model, feeds, threads)
            judge.run()
            slow = judge_cost(spent, max(judge.seconds, other.seconds), grown)
        if slow is not None:
            return _plain(slow)
    return None


def _plain(fault: Fault) -> dict[str, Any]:
    return dict(msgspec.to_builtins(fault))


class Side:
    """A model on one side, ready to run.

    Args:
        side: As `check_side` returns it.
        model: A serialized `ModelProto`.
        feeds: An array per input, by name.
        threads: Threads of one run.

    Attributes:
        seconds: What the last run took.
        precision: What the side's target asks for.

    Raises:
        IntarsiaError: The side does not take the model.
    """

    def __init__(self, side: str, model: bytes, feeds: Mapping[str, Any], threads: int) -> None:
        self._feeds = dict(feeds)
        self.seconds, self.precision = 0.0, ""
        self._run: Callable[[], Mapping[str, Any]]
        proto = onnx.load_from_string(model)
        names = [output.name for output in proto.graph.output]
        backends = _loaded[0]
        if side.startswith(OURS):
            target = side.removeprefix(OURS).strip()
            self.precision = precision_of(
                str(CompilationConfig.resolve(_with_fallback(target)).targets[0])
            )
            program = compile_model(
                model,
                _with_fallback(target),
                num_threads=threads,
                backends=backends,
                placement="greedy",
                cache=False,
                probe=False,
            )
            self._run = lambda: program.run(self._feeds)
        elif side == REFERENCE:
            evaluator = make_evaluator(proto)
            self._run = lambda: dict(zip(names, evaluator.run(None, self._feeds), strict=True))
        else:
            baseline = backends.baseline_of(side)(model, self._feeds, threads)

            def run() -> dict[str, Any]:
                baseline.run()
                return dict(zip(names, baseline.outputs(), strict=True))

            self._run = run

    def run(self) -> dict[str, Any]:
        """Run once and return the outputs, by name.

        Raises:
            IntarsiaError: It failed.
        """
        start = own_seconds()
        try:
            with np.errstate(all="ignore"):
                outputs = self._run()
        except IntarsiaError:
            raise
        except Exception as error:  # of a library: they raise what they like
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise IntarsiaError(f"{type(error).__name__}: {text}") from error
        self.seconds = own_seconds() - start
        return {
            name: np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in outputs.items()
        }
