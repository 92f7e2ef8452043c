# SPDX-License-Identifier: Apache-2.0
"""Runs a compiled region on tensors of ONNX Runtime, where they lie.

ONNX Runtime comes with the same addresses again and again: what is bound to them is kept. Small
tensors at addresses that are new are copied, which takes less time than binding.
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from intarsia.arrays import Array, np_dtype
from intarsia.errors import InputError
from intarsia.graph.snapshot import dtype_name
from intarsia.plan.plan import TensorStorage
from intarsia.runtime.executor import PlanExecutable, is_dense
from intarsia.runtime.memories import RunMemory

if TYPE_CHECKING:
    from intarsia.provider.abi import OrtApi
    from intarsia.runtime.context import Context
    from intarsia.runtime.free import Program

_MOST_BOUND = 8
"""Bound steps that are kept for each thread at a time."""

_COPIED_BYTES = 1 << 18
"""Up to so many, tensors at new addresses are copied: that takes as long as binding."""

_USES = 64
"""How often a program for some sizes is taken before the model is asked again: for sizes that come
often it makes another one meanwhile."""

_WORD = 8


@dataclass(slots=True, eq=False)
class _Sized:
    """Which program runs for some sizes.

    Attributes:
        program: It.
        shapes: Of the outputs, if code writes them in place; None if it does not.
        uses: How often it is taken before the model is asked again.
    """

    program: PlanExecutable
    shapes: list[ctypes.Array[ctypes.c_int64]] | None
    uses: int = _USES

    @classmethod
    def of(cls, program: PlanExecutable, outputs: Sequence[str]) -> _Sized:
        """Return that of a program, with outputs in ONNX Runtime's order."""
        shapes = {spec.name: spec.shape or () for spec in program.outputs}
        is_plain = _is_plain(program)
        return cls(program, [_dims(shapes[name]) for name in outputs] if is_plain else None)


@dataclass(slots=True, eq=False)
class _Bench:
    """What one call at a time works with.

    Attributes:
        memory: Where what its contexts need lies.
        steps: By what a call is told of its tensors: the program, and what runs it on them.
        sized: Where sizes are free, by what a call is told of its inputs.
        seen: What calls were told that were the first of their kind.
        own: A context on memory of its own, and the program that it is of.
    """

    memory: RunMemory = field(default_factory=RunMemory)
    steps: OrderedDict[bytes, tuple[PlanExecutable, Callable[[], Any]]] = field(
        default_factory=OrderedDict
    )
    sized: OrderedDict[bytes, _Sized] = field(default_factory=OrderedDict)
    seen: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    own: tuple[PlanExecutable, Context] | None = None


