# SPDX-License-Identifier: Apache-2.0
"""What operations of the loop-level IR become on a core: micro-operations by class, and latencies.

A class of `target.cores` says on which pipes it runs. The mapping is that of LLVM's code for each
architecture, looked at in the assembly of our kernels.

Source:
    Fog, "Instruction tables", 2024; Arm's software optimization guides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.blocked_dots import without_blocks
from intarsia.codegen.unit import CpuModel
from intarsia.target.cores import Core


class Slots(dict[str, float]):
    """Cycles of a pipe, by class; 0 of those that are not there."""

    def __missing__(self, kind: str) -> float:
        return 0.0

    def add(self, other: Mapping[str, float]) -> None:
        """Add cycles of other operations."""
        for kind, cycles in other.items():
            self[kind] += cycles


@dataclass(frozen=True, slots=True, eq=False)
class Instructions:
    """The instruction set and core that kernels are compiled for; a key by identity.

    Attributes:
        core: What runs them.
        unit: What they are shaped for; `bits` is that of the registers that they get.
        family: The architecture, as targets name it.
    """

    core: Core
    unit: CpuModel
    family: str

    def pieces(self, type_: ir.Type, nbytes: int = 0) -> int:
        """Return how many registers hold a value."""
        if type_.lanes == 1:
            return 1
        if not self.unit.bits:
            return type_.lanes
        width = nbytes or _item_bytes(type_, self)
        return max(1, -(-type_.lanes * width * 8 // self.unit.bits))

    def slots(self, type_: ir.Type, kind: str) -> float:
        """Return the cycles of a pipe that one operation of a class takes on such a value."""
        each = self.core.slots.get(kind, 1.0)
        if type_.lanes == 1 or not self.unit.bits:
            return each * self.pieces(type_)
        total = type_.lanes * _item_bytes(type_, self) * 8
        return each * max(1, -(-total // min(self.core.bits, self.unit.bits)))

    def latency(self, kind: str) -> float:
        """Return the latency of a class."""
        return self.core.latency.get(kind, 1.0)

    @property
    def is_x86(self) -> bool:
        """Whether operands may be in memory."""
        return self.family == "x86"


def _item_bytes(type_: ir.Type, isa: Instructions) -> int:
    if type_.dtype == "bool":  # a mask has the width of what was compared, mostly float32
        return 4
    if type_.dtype == "float16" and isa.unit.has_half:
        return 2
    return int(np.dtype(type_.dtype).itemsize)


_COMPARISONS = ("min", "max")
_WORD = 4


def instructions_of(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one case a line
    operation: ir.Operation, isa: Instructions, loaded: Collection[ir.IrValue] = ()
) -> tuple[Slots, float]:
    """Return the slots by class of an operation, and its latency.

    Args:
        operation: None that has a body.
        isa: What it is for.
        loaded: Values that come from memory as scalars, which a splat takes from there.
    """
    match operation:
        case ir.Constant() | ir.Bitcast() | ir.Barrier():
            return Slots(), 0.0
        case ir.Prefetch():
            return Slots(load=1.0), 0.0
        case ir.TileLoad():  # a row is a register of 512 bits
            return Slots(load=float(ir.TILE_ROWS)), isa.latency("tile_load")
        case ir.TileStore():
            return Slots(store=float(ir.TILE_ROWS)), 1.0
        case ir.TileZero():
            return Slots(), 0.0
        case ir.TileDot():
            return _tile_dot(isa)
        case ir.IndexValue():
            return Slots(scalar=1.0), 1.0
        case ir.Fma(result=result):
            if result.type.is_float and not isa.unit.has_fma:
                pair = {kind: isa.slots(result.type, kind) for kind in ("mul", "add")}
                return Slots(pair), isa.latency("add")
            if not result.type.is_float:
                kind = "scalar" if result.type.lanes == 1 else "mul"
                return Slots({kind: 2 * isa.slots(result.type, kind)}), isa.latency("mul")
            return Slots(fma=isa.slots(result.type, "fma")), isa.latency("fma")
        case ir.Dot():
            return _dot(operation, isa)
        case ir.Mma() | ir.WarpShuffle():
            raise AssertionError("an operation of a GPU's warp")
        case ir.Load(result=result, stride=stride, count=count):
            if result.type.lanes > 1 and stride not in (0, 1):
                inserts = Slots(load=float(count), shuffle=float(count))
                return inserts, isa.latency("load") + count * isa.latency("shuffle")
            slots = Slots(load=isa.slots(result.type, "load"))
            if result.type.dtype == "bool" and result.type.lanes > 1:
                slots["shuffle"] += isa.pieces(result.type)
                slots["alu"] += isa.pieces(result.type)
            if 1 < count < result.type.lanes:  # in powers of two
                slots["load"] = float(count.bit_count())
                slots["shuffle"] += count.bit_count() - 1
            return slots, isa.latency("load")
        case ir.Store(value=value, stride=stride, count=count):
            type_ = value.type
            if type_.lanes > 1 and stride != 1:
                return Slots(store=float(count), shuffle=float(count)), 1.0
            slots = Slots(store=isa.slots(type_, "store"))
            if type_.dtype == "bool" and type_.lanes > 1:
                slots["shuffle"] += 2 * isa.pieces(type_)
            if 1 < count < type_.lanes:
                slots["store"] = float(count.bit_count())
                slots["shuffle"] += count.bit_count() - 1
            return slots, 1.0
        case ir.Splat(result=result, operand=operand):
            if operand in loaded or isa.family == "riscv" or not isa.unit.bits:
                return Slots(), 0.0
            return Slots(shuffle=float(isa.pieces(result.type))), isa.latency("shuffle")
        case ir.Shuffle():
            return _shuffle(operation, isa)
        case ir.Extract(lane=lane, operand=operand):
            if lane == 0 or not isa.unit.bits or not operand.type.is_float:
                return Slots(shuffle=float(lane > 0 or not operand.type.is_float)), 1.0
            return Slots(shuffle=1.0), isa.latency("shuffle")
        case ir.Reduce(operand=operand):
            steps = max(1, int(math.log2(max(2, operand.type.lanes))))
            kind = "add" if operand.type.is_float else "alu"
            if not isa.unit.bits:
                return Slots({kind: float(operand.type.lanes - 1)}), steps * isa.latency(kind)
            each = isa.latency("shuffle") + isa.latency(kind)
            return Slots({"shuffle": float(steps), kind: float(steps)}), steps * each
        case ir.Cast(result=result, operand=operand):
            return _cast(result.type, operand.type, isa)
        case ir.Compare(left=left):
            return _simple(left.type, "add" if left.type.is_float else "alu", isa)
        case ir.Select(result=result):
            twice = 2.0 if isa.is_x86 and not isa.core.overlaps and isa.unit.bits < _ZMM else 1.0
            slots, latency = _simple(result.type, "alu", isa)
            return Slots({kind: n * twice for kind, n in slots.items()}), latency * twice
        case ir.Unary(name=name, result=result):
            return _unary(name, result.type, isa)
        case ir.Binary(name=name, result=result):
            return _binary(name, result.type, isa)
        case ir.Loop():
            raise AssertionError("a loop has a body")


_ZMM = 512


def _simple(type_: ir.Type, kind: str, isa: Instructions) -> tuple[Slots, float]:
    if type_.lanes == 1 and not type_.is_float:
        kind = "scalar"
    return Slots({kind: isa.slots(type_, kind)}), isa.latency(kind)


def _unary(name: str, type_: ir.Type, isa: Instructions) -> tuple[Slots, float]:
    if name == "sqrt":
        return _iterative(type_, isa.core.sqrt, isa)
    if name in ("floor", "ceil", "trunc", "rint") and type_.is_float:
        slots, latency = _simple(type_, "add", isa)
        if isa.is_x86 and not isa.core.overlaps:
            return Slots({kind: 2 * n for kind, n in slots.items()}), 2 * latency
        return slots, latency
    return _simple(type_, "add" if name in ("isnan", "bfloat16") else "alu", isa)


def _binary(  # noqa: PLR0911 - one case a line
    name: str, type_: ir.Type, isa: Instructions
) -> tuple[Slots, float]:
    if type_.is_float:
        match name:
            case "mul":
                return _simple(type_, "mul", isa)
            case "div":
                return _iterative(type_, isa.core.divide, isa)
            case "min" | "max":
                slots, latency = _simple(type_, "add" if not isa.core.overlaps else "alu", isa)
                if not isa.is_x86:  # a comparison and a selection: NaN is not as Arm's has it
                    slots["alu"] += isa.slots(type_, "alu")
                    latency += isa.latency("alu")
                return slots, latency
            case "rem":
                return Slots(divide=20.0 * type_.lanes), 40.0
            case "copysign":
                slots, latency = _simple(type_, "alu", isa)
                return Slots({kind: 2 * n for kind, n in slots.items()}), 2 * latency
            case _:
                return _simple(type_, "add", isa)
    if name in ("div", "rem"):  # by a constant mostly: a product and shifts
        return Slots(scalar=4.0 * type_.lanes), 6.0
    wide = np.dtype(type_.dtype).itemsize > _WORD
    if name == "mul" and type_.lanes > 1:
        slots, _ = _simple(type_, "mul", isa)
        factor = 5.0 if wide else 2.0 if isa.is_x86 and not isa.core.overlaps else 1.0
        return Slots({kind: factor * n for kind, n in slots.items()}), 3 * factor
    if name in _COMPARISONS and (type_.lanes == 1 or (wide and isa.unit.bits < _ZMM)):
        slots, latency = _simple(type_, "alu", isa)
        return Slots({kind: 2 * n for kind, n in slots.items()}), 2 * latency
    return _simple(type_, "alu", isa)


def _iterative(type_: ir.Type, cycles: float, isa: Instructions) -> tuple[Slots, float]:
    """Return what a division or a square root takes, which a pipe works on for some time."""
    factor = 2.0 if type_.dtype == "float64" else 1.0
    if type_.lanes == 1 or not isa.unit.bits:
        least = min(cycles, isa.latency("divide"))
        each = least if isa.core.in_order else max(3.0, least / 2)
        return Slots(divide=factor * each * type_.lanes), isa.latency("divide")
    return Slots(divide=factor * cycles * isa.slots(type_, "alu")), isa.latency("divide")


def _cast(result: ir.Type, operand: ir.Type, isa: Instructions) -> tuple[Slots, float]:
    if result.lanes == 1:
        if result.is_float or operand.is_float:
            return Slots(add=1.0), isa.latency("add") + 1
        return Slots(scalar=1.0), 1.0
    new, old = isa.pieces(result), isa.pieces(operand)
    if not isa.unit.bits:
        kind = "add" if result.is_float or operand.is_float else "scalar"
        return Slots({kind: float(result.lanes)}), isa.latency(kind)
    if "float16" in (result.dtype, operand.dtype) and not isa.unit.has_half:
        return Slots(alu=8.0 * new), 8.0
    slots, latency = Slots(), 0.0
    if result.is_float != operand.is_float or (result.is_float and result.dtype != operand.dtype):
        slots["add"] += isa.slots(max((result, operand), key=isa.pieces), "add")
        latency += isa.latency("add")
    if _item_bytes(result, isa) != _item_bytes(operand, isa):
        slots["shuffle"] += max(new, old)
        latency += isa.latency("shuffle")
        if result.dtype == "bool" or operand.dtype == "bool":
            slots["alu"] += max(new, old)
    elif not slots:
        slots["alu"] += float("bool" in (result.dtype, operand.dtype)) * new
    return slots, latency


def _shuffle(shuffle: ir.Shuffle, isa: Instructions) -> tuple[Slots, float]:
    operand = shuffle.left.type
    if not isa.unit.bits:
        return Slots(), 0.0
    width = max(1, isa.unit.bits // 8 // _item_bytes(operand, isa))
    total = 0
    for start in range(0, len(shuffle.lanes), width):
        lanes = shuffle.lanes[start : start + width]
        sources = {lane // width for lane in lanes}
        in_place = all(lane % width == i for i, lane in enumerate(lanes)) and len(sources) == 1
        total += 0 if in_place else max(1, len(sources))
        # Parts of registers are put together by an instruction for each but the first.
        total += len({lane // operand.lanes for lane in lanes}) - 1 if in_place else 0
    return Slots(shuffle=float(total)), isa.latency("shuffle") if total else 0.0


def _dot(dot: ir.Dot, isa: Instructions) -> tuple[Slots, float]:
    """Return what a dot product takes: one instruction, or those that `emit.llvm_dots` writes."""
    each, unit = isa.slots(dot.result.type, "fma"), isa.unit
    bytes_, floats = dot.group == _WORD, dot.result.type.is_float
    if dot.is_blocked:
        return _blocked_dot(dot, isa)
    is_turned = dot.left.type.dtype != dot.right.type.dtype and unit.multiplies_unsigned
    if bytes_ and is_turned and "i8mm" not in unit.dots:  # `sdot` and a difference
        alu = isa.slots(dot.result.type, "alu")
        return Slots(fma=each, alu=alu), isa.latency("fma") + isa.latency("alu")
    if (bytes_ and unit.has_byte_dots) or (floats and unit.has_bf16_dots):
        return Slots(fma=each), isa.latency("fma")
    if not unit.bits:
        slots = {"scalar": 2.0 * dot.group * dot.result.type.lanes}
        return Slots(slots), dot.group * 2.0
    alu = isa.slots(dot.result.type, "alu")
    if floats:
        return Slots(fma=2 * each, alu=2 * alu), 2 * isa.latency("fma") + 1
    if not bytes_:
        return Slots(mul=each, alu=alu), isa.latency("mul") + 1
    if dot.fits_pairs and unit.has_byte_pairs:
        return Slots(mul=2 * each, alu=alu), 2 * isa.latency("mul") + 1
    return Slots(mul=2 * each, alu=4 * alu), isa.latency("mul") + 3


def _blocked_dot(dot: ir.Dot, isa: Instructions) -> tuple[Slots, float]:
    """Return what a blocked dot product takes: one instruction, or shuffles and two others.

    Where a core does not say what its own is like, it is as a dot product.
    """
    if isa.unit.has_blocked_dots(dot.left.type.dtype):
        kind = "bfmmla" if dot.result.type.is_float else "mmla"
        kind = kind if kind in isa.core.ports else "fma"
        return Slots({kind: isa.slots(dot.result.type, kind)}), isa.latency(kind)
    total, longest = Slots(), 0.0
    for part in without_blocks(dot):
        slots, latency = instructions_of(part, isa)
        total.add(slots)
        longest += latency
    return total, longest


def _tile_dot(isa: Instructions) -> tuple[Slots, float]:
    """Return what a product of tiles takes: a cycle for each row, of a unit of its own.

    Where no such unit is described, multiply-adds stand for it at the same rate.
    """
    if "tile" not in isa.core.ports:
        return Slots(fma=float(2 * ir.TILE_ROWS)), isa.latency("fma")
    return Slots(tile=isa.core.slots["tile"]), isa.latency("tile")


def throughput(slots: Slots, issued: float, core: Core) -> float:
    """Return the cycles that pipes need at least, if each operation takes the best of its pipes.

    For any set of pipes, what can run on these alone has to run there: the largest such bound is
    reached by a fractional assignment (Hall's theorem for the transport problem).
    """
    groups: dict[frozenset[str], float] = {}
    for kind, count in slots.items():
        if count:
            pipes = frozenset(core.ports[kind])
            groups[pipes] = groups.get(pipes, 0.0) + count
    unions = set(groups)
    for pipes in groups:
        unions |= {pipes | other for other in unions}
    bounds = [
        sum(count for pipes, count in groups.items() if pipes <= union) / len(union)
        for union in unions
    ]
    return max([issued / core.issue, *bounds])
