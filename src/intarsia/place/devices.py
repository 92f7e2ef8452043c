# SPDX-License-Identifier: Apache-2.0
"""Plans devices: in which memories every value may be, from what was said of some nodes.

An operator runs on one device: what it reads is there, and what it makes is there. A value that is
read elsewhere is copied, once for each destination, so what is said of a node binds that node and
no other. Three things bind more:

* A value that cannot be copied (a sequence, a string, a tensor whose shape is only known while
  running) keeps its maker and its readers in one memory. The host gives the model's inputs and
  takes its outputs, so such an input or output keeps them in the host's.
* An annotation inside a body of If, Loop or Scan holds for the whole operator.
* Small integers that only make shapes are computed on the host, which has to know them.

All else is the policy's: a node of which nothing is said is where the policy puts it.

Inputs and outputs may be given and taken in a device's memory. They are named as `input:NAME` and
`output:NAME`; an input also by its name alone, and so is an output, unless a node has that name:
then the node is meant.

Source:
    Row 110 to 125 of the contract of the target system (docs/target_rows.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from intarsia.errors import PlacementError, TargetError
from intarsia.graph.indices import shape_nodes
from intarsia.place.machine import host_targets
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.target import DeviceType
from intarsia.target.legacy import GPU, read_device_key

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.graph.graph import Graph, Value
    from intarsia.place.constraints import Pin
    from intarsia.target import CompilationConfig, PlacedTarget
    from intarsia.target.placed import MemoryDomain


_SHOWN = 5
"""Of a long path, how much of each end is shown."""
_HOST = "the host, which has the model's inputs and outputs"


Borders: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]
"""By `input` or `output` and a name: the text of a device, and who said it."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """Nodes that have to share a memory, because a value between them cannot be copied.

    Attributes:
        nodes: Their ids, ascending.
        value: Name of one such value.
        on_host: Whether one of them is an input or an output of the model.
    """

    nodes: tuple[int, ...]
    value: str
    on_host: bool


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Where nodes may run, as far as devices decide it.

    Attributes:
        domains: By target, the memory in which its tensors lie.
        pins: By node id, what was said of it, or of a node whose memory it shares.
        groups: Nodes that have to share a memory.
        shapes: Nodes that compute shapes, where the host's memory is not the only one: they are
            the host's, unless something was said of them.
        borders: By value id, the memory of each input and output that is not the host's.
    """

    domains: Mapping[PlacedTarget, MemoryDomain]
    pins: Mapping[int, Pin] = field(default_factory=dict)
    groups: tuple[MemoryGroup, ...] = ()
    shapes: frozenset[int] = frozenset()
    borders: Mapping[int, MemoryDomain] = field(default_factory=dict)


def plan_devices(
    graph: Graph,
    config: CompilationConfig,
    backends: Backends,
    pins: Mapping[int, Pin],
    borders: Borders,
) -> DevicePlan:
    """Return where the nodes of a graph may run. Linear in the graph, and without recursion.

    Args:
        graph: What is placed.
        config: The machine.
        backends: Serve its targets.
        pins: By node id, what was said of it.
        borders: What was said of inputs and outputs.

    Raises:
        PlacementError: Two nodes that have to share a memory were put into different ones; names
            both and the path between them. Or an input or output cannot be where it is to be.
        TargetError: What was said of an input or output is not a target or device of the machine.
    """
    domains = memory_domains(config, backends)
    spread = dict(pins)
    groups = []
    is_one = set(domains.values()) == {HOST_DOMAIN}
    for items in [] if is_one else _components(graph):
        nodes = tuple(sorted(item.id for item in items if item.is_node))
        touching = [item for item in items if not item.is_node and _is_at_border(graph, item.id)]
        value = graph.values[next(item.id for item in items if not item.is_node)].name
        groups.append(MemoryGroup(nodes, value, on_host=bool(touching)))
        said = [_Item(node, is_node=True) for node in nodes if node in pins]
        if said:
            _spread(graph, said, touching, nodes, spread, domains)
    shapes = frozenset[int]() if is_one else shape_nodes(graph)
    places = place_borders(graph, borders, config, domains)
    return DevicePlan(domains, spread, tuple(groups), shapes, places)


