# SPDX-License-Identifier: Apache-2.0
"""What a session of ONNX Runtime says to the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import SettingError
from intarsia.place.request import PLACEMENTS
from intarsia.target.text import suggest

NAME = "IntarsiaExecutionProvider"

_PREFIX = f"ep.{NAME.lower()}."
_DEFAULT_TARGET = "llvm"
_NAMES = ("num_threads", "placement", "target", "trust")


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """Options of the provider, and of the session for models with what is compiled.

    Attributes:
        target: The machine, as text.
        placement: As of `intarsia.compile`.
        num_threads: Threads that one run may use; None means the setting.
        trust: Whether code in a model runs whoever wrote it.
        writes_context: Whether a model is to be written that holds what was compiled.
        is_embedded: Whether that is inside the model, rather than in a file beside it.
        context_file: The file of that model; empty if the session does not say it.
        node_prefix: How names of its nodes begin.
    """

    target: str = _DEFAULT_TARGET
    placement: str = "auto"
    num_threads: int | None = None
    trust: bool = False
    writes_context: bool = False
    is_embedded: bool = False
    context_file: str = ""
    node_prefix: str = ""

    @classmethod
    def read(cls, entries: Mapping[str, str]) -> ProviderOptions:
        """Return those of a session's configuration.

        Raises:
            SettingError: An option is unknown, or has no such value.
        """
        own = {
            key[len(_PREFIX) :]: text for key, text in entries.items() if key.startswith(_PREFIX)
        }
        for name in own:
            if name not in _NAMES:
                raise SettingError(
                    f"Intarsia's provider has no option {name!r}",
                    hint=suggest(name, _NAMES, what="options"),
                )
        threads = own.get("num_threads")
        placement = own.get("placement", "auto")
        if placement not in PLACEMENTS:
            raise SettingError(
                f"placement is {placement!r}", hint=f"use one of {', '.join(PLACEMENTS)}"
            )
        return cls(
            own.get("target") or _DEFAULT_TARGET,
            placement,
            None if threads is None else _number("num_threads", threads),
            _truth("trust", own.get("trust", "0")),
            _truth("ep.context_enable", entries.get("ep.context_enable", "0")),
            _truth("ep.context_embed_mode", entries.get("ep.context_embed_mode", "0")),
            entries.get("ep.context_file_path", ""),
            entries.get("ep.context_node_name_prefix", ""),
        )

    def context_folder(self, model: str) -> Path:
        """Return the folder of the model that is written; `model` is the file of the one read.

        Raises:
            SettingError: Nobody says where that is.
        """
        if not self.context_file and not model:
            raise SettingError(
                "the model came as bytes, so that it is not known where to write what is compiled",
                hint="set ep.context_file_path, or ep.context_embed_mode to 1",
            )
        return Path(self.context_file or model).parent


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise SettingError(f"{name} is {text!r}", hint="give a number of threads, 1 or more")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise SettingError(f"{name} is {text!r}", hint="give 0 or 1")
    return text == "1"
