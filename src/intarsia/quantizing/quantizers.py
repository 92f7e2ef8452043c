# SPDX-License-Identifier: Apache-2.0
"""The quantisers that we are a door to: each makes a narrow model, some nodes left in f32."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import onnx

from intarsia.errors import SettingError
from intarsia.quantizing.libraries import at_work, describe_library, import_library

if TYPE_CHECKING:
    from intarsia.quantizing.samples import Feeds


class Quantizer(Protocol):
    """Makes a quantised model of the one that it was made for.

    Attributes:
        operators: Those that can be left in f32; None if any that it makes narrow.
    """

    operators: frozenset[str] | None

    def quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        """Return the model, with these nodes left in f32.

        Raises:
            BackendError: The library failed.
        """


@dataclass(frozen=True, slots=True)
class Scheme:
    """What numbers a model is quantised to, and how.

    Attributes:
        to: `int8` or `int4`.
        library: `onnxruntime` or `nncf`.
        is_dynamic: Of int8, whether ranges are read from each run.
        is_per_channel: Of int8, whether weights have a scale for each channel.
        has_reduced_range: Of int8, whether weights have 7 bits.
        ranges: Of static int8, how ranges come from samples: `minmax`, `entropy`, `percentile`.
        block: Of int4, how many weights share a scale.
        form: Of int4, the operators: `MatMulNBits` or `DequantizeLinear`.
    """

    to: str = "int8"
    library: str = "onnxruntime"
    is_dynamic: bool = False
    is_per_channel: bool = True
    has_reduced_range: bool = False
    ranges: str = "minmax"
    block: int = 32
    form: str = "MatMulNBits"

    def __post_init__(self) -> None:
        for field, (option, choices) in _CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                raise SettingError(
                    f"{option} {value!r} is none of {', '.join(choices)}",
                    hint=f"write {option} {choices[0]}",
                )
        if self.is_dynamic and (self.to != "int8" or self.library != "onnxruntime"):
            raise SettingError(
                "only ONNX Runtime quantises with ranges of each run (--dynamic), and only to int8",
                hint="leave --dynamic out",
            )
        if self.block < _LEAST_BLOCK or self.block & (self.block - 1):
            raise SettingError(
                f"--block {self.block} is not a power of two from {_LEAST_BLOCK}",
                hint="write --block 32",
            )

    @property
    def needs_samples(self) -> bool:
        """Whether ranges come from samples."""
        return self.to == "int8" and not self.is_dynamic

    @property
    def opset(self) -> int:
        """The oldest ONNX in which the result can be written; 0 if any will do."""
        if self.to == "int8":
            return 11 if self.is_dynamic else 13
        return 21 if self.form == "DequantizeLinear" or self.library == "nncf" else 0

    def __str__(self) -> str:
        if self.to == "int4":
            form = "DequantizeLinear" if self.library == "nncf" else self.form
            return f"int4 weights in blocks of {self.block}, as {form}"
        kind = "dynamic" if self.is_dynamic else f"static ({self.ranges})"
        scales = "channel" if self.is_per_channel else "tensor"
        return f"int8, {kind}, weights by {scales}" + (
            ", 7 bits of them" if self.has_reduced_range else ""
        )


_LEAST_BLOCK = 16
_CHOICES = {
    "to": ("--to", ("int8", "int4")),
    "library": ("--quantizer", ("onnxruntime", "nncf")),
    "ranges": ("--ranges", ("minmax", "entropy", "percentile")),
    "form": ("--form", ("MatMulNBits", "DequantizeLinear")),
}


def make_quantizer(
    scheme: Scheme, model: onnx.ModelProto, samples: Sequence[Feeds]
) -> tuple[Quantizer, str]:
    """Return what quantises a model, and what it is called.

    Args:
        scheme: What to do.
        model: Prepared, of an opset that will do; it is left as it is.
        samples: For ranges.

    Raises:
        BackendError: The library is not installed, or failed.
    """
    import_library(scheme.library)
    quantizer: Quantizer
    if scheme.library == "nncf":
        quantizer = _Nncf(scheme, model, samples)
    elif scheme.to == "int4":
        quantizer = _Blocks(scheme, model)
    elif scheme.is_dynamic:
        quantizer = _Dynamic(scheme, model)
    else:
        quantizer = _Static(scheme, model, samples)
    return quantizer, describe_library(scheme.library)


class _SampleReader:
    """Samples as ONNX Runtime's calibration asks for them."""

    def __init__(self, samples: Sequence[Feeds]) -> None:
        self._rest: Iterator[Feeds] = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample."""
        feeds = next(self._rest, None)
        return None if feeds is None else dict(feeds)


class _Static:
    """ONNX Runtime's: QuantizeLinear and DequantizeLinear around each operator.

    Activations are uint8 with a zero point, weights int8 without one. Ranges are read once.
    """

    def __init__(self, scheme: Scheme, model: onnx.ModelProto, samples: Sequence[Feeds]) -> None:
        library = import_library("onnxruntime.quantization")
        utilities = import_library("onnxruntime.quantization.quant_utils")
        registry = import_library("onnxruntime.quantization.registry")
        self._scheme, self._library = scheme, library
        # In an order of its own: the library's depends on the seed of Python's hashes.
        self._operators = sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry})
        self.operators: frozenset[str] | None = frozenset(self._operators)
        methods = {name.lower(): one for name, one in library.CalibrationMethod.__members__.items()}
        with at_work("onnxruntime"), tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
            self._model = utilities.save_and_reload_model_with_shape_infer(_copy(model))
            file = Path(folder) / "model.onnx"
            onnx.save(model, file)
            calibrator = library.create_calibrator(
                file,
                self._operators,
                augmented_model_path=str(Path(folder) / "ranges.onnx"),
                calibrate_method=methods[scheme.ranges],
            )
            calibrator.collect_data(_SampleReader(samples))
            self._ranges = calibrator.compute_data()

    def quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        library = self._library
        with at_work("onnxruntime"):
            quantizer = library.QDQQuantizer(
                _copy(self._model),
                self._scheme.is_per_channel,
                self._scheme.has_reduced_range,
                library.QuantType.QInt8,
                library.QuantType.QUInt8,
                copy.deepcopy(self._ranges),
                [],
                sorted(left),
                self._operators,
                {},
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
            return _taken(quantizer.model.model)


class _Dynamic:
    """ONNX Runtime's: DynamicQuantizeLinear, MatMulInteger and ConvInteger."""

    operators: frozenset[str] | None = None

    def __init__(self, scheme: Scheme, model: onnx.ModelProto) -> None:
        self._scheme, self._model = scheme, model
        self._library = import_library("onnxruntime.quantization")

    def quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        with (
            at_work("onnxruntime"),
            tempfile.TemporaryDirectory(prefix="intarsia-") as folder,
        ):
            file = Path(folder) / "model.onnx"
            self._library.quantize_dynamic(
                _copy(self._model),
                file,
                per_channel=self._scheme.is_per_channel,
                reduce_range=self._scheme.has_reduced_range,
                weight_type=self._library.QuantType.QInt8,
                nodes_to_exclude=sorted(left),
            )
            return onnx.load(file)


