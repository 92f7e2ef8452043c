# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime's own profiler tells of a region, by the names of the region's nodes.

Source:
    ONNX Runtime, "Profile tools": `enable_profiling` writes events in the Trace Event Format, in
    microseconds since `get_profiling_start_time_ns`, which is by the system's clock of the day. A
    session writes its file once, when profiling ends.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx

from intarsia.backends.device import Step
from intarsia.backends.tracing import WorkSpan, cover_nodes
from intarsia.backends.values import Artifact
from intarsia.decoding import decode_json


class OrtEvent(msgspec.Struct, frozen=True):
    """An event of ONNX Runtime's profile; times are in microseconds."""

    name: str
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class ProfiledSession:
    """A session that notes each of its kernels in a file; the file goes with it.

    Args:
        artifact: The region.
        open_session: Returns a session that writes its profile to a file with a prefix.
    """

    def __init__(self, artifact: Artifact, open_session: Callable[[str], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="intarsia-ort-")
        self._artifact = artifact
        self.session = open_session(str(Path(self._folder.name) / "profile"))

    def spans(self) -> list[WorkSpan]:
        """Return the kernels of all runs; the session notes no more after this."""
        # The clock of the day against that of `perf_counter`: both are looked at within a
        # microsecond.
        shift = time.perf_counter_ns() - time.time_ns()
        zero = (int(self.session.get_profiling_start_time_ns()) + shift) / 1e9
        file = Path(self.session.end_profiling())
        text = file.read_text(encoding="utf-8")
        self._folder.cleanup()
        return read_profile(text, self._artifact, zero)


def read_profile(text: str, artifact: Artifact, zero: float) -> list[WorkSpan]:
    """Return the kernels that a profile of ONNX Runtime's tells of.

    Args:
        text: The profile.
        artifact: The region that ran.
        zero: When the profile begins, by `time.perf_counter`.
    """
    events = [
        event
        for event in decode_json(text, list[OrtEvent])
        if event.cat == "Node" and event.name.endswith(_KERNEL)
    ]
    graph = onnx.load_from_string(artifact.payload).graph
    nodes = [(node.name, tuple(node.input), tuple(node.output)) for node in graph.node]
    known = frozenset(name for name, _, _ in nodes)
    names = {event.name: node_name(event.name, known) for event in events}
    groups = cover_nodes(nodes, [name for name in names.values() if name])
    spans = []
    for event in events:
        facts = {"provider": event.args.get("provider"), "operator": event.args.get("op_name")}
        spans.append(
            WorkSpan(
                name=event.name.removesuffix(_KERNEL),
                nodes=groups.get(names[event.name], ()),
                start=zero + event.ts / 1e6,
                seconds=event.dur / 1e6,
                facts={name: str(fact) for name, fact in facts.items() if fact},
            )
        )
    return spans


_KERNEL = "_kernel_time"


def node_name(event: str, known: frozenset[str]) -> str:
    """Return the node of the region that a kernel is named after; empty if it is after none.

    Args:
        event: Its name in a profile.
        known: The names of the region's nodes.
    """
    name = event.removesuffix(_KERNEL)
    # Optimizers add words of theirs: `_nchwc` to what works on blocks of channels, `fused ` or
    # `/MatmulAddFusion` and the like to what they have put together.
    while name not in known:
        shorter = _ADDED.sub("", name)
        if shorter == name:
            return ""
        name = shorter
    return name


_ADDED = re.compile(r"^fused |(?:_nchwc|_nhwc|_quant|_token_\d+|/?\w*Fusion\w*/?)$")


class ProfiledRun:
    """The call of a session that tells its kernels afterwards."""

    def __init__(self, step: Step, profiled: ProfiledSession) -> None:
        self._step, self._profiled = step, profiled

    def __call__(self) -> None:
        """Run."""
        self._step()

    def spans(self) -> Sequence[WorkSpan]:
        """Return the kernels of all runs."""
        return self._profiled.spans()
