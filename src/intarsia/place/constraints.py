# SPDX-License-Identifier: Apache-2.0
"""What the user said about where nodes may run: pins, annotations, exclusions.

Pins are written onto the loaded model before it is prepared, as the same metadata that
`on_device` writes, so that no rewrite merges nodes that must run apart.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from intarsia.errors import PlacementError
from intarsia.graph.annotate import hint_inside
from intarsia.graph.inline import calls_of
from intarsia.graph.metadata import DEVICE_KEY, name_matches
from intarsia.place.annotations import annotated_inside, narrow_annotation
from intarsia.place.devices import find_targets

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph, Node
    from intarsia.target import CompilationConfig, PlacedTarget

logger = logging.getLogger("intarsia")

Exclusions: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[str]
"""By target text, operators or node patterns; or `TARGET:OPERATOR-OR-PATTERN` each."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Where a node has to run, and who said so.

    Attributes:
        targets: What it may run on, in the user's order; several if only a device was named.
        why: Who said so, as `explain` prints it.
        said: The same with the user's own words, for errors.
    """

    targets: tuple[PlacedTarget, ...]
    why: str
    said: str


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user said, by node id.

    Attributes:
        pins: The only targets that a node may have.
        exclusions: By target, the nodes that it must not have, with the words that said so.
    """

    pins: Mapping[int, Pin]
    exclusions: Mapping[PlacedTarget, Mapping[int, str]]


