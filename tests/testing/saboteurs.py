# SPDX-License-Identifier: Apache-2.0
"""Backends that break one promise each; all else is the reference's, or the fake device's."""

import itertools
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np

from intarsia.arrays import from_blocks
from intarsia.backends.artifact import refuse
from intarsia.backends.borders import blocked_border, blocked_spec, read_blocks
from intarsia.backends.device import HostDevice
from intarsia.backends.fake import FakeBackend, FakeDevice
from intarsia.backends.reference import ReferenceBackend, ReferenceExecutable
from intarsia.backends.values import Rule
from intarsia.errors import BackendError, ReasonCode
from intarsia.graph.extract import extract
from intarsia.graph.state import BLOCKS, can_block
from intarsia.target import Target
from intarsia.testing.blocks import to_blocks

LEAKED = []
HIDDEN = {}
COUNTER = itertools.count()
RELEASED = threading.Event()
POOL = ThreadPoolExecutor(1)


class Wrapped:
    """An executable that does something around the steps of a sound one."""

    scratch_bytes = 0

    def __init__(self, inner, around):
        self.inner = inner
        self.around = around

    def bind(self, inputs, outputs, scratch):
        step = self.inner.bind(inputs, outputs, scratch)
        return lambda: self.around(step, inputs, outputs)


class Stepwise(ReferenceBackend):
    """Does something around each step."""

    def load(self, artifact, device):
        return Wrapped(super().load(artifact, device), self.around)


class WrongNumbers(Stepwise):
    def around(self, step, inputs, outputs):
        step()
        for array in outputs:
            if array.dtype.kind == "f" and array.size:
                array.flat[0] += array.dtype.type(0.5)


class WrongInSinglePrecision(Stepwise):
    def around(self, step, inputs, outputs):
        step()
        for array in outputs:
            if array.dtype == np.float64:
                array[...] = array.astype(np.float32)


def leak(nbytes):
    """Take pages from the system itself: a heap with room to spare would hide it."""
    pages = mmap.mmap(-1, nbytes)
    pages.write(b"x" * nbytes)
    LEAKED.append(pages)


class LeavesAnOutput(Stepwise):
    def around(self, step, inputs, outputs):
        kept = outputs[-1].copy()
        step()
        if len(outputs) > 1:
            outputs[-1][...] = kept


class WritesToInputs(Stepwise):
    def around(self, step, inputs, outputs):
        step()
        inputs[0][...] = 0


class FailsToRun(Stepwise):
    def around(self, step, inputs, outputs):
        raise ZeroDivisionError("in a step")


class LeaksWhenRun(Stepwise):
    def around(self, step, inputs, outputs):
        step()
        leak(outputs[0].nbytes)


class KeepsTheFirstInputs(ReferenceBackend):
    def load(self, artifact, device):
        inner = super().load(artifact, device)

        class Stale:
            scratch_bytes = 0

            def bind(self, inputs, outputs, scratch):
                kept = []

                def step():
                    kept.extend([] if kept else [array.copy() for array in inputs])
                    inner.bind(kept, outputs, scratch)()

                return step

        return Stale()


class SharesState(ReferenceBackend):
    """All bindings of a region compute into the same arrays."""

    def load(self, artifact, device):
        inner = super().load(artifact, device)
        shared = [np.empty(spec.shape, spec.dtype) for spec in artifact.outputs]

        class Racing:
            scratch_bytes = 0

            def bind(self, inputs, outputs, scratch):
                step = inner.bind(inputs, shared, scratch)

                def run():
                    step()
                    time.sleep(0.001)  # another thread's turn
                    for array, buffer in zip(shared, outputs, strict=True):
                        np.copyto(buffer, array)

                return run

        return Racing()


class LeaksWhenLoaded(ReferenceBackend):
    def load(self, artifact, device):
        leak(1 << 20)
        return super().load(artifact, device)


class KeepsFilesOpen(ReferenceBackend):
    def load(self, artifact, device):
        LEAKED.append(os.memfd_create("kept"))
        return super().load(artifact, device)


class KeepsThreads(ReferenceBackend):
    def load(self, artifact, device):
        if next(COUNTER) % 50 == 0:
            threading.Thread(target=RELEASED.wait, daemon=True).start()
        return super().load(artifact, device)


class KeepsMaps(ReferenceBackend):
    def load(self, artifact, device):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        # Two kinds by turns: the kernel joins neighbours that are alike.
        LEAKED.append(mmap.mmap(-1, 4096, flags, (mmap.PROT_READ, 0)[next(COUNTER) % 2]))
        return super().load(artifact, device)


class LeaksALittle(ReferenceBackend):
    def load(self, artifact, device):
        leak(1 << 14)
        return super().load(artifact, device)


class UsesAnotherThread(Stepwise):
    own_threads = ""

    def around(self, step, inputs, outputs):
        def spin():
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                pass

        other = POOL.submit(spin)
        step()
        other.result()


class CountsInSixteenBits(Stepwise):
    def around(self, step, inputs, outputs):
        step()
        for array in outputs:
            if array.ndim:
                array[0x10000:] = 0


