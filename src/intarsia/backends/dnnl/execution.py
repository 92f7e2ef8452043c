# SPDX-License-Identifier: Apache-2.0
"""A loaded region: primitives, constants in the layouts that they want, and bound calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from intarsia.arrays import Array
from intarsia.backends.device import Buffer
from intarsia.backends.device import Step as BoundStep
from intarsia.backends.dnnl.assembly import PrimitiveAssembler
from intarsia.backends.dnnl.forking import guard, run_safely
from intarsia.backends.dnnl.forms import Assembly, Room, Step
from intarsia.backends.dnnl.handles import Handle, make_memory
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.program import PrimitiveProgram
from intarsia.backends.dnnl.stepping import make_step
from intarsia.backends.dnnl.threads import thread_count
from intarsia.backends.dnnl.words import STREAM_IN_ORDER, Arg
from intarsia.backends.values import Artifact
from intarsia.graph.arena import aligned_bytes, assign_offsets


class _Argument(ctypes.Structure):
    """`dnnl_exec_arg_t`."""

    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def make_stream(library: OneDnn) -> Handle:
    """Return a stream; each context has its own."""
    made = library.make("dnnl_stream_create", library.engine, STREAM_IN_ORDER)
    return Handle(library, "stream", made)


class DnnlExecutable:
    """Primitives with their constants; bindings and threads share it.

    Args:
        library: oneDNN.
        program: What is loaded.
        artifact: Holds the constants.
        num_threads: Threads that one run may use.
    """

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
        needed = {item.form.buffer for step in assembly.steps for item in step.arguments}
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
                constants[item.form.buffer].ctypes.data + item.form.offset
                for item in step.arguments
            ]
            table, memories = _bind_step(step, addresses, scratch.ctypes.data)
            primitive = step.descriptor.primitive()
            self._library.call(
                "dnnl_primitive_execute",
                *(primitive.pointer, stream.pointer, len(table), ctypes.addressof(table)),
            )
            del memories
        self._library.call("dnnl_stream_wait", stream.pointer)
        return constants

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> BoundStep:
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
        calls, kept = [], []
        scratchpads = self._offsets[len(self.assembly.buffers) :]
        for step, primitive, offset in zip(
            self.assembly.steps, self._primitives, scratchpads, strict=True
        ):
            own = [
                addresses[argument.form.buffer] + argument.form.offset
                for argument in step.arguments
            ]
            table, memories = _bind_step(step, own, arena + offset)
            calls.append((primitive.pointer, len(table), ctypes.addressof(table)))
            kept.append((table, memories))
        owned = (self, stream, kept, tuple(inputs), tuple(outputs), scratch)
        made = make_step(self._library, stream.pointer, self._num_threads, calls, owned)
        return made if self._num_threads == 1 else guard(made)


def _bind_step(step: Step, addresses: Sequence[int], scratchpad: int) -> tuple[Any, list[Handle]]:
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
            lives[count + time] = (time, time, nbytes)
    order = sorted(lives, key=lambda position: lives[position][0])
    found, total = assign_offsets([lives[position] for position in order])
    offsets = [0] * (count + len(assembly.steps))
    for position, offset in zip(order, found, strict=True):
        offsets[position] = offset
    return offsets, total
