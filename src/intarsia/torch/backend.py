# SPDX-License-Identifier: Apache-2.0
"""`torch.compile(model, backend="intarsia")`: each graph that PyTorch finds is a program.

A program is made when a graph is called for the first time. What cannot be one runs as PyTorch
would run it, with one line that says why.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch

from intarsia.arrays import Array, np_dtype
from intarsia.compiler import compile as compile_model
from intarsia.errors import (
    BackendError,
    IntarsiaError,
    ModelError,
    SettingError,
    UnsupportedError,
    with_hint,
)
from intarsia.hashing import digest
from intarsia.runtime.dlpack import share
from intarsia.torch.exported import quietly, tell_cause, to_onnx
from intarsia.torch.graph import BoundGraph, GraphInputs, list_outputs, number_of
from intarsia.torch.untraced import UntracedParts

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

    from intarsia.runtime.free import Program

logger = logging.getLogger("intarsia")

UntracedParts().watch()  # PyTorch imports us when it is first asked for this backend

MOST_CHANGES = 3
"""Programs that are made anew because parameters changed, before PyTorch runs the graph."""

MOST_NUMBERS = 8
"""Programs of one graph, for the numbers of the Python program that it depends on."""


def intarsia(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return what runs a graph; PyTorch calls this for `torch.compile(..., backend="intarsia")`.

    Args:
        graph: What PyTorch found, with parameters as inputs.
        example_inputs: One for each input.
        options: `target` and all else that `intarsia.compile` takes; `strict` makes it an error,
            too, if the graph cannot be a program.
        mode: None, or `default`.

    Raises:
        SettingError: An option or the mode is unknown.
        IntarsiaError: The graph cannot be a program, and that is an error.
    """
    chosen = _check_options(dict(options or {}), mode)
    try:
        _refuse_gradients(example_inputs)
        return CompiledGraph(graph, chosen)
    except _LIMITS as error:
        return _run_eagerly(graph, chosen, error)


