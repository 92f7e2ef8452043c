# SPDX-License-Identifier: Apache-2.0
"""From a request to the program of its regions: what a program without Python is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.compiler import read_setting
from intarsia.errors import ReasonCode, TargetError, UnsupportedError
from intarsia.place.request import Request

if TYPE_CHECKING:
    from intarsia.backends.values import Piece, Refusal
    from intarsia.codegen.emit.c_join import ProgramPart
    from intarsia.codegen.emit.c_program import Tensor
    from intarsia.codegen.emit.device_family import DeviceLimits
    from intarsia.codegen.lower.program import Program
    from intarsia.codegen.unit import CpuModel
    from intarsia.extents import Symbol
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.machine import NativeCpu
    from intarsia.place.setting import Capability, Setting
    from intarsia.target import PlacedTarget, Target

_NAMED = 5
"""How many nodes in the way a message names."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Native:
    """A model as one native program, still to be written.

    Attributes:
        program: The calls.
        inputs: In the program's order.
        outputs: Likewise.
        target: The complete target that it is for.
        unit: Of that target.
        cpu: Likewise; None where C is written.
        caches: The folder of all caches.
        sizes: The dimensions that a run is told, each with a size that it may have.
        threads: That share a call.
    """

    program: Program
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    target: Target
    unit: CpuModel
    cpu: NativeCpu | None
    caches: Path
    sizes: Mapping[Symbol, int] = field(default_factory=dict)
    threads: int = 1


def lower_model(request: Request, registers: int | None = None) -> Native:
    """Return the program of a model whose nodes all have native code.

    Args:
        request: What is asked for; its machine may be another one than this.
        registers: Vector registers that kernels in C are shaped for; None means those of the
            target, and that there is nothing but native code.

    Raises:
        UnsupportedError: Some nodes lie elsewhere or have no native code.
        IntarsiaError: As `intarsia.compile`.
    """
    from intarsia.codegen.emit.c_join import ProgramPart, join
    from intarsia.codegen.emit.c_program import Tensor
    from intarsia.codegen.lower.region import lower_region
    from intarsia.codegen.unit import WinogradMode
    from intarsia.native.machine import triple_words
    from intarsia.native.native_target import lowering_options, target_cpu

    threads = request.num_threads or 1
    setting, sizes = _read(replace(request, is_here=False, is_made=True, num_threads=threads))
    pieces = _find_pieces(setting, request, is_c=registers is not None)
    graph, target = setting.graph, _main_target(setting, pieces)
    cpu = target_cpu(target)[0] if target.kind.is_native else None
    options = lowering_options(target)
    unit = options.unit

    def lower(piece: _Piece) -> Program:
        if piece.program is not None:
            return piece.program(piece.region)
        options = lowering_options(piece.target)
        if registers is not None:
            options = replace(options, unit=replace(options.unit, registers=registers))
        # Buffers of the transforms lie on the stack in C; else on the heap, which is a system's.
        has_heap = (
            registers is None
            and cpu is not None
            and (not cpu.triple or triple_words(cpu.triple)[1])
        )
        if not has_heap and not piece.target.attrs.get("winograd"):
            options = replace(options, winograd=WinogradMode.OFF)
        return lower_region(piece.region, options, threads=threads)

    read = {value for piece in pieces for value in piece.region.inputs}
    inputs = [i for i in graph.inputs if i in read]
    outputs = list(dict.fromkeys(graph.outputs))
    parts = [
        ProgramPart(lower(piece), tuple(piece.region.inputs), tuple(piece.region.outputs))
        for piece in pieces
    ]
    program = (
        _in_order(parts[0], inputs, outputs) if len(parts) == 1 else join(parts, inputs, outputs)
    )
    unit = unit if registers is None else replace(unit, registers=registers)
    tensors = [
        tuple(
            Tensor(
                graph.values[i].name,
                graph.values[i].dtype,
                graph.values[i].extents or graph.values[i].shape or (),
            )
            for i in side
        )
        for side in (inputs, outputs)
    ]
    caches = request.settings.cache_folder()
    return Native(program, tensors[0], tensors[1], target, unit, cpu, caches, sizes, threads)


