# SPDX-License-Identifier: Apache-2.0
"""What layers cost on a Cortex-M: the library's loops, turn by turn, on the core's pipes.

The library's sources are the user's, and there is no such core here, so its loops are described by
what one turn of each loads, multiplies and stores with the instructions of each build: those of
Helium (vectors of 128 bits), of DSP (two products at once), or neither. The cycles are those of
the same cores as of our own kernels (`codegen.cycles`), and as far off.

Source:
    Lai, Suda and Chandra, "CMSIS-NN: Efficient Neural Network Kernels for Arm Cortex-M CPUs", 2018,
    sections 3 and 4 (blocks of two by two, widened bytes, images to columns); Arm, "Helium
    Programmer's Guide: Machine Learning" (products of a row by four, with VMLADAVA).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from intarsia.backends.cmsis_nn.layers import COMPUTED, MOVES, refuse_layer, window_of
from intarsia.backends.tflite.layers import Layer, is_same, read_layers
from intarsia.codegen.cycles.instructions import Slots, throughput

if TYPE_CHECKING:
    from intarsia.graph.region import Region
    from intarsia.target.cores import Core

CALL_CYCLES = 400.0
"""Of one call: its checks, and what is before and after its loops."""

_VECTOR_BITS = 128
_COUNTING = 2.0
"""Instructions that count the turns of a loop, and end it."""
_IMAGE = 4


@dataclass(frozen=True, slots=True)
class _LoopTurn:
    """One turn of a loop.

    Attributes:
        makes: How many products, or elements, it deals with.
        vectors: Operations on vectors of 128 bits, by class.
        scalars: Others.
    """

    makes: int
    vectors: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)

    def cycles(self, core: Core) -> float:
        """Return the cycles of one thing that it makes."""
        wide = _VECTOR_BITS / core.bits
        slots, issued = Slots(), _COUNTING
        for counts, each in ((self.vectors, wide), (self.scalars, 1.0)):
            for kind, count in counts.items():
                slots[kind] += count * each * core.slots.get(kind, 1.0)
                issued += count
        slots["scalar"] += _COUNTING
        return (throughput(slots, issued, core) + core.taken) / self.makes


_PLAIN = {
    "product": _LoopTurn(4, scalars={"load": 4, "scalar": 4}),
    "by channel": _LoopTurn(1, scalars={"load": 2, "scalar": 2}),
    "gather": _LoopTurn(4, scalars={"load": 1, "store": 1, "scalar": 2}),
    "result": _LoopTurn(1, scalars={"load": 2, "store": 1, "scalar": 16}),
    "add": _LoopTurn(1, scalars={"load": 2, "store": 1, "scalar": 36}),
    "mul": _LoopTurn(1, scalars={"load": 2, "store": 1, "scalar": 18}),
    "softmax": _LoopTurn(1, scalars={"load": 2, "store": 1, "scalar": 200}),
    "compare": _LoopTurn(1, scalars={"load": 1, "scalar": 2}),
    "turn": _LoopTurn(1, scalars={"load": 1, "store": 1, "scalar": 3}),
}
_DSP = _PLAIN | {
    "product": _LoopTurn(16, scalars={"load": 4, "scalar": 16}),
    "by channel": _LoopTurn(16, scalars={"load": 8, "scalar": 20}),
}
_HELIUM = _PLAIN | {
    "product": _LoopTurn(64, vectors={"load": 5, "mul": 4, "alu": 1}),
    "by channel": _LoopTurn(16, vectors={"load": 5, "mul": 4}),
    "gather": _LoopTurn(16, vectors={"load": 1, "store": 1}),
    "result": _LoopTurn(4, vectors={"load": 3, "store": 1, "alu": 10}),
    "add": _LoopTurn(4, vectors={"load": 2, "store": 1, "alu": 24}),
    "mul": _LoopTurn(4, vectors={"load": 2, "store": 1, "mul": 1, "alu": 9}),
    "softmax": _LoopTurn(4, vectors={"load": 2, "store": 1, "alu": 90}),
    "compare": _LoopTurn(16, vectors={"load": 1, "alu": 1}),
}
_LOOPS: Mapping[str, Mapping[str, _LoopTurn]] = {"": _PLAIN, "_dsp": _DSP, "_mve": _HELIUM}


def region_cycles(region: Region, core: Core, variant: str) -> float | None:
    """Return the cycles of one run of a region.

    Args:
        region: Of layers that the library computes.
        core: What runs it.
        variant: Which build of the library it has: `_mve`, `_dsp`, or empty.

    Returns:
        None where a node is in no such layer.
    """
    reading = read_layers(region, COMPUTED, refuse_layer)
    if reading.reasons:
        return None
    loops = {name: turn.cycles(core) for name, turn in _LOOPS[variant].items()}
    border = {*region.inputs, *region.outputs}
    cycles = 0.0
    for layer in reading.layers:
        cycles += 0.0 if layer.op_type in MOVES else CALL_CYCLES
        cycles += sum(count * loops[name] for name, count in _work(layer))
        for codes in {codes.value.id: codes for codes in (*layer.operands, layer.result)}.values():
            if codes.value.id in border and layer.op_type not in MOVES and _is_turned(codes.shape):
                cycles += CALL_CYCLES + prod(codes.shape) * loops["turn"]
    return cycles


def _is_turned(shape: tuple[int, ...]) -> bool:
    return len(shape) == _IMAGE and shape[1] > 1 and prod(shape[2:]) > 1


def _work(layer: Layer) -> Iterator[tuple[str, float]]:
    """Yield the loops of a layer, and how much each does."""
    x, made = layer.operands[0], prod(layer.result.shape)
    match layer.op_type:
        case "Conv":
            weights = layer.operands[1].shape
            taps = prod(weights[1:])
            is_depthwise = weights[1] == 1 and x.shape[1] > 1
            yield "by channel" if is_depthwise else "product", made * taps
            yield "result", made
            if not is_depthwise and prod(weights[2:]) > 1:
                yield "gather", made / weights[0] * taps
        case "Gemm" | "MatMul":
            yield "product", made * x.shape[-1]
            yield "result", made
        case "Add" | "Mul":
            yield layer.op_type.lower(), made
        case "Softmax":
            yield "softmax", made
        case op_type if op_type in MOVES:
            return
        case _:
            taps = prod(window_of(layer).kernel)
            is_kept = is_same(x.quantity, layer.result.quantity)
            yield "compare" if is_kept else "by channel", made * taps
            if not layer.op_type.endswith("MaxPool"):
                yield "result", made