class FailsOnManyOperands(ReferenceBackend):
    def load(self, artifact, device):
        if len(artifact.inputs) > 100:
            raise OverflowError("too many descriptors")
        return super().load(artifact, device)


class DiesOfDamage(ReferenceBackend):
    def load(self, artifact, device):
        if not artifact.payload:
            os.abort()
        return super().load(artifact, device)


class RaisesOfDamage(ReferenceBackend):
    def load(self, artifact, device):
        if not artifact.payload.strip(b"\0"):
            raise KeyError("model")
        return super().load(artifact, device)


class DeclaresAnotherDtype(ReferenceBackend):
    def compile(self, candidate, context):
        artifact = super().compile(candidate, context)
        outputs = tuple(replace(spec, dtype="float64") for spec in artifact.outputs)
        return replace(artifact, outputs=outputs)


class SwapsOutputs(ReferenceBackend):
    def compile(self, candidate, context):
        artifact = super().compile(candidate, context)
        return replace(artifact, outputs=artifact.outputs[::-1])


class NamesAnother(ReferenceBackend):
    def compile(self, candidate, context):
        return replace(super().compile(candidate, context), backend="onnxruntime")


class RaisesInCompile(ReferenceBackend):
    def compile(self, candidate, context):
        raise ValueError("no such table entry")


class TakesMoreThanItCompiles(ReferenceBackend):
    def compile(self, candidate, context):
        if len(candidate.region) > 1:
            raise BackendError("one node at a time")
        return super().compile(candidate, context)


class CopiesConstants(ReferenceBackend):
    def compile(self, candidate, context):
        artifact = super().compile(candidate, context)
        payload = extract(candidate.region, constants="embed").model
        return replace(artifact, payload=payload, constants=())


class HidesConstants(ReferenceBackend):
    """Keeps them in the process, under a number."""

    def compile(self, candidate, context):
        artifact = super().compile(candidate, context)
        key = str(len(HIDDEN))
        HIDDEN[key] = artifact.constants
        return replace(artifact, constants=(), metadata={"key": key})

    def load(self, artifact, device):
        return super().load(replace(artifact, constants=HIDDEN[artifact.metadata["key"]]), device)


class StampsArtifacts(ReferenceBackend):
    def compile(self, candidate, context):
        stamp = {"stamp": str(next(COUNTER))}
        return replace(super().compile(candidate, context), metadata=stamp)


class BreaksElsewhere(ReferenceBackend):
    def compile(self, candidate, context):
        process = {"process": str(os.getpid())}
        return replace(super().compile(candidate, context), metadata=process)

    def load(self, artifact, device):
        if artifact.metadata["process"] != str(os.getpid()):
            raise BackendError("its handles belong to another process")
        return ReferenceExecutable(artifact)


class DiesElsewhere(BreaksElsewhere):
    def load(self, artifact, device):
        if artifact.metadata["process"] != str(os.getpid()):
            os.abort()
        return ReferenceExecutable(artifact)


class Ruled(ReferenceBackend):
    """Has a rule of its own."""

    def rules(self, context):
        return (Rule("own", self.refuse),)


class RaisesInRules(Ruled):
    def refuse(self, graph, context):
        return {node.id: None for node in graph.nodes if {"Add": 1}[node.op_type] == 0}


class RefusesEverything(Ruled):
    def refuse(self, graph, context):
        return {n.id: refuse(n, context, ReasonCode.USER, "not today") for n in graph.nodes}


class RefusesForNoReason(Ruled):
    def refuse(self, graph, context):
        return {n.id: refuse(n, context, ReasonCode.USER, "") for n in graph.nodes}


class RefusesWithAWord(Ruled):
    def refuse(self, graph, context):
        return {n.id: refuse(n, context, "because", "it is so") for n in graph.nodes}


class RefusesAnotherNode(Ruled):
    def refuse(self, graph, context):
        return {99: refuse(graph.nodes[0], context, ReasonCode.USER, "it is so")}


class ChangesItsMind(Ruled):
    def refuse(self, graph, context):
        if next(COUNTER) % 2:
            return {}
        return {n.id: refuse(n, context, ReasonCode.USER, "not now") for n in graph.nodes}


class HasABadName(ReferenceBackend):
    name = "My Backend"


class HasNoKinds(ReferenceBackend):
    kinds = ()


class HasAnUnknownKind(ReferenceBackend):
    kinds = ("reference", "unheard-of")


