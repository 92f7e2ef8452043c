# SPDX-License-Identifier: Apache-2.0
"""What a server counts, in the form of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client as client
from prometheus_client import exposition

if TYPE_CHECKING:
    from intarsia.serving.queue import RunQueue

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Counters of one server; nothing of the process's own registry is touched."""

    def __init__(self) -> None:
        self.registry = client.CollectorRegistry()
        client.ProcessCollector(registry=self.registry)
        self._requests = client.Counter(
            "intarsia_requests",
            "Requests to run a model, by the status code of the answer",
            ("model", "protocol", "code"),
            registry=self.registry,
        )
        self._seconds = client.Histogram(
            "intarsia_request_seconds",
            "From a whole request to its answer",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._runs = client.Histogram(
            "intarsia_run_seconds",
            "Runs of a model",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rows = client.Histogram(
            "intarsia_run_requests",
            "Requests that were run together",
            ("model",),
            buckets=_ROWS,
            registry=self.registry,
        )
        self._waiting = client.Gauge(
            "intarsia_waiting_requests",
            "Requests that wait for a model",
            ("model",),
            registry=self.registry,
        )
        self._running = client.Gauge(
            "intarsia_active_runs", "Runs that are under way", ("model",), registry=self.registry
        )
        self._bodies = client.Gauge(
            "intarsia_body_bytes", "Bytes of requests that are held", registry=self.registry
        )
        self._hung = client.Gauge(
            "intarsia_hung_runs",
            "Runs that nobody waits for any more, and that have not ended",
            ("model",),
            registry=self.registry,
        )
        self._closed = client.Counter(
            "intarsia_closed_connections",
            "Connections of HTTP that were closed on their clients, by the reason",
            ("reason",),
            registry=self.registry,
        )

    def answered(self, model: str, protocol: str, code: int, seconds: float) -> None:
        """Count a request.

        Args:
            model: Its name; empty if there is none of that name.
            protocol: `http` or `grpc`.
            code: The status code of HTTP that the answer has or would have.
            seconds: How long it took.
        """
        self._requests.labels(model, protocol, str(code)).inc()
        if model:
            self._seconds.labels(model).observe(seconds)

    def ran(self, model: str, requests: int, seconds: float) -> None:
        """Count a run of a model.

        Args:
            model: Its name.
            requests: How many were run together.
            seconds: How long it took.
        """
        self._runs.labels(model).observe(seconds)
        self._rows.labels(model).observe(requests)

    def watch(self, model: str, queue: RunQueue) -> None:
        """Show how many requests wait in a queue, and how many runs are under way."""
        self._waiting.labels(model).set_function(lambda: queue.waiting)
        self._running.labels(model).set_function(lambda: queue.running)
        self._hung.labels(model).set_function(lambda: queue.hung)

    def forget(self, model: str) -> None:
        """Show no queue of a model any more."""
        self._waiting.remove(model)
        self._running.remove(model)
        self._hung.remove(model)

    def hold(self, nbytes: int) -> None:
        """Count bytes of bodies that are held from now on, or, below 0, no longer."""
        self._bodies.inc(nbytes)

    def closed(self, reason: str) -> None:
        """Count a connection that was closed on its client.

        Args:
            reason: As `intarsia.serving.connections` names it.
        """
        self._closed.labels(reason).inc()

    def text(self) -> tuple[bytes, str]:
        """Return all of it, and its media type."""
        return exposition.generate_latest(self.registry), exposition.CONTENT_TYPE_PLAIN_0_0_4
