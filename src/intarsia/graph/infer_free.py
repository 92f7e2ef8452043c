# SPDX-License-Identifier: Apache-2.0
"""The shapes of a model with free dimensions, as expressions of its inputs' symbols.

`onnx.shape_inference` says what a node makes of named dimensions where it only hands them on; what
it computes with them (`Reshape`, `Concat`, `Slice`, windows, ...) is said here, a rule for each
operator. Small tensors of integers that shapes consist of are followed entry by entry (`Shape`,
`Gather`, `Concat`, arithmetic, paddings in pairs), so that what exporters write to compute a shape
has an answer before anything runs. Where the data decides an extent (`NonZero`, a `Slice` whose end
is computed), the result gets a symbol of its own, which is known when the node has run. What has no
answer is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from operator import add, mul, sub
from typing import TypeAlias

import numpy as np
import onnx
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir

from intarsia.errors import ModelError
from intarsia.extents import (
    Expression,
    Extent,
    Symbol,
    UndecidedError,
    divide,
    extent_of_symbol,
    free_symbols,
    is_free,
    larger,
    parse_extent,
    substitute,
)
from intarsia.graph.contributed import contributed_types, is_contributed

Extents: TypeAlias = tuple[Extent, ...]

_MOST_ENTRIES = 64
"""Most entries of a vector that is followed; shapes have a few."""
_NO_ANSWER = (UndecidedError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What rules raise where there is no answer, or the model is odd."""
_INTEGERS = frozenset((ir.DataType.INT64, ir.DataType.INT32))


@dataclass(slots=True)
class FreeShapes:
    """What is known of the values of a model before its sizes are.

    Attributes:
        symbols: The free dimensions of the inputs, by name. Their largest sizes, and what they are
            multiples of, are those for which the answers hold: a model that slices a table of 512
            positions has no more, and one that joins what was pooled and resized to what was not
            takes multiples.
        extents: The shape of each value that has an answer.
        entries: What small tensors of integers hold, row by row; of rank 0 it is one entry.
        problems: For each node without an answer, why.
        late: The extents that the data decides, in the order in which they are found.
    """

    symbols: dict[str, Symbol] = field(default_factory=dict)
    extents: dict[ir.Value, Extents] = field(default_factory=dict)
    entries: dict[ir.Value, Extents] = field(default_factory=dict)
    problems: dict[ir.Node, str] = field(default_factory=dict)
    late: list[Symbol] = field(default_factory=list)


def name_free_dimensions(model: ir.Model) -> None:
    """Give nameless free dimensions of inputs names, in place: those of the input and the axis."""
    taken = {
        dim.value
        for value in model.graph.inputs
        for dim in value.shape or ()
        if not isinstance(dim, int)
    }
    for value in model.graph.inputs:
        if value.shape is None or value.shape.is_static():
            continue
        dims = list(value.shape)
        for axis, dim in enumerate(dims):
            if isinstance(dim, int) or dim.value:
                continue
            name = f"{value.name}.{axis}"
            while name in taken:
                name += "_"
            taken.add(name)
            dims[axis] = ir.SymbolicDim(name)
        value.shape = ir.Shape(dims)


def infer_free_shapes(
    model: ir.Model, symbols: Mapping[str, Symbol] | None = None, *, is_fixed: bool = False
) -> FreeShapes:
    """Return the shapes of all values as far as they follow from those of the inputs.

    Args:
        model: Its nodes are in topological order; each input has a rank.
        symbols: Those that have bounds; other free dimensions are at least 1.
        is_fixed: Whether the model has no free dimensions: what is not known of the shapes of its
            inputs (it may be a body) is then found when it runs.

    Raises:
        ModelError: An input has no shape.
    """
    narrowed = dict(symbols or {})
    while True:
        try:
            return _infer(model, narrowed, is_fixed=is_fixed)
        except _BoundNeededError as error:  # each time a symbol's largest size gets smaller
            narrowed[error.symbol.name] = error.symbol


class _BoundNeededError(Exception):
    """A question has an answer if a symbol does not exceed what the model holds rows for.

    Or if it is a multiple of a number.
    """

    def __init__(self, symbol: Symbol) -> None:
        super().__init__(symbol.name)
        self.symbol = symbol


def _infer(model: ir.Model, symbols: Mapping[str, Symbol], *, is_fixed: bool) -> FreeShapes:
    shapes = FreeShapes(dict(symbols))
    for value in model.graph.inputs:
        if value.const_value is not None or not isinstance(value.type, ir.TensorType | None):
            continue
        if not is_fixed:
            shapes.extents[value] = _declared(value, shapes.symbols)
        elif value.shape is not None:
            shapes.extents[value] = found_extents(value, shapes)
    for value in model.graph.initializers.values():
        _read_constant(value, shapes)
    walk = _Inference(model, shapes)
    for node in model.graph:
        walk.infer(node)
    return shapes


