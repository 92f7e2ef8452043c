# SPDX-License-Identifier: Apache-2.0
"""Puts a program together: where values lie, kernels by their description, calls in order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np

from intarsia.arrays import np_dtype
from intarsia.codegen.body import Apply, Body, identity
from intarsia.codegen.expand import expand
from intarsia.codegen.guard import guarded
from intarsia.codegen.halves import HALVES, SINGLE, reads_back, rounded, with_halves
from intarsia.codegen.ir import INT64, Function, row_major
from intarsia.codegen.kernels.bounds import IndexBounds
from intarsia.codegen.kernels.domain import Ragged
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.entry_tables import PadTables, SliceTables
from intarsia.codegen.kernels.families import TunableSpec, family_of
from intarsia.codegen.kernels.fill import Fill
from intarsia.codegen.kernels.sizes import Sizes
from intarsia.codegen.kernels.steering import AxisSet, RangeLength, SameNumbers
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.layouts import LayoutPlan, widest
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.program import (
    Argument,
    Call,
    FoundOutput,
    IndexCheck,
    MemoryBlock,
    Program,
    place_scratch,
)
from intarsia.codegen.lower.schedules import HEURISTICS, Chooser, none
from intarsia.codegen.lower.views import CHANNELS, Pads, View, dense_view, domain_of, outer, padded
from intarsia.codegen.printer import fingerprint
from intarsia.codegen.scalar_ops.narrow import storage_of
from intarsia.codegen.storage import StorageKind
from intarsia.codegen.unit import Accuracy, CpuModel, GpuModel, WinogradMode
from intarsia.codegen.verifier import verify
from intarsia.extents import Expression, Size, UndecidedError, is_free, typical
from intarsia.graph.extract import constant_array
from intarsia.graph.graph import Graph, Node, Value
from intarsia.graph.ops import node_flop
from intarsia.graph.region import Region

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = TypeVar("Kernel", bound=TunableSpec)


def ignore(_kernel: Function) -> None:
    """Do nothing when a kernel is made."""


@dataclass(frozen=True, slots=True)
class _Form:
    """One way in which a value lies in memory: itself, and the zeros around it."""

    view: View
    pads: Pads | None = None

    def offers(self, block: int, pads: Pads | None) -> View | None:
        """Return it with a border of zeros, if it has one that is wide enough."""
        if self.view.block != block:
            return None
        if pads is None or not any(map(any, pads)):
            return self.view
        if self.pads is None:
            return None
        pairs = zip(self.pads, pads, strict=True)
        if all(have[0] >= want[0] and have[1] >= want[1] for have, want in pairs):
            return outer(self.view, pads)
        return None


@dataclass(frozen=True, slots=True)
class Guard:
    """When a call is to run: if a number that is known then is one.

    Attributes:
        choice: Where that number is; int64[1].
        number: What it has to be.
    """

    choice: View
    number: int


@dataclass(frozen=True, slots=True)
class _FreeArguments:
    """What a call gives a kernel of free sizes: the kernel may serve others of its form."""

    sizes: tuple[Expression, ...]
    turns: Expression | None


@dataclass(frozen=True, slots=True)
class TiledReads:
    """How convolutions that are products of tiles read a value.

    Attributes:
        pads: A border that is wide enough for all of them.
        is_all: Whether nothing else reads it.
    """

    pads: Pads
    is_all: bool


@dataclass(slots=True)
class Assembler:
    """A program that is being made.

    Attributes:
        graph: Where the region is from.
        region: What is lowered.
        machine: What kernels are shaped for.
        plan: Which values are blocked, padded, or parts of others.
        winograd: Which convolutions may be computed by Winograd's transforms.
        announce: Told each kernel as soon as it is made.
        half_weights: Whether large weights of products with few rows may be kept as float16.
        accuracy: What products with weights of few bits do with activations.
        is_bf16: Whether products and convolutions of float32 may take bfloat16.
        chooser: Says how kernels run that have a choice.
        threads: Of a run: kernels of which few turns would do on one have turns for all.
        outputs: Channels of a block of the region's outputs that are blocked, by value id.
        nominal: The graph with sizes in the place of free extents, for counts of operations.
        settled: Which order sums have in the program for all sizes, by what they are of; nothing
            if this is none for some sizes.
        sums: The same of this program, if its sizes are free.
        halves: Of values that are float32 in the graph: the half that they are in the model.
        is_sketch: Whether nobody runs it: panels of weights are not made.
        most_buffers: Arrays that a kernel can be given; None for any number.
        tiled: Of values that products of tiles read: how.
    """

    graph: Graph
    region: Region
    machine: CpuModel | GpuModel
    plan: LayoutPlan
    winograd: WinogradMode = WinogradMode.OFF
    announce: Callable[[Function], None] = ignore
    half_weights: bool = False
    accuracy: Accuracy = Accuracy.MODEL
    is_bf16: bool = False
    chooser: Chooser = HEURISTICS
    threads: int = 1
    outputs: Mapping[int, int] = field(default_factory=dict)
    nominal: Graph | None = None
    settled: Mapping[str, str] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    halves: Mapping[int, str] = field(default_factory=dict)
    is_sketch: bool = False
    most_buffers: int | None = None
    tiled: Mapping[int, TiledReads] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    _storages: list[MemoryBlock] = field(default_factory=list)
    _calls: list[Call] = field(default_factory=list)
    _checks: list[IndexCheck] = field(default_factory=list)
    _found: list[FoundOutput] = field(default_factory=list)
    _kernels: list[Function] = field(default_factory=list)
    _functions: dict[tuple[Hashable, int | None], Function] = field(default_factory=dict)
    _by_spec: dict[tuple[Hashable, int | None, tuple[str, ...]], tuple[int, _FreeArguments]] = (
        field(default_factory=dict)
    )
    _by_print: dict[str, int] = field(default_factory=dict)
    _constant_storages: dict[str, int] = field(default_factory=dict)
    _packed: dict[str, View] = field(default_factory=dict)
    _derived: dict[Hashable, tuple[View, ...]] = field(default_factory=dict)
    _forms: dict[int, list[_Form]] = field(default_factory=dict)
    _wide: dict[tuple[Hashable, int], list[_Form]] = field(default_factory=dict)
    _joined: dict[int, int] = field(default_factory=dict)
    _tuned: set[Hashable] = field(default_factory=set)

    def __post_init__(self) -> None:
        for index, value_id in enumerate(self.region.inputs):
            value = self.graph.values[value_id]
            block = self.plan.blocks.get(value_id, 0)
            view = self._border_view(StorageKind.INPUT, index, value, block)
            self._forms[value_id] = [_Form(view)]

    @property
    def unit(self) -> CpuModel:
        """What the code of one thread, or of one work-item of a GPU, is shaped for."""
        return self.machine.item if isinstance(self.machine, GpuModel) else self.machine

    @property
    def lanes(self) -> int:
        """Channels of a block."""
        return self.unit.lanes()

    # Values

    def read(
        self, value_id: int, block: int = 0, pads: Pads | None = None, *, is_wide: bool = False
    ) -> View:
        """Return a value as a kernel wants it, converted if it does not lie so yet.

        Args:
            value_id: Of the value.
            block: Channels of a block, or 0 for a plain tensor of any strides.
            pads: A border of zeros that the view includes.
            is_wide: Whether memory is to hold no halves: they are read many times.
        """
        if self.graph.values[value_id].constant is not None and value_id not in self._forms:
            self._forms[value_id] = [_Form(self._initializer(value_id))]
        source_id = self._joined.pop(value_id, None)
        if source_id is not None:
            self._forms[value_id] = [self._join_channels(source_id, value_id, block, pads)]
        if value_id not in self._forms:
            self.write_entries(value_id)
        forms = self._forms[value_id]
        wide = [form for form in forms if not (is_wide and form.view.half)]
        for form in wide:
            offered = form.offers(block, pads)
            if offered is not None:
                return offered
        same = next((form.view for form in forms if form.view.block == block), None)
        if pads is None or not any(map(any, pads)):
            pads = None
            for form in wide:
                alias = _other_form(form.view, block)
                if alias is not None:
                    forms.append(_Form(alias))
                    return alias
        # A copy without a change of layout is the cheaper one.
        source = same or forms[0].view
        name = self.graph.values[value_id].name
        border = pads
        if pads is not None:  # one copy is for all that read it so
            border = widest(self.plan.pads.get(value_id), pads)
        if border is None and self._is_output(value_id, block) and not is_wide:
            view = self._output_view(value_id)
        else:
            view = self._allocate(source.dtype, source.shape, block, border)
        self.copy(source, view, (), f"{_describe(source)} to {_describe(view)} {name}")
        forms.append(_Form(view, border))
        return view if pads is None else outer(view, pads)

    def read_less(
        self, value_id: int, zero: int | None, dtype: str, block: int, pads: Pads
    ) -> View:
        """Return codes without their zero point as a wider dtype; one copy is for all readers.

        Args:
            value_id: Of the codes.
            zero: Of their zero point, one number; None for none.
            dtype: That holds the differences.
            block: Channels of a block, or 0 for a plain tensor.
            pads: A border of zeros that the view includes.
        """
        return self.read_as(
            (value_id, zero, dtype),
            block,
            pads,
            lambda border: self._widen(value_id, zero, dtype, block, border),
        )

    def read_inside(self, value_id: int, block: int, pads: Pads, outside: int) -> View:
        """Return codes with a border that is one of them; one copy is for all readers.

        Args:
            value_id: Of the codes.
            block: Channels of a block, or 0 for a plain tensor.
            pads: The border.
            outside: What it is.
        """

        def make(border: Pads | None) -> View:
            known = [form.view for form in self._forms.get(value_id, ())]
            has_blocks = block and any(view.block == block for view in known)
            source = self.read(value_id, block if has_blocks else 0)
            view = self.scratch(source.dtype, source.shape, block, border, outside=outside)
            self.copy(source, view, (), f"{self.graph.values[value_id].name} inside {outside}")
            return view

        return self.read_as((value_id, "inside", outside), block, pads, make)

    def read_as(
        self, key: Hashable, block: int, pads: Pads, make: Callable[[Pads | None], View]
    ) -> View:
        """Return another form of a value, which one kernel makes for all that read it.

        Args:
            key: Says what it is.
            block: Channels of a block of the form, or 0 for a plain tensor.
            pads: A border of zeros that the view includes.
            make: Makes it, with a border around it; None for none.
        """
        forms = self._wide.setdefault((key, block), [])
        for form in forms:
            offered = form.offers(block, pads)
            if offered is not None:
                return offered
        border = pads if any(map(any, pads)) else None
        view = make(border)
        forms.append(_Form(view, border))
        return view if border is None else outer(view, pads)

    def _widen(
        self, value_id: int, zero: int | None, dtype: str, block: int, border: Pads | None
    ) -> View:
        """Append a copy of codes without their zero point as a wider dtype."""
        known = [form.view for form in self._forms.get(value_id, ())]
        has_blocks = block and any(view.block == block for view in known)
        source = self.read(value_id, block if has_blocks else 0)
        view = self._allocate(dtype, source.shape, block, border)
        steps, operands = [convert_step(0, source.dtype, dtype)], []
        if zero is not None:
            point = self.graph.values[zero]
            operands.append(self.read(zero).reshaped(()))
            steps = [replace(steps[0], arguments=(0,)), convert_step(1, point.dtype, dtype)]
            steps.append(Apply("Sub", (2, 3), (), dtype))
        dtypes = (source.dtype, *(item.dtype for item in operands))
        body = Body(dtypes, tuple(steps), (len(dtypes) + len(steps) - 1,))
        note = f"{self.graph.values[value_id].name} as {dtype}"
        self.copy(source, view, (), note, body, operands)
        return view

    def read_dense(self, value_id: int) -> View:
        """Return a value as a plain tensor without gaps."""
        view = self.read(value_id)
        if view.is_dense:
            return view
        dense = self._allocate(view.dtype, view.shape, 0, None)
        self.copy(view, dense, (), f"pack {self.graph.values[value_id].name}")
        # In front: whoever reads it later takes it without gaps too, with no second copy.
        self._forms[value_id].insert(0, _Form(dense))
        return dense

    def write_entries(self, value_id: int) -> None:
        """Append a call that writes extents which are known when it runs.

        What exporters compute shapes with is mostly read by nothing that runs: it is written where
        somebody asks for it.
        """
        value = self.graph.values[value_id]
        assert value.entries is not None
        flat = self.target(value_id).reshaped((len(value.entries),))
        self.call(Sizes(value.entries, flat.layout), (flat,), (), f"sizes {value.name}")

    def target(self, value_id: int) -> View:
        """Return where a value is to be written; the same place at each call."""
        if value_id in self._forms:
            return self._forms[value_id][0].view
        form = self._new_form(value_id)
        self._forms[value_id] = [form]
        return form.view

    def _new_form(self, value_id: int) -> _Form:
        parent = self.plan.parents.get(value_id)
        value = self.graph.values[value_id]
        assert value.shape is not None
        if parent is not None:
            self.target(parent.value)
            whole = self._forms[parent.value][0]
            part = whole.view.part(parent.dim, parent.start, value.shape[parent.dim])
            return _Form(part, whole.pads if parent.dim == CHANNELS else None)
        block, pads = self.plan.blocks.get(value_id, 0), self.plan.pads.get(value_id)
        if pads is None and self._is_output(value_id, block):
            return _Form(self._output_view(value_id))
        dtype = storage_of(value.dtype)
        if value_id in self.plan.channels_last:
            batch, channels, *spatial = value.shape
            last = self._allocate(dtype, (batch, *spatial, channels), 0, None)
            order = (0, len(spatial) + 1, *range(1, len(spatial) + 1))
            view = _other_form(last.permuted(order), block)
            assert view is not None, "blocks would be cut"
            return _Form(view)
        return _Form(self._allocate(dtype, value.shape, block, pads), pads)

    def _is_output(self, value_id: int, block: int) -> bool:
        """Tell whether a value is an output of the region in this layout."""
        return value_id in self.region.outputs and self.outputs.get(value_id, 0) == block

    def _output_view(self, value_id: int) -> View:
        """Return the caller's memory for an output of the region."""
        index, block = self.region.outputs.index(value_id), self.outputs.get(value_id, 0)
        return self._border_view(StorageKind.OUTPUT, index, self.graph.values[value_id], block)

    def found(self, value_id: int, entries: Size, axis: int) -> tuple[View, View]:
        """Return where a value whose size the data decides is to be written, and its size.

        Args:
            value_id: Of the value.
            entries: Most that it has.
            axis: Which of its extents is found.

        Returns:
            Memory for so many entries, without gaps; and for one int64.
        """
        value = self.graph.values[value_id]
        dtype, half = storage_of(value.dtype), self.halves.get(value_id, "")
        item_bytes, word = np_dtype(half or dtype).itemsize, np.dtype(INT64.dtype).itemsize
        assert value.shape is not None
        if value_id not in self.region.outputs:  # nobody reads it
            return self.scratch(dtype, (entries,)), self.scratch(INT64.dtype, (1,))
        count = self._storage(StorageKind.COUNT, word * len(self._found), word)
        size = View(count, INT64.dtype, (1,), (1,), align=word)
        output = self.region.outputs.index(value_id)
        storage = self._storage(StorageKind.OUTPUT, output, entries * item_bytes)
        view = View(storage, dtype, (entries,), (1,), align=item_bytes, half=half)
        self._forms[value_id] = [_Form(view)]
        self._found.append(FoundOutput(output, count, value.shape, axis))
        return view, size

    def lies_at(self, value_id: int, view: View) -> bool:
        """Tell whether a value was written there."""
        return any(form.view == view for form in self._forms.get(value_id, ()))

    def alias(self, value_id: int, view: View) -> None:
        """Place a value in the memory of another one."""
        self._forms[value_id] = [_Form(view)]

    def join_channels(self, value_id: int, source_id: int) -> None:
        """Let a value's channels be two dimensions of another one, which no strides can join.

        It is copied when it is read for the first time, into the layout that is wanted then:
        shuffled channels go to blocks with zeros around them in 0.6 of the time of two copies.
        """
        self._joined[value_id] = source_id

    def _join_channels(self, source_id: int, value_id: int, block: int, pads: Pads | None) -> _Form:
        """Copy a value with two dimensions as its channels, to blocks if these are whole."""
        source, shape = self.read(source_id), self.graph.values[value_id].shape
        assert shape is not None
        outer_extent, inner_extent = source.shape[CHANNELS : CHANNELS + 2]
        if not block or block % inner_extent or shape[CHANNELS] % block:
            return _Form(self.read_dense(source_id).reshaped(shape))
        if pads is not None and not any(map(any, pads)):
            pads = None
        border = None if pads is None else widest(self.plan.pads.get(value_id), pads)
        view = self._allocate(source.dtype, shape, block, border)
        inside = block // inner_extent  # entries of the outer dimension in a block
        cut = _over_blocks(view, block).split(len(shape), inside)
        ahead = source.split(CHANNELS, outer_extent // inside)
        order = (0, 1, *range(4, len(shape) + 2), 2, 3)
        name = self.graph.values[value_id].name
        self.copy(ahead.permuted(order), cut, (), f"plain to {_describe(view)} {name}")
        return _Form(view, border)

    def scratch(
        self,
        dtype: str,
        shape: Sequence[Size],
        block: int = 0,
        pads: Pads | None = None,
        half: str = "",
        spare: int = 0,
        outside: float = 0,
    ) -> View:
        """Return memory for something in between, inside a border if it is to have one.

        The border is `outside`. Behind it there are `spare` elements that hold anything.
        """
        return self._allocate(dtype, tuple(shape), block, pads, half, spare, outside)

    def is_written_once(self, view: View) -> bool:
        """Tell whether nothing else is in a view's memory while somebody reads it."""
        return self._storages[view.storage].kind is StorageKind.SCRATCH

    def elements_from(self, view: View) -> Size:
        """Return how many elements of its storage a view has from its lowest entry on."""
        return self._storages[view.storage].nbytes // view.item_bytes - view.lowest

    def clear(self, view: View) -> None:
        """Write zeros to a tensor."""
        spec = Fill(view.domain, ((0, 0),) * len(view.domain), view.layout, unit=self.unit)
        self.call(spec, (view,), (), "border", _nbytes(view))

    def blocked(self, view: View, block: int) -> View:
        """Return a blocked copy of a plain tensor that is not a value of its own."""
        copy = self._allocate(view.dtype, view.shape, block, None)
        self.copy(view, copy, (), "blocked operand")
        return copy

    def _allocate(
        self,
        dtype: str,
        shape: tuple[Size, ...],
        block: int,
        pads: Pads | None,
        half: str = "",
        spare: int = 0,
        outside: float = 0,
    ) -> View:
        outer_shape = padded(shape, pads)
        elements = prod(domain_of(outer_shape, block)) + spare
        nbytes = elements * np_dtype(half or dtype).itemsize
        storage = self._storage(StorageKind.SCRATCH, 0, nbytes)
        view = dense_view(storage, dtype, shape, block, pads, half)
        if pads is not None:
            self._clear_border(view, pads, outside)
        return view

    def _clear_border(self, view: View, pads: Pads, outside: float = 0) -> None:
        """Write zeros around a tensor, or another number."""
        whole = outer(view, pads)
        spans = [
            (before, extent - after)
            for extent, (before, after) in zip(whole.shape[2:], pads, strict=True)
        ]
        extents = whole.domain
        inner = ((0, extents[0]), (0, extents[1]), *spans, *[(0, view.block)] * bool(view.block))
        spec = Fill(extents, inner, whole.layout, outside, self.unit)
        entries = prod(extents) - prod(end - start for start, end in inner)
        moved = entries * view.item_bytes
        self.call(spec, (whole,), (), "border", moved, is_border=True)

    def copy(
        self,
        source: View,
        destination: View,
        nodes: Sequence[str] = (),
        note: str = "",
        body: Body | None = None,
        numbers: Sequence[View] = (),
        *,
        is_kept: bool = False,
    ) -> None:
        """Append a kernel that copies, whatever the layouts are.

        Args:
            source: What is copied.
            destination: Where to.
            nodes: Names of the nodes that it is for.
            note: What it is.
            body: What is done with each entry; None for nothing.
            numbers: Its other operands, one number each.
            is_kept: Whether both may be the same memory, which then has it already.

        Raises:
            UndecidedError: Whether both have one shape depends on the sizes.
        """
        if 0 in source.shape:
            return
        if source.shape != destination.shape and is_free((*source.shape, *destination.shape)):
            raise UndecidedError(f"whether {source.shape} is {destination.shape} is not known")
        ragged = None
        blocks = {source.block, destination.block}
        if len(blocks - {0}) > 1:  # of two sizes
            old, new = (_over_groups(view, min(blocks)) for view in (source, destination))
            if body is None and old and new:
                source, destination = old, new
            else:
                plain = self.scratch(source.dtype, source.shape)
                self.copy(source, plain, nodes, note)
                source = plain
        old, new = source, destination
        if source.block != destination.block:
            block = source.block or destination.block
            # A block's kernel reads lanes forwards.
            if min(source.strides, default=0) < 0:  # backwards over channels that end in a block
                forwards = self.scratch(source.dtype, source.shape)
                self.copy(source, forwards, nodes, note)
                source = forwards
            old, new = (_over_blocks(view, block) for view in (source, destination))
            ragged = Ragged(1, len(new.shape) - 1, source.shape[CHANNELS])
        others = [number.expanded(new.domain) for number in numbers]
        layouts = tuple(view.layout for view in (old, *others))
        body = body or identity(old.dtype)
        spec = Elementwise(new.domain, layouts, (new.layout,), body, self.unit, ragged)
        moved = prod(new.domain) * new.item_bytes
        self.call(spec, (old, *others, new), nodes, note, moved, is_kept=is_kept)

    # Constants

    def constant(self, name: str, array: Array) -> View:
        """Return an array that is known now as a plain tensor; `name` says what it is.

        Halves are float32 to kernels.
        """
        array = np.require(array, requirements="C")
        half = array.dtype.name if array.dtype.name in HALVES else ""
        array = array.view("uint16" if half else storage_of(array.dtype.name))
        name = self._free_name(name, array)
        storage = self._constant_storages.get(name)
        if storage is None:
            index = len(self.constants)
            self.constants[name] = array
            storage = self._storage(StorageKind.CONSTANT, index, array.nbytes)
            self._constant_storages[name] = storage
        dtype = SINGLE if half else array.dtype.name
        return View(storage, dtype, array.shape, row_major(array.shape), half=half)

    def _free_name(self, name: str, array: Array) -> str:
        """Return a name that no other array has; a model may call its weights as we call ours."""
        number, candidate = 1, name
        while candidate in self.constants and not _is_same(self.constants[candidate], array):
            number += 1
            candidate = f"{name}#{number}"
        return candidate

    def panels(self, key: str, make: Callable[[], Array], half: str = "") -> View:
        """Return weights that only their kernel can read: `packed`, but nothing in a sketch."""
        return self.packed(key, _nothing if self.is_sketch else make, half)

    def packed(self, key: str, make: Callable[[], Array], half: str = "") -> View:
        """Return weights as a kernel wants them, made once for each key.

        Args:
            key: Says which they are, and how they lie.
            make: Returns them.
            half: What memory is to keep, if that is halves.
        """
        key = f"{key}/{half}" if half else key
        if key not in self._packed:
            array = make()
            self._packed[key] = self.constant(key, rounded(array, half) if half else array)
        return self._packed[key]

    def derived(self, key: Hashable, make: Callable[[], tuple[View, ...]]) -> tuple[View, ...]:
        """Return what several kernels read that is made of a value, made once for each key."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def _initializer(self, value_id: int) -> View:
        value = self.graph.values[value_id]
        array, dtype = constant_array(value), self.halves.get(value_id)
        return self.constant(value.name, rounded(array, dtype) if dtype else array)

    # Kernels

    def choose(self, first: Kernel, others: Callable[[], Sequence[Kernel]] | None = None) -> Kernel:
        """Return how a kernel is to run, of what gives the same result.

        Args:
            first: What heuristics take.
            others: Returns what may be taken as well; None for nothing else.
        """
        chosen = self.chooser.choose(first, others or none)
        if chosen is not first:
            self._tuned.add(chosen)
        return chosen  # type: ignore[return-value] # one of these

    def settle(self, key: str, own: Callable[[], str]) -> str | None:
        """Return which order a sum has in the program for all sizes; None where nothing is said.

        The program for all sizes notes its own order.

        Args:
            key: Says of what it is, the name of its node among it.
            own: Returns the order that this program has by itself.
        """
        if self.nominal not in (None, self.graph):
            self.sums[key] = own()
        return self.settled.get(key)

    def call(  # noqa: PLR0913 - each is one fact of the call
        self,
        spec: Hashable,
        arguments: Sequence[View],
        nodes: Sequence[str],
        note: str = "",
        moved_bytes: Size = 0,
        guard: Guard | None = None,
        *,
        is_picked: bool = False,
        is_border: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Append a call of the kernel that a description means, which a guard may leave out.

        With `is_picked`, it reads no more of its first argument than it writes; with `is_border`,
        it touches no more than `moved_bytes` of what it is given; with `is_kept`, it has nothing to
        do where its first and its last argument are the same memory, if both are all of it from
        its beginning, in order, and no view that moves entries.
        """
        is_kept = is_kept and all(
            view.is_dense and view.offset == 0 for view in (arguments[0], arguments[-1])
        )
        arguments = (*arguments, guard.choice) if guard else tuple(arguments)
        number = guard.number if guard else None
        halves = tuple(view.half for view in arguments)
        if any(halves):
            again = sorted(i for i in reads_back(self._built(spec, number)) if halves[i])
            if again:
                singles = list(arguments)
                for i in again:
                    singles[i] = self._in_singles(arguments[i], nodes)
                given = singles[:-1] if guard else singles
                self.call(spec, given, nodes, note, moved_bytes, guard, is_picked=is_picked)
                for i in again:
                    self.copy(singles[i], arguments[i], nodes, "as halves")
                return
        kernel, free = self._kernel(spec, number, halves)
        pointers = tuple(
            Argument(view.storage, view.lowest * view.item_bytes) for view in arguments
        )
        function = self._kernels[kernel]
        assert len(pointers) == len(function.buffers), f"{function.name}: {nodes}"
        extent = free.turns if free.turns is not None else function.extent
        assert extent is not None
        sizes = [_nbytes(view) for view in arguments]
        if is_picked:
            written = [buffer.is_written for buffer in function.buffers]
            sizes[0] = min(sizes[0], sum(itertools.compress(sizes, written)))
        call = Call(
            kernel,
            pointers,
            extent,
            tuple(nodes),
            note,
            typical(moved_bytes),
            shape=_shapes(function, arguments),
            flop=self._flop(nodes),
            nbytes=typical(moved_bytes) if is_border else sum(sizes),
            is_tuned=spec in self._tuned,
            sizes=free.sizes,
            is_kept=is_kept,
        )
        self._calls.append(call)

    def share_last_call(self, share: Size) -> None:
        """Let the last call have a share of its turns; where that is 0 when it runs, no turn."""
        last = self._calls[-1]
        self._calls[-1] = replace(last, extent=last.extent * share)

    def check_indices(
        self, view: View, extent: Size, node: str, indices: str, *, are_counts: bool = False
    ) -> None:
        """Append a call that finds indices outside of a dimension.

        Args:
            view: Of rank 1.
            extent: Of the dimension; at least 1.
            node: Name of the node that reads them.
            indices: Their name.
            are_counts: Whether they count entries, so that negative ones are outside too.
        """
        (count,) = view.shape
        if count == 0:
            return
        spec = IndexBounds(count, extent, view.layout, self.unit, are_counts)
        check = IndexCheck(0, node, indices, 0 if are_counts else extent)
        place = self._fault(spec.turns, check)
        self.call(spec, (view, place), (node,), f"{indices} within {extent}")

    def _fault(self, count: Size, check: IndexCheck) -> View:
        """Return where a check leaves what it finds; its storage is told here."""
        item_bytes = np.dtype(INT64.dtype).itemsize
        earlier = sum([self._storages[check.storage].nbytes for check in self._checks], 0)
        storage = self._storage(StorageKind.FAULT, earlier, count * item_bytes)
        self._checks.append(replace(check, storage=storage))
        return View(storage, INT64.dtype, (count,), (1,), align=item_bytes)

    def check_numbers(self, value: Value, wanted: Sequence[int], node: Node) -> None:
        """Append a call that finds whether a parameter says something else than the shapes."""
        numbers = self.read_dense(value.id).reshaped((len(wanted),))
        spec = SameNumbers(tuple(wanted), numbers.layout)
        fault = self._fault(1, IndexCheck(0, node.name, value.name, 0))
        self.call(spec, (numbers, fault), (node.name,), f"{value.name} is {tuple(wanted)}")

    def check_parameter(
        self, spec: Hashable, views: Sequence[View], value: Value, node: Node
    ) -> None:
        """Append a call of a kernel whose last argument is a fault if a parameter does not fit.

        Args:
            spec: Of the kernel.
            views: Its arguments before the fault.
            value: The parameter that is named then.
            node: What reads it.
        """
        fault = self._fault(1, IndexCheck(0, node.name, value.name, 0))
        self.call(spec, (*views, fault), (node.name,), value.name)

    def make_tables(
        self, spec: SliceTables | PadTables, parameters: Sequence[View], value: Value, node: Node
    ) -> list[View]:
        """Append a call that makes a table for each dimension of a result, and return them.

        Args:
            spec: What makes them.
            parameters: What it reads.
            value: The one that is named if they do not fit the shapes.
            node: What reads them.
        """
        joined = self.scratch(INT64.dtype, (sum(spec.result),))
        fault = self._fault(1, IndexCheck(0, node.name, value.name, 0))
        self.call(spec, (*parameters, joined, fault), (node.name,), "tables")
        firsts = [sum(spec.result[:dim]) for dim in range(len(spec.result))]
        pairs = zip(firsts, spec.result, strict=True)
        return [joined.part(0, first, size) for first, size in pairs]

    def check_range(self, views: Sequence[View], count: int, value: Value, node: Node) -> None:
        """Append a call that finds whether start, limit and delta say another number of entries."""
        start, limit, delta = (view.layout for view in views)
        fault = self._fault(1, IndexCheck(0, node.name, value.name, 0))
        spec = RangeLength(count, start, limit, delta)
        self.call(spec, (*views, fault), (node.name,), f"{count} entries")

    def choose_axes(
        self, value: Value, sets: Sequence[tuple[int, ...]], operation: Operation
    ) -> list[tuple[tuple[int, ...], Guard | None]]:
        """Append a call that reads axes; return the sets that they may be, each with its guard.

        Args:
            value: The axes, of the operation's first input.
            sets: What they may be by the shapes.
            operation: What reads them.
        """
        axes = self.read_dense(value.id)
        axes = axes.reshaped((prod(axes.shape),))
        if not axes.shape[0]:
            return [(axes_of_set, None) for axes_of_set in sets]
        numbers = tuple(sum(1 << axis for axis in axes_of_set) for axes_of_set in sets)
        spec = AxisSet(axes.shape[0], len(operation.shape()), axes.layout, numbers)
        choice = self.scratch(INT64.dtype, (1,))
        node = operation.node.name
        fault = self._fault(1, IndexCheck(0, node, value.name, 0))
        self.call(spec, (axes, choice, fault), (node,), value.name)
        guards = [Guard(choice, number) if len(sets) > 1 else None for number in numbers]
        return list(zip(sets, guards, strict=True))

    def _flop(self, nodes: Sequence[str]) -> int:
        graph = self.nominal or self.graph
        return sum(node_flop(graph, graph.node_named(name).id) for name in nodes)

    def _in_singles(self, view: View, nodes: Sequence[str]) -> View:
        """Return memory for float32 in the place of halves that a kernel reads after writing them.

        So that sums which are made in parts are rounded once. What is there is brought, since a
        kernel may write a part of it.
        """
        steps = zip(view.domain, view.strides, strict=True)
        span = sum([(extent - 1) * abs(stride) for extent, stride in steps], 1)
        storage = self._storage(StorageKind.SCRATCH, 0, span * np.dtype(view.dtype).itemsize)
        moved = view.offset - view.lowest
        single = replace(view, storage=storage, offset=moved, align=64, half="")
        self.copy(view, single, nodes, "as float32")
        return single

    def _built(self, spec: Hashable, number: int | None) -> Function:
        """Return the kernel that a description means, as it is with memory of float32."""
        key = spec, number
        if key not in self._functions:
            self._functions[key] = _build(spec, number)
        return self._functions[key]

    def _kernel(
        self, spec: Hashable, number: int | None, halves: tuple[str, ...]
    ) -> tuple[int, _FreeArguments]:
        """Return the number of the kernel that a description means, and what is free of it."""
        key = spec, number, halves
        if key not in self._by_spec:
            has_half = self.unit.has_half
            if self.is_sketch:
                named, printed = _sketched(spec, number, halves, has_half)
            else:
                function = with_halves(self._built(spec, number), halves, has_half=has_half)
                verify(function, self.machine)
                named, printed = _named(expand(function))
            # Descriptions may differ and kernels be the same, such as those of layouts whose
            # strides nothing reads: LLVM gets each once.
            if printed not in self._by_print:
                self._by_print[printed] = len(self._kernels)
                self._kernels.append(named)
                self.announce(named)
            free = _FreeArguments(named.free, named.turns)
            self._by_spec[key] = self._by_print[printed], free
        return self._by_spec[key]

    def _border_view(self, kind: StorageKind, index: int, value: Value, block: int) -> View:
        """Return an input or output of the region: the caller's memory, of any alignment."""
        dtype, half = storage_of(value.dtype), self.halves.get(value.id, "")
        item_bytes = np_dtype(half or dtype).itemsize
        storage = self._storage(kind, index, prod(value.shape or ()) * item_bytes)
        view = dense_view(storage, dtype, value.shape or (), block, half=half)
        return replace(view, align=item_bytes)

    def _storage(self, kind: StorageKind, index: Size, nbytes: Size) -> int:
        self._storages.append(MemoryBlock(kind, index, nbytes))
        return len(self._storages) - 1

    def finish(self) -> Program:
        """Bring the region's outputs into their places, and return the program."""
        for index, value_id in enumerate(self.region.outputs):
            view = self.read(value_id, self.outputs.get(value_id, 0))
            place = self._storages[view.storage]
            if place.kind is StorageKind.OUTPUT and place.index == index:
                continue
            name = self.graph.values[value_id].name
            self.copy(view, self._output_view(value_id), (), f"output {name}")
        counts = Counter(call.nodes for call in self._calls)  # a node may take several calls
        calls = tuple(
            replace(call, flop=call.flop // counts[call.nodes])
            for call in self._calls
            if call.extent != 0
        )
        storages, size = place_scratch(self._storages, calls)
        checks = tuple(self._checks)
        found = tuple(self._found)
        names = list(self.constants)
        packed = [self._storages[view.storage].index for view in self._packed.values()]
        return Program(
            tuple(self._kernels),
            calls,
            storages,
            self.constants,
            frozenset(names[index] for index in packed),
            size,
            checks,
            found,
            self.sums,
        )


def _build(spec: Hashable, number: int | None) -> Function:
    function = family_of(spec).build(spec)
    return function if number is None else guarded(function, number)


def _named(function: Function) -> tuple[Function, str]:
    """Return an expanded kernel with a name of its own, and its fingerprint."""
    printed = fingerprint(function)
    return replace(function, name=f"{function.name}_{printed[:12]}"), printed


@lru_cache(maxsize=128)
def _sketched(
    spec: Hashable, number: int | None, halves: tuple[str, ...], has_half: bool
) -> tuple[Function, str]:
    """Return a kernel as sketches have it: many regions of one network have the same ones."""
    function = with_halves(_build(spec, number), halves, has_half=has_half)
    return _named(expand(function))


def _shapes(function: Function, arguments: Sequence[View]) -> str:
    """Return the shape of what a kernel reads first, and of what it writes."""
    pairs = list(zip(arguments, function.buffers, strict=True))
    read = next((view for view, buffer in pairs if not buffer.is_written), None)
    written = next((view for view, buffer in pairs if buffer.is_written), None)
    return " -> ".join("x".join(map(str, view.shape)) for view in (read, written) if view)


def _nbytes(view: View) -> int:
    return typical(prod(view.domain)) * view.item_bytes


def _other_form(view: View, block: int) -> View | None:
    """Return a tensor in the other layout, if it lies in memory just the same there.

    Channels that lie one after the other are blocks as well as they are plain.
    """
    if view.block == block or len(view.shape) <= CHANNELS:
        return None
    batch, step, *strides = view.strides
    if view.block and not block and step == view.block:
        return replace(view, block=0, strides=(batch, 1, *strides[:-1]))
    if block and not view.block and step == 1 and not view.shape[CHANNELS] % block:
        return replace(view, block=block, strides=(batch, block, *strides, 1))
    return None


def _over_blocks(view: View, block: int) -> View:
    """Return a tensor as plain dimensions (N, blocks, ...spatial, lanes of a block)."""
    shape = domain_of(view.shape, block)
    strides = view.strides
    if not view.block:
        step = strides[CHANNELS]
        strides = (strides[0], step * block, *strides[2:], step)
    return replace(view, shape=shape, strides=strides, block=0)


def _over_groups(view: View, group: int) -> View | None:
    """Return a tensor in blocks of bytes as one of what has as many bits as some neighbours.

    Args:
        view: In blocks of a multiple of the group.
        group: Channels that are neighbours.

    Returns:
        The view, or None where nothing has as many bits, or they do not lie so.
    """
    nbytes = group * view.item_bytes
    dtype = {2: "int16", 4: "int32", 8: "int64"}.get(nbytes)
    places = (view.block, view.offset, *view.strides[:-1])
    is_aligned = view.align and not view.align % nbytes
    if view.half or not dtype or not is_aligned or any(place % group for place in places):
        return None
    batch, channels, *spatial = view.shape
    strides = tuple(stride // group for stride in view.strides[:-1])
    return replace(
        view,
        dtype=dtype,
        shape=(batch, -(-channels // group), *spatial),
        strides=strides if view.block == group else (*strides, 1),
        offset=view.offset // group,
        block=0 if view.block == group else view.block // group,
    )


def _nothing() -> Array:
    return np.zeros(1, np.float32)


def _is_same(first: Array, second: Array) -> bool:
    """Tell whether arrays are the same to the bit."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first is second or first.tobytes() == second.tobytes()


def _describe(view: View) -> str:
    return f"blocked by {view.block}" if view.block else "plain"
