# SPDX-License-Identifier: Apache-2.0
"""A whole plan, loaded: what users run, bind, save and explain."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.device import Device, Executable, Resizable, Step
from intarsia.backends.values import IN_PLACE, Artifact, TensorSpec
from intarsia.decoding import decode_json
from intarsia.errors import InputError, PackageError
from intarsia.graph.arena import aligned_array
from intarsia.graph.model_info import ModelInfo
from intarsia.plan.plan import HOST, Plan, PlanTensor, RegionStep, TensorStorage, ends_of
from intarsia.runtime.captures import CaptureRecord, StepSpan, describe_spans
from intarsia.runtime.context import Context, memory_for
from intarsia.runtime.device_array import DeviceArray, check_device_array
from intarsia.runtime.feeds import check_array, check_feeds
from intarsia.runtime.forks import ForkGuard
from intarsia.runtime.memories import MemoryPool, RunMemory
from intarsia.runtime.moving import PlainRun
from intarsia.runtime.overlaps import find_overlaps
from intarsia.runtime.queued import copy_routes
from intarsia.runtime.stages import PlanStage, StagedContext, split_stages

if TYPE_CHECKING:
    from pathlib import Path

    from intarsia.plan.explanation import Explanation
    from intarsia.plan.placement import Placement
    from intarsia.plan.profile import Profile
    from intarsia.runtime.free import StoredModel
    from intarsia.runtime.limited import Cancellation, IsOver

logger = logging.getLogger(__name__)


class _Bound(NamedTuple):
    """What runs on some memory, for whoever has taken that.

    Attributes:
        context: Bound to it.
        plain: Its quick way; None if there is none.
        block: What the memory was then.
    """

    context: Context
    plain: PlainRun | None
    block: Array


class PlanExecutable:
    """A whole plan, loaded: what `intarsia.compile` and `intarsia.load` return.

    It may be run from many threads at once: what belongs to one call is in a context, the weights
    are shared. Of more calls than there are CPUs, and one, the others wait for their turn.

    Args:
        plan: What to run.
        artifacts: One per region of the plan.
        executables: The same, loaded.
        devices: The opened memory domains of the plan.
        constants: By name, the constants that are outputs of the model.
        memories: What its runs need, if it shares that with other programs; None for its own.
    """

    def __init__(
        self,
        plan: Plan,
        artifacts: Sequence[Artifact],
        executables: Sequence[Executable],
        devices: Sequence[Device],
        constants: Mapping[str, Array],
        *,
        memories: MemoryPool | None = None,
    ) -> None:
        self.plan = plan
        self.artifacts = tuple(artifacts)
        self.constants = dict(constants)
        self._executables = tuple(executables)
        self._devices = tuple(devices)
        self._inputs = tuple(plan.tensors[i].spec for i in plan.inputs)
        self._outputs = tuple(plan.tensors[i].spec for i in plan.outputs)
        # Whoever has taken memory may use what is bound to it.
        self._guard = ForkGuard(self.artifacts, self._executables)
        self._memories = MemoryPool() if memories is None else memories
        self._idle = self._memories.idle
        self._bound: dict[RunMemory, _Bound] = {}
        self._records: dict[StepSpan, CaptureRecord] = {}
        self._claims = plan.model.claims if plan.model is not None else {}
        self._is_unseen = False
        self.source: Callable[[PlanExecutable], StoredModel | None] | None = None
        """Returns what packages have of the model beside it; None: they have nothing."""

    @property
    def executables(self) -> tuple[Executable, ...]:
        """What was loaded of each region, in their order."""
        return self._executables

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, in its order."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs, in its order."""
        return self._outputs

    @property
    def devices(self) -> tuple[Device, ...]:
        """The opened memory domains, in the plan's order."""
        return self._devices

    @property
    def bodies(self) -> tuple[PlanExecutable, ...]:
        """The programs of `plan.bodies`."""
        bodies = self.plan.bodies
        return tuple(bodies_of(self._executables[one.region])[one.name] for one in bodies)

    @property
    def placement(self) -> Placement:
        """What runs where; printing it gives a table."""
        return self.plan.placement

    def program_for(self, feeds: Mapping[str, Any]) -> PlanExecutable:
        """Return the program that runs these feeds: this one (`FreeExecutable` has several)."""
        del feeds
        return self

    def at(self, sizes: Mapping[str, int]) -> PlanExecutable:
        """Return the program for sizes, of one whose plan has free dimensions.

        Code and weights are the same; it takes no longer than to compute where tensors lie.

        Args:
            sizes: By free dimension.
        """
        executables = [
            one if sized is None else sized.at(sizes)
            for one, sized in zip(self._executables, self._resizable, strict=True)
        ]
        plan = self._sharing_plan.at(sizes)
        sized = PlanExecutable(
            plan,
            self.artifacts,
            executables,
            self._devices,
            self.constants,
            memories=self._memories,
        )
        # What is the same at all sizes is found once.
        sized.in_place, sized._is_on_devices = self.in_place, self._is_on_devices
        sized._is_unseen = not sized._is_on_devices and not plan.late
        return sized

    @cached_property
    def _sharing_plan(self) -> Plan:
        return self.plan.with_shared()

    @cached_property
    def _resizable(self) -> tuple[Resizable | None, ...]:
        """The regions whose code is given sizes before anything runs, as such; None for others."""
        late = {
            step.region for step in self.plan.steps if isinstance(step, RegionStep) and step.sizes
        }
        regions = enumerate(self._executables)
        return tuple(
            one if isinstance(one, Resizable) and number not in late else None
            for number, one in regions
        )

    @property
    def latest(self) -> PlanExecutable:
        """This one; a `FreeExecutable` has several, and returns the one that was used last."""
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """Texts of the targets, in the user's order."""
        return self.plan.placement.targets

    def limit_runs(self, most: int) -> None:
        """Let no more than so many runs go on at once; more wait. Before the first run."""
        self._memories.limit(most)

    @property
    def info(self) -> ModelInfo:
        """What the model says of itself; a package of an older version does not know it."""
        return self.plan.model or ModelInfo()

    def explain(self, profile: Profile | None = None) -> Explanation:
        """Return what runs where and why, the contents of each device, and every copy.

        Args:
            profile: What `profile` returned, for the times of regions and copies.
        """
        from intarsia.plan.explanation import explain_plan

        scratch = [executable.scratch_bytes for executable in self._executables]
        inner = profile.bodies if profile is not None else (None,) * len(self.bodies)
        bodies = [
            body.explain(times.profile if times is not None else None)
            for body, times in zip(self.bodies, inner, strict=True)
        ]
        explanation = explain_plan(self.plan, self.artifacts, scratch, profile, bodies)
        routes = copy_routes(self.plan, self._devices)
        copies = zip(explanation.copies, routes, strict=True)
        return replace(
            explanation,
            copies=tuple(replace(copy, route=route) for copy, route in copies),
            captures=describe_spans(self.plan, self._devices, self._records),
        )

    def profile(self, feeds: Mapping[str, Any], runs: int = 5) -> Profile:
        """Time each region and each copy by itself, in the bodies of If, Loop and Scan too.

        Args:
            feeds: An array per input, by name.
            runs: How many runs are timed, after one that is not.

        Raises:
            InputError: A name, dtype or shape is wrong, or `runs` is below 1.
            ExecutionError: A backend failed.
        """
        from intarsia.plan.profile import make_profile  # most runs time nothing
        from intarsia.runtime.recorder import RunRecorder

        if runs < 1:
            raise InputError(f"{runs} runs cannot be timed", hint="time at least 1")
        context = self.context()
        context.write_inputs(check_feeds(self.inputs, feeds))
        context.run()  # sizes that the data decides are known then
        recorder = RunRecorder(context)
        return make_profile(self.plan, [recorder.run() for _ in range(runs)])

    def save(self, path: str | Path) -> None:
        """Write a self-contained package.

        If it has code, as of `llvm`, the model is in it too: who does not trust the code compiles
        it again.

        Args:
            path: File to write; by custom it ends in `.intarsia`.

        Raises:
            PackageError: The file cannot be written.
        """
        from intarsia.runtime.package import save_package

        save_package(self, path, None if self.source is None else self.source(self))

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> dict[str, Any]:
        """Run the model once.

        Args:
            feeds: An array per input, by name; anything with the buffer or DLPack protocol will do.
                For an input that is on a device a `DeviceArray` is read in place; all else is
                copied there.
            timeout: Seconds after which the caller goes on, with an error; None means no limit.
            cancellation: By which another thread ends the run; None means that none does.

        Returns:
            A fresh array per output, by name: a `DeviceArray` where it is on a device.

        Raises:
            InputError: A name, dtype or shape is wrong.
            RunTimeoutError: It took longer.
            RunCancelledError: It was cancelled.
            ExecutionError: A backend failed.
        """
        if timeout is not None or cancellation is not None:
            from intarsia.runtime.limited import run_limited  # few runs are limited

            return run_limited(partial(self.run_until, feeds), timeout, cancellation)
        if self._idle and type(feeds) is dict:
            try:
                memory = self._idle.pop()
            except IndexError:  # another thread was quicker
                return self._run(feeds, {})
            outputs = None
            try:
                bound = self._bound.get(memory)
                if bound is not None and bound.block is memory.block and bound.plain is not None:
                    outputs = bound.plain(feeds)
            except BaseException:
                self._bound.pop(memory, None)  # its buffers may be half written
                raise
            finally:
                self._memories.give(memory)
            if outputs is not None:
                return outputs
        return self._run(feeds, {})

    def run_until(self, feeds: Mapping[str, Any], is_over: IsOver) -> dict[str, Any]:
        """Run the model once, as `run`, as long as somebody waits for it.

        Args:
            feeds: As of `run`.
            is_over: Asked before each step of the plan whether nobody does any more.

        Raises:
            RunCancelledError: Nobody did any more.
            IntarsiaError: As of `run`.
        """
        return self._run(feeds, {}, is_over)

    def _run(
        self,
        feeds: Mapping[str, Any],
        given: Mapping[str, Array],
        is_over: IsOver | None = None,
    ) -> dict[str, Any]:
        """Run the model once; outputs that are given are filled, the others are fresh."""
        if self._is_on_devices:
            return self._run_on_devices(feeds, given, is_over)
        arrays = check_feeds(self.inputs, feeds)
        memory = self._memories.take()
        try:
            bound = self._bound.get(memory)
            if self._is_unseen:
                self._is_unseen = False
                return self._run_in_place(arrays, given, memory, is_over)
            if bound is None or bound.block is not memory.block:
                context = self._context({}, memory)
                bound = _Bound(context, context.plain_run(), memory.block)
                self._bound[memory] = bound
            bound.context.write_inputs(arrays)
            bound.context.run(is_over)
            outputs = bound.context.read_outputs(given)
        except BaseException:
            self._bound.pop(memory, None)
            raise
        finally:
            self._memories.give(memory)
        if self._claims:
            self._compare(outputs)
        return outputs

    def _run_in_place(
        self,
        arrays: Sequence[Any],
        given: Mapping[str, Array],
        memory: RunMemory,
        is_over: IsOver | None,
    ) -> dict[str, Any]:
        """Run once on the caller's arrays, and on fresh ones for outputs.

        Sizes that come once, as those of a token with a past, are bound once: then that may as well
        be to what would have to be copied from and to memory of our own.
        """
        tensors = self.plan.tensors
        bound: dict[int, Array] = {
            position: array
            for position, array in zip(self.plan.inputs, arrays, strict=True)
            if is_dense(tensors[position], TensorStorage.INPUT) and is_plain(array)
        }
        fresh = {}
        for position in self.plan.outputs:
            tensor = tensors[position]
            if tensor.name not in given and is_dense(tensor, TensorStorage.OUTPUT):
                with memory_for(f"{tensor.name!r}, of {tensor.spec.nbytes} bytes,", "the host"):
                    array = aligned_array(tensor.shape or (), np_dtype(tensor.dtype))
                bound[position] = fresh[tensor.name] = array
        context = self._context(bound, memory)
        context.write_inputs(arrays)
        context.run(is_over)
        return context.read_outputs({**given, **fresh})

    def _run_on_devices(
        self, feeds: Mapping[str, Any], given: Mapping[str, Any], is_over: IsOver | None
    ) -> dict[str, Any]:
        """Run once in a context whose outputs the caller keeps; `bind` makes one for many runs."""
        held = {name: one for name, one in feeds.items() if isinstance(one, DeviceArray)}
        taken = {name: one for name, one in given.items() if isinstance(one, DeviceArray)}
        context = self.context(held, taken)
        context.write_inputs(check_feeds(self.inputs, feeds))
        context.run(is_over)
        arrays = context.device_arrays()
        names = {spec.name for spec in self.outputs} - arrays.keys()
        outputs = {**context.read_outputs(given, names), **arrays}
        return {spec.name: outputs[spec.name] for spec in self.outputs}

    @cached_property
    def _is_on_devices(self) -> bool:
        """Whether an input or output is in the memory of a device."""
        return any(self.plan.tensors[i].device for i in (*self.plan.inputs, *self.plan.outputs))

    def device_array(self, name: str) -> DeviceArray:
        """Return memory for an input or output on its device, whose contents are not defined.

        Args:
            name: Of an input or output that was annotated with a device.

        Raises:
            InputError: It is in the host's memory, or there is none of that name.
            ExecutionError: The device has not so much memory.
        """
        plan = self.plan
        for position in (*plan.inputs, *plan.outputs):
            tensor = plan.tensors[position]
            if tensor.name == name and tensor.device != HOST:
                text = plan.devices[tensor.device]
                return DeviceArray(self._devices[tensor.device], text, tensor.spec)
        raise InputError(
            f"the program has no input or output {name!r} on a device",
            hint=f"put it there before compiling: on_device(model, {{{name!r}: 'opencl:0'}})",
        )

    def sample_feeds(
        self, seed: int = 0, sizes: Mapping[str, int] | None = None
    ) -> dict[str, Array]:
        """Return made-up values for every input that the model can do with.

        Args:
            seed: For what is drawn.
            sizes: Of free dimensions, of which this has none.

        Raises:
            InputError: An input has no fixed shape, there are sizes, or the seed is negative.
        """
        if sizes:
            raise InputError(
                f"there is no free dimension {next(iter(sizes))!r}", hint="give no sizes"
            )
        from intarsia.runtime.feeds import sample_feeds

        model = self.plan.model
        return sample_feeds(self.inputs, seed, model.legal if model is not None else None)

    def _compare(self, outputs: Mapping[str, Any]) -> None:
        """Say once which outputs have another shape than the model declares."""
        claims, self._claims = self._claims, {}
        for name, shape in claims.items():
            actual = getattr(outputs[name], "shape", shape)
            if actual != tuple(shape):
                logger.warning(
                    "output %r is of shape %s, where the model declares %s",
                    name,
                    list(actual),
                    list(shape),
                )

    def __call__(self, *arrays: Any, out: Array | Sequence[Array] | None = None) -> Any:
        """Run the model on arrays in the order of its inputs.

        Args:
            arrays: One for each input.
            out: Arrays that are filled and returned: one, or one for each output; anything
                writeable and C-contiguous with the DLPack or buffer protocol.

        Returns:
            The output, or a tuple of them if the model has several.

        Raises:
            InputError: There are too few or too many arrays, or one does not fit.
        """
        if len(arrays) != len(self.inputs):
            names = ", ".join(str(spec) for spec in self.inputs)
            raise InputError(
                f"the model takes {len(self.inputs)} inputs, {len(arrays)} were given",
                hint=f"it takes {names}",
            )
        feeds = {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}
        if out is None:
            outputs = self.run(feeds)
            results = tuple(outputs[spec.name] for spec in self.outputs)
        else:
            results = tuple(out) if isinstance(out, list | tuple) else (out,)
            self._run(feeds, self._check_out(results))
        return results[0] if len(results) == 1 else results

    def _check_out(self, arrays: Sequence[Any]) -> dict[str, Array]:
        """Return arrays to fill, by name.

        Raises:
            InputError: There are too few or too many arrays, or one does not fit.
        """
        if len(arrays) != len(self.outputs):
            raise InputError(
                f"the model has {len(self.outputs)} outputs, out has {len(arrays)} arrays",
                hint=f"it has {', '.join(map(str, self.outputs))}",
            )
        buffers = {}
        for spec, array in zip(self.outputs, arrays, strict=True):
            if spec.shape is None:
                raise InputError(
                    f"{spec.name!r} cannot be written to an array: its shape is not known",
                    hint="leave out the argument `out`",
                )
            is_there = isinstance(array, DeviceArray)  # the context checks it
            buffers[spec.name] = array if is_there else _check_writeable(spec, array)
        return buffers

    def bind(
        self,
        inputs: Mapping[str, Array | DeviceArray],
        outputs: Mapping[str, Array | DeviceArray],
    ) -> Step:
        """Return a function of no arguments that runs the model on the caller's arrays in place.

        It is the tightest loop there is: nothing is checked or copied when it is called. It is not
        to be called from two threads at once.

        Args:
            inputs: C-contiguous arrays that each call reads, by name; all of them. Anything with
                the DLPack or buffer protocol; of what is on a device, a `DeviceArray`.
            outputs: C-contiguous arrays that each call writes, by name; what is left out is lost.
                Likewise.

        Raises:
            InputError: An array is missing, unknown, not contiguous, or does not fit.
        """
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        if missing:
            raise InputError(
                f"input {missing[0]!r} is missing", hint="bind an array for every input"
            )
        return self.context(inputs, outputs).step()

    def context(
        self,
        inputs: Mapping[str, Array | DeviceArray] | None = None,
        outputs: Mapping[str, Array | DeviceArray] | None = None,
        *,
        copies_overlaps: bool = False,
        memory: RunMemory | None = None,
    ) -> Context:
        """Return a context of one's own; with the caller's arrays, nothing is copied at the border.

        Args:
            inputs: C-contiguous arrays that each run reads in place, by name; for what is on a
                device, a `DeviceArray`.
            outputs: C-contiguous arrays that each run writes in place, by name; likewise.
            copies_overlaps: Whether an input in whose memory an output lies is left out, to be
                copied by `write_inputs`; else it is an error, unless code only adds to it.
            memory: What it needs lies there, for as long as the caller uses no other context on it;
                None allocates it.

        Raises:
            InputError: An array is unknown, not contiguous, or of another dtype or shape.
        """
        by_position: dict[int, Array | DeviceArray] = {}
        for positions, arrays, storage in (
            (self.plan.inputs, inputs, TensorStorage.INPUT),
            (self.plan.outputs, outputs, TensorStorage.OUTPUT),
        ):
            specs = {self.plan.tensors[i].name: i for i in positions}
            is_input = storage is TensorStorage.INPUT
            for name, array in (arrays or {}).items():
                if name not in specs:
                    raise InputError(
                        f"the model has no tensor {name!r} to bind",
                        hint=f"it has {', '.join(specs)}",
                    )
                tensor = self.plan.tensors[specs[name]]
                is_buffer = tensor.shape is not None and tensor.dtype != "string"
                if tensor.storage is not storage or not is_buffer:
                    raise InputError(
                        f"{name!r} cannot be bound: no region writes it into a dense buffer"
                        if storage is TensorStorage.OUTPUT
                        else f"{name!r} cannot be bound: it is not a dense tensor of a known shape",
                        hint="leave it out, and use write_inputs and read_outputs",
                    )
                if isinstance(array, DeviceArray) or tensor.device != HOST:
                    by_position[specs[name]] = self._check_device(tensor, array)
                    continue
                if _fits(tensor, array) and (is_input or array.flags.writeable):
                    by_position[specs[name]] = array  # the usual case: a token binds hundreds
                    continue
                check = _check_in_place if is_input else _check_writeable
                by_position[specs[name]] = check(tensor.spec, array)
        for source in _find_written(self.plan.tensors, by_position, self.in_place, copies_overlaps):
            by_position.pop(source, None)
        return self._context(by_position, memory)

    def _context(
        self, given: Mapping[int, Array | DeviceArray], memory: RunMemory | None = None
    ) -> Context:
        """Return a context, on buffers of the caller by position."""
        self._guard.check()
        parts = (self._executables, self._devices, self.constants, given)
        if self._stages:  # each has memory of its own, at sizes that are not known yet
            return StagedContext(self.plan, self._stages, *parts, guard=self._guard)
        return Context(self.plan, *parts, memory=memory, guard=self._guard, records=self._records)

    @cached_property
    def in_place(self) -> Mapping[int, int]:
        """From an input to the output that may be bound to its array: code then adds to that.

        Both are positions in the plan. A region says it of what it reads (`IN_PLACE`), and nothing
        else of the plan may read it.
        """
        plan, pairs = self.plan, dict[int, int]()
        reads = Counter(i for step in plan.steps for i in ends_of(step)[0])
        for step in plan.steps:
            if not isinstance(step, RegionStep):
                continue
            text = self.artifacts[step.region].metadata.get(IN_PLACE, "[]")
            for source, result in decode_json(text, list[tuple[int, int]]):
                first, last = step.inputs[source], step.outputs[result]
                if reads[first] == 1 and first in plan.inputs and last in plan.outputs:
                    pairs[first] = last
        return pairs

    @cached_property
    def _stages(self) -> tuple[PlanStage, ...]:
        """The parts of the plan between which sizes are found; none if that is never."""
        return split_stages(self.plan) if self.plan.late else ()

    def _check_device(self, tensor: PlanTensor, array: Array | DeviceArray) -> DeviceArray:
        text = self.plan.devices[tensor.device]
        if not isinstance(array, DeviceArray):
            raise InputError(
                f"{tensor.name!r} is on {text}: a host's array cannot be bound to it",
                hint=f"bind executable.device_array({tensor.name!r}), or leave it out",
            )
        check_device_array(tensor.spec, array, self._devices[tensor.device], text)
        return array

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: code and threads are of this process."""
        raise not_pickled()

    def __repr__(self) -> str:
        coverage = ", ".join(f"{n} nodes on {t}" for t, n in self.placement.coverage().items())
        return f"<intarsia executable: {len(self.plan.steps)} steps, {coverage}>"


def not_pickled() -> PackageError:
    """Return the error of who wants to send a program to another process as it is."""
    return PackageError(
        "a program cannot be pickled: its code and threads are of this process",
        hint="save it, and load it there: weights are shared between processes that load one file",
    )


def bodies_of(executable: object) -> Mapping[str, PlanExecutable]:
    """Return the programs of the bodies of a region that the plan runs itself; else none."""
    bodies: Mapping[str, PlanExecutable] = getattr(executable, "bodies", {})
    return bodies


def is_plain(array: Any) -> bool:
    """Tell whether code can read an array where it lies."""
    return isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.aligned


def is_dense(tensor: PlanTensor, storage: TensorStorage) -> bool:
    """Tell whether a tensor is a dense array of the host in storage of some kind."""
    is_buffer = tensor.shape is not None and tensor.dtype != "string"
    return tensor.storage is storage and is_buffer and tensor.device == HOST


def _fits(tensor: PlanTensor, array: Any) -> bool:
    is_shaped = is_plain(array) and array.shape == tensor.shape
    return is_shaped and bool(array.dtype == np_dtype(tensor.dtype))


def _check_in_place(spec: TensorSpec, array: Array) -> Array:
    checked: Array = check_array(spec, array, in_place=True)
    return checked


def _check_writeable(spec: TensorSpec, array: Array) -> Array:
    checked = _check_in_place(spec, array)
    if not checked.flags.writeable:
        raise InputError(f"{spec.name!r} cannot be written: the array is read-only")
    return checked


def _find_written(
    tensors: Sequence[PlanTensor],
    bound: Mapping[int, Array | DeviceArray],
    in_place: Mapping[int, int],
    copies_overlaps: bool,
) -> list[int]:
    """Return the inputs that a region would read where it writes an output.

    Raises:
        InputError: They are not to be copied, or two outputs are in the same memory.
    """
    written = []
    for one, other, is_same in find_overlaps(bound):
        ends = sorted((one, other), key=lambda i: tensors[i].storage is not TensorStorage.OUTPUT)
        result, source = ends
        if tensors[result].storage is not TensorStorage.OUTPUT:
            continue
        if is_same and in_place.get(source) == result:
            continue
        if copies_overlaps and tensors[source].storage is not TensorStorage.OUTPUT:
            written.append(source)
            continue
        raise InputError(
            f"{tensors[result].name!r} and {tensors[source].name!r} cannot be bound to the same "
            "memory",
            hint="give every output an array of its own",
        )
    return written
