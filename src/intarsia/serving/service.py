# SPDX-License-Identifier: Apache-2.0
"""What a server does, whichever way it is asked: HTTP and gRPC only translate."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from intarsia.arrays import Array
from intarsia.errors import InputError, IntarsiaError, RunTimeoutError, ServingError, words
from intarsia.serving.metrics import ServerMetrics
from intarsia.serving.repository import ModelRepository
from intarsia.serving.values import (
    IndexEntry,
    InferenceRequest,
    ModelMetadata,
    ServerMetadata,
    ServingLimits,
)

logger = logging.getLogger("intarsia")

T = TypeVar("T")

EXTENSIONS = ("binary_tensor_data", "model_repository", "metrics")
"""Of the protocol's, which this server has."""

LARGE_BYTES = 32 << 10
"""A request or an answer above it is read and written on another thread."""

_REFUSED = ("classification", "shared_memory_region", "sequence_id", "sequence_start")
"""Parameters of extensions that this server has not; passing over them would answer wrongly."""


class InferenceService:
    """Answers requests to models.

    Args:
        repository: The models.
        limits: How much it takes on.
        metrics: What it counts.
        is_controlled: Whether requests may load and unload models.

    Attributes:
        repository: The models.
        limits: How much it takes on.
        metrics: What it counts.
    """

    def __init__(
        self,
        repository: ModelRepository,
        limits: ServingLimits,
        metrics: ServerMetrics,
        *,
        is_controlled: bool,
    ) -> None:
        self.repository, self.limits, self.metrics = repository, limits, metrics
        self._is_controlled = is_controlled
        self._is_stopping = False
        self._held = 0

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return not self._is_stopping

    def stop_taking(self) -> None:
        """Refuse requests that come from now on."""
        self._is_stopping = True

    def server_metadata(self) -> ServerMetadata:
        """Return what the server is."""
        from importlib.metadata import version

        return ServerMetadata("intarsia", version("intarsia"), EXTENSIONS)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return what a model takes and returns.

        Args:
            name: Of the model.
            version: Which one; empty for any.

        Raises:
            ServingError: There is none, or it is not loaded.
        """
        return self.repository.find(name, version).metadata

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model answers.

        Args:
            name: Of the model.
            version: Which one; empty for any.

        Raises:
            ServingError: There is no such model.
        """
        try:
            self.check_model(name, version)
        except ServingError as error:
            if error.status == 404:  # noqa: PLR2004 - not found
                raise
            return False
        return True

    def check_model(self, name: str, version: str = "") -> None:
        """Refuse a model that does not answer.

        Args:
            name: Of the model.
            version: Which one; empty for any.

        Raises:
            ServingError: There is none, it is not loaded, or all its threads hang.
        """
        self.repository.find(name, version).queue.check_alive()

    async def infer(self, request: InferenceRequest) -> dict[str, Array]:
        """Run a model.

        Args:
            request: What is asked.

        Returns:
            The outputs that are asked for, by name.

        Raises:
            ServingError: The request cannot be answered; says why.
        """
        if self._is_stopping:
            raise ServingError("the server stops", status=503)
        model = self.repository.find(request.model, request.version)
        names = model.check_outputs(request.outputs)
        waiting = model.queue.put(model.check(request.inputs))
        timeout = min(
            (one for one in (request.timeout, self.limits.timeout) if one is not None),
            default=None,
        )
        clock = asyncio.timeout(timeout)
        try:
            async with clock:
                outputs = await asyncio.wrap_future(waiting.future)
        except TimeoutError as error:
            if not clock.expired():  # the model's own
                raise refusal(error) from error
            raise ServingError(
                f"model {request.model!r} took longer than {timeout:g} s", status=504
            ) from None
        except Exception as error:
            raise refusal(error) from error
        finally:
            model.queue.leave(waiting)
        return {name: outputs[name] for name in names}

    def index(self) -> list[IndexEntry]:
        """Return all models that there are."""
        return self.repository.index()

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or load it again, while others run.

        Args:
            name: Of the model.
            parameters: The protocol's, of which none is taken.

        Raises:
            ServingError: It cannot be loaded; says why.
        """
        self.check_control()
        if parameters:
            raise ServingError(
                f"parameter {next(iter(parameters))!r} of a load is not taken",
                hint="models are loaded from the server's own files, as it was started",
            )
        logger.info("loading %s", name)
        await in_thread(lambda: self.repository.load(name))

    async def unload(self, name: str) -> None:
        """Let a model end what it was asked for, and forget it.

        Args:
            name: Of the model.

        Raises:
            ServingError: There is no such model.
        """
        self.check_control()
        await in_thread(lambda: self.repository.unload(name))
        logger.info("unloaded %s", name)

    def check_control(self) -> None:
        """Refuse to change what is loaded, where requests may not.

        Raises:
            ServingError: They may not.
        """
        if not self._is_controlled:
            raise ServingError(
                "this server's models are not loaded and unloaded by requests",
                status=403,
                hint="--control allows it",
            )

    @contextmanager
    def holding(self, most: int | None = None) -> Iterator[Callable[[int], None]]:
        """Yield what is told of each part of a request's body; all are let go at the end.

        Args:
            most: Bytes of this body at most; None means what the limits say.

        Raises:
            ServingError: This body, or those of all requests, are too large.
        """
        held = 0
        most_bytes = self.limits.body_bytes if most is None else most

        def hold(nbytes: int) -> None:
            nonlocal held
            if held + nbytes > most_bytes:
                raise ServingError(
                    f"the request is larger than {most_bytes} bytes",
                    status=413,
                    hint=None if most else "--max-body says how large one may be",
                )
            if self._held + nbytes > self.limits.all_bodies_bytes:
                raise ServingError(
                    f"{self._held} bytes of other requests are held already", status=503
                )
            held += nbytes
            self._held += nbytes
            self.metrics.hold(nbytes)

        try:
            yield hold
        finally:
            self._held -= held
            self.metrics.hold(-held)

    async def counted(self, name: str, protocol: str, work: Awaitable[T]) -> T:
        """Do what answers a request to run a model, and count it.

        Args:
            name: Of the model.
            protocol: `http` or `grpc`.
            work: It.

        Raises:
            ServingError: The request cannot be answered.
        """
        start, code = time.perf_counter(), 500
        try:
            result = await work
            code = 200
        except ServingError as error:
            code = error.status
            raise
        except asyncio.CancelledError:
            code = 499
            raise
        finally:
            seconds = time.perf_counter() - start
            # A name that a stranger makes up would be counted for ever.
            known = name if self.repository.has(name) else ""
            self.metrics.answered(known, protocol, code, seconds)
            logger.debug("%s %s %d %.2f ms", protocol, known or "-", code, 1e3 * seconds)
        return result


def refusal(error: Exception) -> ServingError:
    """Return what a client is told of an error: never more than one sentence and a hint.

    Args:
        error: It; one of ours keeps its words.
    """
    if isinstance(error, ServingError):
        return error
    if isinstance(error, IntarsiaError):
        status = 504 if isinstance(error, RunTimeoutError) else 500
        if isinstance(error, InputError):
            status = 400
        return ServingError(error.message, status=status, hint=error.hint)
    logger.error("internal error: %s", words(error), exc_info=logger.isEnabledFor(logging.DEBUG))
    return ServingError(f"internal error: {type(error).__name__}", status=500)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of extensions that this server has not.

    Args:
        parameters: Of a request, an input or an output.

    Raises:
        ServingError: There is one.
    """
    for name in _REFUSED:
        if parameters.get(name):
            raise ServingError(f"parameter {name!r} belongs to an extension that is not here")


def read_timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return the seconds that a request gives itself by its parameter `timeout`, in microseconds.

    Args:
        parameters: Of the request.

    Raises:
        ServingError: It is no number above 0.
    """
    value = parameters.get("timeout")
    if value is None or value == 0:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ServingError(f"timeout {value!r} is no number of microseconds")
    return value * 1e-6


async def in_thread(work: Callable[[], T]) -> T:
    """Do slow work in a thread that no exit of the process waits for.

    Raises:
        ServingError: It failed.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None if that is the result

    def run() -> None:
        try:
            result, failure = work(), None
        except Exception as error:  # whoever waits gets it
            result, failure = None, error
        with suppress(RuntimeError):  # the loop has ended: a second signal came
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="intarsia-serve-load", daemon=True).start()
    try:
        return await future
    except IntarsiaError as error:
        if isinstance(error, ServingError):
            raise
        raise ServingError(error.message, hint=error.hint) from error
    except Exception as error:
        raise refusal(error) from error