class RegionKernel:
    """A region that is compiled, as ONNX Runtime calls it; from many threads at once.

    Args:
        api: ONNX Runtime's functions.
        program: What runs.
        inputs: Names of what ONNX Runtime passes, in its order; some may be none of the program's.
        outputs: Names of what it wants, in its order.

    Attributes:
        shapes: Of the outputs, if they are known before it runs and code can write them in place.
    """

    def __init__(
        self, api: OrtApi, program: Program, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        self._api = api
        self._program = program
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._read = {spec.name for spec in program.inputs}
        self._idle: deque[_Bench] = deque()
        self._fixed = program if isinstance(program, PlanExecutable) else None
        self.shapes: tuple[tuple[int, ...], ...] = ()
        if self._fixed is not None and _is_plain(self._fixed):
            shapes = {spec.name: spec.shape for spec in self._fixed.outputs}
            self.shapes = tuple(shapes[name] or () for name in self._outputs)

    @property
    def program(self) -> Program:
        """What runs."""
        return self._program

    def compute(self, record: int, words: int, context: int) -> None:
        """Run the region.

        Args:
            record: The address of what `intarsia_compute` wrote of the tensors.
            words: How many words that is.
            context: The kernel's context, for outputs whose shapes are not known before.

        Raises:
            InputError: A tensor is not what the model wants.
            ExecutionError: A backend failed.
        """
        told = ctypes.string_at(record, _WORD * words)
        try:
            bench = self._idle.pop()
        except IndexError:
            bench = _Bench()
        try:
            if self._fixed is None:
                self._run_sized(bench, told, context)
                return
            bound = bench.steps.get(told)
            if bound is not None:
                bound[1]()
            else:
                self._run(bench, told, self._feeds(told), self._fixed, context)
        finally:
            self._idle.append(bench)

    def _run_sized(self, bench: _Bench, told: bytes, context: int) -> None:
        """Run where sizes are free: which program runs is asked for once in a while."""
        sized, feeds = bench.sized.get(told), None
        if sized is None or not sized.uses:
            feeds = self._feeds(told)
            sized = _Sized.of(self._program.program_for(feeds), self._outputs)
            _note(bench.sized, told, sized)
        sized.uses -= 1
        program, results = sized.program, b""
        if sized.shapes is not None:
            places = [self._output(i, dims, context) for i, dims in enumerate(sized.shapes)]
            results = struct.pack(f"{len(places)}q", *places)
            bound = bench.steps.get(told + results)
            if bound is not None and bound[0] is program:
                bound[1]()
                return
        self._run(bench, told + results, feeds or self._feeds(told), program, context)

    def _feeds(self, told: bytes) -> dict[str, Array]:
        """Return arrays over what the program reads."""
        words = memoryview(told).cast("q")
        feeds, at = {}, 0
        for name in self._inputs:
            address, number, rank = words[at : at + 3]
            shape = tuple(words[at + 3 : at + 3 + rank])
            at += 3 + rank
            if name in self._read:
                feeds[name] = _array_at(address, np_dtype(_DTYPES[number]), shape)
        return feeds

    def _run(
        self,
        bench: _Bench,
        told: bytes,
        feeds: dict[str, Array],
        program: PlanExecutable,
        context: int,
    ) -> None:
        """Run on tensors that nothing is bound to."""
        if not _is_plain(program):
            self._write(program.run(feeds), context)
            return
        places = memoryview(told).cast("q")[-len(self._outputs) :]
        specs = {spec.name: spec for spec in program.outputs}
        arrays = {
            name: _array_at(place, np_dtype(specs[name].dtype), specs[name].shape or ())
            for name, place in zip(self._outputs, places, strict=True)
        }
        nbytes = sum(array.nbytes for some in (feeds, arrays) for array in some.values())
        if nbytes <= _COPIED_BYTES and told not in bench.seen:
            _note(bench.seen, told, None)
            _run_copied(bench, program, feeds, arrays)
            return
        step = program.context(feeds, arrays, memory=bench.memory).step()
        _note(bench.steps, told, (program, step))
        step()

    def _output(self, number: int, dims: ctypes.Array[ctypes.c_int64], context: int) -> int:
        """Return the address of an output, given its shape."""
        call, place = self._api.call, ctypes.c_void_p()
        call("KernelContext_GetOutput", context, number, dims, len(dims), ctypes.byref(place))
        call("GetTensorMutableData", place, ctypes.byref(place))
        return place.value or 0

    def _write(self, outputs: dict[str, Any], context: int) -> None:
        """Copy fresh outputs to where ONNX Runtime wants them."""
        for number, name in enumerate(self._outputs):
            array = np.asarray(outputs[name])
            address = self._output(number, _dims(array.shape), context)
            if array.nbytes:
                np.copyto(_array_at(address, array.dtype, array.shape), array)


def _note(kept: OrderedDict[bytes, Any], key: bytes, value: Any) -> None:
    """Keep something, and forget the oldest of too many."""
    kept[key] = value
    if len(kept) > _MOST_BOUND:
        kept.popitem(last=False)


def _run_copied(
    bench: _Bench, program: PlanExecutable, feeds: dict[str, Array], results: dict[str, Array]
) -> None:
    """Run on copies."""
    if bench.own is None or bench.own[0] is not program:
        bench.own = program, program.context()
    context = bench.own[1]
    arrays = [feeds[spec.name] for spec in program.inputs]
    for spec, array in zip(program.inputs, arrays, strict=True):
        if array.shape != spec.shape or array.dtype != np_dtype(spec.dtype):
            raise InputError(
                f"{spec.name!r} is {array.dtype} of shape {list(array.shape)}, and its region was "
                f"compiled for {spec}",
                hint="the model declares another shape than comes",
            )
    context.write_inputs(arrays)
    context.run()
    context.read_outputs(results, results)


def _is_plain(program: PlanExecutable) -> bool:
    """Tell whether all inputs and outputs are dense arrays that code reads and writes in place."""
    tensors, plan = program.plan.tensors, program.plan
    return (
        not program.plan.late
        and all(is_dense(tensors[i], TensorStorage.INPUT) for i in plan.inputs)
        and all(is_dense(tensors[i], TensorStorage.OUTPUT) for i in plan.outputs)
        and all(tensors[i].spec.nbytes for i in (*plan.inputs, *plan.outputs))
    )


def _dims(shape: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(shape))(*shape)


def _array_at(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array over memory of others."""
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    if not nbytes:
        return np.empty(shape, dtype)
    block: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    array: Array = np.frombuffer(block, np.uint8).view(dtype).reshape(shape)
    return array


_DTYPES = {number: dtype_name(ir.DataType(number)) for number in range(1, 23)}
"""By ONNX's number of a type of elements, numpy's name of it."""
