# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's class, with targets for providers.

`end_profiling` writes events of Chrome's trace format, one a line.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from intarsia.backends.registry import Backends, load_backends
from intarsia.backends.values import TensorSpec
from intarsia.compiler import compile as compile_model
from intarsia.errors import ExecutionError, InputError, SettingError
from intarsia.graph.free_sizes import FreeSpec
from intarsia.graph.model_info import ModelInfo
from intarsia.opening import load
from intarsia.place.machine import resolve_targets
from intarsia.plan.plan import RegionStep
from intarsia.plan.profile import CallPath, TimedCall
from intarsia.runtime.device_array import to_host
from intarsia.runtime.feeds import check_feeds
from intarsia.runtime.free import Program
from intarsia.runtime.package import is_package
from intarsia.runtime.recorder import RecordedCall, RunRecorder
from intarsia.session.binding import IOBinding
from intarsia.session.options import (
    ORT_KIND,
    SessionOptions,
    changes_of,
    check_session_options,
    optimization_of,
    override_sizes,
    with_initializers,
)
from intarsia.session.providers import Chosen, choose
from intarsia.session.values import NodeArg, OrtValue, as_given
from intarsia.settings import Settings
from intarsia.target.fields import rename_target_host

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node and what it is, in ONNX Runtime's words."""

    name: str
    op_type: str