def lower_for_gpu(request: Request) -> tuple[Program, Target, DeviceLimits]:
    """Return the program of a model for an NVIDIA GPU, its target, and what shaped its kernels.

    Args:
        request: What is asked for; no GPU has to be here.

    Raises:
        TargetError: The target is not one GPU's, or does not name its architecture.
        UnsupportedError: Some nodes have no native code.
        IntarsiaError: As `intarsia.compile`.
    """
    from intarsia.codegen.lower.region import lower_region
    from intarsia.graph.region import Region
    from intarsia.native.ptx import capability_of, gpu_limits

    setting = read_setting(replace(request, is_here=False, is_made=True, num_threads=1))
    graph, (placed, *others) = setting.graph, setting.config.targets
    target = placed.target
    if others or target.kind.name not in ("cuda", "nvptx") or capability_of(target) is None:
        raise TargetError(
            "PTX is written for one NVIDIA GPU whose architecture the target names",
            target=str(target),
            hint="-t 'cuda -arch=sm_80'",
        )
    piece = _Piece(target, Region.of(graph, range(len(graph.nodes))))
    _refuse(graph, piece)
    _check_outputs(graph, set(piece.region.outputs), target)
    limits = gpu_limits(target)
    return lower_region(piece.region, limits.machine), target, limits


def _read(request: Request) -> tuple[Setting, Mapping[Symbol, int]]:
    """Return the prepared model, and the dimensions that stay free with a size for each.

    Those that are bounded stay free; others have nominal sizes.

    Raises:
        UnsupportedError: The shape of a value does not follow from those of the inputs.
        IntarsiaError: As `read_setting`.
    """
    from intarsia.graph.free_sizes import FreeSizesError
    from intarsia.place.setting import make_free_setting, make_setting

    said = request.shapes or {}
    bounded = [name for name, sizes in said.items() if isinstance(sizes, str)]
    if not bounded:
        return read_setting(request), {}
    machine = request.find_machine()
    try:
        return make_setting(request, machine), {}
    except FreeSizesError as error:
        signature = error.signature
    nominal = signature.nominal_sizes()
    bounds = {name: ends for name, ends in signature.bounds.items() if name in bounded}
    fixed = {name: (size,) for name, size in nominal.items() if name not in bounds}
    request = replace(request, shapes={**said, **fixed})
    setting, symbols = make_free_setting(request, machine, nominal, bounds)
    return setting, {symbols[name]: nominal[name] for name in bounds}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A region of the program.

    Attributes:
        target: Where it runs.
        region: Its nodes.
        program: Of a backend that calls a library: what makes the region's program.
    """

    target: Target
    region: Region
    program: Callable[[Region], Program] | None = None


def _in_order(part: ProgramPart, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """Return the program of a whole model with the model's order of inputs and outputs."""
    from intarsia.codegen.storage import StorageKind

    orders = {
        StorageKind.INPUT: [inputs.index(i) for i in part.inputs],
        StorageKind.OUTPUT: [outputs.index(i) for i in part.outputs],
    }
    storages = tuple(
        replace(item, index=orders[item.kind][int(item.index)]) if item.kind in orders else item
        for item in part.program.storages
    )
    return replace(part.program, storages=storages)


def _maker(capability: Capability, *, is_c: bool) -> Callable[[Region], Program] | None:
    """Return what makes a region of a target that calls a library a part of a program."""
    backend, context = capability.backend, capability.context
    if is_c:
        make = backend.c_program
        return None if make is None else lambda region: make(region, context)
    link = backend.linked_program
    return None if link is None else lambda region: link(region, context)


def _find_pieces(setting: Setting, request: Request, *, is_c: bool) -> list[_Piece]:
    """Return the regions of a model with their targets, in the order in which they run.

    Args:
        setting: The model on its machine.
        request: How nodes find their targets.
        is_c: Whether the program is to be C, and not machine code.

    Raises:
        UnsupportedError: Some nodes lie on other targets, or have no native code.
    """
    from intarsia.graph.region import Region
    from intarsia.tuning.absent.explaining import decide_absent

    graph, targets = setting.graph, setting.config.targets
    whole = Region.of(graph, range(len(graph.nodes)))
    if len(targets) == 1 and _has_native_code(targets[0].target):
        found = [_Piece(targets[0].target, whole)]
    else:
        makers = {one.target: _maker(one, is_c=is_c) for one in setting.capabilities}
        linked = [] if is_c else [target for target, maker in makers.items() if maker is not None]
        pieces = decide_absent(setting, request.placement, request.costs)[0].pieces
        while refused := _refused_together(setting, pieces, linked):
            setting = setting.without(*refused)
            pieces = decide_absent(setting, request.placement, request.costs)[0].pieces
        natives = {piece.target for piece in pieces if _has_native_code(piece.target.target)}
        first = [piece.target for piece in pieces if piece.target in natives][:1]
        mixed = any(makers.get(piece.target) is not None for piece in pieces)
        _tell_idle(setting, [one for one in makers if makers[one] is not None], pieces)
        away = [
            f"{graph.nodes[node].name!r} ({graph.nodes[node].op_type}) on {piece.target}"
            for piece in pieces
            if piece.target not in first and makers.get(piece.target) is None
            for node in piece.nodes
        ]
        if away or not pieces:
            raise UnsupportedError(
                f"the model is not one region of native code: {_some(away)}",
                hint="give -t llvm alone; a package (--emit package) may mix targets",
            )
        found = [
            _Piece(piece.target.target, Region.of(graph, piece.nodes), makers.get(piece.target))
            for piece in pieces
        ]
        found = found if mixed else [_Piece(found[0].target, whole)]
    for piece in found:
        if piece.program is None:
            _refuse(graph, piece)
    made = {value for piece in found for value in piece.region.outputs}
    _check_outputs(graph, made, found[0].target)
    return found


