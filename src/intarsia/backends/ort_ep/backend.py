# SPDX-License-Identifier: Apache-2.0
"""Kinds of accelerators that ONNX Runtime reaches: partial backends, one for all providers.

A region is one session whose nodes are all the provider's; whether they are, the provider says
itself, node by node and of every region. Buffers are the host's. Attributes: `library`, `options`,
`ep_device`, `ep_context`, `num_threads`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.backends.artifact import (
    Verdict,
    check_payload,
    combine,
    onnx_artifact,
    probe_nodes,
)
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.onnxruntime_rewrites import newest_opset
from intarsia.backends.onnxruntime_sessions import RUNTIME, OrtExecutable, make_session
from intarsia.backends.ort_ep.providers import PROVIDERS, library_of, options_of, provider_of
from intarsia.backends.ort_ep.sessions import ProviderChoice, names_on_cpu, say_left
from intarsia.backends.rewriting import rewrite_artifact
from intarsia.backends.values import Artifact, Candidate, CodeIdentity, Detection, Refusal, Rule
from intarsia.errors import BackendError, IntarsiaError, ReasonCode, TargetError
from intarsia.process.selftest import SelfTest, file_facts, is_inside, require
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

_THREADS = "num_threads"
_CONTEXT = "ep_context"
_TARGET = "target_text"
"""Key of an artifact's metadata: the target, whose attributes `load` needs."""


def choice_of(target: Target) -> ProviderChoice:
    """Return the provider of a target as its sessions have it.

    Raises:
        TargetError: An option or the library is wrong.
    """
    provider = provider_of(target)
    library = library_of(target)
    title = provider.title if provider.name else f"the provider of {Path(library).name}"
    return ProviderChoice(
        provider.name,
        title,
        library,
        str(target.attrs.get("ep_device") or ""),
        tuple(sorted(options_of(target).items())),
    )


@dataclass(frozen=True)
class OrtEpBackend(ConfiguredBackend):
    """Serves the kinds of `PROVIDERS`. Settings say where verdicts on self-tests are kept."""

    name = "ort-ep"
    kinds = tuple(PROVIDERS)
    is_default = False

    def version(self) -> str:
        """Return ONNX Runtime's version.

        Raises:
            BackendError: It is not installed.
        """
        installed = RUNTIME.installed_version(self.settings.cache_folder())
        return installed or str(RUNTIME.module().__version__)

    def detect(self) -> Detection:
        """Return the kinds whose provider is here: in a package, or a part of ONNX Runtime."""
        try:
            RUNTIME.require(self.settings.cache_folder())
            built_in = RUNTIME.module().get_available_providers()
        except BackendError as error:
            return Detection.failed(error)
        found, reasons = [], []
        for kind, provider in PROVIDERS.items():
            target = Target(kind)
            if not library_of(target) and provider.name not in built_in:
                continue
            try:
                self.require_kind(kind)
                found.append(target)
            except IntarsiaError as error:
                reasons.append(error.message)
        packages = sorted({name for one in PROVIDERS.values() for name in one.packages})
        return Detection(
            tuple(found),
            "" if found else "; ".join(reasons) or "no provider for an accelerator is installed",
            "" if found else f"pip install one of {', '.join(packages)}, or name -library=PATH",
        )

    def require_kind(self, kind: str) -> None:
        """Check that the provider of a kind is here and passes its self-test.

        Raises:
            BackendError: It is not installed, or has not passed.
        """
        if not PROVIDERS[kind].name:
            raise BackendError(
                f"{kind} has the provider that a target names",
                backend=self.name,
                hint=f"name its file: {kind} -library=PATH",
            )
        self.ready(Target(kind))

    def identity(self, context: BuildContext) -> CodeIdentity:
        """Return what decides which code runs: the provider's library."""
        library = library_of(context.target.target)
        return CodeIdentity(
            ("intarsia.backends.ort_ep",), device=" ".join(file_facts(library)) if library else ""
        )

    def check_target(self, target: Target) -> Sequence[str]:
        """Check options and library; return the attributes that have no effect.

        Raises:
            TargetError: An option is unknown, or there is no library.
        """
        choice = choice_of(target)
        if not choice.name and not choice.library:
            raise TargetError(
                "library: the kind ort-ep needs the file of a provider",
                target=str(target),
                hint="name it: ort-ep -library=PATH; other kinds know theirs",
            )
        vain = () if provider_of(target).has_context else (_CONTEXT,)
        if not choice.library:
            vain = (*vain, "ep_device")
        return tuple(name for name in vain if target.attrs.get(name))

    def ready(self, target: Target) -> ProviderChoice:
        """Return the provider of a target, which has been tried in a process of its own.

        Raises:
            BackendError: It is not installed, or has not passed its self-test.
            TargetError: An option or the library is wrong.
        """
        caches = self.settings.cache_folder()
        facts = RUNTIME.require(caches)
        choice = choice_of(target)
        if not choice.library and choice.name not in RUNTIME.module().get_available_providers():
            packages = " or ".join(provider_of(target).packages)
            raise BackendError(
                f"{target.kind.name}: {choice.title} is no part of the ONNX Runtime that is "
                "installed",
                backend=self.name,
                target=str(target),
                hint=f"pip install {packages}, or name its file: -library=PATH"
                if packages
                else "build ONNX Runtime with it, or name its file: -library=PATH",
            )
        if not is_inside():
            arguments = (choice.name, choice.title, choice.library, choice.device)
            test = SelfTest(
                choice.title,
                "intarsia.backends.ort_ep.sessions:try_provider",
                (*arguments, [list(pair) for pair in choice.options]),
                (*facts, *(file_facts(choice.library) if choice.library else ())),
            )
            require(test, self.name, "another version of its package", caches)
        return choice

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: what the provider says that it takes."""
        return (Rule("provider", partial(refuse_by_provider, self), "its provider takes it"),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: whether the provider takes a whole region is known when it is loaded."""
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX; with `ep_context` as what the provider made of it.

        Raises:
            BackendError: The provider does not take it, or writes no context.
        """
        target = context.target.target
        metadata = {
            _THREADS: str(context.attrs.get(_THREADS) or 0),
            _TARGET: str(target),
        }
        artifact = onnx_artifact(
            self.name, self.version(), candidate, constants="external", metadata=metadata
        )
        artifact = rewrite_artifact(artifact, candidate.region, (), newest_opset(candidate.region))
        if context.attrs.get(_CONTEXT) and provider_of(target).has_context:
            return write_context(artifact, self.ready(target))
        return artifact

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory: the provider copies."""
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> OrtExecutable:
        """Return a session whose nodes are all the provider's.

        Raises:
            BackendError: ONNX Runtime put a node on the CPU.
        """
        choice = self.ready(Target(artifact.metadata[_TARGET]))
        check_payload(artifact)
        own_threads = int(artifact.metadata[_THREADS])
        options = ThreadOptions(own_threads or device.options.num_threads, device.options.is_shared)
        session = make_session(artifact, options, provide=choice.provide)
        left = names_on_cpu(session)
        if left:
            raise choice.error(f"has not all of a region: {say_left(choice.title, left)}")
        return OrtExecutable(artifact, session)