@dataclass(frozen=True, slots=True)
class AssignedSubgraph:
    """A region and the target that runs it.

    Attributes:
        ep_name: Text of the target.
        nodes: Its nodes, in the order in which they run.
    """

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return its nodes, in the order in which they run."""
        return list(self.nodes)


_OF_TRUST = ("trust", "require_signature")
_OF_PACKAGES = ("num_threads", "backends", "frozen", "max_shapes", "isolate", *_OF_TRUST)
"""Options that mean something for a package; those of trust mean nothing for a model."""


class InferenceSession:
    """A compiled model with the shape of `onnxruntime.InferenceSession`.

    Args:
        path_or_bytes: A model in any form that `intarsia.compile` takes, or a package's path.
        sess_options: A `SessionOptions`; None means the default ones.
        providers: ONNX Runtime's providers, by name or as pairs with options, which stand for
            targets as docs/onnxruntime.md lists them.
        provider_options: The options of each provider.
        targets: Targets in order of priority, in any form; None means what the providers say, or
            what is found on this machine.
        options: Passed on to `intarsia.compile`: `host` (also as `target_host`), `shapes`, ...

    Attributes:
        executable: The program: `explain`, `placement`, `save`, ...

    Raises:
        SettingError: An option, provider or its options are unknown or contradict one another.
        IntarsiaError: As `intarsia.compile` and `intarsia.load`.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        targets: Any = None,
        **options: Any,
    ) -> None:
        if "target" in options:
            raise SettingError(
                "a session has no argument `target`", hint="write targets=, as for several"
            )
        self._session_options = check_session_options(sess_options)
        threads = self._session_options.intra_op_num_threads
        if threads:
            if options.get("num_threads") not in (None, threads):
                raise SettingError(
                    f"intra_op_num_threads={threads} contradicts "
                    f"num_threads={options['num_threads']}",
                    hint="give one of them",
                )
            options["num_threads"] = threads
        self._source, self._options, self._targets = path_or_bytes, options, targets
        self._trace = Trace() if self._session_options.enable_profiling else None
        self.executable = self._make(providers, provider_options)

    def _make(
        self, providers: Sequence[Any] | None, provider_options: Sequence[Any] | None
    ) -> Program:
        """Return the program for some providers, or for the targets that were given."""
        source, options = self._source, dict(self._options)
        if isinstance(source, str | Path) and is_package(source):
            arguments = {"targets": self._targets, "providers": providers, **options}
            compiling = [
                name
                for name, value in arguments.items()
                if value is not None and name not in _OF_PACKAGES
            ]
            compiling += changes_of(self._session_options)
            if compiling:
                raise SettingError(
                    f"{str(source)!r} is compiled already",
                    hint=f"leave {', '.join(compiling)} out, or give the .onnx file",
                )
            self._chosen = None
            return load(source, **options)
        for name in _OF_TRUST:  # a model's code is made here
            options.pop(name, None)
        self._chosen = self._choose(providers, provider_options)
        target = self._targets if self._chosen is None else self._chosen.targets
        attrs = self._attributes()
        if attrs:
            backends = self._backends()
            host = rename_target_host(options.pop("host", None), options.pop("target_host", None))
            target = resolve_targets(target, host, backends)
            kinds = {one.target.kind.name for one in target.targets}
            if "custom_ops" in attrs or ORT_KIND in kinds:  # a level means nothing to others
                target = resolve_targets(target, None, backends, {ORT_KIND: attrs})
        sizes = override_sizes(source, self._session_options)
        if sizes:
            options["shapes"] = {**sizes, **(options.get("shapes") or {})}
        model = with_initializers(source, self._session_options)
        return compile_model(model, target, **options)

    def _choose(
        self,
        providers: Sequence[Any] | None,
        provider_options: Sequence[Any] | None,
    ) -> Chosen | None:
        """Return what providers mean; None if none were given."""
        if providers is None:
            if provider_options is not None:
                raise SettingError("provider_options were given, and no providers")
            return None
        if self._targets is not None:
            raise SettingError(
                "targets= and providers= both say where the model runs", hint="give one of them"
            )
        return choose(providers, provider_options, self._backends())

    def _backends(self) -> Backends:
        """Return the backends that were given, else all that are installed."""
        backends: Backends | None = self._options.get("backends")
        return load_backends(Settings.from_environment()) if backends is None else backends

    def _attributes(self) -> dict[str, str | list[str]]:
        """Return the attributes that session options mean for targets of the kind `onnxruntime`."""
        level = optimization_of(self._session_options)
        attrs: dict[str, str | list[str]] = {}
        if level != "all":
            attrs["graph_optimization"] = level
        libraries = self._session_options.custom_ops_libraries
        if libraries:
            attrs["custom_ops"] = list(libraries)
        return attrs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: The outputs that are wanted, in order; None or none means all.
            input_feed: An array, list or `OrtValue` per input, by name.
            run_options: A `RunOptions`.

        Raises:
            InputError: A name, dtype or shape is wrong.
            ExecutionError: A backend failed, or `run_options.terminate` is set.
        """
        if getattr(run_options, "terminate", False):
            raise ExecutionError("the run was not started: RunOptions.terminate is set")
        if isinstance(output_names, str):
            raise InputError(
                f"output_names={output_names!r} is not a list of names",
                hint=f"write [{output_names!r}]",
            )
        all_names = [spec.name for spec in self.executable.outputs]
        names = list(output_names or all_names)
        unknown = [name for name in names if name not in all_names]
        if unknown:
            raise InputError(
                f"the model has no output {unknown[0]!r}", hint=f"it has {', '.join(all_names)}"
            )
        outputs = self._run(self._read_feeds(input_feed))
        return [outputs[name] for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Run the model once on `OrtValue`s, and return such; else as `run`."""
        return [
            OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)
        ]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run the model once in another thread.

        Args:
            output_names: As in `run`.
            input_feed: As in `run`; not to be changed before `callback` is called.
            callback: Called in that thread with the outputs, `user_data` and an empty text, or with
                no outputs and the text of the error.
            user_data: Handed to `callback`.
            run_options: As in `run`.
        """
        self._threads.submit(
            self._run_and_tell, output_names, input_feed, callback, user_data, run_options
        )

    def _run_and_tell(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any,
    ) -> None:
        try:
            outputs, text = self.run(output_names, input_feed, run_options), ""
        except Exception as error:  # whatever it is, the callback is told
            outputs, text = [], str(error) or type(error).__name__
        try:
            callback(outputs, user_data, text)
        except Exception:
            logger.exception("the callback of run_async failed")

    def io_binding(self) -> IOBinding:
        """Return a binding of this session's inputs and outputs."""
        return IOBinding(self.executable)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model once on what is bound.

        Raises:
            InputError: The binding is another session's, an input is missing or does not fit.
            ExecutionError: A backend failed, or `run_options.terminate` is set.
        """
        if getattr(run_options, "terminate", False):
            raise ExecutionError("the run was not started: RunOptions.terminate is set")
        iobinding.run(self.executable)

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs."""
        return self._describe(self.executable.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs."""
        return self._describe(self.executable.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return nothing: inputs with initializers became constants when the model was compiled."""
        return []

    def get_modelmeta(self) -> ModelInfo:
        """Return what the model says of itself; a package of an older version does not know it."""
        return self.executable.info

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._session_options

    def get_providers(self) -> list[str]:
        """Return the providers in use if such were given, else the targets, first choice first."""
        if self._chosen is not None:
            return list(self._chosen.options)
        return list(self.executable.targets)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider or target in use, by its name."""
        if self._chosen is not None:
            return {name: dict(options) for name, options in self._chosen.options.items()}
        return {text: {} for text in self.executable.targets}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Compile the model again for other providers; if that fails, nothing has changed.

        Args:
            providers: As for the class; None means what is found on this machine.
            provider_options: As for the class.

        Raises:
            IntarsiaError: As for the class.
        """
        before = self._targets, self._chosen
        self._targets = None
        try:
            self.executable = self._make(providers, provider_options)
        except BaseException:
            self._targets, self._chosen = before
            raise

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        """Return each region with its target and nodes; `executable.explain()` says why."""
        return [
            AssignedSubgraph(
                region.target, tuple(AssignedNode(node.name, node.op_type) for node in region.nodes)
            )
            for region in self.executable.placement.regions
        ]

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling started, by `time.monotonic_ns`; 0 if it was not asked for."""
        return 0 if self._trace is None else self._trace.start_ns

    def end_profiling(self) -> str:
        """Stop profiling, write the runs since then, and return the file's name.

        The file has Chrome's trace format: a line for each run, region and copy, and inside of
        regions that run bodies for each iteration, with its regions and copies.

        Raises:
            SettingError: `enable_profiling` was not set, or the file cannot be written.
        """
        if self._trace is None:
            raise SettingError(
                "profiling is not on", hint="set SessionOptions.enable_profiling = True"
            )
        trace, self._trace = self._trace, None
        return trace.write(self._session_options.profile_file_prefix)

    def _read_feeds(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return feeds in the forms that a program takes."""
        if not isinstance(feeds, Mapping):
            return feeds  # the program says what is wrong
        specs = {spec.name: spec for spec in self.executable.inputs}
        return {
            name: as_given(specs[name], value) if name in specs else value
            for name, value in feeds.items()
        }

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        trace = self._trace
        if trace is None:
            return to_host(self.executable.run(feeds))
        program = self.executable.program_for(feeds)
        context = program.context()
        context.write_inputs(check_feeds(program.inputs, feeds))
        recorder = RunRecorder(context)
        start = time.monotonic_ns()
        trace.add_run(recorder.calls, start, recorder.run())
        return context.read_outputs()

    def _describe(self, specs: Sequence[TensorSpec | FreeSpec]) -> list[NodeArg]:
        types = self.executable.info.types
        return [NodeArg.of(spec, types.get(spec.name)) for spec in specs]

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Threads of `run_async`; as many as ONNX Runtime's pool would have."""
        return ThreadPoolExecutor(thread_name_prefix="intarsia-run-async")


class Trace:
    """The runs of a session so far; may be added to from many threads."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self._events: list[dict[str, Any]] = []

    def add_run(
        self, calls: Mapping[CallPath, RecordedCall], start_ns: int, timed: Sequence[TimedCall]
    ) -> None:
        """Add a run.

        Args:
            calls: What was called, by path.
            start_ns: When the run began, by the monotonic clock.
            timed: Each call, as it ended.
        """
        began = (start_ns - self.start_ns) / 1e3
        total = max((one.start + one.seconds for one in timed), default=0.0)
        events = [self._event("Session", "model_run", began, total * 1e6, {})]
        # Of calls that begin together, the one around the others has the shortest path.
        for one in sorted(timed, key=lambda one: (one.start, len(one.path))):
            name, args = _describe_call(calls[one.path], str(one.path[-1]))
            events.append(
                self._event("Node", name, began + one.start * 1e6, one.seconds * 1e6, args)
            )
        self._events += events

    def write(self, prefix: str) -> str:
        """Write the file and return its name.

        Args:
            prefix: What its name begins with; the time follows.

        Raises:
            SettingError: The file cannot be written.
        """
        stamp = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{time.monotonic_ns() % 10**9:09}"
        path = Path(f"{prefix}_{stamp}.json")
        try:
            path.write_text("[\n" + ",\n".join(map(json.dumps, self._events)) + "\n]\n")
        except OSError as error:
            raise SettingError(
                f"the profile {str(path)!r} cannot be written: {error.strerror}",
                hint="set SessionOptions.profile_file_prefix to a folder that can be written",
            ) from error
        return str(path)

    @staticmethod
    def _event(
        category: str, name: str, at: float, duration: float, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_ident(),
            "dur": round(duration, 3),
            "ts": round(at, 3),
            "ph": "X",
            "name": name,
            "args": dict(args),
        }


def _describe_call(call: RecordedCall, body: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a call in a trace, and what is told of it.

    Args:
        call: A step, or a whole body.
        body: The attribute that holds the body.
    """
    if call.position is None:
        return body, {}
    plan, step = call.plan, call.plan.steps[call.position]
    if isinstance(step, RegionStep):
        region = plan.placement.regions[step.region]
        return f"region {step.region}", {"op_name": region.operators, "provider": region.target}
    source, destination = (
        plan.devices[plan.tensors[i].device] for i in (step.source, step.destination)
    )
    name = f"copy {plan.tensors[step.source].name}"
    return name, {"bytes": step.nbytes, "from": source, "to": destination}
