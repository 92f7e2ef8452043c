# SPDX-License-Identifier: Apache-2.0
"""Load a model from any form: checked, sorted, named, with the shapes of every value that can be.

Whatever is wrong with it is one `ModelError`. Rewriting is left to `intarsia.passes`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import onnx_ir as ir
import onnx_ir.external_data
from onnx.external_data_helper import ExternalDataInfo

from intarsia.errors import IntarsiaError, ModelError
from intarsia.extents import Extent, evaluate, free_symbols
from intarsia.graph.bodies import settle_loops
from intarsia.graph.check import check_structure, mend_remarks, nearest
from intarsia.graph.external import check_external_data, root_of, set_location
from intarsia.graph.free_sizes import (
    FreeSignature,
    FreeSizesError,
    RawSpec,
    make_signature,
    name_extents,
    parse_bounds,
)
from intarsia.graph.gguf.container import is_gguf
from intarsia.graph.gguf.llama import read_gguf
from intarsia.graph.infer import check_model, infer_shapes, skeleton
from intarsia.graph.infer_free import name_free_dimensions
from intarsia.graph.inline import inline_functions
from intarsia.graph.model_info import describe_model
from intarsia.graph.operator_functions import define_functions
from intarsia.graph.order import sort_nodes
from intarsia.graph.read import read_bytes, read_file
from intarsia.graph.snapshot import dtype_name, node_bodies
from intarsia.graph.tensors import all_tensors
from intarsia.graph.undeclared import define_undeclared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
"""Every form in which a model can be given; a path may be one of a GGUF file, or a `ModelFile`."""

Shapes: TypeAlias = "Mapping[str, Sequence[int] | int | str]"
"""By input, its shape; or by free dimension, its size, or its bounds as text: `1..8`."""


def load(model: ModelLike, shapes: Shapes | None = None, *, stays_free: bool = False) -> ir.Model:
    """Return the model ready for placement: functions inlined, inferred shapes.

    The caller's model is never changed. Graph inputs that have an initializer become constants.

    Args:
        model: A path, the bytes of a file, a `ModelProto` or an `onnx_ir.Model`.
        shapes: What is said of free dimensions.
        stays_free: Whether dimensions of inputs may be free; nameless ones get names then.

    Raises:
        FreeSizesError: A dimension is still free; it says which there are.
        ModelError: The model cannot be read or is invalid, or a shape contradicts.
    """
    with _one_error():
        loaded, checked = _parse(model)
        is_inlined = inline_functions(loaded)
        if is_inlined:
            name_nodes(loaded.graph)
        bounds = specialise_shapes(loaded, shapes) if shapes else {}
        if stays_free:
            name_free_dimensions(loaded)
        else:
            check_shapes(loaded, bounds)
        infer_shapes(loaded, None if shapes or is_inlined else checked)
        while define_functions(loaded) and inline_functions(loaded):
            name_nodes(loaded.graph)
            infer_shapes(loaded)
        settle_loops(loaded)
    return loaded


def settle_shapes(model: ModelLike, shapes: Shapes | None = None) -> dict[str, tuple[int, ...]]:
    """Return a shape for each input that has free dimensions; nominal ones where nothing is said.

    Args:
        model: As of `load`.
        shapes: What is said of free dimensions.

    Raises:
        ModelError: The model cannot be read or is invalid, or a shape contradicts.
        InputError: An input has no rank.
    """
    with _one_error():
        parsed, _ = _parse(model)
        before = _free_dims(parsed)
        bounds = specialise_shapes(parsed, shapes) if shapes else {}
        signature = read_signature(parsed, bounds)
    settled = signature.shapes_at(signature.nominal_sizes())
    return {name: shape for name, shape in settled.items() if list(shape) != before.get(name)}


def parse(model: ModelLike) -> ir.Model:
    """Return the model checked, sorted and with unique node names; its shapes as they are.

    Raises:
        ModelError: The model cannot be read or is invalid.
    """
    with _one_error():
        return _parse(model)[0]


@contextmanager
def _one_error() -> Iterator[None]:
    """Turn what onnx and onnx_ir raise on a damaged model into a `ModelError`."""
    try:
        yield
    except IntarsiaError:
        raise
    except MemoryError:
        raise ModelError(
            "there is no memory for the shapes of the model", hint="check how large its tensors are"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the model cannot be read: {_root_cause(error)}",
            hint="if onnx.checker.check_model accepts it, it uses what onnx_ir cannot hold",
        ) from None


def _parse(model: ModelLike) -> tuple[ir.Model, onnx.ModelProto]:
    """Return the parsed model, and its skeleton."""
    if isinstance(model, ir.Model):
        parsed = _clone(model)
        check_structure(skeleton(parsed))
    elif isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        parsed = _from_proto(copy, None)
    elif isinstance(model, bytes):
        parsed = _from_proto(read_bytes(model), None)
    elif isinstance(model, str | os.PathLike) and is_gguf(model):
        parsed = read_gguf(model)
    elif isinstance(model, str | os.PathLike):
        parsed = _from_proto(read_file(model), Path(model).parent, root_of(model))
    else:
        inside = "model_proto" if hasattr(model, "model_proto") else ""  # torch.onnx.ONNXProgram
        raise ModelError(
            f"an object of type {type(model).__name__} is not a model",
            hint=f"give its .{inside}"
            if inside
            else "give a path, bytes, an onnx.ModelProto or an onnx_ir.Model",
        )
    _drop_initialized_inputs(parsed)
    sort_nodes(parsed.graph)
    name_nodes(parsed.graph)
    define_undeclared(parsed)
    checked = skeleton(parsed)
    check_model(checked)
    return parsed, checked


def _from_proto(proto: onnx.ModelProto, folder: Path | None, root: Path | None = None) -> ir.Model:
    check_structure(proto)
    mend_remarks(proto)
    files = check_external_data(proto, folder, root)
    if root is not None:
        _point_to(proto, files)
    model = ir.from_proto(proto)
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    if root is not None and folder is not None:
        _set_roots(model, folder.resolve(), root)
    _load_inner_tensors(model)
    return model


def _point_to(proto: onnx.ModelProto, files: Mapping[str, Path]) -> None:
    """Have every external tensor say the real path of its file."""
    for tensor in all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            set_location(tensor, files[ExternalDataInfo(tensor).location])


def _set_roots(model: ir.Model, folder: Path, root: Path) -> None:
    """Say of each external tensor in which folder it must lie when it is read."""
    for graph in (model.graph, *_bodies(model.graph)):
        tensors: list[Any] = [value.const_value for value in graph.initializers.values()]
        for node in graph:
            for attribute in node.attributes.values():
                if not attribute.is_ref():
                    held = attribute.value
                    tensors += held if isinstance(held, list | tuple) else [held]
        for tensor in tensors:
            if isinstance(tensor, ir.ExternalTensor):
                is_beside = Path(tensor.location).is_relative_to(folder)
                tensor.base_dir = folder if is_beside else root


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _clone(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(
            f"the onnx_ir model is not consistent: {_root_cause(error)}",
            hint="sort its nodes with model.graph.sort(), and register every value that it reads",
        ) from None


def _load_inner_tensors(model: ir.Model) -> None:
    """Read external data of bodies and attributes, so that only initializers stay on disk."""
    for graph in _bodies(model.graph):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)
    for graph in (model.graph, *_bodies(model.graph)):
        for node in graph:
            for key, attribute in node.attributes.items():
                if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[key] = ir.AttrTensor(key, _in_memory(attribute.value))


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def _bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    stack = [body for node in graph for body in node_bodies(node)]
    while stack:
        body = stack.pop()
        yield body
        stack += [inner for node in body for inner in node_bodies(node)]


def _drop_initialized_inputs(model: ir.Model) -> None:
    """Make constants of inputs with initializers, which IR versions below 4 demanded."""
    inputs = model.graph.inputs
    fed = [value for value in inputs if value.const_value is None]
    if len(fed) < len(inputs):
        inputs.clear()
        inputs.extend(fed)
    # From IR version 4 on, initializers need not be inputs (IR.md of ONNX).
    model.ir_version = max(model.ir_version, 4)


def name_nodes(graph: ir.Graph) -> None:
    """Name nodes after their first outputs where they have no name; make names unique."""
    nodes = [node for part in (graph, *_bodies(graph)) for node in part]
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        base = node.name or next((out.name for out in node.outputs if out.name), node.op_type)
        name = base
        while name in taken:
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
        node.name = name
        taken.add(name)
        seen.add(name)


def specialise_shapes(model: ir.Model, shapes: Shapes) -> dict[str, tuple[int, int | None]]:
    """Give inputs these shapes, in place; a symbolic dimension is fixed wherever it stands.

    Returns:
        The bounds of dimensions that stay free, by name.

    Raises:
        ModelError: No input or free dimension has that name, or the rank, a fixed dimension, bounds
            or another input's dimension of the same symbol contradicts.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    extents, free = name_extents(_free_dims(model), {})
    free_names = [symbol.name for symbol in free]
    symbols: dict[str, tuple[int, str]] = {}
    bounds: dict[str, tuple[int, int | None]] = {}
    for name, wanted in shapes.items():
        dims = (wanted,) if isinstance(wanted, str | int) else tuple(wanted)
        if name in free_names and len(dims) == 1:
            bounds[name] = parse_bounds(name, str(dims[0]))
        elif name in inputs and not isinstance(wanted, str):
            _specialise_input(inputs[name], dims, symbols)
        elif name in inputs or name in free_names:
            example = "a tuple of sizes, as (1, 3)" if name in inputs else "a size, as 8 or '1..64'"
            raise ModelError(f"{wanted!r} is no size of {name!r}", hint=f"give {example}")
        else:
            raise ModelError(
                f"the model has no input {name!r}{nearest(name, [*inputs, *free_names])}",
                hint=f"its inputs are {', '.join(map(repr, inputs)) or 'none'}; "
                f"its free dimensions {', '.join(map(repr, free_names)) or 'none'}",
            )
    fixed = {name: low for name, (low, high) in bounds.items() if low == high}
    for name, (size, other) in symbols.items():
        low, high = bounds.get(name, (size, size))
        if size < low or (high is not None and size > high):
            raise ModelError(
                f"dimension {name!r} would be {size} in input {other!r}, and {shapes[name]} by "
                "its own name",
                hint=f"give dimension {name!r} one size",
            )
        fixed[name] = size
    if fixed:
        _fix(model, fixed, extents)
    return {name: ends for name, ends in bounds.items() if name not in fixed}


