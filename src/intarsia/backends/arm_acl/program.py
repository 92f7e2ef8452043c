# SPDX-License-Identifier: Apache-2.0
"""A region as tables: tensors, and calls of the library's functions; the C++ source that they are.

The enumerations are those of `source/intarsia_acl.hpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

NCHW, NHWC = "NCHW", "NHWC"


class TensorKind(StrEnum):
    """Where a tensor lies."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    INNER = "inner"


class Activation(IntEnum):
    """`ActivationLayerInfo::ActivationFunction` of the library."""

    NONE = -1
    LOGISTIC = 0
    TANH = 1
    RELU = 2
    BOUNDED_RELU = 3
    LU_BOUNDED_RELU = 4
    LEAKY_RELU = 5
    SOFT_RELU = 6
    ELU = 7
    ABS = 8
    SQUARE = 9
    SQRT = 10
    HARD_SWISH = 13


@dataclass(frozen=True, slots=True)
class AclTensor:
    """A tensor of a region.

    Attributes:
        dtype: The library's `DataType`.
        shape: The innermost dimension first, as the library has it.
        layout: What these dimensions are.
        room: Where it lies.
        index: Its number among the inputs, outputs or constants.
        scales: Of integers that stand for floats; one, or one for each channel.
        zero: Their zero point.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: str = NCHW
    room: TensorKind = TensorKind.INNER
    index: int = 0
    scales: tuple[float, ...] = ()
    zero: int = 0

    def describe(self) -> str:
        """Return it as `validate.cpp` reads it."""
        shape = " ".join(map(str, (len(self.shape), *self.shape)))
        scales = " ".join([str(len(self.scales)), *map(repr, self.scales)])
        return f"tensor {self.dtype} {self.layout} {shape} {scales} {self.zero}"


@dataclass(frozen=True, slots=True)
class AclCall:
    """A call of a function.

    Attributes:
        function: Its name in `intarsia_acl.hpp`.
        tensors: Numbers of tensors; -1 for one that is absent. The result is among them.
        ints: What else it is told.
        floats: Likewise.
        nodes: Names of the nodes that it computes.
    """

    function: str
    tensors: tuple[int, ...]
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    nodes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return it as `validate.cpp` reads it."""
        lists: tuple[Sequence[float], ...] = (self.tensors, self.ints, self.floats)
        numbers = " ".join(" ".join([str(len(items)), *map(repr, items)]) for items in lists)
        return f"call {self.function} {numbers}"


@dataclass(frozen=True, slots=True)
class AclProgram:
    """A region: its tensors, and the calls in the order in which they run."""

    tensors: tuple[AclTensor, ...]
    calls: tuple[AclCall, ...]

    def describe(self) -> str:
        """Return it as `validate.cpp` reads it; where tensors lie is not told."""
        lines = [tensor.describe() for tensor in self.tensors]
        lines += [call.describe() for call in self.calls]
        return "\n".join([*lines, "end\n"])


def make_source(program: AclProgram, name: str, num_inputs: int, num_threads: int) -> str:
    """Return the C++ of a region: its tables, and the function `NAME_call`.

    Args:
        program: The region.
        name: Of the region, a C identifier.
        num_inputs: The function's inputs; the constants come behind them.
        num_threads: Threads of the library's scheduler.
    """
    lines = [
        "// A region for Arm Compute Library, made by intarsia.",
        '#include "intarsia_acl.hpp"',
        "",
        "namespace {",
        "using namespace intarsia_acl;",
        "",
    ]
    rows = []
    for number, tensor in enumerate(program.tensors):
        scales = "nullptr"
        if tensor.scales:
            scales = f"scales_{number}"
            lines.append(f"const float {scales}[] = {{{_floats(tensor.scales)}}};")
        rows.append(
            f"    {{Type::{tensor.dtype}, Layout::{tensor.layout}, Room::{tensor.room},"
            f" {tensor.index}, {len(tensor.shape)}, {{{_ints(tensor.shape)}}},"
            f" {len(tensor.scales)}, {scales}, {tensor.zero}}}, // {number}"
        )
    lines += ["const TensorSpec tensors[] = {", *rows, "};", ""]
    rows = []
    for number, call in enumerate(program.calls):
        names = []
        for kind, items in (("tensors", call.tensors), ("ints", call.ints)):
            names.append(f"{kind}_{number}" if items else "nullptr")
            if items:
                lines.append(f"const std::int32_t {names[-1]}[] = {{{_ints(items)}}};")
        names.append(f"floats_{number}" if call.floats else "nullptr")
        if call.floats:
            lines.append(f"const float {names[-1]}[] = {{{_floats(call.floats)}}};")
        rows.append(
            f"    {{Function::{call.function}, {len(call.tensors)}, {names[0]},"
            f" {len(call.ints)}, {names[1]}, {len(call.floats)}, {names[2]}}},"
        )
    counts = f"{len(program.tensors)}, tensors, {len(program.calls)}, calls"
    lines += [
        "const CallSpec calls[] = {",
        *rows,
        "};",
        "",
        f"const RegionSpec spec = {{{counts}, {num_inputs}, {num_threads}}};",
        "std::unique_ptr<Region> region;",
        "} // namespace",
        "",
        f'extern "C" std::int32_t {name}_call(const void *const *inputs, void *const *outputs)',
        "{",
        "    return call(region, spec, inputs, outputs);",
        "}",
        "",
    ]
    return "\n".join(lines)


def _ints(items: Sequence[int]) -> str:
    return ", ".join(map(str, items))


def _floats(items: Sequence[float]) -> str:
    # Nine digits tell any float32 from its neighbours.
    return ", ".join(f"{float(item):.9e}f" for item in items)
