# SPDX-License-Identifier: Apache-2.0
"""A loaded region: primitives, constants in the layouts that they want, and bound calls.

One call from Python runs a whole region: a loop over `dnnl_primitive_execute` in machine code. The
loop sets the number of OpenMP threads, which is a property of the calling thread, runs every
primitive without the interpreter's lock, and restores the number. A primitive that fails ends it
with an exception that names its position.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Buffer, Step
from intarsia.backends.dnnl.assembly import PrimitiveAssembler
from intarsia.backends.dnnl.forking import guard, run_safely
from intarsia.backends.dnnl.forms import Assembly, PrimitiveStep, Room
from intarsia.backends.dnnl.handles import Handle, make_memory
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.program import PrimitiveProgram
from intarsia.backends.dnnl.threads import GET, SET, thread_count
from intarsia.backends.dnnl.words import STREAM_IN_ORDER, Arg
from intarsia.backends.values import Artifact
from intarsia.errors import BackendError
from intarsia.graph.arena import aligned_bytes, assign_offsets
from intarsia.native.callpath import PYTHON_SYMBOLS, MethodDef, make_function
from intarsia.native.callpath_code import define_method, find_table, return_none, unlocked
from intarsia.native.routine import Cell, Routine, declare


class _Argument(ctypes.Structure):
    """`dnnl_exec_arg_t`."""

    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def make_stream(library: OneDnn) -> Handle:
    """Return a stream; each context has its own."""
    stream = library.make("dnnl_stream_create", library.engine, STREAM_IN_ORDER)
    return Handle(library, "stream", stream)


class DnnlExecutable:
    """Primitives with their constants; bindings and threads share it.

    Args:
        library: oneDNN.
        program: What is loaded.
        artifact: Holds the constants.
        num_threads: Threads that one run may use.
    """

    survives_fork = True  # see `forking`

    def __init__(
        self, library: OneDnn, program: PrimitiveProgram, artifact: Artifact, num_threads: int
    ) -> None:
        self._library = library
        self._num_threads = program.num_threads or num_threads
        self._constants: dict[int, Array] = {}
        assemble = partial(self._assemble, program, artifact)
        self.assembly, self._primitives = run_safely(assemble)
        self._offsets, self.scratch_bytes = _place(self.assembly)

    def _assemble(
        self, program: PrimitiveProgram, artifact: Artifact
    ) -> tuple[Assembly, list[Handle]]:
        """Choose implementations for the number of threads, and put constants where they belong."""
        with thread_count(self._library, self._num_threads):
            assembly = PrimitiveAssembler(self._library, program).run()
            primitives = [step.descriptor.primitive() for step in assembly.steps]
            constants = self._pack(assembly, artifact)
        # what was only packed is not kept: a package's own constants are pages of its file
        needed = {argument.form.buffer for step in assembly.steps for argument in step.arguments}
        self._constants = {key: array for key, array in constants.items() if key in needed}
        return assembly, primitives

    def _pack(self, assembly: Assembly, artifact: Artifact) -> dict[int, Array]:
        """Return all constants by buffer, in the layouts that are wanted."""
        constants: dict[int, Array] = {}
        for position, buffer in enumerate(assembly.buffers):
            if buffer.room is Room.CONSTANT:
                constants[position] = artifact.constants[buffer.index].data
            elif buffer.room is Room.PACKED:
                constants[position] = aligned_bytes(buffer.nbytes)
        stream = make_stream(self._library)
        for step in assembly.packings:
            scratch = aligned_bytes(step.descriptor.scratchpad.nbytes)
            addresses = [
                constants[argument.form.buffer].ctypes.data + argument.form.offset
                for argument in step.arguments
            ]
            table, memories = _bind_step(step, addresses, scratch.ctypes.data)
            primitive = step.descriptor.primitive()
            self._library.call(
                "dnnl_primitive_execute",
                primitive.pointer,
                stream.pointer,
                len(table),
                ctypes.addressof(table),
            )
            del memories
        self._library.call("dnnl_stream_wait", stream.pointer)
        return constants

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region on these arrays; it releases the lock of Python."""
        arena = 0 if scratch is None else scratch.ctypes.data
        addresses = []
        for position, buffer in enumerate(self.assembly.buffers):
            match buffer.room:
                case Room.INPUT:
                    addresses.append(inputs[buffer.index].ctypes.data)
                case Room.OUTPUT:
                    addresses.append(outputs[buffer.index].ctypes.data)
                case Room.INNER:
                    addresses.append(arena + self._offsets[position])
                case Room.CONSTANT | Room.PACKED:
                    array = self._constants.get(position)
                    addresses.append(0 if array is None else array.ctypes.data)
        stream = make_stream(self._library)
        calls, bindings = [], []
        scratchpads = self._offsets[len(self.assembly.buffers) :]
        for step, primitive, offset in zip(
            self.assembly.steps, self._primitives, scratchpads, strict=True
        ):
            step_addresses = [
                addresses[argument.form.buffer] + argument.form.offset
                for argument in step.arguments
            ]
            table, memories = _bind_step(step, step_addresses, arena + offset)
            calls.append((primitive.pointer, len(table), ctypes.addressof(table)))
            bindings.append((table, memories))
        owned = (self, stream, bindings, tuple(inputs), tuple(outputs), scratch)
        run_all = make_step(self._library, stream.pointer, self._num_threads, calls, owned)
        # With one thread OpenMP makes no team, so nothing is missing in a child.
        return run_all if self._num_threads == 1 else guard(run_all)


