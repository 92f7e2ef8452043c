# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan as steps of a plan: each body is a program, bound to the plan's memory.

A body reads values from outside where they lie, and a branch of an If writes the outputs of the If
where they are read. What a Loop or Scan carries lies in two places in turn: one iteration reads the
one and writes the other, so that nothing is copied between iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import fill
from intarsia.backends.device import Buffer, Step, ValueSlot, survives_fork
from intarsia.decoding import decode_json
from intarsia.errors import ExecutionError, PackageError
from intarsia.graph.arena import aligned_bytes
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.plan.plan import TensorStorage

if TYPE_CHECKING:
    from intarsia.backends.values import Artifact, TensorSpec
    from intarsia.runtime.context import Context
    from intarsia.runtime.executor import PlanExecutable

_LOOP_INPUTS = 2

Runner: TypeAlias = "Callable[[str, Context], Step]"
"""How the body of an attribute runs in a context that is bound to the memory around it."""


class ControlSpec(msgspec.Struct, frozen=True):
    """What one If, Loop or Scan reads and writes, beside its bodies.

    Attributes:
        operator: `If`, `Loop` or `Scan`.
        inputs: Names of its inputs; empty where one is absent.
        outputs: Names of its outputs, likewise.
        scanned: Of a Scan, how many inputs it goes through.
        input_axes: Of a Scan, along which axis it goes through each.
        input_reversed: Of a Scan, for each whether it begins at the end.
        output_axes: Of a Scan, along which axis each output is stacked.
        output_reversed: Of a Scan, for each whether its last entry comes first.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scanned: int = 0
    input_axes: tuple[int, ...] = ()
    input_reversed: tuple[bool, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_reversed: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class _Body:
    """One body: the attribute that holds it, its program, and how that runs."""

    name: str
    program: PlanExecutable
    runner: Runner


class _BoundBody:
    """One body, bound to arrays for all of its runs.

    Args:
        body: It, and how it runs.
        inputs: By name, arrays that it reads in place.
        outputs: By position, arrays that it should write in place.
    """

    def __init__(
        self, body: _Body, inputs: Mapping[str, Array], outputs: Mapping[int, Array]
    ) -> None:
        program = body.program
        plan = program.plan
        tensors = [plan.tensors[position] for position in plan.outputs]
        in_place: dict[str, Array] = {}
        for i, array in outputs.items():
            tensor = tensors[i]
            is_alike = (tensor.shape, tensor.dtype) == (array.shape, array.dtype.name)
            if tensor.storage is TensorStorage.OUTPUT and is_alike:
                in_place.setdefault(tensor.name, array)  # one value may be several outputs
        context = program.context(inputs, in_place)
        self.inputs, self.outputs = context.border()
        self.run = body.runner(body.name, context)


def _value(buffer: Buffer) -> Any:
    return buffer.value if isinstance(buffer, ValueSlot) else buffer


def _move(source: Buffer, destination: Buffer, spec: TensorSpec) -> None:
    """Copy a value from buffer to buffer, unless it is there already.

    Raises:
        ExecutionError: It is of another shape or dtype than the destination.
    """
    if source is destination:
        return
    value = _value(source)
    if isinstance(destination, ValueSlot) and isinstance(source, np.ndarray):
        value = source.copy()  # the next run of the body writes over it
    fill(destination, value, spec, CONTROL_FLOW)


@dataclass(frozen=True, slots=True)
class _Border:
    """The buffers around one node, by name: what it reads, what it writes."""

    given: Mapping[str, Buffer]
    results: Mapping[str, Buffer]
    specs: Mapping[str, TensorSpec]


class ControlExecutable:
    """One If, Loop or Scan: runs the programs of its bodies. Threads share it.

    Args:
        artifact: What it reads and writes.
        bodies: The programs of its bodies by the attributes that hold them.
    """

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, bodies: Mapping[str, PlanExecutable]) -> None:
        self.artifact = artifact
        self.bodies = dict(bodies)
        try:
            self.spec = decode_json(artifact.payload, ControlSpec)
        except msgspec.MsgspecError as error:
            raise PackageError(
                f"a control flow operator of the package is malformed: {error}",
                hint="compile the model again",
            ) from error
        needed = {"then_branch", "else_branch"} if self.spec.operator == "If" else {"body"}
        if needed != bodies.keys() or self.spec.operator not in _BINDERS:
            raise PackageError(
                f"{self.spec.operator} of the package has the bodies {', '.join(bodies) or 'none'}",
                hint="compile the model again",
            )

    @property
    def survives_fork(self) -> bool:
        """Whether all regions of its bodies do."""
        return all(survives_fork(one) for body in self.bodies.values() for one in body.executables)

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs on these buffers, in contexts of its own of the bodies."""
        del scratch
        return self.bind_bodies(inputs, outputs, lambda _, context: context.step())

    def bind_bodies(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], runner: Runner
    ) -> Step:
        """Return the same call, in which bodies run as they are told to."""
        artifact = self.artifact
        given = {constant.name: constant.data for constant in artifact.constants}
        given |= {spec.name: one for spec, one in zip(artifact.inputs, inputs, strict=True)}
        results = {spec.name: one for spec, one in zip(artifact.outputs, outputs, strict=True)}
        specs = {spec.name: spec for spec in artifact.outputs}
        bodies = {name: _Body(name, one, runner) for name, one in self.bodies.items()}
        return _BINDERS[self.spec.operator](self.spec, bodies, _Border(given, results, specs))