def _check_options(options: dict[str, Any], mode: str | None) -> dict[str, Any]:
    """Return options of `intarsia.compile`.

    Raises:
        SettingError: An option or the mode is unknown.
    """
    if mode not in (None, "default"):
        raise SettingError(
            f"mode {mode!r} is unknown",
            hint="leave it out; options={'placement': 'collage'} looks for the fastest plan",
        )
    known = [
        name
        for name, one in signature(compile_model).parameters.items()
        if name == "target" or one.kind is Parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            raise SettingError(f"option {name!r} is unknown", hint=f"there is {', '.join(known)}")
    return options


def _refuse_gradients(tensors: Sequence[Any]) -> None:
    """Refuse what PyTorch may want to differentiate.

    Raises:
        ModelError: Gradients are on, and a tensor requires them.
    """
    is_wanted = any(isinstance(one, torch.Tensor) and one.requires_grad for one in tensors)
    if torch.is_grad_enabled() and is_wanted:
        raise ModelError(
            "its gradients may be asked for",
            hint="call it under torch.inference_mode() or torch.no_grad()",
        )


def _run_eagerly(
    graph: GraphModule, options: Mapping[str, Any], error: IntarsiaError
) -> Callable[..., Any]:
    """Return what runs a graph as PyTorch does, and say why.

    Raises:
        IntarsiaError: That is an error.
    """
    if options.get("strict"):
        raise error
    count = sum(node.op.startswith("call") for node in graph.graph.nodes)
    logger.warning("PyTorch runs a graph of %d operations: %s", count, with_hint(error))
    forward: Callable[..., Any] = graph.forward
    return forward


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Held:
    """A program, and what it was made of.

    Attributes:
        program: It.
        inputs: Their names.
        outputs: Their names.
        weights: The parameters that its key means by their addresses.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """The program of a graph, and for which parameters it is.

    Attributes:
        held: The program.
        versions: Of each parameter: it, and how often it was written to before.
    """

    held: _Held
    versions: tuple[tuple[int, torch.Tensor, int], ...]


_LIMITS = (ModelError, UnsupportedError, BackendError)
"""What a graph may come to grief with, where all else is the caller's mistake or ours."""

_in_use: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()
"""Programs, by a digest of the exported graph: graphs that come again have them."""


class CompiledGraph:
    """A graph whose programs are made when it is called.

    Args:
        graph: The graph.
        options: Of `intarsia.compile`.

    Attributes:
        programs: Those that there are, by the numbers of the Python program that are in them.

    Raises:
        ModelError: It has outputs in no tuple.
    """

    def __init__(self, graph: GraphModule, options: Mapping[str, Any]) -> None:
        self._graph = graph
        self._options = options
        self._inputs = GraphInputs.of(graph)
        self._outputs = list_outputs(graph, self._inputs.names)
        self._made: dict[tuple[Any, ...], _Made] = {}
        self._changes = 0
        self._eager: Callable[..., Any] | None = None

    @property
    def programs(self) -> dict[tuple[Any, ...], Program]:
        """Those that there are, by the numbers of the Python program that are in them."""
        return {key: made.held.program for key, made in self._made.items()}

    def __call__(self, *args: Any) -> Any:
        """Run the graph.

        Args:
            args: One for each of its inputs.

        Raises:
            IntarsiaError: The graph cannot be a program, and that is an error; or as `run`.
        """
        if self._eager is not None:
            return self._eager(*args)
        try:
            made = self._find(args)
        except _LIMITS as error:
            self._made.clear()
            self._eager = _run_eagerly(self._graph, self._options, error)
            return self._eager(*args)
        tensors = (args[i] for i in self._inputs.tensors)
        feeds = {
            name: to_array(tensor) for name, tensor in zip(made.held.inputs, tensors, strict=True)
        }
        outputs = made.held.program.run(feeds)
        computed = iter([outputs[name] for name in made.held.outputs])
        results = []
        for output in self._outputs:
            if output.source is not None:
                results.append(args[output.source])
            elif not output.is_computed:
                results.append(output.value)
            else:
                array = next(computed)
                results.append(int(array) if output.is_size else to_tensor(array))
        return tuple(results)

    def _find(self, args: Sequence[Any]) -> _Made:
        """Return the program for what a graph is called with.

        Raises:
            IntarsiaError: It cannot be made, or would have to be made too often.
        """
        key = tuple([number_of(args[i]) for i in self._inputs.numbers])
        made = self._made.get(key)
        if made is not None:
            for position, tensor, version in made.versions:
                if args[position] is not tensor or _version(tensor) != version:
                    break
            else:
                return made
            self._changes += 1
            if self._changes > MOST_CHANGES:
                raise ModelError("its parameters keep changing")
        elif len(self._made) == MOST_NUMBERS:
            names = ", ".join(self._inputs.names[i] for i in self._inputs.numbers)
            raise ModelError(f"it has constants that keep changing: {names}")
        made = self._made[key] = self._make(args)
        return made

    def _make(self, args: Sequence[Any]) -> _Made:
        """Return a new program, or one of the same graph.

        Raises:
            ModelError: PyTorch cannot export the graph.
            IntarsiaError: As `intarsia.compile`.
        """
        inputs = self._inputs
        tensors = tuple(args[i] for i in inputs.tensors)
        for position in (*inputs.tensors, *inputs.static):
            if args[position].device.type != "cpu":
                raise ModelError(
                    f"{inputs.names[position]!r} is on {args[position].device}",
                    hint="programs take tensors of the host",
                )
        versions = tuple((i, args[i], _version(args[i])) for i in inputs.static)
        module = BoundGraph(self._graph, inputs, self._outputs, args).eval()
        sizes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for dims in inputs.dynamic)
        try:
            with quietly():
                exported = torch.export.export(
                    module, tensors, dynamic_shapes=(sizes,), strict=False
                )
        except Exception as error:  # whatever an operator's shape function raises
            raise ModelError(f"PyTorch cannot export it: {tell_cause(error)}") from error
        key, weights = _key(exported, self._options)
        held = _in_use.get(key)
        if held is None:
            model = to_onnx(exported)
            names = tuple(
                tuple(value.name or "" for value in values)
                for values in (model.graph.inputs, model.graph.outputs)
            )
            program = compile_model(model, **self._options)
            held = _in_use[key] = _Held(program, names[0], names[1], weights)
        return _Made(held, versions)


def _key(
    exported: ExportedProgram, options: Mapping[str, Any]
) -> tuple[str, tuple[torch.Tensor, ...]]:
    """Return under what the program of an exported graph is found again in this process.

    Parameters, which are returned too, are meant by where they are, and how often they were written
    to.
    """
    weights = tuple(exported.state_dict.values())
    texts = [repr(sorted((name, repr(value)) for name, value in options.items()))]
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            texts.append(str(module.graph))
            inputs = module.graph.find_nodes(op="placeholder")
            texts += [repr(node.meta.get("val")) for node in inputs]
    texts += [f"{exported.graph_signature}", f"{exported.range_constraints}"]
    for name, weight in exported.state_dict.items():
        texts.append(f"{name} {weight.data_ptr()} {_version(weight)} {weight.stride()}")
    for name, value in exported.constants.items():
        is_tensor = isinstance(value, torch.Tensor)
        content = to_array(value.contiguous()).tobytes() if is_tensor else repr(value).encode()
        texts.append(f"{name} {hashlib.sha256(content).hexdigest()}")
    return digest(texts), weights


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; tensors of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - there is no public way


def to_array(tensor: torch.Tensor) -> Array:
    """Return an array over the memory of a tensor of the host."""
    return share(tensor.detach())


def to_tensor(array: Array) -> torch.Tensor:
    """Return a tensor over the memory of an array."""
    if array.dtype.kind != "V":
        return torch.from_dlpack(array)
    bits = array.view(np_dtype(f"uint{8 * array.itemsize}"))  # numpy exports no bfloat16
    return torch.from_dlpack(bits).view(getattr(torch, array.dtype.name))
