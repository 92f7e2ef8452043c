# SPDX-License-Identifier: Apache-2.0
"""A program of what `torch.export` gives."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from intarsia.compiler import compile as compile_model
from intarsia.errors import BackendError, ModelError
from intarsia.torch.fused import fused_attention

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch.export import ExportedProgram

    from intarsia.runtime.free import Program

_EXPORTER = "torch.onnx._internal.exporter"
"""The logger of PyTorch's exporter, which warns of libraries that it does without."""

_ATTENTION_RANK = 4
"""Batch, heads, positions, features."""


def from_torch(
    exported_program: ExportedProgram,
    target: Any = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Program:
    """Compile a model that PyTorch has exported.

    Dimensions that are dynamic there are free here. Parameters are not copied: where a backend
    reads them as they are, it reads the module's own memory, so do not change them.

    Args:
        exported_program: What `torch.export.export(module, args, dynamic_shapes=...)` returns.
        target: The machine, as of `intarsia.compile`.
        dynamic_shapes: What `torch.export.export` was given: free dimensions are called as the
            dimensions there, of whose names an exported program does not know.
        options: As of `intarsia.compile`.

    Raises:
        BackendError: PyTorch or its exporter is not installed.
        ModelError: An operator has no ONNX form, or the model changes its inputs or buffers.
        IntarsiaError: As `intarsia.compile`.
    """
    return compile_model(to_onnx(exported_program, dynamic_shapes), target, **options)


def to_onnx(exported_program: ExportedProgram, dynamic_shapes: Any = None) -> ir.Model:
    """Return an exported model as ONNX, over the memory of its parameters.

    Args:
        exported_program: What PyTorch exported.
        dynamic_shapes: What it was given for that, for names of dimensions.

    Raises:
        BackendError: PyTorch or its exporter is not installed.
        ModelError: An operator has no ONNX form, or the model changes its inputs or buffers.
    """
    try:
        import torch
        from torch.export import ExportedProgram
    except ImportError as error:
        raise BackendError(
            f"PyTorch cannot be imported: {error}", hint="pip install 'intarsia[torch]'"
        ) from error
    if not isinstance(exported_program, ExportedProgram):
        raise ModelError(
            f"an object of type {type(exported_program).__name__} is not an exported program",
            hint="give what torch.export.export(module.eval(), args) returns",
        )
    try:
        with quietly():
            program = torch.onnx.export(
                _spell_out_attention(exported_program),
                dynamo=True,
                optimize=False,
                verbose=False,
                dynamic_shapes=dynamic_shapes,
            )
    except Exception as error:  # the exporter raises whatever a decomposition does
        raise ModelError(
            f"PyTorch's ONNX exporter fails: {tell_cause(error)}",
            hint="torch.onnx.export(exported_program, report=True) writes what it cannot express",
        ) from error
    if program is None:
        raise ModelError("PyTorch's ONNX exporter returns nothing")
    # The exporter makes the form of the graph that tells: it has no operators that write in place.
    signature = program.exported_program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise ModelError(
            f"the model changes {changed[0]!r}, which a program does not",
            hint="return the new value instead",
        )
    model: ir.Model = program.model
    return model


def _spell_out_attention(exported: ExportedProgram) -> ExportedProgram:
    """Return a program whose attention PyTorch's exporter knows: it has four dimensions.

    Networks with windows (timm's Hiera) have five, single heads three; the fast paths of layers
    have operators of their own.
    """
    import torch

    attention = torch.ops.aten.scaled_dot_product_attention.default

    def flattened(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        if query.dim() == key.dim() == value.dim() == _ATTENTION_RANK:
            return NotImplemented
        if options.pop("enable_gqa", False):
            key, value = (
                one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value)
            )
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])

        def flat(tensor: Any) -> Any:
            return tensor.expand(*leading, *tensor.shape[-2:]).reshape(-1, 1, *tensor.shape[-2:])

        if attn_mask is not None and attn_mask.dim() == 1:
            attn_mask = attn_mask.unsqueeze(0)
        mask = None if attn_mask is None else flat(attn_mask)
        result = attention(
            flat(query), flat(key), flat(value), mask, dropout_p, is_causal, **options
        )
        return result.reshape(*leading, *result.shape[-2:])

    graphs = [part for part in exported.graph_module.modules() if hasattr(part, "graph")]
    found = [
        node
        for part in graphs
        for node in part.graph.find_nodes(op="call_function", target=attention)
    ]
    ranks = {each.meta["val"].dim() for node in found for each in node.args[:3]}
    table = {
        operator: spelled
        for operator, spelled in fused_attention().items()
        if any(part.graph.find_nodes(op="call_function", target=operator) for part in graphs)
    }
    if not ranks <= {_ATTENTION_RANK}:
        table[attention] = flattened
    return exported.run_decompositions(table) if table else exported


def tell_cause(error: BaseException) -> str:
    """Return the line of an error of PyTorch that says most."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Keep to ourselves what the exporter says of libraries, and warns of its own code."""
    exporter = logging.getLogger(_EXPORTER)
    level = exporter.level
    try:
        exporter.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
