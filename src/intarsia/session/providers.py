# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's execution providers as targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import SettingError
from intarsia.place.machine import list_detected, resolve_targets
from intarsia.settings import Settings
from intarsia.target import DeviceType, Target

logger = logging.getLogger("intarsia")

_PAIR = 2

CPU = "CPUExecutionProvider"
"""ONNX Runtime's own kernels; here whatever is best on this CPU."""


def _number(value: str) -> str:
    return str(int(value))


def _precision(value: str) -> str:
    return {"FP32": "f32", "ACCURACY": "f32", "BF16": "bf16", "FP16": "f16"}[value.upper()]


Conversion = tuple[str, Callable[[str], str]]
"""The attribute of the target that an option becomes, and its value there."""

DEVICE: Mapping[str, Conversion] = {"device_id": ("device_id", _number)}


@dataclass(frozen=True, slots=True)
class Provider:
    """What an execution provider is here.

    Attributes:
        kind: The target kind that stands for it; None where we have none.
        options: Its options that mean something to the target.
    """

    kind: str | None = None
    options: Mapping[str, Conversion] = field(default_factory=dict)


PROVIDERS: Mapping[str, Provider] = {
    "NvTensorRTRTXExecutionProvider": Provider("tensorrt", DEVICE),
    "TensorrtExecutionProvider": Provider("tensorrt", DEVICE),
    "CUDAExecutionProvider": Provider("cuda", DEVICE),
    "ROCMExecutionProvider": Provider("rocm", DEVICE),
    "MIGraphXExecutionProvider": Provider("rocm", DEVICE),
    "OpenVINOExecutionProvider": Provider(
        "openvino",
        {"num_of_threads": ("num_threads", _number), "precision": ("precision", _precision)},
    ),
    "DnnlExecutionProvider": Provider("dnnl"),
    "VitisAIExecutionProvider": Provider("vitis-ai"),
    "QNNExecutionProvider": Provider("hexagon"),
    "NnapiExecutionProvider": Provider(),
    "VSINPUExecutionProvider": Provider(),
    "JsExecutionProvider": Provider(),
    "CoreMLExecutionProvider": Provider("coreml"),
    "ACLExecutionProvider": Provider("arm_acl"),
    "DmlExecutionProvider": Provider(),
    "RknpuExecutionProvider": Provider(),
    "WebNNExecutionProvider": Provider(),
    "WebGpuExecutionProvider": Provider("webgpu"),
    "XnnpackExecutionProvider": Provider(),
    "CANNExecutionProvider": Provider(),
    "AzureExecutionProvider": Provider(),
    CPU: Provider(),
}
"""Every provider that ONNX Runtime knows, in its order of preference.

The names are ONNX Runtime's, so they are a table; the kinds are those of the catalogue, and whether
one can be used here is what its backend detects.
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a list of providers means here.

    Attributes:
        targets: For `intarsia.compile`; None means what is found on this machine.
        options: The options of each provider in use, by its name, in order.
    """

    targets: list[str | Target] | None
    options: Mapping[str, Mapping[str, str]]


_SUFFIX = "ExecutionProvider"


def get_all_providers() -> list[str]:
    """Return the names of all providers that ONNX Runtime knows, in its order of preference."""
    return list(PROVIDERS)


def get_available_providers() -> list[str]:
    """Return the names of the providers whose target is found on this machine."""
    return _available(load_backends(Settings.from_environment()))


def get_device() -> str:
    """Return `GPU` if a provider for GPUs is available, else `CPU`."""
    return (
        "GPU"
        if any(DEVICE is PROVIDERS[name].options for name in get_available_providers())
        else "CPU"
    )