def _declared(value: ir.Value, symbols: dict[str, Symbol]) -> Extents:
    if value.shape is None:
        raise ModelError(
            f"input {value.name!r} has no shape",
            hint=f"give it one, for example --shape {value.name}=1x3x224x224",
        )
    extents: list[Extent] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            extents.append(dim)
            continue
        name = dim.value or f"{value.name}.{axis}"
        extents.append(parse_extent(name, symbols))
    for symbol in free_symbols(extents):
        symbols.setdefault(symbol.name, symbol)
    return tuple(extents)


def found_extents(value: ir.Value, shapes: FreeShapes) -> Extents:
    """Return the extents of a value of known rank; those that nothing says are found later."""
    return tuple(
        int(dim) if isinstance(dim, int) else _late(value, axis, shapes)
        for axis, dim in enumerate(value.shape or ())
    )


def _late(
    value: ir.Value | None, axis: int, shapes: FreeShapes, high: Extent | None = None
) -> Expression:
    """Return a new symbol for an extent that the data decides."""
    name = f"{value.name if value is not None else ''}.{axis}"
    while name in shapes.symbols or any(name == one.name for one in shapes.late):
        name += "_"
    symbol = Symbol(name, 0, high if isinstance(high, int) else None, is_late=True)
    shapes.late.append(symbol)
    return Expression.of(symbol)


def _read_constant(value: ir.Value, shapes: FreeShapes) -> None:
    tensor = value.const_value
    if tensor is None:
        return
    shapes.extents[value] = tuple(int(dim) for dim in tensor.shape.numpy())
    is_followed = tensor.dtype in _INTEGERS or tensor.dtype == ir.DataType.BOOL
    if is_followed and tensor.size <= _MOST_ENTRIES:
        shapes.entries[value] = tuple(int(entry) for entry in tensor.numpy().flat)