def write_context(artifact: Artifact, choice: ProviderChoice) -> Artifact:
    """Return a region as the provider compiled it: a model of nodes `EPContext`.

    Raises:
        BackendError: The provider writes none, or leaves nodes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "context.onnx"

        def provide(settings: Any) -> Mapping[str, Any]:
            for name, value in (("enable", "1"), ("embed_mode", "1"), ("file_path", str(file))):
                settings.add_session_config_entry(f"ep.context_{name}", value)
            return choice.provide(settings)

        session = make_session(artifact, ThreadOptions(), provide=provide)
        left = names_on_cpu(session)
        if left or not file.exists():
            raise choice.error(say_left(choice.title, left) if left else "wrote no context")
        return replace(artifact, payload=file.read_bytes(), constants=())


def refuse_by_provider(
    backend: OrtEpBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Refuse what the provider leaves to ONNX Runtime's own kernels, each node asked by itself."""
    choice = backend.ready(context.target.target)

    def artifact_of(region: Region) -> Artifact:
        whole = onnx_artifact(
            backend.name,
            backend.version(),
            Candidate.plain(region, context.target),
            constants="external",
        )
        return rewrite_artifact(whole, region, (), newest_opset(region))

    def is_usual(region: Region) -> bool:
        border = (region.graph.values[one] for one in (*region.inputs, *region.outputs))
        return bool(region.inputs) and all(value.is_static and value.nbytes for value in border)

    def attempt(region: Region) -> Verdict:
        if not is_usual(region):
            return ReasonCode.DYNAMIC_SHAPE, "a shape is not fixed, or has no elements"
        try:
            session = make_session(artifact_of(region), ThreadOptions(), "none", choice.provide)
        except BackendError as error:
            return ReasonCode.UNSUPPORTED_OP, error.message
        left = names_on_cpu(session)
        return (ReasonCode.UNSUPPORTED_OP, say_left(choice.title, left)) if left else None

    def together(regions: Sequence[Region]) -> Sequence[Verdict] | None:
        try:
            whole, _ = combine([artifact_of(region) for region in regions])
            left = names_on_cpu(make_session(whole, ThreadOptions(), "none", choice.provide))
        except BackendError:
            return None
        return None if left else [None] * len(regions)

    return probe_nodes(graph, context, attempt, together, is_usual)


BACKEND = OrtEpBackend()