def memory_domains(
    config: CompilationConfig, backends: Backends
) -> dict[PlacedTarget, MemoryDomain]:
    """Return the memory in which each target's tensors lie, in the user's order.

    What runs nodes that no target takes (`host_targets`) comes after them. A partial target shares
    the memory of what it refines, unless its kind has one of its own. Each vendor's accelerator
    has a memory of its own, which carries the name of the backend.
    """
    domains = {}
    for placed in (*config.targets, *host_targets(config, backends)):
        device_type, device_id, scope = config.device_of(placed).memory_domain
        owner = config.refined(placed) or placed.target
        assert owner is not None
        if device_type == DeviceType.EXT_DEV:
            name = backends.for_target(owner).name
            scope = f"{name}/{scope}" if scope else name
        domains[placed] = (device_type, device_id, scope)
    return domains


def find_targets(config: CompilationConfig, text: str, words: str) -> tuple[PlacedTarget, ...]:
    """Return the targets of a machine that a text means, in the user's order.

    A label, a target's text, a kind or a tag means one; a device (`opencl:1`, `gpu:1`, `cpu`)
    means every target on it. The host is meant by its text or kind, and by `cpu` where no target
    is on the CPU.

    Args:
        config: The machine.
        text: What was written.
        words: Say in an error who wrote it.

    Raises:
        TargetError: None is meant, or one of several by a text that is not a device.
    """
    try:
        return (config.find(text),)
    except TargetError as error:
        found = _on_device(config, text) or _host_meant(config, text)
        if not found:
            raise TargetError(f"{words}: {error.message}", target=text, hint=error.hint) from error
        return found


def is_copyable(value: Value) -> bool:
    """Tell whether a value can go from one memory to another: a dense tensor of known size."""
    return value.is_static and value.dtype != "string"


def _on_device(config: CompilationConfig, text: str) -> tuple[PlacedTarget, ...]:
    name, _, scope = text.strip().partition("/")
    family = name.partition(":")[0]
    if family != GPU and family.upper() not in DeviceType.__members__:  # a kind is not a device
        return ()
    try:
        key = read_device_key(name)
    except TargetError:
        return ()
    places = [(config.device_of(item), item) for item in config.targets]
    places = [(place, item) for place, item in places if place.device_type in key.types]
    ordinals = [place.device_id or 0 for place, _ in places]
    wanted = min(ordinals, default=0) if key.ordinal is None else key.ordinal
    found = [(place.memory_scope, item) for place, item in places if place.device_id == wanted]
    if scope or any(not own for own, _ in found):  # without a scope: the device's own memory
        found = [(own, item) for own, item in found if own == scope]
    return tuple(item for _, item in found)


def _host_meant(config: CompilationConfig, text: str) -> tuple[PlacedTarget, ...]:
    """Return the host that is not among the targets, if a text means it."""
    host = config.placed_host
    if host in config.targets:
        return ()
    names = (str(host), config.host.kind.name, "cpu", domain_text(HOST_DOMAIN))
    return (host,) if text.strip() in names else ()


@dataclass(frozen=True, slots=True)
class _Item:
    """A node, or a value that cannot be copied: what a path leads over."""

    id: int
    is_node: bool


def _components(graph: Graph) -> list[list[_Item]]:
    """Return what hangs together by values that cannot be copied, in the graph's order."""
    seen: set[_Item] = set()
    components = []
    for value in graph.values:
        item = _Item(value.id, is_node=False)
        if item in seen or not _binds(graph, value.id):
            continue
        reached = list(_search(graph, item))
        seen.update(reached)
        if any(other.is_node for other in reached):
            components.append(reached)
    return components


def _search(graph: Graph, start: _Item) -> dict[_Item, _Item | None]:
    """Return what hangs together with an item, nearest first, each with the item before it."""
    before: dict[_Item, _Item | None] = {start: None}
    queue = deque([start])
    while queue:
        item = queue.popleft()
        for other in _neighbours(graph, item):
            if other not in before:
                before[other] = item
                queue.append(other)
    return before


def _neighbours(graph: Graph, item: _Item) -> list[_Item]:
    if not item.is_node:
        value = graph.values[item.id]
        nodes = ((value.producer,) if value.producer >= 0 else ()) + value.consumers
        return [_Item(node, is_node=True) for node in nodes]
    node = graph.nodes[item.id]
    values = dict.fromkeys((*node.reads, *(value for value in node.outputs if value >= 0)))
    return [_Item(value, is_node=False) for value in values if _binds(graph, value)]


def _binds(graph: Graph, value_id: int) -> bool:
    value = graph.values[value_id]
    return value.constant is None and not is_copyable(value)