def annotate_pins(
    model: ir.Model,
    pins: Mapping[str, str],
    config: CompilationConfig,
    said: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write pins onto the nodes of a loaded model, in place.

    Args:
        model: Ours to change.
        pins: From a glob over node names to the text of a target of `config`.
        config: The machine.
        said: By node name, the words that annotated it before.

    Returns:
        By node name, the words that pinned it, or annotated it before.

    Raises:
        PlacementError: A pattern matches no node, or two say different things of one node.
        TargetError: A target is not one of the machine's.
    """
    why = dict(said or {})
    nodes = list(model.graph)
    for pattern, text in pins.items():
        words = f"pin '{pattern}={text}'"
        meant = find_targets(config, text, words)
        matched = [node for node in nodes if _is_named(node, pattern)]
        if not matched:
            raise PlacementError(
                f"{words} matches no node",
                hint=hint_inside(nodes, pattern)
                or nearest_names(pattern, (node.name or "" for node in nodes)),
            )
        for node in matched:
            name = node.name or ""
            before = why.get(name, f"the annotation {node.metadata_props.get(DEVICE_KEY)!r}")
            narrow_annotation(node, config, text, meant, (words, before))
            why.setdefault(name, words)
    return why


def resolve_constraints(
    graph: Graph,
    config: CompilationConfig,
    pinned: Mapping[str, str],
    exclude: Exclusions = (),
    operators: Mapping[str, str] | None = None,
) -> Constraints:
    """Return what the annotations of a prepared graph and the exclusions say.

    Args:
        graph: Carries annotations, those from `annotate_pins` among them.
        config: The machine.
        pinned: What `annotate_pins` returned.
        exclude: What must not run where.
        operators: By name, the operators of the nodes before the model was prepared: an exclusion
            holds for what a node stands for, and one that matches a node that was folded away is
            no mistake.

    Raises:
        PlacementError: An exclusion matches nothing, or forbids what a pin demands.
        TargetError: A target is not one of the machine's.
    """
    pins: dict[int, Pin] = {}
    _say_what_vanished(graph, pinned)
    for node in graph.nodes:
        if node.device is not None:
            words = next((pinned[name] for name in _names(node) if name in pinned), "")
            pins[node.id] = Pin(
                find_targets(config, node.device, f"node {node.name!r}"),
                words or "annotation",
                words or f"annotation {node.device!r}",
            )
        for inner, device in annotated_inside(node.ir, graph.model.functions):
            pins[node.id] = _with_inner(node, pins.get(node.id), config, inner, device)
    exclusions: dict[PlacedTarget, dict[int, str]] = {}
    operators = operators or {}
    known = (*operators, *operators.values())
    for text, pattern in _exclusion_pairs(exclude):
        words = f"exclude '{text}:{pattern}'"
        targets = find_targets(config, text, words)
        matched = [node for node in graph.nodes if _is_meant(node, pattern, operators)]
        if not matched and not any(name_matches(name, pattern) for name in known):
            raise PlacementError(
                f"{words} matches no operator and no node",
                target=text,
                hint=nearest_names(
                    pattern, (*{node.op_type: None for node in graph.nodes}, *known)
                ),
            )
        for node in matched:
            for target in targets:
                exclusions.setdefault(target, {}).setdefault(node.id, words)
            pin = pins.get(node.id)
            if pin and all(node.id in exclusions.get(target, ()) for target in pin.targets):
                raise PlacementError(
                    f"node {node.name!r}: {words} contradicts {pin.said}",
                    node=node.name,
                    target=str(pin.targets[0]),
                    hint="remove one of the two, or narrow its pattern",
                )
    return Constraints(pins, exclusions)


def _is_named(node: ir.Node, pattern: str) -> bool:
    """Whether a pattern means a node, or a call in whose place it stands."""
    names = (node.name or "", *(call.name for call in calls_of(node)))
    return any(name_matches(name, pattern) for name in names)


def nearest_names(pattern: str, names: Iterable[str]) -> str:
    """Return a hint with the names that are most like a pattern."""
    known = [name for name in dict.fromkeys(names) if name]
    close = difflib.get_close_matches(pattern.rstrip("*"), known, n=3, cutoff=0.3) or known[:3]
    return f"names here are like {', '.join(map(repr, close))}" if close else "it has no nodes"


def _with_inner(
    node: Node, pin: Pin | None, config: CompilationConfig, inner: tuple[str, ...], device: str
) -> Pin:
    """Return what is said of a node, and of one inside its bodies.

    Raises:
        PlacementError: The two contradict; names both and the way from one to the other.
    """
    said = f"annotation {device!r} of {inner[-1]!r}"
    meant = find_targets(config, device, f"node {inner[-1]!r}")
    if pin is None:
        return Pin(meant, said, said)
    both = tuple(target for target in pin.targets if target in meant)
    if not both:
        raise PlacementError(
            f"node {node.name!r}: {said} contradicts {pin.said}: what is inside runs where the "
            f"whole runs: {' -> '.join((node.name, *inner))}",
            node=node.name,
            target=str(meant[0]),
            hint="put both on one device, or remove one of the two",
        )
    return Pin(both, pin.why, pin.said)


def _say_what_vanished(graph: Graph, pinned: Mapping[str, str]) -> None:
    """Warn of pins of which no node is left: what they named was computed when compiling."""
    present = {name for node in graph.nodes for name in _names(node)}
    kept = {words for name, words in pinned.items() if name in present}
    for words in dict.fromkeys(pinned.values()):
        if words not in kept:
            logger.warning("%s has no effect: its nodes were folded away before placement", words)


def _names(node: Node) -> tuple[str, ...]:
    return (node.name, *node.origins)


def _is_meant(node: Node, pattern: str, operators: Mapping[str, str]) -> bool:
    """Whether a pattern means a node, or one that it stands for, by name or by operator."""
    names = _names(node)
    meant = (node.op_type, *names, *(operators.get(name, "") for name in names))
    return any(name_matches(text, pattern) for text in meant)


def _exclusion_pairs(exclude: Exclusions) -> list[tuple[str, str]]:
    if isinstance(exclude, str):
        exclude = (exclude,)
    if isinstance(exclude, Mapping):
        return [
            (target, pattern)
            for target, patterns in exclude.items()
            for pattern in ((patterns,) if isinstance(patterns, str) else patterns)
        ]
    return [_split_exclusion(text) for text in exclude]


def _split_exclusion(text: str) -> tuple[str, str]:
    target, colon, pattern = text.partition(":")
    ordinal, second_colon, rest = pattern.partition(":")
    if second_colon and ordinal.isdecimal():  # the ordinal of a placed target
        target, pattern = f"{target}:{ordinal}", rest
    if not (target and colon and pattern):
        raise PlacementError(
            f"exclusion {text!r} is not TARGET:OPERATOR",
            hint="write for example openvino:Resize, or openvino:layer4/*",
        )
    return target, pattern
