# SPDX-License-Identifier: Apache-2.0
"""Drafting a network node by node: hierarchical names, static shapes, constants stored once.

A `ModelDraft` is a place in a network that is being written; `at` goes one level deeper. Every
value is called as the node that makes it, every weight as the node that reads it, and each shape is
inferred as soon as its node is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx import ModelProto, defs, helper, shape_inference

from intarsia.errors import InternalError
from intarsia.zoo.weights import fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = npt.NDArray[np.generic]
Constant = float | tuple[int, ...] | Array
Attribute = int | float | str | tuple[int, ...]

_IR_VERSION = 10
_SHORT = 8  # elements of a constant that is named by its value


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What all places of one draft share."""

    rng: np.random.Generator
    opset: int
    tape: ir.tape.Tape = field(default_factory=ir.tape.Tape)
    inputs: list[ir.Value] = field(default_factory=list)
    constants: dict[str, ir.Value] = field(default_factory=dict)
    blanks: dict[str, ir.Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """A place in a network that is being written."""

    _sheet: _Sheet
    _prefix: str = ""

    @classmethod
    def start(cls, rng: np.random.Generator, opset: int) -> ModelDraft:
        """Return an empty draft.

        Args:
            rng: Draws every weight.
            opset: The version of the ONNX operators to write.
        """
        return cls(_Sheet(rng, opset))

    @property
    def opset(self) -> int:
        """The version of the ONNX operators."""
        return self._sheet.opset

    def at(self, *path: str | int) -> ModelDraft:
        """Return the place below this one."""
        return replace(self, _prefix=self._prefix + "".join(f"{part}/" for part in path))

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> ir.Value:
        """Declare an input of the network."""
        value = ir.val(name, ir.DataType.from_numpy(np.dtype(dtype)), shape)
        self._sheet.inputs.append(value)
        return value

    def op(
        self, op_type: str, name: str, *inputs: ir.Value | Constant | None, **attributes: Attribute
    ) -> ir.Value:
        """Write a node with one output.

        Args:
            op_type: Its operator.
            name: Its name at this place.
            *inputs: Values; a number is a float32 scalar, a tuple an int64 vector.
            **attributes: Its attributes.
        """
        (output,) = self._node(op_type, name, 1, inputs, attributes)
        return output

    def split(self, name: str, x: ir.Value, sizes: Sequence[int], axis: int) -> list[ir.Value]:
        """Write a Split into parts of these sizes."""
        if len(set(sizes)) == 1:
            equal = {"axis": axis, "num_outputs": len(sizes)}
            return self._node("Split", name, len(sizes), [x], equal)
        return self._node("Split", name, len(sizes), [x, tuple(sizes)], {"axis": axis})

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        spread: float,
        centre: float = 0.0,
        *,
        is_balanced: bool = False,
    ) -> ir.Value:
        """Draw a float32 weight, called by its full name at this place.

        A balanced one has filters, along its first axis, of the mean 0: what all inputs of a filter
        have in common, as behind a ReLU, gives nothing.
        """
        array = self._sheet.rng.standard_normal(shape, dtype=np.float32)
        if is_balanced:
            array -= array.mean(axis=tuple(range(1, len(shape))), keepdims=True)
        array *= np.float32(spread)
        array += np.float32(centre)
        return self.weight(name, array)

    def weight(self, name: str, array: Array) -> ir.Value:
        """Keep an array as a weight of this place."""
        return self._sheet.tape.initializer(ir.tensor(array, name=f"{self._prefix}{name}"))

    def blank(self, name: str, shape: Sequence[int]) -> ir.Value:
        """Declare a float32 weight that `finish` draws, as `weights.fill` describes."""
        value = ir.val(f"{self._prefix}{name}", ir.DataType.FLOAT, shape)
        self._sheet.blanks[_name(value)] = value
        return value

    def constant(self, content: Constant, name: str = "") -> ir.Value:
        """Return the value of a constant; equal unnamed ones are one value."""
        array = np.asarray(content)
        if isinstance(content, float | int):
            array = np.asarray(content, np.float32)
        elif isinstance(content, tuple):
            array = np.asarray(content, np.int64)
        if not name and array.size > _SHORT:
            msg = f"a constant of {array.size} elements needs a name"
            raise InternalError(msg)
        text = str(array.tolist()).replace(" ", "")
        key = f"{self._prefix}{name}" if name else f"const/{array.dtype}/{text}"
        constants = self._sheet.constants
        if key not in constants:
            constants[key] = self._sheet.tape.initializer(ir.tensor(array, name=key))
        return constants[key]

    def finish(
        self, name: str, outputs: Mapping[str, ir.Value], *, gain: float = 1.0
    ) -> ModelProto:
        """Return the network as a model.

        Args:
            name: The graph's name.
            outputs: What the outputs are called, and their values.
            gain: The standard deviation that the last blank Conv or Gemm is to give.
        """
        sheet = self._sheet
        if sheet.blanks:
            self._draw(gain)
        for key, value in outputs.items():
            value.name = key
        graph = ir.Graph(
            sheet.inputs,
            list(outputs.values()),
            nodes=sheet.tape.nodes,
            initializers=[value for value in sheet.tape.initializers if value.uses()],
            opset_imports={"": sheet.opset},
            name=name,
        )
        model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="intarsia.zoo")
        return ir.to_proto(model)

    def _draw(self, gain: float) -> None:
        """Draw every blank weight."""
        sheet = self._sheet
        weights = fill(
            [ir.to_proto(node) for node in sheet.tape.nodes],
            {key: dims(value) for key, value in sheet.blanks.items()},
            {key: _array(value) for key, value in sheet.constants.items()},
            sheet.rng,
            gain,
        )
        for key, array in weights.items():
            value = sheet.tape.initializer(ir.tensor(array, name=key))
            sheet.blanks[key].replace_all_uses_with(value)

    def _node(
        self,
        op_type: str,
        name: str,
        count: int,
        inputs: Sequence[ir.Value | Constant | None],
        attributes: Mapping[str, Attribute],
    ) -> list[ir.Value]:
        """Write a node and infer the types of its outputs."""
        full = f"{self._prefix}{name}"
        values = [
            value if value is None or isinstance(value, ir.Value) else self.constant(value)
            for value in inputs
        ]
        outputs = list(
            self._sheet.tape.op_multi_out(op_type, values, attributes, num_outputs=count, name=full)
        )
        for i, output in enumerate(outputs):
            output.name = f"{full}.{i}" if count > 1 else full
        self._infer(outputs)
        return outputs

    def _infer(self, outputs: Sequence[ir.Value]) -> None:
        """Set the type and the shape of each output of a node."""
        node = outputs[0].producer()
        if node is None:
            msg = f"{outputs[0].name} has no node"
            raise InternalError(msg)
        inputs = [value for value in node.inputs if value is not None]
        types = shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, self.opset, ""),
            ir.to_proto(node),
            {_name(v): helper.make_tensor_type_proto(_dtype(v), dims(v)) for v in inputs},
            {_name(v): ir.to_proto(small) for v in inputs if (small := _small(v)) is not None},
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=_IR_VERSION,
        )
        for output in outputs:
            tensor = types[_name(output)].tensor_type
            output.dtype = ir.DataType(tensor.elem_type)
            output.shape = ir.Shape([dim.dim_value for dim in tensor.shape.dim])
            if not all(dims(output)):
                msg = f"the shape of {output.name} is not static: {output.shape}"
                raise InternalError(msg, node=node.name)


def dims(value: ir.Value) -> tuple[int, ...]:
    """Return the extents of a value, which every value of a draft has."""
    return value.shape.numpy() if value.shape is not None else ()


def _name(value: ir.Value) -> str:
    return value.name or ""


def _dtype(value: ir.Value) -> int:
    return int(value.dtype or ir.DataType.FLOAT)


def _array(value: ir.Value) -> Array:
    return np.zeros(0) if value.const_value is None else value.const_value.numpy()


def _small(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the content of a value that is a constant of a few elements."""
    content = value.const_value
    return content if content is not None and content.size <= _SHORT else None
