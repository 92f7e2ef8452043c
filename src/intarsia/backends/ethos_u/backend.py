# SPDX-License-Identifier: Apache-2.0
"""The kind `ethos-u`, a partial backend: regions of integer layers, compiled by Vela.

A region becomes a TFLite network and that a command stream, which the Ethos-U runs in one call of
its driver. There is no such processor in a computer that runs Intarsia: a region is planned for
and written into a C program (`intarsia compile --emit c`), never loaded here. Attributes:
`accelerator_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from intarsia.backends.artifact import refuse, tensor_spec
from intarsia.backends.device import Device, Executable, HostDevice, ThreadOptions
from intarsia.backends.ethos_u import vela
from intarsia.backends.tflite.network import write_network
from intarsia.backends.values import (
    ABOUT,
    Artifact,
    CodeIdentity,
    Detection,
    FusedGroup,
    Refusal,
    Rule,
)
from intarsia.cost.cost import Cost, CostSource
from intarsia.errors import BackendError, ReasonCode, TargetError
from intarsia.graph.per_graph import per_graph
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.backends.tflite.operators import Written
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.lower.program import Program
    from intarsia.graph.graph import Graph
    from intarsia.target import Target, TargetKind, VirtualDevice

CALL_SECONDS = 2e-5
"""Of one call of the driver, with its interrupt: ours, no vendor gives it."""

SPREAD = 2.0
"""A time may be off by this factor: Vela's model is no measurement, and calls are as above."""


class CompiledNetwork(msgspec.Struct, frozen=True):
    """The payload of an artifact.

    Attributes:
        network: The TFLite flat buffer that Vela was given.
        commands: The command stream, as the driver takes it.
        weights: Read-only data that it refers to.
        arena_bytes: Memory for tensors, in which the border lies.
        fast_bytes: A second, faster memory; 0 for none.
        inputs: Of each input of the region, its offset in the arena and its bytes.
        outputs: Of each output, likewise.
        cycles: Of one run, by Vela's model.
    """

    network: bytes
    commands: bytes
    weights: bytes
    arena_bytes: int
    fast_bytes: int
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    cycles: int


def accelerator_of(target: Target) -> str:
    """Return the processor of a target, such as `ethos-u55-128`."""
    return str(target.attrs.get("accelerator_config") or vela.DEFAULT)


def compile_region(region: Region, accelerator: str) -> CompiledNetwork:
    """Compile a region.

    Raises:
        BackendError: A node has no integer operator in TFLite, or Vela leaves it to a CPU.
    """
    network, refusal = _network(region)
    if network is None:
        raise BackendError(f"the region has no TFLite network: {refusal}", backend="ethos-u")
    said = vela.forecast(network, accelerator)
    if said.refusal:
        raise BackendError(f"Vela: {said.refusal}", backend="ethos-u")
    stream = vela.compile_stream(network, accelerator)
    return CompiledNetwork(
        network,
        stream.commands.tobytes(),
        stream.weights.tobytes(),
        stream.arena_bytes,
        stream.fast_bytes,
        tuple((one.offset, one.size) for one in stream.inputs),
        tuple((one.offset, one.size) for one in stream.outputs),
        said.cycles,
    )


def _write_region(region: Region) -> Written:
    """Write a region as a TFLite network; what reads operators is not imported to run a program."""
    from intarsia.backends.tflite.operators import write_region

    return write_region(region)


def _network(region: Region) -> tuple[bytes | None, str]:
    """Return a region as a flat buffer, or None and why it is none."""
    written = _write_region(region)
    if written.network is None:
        return None, next(iter(written.reasons.values()), "it is empty")
    return write_network(written.network), ""


@per_graph
def _layers_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    return tuple(nodes for _, nodes in _write_region(graph.whole).layers)


def _estimate_part(region: Region, accelerator: str) -> Cost | None:
    """Return what the layers cost that end in a region; None if no node is of a layer."""
    layers = [nodes for nodes in _layers_of(region.graph) if any(node in region for node in nodes)]
    if not layers:
        return None
    cycles = 0
    for nodes in layers:
        network, _ = _network(Region.of(region.graph, nodes))
        if nodes[-1] in region and network is not None:
            cycles += vela.forecast(network, accelerator).cycles
    hertz = vela.system_of(accelerator).hertz
    about = f"{cycles} cycles of its layers by Vela's model, at {hertz / 1e6:.0f} MHz"
    seconds = max(cycles, 1) / hertz
    return Cost(seconds, 0, CostSource.ESTIMATED, provenance=about).within(SPREAD)


def _copy_seconds(region: Region, refined: Target) -> float:
    """Return how long the CPU copies what comes into and out of the arena; 0 if that is unknown."""
    from intarsia.native.estimates import copy_cycles, core_cost

    values = region.graph.values
    nbytes = sum(values[one].nbytes for one in (*region.inputs, *region.outputs))
    cost = core_cost(refined, lambda core: copy_cycles(core, nbytes), SPREAD)
    return 0.0 if cost is None else cost.seconds


