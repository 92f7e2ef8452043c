# SPDX-License-Identifier: Apache-2.0
"""`intarsia serve MODEL...`: answer requests over HTTP and gRPC."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import readable_model
from intarsia.cli.models import open_executable
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    Choices,
    JsonOption,
    SignatureOption,
    ThreadsOption,
    TrustOption,
    takes_choices,
)
from intarsia.cli.output import note, show, show_json, write_json_line
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from intarsia.runtime.free import Program
    from intarsia.serving.batching import BatchRule
    from intarsia.serving.repository import ModelRepository
    from intarsia.serving.tls import ServerCertificate

_MIB = 1 << 20
_WAIT = 2.0
"""Milliseconds that a request waits for others to be run with."""


@takes_choices(*MACHINE, *NODES, *BUCKETS, "placement", "strict", "no_cache", "no_probe")
def serve_command(  # noqa: PLR0913 - an option each
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]FILE...",
            help="Packages and ONNX models; without a name, each has that of its file.",
            show_default=False,
        ),
    ] = None,
    *,
    repository: Annotated[
        Path | None,
        typer.Option(
            "--repository", metavar="DIR", help="A folder whose models may be loaded by requests."
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option("--bind", metavar="ADDRESS", help="The interface; 0.0.0.0 is all of them."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Of HTTP; 0: any that is free."),
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc-port",
            metavar="N",
            min=0,
            max=65535,
            help="Of gRPC; 0: any that is free. Default: no gRPC.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="ROWS",
            min=2,
            help="Run requests together, up to so many rows, where the first dimension is free.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="MS",
            min=0.0,
            help="With --batch: how long a request waits for others. Default: 2.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="Certificate in PEM: answer by TLS, on both ports."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="With --tls-cert: its private key in PEM."),
    ] = None,
    max_connections: Annotated[
        int,
        typer.Option(
            "--max-connections", metavar="N", min=1, help="Most connections of HTTP at once."
        ),
    ] = 512,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="Runs of one model at once.")
    ] = 1,
    queue: Annotated[
        int,
        typer.Option("--queue", metavar="N", min=1, help="Most requests that wait for one model."),
    ] = 64,
    max_body: Annotated[
        int,
        typer.Option("--max-body", metavar="MIB", min=1, help="Largest request."),
    ] = 64,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.001, help="Of a request. Default: no limit."
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="SECONDS", min=0.0, help="What is in flight has at the end."
        ),
    ] = 30.0,
    control: Annotated[
        bool | None,
        typer.Option(
            "--control/--no-control",
            help="Requests may load and unload models. Default: if only this machine is served.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load the models, say what would be served, and end.")
    ] = False,
    trust: TrustOption = False,
    require_signature: SignatureOption = False,
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Serve models by the Open Inference Protocol, version 2, until SIGTERM or Ctrl-C.

    What is in flight then is finished. See docs/serving.md.
    """
    from intarsia.serving.extras import require_extra

    require_extra("serve")
    if grpc_port is not None:
        require_extra("serve-grpc")
    from intarsia.serving.metrics import ServerMetrics
    from intarsia.serving.repository import ModelRepository, find_models, name_models
    from intarsia.serving.server import serve, take_port
    from intarsia.serving.service import InferenceService
    from intarsia.serving.values import ServingLimits, is_loopback

    files = {name: _readable(path) for name, path in name_models(models or ()).items()}
    if repository is not None:
        find_models(repository)  # refuse what cannot be read before anything is loaded
    elif not files:
        raise SettingError(
            "there is nothing to serve", hint="give models, or a folder of models: --repository DIR"
        )
    if grpc_port is not None and grpc_port == port != 0:
        raise SettingError(
            f"port {port} is that of HTTP", hint="gRPC has one of its own: give another --grpc-port"
        )
    rule = _read_rule(batch, wait)
    certificate = _read_certificate(tls_cert, tls_key)
    limits = ServingLimits(max_body * _MIB, queue, workers, timeout, grace, rule, max_connections)
    metrics = ServerMetrics()
    opener = _opener(
        choices,
        threads,
        trust=trust,
        require_signature=require_signature,
        files=() if repository is not None else files.values(),
    )
    served = ModelRepository(files, opener, limits, metrics, repository)
    is_controlled = is_loopback(address) if control is None else control

    def tell(http_port: int, rpc_port: int | None) -> None:
        if json:
            facts = {"address": address, "http_port": http_port, "grpc_port": rpc_port}
            more = {"control": is_controlled, "models": sorted(files), "pid": os.getpid()}
            more["tls"] = certificate is not None
            write_json_line({"event": "listening", **facts, **more})
            return
        also = "" if rpc_port is None else f", gRPC on port {rpc_port}"
        note(
            f"serving {', '.join(files) or 'nothing yet'} on "
            f"{'http' if certificate is None else 'https'}://{address}:{http_port}{also}; "
            f"requests {'may' if is_controlled else 'may not'} load and unload models"
        )

    with take_port(address, port) as http, ExitStack() as stack:
        rpc = None if grpc_port is None else stack.enter_context(take_port(address, grpc_port))
        with ExitStack() as unserved:
            unserved.callback(lambda: served.close(time.monotonic()))  # nothing runs yet
            for name, path in files.items():
                note(f"loading {name} from {path}")
                served.load(name)
            if dry_run:
                _show(served, json=json)
                return
            unserved.pop_all()
        service = InferenceService(served, limits, metrics, is_controlled=is_controlled)
        end = serve(service, http, host=address, grpc=rpc, certificate=certificate, on_ready=tell)
    if json:
        write_json_line({"event": "stopped", "whole": end.is_whole})
    if end.is_interrupted:
        raise KeyboardInterrupt
    note(
        "stopped: all requests that were in flight are answered"
        if end.is_whole
        else "stopped: requests that were in flight are given up"
    )