def _bind_step(
    step: PrimitiveStep, addresses: Sequence[int], scratchpad: int
) -> tuple[Any, list[Handle]]:
    """Return the argument table of a primitive, and the memory objects in it."""
    memories = [
        make_memory(argument.form.layout, address)
        for argument, address in zip(step.arguments, addresses, strict=True)
    ]
    positions = [argument.position for argument in step.arguments]
    if step.descriptor.scratchpad.nbytes:
        memories.append(make_memory(step.descriptor.scratchpad, scratchpad))
        positions.append(Arg.SCRATCHPAD)
    rows = zip(positions, memories, strict=True)
    table = [_Argument(position, memory.pointer) for position, memory in rows]
    return (_Argument * len(table))(*table), memories


def _place(assembly: Assembly) -> tuple[list[int], int]:
    """Return where each buffer and then each step's scratchpad lies, and the bytes of all.

    Buffers outside the arena have the offset 0.
    """
    count = len(assembly.buffers)
    lives: dict[int, tuple[int, int, int]] = {}
    for time, step in enumerate(assembly.steps):
        for argument in step.arguments:
            position = argument.form.buffer
            buffer = assembly.buffers[position]
            if buffer.room is Room.INNER:
                first = lives[position][0] if position in lives else time
                lives[position] = (first, time, buffer.nbytes)
        nbytes = step.descriptor.scratchpad.nbytes
        if nbytes:
            # A scratchpad is needed during its own step alone, so all of them share what tensors
            # leave free.
            lives[count + time] = (time, time, nbytes)
    order = sorted(lives, key=lambda position: lives[position][0])
    placed, total = assign_offsets([lives[position] for position in order])
    offsets = [0] * (count + len(assembly.steps))
    for position, offset in zip(order, placed, strict=True):
        offsets[position] = offset
    return offsets, total


logger = logging.getLogger(__name__)

_NAME = "intarsia_dnnl_step"


class _PrimitiveList(ctypes.Structure):  # the calls follow
    _fields_ = (
        ("execute", c_void_p),
        ("set_threads", c_void_p),
        ("get_threads", c_void_p),
        ("stream", c_void_p),
        ("num_threads", c_uint64),
        ("count", c_uint64),
    )


class _PrimitiveCall(ctypes.Structure):
    _fields_ = (("primitive", c_void_p), ("number", c_uint64), ("arguments", c_void_p))


def _write_calls(code: Routine) -> None:
    table = find_table(code, _PrimitiveList)
    execute, set_threads, get_threads, stream, num_threads, count = table.load()
    status, before = code.variable(c_int32, 0), code.variable(c_int32, 0)
    position = code.variable(c_int64, 0)
    with unlocked(code):
        with code.when(set_threads, "!=", None):
            before.store(code.call(get_threads.function(c_int32)))
            code.call(set_threads.function(None, c_int32), num_threads.convert(c_int32))
        with code.repeat() as turn:
            turn.end_if(position.load(), ">=", count)
            call = table.behind(_PrimitiveCall).item(position.load())
            primitive, number, arguments = call.load()
            run = execute.function(c_int32, c_void_p, c_void_p, c_int32, c_void_p)
            status.store(code.call(run, primitive, stream, number.convert(c_int32), arguments))
            turn.end_if(status.load(), "!=", 0)
            position.store(position.load() + 1)
        with code.when(set_threads, "!=", None):
            code.call(set_threads.function(None, c_int32), before.load())
    with code.when(status.load(), "!=", 0):
        raise_error = declare(
            code.module, "PyErr_Format", c_void_p, c_void_p, c_void_p, is_variadic=True
        )
        error_type = Cell(code.data("PyExc_RuntimeError"), c_void_p).load()
        message = code.text("message", b"oneDNN: primitive %ld ended with %ld")
        code.call(raise_error, error_type, message, position.load(), status.load().convert(c_int64))
        code.give_back()
    return_none(code)


@cache
def _method(caches: Path | None) -> MethodDef | None:
    """Return the loop, or None if there is no code generator."""
    try:
        return define_method(
            _NAME,
            _write_calls,
            (*PYTHON_SYMBOLS, "PyErr_Format", "PyExc_RuntimeError"),
            caches=caches,
        )
    except BackendError as error:
        logger.warning("primitives are called one by one from Python: %s", error.message)
        return None


def make_step(
    library: OneDnn,
    stream: int,
    num_threads: int,
    calls: Sequence[tuple[int, int, int]],
    owned: object,
) -> Step:
    """Return a function of no arguments that runs primitives one after another.

    Args:
        library: oneDNN.
        stream: Where they run.
        num_threads: OpenMP threads.
        calls: For each, the primitive, the number of its arguments, and their address.
        owned: Everything that must live as long as the function.
    """
    method = _method(library.caches)
    if method is None:
        return plain_step(library, stream, num_threads, calls, owned)
    has_threads = bool(library.address(SET) and library.address(GET))
    head = (
        library.address("dnnl_primitive_execute"),
        library.address(SET) if has_threads else 0,
        library.address(GET) if has_threads else 0,
        stream,
        num_threads,
        len(calls),
    )
    table = np.array([*head, *chain.from_iterable(calls)], np.uint64)
    return make_function(method, table, owned)


def plain_step(
    library: OneDnn,
    stream: int,
    num_threads: int,
    calls: Sequence[tuple[int, int, int]],
    owned: object,
) -> Callable[[], None]:
    """Return what `make_step` does, as a loop in Python."""

    def run(owned: object = owned) -> None:  # what is owned lives as long as the function
        with thread_count(library, num_threads):
            for primitive, number, arguments in calls:
                library.call("dnnl_primitive_execute", primitive, stream, number, arguments)

    return run