def _outer(program: PlanExecutable, border: _Border, own: int) -> Mapping[str, Buffer]:
    """Return by name the buffers of the values from outside that a body reads.

    Args:
        program: The body's; these are its inputs after its own.
        border: Where they are.
        own: How many inputs of its own it has.
    """
    return {spec.name: border.given[spec.name] for spec in program.inputs[own:]}


def _arrays(buffers: Mapping[str, Buffer]) -> dict[str, Array]:
    return {name: one for name, one in buffers.items() if isinstance(one, np.ndarray)}


def _feed_slots(bound: _BoundBody, program: PlanExecutable, outer: Mapping[str, Buffer]) -> None:
    """Hand values of unknown size from outside to a body, before it runs."""
    for spec, buffer in zip(program.inputs, bound.inputs, strict=True):
        source = outer.get(spec.name)
        if isinstance(source, ValueSlot):
            fill(buffer, source.value, spec, CONTROL_FLOW)


def _truth(buffer: Buffer) -> bool:
    return bool(np.asarray(_value(buffer)).item())


def _bind_if(spec: ControlSpec, bodies: Mapping[str, _Body], border: _Border) -> Step:
    branches: dict[bool, Step] = {}
    for chosen, name in ((True, "then_branch"), (False, "else_branch")):
        body = bodies[name]
        wanted = {
            position: border.results[outer]
            for position, outer in enumerate(spec.outputs)
            if isinstance(border.results.get(outer), np.ndarray)
        }
        outer = _outer(body.program, border, 0)
        bound = _BoundBody(body, _arrays(outer), wanted)
        branches[chosen] = _branch(body.program, bound, outer, spec, border)
    condition = border.given[spec.inputs[0]]

    def run() -> None:
        branches[_truth(condition)]()

    return run


def _branch(
    program: PlanExecutable,
    bound: _BoundBody,
    outer: Mapping[str, Buffer],
    control: ControlSpec,
    border: _Border,
) -> Step:
    moves = [
        (source, border.results[name], border.specs[name])
        for name, source in zip(control.outputs, bound.outputs, strict=True)
        if name in border.results and source is not border.results[name]
    ]
    if not moves and not any(isinstance(one, ValueSlot) for one in outer.values()):
        return bound.run

    def run() -> None:
        _feed_slots(bound, program, outer)
        bound.run()
        for source, destination, spec in moves:
            _move(source, destination, spec)

    return run


