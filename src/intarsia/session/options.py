# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's options of sessions and runs, and what each means here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import SettingError

if TYPE_CHECKING:
    import onnx


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime rewrites the regions that it runs."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs nodes side by side; here a plan runs its regions in order."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


ORT_KIND = "onnxruntime"
"""The kind of the targets that ONNX Runtime's own options are for; others ignore them."""

LEVELS = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: "none",
    GraphOptimizationLevel.ORT_ENABLE_BASIC: "basic",
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: "extended",
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: "all",
    GraphOptimizationLevel.ORT_ENABLE_ALL: "all",
}
"""The value of `onnxruntime -graph_optimization=` for each level."""


@dataclass(slots=True, eq=False)
class _ConfigEntries:
    """Texts by key; keys that mean something only to ONNX Runtime are kept and change nothing."""

    _entries: dict[str, str] = field(default_factory=dict, init=False)

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise SettingError(
                f"{type(self).__name__} does not have configuration with key: {key}",
                hint=f"it has {', '.join(sorted(self._entries)) or 'none'}",
            )
        return self._entries[key]


@dataclass(slots=True, eq=False)
class SessionOptions(_ConfigEntries):
    """ONNX Runtime's options of a session; one that it does not have is an `AttributeError`.

    Attributes:
        intra_op_num_threads: Threads of one run; 0 means our setting.
        enable_profiling: Whether every run is timed step by step, for `end_profiling`.
        profile_file_prefix: What the name of the profile begins with.
        graph_optimization_level: Of the regions that run on `onnxruntime`; other targets have
            attributes of their own.
        optimized_model_filepath: Refused if it is set: a program is saved by `executable.save`.
        execution_mode: Accepted; a plan runs its regions in order.
        inter_op_num_threads: Accepted; as `execution_mode`.
        execution_order: Accepted; as `execution_mode`.
        enable_cpu_mem_arena: Accepted; a plan always has one arena for each memory.
        enable_mem_pattern: Accepted; arenas are always planned ahead.
        enable_mem_reuse: Accepted; arenas always reuse memory.
        use_deterministic_compute: Accepted; changes nothing.
        use_per_session_threads: Accepted; changes nothing.
        log_severity_level: Accepted; INTARSIA_LOG says what is logged.
        log_verbosity_level: Accepted; as `log_severity_level`.
        logid: Accepted; as `log_severity_level`.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_profiling: bool = False
    profile_file_prefix: str = "intarsia_profile"
    optimized_model_filepath: str = ""
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    free_dimensions: dict[str, int] = field(default_factory=dict)
    free_denotations: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    files_in_memory: dict[str, bytes] = field(default_factory=dict)
    custom_ops_libraries: list[str] = field(default_factory=list)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none of ONNX Runtime's changes anything here."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises:
            SettingError: There is none of that key.
        """
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the free dimensions of a name in the inputs' shapes."""
        self.free_dimensions[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the free dimensions of a denotation (ONNX: `DATA_BATCH`) in the inputs' shapes."""
        self.free_denotations[denotation] = size

    def add_initializer(self, name: str, value: Any) -> None:
        """Have a tensor stand for an initializer of the model.

        Args:
            name: Of the initializer.
            value: An `OrtValue`, an array, or anything with the DLPack protocol.
        """
        self.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Have tensors stand for initializers whose data is in files.

        Raises:
            SettingError: There are not as many values as names.
        """
        _check_lengths("values", names, values)
        self.initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], contents: Sequence[bytes], lengths: Sequence[int]
    ) -> None:
        """Have bytes stand for files with external data.

        Args:
            names: Of the files, as the model writes them.
            contents: Of each file.
            lengths: How many bytes of each count.

        Raises:
            SettingError: The sequences are not of one length.
        """
        _check_lengths("contents", names, contents)
        _check_lengths("lengths", names, lengths)
        for name, content, length in zip(names, contents, lengths, strict=True):
            self.files_in_memory[name] = bytes(content[:length])

    def register_custom_ops_library(self, path: str | PathLike[str]) -> None:
        """Have ONNX Runtime load a library of operators, as `onnxruntime -custom_ops=PATH` does."""
        self.custom_ops_libraries.append(fspath(path))


@dataclass(slots=True, eq=False)
class RunOptions(_ConfigEntries):
    """ONNX Runtime's options of a run; one that it does not have is an `AttributeError`.

    Attributes:
        terminate: Whether runs that start from now on fail at once; one under way is not stopped.
        only_execute_path_to_fetches: Accepted; a plan runs as a whole.
        log_severity_level: Accepted; INTARSIA_LOG says what is logged.
        log_verbosity_level: Accepted; as `log_severity_level`.
        logid: Accepted; as `log_severity_level`.
    """

    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none of ONNX Runtime's changes anything here."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises:
            SettingError: There is none of that key.
        """
        return self._get(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Refuse an adapter.

        Raises:
            SettingError: Always: adapters belong to ONNX Runtime.
        """
        raise SettingError(
            f"a {type(adapter).__name__} cannot be used: a program's weights are settled when it "
            "is compiled",
            hint="give its tensors with SessionOptions.add_initializer",
        )


def check_session_options(options: Any) -> SessionOptions:
    """Return session options, or the default ones for None.

    Raises:
        SettingError: They are something else, or ask for what cannot be had.
    """
    if options is None:
        return SessionOptions()
    if not isinstance(options, SessionOptions):
        kind = type(options)
        hint = f"write targets={options!r}"
        if kind.__name__ == "SessionOptions":  # what it overrides could not be read back
            hint = "import SessionOptions from intarsia.session too"
        raise SettingError(
            f"sess_options is an intarsia.session.SessionOptions, not a {kind.__module__}."
            f"{kind.__name__}",
            hint=hint,
        )
    if options.optimized_model_filepath:
        raise SettingError(
            "optimized_model_filepath: no optimised ONNX model is written here",
            hint="session.executable.save(PATH) writes the compiled program as a package",
        )
    return options


def changes_of(options: SessionOptions) -> list[str]:
    """Return the methods that changed the model before it was compiled."""
    values = {
        SessionOptions.add_initializer: options.initializers,
        SessionOptions.add_external_initializers_from_files_in_memory: options.files_in_memory,
        SessionOptions.add_free_dimension_override_by_name: options.free_dimensions,
        SessionOptions.add_free_dimension_override_by_denotation: options.free_denotations,
        SessionOptions.register_custom_ops_library: options.custom_ops_libraries,
    }
    return [method.__name__ for method, value in values.items() if value]


def optimization_of(options: SessionOptions) -> str:
    """Return the value of `-graph_optimization` for the regions that run on `onnxruntime`.

    Raises:
        SettingError: There is no such level.
    """
    level = options.graph_optimization_level
    if level not in LEVELS:
        raise SettingError(
            f"graph_optimization_level {level!r} is unknown",
            hint=f"use one of {', '.join(valid.name for valid in LEVELS)}",
        )
    return LEVELS[GraphOptimizationLevel(level)]


def _check_lengths(what: str, names: Sequence[str], others: Sequence[Any]) -> None:
    if len(names) != len(others):
        raise SettingError(f"there are {len(names)} names and {len(others)} {what}")


def override_sizes(model: Any, options: SessionOptions) -> dict[str, int]:
    """Return the sizes of the free dimensions that are overridden, by name.

    Args:
        model: In any form that `intarsia.compile` takes.
        options: With the overrides.

    Raises:
        ModelError: The model cannot be read.
    """
    if not options.free_dimensions and not options.free_denotations:
        return {}
    sizes: dict[str, int] = {}
    for value in _read(model).graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            by_denotation = options.free_denotations.get(dim.denotation)
            size = options.free_dimensions.get(dim.dim_param, by_denotation)
            if size is not None and not dim.HasField("dim_value"):
                sizes[dim.dim_param or f"{value.name}.{axis}"] = size
    return sizes


def with_initializers(model: Any, options: SessionOptions) -> Any:
    """Return a model with initializers replaced; the same one if there is nothing to replace.

    Args:
        model: In any form that `intarsia.compile` takes.
        options: With the initializers, and the files that are in memory.

    Raises:
        ModelError: The model cannot be read.
        SettingError: The model has no initializer or file of a name, or another shape or type.
    """
    if not options.initializers and not options.files_in_memory:
        return model
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    from intarsia.graph.external import check_external_data

    proto = _read(model)
    by_name = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, value in options.initializers.items():
        _replace(by_name, name, value)
    used = {
        name
        for tensor in proto.graph.initializer
        if uses_external_data(tensor)
        for name in _fill(tensor, options.files_in_memory)
    }
    unused = options.files_in_memory.keys() - used
    if unused:
        raise SettingError(f"the model has no external data in a file {min(unused)!r}")
    folder = Path(model).parent if isinstance(model, str | Path) else None
    check_external_data(proto, folder)
    if folder is not None:
        load_external_data_for_model(proto, str(folder))
    return proto


def _read(model: Any) -> onnx.ModelProto:
    """Return a copy of the model that may be changed, external data not read."""
    import onnx
    import onnx_ir as ir

    from intarsia.graph.read import read_bytes, read_file

    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    if isinstance(model, ir.Model):
        return ir.to_proto(model)
    return read_bytes(model) if isinstance(model, bytes) else read_file(model)


def _replace(by_name: Mapping[str, onnx.TensorProto], name: str, value: Any) -> None:
    """Write an array into an initializer."""
    import numpy as np
    from onnx import helper, numpy_helper

    if name not in by_name:
        raise SettingError(
            f"the model has no initializer {name!r}", hint=f"it has {', '.join(sorted(by_name))}"
        )
    try:
        tensor, array = by_name[name], np.asarray(value)
    except ValueError as error:
        raise SettingError(f"initializer {name!r} cannot be read as an array: {error}") from error
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if list(tensor.dims) != list(array.shape) or array.dtype != dtype:
        raise SettingError(
            f"initializer {name!r} is {dtype}{list(tensor.dims)}, "
            f"not {array.dtype}{list(array.shape)}"
        )
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def _fill(tensor: onnx.TensorProto, files: Mapping[str, bytes]) -> list[str]:
    """Fill an initializer from a file in memory, if one has its data; return that file's name."""
    import onnx

    fields = {entry.key: entry.value for entry in tensor.external_data}
    content = files.get(fields.get("location", ""))
    if content is None:
        return []
    start = int(fields.get("offset", 0))
    end = start + int(fields["length"]) if "length" in fields else len(content)
    if end > len(content):
        raise SettingError(
            f"{fields['location']!r} has {len(content)} bytes; initializer {tensor.name!r} ends "
            f"at {end}"
        )
    tensor.raw_data = content[start:end]
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    return [fields["location"]]
