# SPDX-License-Identifier: Apache-2.0
"""Execution providers of ONNX Runtime as data: a row for each kind that one of them serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import TargetError
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from intarsia.target import Target


@dataclass(frozen=True, slots=True)
class ExecutionProvider:
    """A provider.

    Attributes:
        name: As ONNX Runtime calls it; empty for one of a library that the target names.
        title: Its name for people.
        packages: Python packages that bring its library, as a plug-in or inside ONNX Runtime.
        options: Names of its options, by its own documentation; None means that they are not known.
        defaults: Options that it has unless the target says otherwise.
        module: Python module of a package with its library as a plug-in; it has `get_library_path`.
        has_context: Whether it writes what it compiled into the model (nodes `EPContext`).
    """

    name: str
    title: str
    packages: tuple[str, ...] = ()
    options: frozenset[str] | None = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    module: str = ""
    has_context: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PROVIDERS: Mapping[str, ExecutionProvider] = {
    "ort-ep": ExecutionProvider("", "the provider", options=None, has_context=True),
    "cann": ExecutionProvider(
        "CANNExecutionProvider",
        "Huawei's CANN",
        ("onnxruntime-cann",),
        _names(
            "device_id npu_mem_limit arena_extend_strategy enable_cann_graph enable_cann_subgraph"
            " dump_graphs dump_om_model precision_mode precision_mode_v2 op_select_impl_mode"
            " optypelist_for_implmode input_format dynamic_batch_size dynamic_image_size"
            " dynamic_dims"
        ),
    ),
    "coreml-ort": ExecutionProvider(
        "CoreMLExecutionProvider",
        "Core ML",
        ("onnxruntime",),
        _names(
            "ModelFormat MLComputeUnits RequireStaticInputShapes EnableOnSubgraphs"
            " SpecializationStrategy ProfileComputePlan AllowLowPrecisionAccumulationOnGPU"
            " ModelCacheDirectory"
        ),
    ),
    "directml": ExecutionProvider(
        "DmlExecutionProvider",
        "DirectML",
        ("onnxruntime-directml",),
        _names(
            "device_id performance_preference device_filter disable_metacommands"
            " enable_graph_capture enable_graph_serialization"
        ),
    ),
    "migraphx": ExecutionProvider(
        "MIGraphXExecutionProvider",
        "MIGraphX",
        ("onnxruntime-migraphx",),
        _names(
            "device_id migraphx_fp16_enable migraphx_bf16_enable migraphx_fp8_enable"
            " migraphx_int8_enable migraphx_int8_calibration_table_name"
            " migraphx_use_native_calibration_table migraphx_model_cache_dir"
            " migraphx_exhaustive_tune migraphx_mem_limit migraphx_arena_extend_strategy"
            " migraphx_save_compiled_model migraphx_save_model_name migraphx_load_compiled_model"
            " migraphx_load_model_name migraphx_max_dynamic_batch migraphx_max_compiled_models"
        ),
    ),
    "nnapi": ExecutionProvider("NnapiExecutionProvider", "Android's NNAPI"),
    "openvino-ort": ExecutionProvider(
        "OpenVINOExecutionProvider",
        "OpenVINO's provider",
        ("onnxruntime-ep-openvino", "onnxruntime-openvino"),
        _names(
            "device_type device_id precision num_of_threads num_streams cache_dir load_config"
            " model_priority enable_opencl_throttling enable_qdq_optimizer disable_dynamic_shapes"
            " reshape_input layout"
        ),
        module="onnxruntime_ep_openvino",
        has_context=True,
    ),
    "qnn": ExecutionProvider(
        "QNNExecutionProvider",
        "Qualcomm's QNN",
        ("onnxruntime-qnn",),
        _names(
            "backend_type backend_path device_id profiling_level profiling_file_path"
            " rpc_control_latency vtcm_mb htp_performance_mode qnn_saver_path qnn_context_priority"
            " htp_graph_finalization_optimization_mode soc_model htp_arch htp_bf16_enable"
            " enable_htp_fp16_precision enable_htp_spill_fill_buffer extended_udma op_packages"
            " enable_htp_shared_memory_allocator enable_htp_prepare_only dump_json_qnn_graph"
            " json_qnn_graph_dir offload_graph_io_quantization skip_qnn_version_check"
            " enable_vtcm_backup_buffer_sharing disable_file_mapped_weights genie_log_level"
            " enable_block_quant_weight_optimization dump_qnn_ir_dlc dump_qnn_ir_dlc_dir"
            " enable_framework_op_trace framework_op_trace_dir qnn_ir_backend_path"
            " num_graph_prepare_threads htp_share_resource_optimization"
        ),
        {"backend_type": "htp"},
        "onnxruntime_qnn",
        has_context=True,
    ),
    "rknpu": ExecutionProvider("RknpuExecutionProvider", "Rockchip's RKNPU"),
    "tensorrt-ort": ExecutionProvider(
        "TensorrtExecutionProvider",
        "TensorRT's provider",
        ("onnxruntime-gpu",),
        _names(
            "device_id trt_max_workspace_size trt_max_partition_iterations trt_min_subgraph_size"
            " trt_fp16_enable trt_bf16_enable trt_int8_enable trt_int8_calibration_table_name"
            " trt_int8_use_native_calibration_table trt_dla_enable trt_dla_core"
            " trt_engine_cache_enable trt_engine_cache_path trt_engine_cache_prefix"
            " trt_timing_cache_enable trt_timing_cache_path trt_force_timing_cache"
            " trt_builder_optimization_level trt_auxiliary_streams trt_tactic_sources"
            " trt_sparsity_enable trt_detailed_build_log trt_build_heuristics_enable"
            " trt_context_memory_sharing_enable trt_layer_norm_fp32_fallback trt_cuda_graph_enable"
            " trt_dump_subgraphs trt_profile_min_shapes trt_profile_max_shapes"
            " trt_profile_opt_shapes trt_engine_hw_compatible trt_op_types_to_exclude"
            " trt_engine_decryption_enable trt_engine_decryption_lib_path"
            " trt_force_sequential_engine_build trt_extra_plugin_lib_paths"
            " trt_weight_stripped_engine_enable trt_onnx_model_folder_path"
        ),
        has_context=True,
    ),
    "vitis-ai-ort": ExecutionProvider(
        "VitisAIExecutionProvider",
        "Vitis AI",
        (),
        _names(
            "config_file cache_dir cacheDir cache_key cacheKey target xclbin"
            " enable_cache_file_io_in_mem ai_analyzer_visualization ai_analyzer_profiling"
            " xlnx_enable_py3_round log_level"
        ),
        has_context=True,
    ),
    "webgpu-ort": ExecutionProvider(
        "WebGpuExecutionProvider",
        "ONNX Runtime's WebGPU",
        ("onnxruntime-ep-webgpu", "onnxruntime-webgpu"),
        _names(
            "preferredLayout enableGraphCapture dawnBackendType validationMode deviceId"
            " storageBufferCacheMode uniformBufferCacheMode queryResolveBufferCacheMode"
            " defaultBufferCacheMode powerPreference forceCpuNodeNames enablePIXCapture"
            " adapterIndex preserveDevice enableRobustness maxStorageBufferBindingSize"
            " maxStorageBuffersPerShaderStage maxNumPendingDispatches enableInt64"
            " enableMatmulFp32Accumulation kvCacheQuantizationBits multiRotaryCacheConcatOffset"
            " sessionBufferPoolGenerations weightLoadAcceleration"
        ),
        module="onnxruntime_ep_webgpu",
    ),
    "xnnpack-ort": ExecutionProvider(
        "XnnpackExecutionProvider", "ONNX Runtime's XNNPACK", (), _names("intra_op_num_threads")
    ),
}
"""By kind. `docs/ort_ep.md` says where the names of options come from. They are those of all
versions, so that a misspelt one is found here; a provider refuses itself what its version lacks.
Left out are pointers into the caller's memory, and what `ep_context` stands for."""