class _Call:
    """One node as a rule sees it."""

    def __init__(self, node: ir.Node, shapes: FreeShapes, version: int) -> None:
        self.node = node
        self.version = version
        self._shapes = shapes

    def has(self, position: int) -> bool:
        """Tell whether an input is there."""
        return position < len(self.node.inputs) and self.node.inputs[position] is not None

    def shape(self, position: int) -> Extents:
        """Return the shape of an input."""
        return self._look_up(self._shapes.extents, position, "the shape")

    def entries(self, position: int) -> Extents:
        """Return the entries of an input that is a vector or a scalar."""
        entries = self.flat(position)
        if len(self.shape(position)) > 1:
            raise UndecidedError("only vectors are followed")
        return entries

    def flat(self, position: int) -> Extents:
        """Return the entries of an input of any rank, row by row."""
        return self._look_up(self._shapes.entries, position, "the contents")

    def table(self, position: int) -> np.ndarray:
        """Return the entries of an input of any rank as an array of objects."""
        table = np.empty(len(self.flat(position)), object)
        table[:] = self.flat(position)
        return table.reshape(self.shape(position))

    def integers(self, position: int) -> tuple[int, ...]:
        """Return the entries of an input that are the same for all sizes."""
        entries = self.entries(position)
        if not all(isinstance(entry, int) for entry in entries):
            raise UndecidedError(f"input {position} is not the same for all sizes")
        return entries  # type: ignore[return-value] # checked above

    def knows(self, position: int) -> bool:
        """Tell whether the entries of an input are followed."""
        return self.has(position) and self.node.inputs[position] in self._shapes.entries

    def _look_up(self, table: Mapping[ir.Value, Extents], position: int, what: str) -> Extents:
        value = self.node.inputs[position] if self.has(position) else None
        if value is None or value not in table:
            name = value.name if value is not None else position
            raise UndecidedError(f"{what} of {name!r} depend on what is fed")
        return table[value]

    def floats(self, position: int) -> tuple[float, ...]:
        """Return the entries of an input that is a constant vector of floats."""
        value = self.node.inputs[position] if self.has(position) else None
        if value is None or value.const_value is None:
            raise UndecidedError(f"input {position} is not the same for all sizes")
        return tuple(map(float, value.const_value.numpy().reshape(-1)))

    def found(self, output: int, axis: int, high: Extent | None = None) -> Extent:
        """Return the extent of a result that the data decides.

        Args:
            output: Which result.
            axis: Of it.
            high: The largest that it may be.
        """
        return _late(self.node.outputs[output], axis, self._shapes, high)

    def number(self, name: str, default: int) -> int:
        """Return an attribute."""
        return self.node.attributes.get_int(name, default)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute, None if it is not there."""
        values = self.node.attributes.get_ints(name, None)
        return None if values is None else tuple(values)

    def axes(self, position: int, rank: int) -> tuple[int, ...] | None:
        """Return axes, an attribute in older operator sets, from 0; None if there are none."""
        axes = self.integers(position) if self.has(position) else self.numbers("axes")
        return None if axes is None else tuple(axis % rank for axis in axes)


class _Inference:
    def __init__(self, model: ir.Model, shapes: FreeShapes) -> None:
        self._model = model
        self._shapes = shapes
        self._texts: dict[str, Extent] = {}

    def infer(self, node: ir.Node) -> None:
        """Say what is known of the results of a node."""
        call = _Call(node, self._shapes, self._model.opset_imports.get(node.domain, 1))
        is_main = node.domain in ("", "ai.onnx")
        problem = ""
        try:
            rule = (SHAPES if is_main else CONTRIBUTED_SHAPES).get(node.op_type)
            rule = rule if is_main or is_contributed(node) else None
            results = rule(call) if rule is not None else self._ask_onnx(call)
        except (*_NO_ANSWER, onnx.defs.SchemaError) as error:
            problem = str(error)
            results = [None] * len(node.outputs)
        for value, extents in zip(node.outputs, results, strict=False):
            if extents is not None:
                self._shapes.extents[value] = tuple(extents)
            elif value.shape is not None:
                self._shapes.extents[value] = found_extents(value, self._shapes)
            elif problem:
                self._shapes.problems[node] = problem
        follow = ENTRIES.get(node.op_type) if is_main else None
        if follow is not None:
            try:
                entries = follow(call)
            except _NO_ANSWER:
                return
            extents = self._shapes.extents.get(node.outputs[0])
            if entries is None or extents is None or is_free(extents):
                return
            if len(entries) == prod(extents) and len(entries) <= _MOST_ENTRIES:
                self._shapes.entries[node.outputs[0]] = tuple(entries)

    def _ask_onnx(self, call: _Call) -> list[Extents | None]:
        """Return what onnx makes of named dimensions, those that it leaves open as None."""
        node = call.node
        if any(value is not None and value.type is None for value in node.inputs):
            return [None] * len(node.outputs)
        if not is_contributed(node) and not onnx.defs.has(node.op_type, node.domain):
            raise UndecidedError(f"onnx does not know {node.domain}.{node.op_type}")
        types, data = {}, {}
        for value in node.inputs:
            if value is None or value.type is None:
                continue
            types[value.name or ""] = self._type_of(value)
            if value.const_value is not None and value.const_value.size <= _MOST_ENTRIES:
                data[value.name or ""] = ir.serde.serialize_tensor(value.const_value)
        if is_contributed(node):
            made = contributed_types(ir.serde.serialize_node(node), types)
            return [self._read(made.get(value.name or ""), value) for value in node.outputs]
        try:
            made = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, call.version, node.domain),
                ir.serde.serialize_node(node),
                types,
                data,
                opset_imports=[
                    onnx.helper.make_opsetid(domain, version)
                    for domain, version in self._model.opset_imports.items()
                ],
            )
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise UndecidedError(str(error)) from None
        return [self._read(made.get(value.name or ""), value) for value in node.outputs]

    def _type_of(self, value: ir.Value) -> onnx.TypeProto:
        if not isinstance(value.type, ir.TensorType):
            return ir.serde.serialize_type(value.type)  # type: ignore[arg-type]
        info = onnx.TypeProto()
        info.tensor_type.elem_type = value.type.dtype.value
        extents = self._shapes.extents.get(value)
        if extents is not None:
            info.tensor_type.shape.SetInParent()
            for extent in extents:
                dim = info.tensor_type.shape.dim.add()
                if isinstance(extent, Expression):
                    dim.dim_param = str(extent)
                    self._texts[dim.dim_param] = extent
                else:
                    dim.dim_value = extent
        return info

    def _read(self, info: onnx.TypeProto | None, value: ir.Value) -> Extents | None:
        if info is None or not info.tensor_type.HasField("shape"):
            return None
        extents: list[Extent] = []
        for axis, dim in enumerate(info.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                extents.append(dim.dim_value)
            elif dim.dim_param in self._texts:
                extents.append(self._texts[dim.dim_param])
            else:
                extents.append(_late(value, axis, self._shapes))
        return tuple(extents)


# Shapes


def _reshape(call: _Call) -> list[Extents]:
    source, wanted = call.shape(0), list(call.entries(1))
    if not call.number("allowzero", 0):
        wanted = [source[i] if extent == 0 else extent for i, extent in enumerate(wanted)]
    open_axes = [i for i, extent in enumerate(wanted) if extent == -1]
    if open_axes:
        (axis,) = open_axes
        others = _product([extent for i, extent in enumerate(wanted) if i != axis])
        quotient = divide(_product(source), others) if others != 0 else 0
        if quotient is None:
            raise UndecidedError(f"{_product(source)} entries in rows of {others}")
        wanted[axis] = quotient
    elif _product(wanted) != _product(source):
        raise UndecidedError(f"{_product(source)} entries as {wanted}")
    return [tuple(wanted)]


def _product(extents: Sequence[Extent]) -> Extent:
    return prod(extents)


def _flatten(call: _Call) -> list[Extents]:
    source = call.shape(0)
    axis = call.number("axis", 1)
    axis = axis if axis >= 0 else axis + len(source)
    return [(_product(source[:axis]), _product(source[axis:]))]


def _expand(call: _Call) -> list[Extents]:
    return [_broadcast(call, call.shape(0), call.entries(1))]


def _broadcast(call: _Call, *shapes: Extents) -> Extents:
    """Return what shapes are broadcast to (ONNX, "Broadcasting in ONNX").

    An extent that is 1 at some sizes and not at others is found when the node has run.
    """
    rank = max(map(len, shapes))
    result: list[Extent] = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            _equal_as_multiples(extents)
            result.append(call.found(0, axis + rank))
        else:
            result.append(extents.pop() if extents else 1)
    return tuple(result)


def _equal_as_multiples(extents: Collection[Extent]) -> None:
    """Demand that a symbol is a multiple of a power of two if some extents are equal then.

    What is pooled and resized to where it was has its size again only if that can be halved.

    Raises:
        _BoundNeededError: Its sizes may be others so far.
    """
    for symbol in sorted(one for one in free_symbols(extents) if not one.is_late):
        multiple = 2 * symbol.multiple
        while multiple <= _MOST_HALVED:
            halved = replace(symbol, low=-(-symbol.low // multiple) * multiple, multiple=multiple)
            values = {symbol.name: extent_of_symbol(halved)}
            if len({substitute(extent, values) for extent in extents}) == 1:
                raise _BoundNeededError(halved)
            multiple *= 2


_MOST_HALVED = 64
"""The largest power of two that sizes are demanded to be multiples of."""


def _elementwise(call: _Call) -> list[Extents]:
    return [_broadcast(call, *(call.shape(i) for i in range(len(call.node.inputs)) if call.has(i)))]


def _concat(call: _Call) -> list[Extents]:
    shapes = [call.shape(i) for i in range(len(call.node.inputs))]
    axis = call.number("axis", 0) % len(shapes[0])
    total = sum((shape[axis] for shape in shapes), 0)
    merged = []
    for dim in range(len(shapes[0])):
        extents = {shape[dim] for shape in shapes}
        if dim != axis and len(extents) > 1:
            _equal_as_multiples(extents)
            raise UndecidedError(f"{' and '.join(sorted(map(str, extents)))} are joined")
        merged.append(total if dim == axis else shapes[0][dim])
    return [tuple(merged)]


def _slice(call: _Call) -> list[Extents]:
    shape = list(call.shape(0))
    if call.has(1):
        starts, ends = call.entries(1), call.entries(2)
        axes = call.integers(3) if call.has(3) else tuple(range(len(starts)))
        steps = call.integers(4) if call.has(4) else (1,) * len(starts)
    else:
        starts, ends = call.numbers("starts") or (), call.numbers("ends") or ()
        axes, steps = call.numbers("axes") or tuple(range(len(starts))), (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        shape[axis] = span(start, end, step, shape[axis]).count
    return [tuple(shape)]


@dataclass(frozen=True, slots=True)
class Span:
    """The entries of a dimension that a Slice takes.

    Attributes:
        start: The first one, counted from 0.
        count: How many.
        step: From one to the next.
    """

    start: Extent
    count: Extent
    step: int


def span(start: Extent, end: Extent, step: int, extent: Extent) -> Span:
    """Return what a Slice takes of a dimension (ONNX, Slice-13).

    Raises:
        UndecidedError: It depends on the sizes.
    """
    forwards = step > 0
    first = _clamped(start, extent, 0, extent if forwards else extent - 1)
    last = _clamped(end, extent, 0 if forwards else -1, extent if forwards else extent - 1)
    distance = last - first if forwards else first - last
    count = (distance + (abs(step) - 1)) // abs(step)
    return Span(first, count if count >= 0 else 0, step)


def _clamped(place: Extent, extent: Extent, low: Extent, high: Extent) -> Extent:
    """Return a place counted from the start of a dimension, within bounds."""
    if place < 0:
        place = place + extent
    if isinstance(place, int) and place >= _FAR:
        return high
    if place <= low:
        return low
    if isinstance(place, Expression) and isinstance(extent, int):
        _bound(place, extent)
    return place if place <= high else high


def _bound(place: Expression, extent: int) -> None:
    """Demand that a place lies inside a dimension, such as a table of positions.

    Raises:
        _BoundNeededError: Its symbol may be larger so far.
    """
    symbols = [(factors[0], number) for factors, number in place.terms if factors]
    if len(symbols) != 1 or symbols[0][1] != 1 or not isinstance(symbols[0][0], Symbol):
        return
    symbol = symbols[0][0]
    if symbol.is_late:
        return  # the data keeps to no bound
    rest = place - Expression.of(symbol)
    assert isinstance(rest, int)
    most = extent - rest
    if symbol.low <= most and (symbol.high is None or symbol.high > most):
        raise _BoundNeededError(replace(symbol, high=most))


_FAR = 1 << 31
"""From here on, exporters mean "to the end"; no dimension is so long."""


def _gather(call: _Call) -> list[Extents]:
    shape, indices = call.shape(0), call.shape(1)
    axis = call.number("axis", 0) % len(shape)
    return [(*shape[:axis], *indices, *shape[axis + 1 :])]


def _shape(call: _Call) -> list[Extents]:
    return [(len(_shape_entries(call)),)]


def _scalar(call: _Call) -> list[Extents]:
    return [()]


def _range(call: _Call) -> list[Extents]:
    (start,), (limit,), (step,) = call.entries(0), call.entries(1), call.integers(2)
    count = (limit - start + (step - (1 if step > 0 else -1))) // step
    return [(count if count >= 0 else 0,)]


def _constant_of_shape(call: _Call) -> list[Extents]:
    return [call.entries(0)]


def _tile(call: _Call) -> list[Extents]:
    return [tuple(map(mul, call.shape(0), call.entries(1)))]


def _split(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    axis, count = call.number("axis", 0) % len(shape), len(call.node.outputs)
    sizes = call.entries(1) if call.has(1) else call.numbers("split")
    if sizes is None:
        part = divide(shape[axis], count)
        if part is None:
            if isinstance(shape[axis], Expression):
                raise UndecidedError(f"{shape[axis]} in {count} parts")
            part = -(-shape[axis] // count)
            sizes = (*(part,) * (count - 1), shape[axis] - part * (count - 1))
        else:
            sizes = (part,) * count
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _pad(call: _Call) -> list[Extents]:
    shape = list(call.shape(0))
    pads = call.entries(1) if call.has(1) else call.numbers("pads") or ()
    axes = call.axes(3, len(shape)) if call.has(3) else None
    axes = tuple(range(len(shape))) if axes is None else axes
    for number, axis in enumerate(axes):
        shape[axis] = shape[axis] + pads[number] + pads[number + len(axes)]
    return [tuple(shape)]


def _squeeze(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    axes = call.axes(1, len(shape))
    if axes is None:
        axes = tuple(i for i, extent in enumerate(shape) if extent == 1)
        if any(isinstance(extent, Expression) for extent in shape):
            raise UndecidedError("which extents are 1 depends on the sizes")
    return [tuple(extent for i, extent in enumerate(shape) if i not in axes)]


def _unsqueeze(call: _Call) -> list[Extents]:
    shape = list(call.shape(0))
    axes = call.integers(1) if call.has(1) else call.numbers("axes") or ()
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return [tuple(shape)]


def _window(call: _Call) -> list[Extents]:
    """Return the shape of a convolution's or a pooling's results."""
    shape, spatial = call.shape(0), len(call.shape(0)) - 2
    is_convolution = call.node.op_type == "Conv"
    kernel = call.numbers("kernel_shape") or (call.shape(1)[2:] if is_convolution else ())
    strides = call.numbers("strides") or (1,) * spatial
    dilations = call.numbers("dilations") or (1,) * spatial
    pads = call.numbers("pads") or (0,) * (2 * spatial)
    auto = call.node.attributes.get_string("auto_pad", "NOTSET")
    is_ceil = bool(call.number("ceil_mode", 0))
    result: list[Extent] = []
    for axis in range(spatial):
        extent, stride = shape[2 + axis], strides[axis]
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if is_ceil and reach < pads[axis + spatial] + stride:
            raise UndecidedError("whether the last window begins in the border depends on the size")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append((extent + (stride - 1)) // stride)
        else:
            border = pads[axis] + pads[axis + spatial] if auto in ("NOTSET", "") else 0
            rest = stride - 1 if is_ceil else 0
            result.append((extent + (border - reach + rest)) // stride + 1)
    channels = call.shape(1)[0] if is_convolution else shape[1]
    extents = (shape[0], channels, *result)
    return [extents] * len(call.node.outputs)


def _transposed_window(call: _Call) -> list[Extents]:
    """Return the shape of a ConvTranspose's results (ONNX, ConvTranspose-22)."""
    shape, weights = call.shape(0), call.shape(1)
    spatial = len(shape) - 2
    wanted = call.numbers("output_shape")
    strides = call.numbers("strides") or (1,) * spatial
    dilations = call.numbers("dilations") or (1,) * spatial
    pads = call.numbers("pads") or (0,) * (2 * spatial)
    more = call.numbers("output_padding") or (0,) * spatial
    auto = call.node.attributes.get_string("auto_pad", "NOTSET")
    result: list[Extent] = []
    for axis in range(spatial):
        extent, stride = shape[2 + axis], strides[axis]
        if wanted is not None:
            result.append(wanted[len(wanted) - spatial + axis])
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(extent * stride)
        else:
            reach = dilations[axis] * (weights[2 + axis] - 1) + 1
            border = pads[axis] + pads[axis + spatial] if auto in ("NOTSET", "") else 0
            result.append((extent - 1) * stride + (reach + more[axis] - border))
    return [(shape[0], weights[1] * call.number("group", 1), *result)]