def _tell_idle(
    setting: Setting, targets: Collection[PlacedTarget], pieces: Sequence[Piece]
) -> None:
    """Warn of a target that has no part in a program because sizes are free."""
    used = {piece.target for piece in pieces}
    for one in setting.capabilities:
        if one.target not in targets or one.target in used:
            continue
        refusals = one.refusals.values()
        free = next((each for each in refusals if each.code == ReasonCode.DYNAMIC_SHAPE), None)
        if free is not None:
            logger.warning(
                "nothing of the program is on %s: %s; fix the sizes (--shape) for its library",
                one.target,
                free.reason,
            )


def _refused_together(
    setting: Setting, pieces: Sequence[Piece], linked: Collection[PlacedTarget]
) -> tuple[PlacedTarget, Mapping[int, Refusal]] | None:
    """Return the nodes of a region that its library refuses as a whole, so that others take them.

    They are those of the functions that are refused by themselves, or all if none is.

    Args:
        setting: The model on its machine.
        pieces: Its regions.
        linked: The targets that call a library.
    """
    from intarsia.backends.values import Candidate
    from intarsia.graph.region import Region

    graph = setting.graph
    for piece in (piece for piece in pieces if piece.target in linked):
        (capability,) = (one for one in setting.capabilities if one.target == piece.target)
        backend, context = capability.backend, capability.context
        region = Region.of(graph, piece.nodes)

        def refusal_of(part: Region, target: PlacedTarget = piece.target) -> Refusal | None:
            return backend.check(Candidate.plain(part, target), context)  # noqa: B023 - used here

        whole = refusal_of(region)
        if whole is None:
            continue
        groups = backend.groups(region, context) if backend.groups is not None else ()
        parts = [Region.of(graph, group.nodes) for group in groups]
        alone = set(region.nodes) - {node for part in parts for node in part.nodes}
        parts += [Region.of(graph, [node]) for node in sorted(alone)]
        failed = [node for part in parts if refusal_of(part) is not None for node in part.nodes]
        return piece.target, dict.fromkeys(failed or region.nodes, whole)
    return None


def _main_target(setting: Setting, pieces: Sequence[_Piece]) -> Target:
    """Return the complete target of a program: that of its native code, or which that refines."""
    for piece in pieces:
        if piece.program is None:
            return piece.target
    (refined, *_) = (
        one.context.refined for one in setting.capabilities if one.target.target == pieces[0].target
    )
    return refined


def _has_native_code(target: Target) -> bool:
    return target.kind.is_native or target.kind.is_source


def _refuse(graph: Graph, piece: _Piece) -> None:
    """Check that every node of a region has native code.

    Raises:
        UnsupportedError: Some have none.
    """
    from intarsia.codegen.lower.region import refuse_node

    problems = []
    for node in (graph.nodes[number] for number in piece.region.nodes):
        problem = refuse_node(graph, node)
        if problem is not None:
            problems.append((node.name, f"{node.name!r} ({node.op_type}): {problem[1]}"))
    if problems:
        raise UnsupportedError(
            f"{len(problems)} of {len(graph.nodes)} nodes have no native code on {piece.target}: "
            f"{_some([text for _, text in problems])}",
            node=problems[0][0],
            target=str(piece.target),
            hint="write a package instead (--emit package), in which other targets take them",
        )


def _check_outputs(graph: Graph, made: Collection[int], target: Target) -> None:
    """Check that the model's outputs are what its nodes compute.

    Raises:
        UnsupportedError: One is an input or a constant.
    """
    idle = [graph.values[i].name for i in graph.outputs if i not in made]
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