def _read_rule(batch: int | None, wait: float | None) -> BatchRule | None:
    """Return how requests are run together.

    Raises:
        SettingError: They are not, and something is said of how long they wait for it.
    """
    from intarsia.serving.batching import BatchRule

    if batch is not None:
        return BatchRule(batch, (_WAIT if wait is None else wait) / 1e3)
    if wait is not None:
        raise SettingError(
            "--wait is how long requests wait to be run together", hint="give --batch ROWS as well"
        )
    return None


def _read_certificate(chain: Path | None, key: Path | None) -> ServerCertificate | None:
    """Return what TLS needs; None answers without.

    Raises:
        SettingError: One of the two is missing, or they are not what they should be.
    """
    from intarsia.serving.tls import load_certificate

    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise SettingError(
            f"{'--tls-cert' if chain is None else '--tls-key'} is missing",
            hint="a certificate and its key belong together",
        )
    return load_certificate(chain, key)


def _readable(path: Path) -> Path:
    """Return a file that is there, and is no pipe.

    Raises:
        SettingError: It is not.
    """
    if not readable_model(path).is_file():
        raise SettingError(f"there is no file {str(path)!r}", hint="write FILE, or NAME=FILE")
    return path


def _opener(
    choices: Choices,
    threads: int | None,
    *,
    trust: bool,
    require_signature: bool,
    files: Collection[Path],
) -> Callable[[Path], Program]:
    """Return what loads a package or compiles a model.

    Options of compiling are for the models; if there are none, they are an error.
    """
    from intarsia.runtime.package import is_package

    has_models = not files or not all(map(is_package, files))

    def open_file(path: Path) -> Program:
        chosen = Choices() if has_models and is_package(path) else choices
        return open_executable(
            path, chosen, threads, trust=trust, require_signature=require_signature
        )

    return open_file


def _show(served: ModelRepository, *, json: bool) -> None:
    """Print what would be served."""
    from intarsia.report.serving import served_table
    from intarsia.serving.values import ModelState

    entries = served.index()
    loaded = {
        entry.name: served.find(entry.name).metadata
        for entry in entries
        if entry.state is ModelState.READY
    }
    if json:
        show_json({"models": [{"index": one, "metadata": loaded.get(one.name)} for one in entries]})
        return
    show(served_table(entries, loaded))