def _free_dims(model: ir.Model) -> dict[str, list[int | str | None]]:
    """Return the dimensions of each input that is a tensor with a rank."""
    return {
        value.name or "": [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for value in model.graph.inputs
        if value.shape is not None and isinstance(value.type, ir.TensorType)
    }


def _fix(
    model: ir.Model, sizes: Mapping[str, int], extents: Mapping[str, Sequence[Extent]]
) -> None:
    """Give dimensions their sizes wherever they stand, those that follow among them.

    Args:
        model: To change.
        sizes: By the names that free dimensions have here.
        extents: Of each input, by its name.
    """
    texts = dict(sizes)
    for value in model.graph.inputs:
        name = value.name or ""
        if value.shape is None or name not in extents:
            continue
        dims: list[int | ir.SymbolicDim] = []
        for dim, extent in zip(value.shape, extents[name], strict=True):
            names = {symbol.name for symbol in free_symbols([extent])}
            if isinstance(dim, int) or not names <= sizes.keys():
                dims.append(dim)
            else:
                dims.append(evaluate(extent, sizes))
                texts[dim.value or ""] = evaluate(extent, sizes)
        value.shape = ir.Shape(dims)
    texts.pop("", None)
    _replace(model.graph, texts)


def read_signature(model: ir.Model, bounds: Mapping[str, tuple[int, int | None]]) -> FreeSignature:
    """Return what a model with free dimensions takes and returns.

    Args:
        model: Loaded.
        bounds: The smallest and largest size of dimensions, by name.
    """
    return make_signature(
        [_raw_spec(value) for value in model.graph.inputs],
        [_raw_spec(value) for value in model.graph.outputs],
        bounds,
        describe_model(model),
    )


def _raw_spec(value: ir.Value) -> RawSpec:
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    dtype = dtype_name(value.dtype) if is_tensor and value.dtype is not None else ""
    dims = None
    if is_tensor and value.shape is not None:
        dims = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return RawSpec(value.name or "", dtype, dims)


def check_shapes(model: ir.Model, bounds: Mapping[str, tuple[int, int | None]]) -> None:
    """Check that every tensor input has a fixed shape.

    Args:
        model: Loaded.
        bounds: Of its free dimensions, by name.

    Raises:
        FreeSizesError: A dimension is free; the hint shows the option that fixes it.
    """
    for value in model.graph.inputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            continue
        if value.shape is None:
            raise FreeSizesError(
                f"input {value.name!r} has no shape",
                read_signature(model, bounds),
                hint=f"give it one, for example --shape {value.name}=1x3x224x224",
            )
        free = [
            f"{index} ({dim.value})" if dim.value else str(index)
            for index, dim in enumerate(value.shape)
            if not isinstance(dim, int)
        ]
        if free:
            dims = "x".join(str(dim) if isinstance(dim, int) else "1" for dim in value.shape)
            raise FreeSizesError(
                f"input {value.name!r} has free dimensions: {', '.join(free)}",
                read_signature(model, bounds),
                hint=f"fix them, for example --shape {value.name}={dims}",
            )


def _specialise_input(
    value: ir.Value, dims: tuple[Any, ...], symbols: dict[str, tuple[int, str]]
) -> None:
    name = value.name or ""
    text = "x".join(map(str, dims))
    if any(isinstance(dim, bool) or not isinstance(dim, int) or dim < 0 for dim in dims):
        raise ModelError(
            f"shape {text} of input {name!r} is not a list of sizes",
            hint=f"give whole numbers, for example --shape {name}=1x3x224x224",
        )
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(f"input {name!r} is not a tensor", hint=f"leave out --shape {name}=...")
    declared = value.shape
    if declared is None:
        value.shape = ir.Shape(dims)
        return
    declared_text = "x".join(
        str(dim) if isinstance(dim, int) else dim.value or "?" for dim in declared
    )
    hint = f"give a shape that fits {declared_text or 'a scalar'}"
    if len(declared) != len(dims):
        raise ModelError(
            f"shape {text or '()'} of input {name!r} has {len(dims)} dimensions,"
            f" the model has {len(declared)}",
            hint=hint,
        )
    for index, (old, new) in enumerate(zip(declared, dims, strict=True)):
        if isinstance(old, int):
            if old != new:
                raise ModelError(
                    f"shape {text} of input {name!r} contradicts the model: dimension {index} is"
                    f" {old}",
                    hint=hint,
                )
        elif old.value:
            size, other = symbols.setdefault(old.value, (new, name))
            if size != new:
                raise ModelError(
                    f"dimension {old.value!r} would be {size} in input {other!r} but {new} in"
                    f" input {name!r}",
                    hint=f"give dimension {old.value!r} one size",
                )
    value.shape = ir.Shape(dims)


def _replace(graph: ir.Graph, sizes: Mapping[str, int]) -> None:
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        values = [*current.inputs]
        for node in current:
            values += node.outputs
            graphs += node_bodies(node)
        for value in values:
            shape = value.shape
            if shape is None or shape.is_static():
                continue
            value.shape = ir.Shape(
                dim if isinstance(dim, int) else sizes.get(dim.value or "", dim) for dim in shape
            )