def _resize(call: _Call) -> list[Extents]:
    """Return the shape of a Resize's or an Upsample's results: its sizes, or by scales."""
    shape = list(call.shape(0))
    if call.node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UndecidedError("the ratio of the sides depends on the sizes")
    axes = call.numbers("axes")
    axes = tuple(range(len(shape))) if axes is None else tuple(i % len(shape) for i in axes)
    if call.has(3):
        for axis, extent in zip(axes, call.entries(3), strict=True):
            shape[axis] = extent
        return [tuple(shape)]
    is_alone = call.version < 10 or call.node.op_type == "Upsample"  # noqa: PLR2004
    scales = call.floats(1 if is_alone or call.version == 10 else 2)  # noqa: PLR2004
    for axis, scale in zip(axes, scales, strict=True):
        ratio = Fraction(scale)
        if ratio.denominator > _MOST_HALVED:
            raise UndecidedError(f"the scale {scale} is no ratio of small numbers")
        shape[axis] = shape[axis] * ratio.numerator // ratio.denominator
    return [tuple(shape)]


def _depth_to_space(call: _Call) -> list[Extents]:
    batch, channels, height, width = call.shape(0)
    block = call.number("blocksize", 1)
    return [(batch, channels // (block * block), height * block, width * block)]


def _space_to_depth(call: _Call) -> list[Extents]:
    batch, channels, height, width = call.shape(0)
    block = call.number("blocksize", 1)
    return [(batch, channels * (block * block), height // block, width // block)]


def _reduce(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    axes = call.axes(1, len(shape))
    if not axes:
        if call.number("noop_with_empty_axes", 0):
            return [shape]
        axes = tuple(range(len(shape)))
    if call.number("keepdims", 1):
        return [tuple(1 if i in axes else extent for i, extent in enumerate(shape))]
    return [tuple(extent for i, extent in enumerate(shape) if i not in axes)]


def _attention(call: _Call) -> list[Extents]:
    """Return the shapes of opset 23's Attention, the keys' and values' with what is past."""
    query, key, value = (call.shape(i) for i in range(3))
    heads: Extent = call.number("q_num_heads", 0)
    kv_heads: Extent = call.number("kv_num_heads", 0)
    if len(query) == len(("batch", "length", "heads x size")):
        size, value_size = query[2] // heads, value[2] // kv_heads
        result: Extents = (query[0], query[1], heads * value_size)
        batch, length, keys = query[0], query[1], key[1]
    else:
        batch, heads, length, size = query
        kv_heads, keys, value_size = key[1], key[2], value[3]
        result = (batch, heads, length, value_size)
    past = call.shape(4)[2] if call.has(4) else 0
    total = keys + past
    return [
        result,
        (batch, kv_heads, total, size),
        (batch, kv_heads, total, value_size),
        (batch, heads, length, total),
    ][: len(call.node.outputs)]


def _group_query(call: _Call) -> list[Extents]:
    """Return the shapes of ONNX Runtime's GroupQueryAttention."""
    batch, length, width = call.shape(0)
    heads, pairs = (call.number(name, 1) for name in ("num_heads", "kv_num_heads"))
    size = width // (heads if call.has(1) else heads + 2 * pairs)
    past = call.shape(3)[2] if call.has(3) else 0
    present = (batch, pairs, _capacity(call, length, past), size)
    return [(batch, length, heads * size), present, present][: len(call.node.outputs)]


def _capacity(call: _Call, length: Extent, past: Extent) -> Extent:
    """Return the keys of a present: as many as count in all, or as the past has room for.

    Where nothing says how many count in all, the result may declare that it is as long as the past.
    """
    if call.knows(6):
        return larger(call.entries(6)[0], past)
    declared = call.node.outputs[1].shape if len(call.node.outputs) > 1 else None
    stated = str(declared[2]) if declared is not None else ""
    return past if stated == str(past) else past + length


def _multi_head(call: _Call) -> list[Extents]:
    """Return the shapes of ONNX Runtime's MultiHeadAttention; its operands are not packed."""
    (batch, length, width), (_, keys, _), (_, _, value_width) = (call.shape(i) for i in range(3))
    heads = call.number("num_heads", 1)
    total = keys + (call.shape(6)[2] if call.has(6) else 0)
    return [
        (batch, length, value_width),
        (batch, heads, total, width // heads),
        (batch, heads, total, value_width // heads),
    ][: len(call.node.outputs)]


def _packed_attention(call: _Call) -> list[Extents]:
    """Return the shapes of ONNX Runtime's Attention."""
    batch, length, _ = call.shape(0)
    width = (call.numbers("qkv_hidden_sizes") or (call.shape(1)[1] // 3,))[-1]
    heads = call.number("num_heads", 1)
    total = length + (call.shape(4)[3] if call.has(4) else 0)
    present = (2, batch, heads, total, width // heads)
    return [(batch, length, width), present][: len(call.node.outputs)]


def _nonzero(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    return [(len(shape) or 1, call.found(0, 1, _product(shape)))]


def _compress(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    axis = call.node.attributes.get_int("axis", None)
    if axis is None:
        return [(call.found(0, 0, _product(shape)),)]
    axis %= len(shape)
    return [(*shape[:axis], call.found(0, axis, shape[axis]), *shape[axis + 1 :])]


def _unique(call: _Call) -> list[Extents]:
    shape = call.shape(0)
    axis = call.node.attributes.get_int("axis", None)
    every = _product(shape) if axis is None else shape[axis]
    at = 0 if axis is None else axis % len(shape)
    count = call.found(0, at, every)
    result = (count,) if axis is None else (*shape[:at], count, *shape[at + 1 :])
    return [result, (count,), (every,), (count,)][: len(call.node.outputs)]


def _non_max_suppression(call: _Call) -> list[Extents]:
    boxes, scores = call.shape(0), call.shape(1)
    most: Extent = boxes[1]
    if call.knows(2) and isinstance(call.entries(2)[0], int):
        most = call.entries(2)[0] if not isinstance(most, int) else min(most, call.entries(2)[0])
    return [(call.found(0, 0, boxes[0] * scores[1] * most), 3)]


_BROADCAST = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "And", "Or", "Xor", "Where", "Min", "Max", "Sum", "Mean", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BitShift",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

SHAPES: Mapping[str, Callable[[_Call], Sequence[Extents | None]]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Shape": _shape,
    "Size": _scalar,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Tile": _tile,
    "Split": _split,
    "Pad": _pad,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Conv": _window,
    "MaxPool": _window,
    "AveragePool": _window,
    "LpPool": _window,
    "ConvTranspose": _transposed_window,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Attention": _attention,
    "GroupNormalization": lambda call: [call.shape(0)],
    "NonZero": _nonzero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
    **dict.fromkeys(_BROADCAST, _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduce),
}
"""The rules; of other operators onnx is asked."""

CONTRIBUTED_SHAPES: Mapping[str, Callable[[_Call], Sequence[Extents | None]]] = {
    "Attention": _packed_attention,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
}
"""The same of ONNX Runtime's own domain."""


# Entries


def _shape_entries(call: _Call) -> Extents:
    shape = call.shape(0)
    end = call.node.attributes.get_int("end", len(shape))
    return shape[slice(call.number("start", 0), end)]


def _gather_entries(call: _Call) -> Extents:
    entries = call.entries(0)
    return tuple(entries[index] for index in call.integers(1))


def _joined(call: _Call) -> Extents:
    parts = [call.entries(i) for i in range(len(call.node.inputs))]
    return tuple(entry for part in parts for entry in part)


def _same(call: _Call) -> Extents:
    return call.flat(0)


def _cast(call: _Call) -> Extents | None:
    return _same(call) if ir.DataType(call.number("to", 0)) in _INTEGERS else None


def _transposed(call: _Call) -> Extents:
    table = call.table(0)
    return tuple(table.transpose(call.numbers("perm")).flat)


def _slice_entries(call: _Call) -> Extents:
    table = call.table(0)
    if call.has(1):
        starts, ends = call.integers(1), call.integers(2)
        axes = call.axes(3, table.ndim) if call.has(3) else None
        steps = call.integers(4) if call.has(4) else (1,) * len(starts)
    else:
        starts, ends = call.numbers("starts") or (), call.numbers("ends") or ()
        axes, steps = call.numbers("axes"), (1,) * len(starts)
    taken = [slice(None)] * table.ndim
    axes = tuple(range(len(starts))) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        taken[axis] = slice(start, end if abs(end) < _FAR else None, step)
    return tuple(table[tuple(taken)].flat)


def _pairwise(compute: Callable[[Extent, Extent], Extent]) -> Callable[[_Call], Extents]:
    def rule(call: _Call) -> Extents:
        left, right = call.entries(0), call.entries(1)
        length = max(len(left), len(right))
        pairs = zip(*(part * (length // len(part)) for part in (left, right)), strict=True)
        return tuple(compute(first, second) for first, second in pairs)

    return rule


def _divided(dividend: Extent, divisor: Extent) -> Extent:
    """Divide as ONNX does, towards 0: the same as rounding down for what is not negative."""
    if dividend >= 0 and divisor > 0:
        return dividend // divisor
    raise UndecidedError(f"{dividend} divided by {divisor}")


def _remainder(dividend: Extent, divisor: Extent) -> Extent:
    """Return what is left of a division of what is not negative, whatever `fmod` says."""
    return dividend - _divided(dividend, divisor) * divisor


def _equal(left: Extent, right: Extent) -> Extent:
    difference = left - right
    if isinstance(difference, Expression):
        low, high = difference.bounds
        if low <= 0 <= high:
            raise UndecidedError(f"whether {left} is {right} depends on the sizes")
        return 0
    return int(difference == 0)


def _chosen(call: _Call) -> Extents:
    condition, left, right = (call.entries(i) for i in range(3))
    length = max(len(condition), len(left), len(right))
    rows = zip(*(part * (length // len(part)) for part in (condition, left, right)), strict=True)
    return tuple(first if is_so else second for is_so, first, second in rows)


def _filled(call: _Call) -> Extents | None:
    (count,) = call.integers(0)
    tensor = call.node.attributes.get_tensor("value", None)
    if count > _MOST_ENTRIES or tensor is None or tensor.dtype not in _INTEGERS:
        return None
    return (int(tensor.numpy().item()),) * count


def _range_entries(call: _Call) -> Extents:
    (start,), (limit,), (step,) = call.integers(0), call.integers(1), call.integers(2)
    return tuple(range(start, limit, step)[: _MOST_ENTRIES + 1])


def _reduced(call: _Call) -> Extents:
    entries = call.entries(0)
    return (_product(entries) if call.node.op_type == "ReduceProd" else sum(entries, 0),)


ENTRIES: Mapping[str, Callable[[_Call], Extents | None]] = {
    "Shape": _shape_entries,
    "Size": lambda call: (_product(call.shape(0)),),
    "Gather": _gather_entries,
    "Concat": _joined,
    "Unsqueeze": _same,
    "Squeeze": _same,
    "Identity": _same,
    "Reshape": _same,
    "Cast": _cast,
    "Transpose": _transposed,
    "Slice": _slice_entries,
    "Add": _pairwise(add),
    "Sub": _pairwise(sub),
    "Mul": _pairwise(mul),
    "Div": _pairwise(_divided),
    "Mod": _pairwise(_remainder),
    "Min": _pairwise(min),
    "Max": _pairwise(max),
    "Neg": lambda call: tuple(-1 * entry for entry in call.flat(0)),
    "Equal": _pairwise(_equal),
    "Where": _chosen,
    "ConstantOfShape": _filled,
    "Range": _range_entries,
    "ReduceProd": _reduced,
    "ReduceSum": _reduced,
}
"""How small vectors of integers are followed."""