class _Iterations:
    """Two bindings of one body that take turns: what the one writes, the other reads.

    Args:
        body: It, and how it runs.
        outer: By name, buffers of the values from outside.
        first: Where the values that are carried begin among its inputs, and among its outputs.
        carried: How many there are.
        shared: By position, inputs of its own that both read in place.
    """

    def __init__(
        self,
        body: _Body,
        outer: Mapping[str, Buffer],
        first: tuple[int, int],
        carried: int,
        shared: Mapping[int, Array],
    ) -> None:
        self.program, self.outer, self.carried = body.program, outer, carried
        self.first_input, self.first_output = first
        specs = body.program.inputs
        places = [
            {i: _allocated(specs[i]) for i in self._inputs if _is_dense(specs[i])} for _ in range(2)
        ]
        shift = self.first_output - self.first_input
        self.turns = tuple(
            _BoundBody(
                body,
                _arrays(outer)
                | {specs[i].name: array for i, array in (*mine.items(), *shared.items())},
                {i + shift: array for i, array in other.items()},
            )
            for mine, other in (places, places[::-1])
        )

    @property
    def _inputs(self) -> range:
        return range(self.first_input, self.first_input + self.carried)

    def begin(self, initial: Sequence[Buffer]) -> None:
        """Take what is carried into the first iteration."""
        for turn in self.turns:
            _feed_slots(turn, self.program, self.outer)
        for i, source in zip(self._inputs, initial, strict=True):
            _move(source, self.turns[0].inputs[i], self.program.inputs[i])

    def run(self, number: int) -> _BoundBody:
        """Run an iteration; what it carries is ready for the next one."""
        turn, other = self.turns[number % 2], self.turns[1 - number % 2]
        turn.run()
        for k, i in enumerate(self._inputs):
            _move(turn.outputs[self.first_output + k], other.inputs[i], self.program.inputs[i])
        return turn

    def end(self, count: int) -> list[Buffer]:
        """Return what is carried out of so many iterations."""
        return [self.turns[count % 2].inputs[i] for i in self._inputs]


def _is_dense(spec: TensorSpec) -> bool:
    return spec.shape is not None and spec.dtype != "string"


def _allocated(spec: TensorSpec) -> Array:
    return aligned_bytes(spec.nbytes).view(np_dtype(spec.dtype)).reshape(spec.shape or ())


class _ScanStack:
    """Entries of one output that iterations give, one after another.

    Args:
        source: What one iteration gives.
        destination: A buffer of the whole; its shape may be unknown.
        spec: The output's.
        axis: Along which entries are stacked; may be negative.
        is_reversed: Whether the last one comes first.
    """

    def __init__(
        self,
        source: TensorSpec,
        destination: Buffer,
        spec: TensorSpec,
        axis: int = 0,
        *,
        is_reversed: bool = False,
    ) -> None:
        self.source, self.destination, self.spec = source, destination, spec
        self.axis, self.is_reversed = axis, is_reversed
        self.entries: list[Array] = []

    def push(self, buffer: Buffer) -> None:
        """Keep what an iteration gave."""
        self.entries.append(np.array(_value(buffer)))

    def finish(self) -> None:
        """Write the whole."""
        entries, self.entries = self.entries, []
        try:
            if entries:
                whole = np.stack(entries[:: -1 if self.is_reversed else 1], self.axis)
            else:
                shape = self.source.shape or ()
                axis = self.axis + len(shape) + 1 if self.axis < 0 else self.axis
                empty = (*shape[:axis], 0, *shape[axis:])
                whole = np.zeros(empty, np_dtype(self.source.dtype))
        except ValueError as error:
            raise ExecutionError(
                f"iterations gave entries of {self.spec.name!r} of several shapes: {error}",
                backend=CONTROL_FLOW,
            ) from error
        fill(self.destination, whole, self.spec, CONTROL_FLOW)


