# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN: the product of all inputs as one, then all steps in one kernel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Apply, Body, Fused, identity
from intarsia.codegen.kernels import recurrence
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.gemm import Gemm, Panels
from intarsia.codegen.kernels.recurrence import GATES, GateFunction, Recurrence
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import choose_product, dots_key, pack_weights
from intarsia.codegen.lower.views import View
from intarsia.graph.graph import ABSENT, Value

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""Activations of a direction."""

_NUMBERS = {
    **dict.fromkeys(("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    **dict.fromkeys(("Affine", "HardSigmoid", "ScaledTanh"), ("alpha", "beta")),
}
"""Activations, with the numbers that they have."""

_WITHOUT_DEFAULT = frozenset(("Affine", "ScaledTanh", "ThresholdedRelu"))
"""ONNX has no defaults for their numbers, or other ones than ONNX Runtime."""

_W, _R, _B, _LENGTHS, _H, _C, _P = range(1, 8)
"""Positions of inputs."""


def _ways(operation: Operation) -> int:
    return 2 if operation.attribute("direction", "forward") == "bidirectional" else 1


def _activations(operation: Operation) -> list[tuple[GateFunction, ...]]:
    """Return the activations of each direction.

    Raises:
        KeyError: One is not known.
        ValueError: They are too few or too many.
    """
    defaults = _DEFAULTS[operation.op_type]
    wanted = operation.attribute("activations") or defaults * _ways(operation)
    by_name = {name.lower(): name for name in _NUMBERS}
    given = {key: iter(operation.attribute(f"activation_{key}") or ()) for key in ("alpha", "beta")}
    made = []
    for name in (by_name[name.lower()] for name in wanted):
        # Lists are consumed in order, by those that have such a number.
        numbers = {key: next(given[key], None) for key in _NUMBERS[name]}
        if name in _WITHOUT_DEFAULT and None in numbers.values():
            raise ValueError(f"its activation {name} lacks a number")
        items = tuple((key, number) for key, number in numbers.items() if number is not None)
        made.append(GateFunction(name, items))
    size = len(defaults)
    if len(made) != size * _ways(operation):
        raise ValueError(f"it has {len(made)} activations")
    return [tuple(made[first : first + size]) for first in range(0, len(made), size)]


_FIRST_OPSET = 7
"""Before it, results and defaults were others."""


def refuse_recurrent(operation: Operation) -> str | None:
    """Say why an LSTM, GRU or RNN is not taken."""
    if operation.opset < _FIRST_OPSET:
        return f"{operation.op_type} before operator set {_FIRST_OPSET}"
    direction = operation.attribute("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        return f"its direction is {direction}"
    try:
        _activations(operation)
    except KeyError as error:
        return f"its activation {error.args[0]} has no native code"
    except ValueError as error:
        return str(error)
    return _shape_problem(operation)


def _shape_problem(operation: Operation) -> str | None:
    """Say which input does not have the shape that the others ask for."""
    if len(operation.shape()) != 3 or len(operation.shape(_R)) != 3:  # noqa: PLR2004 - as in ONNX
        return "its input or weights are not of rank 3"
    *outer, inputs = operation.shape()
    batch = outer[0] if operation.attribute("layout", 0) else outer[1]
    ways, hidden, gates = _ways(operation), operation.shape(_R)[2], GATES[operation.op_type]
    if operation.attribute("hidden_size", hidden) != hidden:
        return "its hidden_size is not that of its weights"
    state = (batch, ways, hidden) if operation.attribute("layout", 0) else (ways, batch, hidden)
    wanted = {
        _W: (ways, gates * hidden, inputs),
        _R: (ways, gates * hidden, hidden),
        _B: (ways, 2 * gates * hidden),
        _LENGTHS: (batch,),
        _H: state,
        _C: state,
        _P: (ways, 3 * hidden),
    }
    for position, shape in wanted.items():
        value = operation.value(position)
        if value is not None and value.shape != shape:
            return f"its input {value.name!r} is not of shape {shape}"
    if operation.is_constant(_LENGTHS):
        steps = outer[1] if operation.attribute("layout", 0) else outer[0]
        if not all(0 <= length <= steps for length in operation.numbers(_LENGTHS) or ()):
            return f"its sequences are not all of 0 to {steps} steps"
    return None


@dataclass(frozen=True, slots=True)
class _Network:
    """An operator that is lowered.

    Attributes:
        assembler: Of the program.
        operation: The operator.
        names: Of its node.
    """

    assembler: Assembler
    operation: Operation
    names: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return self._value(0).dtype

    @property
    def hidden(self) -> int:
        return self.operation.shape(_R)[2]

    @property
    def gates(self) -> int:
        return GATES[self.operation.op_type]

    @property
    def is_batch_first(self) -> bool:
        return bool(self.operation.attribute("layout", 0))

    @property
    def is_linear_first(self) -> bool:
        return bool(self.operation.attribute("linear_before_reset", 0))

    def _value(self, position: int) -> Value:
        value = self.operation.value(position)
        assert value is not None
        return value

    def inputs(self) -> View:
        """Append the product of all inputs and weights, with the biases.

        Returns:
            A view over directions, steps, batch, gates and hidden entries.
        """
        x = self.assembler.read(self._value(0).id)
        ways, (outer, inner, depth) = _ways(self.operation), x.shape
        width = self.gates * self.hidden
        a = replace(x, shape=(ways, *x.shape), strides=(0, *x.strides))
        c = self.assembler.scratch(self.dtype, (ways, outer, inner, width))
        bias = self._bias()
        fused, operands = Fused(identity(self.dtype)), []
        if bias is not None:
            strides = (bias.strides[0], 0, 0, bias.strides[1])
            operands = [replace(bias, shape=c.shape, strides=strides)]
            fused = Fused(_sum(self.dtype), (operands[0].layout,))
        spec = Gemm(
            inner,
            width,
            depth,
            a.layout,
            Panels(self.dtype, (ways, 1)),
            c.layout,
            (ways, outer),
            fused,
            self.assembler.unit,
        )
        note, weights = "", self._value(_W)
        product: Hashable
        if weights.constant is not None:
            array = self.operation.array(_W).transpose(0, 2, 1)[:, None]
            name, half = f"{weights.name}/turned", self.assembler.halves.get(weights.id, "")
            reader = self.operation.node.name
            product, a, b, note = pack_weights(self.assembler, spec, a, array, name, half, reader)
        else:
            b = self.assembler.read(weights.id).permuted((0, 2, 1)).unsqueezed(1)
            b = b.expanded((ways, outer, depth, width))
            key = dots_key(self.operation)
            product = choose_product(self.assembler, replace(spec, b=b.layout), key)
        self.assembler.call(product, (a, b, c, *operands), self.names, f"inputs {note}".strip())
        order = (0, 2, 1, 3, 4) if self.is_batch_first else (0, 1, 2, 3, 4)
        return c.split(3, self.gates).permuted(order)

    def _bias(self) -> View | None:
        """Return the sum of both biases, `[directions, gates * hidden]`, or None.

        The second one of a candidate that is linear before the reset is left out.
        """
        value = self.operation.value(_B)
        if value is None:
            return None
        size, name = self.gates * self.hidden, self.operation.node.name
        common = 2 * self.hidden if self.is_linear_first else size
        if value.constant is not None:
            array = self.operation.array(_B)
            total = array[:, :size].copy()
            total[:, :common] += array[:, size : size + common]
            return self.assembler.constant(f"{name}/bias", total)
        both = self.assembler.read(value.id)
        first, second = both.part(1, 0, size), both.part(1, size, common)
        total_view = self.assembler.scratch(self.dtype, first.shape)
        place = total_view.part(1, 0, common)
        views = (first.part(1, 0, common), second, place)
        layouts = [view.layout for view in views]
        spec = Elementwise(
            place.domain,
            tuple(layouts[:2]),
            (layouts[2],),
            _sum(self.dtype),
            self.assembler.unit,
        )
        self.assembler.call(spec, views, self.names, "biases")
        if common < size:
            rest = size - common
            alone = first.part(1, common, rest), total_view.part(1, common, rest)
            self.assembler.copy(*alone, self.names, "bias")
        return total_view

    def candidate_bias(self) -> View | None:
        """Return the bias of a candidate's product that is linear before the reset, or None."""
        value = self.operation.value(_B)
        if value is None or not self.is_linear_first:
            return None
        both = self.assembler.read(value.id)
        return both.part(1, both.shape[1] - self.hidden, self.hidden)

    def weights(self, gates: range) -> View:
        """Return the recurrent weights of some gates as the kernel reads them.

        Returns:
            A view over directions, blocks, entries of the last state, gates, entries of a block.
        """
        value, ways = self._value(_R), _ways(self.operation)
        width = recurrence.columns(self.assembler.unit, self.dtype, self.hidden)
        shape = (ways, -(-self.hidden // width), self.hidden, len(gates), width)
        if value.constant is not None:
            key = f"{value.name}/steps{gates.start}to{gates.stop}by{width}of{self.gates}"
            array = self.operation.array(_R)
            return self.assembler.packed(key, lambda: _packed(array, shape, gates))
        split = self.assembler.read(value.id).split(1, self.gates)
        some = split.part(1, gates.start, len(gates))
        packed = self.assembler.scratch(self.dtype, shape)
        whole = self.hidden // width * width
        if whole:
            blocks = some.part(2, 0, whole).split(2, whole // width).permuted((0, 2, 4, 1, 3))
            self.assembler.copy(blocks, packed.part(1, 0, whole // width), self.names, "weights")
        if whole < self.hidden:
            rest = self.hidden - whole
            block = some.part(2, whole, rest).split(2, 1).permuted((0, 2, 4, 1, 3))
            place = packed.part(1, whole // width, 1).part(4, 0, rest)
            self.assembler.copy(block, place, self.names, "weights")
        return packed

    def state(self, position: int) -> View | None:
        """Return an initial state over directions, batch and hidden entries, or None."""
        value = self.operation.value(position)
        return None if value is None else self._by_direction(self.assembler.read(value.id))

    def _by_direction(self, view: View) -> View:
        return view.permuted((1, 0, 2)) if self.is_batch_first else view

    def result(self, position: int) -> View | None:
        """Return where a result is to be written, with the directions first, or None."""
        outputs = self.operation.node.outputs
        if position >= len(outputs) or outputs[position] == ABSENT:
            return None
        view = self.assembler.target(outputs[position])
        if position:
            return self._by_direction(view)
        return view.permuted((2, 1, 0, 3) if self.is_batch_first else (1, 0, 2, 3))


def _sum(dtype: str) -> Body:
    return Body((dtype, dtype), (Apply("Add", (0, 1), (), dtype),), (2,))


def _packed(array: Array, shape: Sequence[int], gates: range) -> Array:
    """Return recurrent weights, `[directions, gates * hidden, hidden]`, in blocks of columns."""
    ways, blocks, hidden, count, width = shape
    some = array.reshape(ways, -1, hidden, hidden)[:, gates.start : gates.stop]
    filled = np.pad(some, [(0, 0), (0, 0), (0, blocks * width - hidden), (0, 0)])
    split = filled.reshape(ways, count, blocks, width, hidden)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3))


def lower_recurrent(assembler: Assembler, group: KernelGroup) -> None:
    """Append the product of the inputs, and the kernel of the steps."""
    operation = group.anchor
    network = _Network(assembler, operation, group.names)
    ways, hidden, op_type = _ways(operation), network.hidden, operation.op_type
    x = network.inputs()
    _, steps, batch, _, _ = x.shape
    operands: dict[str, View | None] = {"x": x}
    parts = recurrence.products(op_type, is_linear_first=network.is_linear_first)
    operands |= {f"r{number}": network.weights(gates) for number, gates in enumerate(parts)}
    operands |= {"initial_h": network.state(_H), "initial_c": network.state(_C)}
    peepholes, lengths = operation.value(_P), operation.value(_LENGTHS)
    if peepholes is not None:
        operands["peepholes"] = assembler.read(peepholes.id).split(1, 3)
    operands["bias"] = network.candidate_bias()
    if lengths is not None:
        operands["lengths"] = view = assembler.read(lengths.id)
        if lengths.constant is None:
            assembler.check_indices(view, steps + 1, operation.node.name, lengths.name)
    operands |= {f"y{name}": network.result(i) for i, name in enumerate(("", "_h", "_c"))}
    state = (ways, batch, hidden)
    operands["h"] = assembler.scratch(network.dtype, (ways, 2, batch, hidden))
    own = {"LSTM": ("c",), "GRU": ("z", "reset") if len(parts) > 1 else (), "RNN": ()}[op_type]
    operands |= {name: assembler.scratch(network.dtype, state) for name in own}
    views = {name: view for name, view in operands.items() if view is not None}
    activations = _activations(operation)
    is_reversed = operation.attribute("direction", "forward") == "reverse"
    # Directions with other functions are kernels of their own.
    kernels = [range(ways)] if len(set(activations)) == 1 else [range(1), range(1, 2)]
    for run in kernels:
        some = {name: _of_directions(name, view, run) for name, view in views.items()}
        clip = operation.attribute("clip")
        spec = Recurrence(
            op_type,
            len(run),
            steps,
            batch,
            hidden,
            tuple((name, view.layout) for name, view in some.items()),
            activations[run.start],
            is_reversed or run.start == 1,
            network.is_linear_first,
            bool(operation.attribute("input_forget", 0)),
            clip,
            max(1, min(batch, -(-assembler.threads // len(run)))),
            assembler.unit,
        )
        assembler.call(spec, tuple(some.values()), group.names, "steps")


def _of_directions(name: str, view: View, run: range) -> View:
    """Return what some directions have of an argument of the kernel."""
    return view if name == "lengths" else view.part(0, run.start, len(run))
