# SPDX-License-Identifier: Apache-2.0
"""Every environment variable, declared once: name, type, default, help, part in cache keys.

The environment is read here and nowhere else: once where a request comes in
(`Settings.from_environment`). The value is handed down as a part of the request, of the backends
(`Backends.settings`), or as a parameter.
"""

from __future__ import annotations

import operator
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from intarsia.cpus import default_threads
from intarsia.errors import SettingError


def _setting(variable: str, default: Any, help: str, *, in_cache_keys: bool) -> Any:  # noqa: A002 - the field's own word
    return field(
        default=default,
        metadata={"variable": variable, "help": help, "in_cache_keys": in_cache_keys},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment may set; every field has an option of the same meaning.

    Attributes:
        cache_dir: Where kernels, artifacts and costs are kept; None means the XDG default.
        keys_dir: Where keys are kept, of this installation and of whom the user trusts; None means
            the XDG default.
        num_threads: Threads that one run may use; 0 means all CPUs that this process may use,
            by its affinity and by the quota of its control groups.
        dump_dir: Where generated code is written for people; None writes nothing.
        log_level: Level of the `intarsia` logger.
        debug: Whether the command line shows the traceback of an internal error.
        target_files: Files of tags and labels; `target` reads them when a name is not known.
        dnnl_library: The file of oneDNN's library; None looks for the installed one.
        acl_root: The folder below which Arm Compute Library is; None means `/usr`.
        costs: The cost database, as a file or a URL; None means a file among the caches.
        schedules: The folder of tuned schedules of kernels; None means one among the caches.
        programs: Whether compiled programs are kept among the caches and found again.
        probe: Whether compiling may time what it chose where no target was given, and what falls
            to `reference`.
        max_shapes: Most programs that a model with free dimensions keeps, one for each sizes.
        call_seconds: How long one call on a machine that a runner leads to may take there; 0 means
            no limit.
        opencl_devices: Which OpenCL devices there are, by number: `1,0`, `0,0`, or `0/2` for two
            halves of one; empty means all.
    """

    cache_dir: str | None = _setting(
        "INTARSIA_CACHE_DIR", None, "folder of the caches", in_cache_keys=False
    )
    keys_dir: str | None = _setting(
        "INTARSIA_KEYS_DIR", None, "folder of keys that vouch for packages", in_cache_keys=False
    )
    num_threads: int = _setting(
        "INTARSIA_NUM_THREADS", 0, "threads of one run; 0 means all CPUs", in_cache_keys=True
    )
    dump_dir: str | None = _setting(
        "INTARSIA_DUMP", None, "folder for generated code, to be read", in_cache_keys=False
    )
    log_level: str = _setting(
        "INTARSIA_LOG", "warning", "debug, info, warning or error", in_cache_keys=False
    )
    debug: bool = _setting(
        "INTARSIA_DEBUG", False, "show tracebacks of internal errors", in_cache_keys=False
    )
    target_files: tuple[str, ...] = _setting(
        "INTARSIA_TARGETS", (), "files of tags and labels, as in PATH", in_cache_keys=False
    )
    dnnl_library: str | None = _setting(
        "INTARSIA_DNNL_LIBRARY", None, "file of oneDNN's shared library", in_cache_keys=True
    )
    acl_root: str | None = _setting(
        "INTARSIA_ACL_ROOT", None, "folder of Arm Compute Library for aarch64", in_cache_keys=True
    )
    costs: str | None = _setting(
        "INTARSIA_COSTS", None, "cost database: a file or a URL", in_cache_keys=False
    )
    schedules: str | None = _setting(
        "INTARSIA_SCHEDULES", None, "folder of tuned schedules of kernels", in_cache_keys=False
    )
    programs: bool = _setting(
        "INTARSIA_PROGRAMS", True, "keep compiled programs among the caches", in_cache_keys=False
    )
    probe: bool = _setting(
        "INTARSIA_PROBE", True, "time what the default order chose", in_cache_keys=True
    )
    max_shapes: int = _setting(
        "INTARSIA_MAX_SHAPES", 16, "programs of a model with free sizes", in_cache_keys=False
    )
    call_seconds: int = _setting(
        "INTARSIA_CALL_SECONDS", 600, "most seconds of a call through a runner", in_cache_keys=False
    )
    opencl_devices: str = _setting(
        "INTARSIA_OPENCL_DEVICES", "", "numbers of OpenCL devices, as 1,0", in_cache_keys=True
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings.

        Args:
            environment: The variables; None means those of this process.

        Raises:
            SettingError: A variable's value has the wrong type or range.
        """
        variables = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for spec in fields(cls):
            variable = spec.metadata["variable"]
            text = variables.get(variable, "").strip()
            if text:
                values[spec.name] = _parse(variable, text, str(spec.type))
        home = variables.get("XDG_CACHE_HOME")
        if home and "cache_dir" not in values:
            values["cache_dir"] = f"{home}/intarsia"
        home = variables.get("XDG_CONFIG_HOME")
        if home and "keys_dir" not in values:
            values["keys_dir"] = f"{home}/intarsia/keys"
        settings = cls(**values)
        if settings.log_level not in LOG_LEVELS:
            raise SettingError(
                f"INTARSIA_LOG={settings.log_level!r} is not a level",
                hint=f"use one of {', '.join(LOG_LEVELS)}",
            )
        return settings

    def cache_folder(self) -> Path:
        """Return the folder of all caches (XDG Base Directory Specification 0.8).

        Raises:
            SettingError: It is in a home folder that is not known; or others may write there, whose
                code would run.
        """
        hint = "set INTARSIA_CACHE_DIR to a folder of yours"
        folder = expanded(self.cache_dir or "~/.cache/intarsia", hint)
        if _may_be_written_by_others(folder):
            raise SettingError(
                f"others may write to the cache folder {str(folder)!r}, which holds machine code",
                hint=f"`chmod go-w {folder}` if it is yours, or {hint}",
            )
        return folder

    def keys_folder(self) -> Path:
        """Return the folder of keys (XDG Base Directory Specification 0.8).

        Raises:
            SettingError: It is in a home folder that is not known.
        """
        hint = "set INTARSIA_KEYS_DIR to a folder of yours"
        return expanded(self.keys_dir or "~/.config/intarsia/keys", hint)

    def schedules_folder(self) -> Path:
        """Return the folder of tuned schedules."""
        if self.schedules:
            return expanded(self.schedules)
        return self.cache_folder() / "schedules"

    def threads(self, num_threads: int | None = None) -> int:
        """Return the number of threads of one run, at least 1.

        Args:
            num_threads: What was asked for; None means what is set, else all CPUs that this process
                is bound to, or as many as the control groups grant.

        Raises:
            SettingError: It is below 1.
        """
        if num_threads is None:
            return self.num_threads or default_threads()
        try:
            count = operator.index(num_threads)
        except TypeError:
            count = 0
        if count < 1:
            raise SettingError(
                f"num_threads={num_threads!r} is not a number of threads",
                hint="leave it out for all CPUs, or use 1 or more",
            )
        return count


DEFAULTS = Settings()
"""The settings when no variable is set."""


def is_plain(environment: Mapping[str, str] | None = None) -> bool:
    """Tell whether the user wants text without codes of terminals, bold ones included.

    Args:
        environment: The variables; None means those of this process.

    Source:
        no-color.org: NO_COLOR counts if it is there and not empty.
    """
    return bool((os.environ if environment is None else environment).get("NO_COLOR"))


def expanded(path: str, hint: str = "write the whole path") -> Path:
    """Return a path in which a home is written as its folder.

    Args:
        path: May begin with `~` or `~NAME`.
        hint: What helps where that is not known.

    Raises:
        SettingError: It is in a home folder that is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingError(f"{path!r} is in a home folder that is not known", hint=hint) from None


def _may_be_written_by_others(folder: Path) -> bool:
    """Tell whether a folder is anybody's, or another user's; a group may be the user's alone."""
    try:
        status = folder.stat()
    except OSError:
        return False  # it is to be made
    is_ours = os.geteuid() in (0, status.st_uid) or status.st_uid == 0
    return not is_ours or bool(status.st_mode & stat.S_IWOTH)


_OF_DRIVERS = ("POCL_", "OCL_", "OPENCL_", "CL_", "CUDA_", "HIP_", "ROCR_", "GPU_", "ZE_", "LD_")
"""Beginnings of the variables by which people choose drivers, devices and what these do."""

_CHANGES_NOTHING = "POCL_CACHE_DIR"
"""We set it ourselves."""


def driver_variables() -> tuple[str, ...]:
    """Return the variables that decide which devices are found and what they do: `NAME=text`."""
    return tuple(
        f"{name}={text}"
        for name, text in sorted(os.environ.items())
        if name.startswith(_OF_DRIVERS) and name != _CHANGES_NOTHING
    )


LOG_LEVELS = ("debug", "info", "warning", "error")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def _parse(variable: str, text: str, type_name: str) -> Any:
    if type_name == "int":
        if not text.isdecimal():
            raise SettingError(
                f"{variable}={text!r} is not a non-negative integer",
                hint=f"set {variable} to a number such as 2, or unset it",
            )
        return int(text)
    if type_name == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise SettingError(f"{variable}={text!r} is not a boolean", hint="use 1 or 0")
        return text.lower() in _TRUE
    if type_name == "tuple[str, ...]":
        return tuple(part for part in text.split(os.pathsep) if part)
    return text