def provider_of(target: Target) -> ExecutionProvider:
    """Return the provider of a target."""
    return PROVIDERS[target.kind.name]


def options_of(target: Target) -> dict[str, str]:
    """Return the options that a target hands to its provider.

    Raises:
        TargetError: One has no value, stands twice, or is none of the provider's.
    """
    provider = provider_of(target)
    options: dict[str, str] = {}
    for text in target.attrs.get("options") or ():
        name, sign, value = str(text).partition("=")
        if not sign or not name:
            raise TargetError(
                f"options: {text!r} has no value", target=str(target), hint="write NAME=VALUE"
            )
        if name in options:
            raise TargetError(f"options: {name} stands there twice", target=str(target))
        if provider.options is not None and name not in provider.options:
            raise TargetError(
                f"options: {provider.title} has no option {name!r}",
                target=str(target),
                hint=suggest(name, sorted(provider.options), what="options"),
            )
        options[name] = value
    return {**provider.defaults, **options}


def library_of(target: Target) -> str:
    """Return the plug-in library of a target, named or of an installed package; else "".

    Raises:
        TargetError: The file that is named is not there.
    """
    from importlib import import_module
    from importlib.util import find_spec

    from intarsia.settings import expanded

    given = target.attrs.get("library")
    if given:
        path = expanded(str(given)).absolute()
        if not path.is_file():
            raise TargetError(f"library: there is no file {str(path)!r}", target=str(target))
        return str(path)
    provider = provider_of(target)
    if provider.module and find_spec(provider.module) is not None:
        return str(Path(import_module(provider.module).get_library_path()).absolute())
    return ""