def choose(
    providers: Sequence[Any] | None, provider_options: Sequence[Any] | None, backends: Backends
) -> Chosen:
    """Return what a list of providers means on this machine.

    A provider that is not to be had here is left out with a warning, as ONNX Runtime does; the CPU
    is always last.

    Args:
        providers: Names, or pairs of a name and its options; None means what is found here.
        provider_options: The options of each, if `providers` are names.
        backends: Serve the targets.

    Raises:
        SettingError: A provider or an option is unknown, or has no such value.
    """
    requested = normalise(providers, provider_options)
    available = _available(backends)
    missing = [name for name in requested if name not in available]
    if missing:
        logger.warning(
            "%s not available here, left out: %s", ", ".join(missing), ", ".join(available)
        )
    in_use = {name: options for name, options in requested.items() if name not in missing}
    texts = {_target_text(name, options): None for name, options in in_use.items() if name != CPU}
    in_use.setdefault(CPU, {})
    _check_options(CPU, in_use[CPU])
    kinds = {PROVIDERS[name].kind for name in in_use}
    detected = [placed.target for placed in resolve_targets(None, None, backends).targets]
    on_cpu = [target for target in detected if target and target.kind.device_type is DeviceType.CPU]
    if not texts and (not requested or len(on_cpu) == len(detected)):
        return Chosen(None, in_use)
    return Chosen([*texts, *(target for target in on_cpu if target.kind.name not in kinds)], in_use)


def normalise(
    providers: Sequence[Any] | None, provider_options: Sequence[Any] | None
) -> dict[str, dict[str, str]]:
    """Return options by the name of each provider, in order; the first of two that are equal.

    Raises:
        SettingError: What was given is of another form, or a name is unknown.
    """
    if isinstance(providers, str) or not isinstance(providers or (), Sequence):
        raise SettingError(
            f"providers={providers!r} is not a list of providers",
            hint='write providers=["OpenVINOExecutionProvider", "CPUExecutionProvider"]',
        )
    odd = [provider for provider in providers or () if not _is_provider(provider)]
    if odd:
        raise SettingError(
            f"{odd[0]!r} is neither a provider nor a tuple of one and its options",
            hint='write ("OpenVINOExecutionProvider", {"num_of_threads": 2})',
        )
    pairs = [
        provider if isinstance(provider, tuple) else (provider, None)
        for provider in providers or ()
    ]
    if provider_options is not None:
        if not isinstance(provider_options, Sequence) or len(provider_options) != len(pairs):
            raise SettingError("provider_options is not a list with one dictionary per provider")
        if any(own is not None for _, own in pairs):
            raise SettingError("options are given both in providers and in provider_options")
        pairs = [(name, own) for (name, _), own in zip(pairs, provider_options, strict=True)]
    by_name: dict[str, dict[str, str]] = {}
    for name, own in pairs:
        if name not in PROVIDERS:
            raise SettingError(
                f"Unknown Provider Type: {name}",
                hint=_meant(name)
                + f"there are {', '.join(PROVIDERS)}; targets= takes every target",
            )
        if not isinstance(own or {}, Mapping):
            raise SettingError(f"the options of {name} are a dictionary, not {own!r}")
        if name in by_name:
            logger.warning("%s is listed twice; the first counts", name)
            continue
        by_name[name] = {str(key): str(value) for key, value in (own or {}).items()}
    return by_name


def _meant(name: str) -> str:
    """Return a hint where a provider is called by the short form of its name, as in `CPU`."""
    known = {one.removesuffix(_SUFFIX).lower(): one for one in PROVIDERS}
    full = known.get(name.lower()) if isinstance(name, str) else None
    return f"did you mean {full!r}? " if full else ""


def _is_provider(provider: Any) -> bool:
    """Tell whether an item is a name, or a name and something else."""
    name = provider[0] if isinstance(provider, tuple) and len(provider) == _PAIR else provider
    return isinstance(name, str)


def _available(backends: Backends) -> list[str]:
    kinds = {target.kind.name for target in list_detected(backends.by_name.values())}
    return [name for name, provider in PROVIDERS.items() if name == CPU or provider.kind in kinds]


def _target_text(name: str, options: Mapping[str, str]) -> str:
    """Return the text of the target that a provider with options is."""
    provider = PROVIDERS[name]
    _check_options(name, options)
    attrs = []
    for option, value in options.items():
        attr, convert = provider.options[option]
        try:
            attrs.append(f"-{attr}={convert(value)}")
        except (KeyError, ValueError):
            raise SettingError(f"option {option!r} of {name} has no value {value!r}") from None
    return " ".join([str(provider.kind), *attrs])


def _check_options(name: str, options: Mapping[str, str]) -> None:
    allowed = PROVIDERS[name].options
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise SettingError(
            f"{name} has no option {unknown[0]!r} here",
            hint=f"it has {', '.join(allowed) or 'none'}; "
            "targets= takes every attribute of a target",
        )