class TakesBlocks(ReferenceBackend):
    """Sound: takes and gives images in blocks of 16 channels, where these are whole ones."""

    def states(self, candidate, context):
        blocks = [
            [16 * self.can_block(candidate.region.graph.values[i]) for i in side]
            for side in (candidate.region.inputs, candidate.region.outputs)
        ]
        return (blocked_border(candidate, *blocks),) if any(map(any, blocks)) else ()

    def can_block(self, value):
        return can_block(value.dtype, value.shape or (), 16)

    def compile(self, candidate, context):
        region, plain = candidate.region, super().compile(candidate, context)
        inputs = read_blocks(region, region.inputs, candidate.inputs, self.name)
        outputs = read_blocks(region, region.outputs, candidate.outputs, self.name)
        sides = ((plain.inputs, inputs), (plain.outputs, outputs))
        given, made = (tuple(map(blocked_spec, specs, blocks)) for specs, blocks in sides)
        return replace(plain, inputs=given, outputs=made)

    def load(self, artifact, device):
        ranks = [len(spec.shape) for spec in (*artifact.inputs, *artifact.outputs)]
        plain = [_plain_spec(spec) for spec in (*artifact.inputs, *artifact.outputs)]
        count = len(artifact.inputs)
        sides = {"inputs": tuple(plain[:count]), "outputs": tuple(plain[count:])}
        inner = super().load(replace(artifact, **sides), device)
        turn = self.from_blocks

        class Turning:
            scratch_bytes = 0

            def bind(self, inputs, outputs, scratch):
                plain_ones = [np.empty(spec.shape, spec.dtype) for spec in plain]
                step = inner.bind(plain_ones[:count], plain_ones[count:], scratch)

                def run():
                    for array, own, rank in zip(inputs, plain_ones, ranks, strict=False):
                        own[...] = turn(array) if rank == BLOCKED_RANK else array
                    step()
                    for array, own in zip(outputs, plain_ones[count:], strict=True):
                        array[...] = to_blocks(own, 16) if array.ndim == BLOCKED_RANK else own

                return run

        return Turning()

    from_blocks = staticmethod(from_blocks)


BLOCKED_RANK = 5


def _plain_spec(spec):
    if len(spec.shape) < BLOCKED_RANK:
        return spec
    batch, outer, *image, block = spec.shape
    return replace(spec, shape=(batch, outer * block, *image))


class ReadsBlocksInOrder(TakesBlocks):
    @staticmethod
    def from_blocks(array):
        batch, outer, *image, block = array.shape
        return array.reshape(batch, outer * block, *image)


class IgnoresTheBorder(TakesBlocks):
    def compile(self, candidate, context):
        return ReferenceBackend.compile(self, candidate, context)


class ListsAnUnheardOfLayout(TakesBlocks):
    def states(self, candidate, context):
        strange = tuple(replace(state, layout="hwcn") for state in candidate.inputs)
        return ((strange, candidate.outputs),)


class ListsThePlainBorder(TakesBlocks):
    def can_block(self, value):
        return False

    def states(self, candidate, context):
        return ((candidate.inputs, candidate.outputs),)


class ListsOneSide(TakesBlocks):
    def states(self, candidate, context):
        return tuple((inputs, ()) for inputs, _ in super().states(candidate, context))


class ListsAnotherMemory(TakesBlocks):
    def states(self, candidate, context):
        moved = tuple(replace(state, domain=(2, 0, "")) for state in candidate.inputs)
        return ((moved, candidate.outputs),)


class ListsByChance(TakesBlocks):
    def states(self, candidate, context):
        return super().states(candidate, context) if next(COUNTER) % 2 else ()


class TakesUnheardOfLayouts(TakesBlocks):
    def compile(self, candidate, context):
        known = [s for s in (*candidate.inputs, *candidate.outputs) if s.layout in BLOCKS]
        if len(known) < len(candidate.inputs) + len(candidate.outputs):
            return ReferenceBackend.compile(self, candidate, context)
        return super().compile(candidate, context)


class FailsOnOtherLayouts(TakesBlocks):
    def compile(self, candidate, context):
        names = {"plain": 0, "nchw16c": 16}
        for state in candidate.inputs:
            names[state.layout]
        return super().compile(candidate, context)


class LacksAMember(ReferenceBackend):
    @property
    def check(self):
        raise AttributeError("check")


class ChangesItsVersion(ReferenceBackend):
    def version(self):
        return str(next(COUNTER))


class RaisesInDetect(ReferenceBackend):
    def detect(self):
        raise OSError("no driver")


class DetectsAnother(ReferenceBackend):
    def detect(self):
        return replace(super().detect(), targets=(Target("fake"),))


class IgnoresOptions(ReferenceBackend):
    def open(self, placed, options):
        return HostDevice()


class YieldsWithoutAWord(ReferenceBackend):
    def yields(self, graph):
        return True


class EstimatesInWords(ReferenceBackend):
    def estimate(self, candidate, context):
        return "fast"


class LeavesMemoryOpen(FakeBackend):
    def open(self, placed, options):
        return HostDevice(options)


class LossyDevice(FakeDevice):
    def read(self, source, destination):
        super().read(source, destination)
        if destination.dtype == np.int64:
            destination[...] = destination.astype(np.int8) // 2


class LosesIntegers(FakeBackend):
    def open(self, placed, options):
        return LossyDevice(options)


class OverlappingDevice(FakeDevice):
    def tensor(self, block, offset, spec):
        return super().tensor(block, 0, spec)


class OverlapsTensors(FakeBackend):
    def open(self, placed, options):
        return OverlappingDevice(options)


@cache
def _make(name):
    return globals()[name]()


def __getattr__(name):
    """Let a spelling name an instance: `saboteurs:a_WrongNumbers`."""
    if not name.startswith("a_"):
        raise AttributeError(name)
    return _make(name.removeprefix("a_"))
