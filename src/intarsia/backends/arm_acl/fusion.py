# SPDX-License-Identifier: Apache-2.0
"""A region as a program of the library's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from intarsia.backends.arm_acl.builder import DerivedConstant, NotTaken, TableBuilder, unsupported
from intarsia.backends.arm_acl.lowering import NO_ACT, Act
from intarsia.backends.arm_acl.patterns import (
    ACTIVATION,
    BIAS,
    PATTERNS,
    QUANTIZE,
    IntegerMatch,
    linear_parts,
    row_of,
)
from intarsia.backends.arm_acl.program import AclProgram
from intarsia.backends.scaled_integers import ScaledIntegers, read_linear
from intarsia.backends.values import FusedGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Node
from intarsia.graph.pattern import Match, match_region
from intarsia.graph.region import Region

Validate = Callable[[AclProgram], str]
"""Returns nothing, or why the library refuses a call of a program."""


def make_program(
    region: Region, validate: Validate, *, fast: bool = False
) -> tuple[AclProgram, Sequence[int | DerivedConstant]]:
    """Return the program of a region, and its constants.

    Args:
        region: What it computes.
        validate: Asks the library.
        fast: Whether convolutions may compute faster and less exactly.

    Raises:
        NotTaken: Something in it has no function.
    """
    builder = TableBuilder(region, fast=fast)
    matches = match_region(region, PATTERNS)
    for match in sorted(matches, key=lambda match: match.members[-1]):
        _lower_match(match, builder, validate)
    return builder.finish(), builder.constants


def fused_groups(region: Region) -> tuple[FusedGroup, ...]:
    """Return the nodes of each function that computes several."""
    return tuple(
        FusedGroup(match.members, match.pattern.name)
        for match in match_region(region, PATTERNS)
        if len(match.members) > 1
    )


def _lower_match(match: Match, builder: TableBuilder, validate: Validate) -> None:
    """Add the calls of a match: with integers where it has them and the library takes them."""
    names = tuple(match.graph.nodes[node].name for node in match.members)
    integers = next((one.meaning for one in match.followers if one.pattern is QUANTIZE), None)
    if isinstance(integers, IntegerMatch):
        mark = builder.mark()
        try:
            builder.nodes = names
            with builder.standing_for(integers.integers):
                _lower_parts(match, builder)
            if not validate(builder.since(mark)):
                return
        except NotTaken:  # it goes in floats, below
            pass
        builder.back_to(mark)
    builder.nodes = names
    _lower_parts(match, builder)
    if isinstance(integers, IntegerMatch):
        quantize = next(one for one in match.followers if one.pattern is QUANTIZE)
        builder.nodes = (quantize.nodes[0].name,)
        _lower_quantize(Operation(match.graph, quantize.nodes[0]), builder)


def _lower_parts(match: Match, builder: TableBuilder) -> None:
    """Add the calls of a head with what it takes in."""
    head = Operation(match.graph, match.nodes[0])
    act: Act = NO_ACT
    result, bias = head.output, None
    for follower in match.followers:
        if follower.pattern is ACTIVATION:
            act = follower.meaning
        elif follower.pattern is BIAS:
            bias = follower.meaning
        else:
            continue
        result = match.graph.values[follower.nodes[0].outputs[0]]
    if result is not head.output or bias is not None:
        head = _spelled(head, result.id, None if bias is None else bias.id)
    _lower_operation(head, builder, act)


def _spelled(head: Operation, result: int, bias: int | None) -> Operation:
    """Return an operation whose result is that of what it takes in."""
    node: Node = head.node
    inputs = node.inputs if bias is None else (*node.inputs, bias)
    return Operation(
        head.graph, replace(node, inputs=tuple(inputs), outputs=(result,)), meant=head.meant
    )


def _lower_operation(operation: Operation, builder: TableBuilder, act: Act) -> None:
    match operation.op_type:
        case "DequantizeLinear":
            return  # made where its floats are read
        case "QuantizeLinear":
            _lower_quantize(operation, builder)
        case "QLinearConv" | "QLinearMatMul":
            with builder.standing_for(linear_parts(operation)):
                _row_lower(operation, builder, act)
        case _:
            _row_lower(operation, builder, act)


def _row_lower(operation: Operation, builder: TableBuilder, act: Act) -> None:
    row = row_of(operation.node)
    if row is None or row.lower is None:
        raise unsupported(f"Arm Compute Library has no function for {operation.op_type}")
    row.lower(operation, builder, act)


def _lower_quantize(operation: Operation, builder: TableBuilder) -> None:
    quantised = read_linear(operation)
    if not isinstance(quantised, ScaledIntegers):
        raise NotTaken(*quantised)
    if quantised.axis is not None:
        raise unsupported("scales along an axis")
    layout = builder.layout_of(operation.inputs[0])
    source = builder.read(operation.inputs[0], layout)
    with builder.standing_for({quantised.value.id: quantised}):
        builder.call("quantize", source, builder.write(quantised.value, layout))
