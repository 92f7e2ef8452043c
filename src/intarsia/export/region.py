# SPDX-License-Identifier: Apache-2.0
"""From a request to the program of its one region: what a program without Python is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.compiler import read_setting
from intarsia.errors import UnsupportedError
from intarsia.place.request import Request

if TYPE_CHECKING:
    from intarsia.codegen.emit.c_program import Tensor
    from intarsia.codegen.lower.program import Program
    from intarsia.codegen.unit import VectorUnit
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.machine import NativeCpu
    from intarsia.place.setting import Setting
    from intarsia.target import Target

_NAMED = 5
"""How many nodes in the way a message names."""


@dataclass(frozen=True, slots=True)
class Native:
    """A model as one native program, still to be written."""

    program: Program
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    target: Target
    unit: VectorUnit
    cpu: NativeCpu | None
    caches: Path


def lower_model(request: Request, registers: int | None = None) -> Native:
    """Return the program of a model whose nodes all have native code.

    Args:
        request: What is asked for; its machine may be another one than this.
        registers: Vector registers that kernels are shaped for; None means those of the target.

    Raises:
        UnsupportedError: Some nodes lie elsewhere or have no native code.
        IntarsiaError: As `intarsia.compile`.
    """
    from intarsia.codegen.emit.c_program import Tensor
    from intarsia.codegen.lower.region import lower_region
    from intarsia.codegen.storage import StorageKind
    from intarsia.codegen.unit import WinogradMode
    from intarsia.native.machine import triple_words
    from intarsia.native.native_target import lowering_options, target_cpu

    setting = read_setting(replace(request, is_here=False))
    target, region = _find_region(setting)
    graph = setting.graph
    cpu = target_cpu(target)[0] if target.kind.is_native else None
    options = lowering_options(target)
    unit, winograd = options.unit, options.winograd
    if registers is not None:
        unit = replace(unit, registers=registers)
    # The transforms' local buffers lie on the stack in C; else on the heap, which is a system's.
    has_heap = (
        registers is None and cpu is not None and (not cpu.triple or triple_words(cpu.triple)[1])
    )
    if not has_heap and not target.attrs.get("winograd"):
        winograd = WinogradMode.OFF
    program = lower_region(
        region,
        unit,
        winograd,
        half_weights=options.half_weights,
        accuracy=options.accuracy,
        is_bf16=options.is_bf16,
        requantise=options.requantise,
    )
    inputs = [i for i in graph.inputs if i in region.inputs]
    outputs = list(dict.fromkeys(graph.outputs))
    orders = {
        StorageKind.INPUT: [inputs.index(i) for i in region.inputs],
        StorageKind.OUTPUT: [outputs.index(i) for i in region.outputs],
    }
    storages = tuple(
        replace(item, index=orders[item.kind][item.index]) if item.kind in orders else item
        for item in program.storages
    )
    tensors = [
        tuple(
            Tensor(graph.values[i].name, graph.values[i].dtype, graph.values[i].shape or ())
            for i in side
        )
        for side in (inputs, outputs)
    ]
    program = replace(program, storages=storages)
    caches = request.settings.cache_folder()
    return Native(program, tensors[0], tensors[1], target, unit, cpu, caches)


def _find_region(setting: Setting) -> tuple[Target, Region]:
    """Return the whole model as a region, and the target of native code that takes it.

    Raises:
        UnsupportedError: Some nodes lie on other targets, or have no native code.
    """
    from intarsia.graph.region import Region
    from intarsia.place.decide import decide_in_order

    graph, targets = setting.graph, setting.config.targets
    if len(targets) == 1 and _has_native_code(targets[0].target):
        target = targets[0].target
    else:
        pieces = decide_in_order(setting).pieces
        natives = [piece.target for piece in pieces if _has_native_code(piece.target.target)]
        away = [
            f"{graph.nodes[node].name!r} ({graph.nodes[node].op_type}) on {piece.target}"
            for piece in pieces
            if piece.target not in natives[:1]
            for node in piece.nodes
        ]
        if away or not natives:
            raise UnsupportedError(
                f"the model is not one region of native code: {_some(away)}",
                hint="give -t llvm alone; a package (--emit package) may mix targets",
            )
        target = natives[0].target
    _refuse(graph, target)
    region = Region.of(graph, range(len(graph.nodes)))
    _check_outputs(graph, region, target)
    return target, region


def _has_native_code(target: Target) -> bool:
    return target.kind.is_native or target.kind.is_source


def _refuse(graph: Graph, target: Target) -> None:
    """Check that every node has native code.

    Raises:
        UnsupportedError: Some have none.
    """
    from intarsia.codegen.lower.region import refuse_node

    problems = []
    for node in graph.nodes:
        problem = refuse_node(graph, node)
        if problem is not None:
            problems.append((node.name, f"{node.name!r} ({node.op_type}): {problem[1]}"))
    if problems:
        raise UnsupportedError(
            f"{len(problems)} of {len(graph.nodes)} nodes have no native code on {target}: "
            f"{_some([text for _, text in problems])}",
            node=problems[0][0],
            target=str(target),
            hint="write a package instead (--emit package), in which other targets take them",
        )


def _check_outputs(graph: Graph, region: Region, target: Target) -> None:
    """Check that the model's outputs are what its nodes compute.

    Raises:
        UnsupportedError: One is an input or a constant.
    """
    idle = [graph.values[i].name for i in graph.outputs if i not in region.outputs]
    if idle:
        raise UnsupportedError(
            f"nothing computes the output {_some([repr(name) for name in idle])}: "
            "it is an input or a constant",
            target=str(target),
            hint="take it out of the model's outputs",
        )


def _some(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_NAMED])
    return f"{shown}; ..." if len(texts) > _NAMED else shown