def _stacks(
    spec: ControlSpec, program: PlanExecutable, border: _Border, first: int, carried: int
) -> Iterator[tuple[int, _ScanStack]]:
    """Yield the outputs that are stacked and read, each with its position in the body's outputs.

    Args:
        spec: The Loop or Scan.
        program: Of its body.
        border: Where the outputs are.
        first: Where what is carried begins among the body's outputs.
        carried: How much is carried.
    """
    for number, name in enumerate(spec.outputs[carried:]):
        if name in border.results:
            position = first + carried + number
            axis = spec.output_axes[number] if spec.output_axes else 0
            is_reversed = bool(spec.output_reversed and spec.output_reversed[number])
            yield (
                position,
                _ScanStack(
                    program.outputs[position],
                    border.results[name],
                    border.specs[name],
                    axis,
                    is_reversed=is_reversed,
                ),
            )


def _finish(
    spec: ControlSpec,
    border: _Border,
    carried: Sequence[Buffer],
    stacks: Sequence[_ScanStack],
) -> None:
    """Write the outputs of a Loop or Scan: what was carried out, and what was stacked."""
    for name, source in zip(spec.outputs, carried, strict=False):
        if name in border.results:
            _move(source, border.results[name], border.specs[name])
    for stack in stacks:
        stack.finish()


def _bind_loop(spec: ControlSpec, bodies: Mapping[str, _Body], border: _Border) -> Step:
    body = bodies["body"]
    program = body.program
    most, condition, *initial = (border.given.get(name) for name in spec.inputs)
    carried = len(initial)
    numbers = [_allocated(one) for one in program.inputs[:_LOOP_INPUTS]]
    number, goes_on = numbers
    outer = _outer(program, border, _LOOP_INPUTS + carried)
    iterations = _Iterations(body, outer, (_LOOP_INPUTS, 1), carried, dict(enumerate(numbers)))
    stacks = dict(_stacks(spec, program, border, 1, carried))

    def run() -> None:
        last = None if most is None else int(np.asarray(_value(most)).item())
        goes_on[...] = True if condition is None else _truth(condition)
        iterations.begin(initial)
        done = 0
        while goes_on and (last is None or done < last):
            number[...] = done
            turn = iterations.run(done)
            for position, stack in stacks.items():
                stack.push(turn.outputs[position])
            goes_on[...] = _truth(turn.outputs[0])
            done += 1
        _finish(spec, border, iterations.end(done), tuple(stacks.values()))

    return run


def _bind_scan(spec: ControlSpec, bodies: Mapping[str, _Body], border: _Border) -> Step:
    body = bodies["body"]
    program = body.program
    carried = len(spec.inputs) - spec.scanned
    given = [border.given[name] for name in spec.inputs]
    slices = {carried + i: _allocated(program.inputs[carried + i]) for i in range(spec.scanned)}
    outer = _outer(program, border, len(spec.inputs))
    iterations = _Iterations(body, outer, (0, 0), carried, slices)
    stacks = dict(_stacks(spec, program, border, 0, carried))

    def run() -> None:
        sequences = [
            np.moveaxis(_value(one), axis, 0)[:: -1 if is_reversed else 1]
            for one, axis, is_reversed in zip(
                given[carried:], spec.input_axes, spec.input_reversed, strict=True
            )
        ]
        lengths = {len(one) for one in sequences}
        if len(lengths) != 1:
            raise ExecutionError(
                f"a Scan would go through sequences of the lengths {sorted(lengths)}",
                backend=CONTROL_FLOW,
            )
        (length,) = lengths
        iterations.begin(given[:carried])
        for done in range(length):
            for sequence, (position, place) in zip(sequences, slices.items(), strict=True):
                fill(place, sequence[done], program.inputs[position], CONTROL_FLOW)
            turn = iterations.run(done)
            for position, stack in stacks.items():
                stack.push(turn.outputs[position])
        _finish(spec, border, iterations.end(length), tuple(stacks.values()))

    return run


_BINDERS = {"If": _bind_if, "Loop": _bind_loop, "Scan": _bind_scan}
