# SPDX-License-Identifier: Apache-2.0
"""What is asked of a server and what it answers, whichever way it comes in."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from intarsia.arrays import Array
from intarsia.serving.batching import BatchRule

VERSION = "1"
"""The version of every model: a file has no other."""

PLATFORM = "intarsia_onnx"
"""What runs models, in the protocol's form: `<project>_<format>`."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an interface.

    Args:
        host: Its name or address.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ModelState(StrEnum):
    """Whether a model answers; the words are those of the protocol's index."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output as the protocol describes it.

    Attributes:
        name: Of the tensor.
        datatype: The protocol's name of its type.
        shape: Its dimensions; -1 is any size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model as the protocol describes it."""

    name: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    versions: tuple[str, ...] = (VERSION,)
    platform: str = PLATFORM


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The server as the protocol describes it."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A model in the index of the repository."""

    name: str
    version: str
    state: ModelState
    reason: str


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request to run a model.

    Attributes:
        model: Its name.
        version: That of the model; empty for any.
        inputs: By name.
        outputs: The names of those that are asked for; None for all.
        timeout: Seconds; None means no limit of the request's own.
    """

    model: str
    version: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...] | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """How much a server takes on.

    Attributes:
        body_bytes: Largest body of a request.
        queue: Most requests that wait for one model.
        workers: Runs of one model at once.
        timeout: Seconds that a request may take; None means no limit.
        grace: Seconds that what is in flight has when the server stops.
        batch: How requests are run together; None if each runs alone.
        connections: Most connections of HTTP at once.
    """

    body_bytes: int = 64 << 20
    queue: int = 64
    workers: int = 1
    timeout: float | None = None
    grace: float = 30.0
    batch: BatchRule | None = None
    connections: int = 512

    @property
    def all_bodies_bytes(self) -> int:
        """Most bytes of bodies that are held at once, of all requests."""
        return 8 * self.body_bytes

    @property
    def json_bytes(self) -> int:
        """Most bytes of JSON in a request: what is read of it takes twenty times as many."""
        return min(self.body_bytes, 32 << 20)