class _Blocks:
    """ONNX Runtime's: weights of products in blocks of 4 bits, each with a scale."""

    operators: frozenset[str] | None = None

    def __init__(self, scheme: Scheme, model: onnx.ModelProto) -> None:
        self._scheme, self._model = scheme, model
        self._formats = import_library("onnxruntime.quantization").QuantFormat
        self._library = import_library("onnxruntime.quantization.matmul_nbits_quantizer")

    def quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        is_standard = self._scheme.form == "DequantizeLinear"
        with at_work("onnxruntime"):
            quantizer = self._library.MatMulNBitsQuantizer(
                _copy(self._model),
                bits=4,
                block_size=self._scheme.block,
                is_symmetric=True,
                nodes_to_exclude=sorted(left),
                quant_format=self._formats.QDQ if is_standard else self._formats.QOperator,
            )
            quantizer.process()
            quantizer.model.topological_sort()
            return _taken(quantizer.model.model)


class _Nncf:
    """NNCF's: the same operators of ONNX, put where its own rules say, biases corrected."""

    operators: frozenset[str] | None = None

    def __init__(self, scheme: Scheme, model: onnx.ModelProto, samples: Sequence[Feeds]) -> None:
        self._scheme, self._model, self._samples = scheme, model, samples
        self._library = import_library("nncf")
        self._parameters = import_library("nncf.quantization.advanced_parameters")

    def quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        nncf, scheme, model = self._library, self._scheme, _copy(self._model)
        with at_work("nncf"):
            # Its scales of convolutions' weights have a rank that ONNX does not know.
            kinds = ["Conv", "ConvTranspose"] if scheme.to == "int4" else []
            scope = nncf.IgnoredScope(names=sorted(left), types=kinds, validate=False)
            if scheme.to == "int4":
                return _taken(
                    nncf.compress_weights(
                        model,
                        mode=nncf.CompressWeightsMode.INT4_SYM,
                        group_size=scheme.block,
                        all_layers=True,
                        ignored_scope=scope,
                        advanced_parameters=nncf.AdvancedCompressionParameters(
                            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
                        ),
                    )
                )
            return _taken(
                nncf.quantize(
                    model,
                    nncf.Dataset([dict(feeds) for feeds in self._samples]),
                    subset_size=len(self._samples),
                    ignored_scope=scope,
                    advanced_parameters=nncf.AdvancedQuantizationParameters(
                        overflow_fix=nncf.OverflowFix(
                            "enable" if scheme.has_reduced_range else "disable"
                        ),
                        weights_quantization_params=self._parameters.QuantizationParameters(
                            per_channel=scheme.is_per_channel
                        ),
                    ),
                )
            )


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _taken(model: Any) -> onnx.ModelProto:
    """Return a library's result, of which it knows no more than that it has the type."""
    result: onnx.ModelProto = model
    return result
