# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs bound once and run many times, in place where a plan can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.graph.free_sizes import FreeSpec
from intarsia.plan.plan import TensorStorage
from intarsia.runtime.context import Context
from intarsia.runtime.executor import PlanExecutable, is_dense, is_plain
from intarsia.runtime.feeds import check_array, check_feeds
from intarsia.runtime.free import Program
from intarsia.runtime.memories import RunMemory
from intarsia.session.values import OrtValue, array_at, as_given, check_device


class IOBinding:
    """The inputs and outputs of a session, with the shape of ONNX Runtime's class.

    What is bound is read and written in place, without a copy, where the plan has a dense buffer
    for it; the rest is copied, and so is an input in whose memory an output is bound, unless code
    only adds to that (`PlanExecutable.in_place`): a past of keys and values may be the present as
    well. It is not to be run from two threads at once.

    Args:
        executable: The session's program.
    """

    def __init__(self, executable: Program) -> None:
        self._executable = executable
        self._program: PlanExecutable | None = None
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[OrtValue] = []
        self._context: Context | None = None
        self._arrays: list[Any] | None = None
        self._memory = RunMemory()

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an input to an array; each run reads what it then holds.

        Raises:
            InputError: The model has no such input.
        """
        self._bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory of the caller's.

        Args:
            name: Of the input.
            device_type: Must be `cpu`.
            device_id: Must be 0.
            element_type: A numpy type, or the number of an ONNX type.
            shape: Dimensions of the row-major array.
            buffer_ptr: Address of the first element.

        Raises:
            InputError: The model has no such input, or the memory is not the host's.
        """
        check_device(device_type, device_id)
        self._bind_input(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to a value; each run reads what it then holds.

        Raises:
            InputError: The model has no such input.
        """
        self._bind_input(name, ortvalue.numpy())

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory of the caller's, or ask for a fresh array in each run.

        Args:
            name: Of the output.
            device_type: Must be `cpu`.
            device_id: Must be 0.
            element_type: A numpy type, or the number of an ONNX type; of `buffer_ptr`.
            shape: Dimensions of the row-major array at `buffer_ptr`.
            buffer_ptr: Address of the first element; None asks for fresh arrays.

        Raises:
            InputError: The model has no such output, the memory is not the host's, or its type or
                shape is missing.
        """
        check_device(device_type, device_id)
        if buffer_ptr is None:
            self._bind_output(name, None)
            return
        if element_type is None or shape is None:
            raise InputError(f"memory for output {name!r} needs element_type= and shape=")
        self._bind_output(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to a value, which each run fills.

        Raises:
            InputError: The model has no such output.
        """
        self._bind_output(name, ortvalue.numpy())

    def synchronize_inputs(self) -> None:
        """Do nothing: host memory is read when a run starts."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run returns when its outputs are written."""

    def get_outputs(self) -> list[OrtValue]:
        """Return what the last run wrote, in the order in which outputs were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of what the last run wrote, in the order in which outputs were bound."""
        values = [result.numpy() for result in self._results]
        return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()
        self._context = None

    def clear_binding_outputs(self) -> None:
        """Forget all outputs, and what was written to them."""
        self._outputs.clear()
        self._results = []
        self._context = None

    def run(self, executable: Program) -> None:
        """Run the program on what is bound.

        Args:
            executable: The program of the session that is asked to run it.

        Raises:
            InputError: It is another session's, an input is missing, or an array does not fit.
            ExecutionError: A backend failed.
        """
        if executable is not self._executable:
            raise InputError(
                "this binding belongs to another session, or to one before set_providers",
                hint="make one with session.io_binding()",
            )
        program = executable.program_for(self._inputs)
        if self._context is None or program is not self._program:
            self._program, self._context = program, None
            arrays = check_feeds(program.inputs, self._inputs)
            inputs, outputs = self._in_place(program)
            for spec in program.outputs:
                array = self._outputs.get(spec.name)
                if spec.shape is not None and array is not None and spec.name not in outputs:
                    _check_output(spec, array)
            self._context = program.context(
                inputs, outputs, copies_overlaps=True, memory=self._memory
            )
            # An array is what it was; of anything else the memory may have changed.
            is_array = (
                self._inputs[spec.name] is array
                for spec, array in zip(program.inputs, arrays, strict=True)
            )
            self._arrays = arrays if all(is_array) else None
        elif self._arrays is not None:
            arrays = self._arrays
        else:
            arrays = check_feeds(program.inputs, self._inputs)
        self._context.write_inputs(arrays)
        self._context.run()
        bound = {name: array for name, array in self._outputs.items() if array is not None}
        outputs = self._context.read_outputs(bound, self._outputs.keys())
        self._results = [OrtValue(outputs[name]) for name in self._outputs]

    def _bind_input(self, name: str, value: Any) -> None:
        spec = _find(self._executable.inputs, name, "input")
        self._inputs[name] = as_given(spec, value)
        self._context = None

    def _bind_output(self, name: str, array: Array | None) -> None:
        spec = _find(self._executable.outputs, name, "output")
        self._outputs[name] = array
        self._context = None
        if array is not None and isinstance(spec, TensorSpec) and spec.shape is not None:
            _check_output(spec, array)

    def _in_place(self, program: PlanExecutable) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """Return the arrays that a context can use as they lie."""
        plan = program.plan
        ends = [plan.tensors[i] for i in (*plan.inputs, *plan.outputs)]
        # An output may be called as an input is.
        given: dict[TensorStorage, Any] = {
            TensorStorage.INPUT: self._inputs,
            TensorStorage.OUTPUT: self._outputs,
        }
        inputs, outputs = (
            {
                tensor.name: arrays[tensor.name]
                for tensor in ends
                if is_dense(tensor, storage) and is_plain(arrays.get(tensor.name))
            }
            for storage, arrays in given.items()
        )
        return inputs, outputs


def _check_output(spec: TensorSpec, array: Array | None) -> None:
    """Refuse an array that an output does not fit into."""
    if not check_array(spec, array).flags.writeable:
        raise InputError(f"{spec.name!r} cannot be written: the array is read-only")


def _find(specs: Sequence[TensorSpec | FreeSpec], name: str, what: str) -> TensorSpec | FreeSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    raise InputError(
        f"the model has no {what} {name!r}", hint=f"it has {', '.join(one.name for one in specs)}"
    )
