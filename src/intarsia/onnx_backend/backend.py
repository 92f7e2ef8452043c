# SPDX-License-Identifier: Apache-2.0
"""The classes of the `Backend` interface.

Source:
    onnx.backend.base; ONNX, docs/ImplementingAnOnnxBackend.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.shape_inference
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from intarsia.compiler import compile as compile_model
from intarsia.errors import InputError, ModelError, TargetError


class IntarsiaRep(BackendRep):
    """A prepared model.

    Args:
        model: The model.
        target: The machine, in any form; None means what is found here.
        options: Passed on to `intarsia.compile`.

    Raises:
        IntarsiaError: As `intarsia.compile`.
    """

    def __init__(self, model: onnx.ModelProto, target: Any, options: Mapping[str, Any]) -> None:
        self._model = model
        self._program = compile_model(model, target, **options)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model once.

        Args:
            inputs: The arrays in the order of the model's inputs, or by name; or the only one.
            kwargs: Accepted for the interface's sake.

        Returns:
            The outputs in the model's order, by position and by name.

        Raises:
            InputError: There are too few or too many arrays, or one does not fit.
            IntarsiaError: As `intarsia.compile` and `Executable.run`.
        """
        del kwargs
        outputs = self._program.run(self._feeds(inputs))
        names = [value.name for value in self._model.graph.output]
        make: Any = namedtupledict("Outputs", names)
        results: tuple[Any, ...] = make(*(outputs[name] for name in names))
        return results

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        names = [spec.name for spec in self._program.inputs]
        arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        if len(arrays) != len(names):
            raise InputError(
                f"the model takes {len(names)} inputs, {len(arrays)} were given",
                hint=f"it takes {', '.join(names) or 'nothing'}",
            )
        return dict(zip(names, arrays, strict=True))


class IntarsiaBackend(Backend):
    """The interface; all of it is class methods."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", target: Any = None, **kwargs: Any
    ) -> IntarsiaRep:
        """Compile a model.

        Args:
            model: The model.
            device: A device type with an optional ordinal, `CPU` or `CUDA:1`; at least one
                target of the machine has to run there.
            target: The machine, in any form of a target; None means what is found here.
            kwargs: Passed on to `intarsia.compile`.

        Raises:
            TargetError: Nothing here runs on the device.
            IntarsiaError: As `intarsia.compile`.
        """
        if target is None and not cls.supports_device(device):
            raise TargetError(
                f"nothing on this machine runs on device {device!r}",
                hint="run `intarsia doctor`, or give a target",
            )
        return IntarsiaRep(model, target, kwargs)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once; see `prepare` and `IntarsiaRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator once.

        Args:
            node: The operator; an input without a name is left out.
            inputs: Arrays for the inputs that have names, in order.
            device: As for `prepare`.
            outputs_info: Dtype and shape of each output; None means that they are inferred.
            kwargs: `opset_version`; the rest as for `prepare`.

        Raises:
            ModelError: The operator is unknown, or its outputs cannot be inferred.
            IntarsiaError: As `prepare` and `IntarsiaRep.run`.
        """
        newest = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        model = _node_model(node, list(inputs), outputs_info, newest)
        return cls.prepare(model, device, **kwargs).run(list(inputs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell whether a backend that is found here runs on a device, such as `CPU` or `CUDA`."""
        from intarsia.backends.registry import load_backends
        from intarsia.place.machine import list_detected
        from intarsia.settings import Settings
        from intarsia.target import DeviceType

        family = device.partition(":")[0].upper()
        if family not in DeviceType.__members__:
            return False
        backends = load_backends(Settings.from_environment())
        detected = list_detected(backends.by_name.values())
        return any(target.device_type is DeviceType[family] for target in detected)


def _node_model(
    node: onnx.NodeProto,
    inputs: Sequence[Any],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    newest: int,
) -> onnx.ModelProto:
    try:
        schema = onnx.defs.get_schema(node.op_type, newest, node.domain)
        names = list(dict.fromkeys(name for name in node.input if name))
        types = {name: _tensor_type(x) for name, x in zip(names, inputs, strict=True)}
        if outputs_info is not None:
            outputs = [name for name in node.output if name]
            results = {
                name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), shape)
                for name, (dtype, shape) in zip(outputs, outputs_info, strict=False)
            }
        else:
            values = {
                name: onnx.numpy_helper.from_array(np.asarray(x), name)
                for name, x in zip(names, inputs, strict=True)
            }
            inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, values)
            results = {name: inferred[name] for name in node.output if name}
    except (
        onnx.defs.SchemaError,
        onnx.shape_inference.InferenceError,
        LookupError,
        ValueError,
    ) as error:
        raise ModelError(
            f"node {node.name or node.op_type!r} cannot be run alone: {error}",
            node=node.name,
            hint="give an input for each name, and outputs_info for what cannot be inferred",
        ) from error
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_value_info(name, kind) for name, kind in types.items()],
        [helper.make_value_info(name, kind) for name, kind in results.items()],
    )
    # The oldest operator set with this definition: runtimes lag behind the newest one.
    opset = helper.make_opsetid(node.domain, schema.since_version)
    model = helper.make_model(graph, opset_imports=[opset])
    model.ir_version = helper.find_min_ir_version_for([opset], ignore_unknown=True)
    return model


def _tensor_type(value: Any) -> onnx.TypeProto:
    array = np.asarray(value)
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