def _is_at_border(graph: Graph, value_id: int) -> bool:
    return graph.values[value_id].producer < 0 or value_id in graph.output_set


def _spread(
    graph: Graph,
    said: Sequence[_Item],
    touching: Sequence[_Item],
    nodes: Sequence[int],
    pins: dict[int, Pin],
    domains: Mapping[PlacedTarget, MemoryDomain],
) -> None:
    """Give the nodes of a group the memory that was said for some of them."""
    allowed, deciding = _allowed(said[0], pins, domains), said[0]
    for item in (*said[1:], *touching[:1]):
        mine = _allowed(item, pins, domains)
        both = [domain for domain in allowed if domain in mine]
        if not both:
            raise _contradiction(graph, deciding, item, pins)
        if len(both) < len(allowed):
            allowed, deciding = both, item
    source = said[0] if not deciding.is_node else deciding
    first = pins[source.id]
    targets = tuple(target for target, domain in domains.items() if domain in allowed)
    why = f"{first.why} of {graph.nodes[source.id].name!r}"
    for node in nodes:
        pin = pins.get(node)
        if pin is None:
            pins[node] = replace(first, targets=targets, why=why)
        else:
            kept = tuple(target for target in pin.targets if domains[target] in allowed)
            pins[node] = replace(pin, targets=kept)


def _allowed(
    item: _Item, pins: Mapping[int, Pin], domains: Mapping[PlacedTarget, MemoryDomain]
) -> list[MemoryDomain]:
    if not item.is_node:
        return [HOST_DOMAIN]
    return list(dict.fromkeys(domains[target] for target in pins[item.id].targets))


def _contradiction(
    graph: Graph, one: _Item, other: _Item, pins: Mapping[int, Pin]
) -> PlacementError:
    before = _search(graph, one)
    path: list[str] = []
    item: _Item | None = other
    while item is not None:
        path.append(
            graph.nodes[item.id].name if item.is_node else f"{graph.values[item.id].name!r}"
        )
        item = before[item]
    if len(path) > 2 * _SHOWN:
        path[_SHOWN:-_SHOWN] = [f"... {len(path) - 2 * _SHOWN} more ..."]
    sides = [
        f"{pins[item.id].said} (node {graph.nodes[item.id].name!r})" if item.is_node else _HOST
        for item in (one, other)
    ]
    node = graph.nodes[(one if one.is_node else other).id]
    return PlacementError(
        f"{sides[0]} contradicts {sides[1]}: they have to share a memory, because what lies "
        f"between cannot be copied: {' -> '.join(reversed(path))}",
        node=node.name,
        target=str(pins[node.id].targets[0]),
        hint="put both on one device, or remove one of the two",
    )


def place_borders(
    graph: Graph,
    said: Borders,
    config: CompilationConfig,
    domains: Mapping[PlacedTarget, MemoryDomain],
) -> dict[int, MemoryDomain]:
    """Return by value id the memory of each input and output that is not the host's.

    Args:
        graph: The prepared model.
        said: What `take_borders` found.
        config: The machine.
        domains: The memory of each target.

    Raises:
        PlacementError: A value cannot be on a device, or is both an input and an output and is
            to be in two memories.
        TargetError: What was said is not a target or device of the machine.
    """
    found: dict[int, MemoryDomain] = {}
    sides = {"input": graph.inputs, "output": graph.outputs}
    ids = {(what, graph.values[i].name): i for what, some in sides.items() for i in some}
    for key, (text, words) in said.items():
        what, name = key
        meant = find_targets(config, text, f"{what} {name!r}")
        domain = domains[meant[0]]
        if domain == HOST_DOMAIN:
            continue
        value = graph.values[ids[key]]
        problem = _problem(value)
        if problem:
            raise PlacementError(
                f"{what} {name!r} cannot be on {text}: {problem} ({words})",
                target=text,
                hint="leave it in the host's memory",
            )
        if found.setdefault(value.id, domain) != domain:
            raise PlacementError(
                f"{name!r} is an input and an output, and was put into two memories ({words})",
                target=text,
                hint="annotate both alike, or put an Identity between them",
            )
    return found


def _problem(value: Value) -> str:
    """Return why a value cannot be in a device's memory; empty if it can."""
    if value.constant is not None:
        return "it is a constant of the program"
    return "" if is_copyable(value) else "only dense tensors of known size can be copied"