class EthosUBackend:
    """Serves the kind `ethos-u`."""

    name = "ethos-u"
    kinds: tuple[TargetKind | str, ...] = ("ethos-u",)
    is_default = False

    def version(self) -> str:
        """Return Vela's version.

        Raises:
            BackendError: It is not installed.
        """
        return vela.version()

    def detect(self) -> Detection:
        """Return that no such processor is here, and whether Vela is."""
        try:
            found = vela.version()
        except BackendError as error:
            return Detection.failed(error)
        return Detection(
            reason=f"Vela {found} compiles for it, and nothing here runs what it compiles",
            hint="name it: `intarsia plan absent`, `intarsia compile --emit c`",
        )

    def check_target(self, target: Target) -> Sequence[str]:
        """Raise: a program that runs here has no regions on an Ethos-U.

        Raises:
            TargetError: Always.
        """
        raise TargetError(
            f"accelerator_config: an {accelerator_of(target)} does not run programs of this "
            "machine",
            target=str(target),
            hint="plan with `intarsia plan absent`, or write C for its board with --emit c",
        )

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return the modules that decide what Vela is given."""
        return CodeIdentity(("intarsia.backends.tflite", "intarsia.backends.ethos_u"))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: integer layers that Vela takes."""
        return (Rule("integer layers", self._refuse, "an integer layer that Vela takes"),)

    def _refuse(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Refuse what is no integer layer of TFLite's, and what Vela leaves to a CPU."""
        code, refusals = ReasonCode.UNSUPPORTED_OP, {}
        written = _write_region(graph.whole)
        for number, reason in written.reasons.items():
            refusals[number] = refuse(graph.nodes[number], context, code, reason)
        accelerator = accelerator_of(context.target.target)
        for _, nodes in written.layers:
            network, reason = _network(Region.of(graph, nodes))
            if network is not None:
                said = vela.forecast(network, accelerator).refusal
                reason = f"Vela leaves it to the CPU: {said}" if said else ""
            if reason:
                refusals.update(
                    {one: refuse(graph.nodes[one], context, code, reason) for one in nodes}
                )
        return refusals

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return the layers: an operator with its Q and DQ nodes."""
        return tuple(
            FusedGroup(nodes, name)
            for name, nodes in _write_region(region).layers
            if len(nodes) > 1
        )

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return why a region does not become one command stream, if it does not."""
        region = candidate.region
        written = _write_region(region)
        node = region.graph.nodes[region.nodes[0]]
        if written.network is None:
            for number, reason in written.reasons.items():
                node = region.graph.nodes[number]
                return refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
            return refuse(node, context, ReasonCode.UNSUPPORTED_OP, "it is no integer layer")
        said = vela.forecast(
            write_network(written.network), accelerator_of(context.target.target)
        ).refusal
        if said:
            reason = f"Vela leaves it to the CPU: {said}"
            return refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
        return None

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return the cycles of Vela's model at the clock of its system, and a call with its copies.

        Of a part of a layer, which is no network, it is the layer's at the node that ends it.
        """
        network, _ = _network(candidate.region)
        accelerator = accelerator_of(context.target.target)
        if network is None:
            return _estimate_part(candidate.region, accelerator)
        said = vela.forecast(network, accelerator)
        if said.refusal:
            return None
        hertz = vela.system_of(accelerator).hertz
        return Cost(
            said.cycles / hertz + CALL_SECONDS + _copy_seconds(candidate.region, context.refined),
            said.arena_bytes,
            CostSource.ESTIMATED,
            provenance=f"{said.cycles} cycles by Vela's model, at {hertz / 1e6:.0f} MHz",
        ).within(SPREAD)

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Compile a region to a command stream.

        Raises:
            BackendError: Vela is not installed, or leaves a node to a CPU.
        """
        accelerator = accelerator_of(context.target.target)
        compiled = compile_region(candidate.region, accelerator)
        values = candidate.region.graph.values
        milliseconds = compiled.cycles / vela.system_of(accelerator).hertz * 1e3
        about = (
            f"{accelerator} by Vela {self.version()}: {compiled.cycles} cycles predicted "
            f"({milliseconds:.3f} ms), arena {compiled.arena_bytes} bytes, commands "
            f"{len(compiled.commands)}, weights {len(compiled.weights)}; not run here"
        )
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload=msgspec.msgpack.encode(compiled),
            inputs=tuple(tensor_spec(values[one]) for one in candidate.region.inputs),
            outputs=tuple(tensor_spec(values[one]) for one in candidate.region.outputs),
            metadata={ABOUT: about},
        )

    def c_program(self, region: Region, context: BuildContext) -> Program:
        """Return a region as a call of the processor's driver, for a program in C.

        Raises:
            BackendError: Vela is not installed, or leaves a node to a CPU.
        """
        from intarsia.backends.ethos_u.program import lower_region

        return lower_region(region, compile_region(region, accelerator_of(context.target.target)))

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> Executable:
        """Raise: what is compiled runs on the processor alone.

        Raises:
            BackendError: Always.
        """
        _fail(artifact)


def _fail(artifact: Artifact) -> NoReturn:
    raise BackendError(
        f"a command stream for {artifact.target} runs on that processor alone, and it is not here",
        backend=f"ethos-u {artifact.version}",
        target=artifact.target,
        hint="write C for its board: intarsia compile --emit c",
    )


BACKEND = EthosUBackend()
